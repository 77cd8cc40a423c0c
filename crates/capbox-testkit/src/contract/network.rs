//! What may be reached. The proof is a listener on this machine that counts who came.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use capbox_core::api::AnySandbox;
use capbox_core::capability::{Capability, cap};
use capbox_core::error::ErrorKind;
use capbox_core::spec::{
    CidrRule, DenyEgress, HostRule, Network, OpenEgress, PortRules, PrivateNetwork, Spec,
};
use tokio::net::{TcpListener, TcpStream};

use super::{Ask, Case, Contract, cases};
use crate::bench::{Bench, run};
use crate::check::{Check, Fault, fails};
use crate::{ensure, ensure_eq};

/// A port of this machine that counts connections.
struct Listener {
    address: SocketAddr,
    came: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Listener {
    /// Listen, and prove from here that a connection works.
    async fn at(ip: IpAddr) -> Check<Self> {
        let listener = TcpListener::bind((ip, 0)).await?;
        let address = listener.local_addr()?;
        let came = Arc::new(AtomicUsize::new(0));
        let counter = came.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    use tokio::io::AsyncWriteExt;
                    let (_, mut writer) = stream.into_split();
                    writer.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n").await.ok();
                });
            }
        });
        let this = Self { address, came, task };
        TcpStream::connect(address).await?;
        ensure!(this.comes(1, Duration::from_secs(5)).await, "a connection from here does not work");
        this.came.store(0, Ordering::SeqCst);
        Ok(this)
    }

    async fn comes(&self, count: usize, within: Duration) -> bool {
        let begin = tokio::time::Instant::now();
        while self.came.load(Ordering::SeqCst) < count {
            if begin.elapsed() > within {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        true
    }
}

/// Try to connect to `host` and `port` from inside in every way that programs have; exit code 0 where one worked.
async fn connect(sandbox: &AnySandbox, host: &str, port: u16) -> Check<bool> {
    let url_host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let tries = [
        format!("timeout 3 bash -c 'exec 3<>/dev/tcp/{host}/{port}'"),
        format!("timeout 3 python3 -c \"import socket; socket.create_connection(('{host}', {port}), 2)\""),
        format!("timeout 3 nc -z -w 2 {host} {port}"),
        format!("curl -sS -m 3 -o /dev/null http://{url_host}:{port}/"),
        format!("wget -q -T 3 -t 1 -O /dev/null http://{url_host}:{port}/"),
    ];
    let text = tries.map(|way| format!("({way}) >/dev/null 2>&1 && exit 0")).join("; ");
    let output = run(sandbox, &format!("{text}; exit 1")).await?;
    Ok(output.status.success())
}

/// Fail unless the sandbox reaches the listener.
async fn reaches(t: &Bench, sandbox: &AnySandbox, listener: &Listener, host: &str) -> Check {
    if !t.inside().connects {
        return Err(Fault::ignored("no program inside can open connections"));
    }
    let port = listener.address.port();
    let before = listener.came.load(Ordering::SeqCst);
    ensure!(connect(sandbox, host, port).await?, "`{host}:{port}` is not reached");
    let came = listener.comes(before + 1, Duration::from_secs(2)).await;
    ensure!(came, "`{host}:{port}` is said to be reached, and nobody came");
    Ok(())
}

/// Fail if the sandbox reaches the listener; the listener has the last word.
async fn does_not_reach(sandbox: &AnySandbox, listener: &Listener, host: &str) -> Check {
    let port = listener.address.port();
    let before = listener.came.load(Ordering::SeqCst);
    let said = connect(sandbox, host, port).await?;
    let came = listener.comes(before + 1, Duration::from_millis(200)).await;
    ensure!(!came, "`{host}:{port}` is reached, although it is denied");
    ensure!(!said, "`{host}:{port}` is said to be reached");
    Ok(())
}

/// Listeners where a program of the host could go: loopback, and an address of this machine.
async fn listeners(t: &Bench) -> Check<Vec<Listener>> {
    let mut listeners = vec![Listener::at(Ipv4Addr::LOCALHOST.into()).await?];
    if let Ok(outside) = t.outside() {
        listeners.push(Listener::at(outside).await?);
    }
    if let Ok(v6) = Listener::at(std::net::Ipv6Addr::LOCALHOST.into()).await {
        listeners.push(v6);
    }
    Ok(listeners)
}

/// A spec with exactly this policy.
fn with(t: &Bench, network: Network) -> Spec {
    t.facts().spec.clone().network(network)
}

impl Contract for cap::EgressOpen {
    const ASK: Ask = Ask::Create(|mut spec, _| {
        spec.egress_control = None;
        Ok(spec.egress_open(OpenEgress))
    });
    const CASES: &'static [Case] = cases![the_outside_is_reached];
}

async fn the_outside_is_reached(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let sandbox = t.create(with(t, Network::open())).await?;
    let listener = Listener::at(t.outside()?).await?;
    reaches(t, &sandbox, &listener, &listener.address.ip().to_string()).await
}

impl Contract for cap::EgressControl {
    const ASK: Ask = Ask::Create(|spec, _| Ok(spec.egress_control(DenyEgress)));
    const CASES: &'static [Case] = cases![
        denied_nothing_is_reached,
        b158_it_is_the_default,
        the_same_is_reached_where_it_is_open,
        open_and_denied_at_once_is_refused,
        a_socket_of_the_host_is_not_reached,
    ];
}

