//! A proxy between a provider and the server behind it, on a Unix socket: it sees each request, and makes trouble.
//!
//! It speaks HTTP/1.1, with connections that become a stream of bytes (`Upgrade`) passed on as they are, half-closed
//! ends included. Each request is counted ([`Proxy::oracle`]), as are the bytes of such streams, and may be [recorded](Proxy::recorder);
//! [`Trouble`] is decided per request, before it is passed on.
//!
//! ```ignore
//! let proxy = Proxy::start(engine_socket)?; // in a tokio runtime
//! let client = Docker::configured(Config::new().with_host(proxy.uri()))?;
//! proxy.trouble(|request| if request.is("POST", "/containers/*/start") { Trouble::Lost } else { Trouble::None });
//! ```

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper::{Request as HttpRequest, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::oracle::{BoxFuture, Oracle, Recorder, Traces};

/// How much of a request's content is kept, in bytes: enough for any message, not for an upload.
const KEPT: usize = 64 << 10;

type Fault = Box<dyn std::error::Error + Send + Sync>;
type Content = BoxBody<Bytes, Fault>;

/// A request that came by.
#[derive(Clone, PartialEq, Eq)]
pub struct Seen {
    /// `GET`, `POST`, …
    pub method: String,
    /// The path, as it was sent: `/v1.41/containers/json`.
    pub path: String,
    /// What came after `?`; empty where there was none.
    pub query: String,
    /// The content, as far as it had come when it was looked at; at most 64 KiB of it. Empty while trouble is decided.
    pub content: Bytes,
    /// It asks for a stream of bytes in place of messages.
    pub upgrades: bool,
}

impl Seen {
    /// True for this method and path: `*` stands for one segment, and a version in front (`/v1.41`) is no part of it.
    pub fn is(&self, method: &str, path: &str) -> bool {
        let version = |segment: &&str| {
            segment.strip_prefix('v').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        let segments = |path: &'_ str| path.split('/').filter(|s| !s.is_empty()).map(str::to_owned).collect();
        let mut here: Vec<String> = segments(&self.path);
        if here.first().is_some_and(|first| version(&first.as_str())) {
            here.remove(0);
        }
        let wanted: Vec<String> = segments(path);
        let same = |(here, wanted): (&String, &String)| wanted == "*" || here == wanted;
        self.method == method && here.len() == wanted.len() && here.iter().zip(&wanted).all(same)
    }
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.path)?;
        if !self.query.is_empty() {
            write!(f, "?{}", self.query)?;
        }
        write!(f, " {}", String::from_utf8_lossy(&self.content))
    }
}

/// What happens to a request.
#[derive(Clone, Debug)]
pub enum Trouble {
    /// It is passed on, and so is the answer.
    None,
    /// It is not passed on: the connection ends without an answer.
    Unsent,
    /// It is passed on, but the connection ends in place of the answer.
    Lost,
    /// It is not passed on; the answer is this status, with a message in JSON.
    Instead(u16),
    /// It is passed on, but the answer is this status, with a message in JSON.
    After(u16),
    /// It is passed on, and the connection ends once so many bytes of the answer's content, or of the stream of bytes
    /// that it became, have come through.
    Cut(usize),
    /// It waits until it is told to go on, and is then passed on.
    Hold(Arc<Notify>),
}

type Decide = dyn Fn(&Seen) -> Trouble + Send + Sync;
type Record = dyn Fn(&Seen) -> Option<(String, String)> + Send + Sync;

/// The proxy; it ends with the value, and with it all of its connections.
pub struct Proxy {
    folder: tempfile::TempDir,
    shared: Arc<Shared>,
    listening: JoinHandle<()>,
}

struct Shared {
    upstream: PathBuf,
    seen: Mutex<Vec<Seen>>,
    decide: Mutex<Arc<Decide>>,
    record: Mutex<Option<(Recorder, Arc<Record>)>>,
    /// How many bytes were sent on connections that became streams of bytes.
    streamed: AtomicU64,
    /// How often all connections were cut; a change ends them.
    cuts: watch::Sender<u64>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("upstream", &self.shared.upstream).finish_non_exhaustive()
    }
}

