//! What a command leaves: its output, its end, and how both are collected.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::error::Result;
use crate::provider::Events;

/// How a command ended. Never a made-up 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ExitStatus {
    /// It exited by itself, with this code.
    Exited(i32),
    /// This signal ended it, and nobody asked capbox for that.
    Signaled(i32),
    /// Its time was up, and it was killed with everything that it started.
    TimedOut,
    /// It was killed since memory ran out.
    OutOfMemory,
    /// It was killed through the API.
    Killed,
    /// The sandbox ended under it.
    SandboxGone,
    /// The provider did not say.
    Unknown,
}

impl ExitStatus {
    /// True for exit code 0.
    pub const fn success(self) -> bool {
        matches!(self, Self::Exited(0))
    }

    /// The exit code, where it exited by itself.
    pub const fn code(self) -> Option<i32> {
        match self {
            Self::Exited(code) => Some(code),
            _ => None,
        }
    }

    /// The signal that ended it.
    pub const fn signal(self) -> Option<i32> {
        match self {
            Self::Signaled(signal) => Some(signal),
            _ => None,
        }
    }

    /// The one number that a shell would show: the code; 128 and the signal; 124 for a timeout; 137 for a kill
    /// or lack of memory; 125 where the end is not known.
    pub const fn shell_code(self) -> i32 {
        match self {
            Self::Exited(code) => code,
            Self::Signaled(signal) => 128 + signal,
            Self::TimedOut => 124,
            Self::OutOfMemory | Self::Killed => 137,
            Self::SandboxGone | Self::Unknown => 125,
        }
    }

    /// A stable word for the cause: `exited`, `signaled`, `timed-out`, …
    pub const fn cause(self) -> &'static str {
        match self {
            Self::Exited(_) => "exited",
            Self::Signaled(_) => "signaled",
            Self::TimedOut => "timed-out",
            Self::OutOfMemory => "out-of-memory",
            Self::Killed => "killed",
            Self::SandboxGone => "sandbox-gone",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exited with {code}"),
            Self::Signaled(signal) => write!(f, "ended by signal {signal}"),
            Self::TimedOut => f.write_str("timed out and was killed"),
            Self::OutOfMemory => f.write_str("was killed since memory ran out"),
            Self::Killed => f.write_str("was killed"),
            Self::SandboxGone => f.write_str("ended with its sandbox"),
            Self::Unknown => f.write_str("ended in an unknown way"),
        }
    }
}

/// The end of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exit {
    /// How it ended.
    pub status: ExitStatus,
    /// True where processes that it started are still alive.
    pub background_remains: bool,
}

impl Exit {
    /// It ended so, and nothing of it is left.
    pub const fn new(status: ExitStatus) -> Self {
        Self { status, background_remains: false }
    }

    /// The same, with what is left.
    #[must_use]
    pub const fn with_background(mut self, remains: bool) -> Self {
        self.background_remains = remains;
        self
    }
}

/// Which stream output came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutputStream {
    /// Standard output, or a terminal.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Something that happens to a process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// It printed. Chunks are as they come: no line, no character is kept whole.
    Output {
        /// Where to.
        stream: OutputStream,
        /// The position of the first byte in the whole output of the process, both streams counted together.
        position: u64,
        /// The bytes.
        bytes: Bytes,
    },
    /// Output from position `from` up to `to` is no longer kept.
    Gap {
        /// The first position that is missing.
        from: u64,
        /// The first position that is there again.
        to: u64,
    },
    /// It ended; nothing comes after this.
    Exited(Exit),
}

/// One stream of output, bounded: its head and its tail.
///
/// It shows as its text, lossily and without a word about what is left out; see [`truncated`](Self::truncated).
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Captured {
    bytes: Vec<u8>,
    total: u64,
    cut_at: Option<usize>,
}

impl Captured {
    /// All of `bytes`.
    pub fn whole(bytes: Vec<u8>) -> Self {
        Self { total: bytes.len() as u64, bytes, cut_at: None }
    }

    /// What was kept.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What was kept, as text; bytes that are not UTF-8 show as U+FFFD.
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.bytes)
    }

    /// What was kept, owned.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// How many bytes were printed.
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// True where something is left out.
    pub const fn truncated(&self) -> bool {
        self.cut_at.is_some()
    }

    /// Where something is left out: the index in [`bytes`](Self::bytes) at which the tail begins.
    pub const fn cut_at(&self) -> Option<usize> {
        self.cut_at
    }
}

impl fmt::Display for Captured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text())
    }
}

impl fmt::Debug for Captured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Captured")
            .field("text", &self.text())
            .field("total", &self.total)
            .field("truncated", &self.truncated())
            .finish_non_exhaustive()
    }
}

/// What a command that ran to its end left.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: Captured,
    /// Standard error; empty where the provider merges the streams.
    pub stderr: Captured,
    /// True where processes that it started are still alive.
    pub background_remains: bool,
    /// How long it took, as seen from here.
    pub duration: Duration,
}

impl Output {
    /// An output with nothing printed.
    pub fn new(status: ExitStatus) -> Self {
        Self {
            status,
            stdout: Captured::default(),
            stderr: Captured::default(),
            background_remains: false,
            duration: Duration::ZERO,
        }
    }
}

