//! Provider URIs, such as `docker://python:3.12?cpus=2`.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// `PROVIDER://TARGET?KEY=VALUE&…`: a provider, what it should start from, and its configuration.
///
/// The provider's id alone is read as `PROVIDER://`.
///
/// A provider [takes](Self::take) the keys that it knows and [finishes](Self::finish), which refuses the rest.
#[derive(Clone, PartialEq, Eq)]
pub struct Uri {
    provider: String,
    target: String,
    keys: Vec<(String, String)>,
    /// The keys that were asked for, for the message about an unknown one.
    known: Vec<&'static str>,
}

impl Uri {
    /// The provider's id.
    pub fn provider(&self) -> &str {
        &self.provider
    }

    /// What stands after `://`: an image, a template, or nothing.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// The value of `key`, which is then known.
    pub fn take(&mut self, key: &'static str) -> Option<String> {
        self.known.push(key);
        let at = self.keys.iter().position(|(name, _)| name == key)?;
        Some(self.keys.remove(at).1)
    }

    /// The value of `key`, read as `T`.
    pub fn take_as<T: FromStr<Err: fmt::Display>>(&mut self, key: &'static str) -> Result<Option<T>> {
        self.take(key)
            .map(|value| {
                value
                    .parse()
                    .map_err(|error| Error::invalid_argument("uri", format!("the key `{key}`: {error}")))
            })
            .transpose()
    }

    /// Refuse a target, for providers that have none.
    pub fn no_target(&self) -> Result<()> {
        if self.target.is_empty() {
            return Ok(());
        }
        let Self { provider, target, .. } = self;
        Err(Error::invalid_argument(
            "uri",
            format!("`{provider}` takes nothing after `{provider}://`, but `{target}` is given"),
        ))
    }

    /// Refuse keys that nobody took.
    pub fn finish(self) -> Result<()> {
        let Some((key, _)) = self.keys.first() else { return Ok(()) };
        let error =
            Error::invalid_argument("uri", format!("`{}` does not know the key `{key}`", self.provider));
        Err(if self.known.is_empty() {
            error.with_hint(format!("`{}` takes no keys", self.provider))
        } else {
            error.with_hint(format!("it knows `{}`", self.known.join("`, `")))
        })
    }
}

impl fmt::Debug for Uri {
    /// Values may be secrets, so only the keys show.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<&str> = self.keys.iter().map(|(key, _)| key.as_str()).collect();
        write!(f, "{}://{}?{}", self.provider, self.target, keys.join("&"))
    }
}

impl FromStr for Uri {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let malformed = |what: &str| {
            Error::invalid_argument("uri", what).with_hint(
                "write `PROVIDER` or `PROVIDER://TARGET?KEY=VALUE`, such as `local` or `memory://`",
            )
        };
        let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let is_id = |text: &str| !text.is_empty() && text.bytes().all(word);
        let (provider, rest) = match text.split_once("://") {
            None if is_id(text) => (text, ""),
            None => return Err(malformed("there is no `://` in it")),
            Some((provider, rest)) if is_id(provider) => (provider, rest),
            Some(_) => return Err(malformed("the provider before `://` must be a word of a-z, 0-9 and `-`")),
        };
        let (target, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut keys: Vec<(String, String)> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| malformed("a key has no `=`"))?;
            let decoded = |s| {
                percent_decode(s)
                    .ok_or_else(|| malformed("a `%` is not followed by two hexadecimal digits of UTF-8"))
            };
            let (key, value) = (decoded(key)?, decoded(value)?);
            if keys.iter().any(|(known, _)| *known == key) {
                return Err(malformed("a key is given twice"));
            }
            keys.push((key, value));
        }
        let target = percent_decode(target)
            .ok_or_else(|| malformed("a `%` is not followed by two hexadecimal digits of UTF-8"))?;
        Ok(Self { provider: provider.to_owned(), target, keys, known: Vec::new() })
    }
}

fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        if byte != b'%' {
            bytes.push(byte);
            rest = after;
            continue;
        }
        let digits = after.get(..2).filter(|d| d.iter().all(u8::is_ascii_hexdigit))?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = &after[2..];
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parts() {
        let mut uri: Uri = "docker://python:3.12?cpus=2&label=a%20b".parse().unwrap();
        assert_eq!((uri.provider(), uri.target()), ("docker", "python:3.12"));
        assert_eq!(uri.take_as::<u32>("cpus").unwrap(), Some(2));
        assert_eq!(uri.take("label").as_deref(), Some("a b"));
        assert!(uri.finish().is_ok());
    }

    #[test]
    fn an_id_alone_is_a_uri() {
        let (id, uri): (Uri, Uri) = ("local".parse().unwrap(), "local://".parse().unwrap());
        assert!(id == uri);
    }

    #[test]
    fn unknown_keys_are_refused() {
        let mut uri: Uri = "local://?ids=1".parse().unwrap();
        uri.take("state");
        let error = uri.finish().unwrap_err();
        assert_eq!(error.message(), "`uri`: `local` does not know the key `ids`");
        assert_eq!(error.hint(), Some("it knows `state`"));
    }

    #[test]
    fn malformed() {
        for wrong in [
            "",
            "Local",
            "local:",
            "://",
            "Local://",
            "a b://",
            "x://?k",
            "x://?k=%zz",
            "x://%",
            "x://?a=1&a=2",
        ] {
            assert!(wrong.parse::<Uri>().is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in ".*") {
            let _ = text.parse::<Uri>();
        }
    }
}
