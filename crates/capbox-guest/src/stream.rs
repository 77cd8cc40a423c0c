//! The protocol over one stream of bytes, for where no socket leads inside: a container.
//!
//! A *relay* runs beside process 1 of the container. Its client has its standard input and output. Each side first sends
//! [`PREAMBLE`], which tells the version; then come frames: a [`Header`] of eight bytes and as many bytes of payload as it
//! says. Either side must expect the other to lie.
//!
//! A frame belongs to a *channel*. The client opens one with a number that it has not used before, by a
//! [`Kind::Request`] whose payload is a [`Request`](crate::proto::Request), a
//! [`FileRequest`](crate::proto::FileRequest) or a [`Work`](crate::proto::Work). The relay answers with
//! [`Kind::Event`]s, whose payload is an [`Event`](crate::proto::Event), a [`FileReply`](crate::proto::FileReply) or an
//! [`Answer`](crate::proto::Answer), and ends with [`Kind::Close`], after which nothing comes on the channel. If the client
//! closes first, what the channel was for is given up (a command in the foreground is killed), and the relay closes, too.
//!
//! Descriptors do not travel. What a command reads and writes, and the content of files, are [`Kind::Data`] and
//! [`Kind::Errors`]. All that a command wrote comes before the event that says how it ended.
//!
//! # Flow
//!
//! Neither side sends more on a channel than the other has said to have room for: [`WINDOW`] bytes to the client and
//! [`INPUT_WINDOW`] to the relay, and what [`Kind::Credit`] adds. To the client the payloads of events count, too, and the
//! last frame may exceed what is left; to the relay only data counts, and none may. So no channel waits for another, and
//! memory stays bounded.
//!
//! The end of the stream in either direction is the end of all channels.

/// What each side sends first; the last two bytes are the version.
pub const PREAMBLE: [u8; 8] = [b'c', b'a', b'p', b'b', b'o', b'x', 1, 0];
/// The size of a header.
pub const HEADER: usize = 8;
/// No frame of data, nor an event, is larger.
pub const MAX_DATA: usize = 64 * 1024;
/// No frame, that is no request, is larger.
pub const MAX_FRAME: usize = crate::proto::MAX_MESSAGE;
/// Bytes that the relay may send on a new channel.
pub const WINDOW: u32 = 1 << 20;
/// Bytes that the client may send on a new channel.
pub const INPUT_WINDOW: u32 = 256 * 1024;
/// Channels that may be open at a time.
pub const MAX_CHANNELS: usize = 512;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// To the relay: opens a channel.
    Request = 1,
    /// To the client: an answer.
    Event = 2,
    /// Standard input, or standard output; content of a file.
    Data = 3,
    /// Standard error.
    Errors = 4,
    /// No more data comes this way. To the client of a command: it reads no more.
    End = 5,
    /// So many more bytes may be sent the other way: a 32-bit number.
    Credit = 6,
    /// The channel is closed.
    Close = 7,
    /// To the relay: the size of a command's terminal, rows and columns as two 16-bit numbers.
    Size = 8,
    /// To the client: input has been dropped, for the terminal would have cut the line.
    Refused = 9,
    /// To the client, on channel 0: the relay cannot work. An [`Event::BootFailed`](crate::proto::Event::BootFailed).
    Broken = 10,
}

const KINDS: [Kind; 10] = [
    Kind::Request,
    Kind::Event,
    Kind::Data,
    Kind::Errors,
    Kind::End,
    Kind::Credit,
    Kind::Close,
    Kind::Size,
    Kind::Refused,
    Kind::Broken,
];

/// What a frame begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What it is.
    pub kind: Kind,
    /// Bytes of payload.
    pub len: usize,
    /// The channel.
    pub channel: u32,
}

impl Header {
    /// A header's bytes. `len` must not exceed [`MAX_FRAME`].
    pub fn encode(self) -> [u8; HEADER] {
        let word = (self.len as u32) | (self.kind as u32) << 24;
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&word.to_le_bytes());
        bytes[4..].copy_from_slice(&self.channel.to_le_bytes());
        bytes
    }

    /// Reads a header; nothing if it is none.
    pub fn decode(bytes: [u8; HEADER]) -> Option<Self> {
        let [a, b, c, kind, channel @ ..] = bytes;
        let kind = *KINDS.get(usize::from(kind).checked_sub(1)?)?;
        let len = u32::from_le_bytes([a, b, c, 0]) as usize;
        let most = match kind {
            Kind::Data | Kind::Errors | Kind::Event | Kind::Broken => MAX_DATA,
            Kind::Credit | Kind::Size => 4,
            Kind::End | Kind::Close | Kind::Refused => 0,
            Kind::Request => MAX_FRAME,
        };
        (len <= most).then_some(Self { kind, len, channel: u32::from_le_bytes(channel) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_the_trip() {
        for kind in KINDS {
            let header = Header { kind, len: 0, channel: u32::MAX - 1 };
            assert_eq!(Header::decode(header.encode()), Some(header));
        }
        let header = Header { kind: Kind::Request, len: MAX_FRAME, channel: 7 };
        assert_eq!(Header::decode(header.encode()), Some(header));
    }

    #[test]
    fn headers_that_lie_are_refused() {
        let decode = |kind: u8, len: u32| {
            let mut bytes = [0; HEADER];
            bytes[..4].copy_from_slice(&len.to_le_bytes());
            bytes[3] = kind;
            Header::decode(bytes)
        };
        assert_eq!(decode(0, 0), None);
        assert_eq!(decode(11, 0), None);
        assert_eq!(decode(Kind::Data as u8, MAX_DATA as u32 + 1), None);
        assert_eq!(decode(Kind::Credit as u8, 5), None);
        assert_eq!(decode(Kind::Close as u8, 1), None);
        assert_eq!(decode(Kind::Event as u8, MAX_DATA as u32 + 1), None);
        assert_eq!(decode(Kind::Request as u8, MAX_FRAME as u32 + 1), None);
    }
}