async fn nothing_is_reached(t: &Bench, sandbox: &AnySandbox) -> Check {
    for listener in listeners(t).await? {
        does_not_reach(sandbox, &listener, &listener.address.ip().to_string()).await?;
    }
    Ok(())
}

async fn denied_nothing_is_reached(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let sandbox = t.create(with(t, Network::deny())).await?;
    nothing_is_reached(t, &sandbox).await
}

async fn b158_it_is_the_default(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let mut spec = t.facts().spec.clone();
    (spec.egress_open, spec.egress_control) = (None, None);
    let sandbox = t.create(spec).await?;
    nothing_is_reached(t, &sandbox).await
}

/// The control: what is denied above is reached where it is not, by the same programs.
async fn the_same_is_reached_where_it_is_open(t: &Bench) -> Check {
    t.needs(&[Capability::Run, Capability::EgressOpen])?;
    the_outside_is_reached(t).await
}

async fn open_and_denied_at_once_is_refused(t: &Bench) -> Check {
    t.needs(&[Capability::EgressOpen])?;
    let spec = Spec::new().egress_open(OpenEgress).egress_control(DenyEgress);
    fails(t.create(spec).await, &[ErrorKind::InvalidArgument])?;
    Ok(())
}

async fn a_socket_of_the_host_is_not_reached(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    t.needs_processes()?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("socket");
    #[cfg(unix)]
    let listener = tokio::net::UnixListener::bind(&path)?;
    let sandbox = t.create(with(t, Network::deny())).await?;
    let path = path.display();
    let text = format!(
        "python3 -c \"import socket; socket.socket(socket.AF_UNIX).connect('{path}')\" 2>/dev/null || nc -U -z {path}"
    );
    run(&sandbox, &text).await?;
    #[cfg(unix)]
    {
        let came = tokio::time::timeout(Duration::from_millis(200), listener.accept()).await.is_ok();
        ensure!(!came, "a unix socket of the host is reached, although egress is denied");
    }
    Ok(())
}

impl Contract for cap::EgressCidr {
    const ASK: Ask = Ask::Create(|spec, t| {
        let spec = if t.can(Capability::EgressControl) { spec.egress_control(DenyEgress) } else { spec };
        Ok(spec.egress_cidrs(vec![cidr("198.51.100.0/24")]))
    });
    const CASES: &'static [Case] = cases![what_is_listed_is_reached_and_nothing_else, loopback_stays_shut];
}

