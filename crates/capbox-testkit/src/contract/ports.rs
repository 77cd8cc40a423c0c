//! Ports of a sandbox, reached from this machine. The proof is a server inside that says something of its own.

use std::time::{Duration, Instant};

use capbox_core::api::{AnySandbox, Ports, Preview};
use capbox_core::capability::flags::PortsDeclared;
use capbox_core::capability::{Capability, cap};
use capbox_core::error::{Error, ErrorKind};
use capbox_core::spec::{Network, Spec};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Ask, Case, Contract, cases};
use crate::bench::{Bench, PATIENCE, mark, quoted, within};
use crate::check::{Check, Fault, fails};
use crate::{ensure, ensure_eq};

/// Start a server of `text` on `port` inside, by what there is.
pub(super) async fn serve(sandbox: &AnySandbox, port: u16, text: &str) -> Check {
    let folder = format!("served-{port}");
    let script = format!(
        "mkdir -p {folder} && cd {folder} && printf %s {} > index.html && \
         if command -v python3 >/dev/null; then exec python3 -m http.server {port}; \
         else exec busybox httpd -f -p {port}; fi",
        quoted(text)
    );
    sandbox.spawn(script).background().await?;
    Ok(())
}

/// Leave the case out unless a server can run inside.
pub(super) fn needs_server(t: &Bench) -> Check {
    t.needs(&[Capability::Background])?;
    if t.inside().connects { Ok(()) } else { Err(Fault::ignored("no program inside can serve")) }
}

/// What `GET /` at `host` and `port` answers; `None` where nobody does.
async fn get_at(host: &str, port: u16, headers: &[(String, String)]) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect((host, port)).await.ok()?;
    let mut request = format!("GET / HTTP/1.0\r\nHost: {host}:{port}\r\n");
    for (name, value) in headers {
        request.extend([name.as_str(), ": ", value, "\r\n"]);
    }
    stream.write_all((request + "\r\n").as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.ok()?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1)?.parse().ok()?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    Some((status, body.to_owned()))
}

/// What the preview answers, once somebody does.
pub(super) async fn answers(preview: &Preview) -> Check<(u16, String)> {
    let address = preview.url.strip_prefix("http://").ok_or_else(|| {
        Fault::ignored(format!("`{}` is not plain HTTP, which is all that this suite speaks", preview.url))
    })?;
    let address = address.split('/').next().unwrap_or_default();
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "80"));
    let port = port.parse().map_err(|_| Fault::failed(format!("`{}` has no port", preview.url)))?;
    answers_at(host.trim_matches(['[', ']']), port, &preview.headers).await
}

