//! Searching by listing and reading.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};

use super::walk::{Walk, below};
use crate::api::{EntryKind, Files, Match, ReadRange, Sandbox, SearchQuery};
use crate::capability::answer::Emulate;
use crate::capability::cap;
use crate::capability::rows::{HasFilesList, HasFilesRead};
use crate::error::{Error, ErrorKind, Result};
use crate::provider::{self as spi, Table};
use crate::spec::SandboxPath;

/// `files.search` over `files.list` and `files.read`: all folders are listed and, where a text is asked for, all
/// files of a fitting name are read.
///
/// What may not be read, and what vanishes meanwhile, is left out. A file with a NUL byte in its first 8 KiB is
/// binary, and has no lines.
///
/// # Loss
///
/// "every file that is searched for a text is transferred"
pub enum SearchByFiles {}

impl<P: Table + HasFilesRead + HasFilesList> Emulate<cap::FilesSearch, P> for SearchByFiles {
    fn emulate(sandbox: Sandbox<P>) -> Arc<dyn spi::FilesSearch> {
        Arc::new(ByFiles(sandbox))
    }
}

/// How many bytes of a file are read at a time.
const PIECE: u64 = 4 << 20;

/// How many bytes tell whether a file is binary.
const SNIFFED: usize = 8 << 10;

/// The longest line that is searched.
const LONGEST_LINE: usize = 16 << 20;

struct ByFiles<P>(Sandbox<P>);

#[async_trait]
impl<P: Table + HasFilesRead + HasFilesList> spi::FilesSearch for ByFiles<P> {
    async fn search(&self, path: &SandboxPath, query: &SearchQuery) -> Result<Vec<Match>> {
        let files = self.0.files();
        let mut found = Vec::new();
        let mut walk = Walk::new(&files, path);
        while let Some((folder, listed)) = walk.next(|_| true).await {
            let is_root = folder.as_bytes().is_empty();
            let entries = match listed {
                Err(error) if !is_root && is_left_out(&error) => continue,
                listed => listed?,
            };
            for entry in entries {
                if found.len() >= query.limit {
                    return Ok(found);
                }
                if !query.takes_name(entry.name.as_bytes()) {
                    continue;
                }
                let path = below(path, &folder.join(&entry.name));
                match &query.text {
                    None => found.push(Match::name(path)),
                    Some(text) if entry.kind == EntryKind::File => {
                        let room = query.limit - found.len();
                        match lines(&files, &path, text.as_bytes(), room).await {
                            Err(error) if is_left_out(&error) => {}
                            lines => found.extend(lines?),
                        }
                    }
                    Some(_) => {}
                }
            }
        }
        Ok(found)
    }
}

fn is_left_out(error: &Error) -> bool {
    use ErrorKind::{IsADirectory, NotADirectory, NotARegularFile, NotFound, PermissionDenied};
    matches!(error.kind(), NotFound | PermissionDenied | NotADirectory | IsADirectory | NotARegularFile)
}

/// The first `most` lines of a file that hold `text`.
async fn lines<P: HasFilesRead>(
    files: &Files<P>,
    path: &SandboxPath,
    text: &[u8],
    most: usize,
) -> Result<Vec<Match>> {
    let mut search = Lines::new(text);
    let mut found = Vec::new();
    let mut offset = 0;
    loop {
        let piece = files.read_range(path, ReadRange::new(offset, PIECE)).await?;
        if offset == 0 && piece[..piece.len().min(SNIFFED)].contains(&0) {
            return Ok(Vec::new());
        }
        let is_last = (piece.len() as u64) < PIECE;
        offset += piece.len() as u64;
        found.extend(search.push(&piece, is_last).map(|(number, line)| Match::line(path, number, line)));
        if is_last || found.len() >= most || search.line.len() > LONGEST_LINE {
            found.truncate(most);
            return Ok(found);
        }
    }
}

/// Looks for a text in lines that come in pieces.
struct Lines<'a> {
    text: &'a [u8],
    /// The line that is not whole yet.
    line: BytesMut,
    number: u64,
}

impl<'a> Lines<'a> {
    fn new(text: &'a [u8]) -> Self {
        Self { text, line: BytesMut::new(), number: 0 }
    }

    /// The lines that hold the text and that `piece` ends.
    fn push(&mut self, piece: &[u8], is_last: bool) -> impl Iterator<Item = (u64, Bytes)> {
        let mut found = Vec::new();
        let mut rest = piece;
        loop {
            let end = rest.iter().position(|b| *b == b'\n');
            self.line.extend_from_slice(&rest[..end.unwrap_or(rest.len())]);
            let Some(end) = end else { break };
            rest = &rest[end + 1..];
            found.extend(self.whole());
        }
        if is_last && !self.line.is_empty() {
            found.extend(self.whole());
        }
        found.into_iter()
    }

    fn whole(&mut self) -> Option<(u64, Bytes)> {
        self.number += 1;
        let line = self.line.split().freeze();
        let holds = self.text.is_empty() || line.windows(self.text.len()).any(|part| part == self.text);
        holds.then_some((self.number, line))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lines_do_not_depend_on_the_pieces(text in "[ab\n]{0,60}", cuts in proptest::collection::vec(0_usize..60, 0..5)) {
            let bytes = text.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.sort_unstable();
            cuts.push(bytes.len());
            let mut search = Lines::new(b"ab");
            let mut found = Vec::new();
            let mut from = 0;
            for (i, to) in cuts.iter().enumerate() {
                found.extend(search.push(&bytes[from..*to], i + 1 == cuts.len()));
                from = *to;
            }
            let expected: Vec<(u64, Bytes)> = text
                .lines()
                .enumerate()
                .filter(|(_, line)| line.contains("ab"))
                .map(|(i, line)| (i as u64 + 1, Bytes::copy_from_slice(line.as_bytes())))
                .collect();
            prop_assert_eq!(found, expected);
        }
    }
}
