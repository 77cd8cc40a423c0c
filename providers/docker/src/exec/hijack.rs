//! A connection that the engine gives up to the bytes of a process.
//!
//! The engine's library has this, too, but hides the connection behind a decoder that believes every length that it is
//! told, and takes what a terminal prints for frames.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bollard::Docker as Api;
use bollard::errors::Error as EngineError;
use capbox_core::provider::{Error, ErrorKind, Result};
use http_body_util::{BodyExt, Collected, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST, UPGRADE};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, ReadHalf, WriteHalf};
use tokio::net::{TcpStream, UnixStream};

use crate::error::from_engine;

/// The most that the engine may say of why it does not.
const MOST_SAID: usize = 64 << 10;

/// Where an engine listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Unix(PathBuf),
    Tcp(String),
}

impl Address {
    /// From `unix://SOCKET` or `tcp://HOST:PORT`.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        if let Some(path) = text.strip_prefix("unix://") {
            return Ok(Self::Unix(path.into()));
        }
        match text.strip_prefix("tcp://").or_else(|| text.strip_prefix("http://")) {
            Some(host) => Ok(Self::Tcp(host.trim_end_matches('/').to_owned())),
            None => Err(Error::invalid_argument("host", format!("`{text}` is no address of an engine"))),
        }
    }

    async fn connect(&self) -> io::Result<Box<dyn Io>> {
        Ok(match self {
            Self::Unix(path) => Box::new(UnixStream::connect(path).await?),
            Self::Tcp(host) => {
                let stream = TcpStream::connect(host).await?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
        })
    }
}

/// Something to read from and write to.
trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// What a process prints, as it comes.
pub(crate) struct Reader {
    /// What came with the answer.
    first: bytes::Bytes,
    socket: ReadHalf<Box<dyn Io>>,
}

/// What a process reads. Shutting it down, or dropping it, is end of file.
pub(crate) struct Writer(Option<WriteHalf<Box<dyn Io>>>);

/// Start the exec `id`, on a terminal or not, and give its bytes.
///
/// Dropping both halves ends the connection, and nothing else: the process goes on.
pub(crate) async fn start(
    api: &Api,
    address: &Address,
    id: &str,
    terminal: bool,
    what: &str,
) -> Result<(Reader, Writer)> {
    let broke = |error: hyper::Error| {
        // Before it was sent, nothing was done.
        Error::new(ErrorKind::ConnectionLost, format!("{what}: the connection to the engine broke: {error}"))
            .with_source(error)
    };
    let socket = address.connect().await.map_err(|error| from_engine(EngineError::from(error), what))?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await.map_err(broke)?;
    tokio::spawn(connection.with_upgrades());
    let version = api.client_version();
    let body = format!("{{\"Detach\":false,\"Tty\":{terminal}}}");
    let request = Request::post(format!("/v{version}/exec/{id}/start"))
        .header(HOST, "docker")
        .header(CONTENT_TYPE, "application/json")
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, "tcp")
        .body(Full::new(bytes::Bytes::from(body)))
        .map_err(|error| Error::invalid_argument("id", error))?;
    let answer = sender.send_request(request).await.map_err(broke)?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(refused(answer, what).await);
    }
    let upgraded = hyper::upgrade::on(answer).await.map_err(broke)?;
    let Ok(parts) = upgraded.downcast::<TokioIo<Box<dyn Io>>>() else {
        return Err(Error::new(ErrorKind::Provider, format!("{what}: the connection is of another kind")));
    };
    let (reader, writer) = tokio::io::split(parts.io.into_inner());
    Ok((Reader { first: parts.read_buf, socket: reader }, Writer(Some(writer))))
}

/// Why the engine did not give up the connection.
async fn refused(answer: hyper::Response<hyper::body::Incoming>, what: &str) -> Error {
    let status_code = answer.status().as_u16();
    if answer.status().is_success() {
        let message = format!("{what}: the engine answered {status_code} and kept the connection");
        return Error::new(ErrorKind::Provider, message)
            .with_hint("connect to the engine itself rather than to a proxy that does not pass upgrades on");
    }
    let said = Limited::new(answer.into_body(), MOST_SAID).collect().await;
    let said = said.map(Collected::to_bytes).unwrap_or_default();
    let message = match serde_json::from_slice::<serde_json::Value>(&said) {
        Ok(json) => json["message"].as_str().unwrap_or_default().to_owned(),
        Err(_) => String::from_utf8_lossy(&said).into_owned(),
    };
    from_engine(EngineError::DockerResponseServerError { status_code, message }, what)
}

impl AsyncRead for Reader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.first.is_empty() {
            let most = self.first.len().min(buffer.remaining());
            buffer.put_slice(&self.first.split_to(most));
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.socket).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Writer {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Some(socket) => Pin::new(socket).poll_write(cx, bytes),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Some(socket) => Pin::new(socket).poll_flush(cx),
            None => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(socket) = &mut self.0 else { return Poll::Ready(Ok(())) };
        let done = std::task::ready!(Pin::new(socket).poll_shutdown(cx));
        self.0 = None;
        // A process that has ended reads nothing any more.
        Poll::Ready(done.or_else(|error| match error.kind() {
            io::ErrorKind::NotConnected | io::ErrorKind::BrokenPipe => Ok(()),
            _ => Err(error),
        }))
    }
}

impl Drop for Writer {
    /// The other half keeps the connection, so its end has to be said. A socket says it at once.
    fn drop(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        let _ = Pin::new(self).poll_shutdown(&mut context);
    }
}