async fn answers_at(host: &str, port: u16, headers: &[(String, String)]) -> Check<(u16, String)> {
    let begin = Instant::now();
    loop {
        let answer = within(PATIENCE, "a request to a port", get_at(host, port, headers)).await?;
        if let Some(answer) = answer {
            return Ok(answer);
        }
        ensure!(begin.elapsed() < Duration::from_secs(30), "nobody answers at `{host}:{port}`");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A spec that declares these ports, where they must be declared.
fn declaring(t: &Bench, ports: &[u16]) -> Spec {
    if t.flags().ports_declared == PortsDeclared::Create && t.can(Capability::Ports) {
        with_ports(t, ports)
    } else {
        t.spec()
    }
}

/// A spec with these ports; open, where ports exclude deny.
fn with_ports(t: &Bench, ports: &[u16]) -> Spec {
    let spec = t.spec().ports(ports.to_vec());
    let excluded = !spec.problems(t.client().capabilities()).is_empty();
    if excluded && t.can(Capability::EgressOpen) { spec.network(Network::open()) } else { spec }
}

fn ports(sandbox: &AnySandbox) -> Check<Ports> {
    sandbox.ports().ok_or_else(|| Fault::ignored("needs `network.expose-port`"))
}

impl Contract for cap::Ports {
    const ASK: Ask = Ask::Create(|spec, _| Ok(spec.ports(vec![8731])));
    const CASES: &'static [Case] = cases![a_declared_port_is_reached, ports_that_are_none_are_refused];
}

async fn a_declared_port_is_reached(t: &Bench) -> Check {
    t.needs(&[Capability::ExposePort])?;
    needs_server(t)?;
    let sandbox = t.create(with_ports(t, &[8731])).await?;
    let text = mark();
    serve(&sandbox, 8731, &text).await?;
    let preview = ports(&sandbox)?.expose(8731).await?;
    ensure_eq!(answers(&preview).await?, (200, text), "the answer of a declared port");
    Ok(())
}

async fn ports_that_are_none_are_refused(t: &Bench) -> Check {
    fails(t.create(t.spec().ports(vec![0])).await, &[ErrorKind::InvalidArgument])?;
    Ok(())
}

impl Contract for cap::ExposePort {
    const ASK: Ask = Ask::Call(|sandbox| {
        Box::pin(async {
            match sandbox.ports() {
                Some(ports) => ports.expose(8731).await.map(drop),
                None => Err(sandbox.require(Capability::ExposePort).err().map_or_else(
                    || Error::new(ErrorKind::Provider, "`ports` is `None` although the row is there"),
                    Error::from,
                )),
            }
        })
    });
    const CASES: &'static [Case] = cases![
        each_port_answers_for_itself,
        b133_sandboxes_do_not_share_ports,
        an_undeclared_port_is_not_found,
        port_zero_is_refused,
    ];
}

async fn each_port_answers_for_itself(t: &Bench) -> Check {
    needs_server(t)?;
    let sandbox = t.create(declaring(t, &[8731, 8732])).await?;
    let (one, two) = (mark(), mark());
    serve(&sandbox, 8731, &one).await?;
    serve(&sandbox, 8732, &two).await?;
    let ports = ports(&sandbox)?;
    let (first, second) = (ports.expose(8731).await?, ports.expose(8732).await?);
    ensure_eq!(answers(&first).await?, (200, one.clone()), "the answer of the first port");
    ensure_eq!(answers(&second).await?, (200, two), "the answer of the second port");
    let again = ports.expose(8731).await?;
    ensure_eq!(answers(&again).await?, (200, one), "the answer of a port that is exposed again");
    Ok(())
}

/// Many at once, all with the same port inside.
async fn b133_sandboxes_do_not_share_ports(t: &Bench) -> Check {
    needs_server(t)?;
    let mut creating = Vec::new();
    for _ in 0..4 {
        creating.push(tokio::spawn(t.client().create(declaring(t, &[8731])).into_future()));
    }
    let mut served = Vec::new();
    for create in creating {
        let sandbox = create.await.map_err(Fault::failed)??;
        let text = mark();
        serve(&sandbox, 8731, &text).await?;
        let preview = ports(&sandbox)?.expose(8731).await?;
        served.push((sandbox, preview, text));
    }
    for (_, preview, text) in &served {
        ensure_eq!(answers(preview).await?, (200, text.clone()), "the answer of each sandbox's own port");
    }
    Ok(())
}

async fn an_undeclared_port_is_not_found(t: &Bench) -> Check {
    if t.flags().ports_declared == PortsDeclared::Live {
        return Err(Fault::ignored("ports need not be declared here"));
    }
    let sandbox = t.create(declaring(t, &[8731])).await?;
    let error = fails(ports(&sandbox)?.expose(8739).await, &[ErrorKind::NotFound])?;
    ensure!(error.hint().is_some(), "no hint says that the port must be declared: {error}");
    Ok(())
}

async fn port_zero_is_refused(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    fails(ports(&sandbox)?.expose(0).await, &[ErrorKind::InvalidArgument])?;
    Ok(())
}

impl Contract for cap::ExposeTcp {
    const ASK: Ask = Ask::Call(|sandbox| {
        Box::pin(async {
            match sandbox.ports() {
                Some(ports) => ports.expose_tcp(8731).await.map(drop),
                None => Err(sandbox.require(Capability::ExposeTcp).err().map_or_else(
                    || Error::new(ErrorKind::Provider, "`ports` is `None` although the row is there"),
                    Error::from,
                )),
            }
        })
    });
    const CASES: &'static [Case] = cases![bytes_go_both_ways];
}

async fn bytes_go_both_ways(t: &Bench) -> Check {
    needs_server(t)?;
    let sandbox = t.create(declaring(t, &[8731])).await?;
    let text = mark();
    serve(&sandbox, 8731, &text).await?;
    let address = ports(&sandbox)?.expose_tcp(8731).await?;
    let (status, body) = answers_at(&address.host, address.port, &[]).await?;
    ensure_eq!((status, body), (200, text), "what came back through the raw port");
    Ok(())
}