impl Proxy {
    /// Listen on a socket of its own, for the server at the socket `upstream`. Called in a tokio runtime.
    pub fn start(upstream: impl Into<PathBuf>) -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let listener = UnixListener::bind(socket(folder.path()))?;
        let shared = Arc::new(Shared {
            upstream: upstream.into(),
            seen: Mutex::default(),
            decide: Mutex::new(Arc::new(|_: &Seen| Trouble::None)),
            record: Mutex::default(),
            streamed: AtomicU64::new(0),
            cuts: watch::Sender::new(0),
        });
        let listening = tokio::spawn(listen(listener, shared.clone()));
        Ok(Self { folder, shared, listening })
    }

    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        socket(self.folder.path())
    }

    /// The same as a URI: `unix:///…`.
    pub fn uri(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// All requests so far, in the order in which they came.
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.shared.seen).clone()
    }

    /// From now on, record what `record` makes of each request: what it does and what was sent, without what is made up
    /// anew for each; `None` leaves it out. It is looked at when all of the request has come.
    pub fn recorder(
        &self,
        record: impl Fn(&Seen) -> Option<(String, String)> + Send + Sync + 'static,
    ) -> Recorder {
        let recorder = Recorder::new();
        *lock(&self.shared.record) = Some((recorder.clone(), Arc::new(record)));
        recorder
    }

    /// From now on, `decide` says what happens to each request.
    pub fn trouble(&self, decide: impl Fn(&Seen) -> Trouble + Send + Sync + 'static) {
        *lock(&self.shared.decide) = Arc::new(decide);
    }

    /// End all connections that there are.
    pub fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// From now on nothing listens here: connections are refused, and those that there are end.
    pub fn refuse(&self) {
        self.refusal()();
    }

    /// [`Proxy::refuse`] as a value, for [`Fixture::with_fault`](crate::Fixture::with_fault).
    pub fn refusal(&self) -> impl Fn() + Send + Sync + 'static {
        let (listening, socket, shared) = (self.listening.abort_handle(), self.socket(), self.shared.clone());
        move || {
            listening.abort();
            std::fs::remove_file(&socket).ok();
            shared.cuts.send_modify(|cuts| *cuts += 1);
        }
    }

    /// An oracle that sees every request that comes by.
    pub fn oracle(&self) -> impl Oracle + use<> {
        Requests(self.shared.clone())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.refuse();
    }
}

/// What an oracle sees: each request, whatever becomes of it.
struct Requests(Arc<Shared>);

impl Oracle for Requests {
    fn look(&self) -> BoxFuture<'_, Traces> {
        let seen = lock(&self.0.seen);
        // Without the content, which may still be coming.
        let line =
            |(i, seen): (usize, &Seen)| format!("request {i}: {} {}?{}", seen.method, seen.path, seen.query);
        let streamed = format!("{} bytes in streams", self.0.streamed.load(Ordering::Relaxed));
        let traces = seen.iter().enumerate().map(line).chain([streamed]).collect();
        Box::pin(async { traces })
    }
}

async fn listen(listener: UnixListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        let shared = shared.clone();
        tokio::spawn(async move {
            let mut cuts = shared.cuts.subscribe();
            let service = service_fn(|request| pass(request, shared.clone()));
            let connection = hyper::server::conn::http1::Builder::new()
                .half_close(true)
                .serve_connection(TokioIo::new(client), service)
                .with_upgrades();
            tokio::select! {
                _ = connection => {}
                _ = cuts.changed() => {}
            }
        });
    }
}

