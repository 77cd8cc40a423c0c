//! The output of a background job: the newest bytes of it, each with its position in the whole.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::proto::Stream;

const CHUNK: usize = 16 * 1024;
/// Bytes of the limit for which there may be one chunk: who changes the stream at each byte must not make this program
/// spend far more memory on the order than on the bytes.
const LIMIT_PER_CHUNK: usize = 64;
/// Chunks that there may be in any case.
const FEWEST_CHUNKS: usize = 16;

/// A bounded log of two streams in the order of arrival.
pub(crate) struct Log {
    chunks: VecDeque<Chunk>,
    /// The position of the first byte kept.
    start: u64,
    /// The position after the last byte.
    end: u64,
    limit: usize,
}

struct Chunk {
    stream: Stream,
    /// The position of the first byte of `data`.
    position: u64,
    data: Vec<u8>,
    /// Bytes at the front that have been given up.
    skip: usize,
}

/// What is at a position.
pub(crate) enum At<'a> {
    /// These bytes, the first of them at the position asked for.
    Data(Stream, &'a [u8]),
    /// Nothing any more; what is kept begins at this position.
    Gap(u64),
    /// Nothing yet.
    End,
}

impl Log {
    pub(crate) fn new(limit: usize) -> Self {
        Self { chunks: VecDeque::new(), start: 0, end: 0, limit }
    }

    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Bytes kept.
    pub(crate) fn kept(&self) -> usize {
        (self.end - self.start) as usize
    }

    pub(crate) fn push(&mut self, stream: Stream, mut bytes: &[u8]) {
        let mut position = self.end;
        self.end += bytes.len() as u64;
        while !bytes.is_empty() {
            let room = match self.chunks.back() {
                Some(chunk) if chunk.stream == stream => CHUNK - chunk.data.len(),
                _ => 0,
            };
            if room == 0 {
                self.chunks.push_back(Chunk { stream, position, data: Vec::new(), skip: 0 });
                continue;
            }
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            if let Some(chunk) = self.chunks.back_mut() {
                chunk.data.extend_from_slice(now);
            }
            position += now.len() as u64;
            bytes = later;
        }
        while self.chunks.len() > FEWEST_CHUNKS + self.limit / LIMIT_PER_CHUNK {
            self.chunks.pop_front();
            self.start = self.chunks.front().map_or(self.end, |chunk| chunk.position);
        }
        self.keep(self.limit);
    }

    /// Gives up the oldest bytes until no more than `limit` are kept.
    pub(crate) fn keep(&mut self, limit: usize) {
        while self.kept() > limit {
            let excess = self.kept() - limit;
            let Some(oldest) = self.chunks.front_mut() else { return };
            let there = oldest.data.len() - oldest.skip;
            self.start += there.min(excess) as u64;
            if there <= excess {
                self.chunks.pop_front();
            } else {
                oldest.skip += excess;
            }
        }
    }

    /// What is at a position, up to `most` bytes of one stream.
    pub(crate) fn at(&self, position: u64, most: usize) -> At<'_> {
        if position >= self.end {
            return At::End;
        }
        if position < self.start {
            return At::Gap(self.start);
        }
        let end = |chunk: &Chunk| chunk.position + chunk.data.len() as u64;
        let Some(chunk) = self.chunks.get(self.chunks.partition_point(|chunk| end(chunk) <= position)) else {
            return At::End;
        };
        let data = chunk.data.get((position - chunk.position) as usize..).unwrap_or_default();
        At::Data(chunk.stream, &data[..data.len().min(most)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(log: &Log, mut position: u64) -> Vec<u8> {
        let mut text = Vec::new();
        loop {
            match log.at(position, 3) {
                At::Data(stream, data) => {
                    text.push(if stream == Stream::Stdout { b'1' } else { b'2' });
                    text.extend_from_slice(data);
                    position += data.len() as u64;
                }
                At::Gap(to) => {
                    text.push(b'!');
                    position = to;
                }
                At::End => return text,
            }
        }
    }

    #[test]
    fn streams_stay_in_order_and_positions_count_both() {
        let mut log = Log::new(100);
        log.push(Stream::Stdout, b"ab");
        log.push(Stream::Stderr, b"cd");
        log.push(Stream::Stdout, b"e");
        assert_eq!(text(&log, 0), b"1ab2cd1e");
        assert_eq!(text(&log, 3), b"2d1e");
        assert_eq!(text(&log, 5), b"");
    }

    #[test]
    fn the_newest_are_kept() {
        let mut log = Log::new(4);
        log.push(Stream::Stdout, b"abcdef");
        log.push(Stream::Stderr, b"g");
        assert_eq!(text(&log, 0), b"!1def2g");
        assert_eq!((log.kept(), log.end()), (4, 7));
    }

    #[test]
    fn changes_of_stream_count() {
        let mut log = Log::new(1 << 16);
        for _ in 0..1 << 16 {
            log.push(Stream::Stdout, b"o");
            log.push(Stream::Stderr, b"e");
        }
        assert!(log.chunks.len() <= FEWEST_CHUNKS + (1 << 10));
        let text = text(&log, 0);
        assert!(text.starts_with(b"!1o2e") && text.ends_with(b"1o2e"));
        assert_eq!(text.len() - 1, 2 * log.kept());
    }

    #[test]
    fn more_than_a_chunk() {
        let mut log = Log::new(10 * CHUNK);
        let bytes: Vec<u8> = (0..5 * CHUNK).map(|at| at as u8).collect();
        log.push(Stream::Stdout, &bytes);
        assert!(
            matches!(log.at(3 * CHUNK as u64 + 1, 8), At::Data(_, data) if data == &bytes[3 * CHUNK + 1..][..8])
        );
    }
}
