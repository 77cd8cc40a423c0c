//! Patterns for names.

/// Whether a name or path matches a pattern: `*` and `?` stay within a name, `**` goes across folders, `[a-z]` and
/// `[!a-z]` are sets, a backslash takes what follows as it is.
pub(crate) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    // Where the last star of each kind was, and up to where it has taken, to come back to.
    let (mut at, mut pos) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    let mut stars: Option<(usize, usize)> = None;
    loop {
        if let Some(b'*') = pattern.get(at) {
            let across = pattern.get(at + 1) == Some(&b'*');
            at += if across { 2 } else { 1 };
            if across {
                // `**/` also matches no folder at all.
                if pattern.get(at) == Some(&b'/') && matches(&pattern[at + 1..], &text[pos..]) {
                    return true;
                }
                (star, stars) = (None, Some((at, pos)));
            } else {
                star = Some((at, pos));
            }
            continue;
        }
        if at == pattern.len() && pos == text.len() {
            return true;
        }
        if pos < text.len()
            && let Some(len) = one(&pattern[at..], text[pos])
        {
            at += len;
            pos += 1;
            continue;
        }
        let more = star.filter(|(_, taken)| text.get(*taken).is_some_and(|byte| *byte != b'/'));
        if let Some((after, taken)) = more {
            star = Some((after, taken + 1));
            (at, pos) = (after, taken + 1);
        } else if let Some((after, taken)) = stars.filter(|(_, taken)| *taken < text.len()) {
            (star, stars) = (None, Some((after, taken + 1)));
            (at, pos) = (after, taken + 1);
        } else {
            return false;
        }
    }
}

/// If the pattern's first element matches the byte, how long that element is.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => (byte != b'/').then_some(1),
        [b'\\', literal, ..] => (*literal == byte).then_some(2),
        [b'[', rest @ ..] => {
            let (negated, set) = match rest {
                [b'!' | b'^', set @ ..] => (true, set),
                set => (false, set),
            };
            // A bracket right at the beginning belongs to the set.
            let Some(end) = set.iter().skip(1).position(|byte| *byte == b']').map(|end| end + 1) else {
                return (byte == b'[').then_some(1);
            };
            let len = pattern.len() - set.len() + end + 1;
            (within(&set[..end], byte) != negated && byte != b'/').then_some(len)
        }
        [literal, ..] => (*literal == byte).then_some(1),
        [] => None,
    }
}

fn within(mut set: &[u8], byte: u8) -> bool {
    loop {
        match set {
            [low, b'-', high, rest @ ..] => {
                if (*low..=*high).contains(&byte) {
                    return true;
                }
                set = rest;
            }
            [single, rest @ ..] => {
                if *single == byte {
                    return true;
                }
                set = rest;
            }
            [] => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("a", "a", true),
            ("a", "ab", false),
            ("*.rs", "main.rs", true),
            ("*.rs", "src/main.rs", false),
            ("**/*.rs", "src/a/main.rs", true),
            ("**/*.rs", "main.rs", true),
            ("src/**", "src/a/b", true),
            ("*a*b*c", "xxaxxbxxc", true),
            ("*a*b*c", "xxaxxcxxb", false),
            ("?[a-c][!x]", "1by", true),
            ("?[a-c][!x]", "1bx", false),
            ("[]]", "]", true),
            ("[", "[", true),
            ("\\*", "*", true),
            ("\\*", "x", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }
}
