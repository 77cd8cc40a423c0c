//! What may be reached. The proof is a listener on this machine that counts who came.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use capbox_core::api::AnySandbox;
use capbox_core::capability::{Capability, cap};
use capbox_core::error::ErrorKind;
use capbox_core::spec::{CidrRule, DenyEgress, HostRule, Network, OpenEgress, PortRules, Spec};
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