fn cidr(range: impl Into<String>) -> CidrRule {
    CidrRule { cidr: range.into(), port: None }
}

fn listing(network: &mut Network, range: impl Into<String>) {
    network.cidrs.push(cidr(range));
}

async fn what_is_listed_is_reached_and_nothing_else(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let listener = Listener::at(t.outside()?).await?;
    let host = listener.address.ip().to_string();
    let mut listed = Network::deny();
    listing(&mut listed, host.as_str());
    let sandbox = t.create(with(t, listed)).await?;
    reaches(t, &sandbox, &listener, &host).await?;
    let mut other = Network::deny();
    listing(&mut other, "198.51.100.0/24");
    let sandbox = t.create(with(t, other)).await?;
    does_not_reach(&sandbox, &listener, &host).await
}

/// A list never opens the loopback of the host.
async fn loopback_stays_shut(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let listener = Listener::at(Ipv4Addr::LOCALHOST.into()).await?;
    let mut network = Network::deny();
    listing(&mut network, "198.51.100.0/24");
    let sandbox = t.create(with(t, network)).await?;
    does_not_reach(&sandbox, &listener, "127.0.0.1").await
}

impl Contract for cap::EgressHost {
    const ASK: Ask = Ask::Create(|spec, t| {
        let spec = if t.can(Capability::EgressControl) { spec.egress_control(DenyEgress) } else { spec };
        Ok(spec.egress_hosts(vec![host_rule("contract.example")]))
    });
    const CASES: &'static [Case] =
        cases![b162_a_listed_name_is_reached_and_no_other, b163_an_address_is_not_opened_by_a_name];
}

fn host_rule(host: &str) -> HostRule {
    HostRule { host: host.to_owned(), port: None }
}

async fn named(t: &Bench, host: &str) -> Check<AnySandbox> {
    let mut network = Network::deny();
    network.hosts.push(host_rule(host));
    Ok(t.create(with(t, network)).await?)
}

async fn b162_a_listed_name_is_reached_and_no_other(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let name = t.facts().outside_name.ok_or_else(|| {
        Fault::ignored("the harness names no host that resolves to the address of a listener")
    })?;
    let listener = Listener::at(t.outside()?).await?;
    reaches(t, &named(t, name).await?, &listener, name).await?;
    for other in [format!("evil{name}"), format!("{name}.evil.example"), format!("*.{name}")] {
        does_not_reach(&named(t, &other).await?, &listener, name).await?;
    }
    Ok(())
}

async fn b163_an_address_is_not_opened_by_a_name(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let listener = Listener::at(t.outside()?).await?;
    let sandbox = named(t, "contract.example").await?;
    does_not_reach(&sandbox, &listener, &listener.address.ip().to_string()).await?;
    for spelled in ["127.0.0.1", "localhost", "2130706433", "0x7f000001", "::ffff:127.0.0.1"] {
        let loopback = Listener::at(Ipv4Addr::LOCALHOST.into()).await?;
        does_not_reach(&sandbox, &loopback, spelled).await?;
    }
    Ok(())
}

impl Contract for cap::EgressPort {
    const ASK: Ask = Ask::Create(|spec, t| {
        let mut spec = if t.can(Capability::EgressControl) { spec.egress_control(DenyEgress) } else { spec };
        if t.can(Capability::EgressCidr) {
            spec = spec.egress_cidrs(vec![CidrRule { cidr: "198.51.100.1".to_owned(), port: Some(443) }]);
        }
        Ok(spec.egress_ports(PortRules))
    });
    const CASES: &'static [Case] = cases![only_the_listed_port_is_reached];
}