/// One request and its answer. An error ends the connection without an answer.
async fn pass(mut request: HttpRequest<Incoming>, shared: Arc<Shared>) -> Result<Response<Content>, Fault> {
    let seen = Seen {
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
        query: request.uri().query().unwrap_or_default().to_owned(),
        content: Bytes::new(),
        upgrades: request.headers().contains_key(hyper::header::UPGRADE),
    };
    let position = {
        let mut all = lock(&shared.seen);
        all.push(seen.clone());
        all.len() - 1
    };
    let decide = lock(&shared.decide).clone();
    let trouble = decide(&seen);
    match &trouble {
        Trouble::Unsent => return Err("the connection is cut before the request".into()),
        Trouble::Instead(status) => return Ok(message(*status)?),
        Trouble::Hold(gate) => gate.notified().await,
        Trouble::None | Trouble::Lost | Trouble::After(_) | Trouble::Cut(_) => {}
    }

    let from_client = seen.upgrades.then(|| hyper::upgrade::on(&mut request));
    let (head, content) = request.into_parts();
    let request = HttpRequest::from_parts(head, observed(content, shared.clone(), position));
    let server = UnixStream::connect(&shared.upstream).await?;
    let (mut send, connection) = hyper::client::conn::http1::handshake(TokioIo::new(server)).await?;
    tokio::spawn(connection.with_upgrades());
    let mut answer = send.send_request(request).await?;

    let limit = match trouble {
        Trouble::Lost => return Err("the answer is lost".into()),
        Trouble::After(status) => return Ok(message(status)?),
        Trouble::Cut(bytes) => Some(bytes),
        _ => None,
    };
    if let (Some(from_client), StatusCode::SWITCHING_PROTOCOLS) = (from_client, answer.status()) {
        let from_server = hyper::upgrade::on(&mut answer);
        tokio::spawn(async move {
            let mut cuts = shared.cuts.subscribe();
            let (Ok(client), Ok(server)) = (from_client.await, from_server.await) else { return };
            tokio::select! {
                () = join(TokioIo::new(client), TokioIo::new(server), limit, &shared.streamed) => {}
                _ = cuts.changed() => {}
            }
        });
        return Ok(answer.map(|_| Full::default().map_err(Into::into).boxed()));
    }
    Ok(answer.map(|content| limited(content, limit)))
}

/// Both directions of a connection that became a stream of bytes, until both have ended or `limit` bytes have come back.
async fn join(
    client: TokioIo<hyper::upgrade::Upgraded>,
    server: TokioIo<hyper::upgrade::Upgraded>,
    limit: Option<usize>,
    streamed: &AtomicU64,
) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, split};
    let (mut client_reads, mut client_writes) = split(client);
    let (server_reads, mut server_writes) = split(server);
    let to_server = async {
        let mut piece = vec![0; 64 << 10];
        while let Ok(length @ 1..) = client_reads.read(&mut piece).await {
            streamed.fetch_add(length as u64, Ordering::Relaxed);
            if server_writes.write_all(&piece[..length]).await.is_err() {
                break;
            }
        }
        server_writes.shutdown().await.ok();
    };
    let mut server_reads = server_reads.take(limit.map_or(u64::MAX, |limit| limit as u64));
    let to_client = async {
        copy(&mut server_reads, &mut client_writes).await.ok();
        client_writes.shutdown().await.ok();
    };
    if limit.is_none() {
        tokio::join!(to_server, to_client);
        return;
    }
    tokio::select! {
        () = to_client => {} // dropping the rest cuts both ends
        ((), ()) = async { tokio::join!(to_server, std::future::pending()) } => {}
    }
}

/// The content of a request on its way, of which the beginning is kept, and which is recorded at its end.
fn observed(content: Incoming, shared: Arc<Shared>, position: usize) -> Content {
    let whole = shared.clone();
    let each = move |bytes: &Bytes| {
        let kept = &mut lock(&shared.seen)[position].content;
        let room = KEPT.saturating_sub(kept.len()).min(bytes.len());
        *kept = [&kept[..], &bytes[..room]].concat().into();
        bytes.len()
    };
    let end = move || {
        let seen = lock(&whole.seen)[position].clone();
        if let Some((recorder, record)) = lock(&whole.record).clone()
            && let Some((operation, sent)) = record(&seen)
        {
            recorder.record(operation, sent);
        }
    };
    if content.is_end_stream() {
        end();
        return Full::default().map_err(Into::into).boxed();
    }
    Passing { content, each, end: Some(end), state: State::Whole }.boxed()
}

/// The content of an answer on its way, which breaks off after `limit` bytes.
fn limited(content: Incoming, limit: Option<usize>) -> Content {
    let Some(mut left) = limit else { return content.map_err(Into::into).boxed() };
    let each = move |bytes: &Bytes| {
        let through = bytes.len().min(left);
        left -= through;
        through
    };
    Passing { content, each, end: Some(|| ()), state: State::Whole }.boxed()
}

