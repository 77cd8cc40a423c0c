//! Our own stdin, stdout and stderr, read and written without blocking the one thread of this program: while
//! nobody reads our output, signals and timeouts must still be seen.
//!
//! The flag `O_NONBLOCK` belongs to whoever shares the file with us, so it is not set on it. Pipes and terminals
//! are opened a second time instead, which the kernel offers in `/proc`; files never block for long; for the rest
//! there is a thread.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::unix::pipe;

/// How much is read at a time: what a pipe holds.
pub(crate) const CHUNK: usize = 64 << 10;

/// Where input comes from.
pub(crate) enum Source {
    /// It does not block for long.
    Direct(File),
    Waited(Box<dyn AsyncRead + Unpin>),
}

/// Our stdin.
pub(crate) fn stdin() -> Source {
    match open_again(io::stdin().as_fd(), OFlags::RDONLY) {
        Again::Same(file) => Source::Direct(file),
        Again::New(fd) => match pipe::Receiver::from_owned_fd_unchecked(fd) {
            Ok(receiver) => Source::Waited(Box::new(receiver)),
            Err(_) => Source::Waited(Box::new(tokio::io::stdin())),
        },
        Again::No => Source::Waited(Box::new(tokio::io::stdin())),
    }
}

impl Source {
    /// The next bytes; none at the end.
    pub(crate) async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Direct(file) => file.read(buffer),
            Self::Waited(stdin) => stdin.read(buffer).await,
        }
    }

    /// All there is, up to the end.
    pub(crate) async fn read_to_end(&mut self) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        match self {
            Self::Direct(file) => file.read_to_end(&mut all)?,
            Self::Waited(stdin) => stdin.read_to_end(&mut all).await?,
        };
        Ok(all)
    }
}

/// Where output goes.
pub(crate) enum Sink {
    /// It does not block for long.
    Direct(File),
    Waited(Box<dyn AsyncWrite + Unpin>),
}

/// Our stdout.
pub(crate) fn stdout() -> Sink {
    Sink::of(io::stdout().as_fd(), || Box::new(tokio::io::stdout()))
}

/// Our stderr.
pub(crate) fn stderr() -> Sink {
    Sink::of(io::stderr().as_fd(), || Box::new(tokio::io::stderr()))
}

impl Sink {
    fn of(fd: BorrowedFd<'_>, by_thread: impl Fn() -> Box<dyn AsyncWrite + Unpin>) -> Self {
        match open_again(fd, OFlags::WRONLY) {
            Again::Same(file) => Self::Direct(file),
            Again::New(fd) => match pipe::Sender::from_owned_fd_unchecked(fd) {
                Ok(sender) => Self::Waited(Box::new(sender)),
                Err(_) => Self::Waited(by_thread()),
            },
            Again::No => Self::Waited(by_thread()),
        }
    }

    /// Write all of it. Waits while nobody reads.
    pub(crate) async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Direct(file) => file.write_all(bytes),
            Self::Waited(sink) => {
                sink.write_all(bytes).await?;
                sink.flush().await
            }
        }
    }
}

enum Again {
    /// The same file, which does not block for long.
    Same(File),
    /// A file of our own, which does not block.
    New(OwnedFd),
    No,
}

fn open_again(fd: BorrowedFd<'_>, access: OFlags) -> Again {
    let Ok(stat) = rustix::fs::fstat(fd) else { return Again::No };
    let blocks = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Fifo => true,
        FileType::CharacterDevice => rustix::termios::isatty(fd),
        FileType::RegularFile | FileType::Directory | FileType::BlockDevice => false,
        _ => return Again::No,
    };
    if !blocks {
        return fd.try_clone_to_owned().map_or(Again::No, |fd| Again::Same(fd.into()));
    }
    let flags = access | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    rustix::fs::open(path, flags, Mode::empty()).map_or(Again::No, Again::New)
}