async fn only_the_listed_port_is_reached(t: &Bench) -> Check {
    t.needs(&[Capability::Run, Capability::EgressCidr])?;
    let outside = t.outside()?;
    let (open, shut) = (Listener::at(outside).await?, Listener::at(outside).await?);
    let host = outside.to_string();
    let mut network = Network::deny();
    network.cidrs.push(CidrRule { cidr: host.clone(), port: Some(open.address.port()) });
    let sandbox = t.create(with(t, network)).await?;
    reaches(t, &sandbox, &open, &host).await?;
    does_not_reach(&sandbox, &shut, &host).await?;
    ensure_eq!(shut.came.load(Ordering::SeqCst), 0, "who came to the port that is not listed");
    Ok(())
}

impl Contract for cap::EgressUpdate {
    const ASK: Ask = Ask::Call(|sandbox| Box::pin(sandbox.set_network(Network::deny())));
    const CASES: &'static [Case] = cases![
        opened_it_is_reached_and_shut_again_not,
        what_is_listed_later_is_reached,
        an_open_connection_is_cut
    ];
}

async fn opened_it_is_reached_and_shut_again_not(t: &Bench) -> Check {
    t.needs(&[Capability::Run, Capability::EgressOpen, Capability::EgressControl])?;
    let listener = Listener::at(t.outside()?).await?;
    let host = listener.address.ip().to_string();
    let sandbox = t.create(with(t, Network::deny())).await?;
    does_not_reach(&sandbox, &listener, &host).await?;
    sandbox.set_network(Network::open()).await?;
    reaches(t, &sandbox, &listener, &host).await?;
    sandbox.set_network(Network::deny()).await?;
    does_not_reach(&sandbox, &listener, &host).await
}

async fn what_is_listed_later_is_reached(t: &Bench) -> Check {
    t.needs(&[Capability::Run, Capability::EgressCidr])?;
    let listener = Listener::at(t.outside()?).await?;
    let host = listener.address.ip().to_string();
    let sandbox = t.create(with(t, Network::deny())).await?;
    let mut listed = Network::deny();
    listing(&mut listed, host.as_str());
    sandbox.set_network(listed).await?;
    reaches(t, &sandbox, &listener, &host).await
}

async fn an_open_connection_is_cut(t: &Bench) -> Check {
    t.needs(&[Capability::Background, Capability::EgressOpen, Capability::EgressControl])?;
    if !t.inside().connects {
        return Err(Fault::ignored("no program inside can open connections"));
    }
    let listener = TcpListener::bind((t.outside()?, 0)).await?;
    let address = listener.local_addr()?;
    let sandbox = t.create(with(t, Network::open())).await?;
    let (host, port) = (address.ip(), address.port());
    let beat = format!(
        "if command -v bash >/dev/null; then exec bash -c 'exec 3<>/dev/tcp/{host}/{port}; while echo x >&3; do sleep 0.1; done'; \
         else while echo x; do sleep 0.1; done | nc {host} {port}; fi"
    );
    sandbox.spawn(beat).background().await?;
    let accepted = tokio::time::timeout(Duration::from_secs(20), listener.accept()).await;
    let (mut stream, _) = accepted.map_err(|_| Fault::failed("the sandbox does not connect"))??;
    beats(&mut stream).await.ok_or_else(|| Fault::failed("nothing comes through an allowed connection"))?;
    sandbox.set_network(Network::deny()).await?;
    // What was on the way may still come; then nothing does.
    let quiet = async { while beats(&mut stream).await.is_some() {} };
    let cut = tokio::time::timeout(Duration::from_secs(20), quiet).await.is_ok();
    ensure!(cut, "a connection that is no longer allowed goes on");
    Ok(())
}

/// The next bytes; `None` where none come for a second, ten times the beat.
async fn beats(stream: &mut TcpStream) -> Option<usize> {
    use tokio::io::AsyncReadExt;
    let mut bytes = [0; 64];
    let read = tokio::time::timeout(Duration::from_secs(1), stream.read(&mut bytes)).await;
    read.ok()?.ok().filter(|count| *count > 0)
}

