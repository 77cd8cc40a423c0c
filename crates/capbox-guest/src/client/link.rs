//! The stream, and the channels on it.
//!
//! Two tasks carry the stream. The one that reads never waits for whoever reads a channel: credit bounds what comes for
//! it. The one that writes takes all that has been put out for it at once.

use std::boxed::Box;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::format;
use std::future::poll_fn;
use std::io;
use std::string::{String, ToString};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::vec::Vec;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::{Admitted, Error, Result, text};
use crate::proto;
use crate::stream::{
    HEADER, Header, INPUT_WINDOW, Kind, MAX_CHANNELS, MAX_DATA, MAX_FRAME, PREAMBLE, WINDOW,
};

/// What is read at once.
const READ: usize = 256 * 1024;
/// Credit is given back in portions of at least this.
const PORTION: u32 = WINDOW / 4;

/// The stream, shared by all that use it.
#[derive(Clone)]
pub(super) struct Link(Arc<Ends>);

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Link")
    }
}

/// Dropped with the last user.
struct Ends {
    shared: Arc<Shared>,
    reading: AbortHandle,
}

impl Drop for Ends {
    fn drop(&mut self) {
        // What has been put out is still written; then the writing end is closed, which the relay sees.
        self.shared.lose("it was closed");
        self.reading.abort();
    }
}

struct Shared {
    state: Mutex<State>,
    /// There is something to write, or the stream has ended.
    wake: Notify,
    /// The stream has ended.
    ended: Notify,
}

struct State {
    out: Vec<u8>,
    slots: HashMap<u32, Arc<Mutex<Slot>>>,
    last: u32,
    lost: Option<Error>,
}

/// What is known here of a channel.
#[derive(Default)]
struct Slot {
    items: VecDeque<Item>,
    /// Bytes in `items`, and taken from there but not given back as credit.
    held: u32,
    owed: u32,
    /// Nothing more comes.
    closed: bool,
    /// Nobody here wants to hear more.
    dropped: bool,
    reader: Option<Waker>,
    /// Bytes that may be sent.
    room: usize,
    /// The command reads no more.
    unread: bool,
    /// Input was dropped, for the terminal would have cut the line.
    refused: bool,
    writer: Option<Waker>,
    lost: Option<Error>,
}

/// Something that came on a channel.
pub(super) enum Item {
    Event(Bytes),
    Data(Bytes),
    Errors(Bytes),
    End,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// The stream is of no use any more: everybody hears of it.
    fn lose(&self, reason: &str) {
        let error = |admitted| Error::Lost { reason: reason.to_string(), admitted };
        self.fail(error(Admitted::No), &error(Admitted::Unknown));
    }

    /// The same: what those hear who ask from now on, and those who have asked.
    fn fail(&self, later: Error, now: &Error) {
        let mut state = lock(&self.state);
        if state.lost.is_some() {
            return;
        }
        state.lost = Some(later);
        for (_, slot) in state.slots.drain() {
            let mut slot = lock(&slot);
            slot.lost = Some(now.clone());
            slot.wake();
        }
        drop(state);
        self.wake.notify_one();
        self.ended.notify_waiters();
    }

    fn put(&self, kind: Kind, channel: u32, payload: &[u8]) {
        let mut state = lock(&self.state);
        if state.lost.is_none() {
            state.frame(kind, channel, payload);
            drop(state);
            self.wake.notify_one();
        }
    }

    /// Takes a frame that came. What should not have come is an error.
    fn take(&self, header: Header, payload: Bytes) -> std::result::Result<(), String> {
        let number = header.channel;
        if header.kind == Kind::Broken {
            let error = match proto::Event::decode(&payload) {
                Ok(proto::Event::BootFailed { step, errno }) => Error::Relay { step: text(&step), errno },
                _ => Error::Version,
            };
            self.fail(error.clone(), &error);
            return Err("the relay cannot work".into());
        }
        let mut state = lock(&self.state);
        let Some(slot) = state.slots.get(&number).cloned() else {
            return Err(format!("an answer to a request that was not made ({:?})", header.kind));
        };
        if header.kind == Kind::Close {
            state.slots.remove(&number);
        }
        drop(state);
        let mut slot = lock(&slot);
        let item = match header.kind {
            Kind::Event => Item::Event(payload),
            Kind::Data => Item::Data(payload),
            Kind::Errors => Item::Errors(payload),
            Kind::End => {
                slot.unread = true;
                Item::End
            }
            Kind::Close => {
                slot.closed = true;
                slot.wake();
                return Ok(());
            }
            Kind::Credit => {
                let more = payload.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
                slot.room = (slot.room + more as usize).min(INPUT_WINDOW as usize);
                slot.wake();
                return Ok(());
            }
            Kind::Refused => {
                slot.refused = true;
                slot.wake();
                return Ok(());
            }
            Kind::Request | Kind::Size | Kind::Broken => return Err("a frame that is for relays".into()),
        };
        if slot.dropped {
            return Ok(());
        }
        if slot.held >= WINDOW || slot.items.len() > WINDOW as usize / 16 {
            return Err("more than there is room for".into());
        }
        slot.held += item.len();
        slot.items.push_back(item);
        slot.wake();
        Ok(())
    }
}