/// Content on its way: `each` sees every piece and says how many bytes of it go through, and if not all do, it breaks
/// off; `end` is called once, when no more comes.
struct Passing<E, F: FnOnce()> {
    content: Incoming,
    each: E,
    end: Option<F>,
    state: State,
}

#[derive(Clone, Copy)]
enum State {
    Whole,
    /// The last bytes that go through are on their way.
    Breaks,
    Broken,
}

impl<E, F: FnOnce()> Passing<E, F> {
    fn ended(&mut self) {
        if let Some(end) = self.end.take() {
            end();
        }
    }
}

impl<E, F: FnOnce()> Drop for Passing<E, F> {
    fn drop(&mut self) {
        self.ended();
    }
}

impl<E: FnMut(&Bytes) -> usize + Unpin, F: FnOnce() + Unpin> Body for Passing<E, F> {
    type Data = Bytes;
    type Error = Fault;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        match self.state {
            State::Whole => {}
            State::Breaks => {
                self.state = State::Broken;
                context.waker().wake_by_ref();
                return Poll::Pending; // lets the connection send what it has
            }
            State::Broken => return Poll::Ready(Some(Err("the connection is cut".into()))),
        }
        let frame = match ready!(Pin::new(&mut self.content).poll_frame(context)) {
            None => {
                self.ended();
                return Poll::Ready(None);
            }
            Some(frame) => frame?,
        };
        let Some(bytes) = frame.data_ref() else { return Poll::Ready(Some(Ok(frame))) };
        let through = (self.each)(bytes);
        if through < bytes.len() {
            self.state = State::Breaks;
        }
        Poll::Ready(Some(Ok(Frame::data(bytes.slice(..through)))))
    }

    fn size_hint(&self) -> SizeHint {
        self.content.size_hint()
    }
}