/// Collect the events of a process to its end, keeping at most `max_output` bytes of each stream.
pub async fn collect(mut events: Box<dyn Events>, max_output: usize) -> Result<Output> {
    let start = Instant::now();
    let mut stdout = Collector::new(max_output);
    let mut stderr = Collector::new(max_output);
    let mut exit = Exit::new(ExitStatus::Unknown);
    while let Some(event) = events.next().await? {
        match event {
            Event::Output { stream: OutputStream::Stdout, bytes, .. } => stdout.push(&bytes),
            Event::Output { stream: OutputStream::Stderr, bytes, .. } => stderr.push(&bytes),
            Event::Gap { from, to } => stdout.skip(to.saturating_sub(from)),
            Event::Exited(end) => exit = end,
        }
    }
    Ok(Output {
        status: exit.status,
        stdout: stdout.finish(),
        stderr: stderr.finish(),
        background_remains: exit.background_remains,
        duration: start.elapsed(),
    })
}

/// Keeps the head and the tail of a stream.
pub(crate) struct Collector {
    /// What has come so far, while all of it fits; then the head only.
    head: Vec<u8>,
    tail: VecDeque<u8>,
    limit: usize,
    total: u64,
    cut: bool,
}

impl Collector {
    pub(crate) fn new(limit: usize) -> Self {
        Self { head: Vec::new(), tail: VecDeque::new(), limit, total: 0, cut: false }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        if !self.cut {
            if self.head.len() + bytes.len() <= self.limit {
                self.head.extend_from_slice(bytes);
                return;
            }
            self.cut = true;
            let late = self.head.split_off(self.head.len().min(self.limit.div_ceil(2)));
            self.tail.extend(late);
        }
        let room = self.limit.div_ceil(2) - self.head.len();
        let (first, rest) = bytes.split_at(room.min(bytes.len()));
        if self.tail.is_empty() {
            self.head.extend_from_slice(first);
            self.push_tail(rest);
        } else {
            self.push_tail(bytes);
        }
    }

    /// Count bytes that are known to be lost.
    fn skip(&mut self, lost: u64) {
        self.total += lost;
        self.cut |= lost > 0;
    }

    fn push_tail(&mut self, bytes: &[u8]) {
        let room = self.limit / 2;
        let bytes = &bytes[bytes.len().saturating_sub(room)..];
        let over = (self.tail.len() + bytes.len()).saturating_sub(room);
        self.tail.drain(..over);
        self.tail.extend(bytes);
    }

    pub(crate) fn finish(self) -> Captured {
        let Self { mut head, tail, total, cut, .. } = self;
        if !cut {
            return Captured { bytes: head, total, cut_at: None };
        }
        // Cut between characters, so that the text view shows none that was not printed.
        head.truncate(head.len() - unfinished_character(&head));
        let tail: Vec<u8> = tail.into();
        let begins = tail.iter().take(3).take_while(|b| **b & 0xC0 == 0x80).count();
        let cut_at = head.len();
        head.extend_from_slice(&tail[begins..]);
        Captured { bytes: head, total, cut_at: Some(cut_at) }
    }
}

/// How many bytes at the end are the beginning of a UTF-8 character that is not all there.
fn unfinished_character(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(3) {
        let byte = bytes[bytes.len() - back];
        let needs = match byte {
            0xC0..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF7 => 4,
            0x80..=0xBF => continue,
            _ => return 0,
        };
        return if needs > back { back } else { 0 };
    }
    0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn collected(chunks: &[&[u8]], limit: usize) -> Captured {
        let mut collector = Collector::new(limit);
        for chunk in chunks {
            collector.push(chunk);
        }
        collector.finish()
    }

    #[test]
    fn all_of_it_while_it_fits() {
        let captured = collected(&[b"ab", b"cd"], 4);
        assert_eq!((captured.bytes(), captured.truncated()), (&b"abcd"[..], false));
    }

    #[test]
    fn shows_as_text() {
        assert_eq!(Captured::whole(b"a\xffb\n".to_vec()).to_string(), "a\u{fffd}b\n");
    }

    #[test]
    fn head_and_tail_beyond() {
        let captured = collected(&[b"abcd", b"efgh", b"ij"], 4);
        assert_eq!(captured.bytes(), b"abij");
        assert_eq!((captured.total(), captured.cut_at()), (10, Some(2)));
    }

    /// B51: cut on a boundary, never longer than the limit.
    #[test]
    fn characters_stay_whole() {
        let text = "☕".repeat(100);
        for limit in 1..40 {
            let captured = collected(&[text.as_bytes()], limit);
            assert!(captured.bytes().len() <= limit);
            assert!(captured.text().chars().all(|c| c == '☕'), "{limit}: {}", captured.text());
        }
    }

    proptest! {
        #[test]
        fn keeps_the_ends(chunks in proptest::collection::vec(proptest::collection::vec(0_u8..0x80, 0..50), 0..20),
                          limit in 1_usize..100) {
            let all = chunks.concat();
            let chunks: Vec<&[u8]> = chunks.iter().map(Vec::as_slice).collect();
            let captured = collected(&chunks, limit);
            prop_assert_eq!(captured.total(), all.len() as u64);
            prop_assert_eq!(captured.truncated(), all.len() > limit);
            if all.len() <= limit {
                prop_assert_eq!(captured.bytes(), &all[..]);
            } else {
                prop_assert_eq!(captured.bytes().len(), limit);
                let head = captured.cut_at().unwrap();
                prop_assert_eq!(&captured.bytes()[..head], &all[..head]);
                prop_assert_eq!(&captured.bytes()[head..], &all[all.len() - (limit - head)..]);
            }
        }
    }
}