impl State {
    fn frame(&mut self, kind: Kind, channel: u32, payload: &[u8]) {
        self.out.extend_from_slice(&Header { kind, len: payload.len(), channel }.encode());
        self.out.extend_from_slice(payload);
    }
}

impl Slot {
    fn wake(&mut self) {
        for waker in [self.reader.take(), self.writer.take()].into_iter().flatten() {
            waker.wake();
        }
    }
}

impl Item {
    fn len(&self) -> u32 {
        match self {
            Self::Event(bytes) | Self::Data(bytes) | Self::Errors(bytes) => bytes.len() as u32,
            Self::End => 0,
        }
    }
}

impl Link {
    pub(super) async fn connect<R, W>(mut reader: R, mut writer: W) -> Result<Self>
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let lost = |error: io::Error| Error::Lost { reason: error.to_string(), admitted: Admitted::No };
        writer.write_all(&PREAMBLE).await.map_err(lost)?;
        writer.flush().await.map_err(lost)?;
        let mut preamble = [0; PREAMBLE.len()];
        reader.read_exact(&mut preamble).await.map_err(lost)?;
        if preamble != PREAMBLE {
            return Err(Error::Version);
        }
        let state = State { out: Vec::new(), slots: HashMap::new(), last: 0, lost: None };
        let shared = Arc::new(Shared { state: Mutex::new(state), wake: Notify::new(), ended: Notify::new() });
        tokio::spawn(write(shared.clone(), writer));
        let reading = tokio::spawn(read(shared.clone(), reader)).abort_handle();
        Ok(Self(Arc::new(Ends { shared, reading })))
    }

    /// Opens a channel by a request.
    pub(super) fn open(&self, request: &[u8]) -> Result<Channel> {
        if request.len() > MAX_FRAME {
            return Err(Error::TooMuch("the request is too large"));
        }
        let mut state = lock(&self.0.shared.state);
        if let Some(error) = &state.lost {
            return Err(error.clone());
        }
        if state.slots.len() >= MAX_CHANNELS {
            return Err(Error::TooMuch("too many requests at a time"));
        }
        let Some(number) = state.last.checked_add(1) else {
            return Err(Error::TooMuch("too many requests on one connection"));
        };
        state.last = number;
        state.frame(Kind::Request, number, request);
        let slot = Arc::new(Mutex::new(Slot { room: INPUT_WINDOW as usize, ..Slot::default() }));
        state.slots.insert(number, slot.clone());
        drop(state);
        self.0.shared.wake.notify_one();
        Ok(Channel(Arc::new(Handle { link: self.clone(), number, slot })))
    }

    pub(super) async fn lost(&self) -> Error {
        loop {
            let ended = self.0.shared.ended.notified();
            let mut ended = std::pin::pin!(ended);
            ended.as_mut().enable();
            if let Some(error) = &lock(&self.0.shared.state).lost {
                return error.clone();
            }
            ended.await;
        }
    }
}

async fn write<W: AsyncWrite + Unpin>(shared: Arc<Shared>, mut writer: W) {
    let mut batch = Vec::new();
    loop {
        let ended = {
            let mut state = lock(&shared.state);
            std::mem::swap(&mut batch, &mut state.out);
            state.lost.is_some()
        };
        if batch.is_empty() {
            if ended {
                break;
            }
            shared.wake.notified().await;
            continue;
        }
        let written = async {
            writer.write_all(&batch).await?;
            writer.flush().await
        };
        if let Err(error) = written.await {
            shared.lose(&error.to_string());
            break;
        }
        batch.clear();
        // One large request is no reason to keep so much.
        batch.shrink_to(READ);
    }
    let _ = writer.shutdown().await;
}

