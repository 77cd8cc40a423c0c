//! Packets with descriptors, and the answers to requests.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use capbox_guest::proto::{self, Event, Malformed};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::process::Pid;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::ended::ended;
use crate::error::{Context, Error, Result};

/// Registers a descriptor with the runtime.
pub(crate) fn register(fd: OwnedFd, interest: Interest) -> Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` stays the same open descriptor for as long as the registration owns it.
    unsafe { AsyncFd::register_with_interest(fd, interest) }
        .context(|| "register a descriptor with the runtime".into())
}

/// Two connected ends. Both close on exec and do not block.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?)
}

/// Sends a message without waiting, in a memory file if it is large.
pub(crate) fn send(socket: BorrowedFd<'_>, message: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    if message.len() <= proto::MAX_PACKET {
        return send_packet(socket, message, fds);
    }
    if message.len() > proto::MAX_MESSAGE {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the request is too large"));
    }
    let file = sealed(message)?;
    let fds: Vec<_> = fds.iter().copied().chain([file.as_fd()]).collect();
    send_packet(socket, &proto::indirect(), &fds)
}

fn send_packet(socket: BorrowedFd<'_>, packet: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(proto::MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors"));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(packet)], &mut control, flags)?;
    Ok(())
}

/// A memory file that can no longer change.
fn sealed(bytes: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(c"capbox-request", flags)?;
    let mut rest = bytes;
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest)?;
        rest = &rest[written..];
    }
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file)
}

/// Receives one packet: its bytes in `buffer`, its descriptors. `None` at the end of the connection.
pub(crate) fn receive<'b>(
    socket: BorrowedFd<'_>,
    buffer: &'b mut [u8],
) -> io::Result<Option<(&'b [u8], Vec<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(proto::MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags)
    });
    let received = match received {
        Ok(received) => received,
        // The other end closed with something unread: gone all the same.
        Err(rustix::io::Errno::CONNRESET) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let fds = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        })
        .flatten()
        .collect();
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the guest sent more than it may"));
    }
    // No message is empty, so this is the end.
    Ok((received.bytes > 0).then(|| (&buffer[..received.bytes], fds)))
}

/// An answer with the descriptors that came along.
pub(crate) type Answer = (Event, Vec<OwnedFd>);

/// Room for what most requests are answered with.
const SMALL_PACKET: usize = 1024;

/// A sandbox: what it is called, and how its end is known.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) id: String,
    /// The guest's process.
    pub(crate) guest: Pid,
    /// When its time to live is up; no later than by the guest's own count.
    deadline: Mutex<Option<Instant>>,
}

impl Identity {
    /// A sandbox that lives for `ttl` from `since` on.
    pub(crate) fn new(id: impl Into<String>, guest: Pid, since: Instant, ttl: Option<Duration>) -> Arc<Self> {
        let identity = Self { id: id.into(), guest, deadline: Mutex::new(None) };
        identity.lives(since, ttl);
        Arc::new(identity)
    }

    /// It lives for `ttl` from `since` on.
    pub(crate) fn lives(&self, since: Instant, ttl: Option<Duration>) {
        let deadline = ttl.and_then(|ttl| since.checked_add(ttl));
        *self.deadline.lock().unwrap_or_else(PoisonError::into_inner) = deadline;
    }

    /// It is gone.
    pub(crate) fn gone(&self) -> Error {
        let deadline = *self.deadline.lock().unwrap_or_else(PoisonError::into_inner);
        Error::Gone { id: self.id.clone(), time_up: deadline.is_some_and(|at| at <= Instant::now()) }
    }
}

/// The private socket on which a request is answered. Dropping it tells the guest that nobody listens any more.
pub(crate) struct Replies {
    socket: AsyncFd<OwnedFd>,
    sandbox: Arc<Identity>,
    buffer: Vec<u8>,
    /// From when the guest has closed the socket until it has ended, with all that runs in the sandbox.
    ending: Option<Pin<Box<dyn Future<Output = ()> + Send + Sync>>>,
}

impl Replies {
    /// For answers of a few hundred bytes.
    pub(crate) fn new(socket: OwnedFd, sandbox: Arc<Identity>) -> Result<Self> {
        let socket = register(socket, Interest::READABLE)?;
        Ok(Self { socket, sandbox, buffer: vec![0; SMALL_PACKET], ending: None })
    }

    /// For answers of any size.
    pub(crate) fn large(mut self) -> Self {
        self.buffer.resize(proto::MAX_PACKET, 0);
        self
    }

    /// The sandbox is gone.
    pub(crate) fn gone(&self) -> Error {
        self.sandbox.gone()
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.get_ref().as_fd()
    }

    pub(crate) fn into_fd(self) -> OwnedFd {
        self.socket.into_inner()
    }

    /// The next answer; `None` once the guest has closed the socket, and has ended if that is why.
    pub(crate) async fn next(&mut self) -> Result<Option<Answer>> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    pub(crate) fn poll_next(
        &mut self,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<Option<Answer>>> {
        use std::task::{Poll, ready};
        loop {
            if let Some(ending) = &mut self.ending {
                ready!(ending.as_mut().poll(cx));
                // Must not be polled again: it is made anew, which is as good.
                self.ending = None;
                return Poll::Ready(Ok(None));
            }
            let mut guard =
                ready!(self.socket.poll_read_ready(cx)).context(|| "wait for the guest".into())?;
            let buffer = &mut self.buffer;
            let Ok(received) = guard.try_io(|socket| {
                Ok(receive(socket.get_ref().as_fd(), buffer)?.map(|(bytes, fds)| (Event::decode(bytes), fds)))
            }) else {
                continue;
            };
            match received.context(|| "receive from the guest".into())? {
                None => self.ending = Some(Box::pin(ended(self.sandbox.guest))),
                Some((event, fds)) => {
                    let event = understood(event, &self.sandbox.id);
                    return Poll::Ready(event.map(|event| Some((event, fds))));
                }
            }
        }
    }

    /// The next answer, without which the sandbox must be gone.
    pub(crate) async fn expect(&mut self) -> Result<Answer> {
        let answer = self.next().await?;
        answer.ok_or_else(|| self.gone())
    }
}

impl std::fmt::Debug for Replies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replies").field("sandbox", &self.sandbox).finish_non_exhaustive()
    }
}

fn understood(event: std::result::Result<Event, Malformed>, sandbox: &str) -> Result<Event> {
    let guest = match event {
        Ok(Event::Version { version }) | Err(Malformed::Version(version)) => version,
        Ok(event) => return Ok(event),
        Err(_) => {
            let source = io::Error::new(io::ErrorKind::InvalidData, "malformed answer");
            return Err(Error::Io { what: format!("understand sandbox `{sandbox}`"), source });
        }
    };
    Err(Error::Version { id: sandbox.to_owned(), guest, host: proto::VERSION })
}