impl Contract for cap::PrivateNetwork {
    const ASK: Ask = Ask::Create(|spec, _| Ok(spec.private_network("contract-refused")));
    const CASES: &'static [Case] = cases![
        members_reach_each_other_by_name,
        nobody_else_is_let_in,
        it_is_no_way_out,
        names_that_are_none_are_refused
    ];
}

/// A network that no other trial uses.
fn private(host: &str, network: &str) -> PrivateNetwork {
    PrivateNetwork::named(network).with_host(host)
}

fn network_name() -> String {
    format!("contract-{}", crate::bench::mark().replace('.', "-"))
}

/// What `GET /` of `host` answers from inside; empty where nobody does.
async fn asked(sandbox: &AnySandbox, host: &str) -> Check<String> {
    let ask = format!(
        "if command -v python3 >/dev/null; then timeout 5 python3 -c \"import urllib.request as r; print(r.urlopen('http://{host}:8731/', timeout=3).read().decode())\" 2>/dev/null; \
         else timeout 5 wget -q -T 3 -O - http://{host}:8731/; fi"
    );
    Ok(run(sandbox, &ask).await?.stdout.text().trim().to_owned())
}

async fn members_reach_each_other_by_name(t: &Bench) -> Check {
    super::ports::needs_server(t)?;
    let (network, text) = (network_name(), crate::bench::mark());
    let server = t.create(t.spec().private_network(private("server", &network))).await?;
    let client = t.create(t.spec().private_network(private("client", &network))).await?;
    super::ports::serve(&server, 8731, &text).await?;
    let host = server.private_host().ok_or_else(|| Fault::failed("a member does not know its own name"))?;
    let begin = std::time::Instant::now();
    while asked(&client, host).await? != text {
        ensure!(begin.elapsed() < Duration::from_secs(30), "`{host}` is not reached from the same network");
    }
    Ok(())
}

async fn nobody_else_is_let_in(t: &Bench) -> Check {
    super::ports::needs_server(t)?;
    let (network, text) = (network_name(), crate::bench::mark());
    let server = t.create(t.spec().private_network(private("server", &network))).await?;
    super::ports::serve(&server, 8731, &text).await?;
    let member = t.create(t.spec().private_network(private("member", &network))).await?;
    let begin = std::time::Instant::now();
    while asked(&member, "server").await? != text {
        ensure!(begin.elapsed() < Duration::from_secs(30), "the server is not reached from its own network");
    }
    let text_of_address = "cat /proc/net/fib_trie 2>/dev/null | grep -B1 '/32 host LOCAL' | grep -o '[0-9.]*$' | grep -v '^127' | head -n 1";
    let address = run(&server, text_of_address).await?.stdout.text().trim().to_owned();
    let mut strangers = vec![
        t.create(t.spec()).await?,
        t.create(t.spec().private_network(private("other", &network_name()))).await?,
    ];
    if t.can(Capability::EgressOpen) {
        strangers.push(t.create(with(t, Network::open())).await?);
    }
    for stranger in &strangers {
        ensure_eq!(asked(stranger, "server").await?, "", "what a stranger gets by name");
        if !address.is_empty() {
            ensure_eq!(asked(stranger, &address).await?, "", "what a stranger gets by address");
        }
    }
    Ok(())
}

async fn it_is_no_way_out(t: &Bench) -> Check {
    t.needs(&[Capability::Run, Capability::EgressControl])?;
    let spec = with(t, Network::deny()).private_network(private("inside", &network_name()));
    let sandbox = t.create(spec).await?;
    nothing_is_reached(t, &sandbox).await
}

async fn names_that_are_none_are_refused(t: &Bench) -> Check {
    for name in ["", "A", "a/b", "..", "-a", "a b"] {
        fails(t.create(t.spec().private_network(name)).await, &[ErrorKind::InvalidArgument])?;
        let member = PrivateNetwork::named("contract").with_host(name);
        fails(t.create(t.spec().private_network(member)).await, &[ErrorKind::InvalidArgument])?;
    }
    Ok(())
}