fn message(status: u16) -> Result<Response<Content>, hyper::http::Error> {
    let text = format!("{{\"message\":\"trouble {status} of the test\"}}");
    Response::builder()
        .status(status)
        .header(hyper::header::CONTENT_TYPE, "application/json")
        .body(Full::from(text).map_err(Into::into).boxed())
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("socket")
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// A server that answers each request with its own content; one that upgrades becomes an echo of what is sent, once
    /// all was sent.
    fn echo(folder: &Path) -> PathBuf {
        let path = folder.join("server");
        let listener = UnixListener::bind(&path).unwrap();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let service = service_fn(|mut request: HttpRequest<Incoming>| async move {
                    if !request.headers().contains_key(hyper::header::UPGRADE) {
                        let content = request.into_body().collect().await.unwrap().to_bytes();
                        return Response::builder().body(Full::new(content));
                    }
                    let upgrade = hyper::upgrade::on(&mut request);
                    request.into_body().collect().await.unwrap();
                    tokio::spawn(async move {
                        let mut stream = TokioIo::new(upgrade.await.unwrap());
                        let mut sent = Vec::new();
                        stream.read_to_end(&mut sent).await.unwrap();
                        stream.write_all(&sent).await.unwrap();
                        stream.shutdown().await.unwrap();
                    });
                    let headers = [(hyper::header::CONNECTION, "upgrade"), (hyper::header::UPGRADE, "tcp")];
                    let answer = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
                    headers
                        .into_iter()
                        .fold(answer, |a, (name, value)| a.header(name, value))
                        .body(Full::default())
                });
                let io = TokioIo::new(client);
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new().serve_connection(io, service).with_upgrades(),
                );
            }
        });
        path
    }

    /// Send all of `text` and the end of it; gives what comes back until the end, however that comes.
    async fn talk(proxy: &Proxy, text: &str) -> io::Result<String> {
        let (mut reads, mut writes) = UnixStream::connect(proxy.socket()).await?.into_split();
        let mut answer = Vec::new();
        let send = async {
            writes.write_all(text.as_bytes()).await.ok();
            writes.shutdown().await.ok();
        };
        let talked = async { tokio::join!(send, reads.read_to_end(&mut answer)) };
        tokio::time::timeout(std::time::Duration::from_mins(1), talked).await.expect("it ends").1.ok();
        Ok(String::from_utf8(answer).unwrap())
    }

    const POST: &str = "POST /v1.41/things/7/start?x=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello";
    const CHUNKED: &str = "POST /things HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n";
    const UPGRADE: &str = "POST /exec/1/start HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 2\r\n\r\n{}";

    #[tokio::test]
    async fn requests_pass_and_are_counted_and_recorded() {
        let folder = tempfile::tempdir().unwrap();
        let proxy = Proxy::start(echo(folder.path())).unwrap();
        let recorder = proxy.recorder(|seen| {
            let sent = String::from_utf8_lossy(&seen.content).into_owned();
            seen.is("POST", "/things/*/start").then(|| ("start".to_owned(), sent))
        });
        let oracle = proxy.oracle();
        let before = oracle.look().await;
        for request in [POST, CHUNKED] {
            let answer = talk(&proxy, request).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello"), "{answer}");
        }
        let two = [POST, CHUNKED].concat(); // on one connection
        assert_eq!(talk(&proxy, &two).await.unwrap().matches("hello").count(), 2);
        assert_eq!(oracle.look().await.changes_since(&before).len(), 4);
        assert!(proxy.seen().iter().all(|seen| seen.content == "hello"));
        let kept = recorder.requests();
        assert_eq!(kept.len(), 2);
        assert_eq!((kept[0].operation.as_str(), kept[0].body.as_str()), ("start", "\"hello\""));
    }

    #[tokio::test]
    async fn a_stream_of_bytes_passes_with_its_half_closed_end() {
        let folder = tempfile::tempdir().unwrap();
        let proxy = Proxy::start(echo(folder.path())).unwrap();
        let big = "x".repeat(1 << 20);
        let answer = talk(&proxy, &format!("{UPGRADE}{big}")).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 101"), "{}", &answer[..64]);
        assert!(answer.ends_with(&big));
        assert_eq!(proxy.seen().len(), 1);
        let traces = proxy.oracle().look().await;
        assert!(traces.iter().any(|line| line.starts_with(&format!("{} bytes", big.len()))), "{traces:?}");

        proxy.trouble(|_| Trouble::Cut(100));
        let cut = talk(&proxy, &format!("{UPGRADE}{big}")).await.unwrap();
        assert_eq!(cut.matches('x').count(), 100);
    }

    #[tokio::test]
    async fn trouble_comes_as_it_is_ordered() {
        let folder = tempfile::tempdir().unwrap();
        let proxy = Proxy::start(echo(folder.path())).unwrap();
        let with = async |trouble: Trouble| {
            proxy.trouble(move |_| trouble.clone());
            talk(&proxy, POST).await.unwrap()
        };
        assert_eq!(with(Trouble::Unsent).await, "");
        assert_eq!(with(Trouble::Lost).await, "");
        for trouble in [Trouble::Instead(503), Trouble::After(503)] {
            let answer = with(trouble).await;
            assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("message"), "{answer}");
        }
        let cut = with(Trouble::Cut(3)).await;
        assert!(cut.ends_with("\r\n\r\nhel"), "{cut}");

        let gate = Arc::new(Notify::new());
        let mut held = std::pin::pin!(with(Trouble::Hold(gate.clone())));
        tokio::select! {
            answer = &mut held => panic!("not held: {answer}"),
            () = async { while proxy.seen().len() < 6 { tokio::task::yield_now().await } } => {}
        }
        gate.notify_one();
        assert!(held.await.ends_with("hello"));

        proxy.refuse();
        assert!(talk(&proxy, POST).await.is_err());
    }

    /// A connection that is open when all are cut ends, as does one that became a stream.
    #[tokio::test]
    async fn a_cut_ends_what_is_open() {
        let folder = tempfile::tempdir().unwrap();
        let proxy = Proxy::start(echo(folder.path())).unwrap();
        for begin in [POST, UPGRADE] {
            let mut stream = UnixStream::connect(proxy.socket()).await.unwrap();
            stream.write_all(begin.as_bytes()).await.unwrap();
            let mut answer = [0; 12];
            stream.read_exact(&mut answer).await.unwrap();
            proxy.cut();
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).await.ok();
        }
    }
}
