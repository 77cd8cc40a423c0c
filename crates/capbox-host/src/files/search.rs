//! Finding files by name and by content.

use std::ffi::OsStr;
use std::io::Read;
use std::path::PathBuf;

use capbox_guest::proto::open;

use super::{Entry, Files, Kind};
use crate::error::{Context, Error, Result};

/// Where to look, for what, and how far.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Search {
    /// Where to look, everything below included; links are not followed.
    pub root: PathBuf,
    /// Bytes that the file holds.
    pub content: Option<Vec<u8>>,
    /// The most hits.
    pub hits: usize,
    /// The most files and folders that are looked at.
    pub visited: usize,
    /// The most bytes of a file that are looked at.
    pub file_size: u64,
}

impl Search {
    /// A search that finds everything, with limits that suit an interactive use.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), content: None, hits: 1000, visited: 1_000_000, file_size: 16 << 20 }
    }
}

/// Something that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hit {
    /// Its path: the root and what follows.
    pub path: PathBuf,
    /// What it is.
    pub kind: Kind,
    /// For a search by content: the line, counted from 1.
    pub line: Option<u64>,
    /// For a search by content: the line itself, shortened.
    pub text: Vec<u8>,
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// The hits, folder by folder in the order of names.
    pub hits: Vec<Hit>,
    /// Whether a limit ended the search or left something out.
    pub truncated: bool,
}

/// How much of a line is shown.
const SHOWN: usize = 512;

impl Files {
    /// Looks for files whose names `takes_name` takes, by their content. What cannot be read is left out.
    ///
    /// What a pattern means is the caller's matter.
    pub fn search(&self, search: &Search, takes_name: impl Fn(&OsStr) -> bool) -> Result<Found> {
        let mut found = Found::default();
        let mut visited = 0;
        let mut folders = vec![PathBuf::new()];
        while let Some(relative) = folders.pop() {
            let path = search.root.join(&relative);
            let folder = match self.open_with(&path, open::READ | open::DIRECTORY, 0) {
                Ok(folder) => folder,
                // The root must be there; below it things come and go.
                Err(error) if relative.as_os_str().is_empty() => return Err(error),
                Err(error @ (Error::Gone { .. } | Error::Version { .. })) => return Err(error),
                Err(_) => continue,
            };
            let mut entries = self.entries(folder, &path)?;
            entries.sort_by(|a, b| a.name.cmp(&b.name));
            let mut below = Vec::new();
            for Entry { name, metadata } in entries {
                visited += 1;
                if visited > search.visited {
                    found.truncated = true;
                    return Ok(found);
                }
                let relative = relative.join(&name);
                if metadata.kind == Kind::Directory {
                    below.push(relative.clone());
                }
                if takes_name(&name) && !self.look_at(search, relative, metadata.kind, &mut found)? {
                    return Ok(found);
                }
            }
            folders.extend(below.into_iter().rev());
        }
        Ok(found)
    }

    /// Adds what there is of a file; says whether to go on.
    fn look_at(&self, search: &Search, relative: PathBuf, kind: Kind, found: &mut Found) -> Result<bool> {
        let path = search.root.join(relative);
        let Some(content) = search.content.as_deref().filter(|content| !content.is_empty()) else {
            found.hits.push(Hit { path, kind, line: None, text: Vec::new() });
            return Ok(found.go_on(search));
        };
        if kind != Kind::File {
            return Ok(true);
        }
        let file = match self.open_with(&path, open::READ | open::NO_FOLLOW, 0) {
            Ok(file) => file,
            Err(error @ (Error::Gone { .. } | Error::Version { .. })) => return Err(error),
            Err(_) => return Ok(true),
        };
        found.truncated |= file.metadata().on(&path)?.len() > search.file_size;
        let mut text = Vec::new();
        file.take(search.file_size).read_to_end(&mut text).on(&path)?;
        for (line, text) in lines_with(&text, content) {
            let text = text[..text.len().min(SHOWN)].to_vec();
            found.hits.push(Hit { path: path.clone(), kind, line: Some(line), text });
            if !found.go_on(search) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Found {
    fn go_on(&mut self, search: &Search) -> bool {
        let full = self.hits.len() >= search.hits;
        self.truncated |= full;
        !full
    }
}

/// The lines that hold `content`, with their numbers. What holds a line feed itself counts for its first line.
fn lines_with<'a>(text: &'a [u8], content: &'a [u8]) -> impl Iterator<Item = (u64, &'a [u8])> {
    let finder = memchr::memmem::Finder::new(content);
    let (mut from, mut line, mut counted) = (0, 1, 0);
    std::iter::from_fn(move || {
        let hit = from + finder.find(text.get(from..)?)?;
        line += memchr::memchr_iter(b'\n', &text[counted..hit]).count() as u64;
        counted = hit;
        let start = memchr::memrchr(b'\n', &text[..hit]).map_or(0, |end| end + 1);
        let end = memchr::memchr(b'\n', &text[hit..]).map_or(text.len(), |end| hit + end);
        from = end.max(hit + 1);
        Some((line, &text[start..end]))
    })
}

#[cfg(test)]
mod tests {
    use super::lines_with;

    #[test]
    fn lines_are_counted_and_given_once() {
        let text = b"one\ntwo two\n\nthree two";
        let found: Vec<_> = lines_with(text, b"two").collect();
        assert_eq!(found, [(2, &b"two two"[..]), (4, &b"three two"[..])]);
        assert_eq!(lines_with(text, b"\n").count(), 3);
        assert_eq!(lines_with(b"", b"x").count(), 0);
    }
}
