//! What a process prints, taken out of the engine's frames.
//!
//! A frame is a header of eight bytes (the stream, three zeros, the length) and as many bytes as it says. Bytes are handed
//! on as they come, so a frame of any length costs no memory.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

/// How many bytes are read at a time.
const READ: usize = 64 << 10;
const HEADER: usize = 8;

/// Where something was printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
    /// By the engine itself.
    System,
}

/// Reads frames, or the bytes of a terminal, which come without.
pub(crate) struct Frames<R> {
    reader: R,
    framed: bool,
    buffer: BytesMut,
    /// What is left of the frame.
    left: usize,
    stream: Stream,
}

impl<R: AsyncRead + Unpin> Frames<R> {
    pub(crate) fn new(reader: R, framed: bool) -> Self {
        Self { reader, framed, buffer: BytesMut::new(), left: 0, stream: Stream::Stdout }
    }

    /// What comes next; `None` at the end. May be dropped and called again.
    pub(crate) async fn next(&mut self) -> io::Result<Option<(Stream, Bytes)>> {
        loop {
            if let Some(piece) = self.take()? {
                return Ok(Some(piece));
            }
            self.buffer.reserve(READ);
            if self.reader.read_buf(&mut self.buffer).await? == 0 {
                let whole = self.left == 0 && self.buffer.is_empty();
                return if whole { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
    }

    /// What has been read already.
    fn take(&mut self) -> io::Result<Option<(Stream, Bytes)>> {
        if !self.framed {
            let all = self.buffer.split().freeze();
            return Ok((!all.is_empty()).then_some((Stream::Stdout, all)));
        }
        while self.left == 0 {
            let Some(header) = self.buffer.first_chunk::<HEADER>() else { return Ok(None) };
            let [stream, 0, 0, 0, length @ ..] = *header else { return Err(nonsense()) };
            self.stream = match stream {
                0 | 1 => Stream::Stdout,
                2 => Stream::Stderr,
                3 => Stream::System,
                _ => return Err(nonsense()),
            };
            self.left = u32::from_be_bytes(length) as usize;
            self.buffer.advance(HEADER);
        }
        let most = self.left.min(self.buffer.len());
        if most == 0 {
            return Ok(None);
        }
        self.left -= most;
        Ok(Some((self.stream, self.buffer.split_to(most).freeze())))
    }
}

fn nonsense() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a frame that makes no sense")
}

/// How much is kept of what was said.
const MOST_SAID: usize = 1024;

/// The beginning of what was printed, for a message.
#[derive(Clone, Debug, Default)]
pub(crate) struct Said(Arc<Mutex<Vec<u8>>>);

impl Said {
    pub(crate) fn push(&self, bytes: &[u8]) {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = MOST_SAID - said.len();
        said.extend(bytes.iter().take(room));
    }

    /// What was said, as a text of one line without anything that a terminal obeys.
    pub(crate) fn text(&self) -> String {
        let said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&said);
        let words = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
        words.collect::<Vec<_>>().join(" ")
    }
}

/// Standard output alone, as one stream of bytes. The beginning of everything is kept for a message.
pub(crate) struct Stdout<R> {
    frames: Frames<R>,
    ahead: Bytes,
    said: Said,
}

impl<R: AsyncRead + Unpin> Stdout<R> {
    pub(crate) fn new(reader: R, said: Said) -> Self {
        Self { frames: Frames::new(reader, true), ahead: Bytes::new(), said }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Stdout<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.ahead.is_empty() {
            let mut next = std::pin::pin!(this.frames.next());
            match ready!(next.as_mut().poll(cx))? {
                None => return Poll::Ready(Ok(())),
                Some((stream, bytes)) => {
                    this.said.push(&bytes);
                    if stream == Stream::Stdout {
                        this.ahead = bytes;
                    }
                }
            }
        }
        let most = this.ahead.len().min(buffer.remaining());
        buffer.put_slice(&this.ahead.split_to(most));
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(stream: u8, bytes: &[u8]) -> Vec<u8> {
        let length = u32::try_from(bytes.len()).unwrap().to_be_bytes();
        [&[stream, 0, 0, 0][..], &length, bytes].concat()
    }

    /// Everything in `wire`, which comes in pieces of `piece` bytes.
    fn read(wire: Vec<u8>, piece: usize, multiplexed: bool) -> io::Result<[Vec<u8>; 3]> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (mut sender, receiver) = tokio::io::duplex(piece);
            let send = async move {
                use tokio::io::AsyncWriteExt;
                sender.write_all(&wire).await.ok();
            };
            let receive = async {
                let mut frames = Frames::new(receiver, multiplexed);
                let mut streams = [vec![], vec![], vec![]];
                while let Some((stream, bytes)) = frames.next().await? {
                    streams[stream as usize].extend_from_slice(&bytes);
                }
                Ok(streams)
            };
            tokio::join!(send, receive).1
        })
    }

    proptest! {
        #[test]
        fn frames_in_any_pieces(frames in proptest::collection::vec((0_u8..4, proptest::collection::vec(any::<u8>(), 0..300)), 0..20),
                                piece in 1_usize..64) {
            let wire = frames.iter().flat_map(|(stream, bytes)| frame(*stream, bytes)).collect();
            let of = |streams: &[u8]| {
                frames.iter().filter(|(s, _)| streams.contains(s)).flat_map(|(_, b)| b.clone()).collect::<Vec<_>>()
            };
            prop_assert_eq!(read(wire, piece, true).unwrap(), [of(&[0, 1]), of(&[2]), of(&[3])]);
        }

        #[test]
        fn any_bytes_are_survived(wire in proptest::collection::vec(any::<u8>(), 0..300), piece in 1_usize..64) {
            let _ = read(wire.clone(), piece, true);
            prop_assert_eq!(&read(wire.clone(), piece, false).unwrap()[0], &wire);
        }
    }

    #[test]
    fn a_cut_and_a_lie_are_errors() {
        let whole = frame(1, b"hello");
        let cut = read(whole[..9].to_vec(), 64, true).unwrap_err();
        assert_eq!(cut.kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(read(whole[..3].to_vec(), 64, true).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        for lie in [[4, 0, 0, 0, 0, 0, 0, 1], [1, 0, 1, 0, 0, 0, 0, 1]] {
            assert_eq!(read(lie.to_vec(), 64, true).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
        // A frame of 4 GiB is announced, and what came of it is handed on without waiting for the rest.
        let huge = [&[1, 0, 0, 0, 255, 255, 255, 255][..], b"first"].concat();
        assert_eq!(read(huge, 64, true).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