async fn read<R: AsyncRead + Unpin>(shared: Arc<Shared>, mut reader: R) {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(READ);
        match reader.read_buf(&mut buffer).await {
            Ok(0) => return shared.lose("it ended"),
            Ok(_) => {}
            Err(error) => return shared.lose(&error.to_string()),
        }
        while let Some(header) = buffer.first_chunk::<HEADER>() {
            let Some(header) = Header::decode(*header).filter(|header| header.kind != Kind::Request) else {
                return shared.lose("a frame that makes no sense");
            };
            if buffer.len() < HEADER + header.len {
                break;
            }
            let payload = buffer.split_to(HEADER + header.len).freeze().slice(HEADER..);
            // A few bytes must not hold on to all that was read with them.
            let payload = if payload.len() < 1024 { Bytes::copy_from_slice(&payload) } else { payload };
            if let Err(reason) = shared.take(header, payload) {
                return shared.lose(&reason);
            }
        }
    }
}

/// A channel. The last clone to be dropped closes it.
#[derive(Clone)]
pub(super) struct Channel(Arc<Handle>);

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Channel({})", self.0.number)
    }
}

struct Handle {
    link: Link,
    number: u32,
    slot: Arc<Mutex<Slot>>,
}

impl Channel {
    /// What comes next; `None` after the relay has closed the channel. May be dropped and called again.
    pub(super) async fn next(&mut self) -> Result<Option<Item>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Item>>> {
        let mut slot = lock(&self.0.slot);
        if let Some(item) = slot.items.pop_front() {
            slot.owed += item.len();
            let owed = if slot.owed >= PORTION && !slot.closed { std::mem::take(&mut slot.owed) } else { 0 };
            slot.held -= owed;
            drop(slot);
            if owed > 0 {
                self.put(Kind::Credit, &owed.to_le_bytes());
            }
            return Poll::Ready(Ok(Some(item)));
        }
        if slot.closed {
            return Poll::Ready(Ok(None));
        }
        if let Some(error) = &slot.lost {
            return Poll::Ready(Err(error.clone()));
        }
        slot.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Sends some of `bytes` to whoever reads this channel, and answers with how many.
    pub(super) fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut slot = lock(&self.0.slot);
        if std::mem::take(&mut slot.refused) {
            let reason =
                "a line for a terminal has at most 4095 bytes; pass longer text in a file or argument";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidInput, reason)));
        }
        if slot.unread || slot.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if let Some(error) = &slot.lost {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionReset, Box::new(error.clone()))));
        }
        let len = bytes.len().min(slot.room).min(MAX_DATA);
        if len == 0 && !bytes.is_empty() {
            slot.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        slot.room -= len;
        drop(slot);
        if len > 0 {
            self.put(Kind::Data, &bytes[..len]);
        }
        Poll::Ready(Ok(len))
    }

    /// Waits until the relay has taken all that was written, or reads no more.
    pub(super) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut slot = lock(&self.0.slot);
        if std::mem::take(&mut slot.refused) {
            let reason =
                "a line for a terminal has at most 4095 bytes; pass longer text in a file or argument";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidInput, reason)));
        }
        if slot.room == INPUT_WINDOW as usize || slot.unread || slot.closed || slot.lost.is_some() {
            return Poll::Ready(Ok(()));
        }
        slot.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Closes the channel, although others may have it.
    pub(super) fn close(&self) {
        let mut slot = lock(&self.0.slot);
        slot.unread = true;
        slot.wake();
        drop(slot);
        self.0.close();
    }

    pub(super) fn downgrade(&self) -> WeakChannel {
        WeakChannel(Arc::downgrade(&self.0))
    }

    pub(super) fn put(&self, kind: Kind, payload: &[u8]) {
        self.0.link.0.shared.put(kind, self.0.number, payload);
    }
}

/// A channel that does not stay open for this.
#[derive(Clone)]
pub(super) struct WeakChannel(Weak<Handle>);

impl fmt::Debug for WeakChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakChannel")
    }
}

impl WeakChannel {
    pub(super) fn upgrade(&self) -> Option<Channel> {
        self.0.upgrade().map(Channel)
    }
}

impl Handle {
    fn close(&self) {
        let mut slot = lock(&self.slot);
        slot.items.clear();
        let closed = slot.closed || std::mem::replace(&mut slot.dropped, true);
        drop(slot);
        if !closed {
            self.link.0.shared.put(Kind::Close, self.number, &[]);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close();
    }
}
