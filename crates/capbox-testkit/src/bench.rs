//! What a case works with: clients, sandboxes and the facts about them.

use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use capbox_core::api::{AnyClient, AnySandbox, Event, Files, Output, OutputStream, Process, WriteOptions};
use capbox_core::capability::Capability;
use capbox_core::capability::flags::Flags;
use capbox_core::error::{ErrorKind, Result};
use capbox_core::spec::{Network, SandboxPath, Spec};
use tokio::sync::OnceCell;

use crate::check::{Check, Fault};
use crate::harness::{Facts, Fixture, Harness, Inside, Sample};
use crate::oracle::{Oracle, Recorder, host_processes};
use crate::{ensure, ensure_eq};

/// One trial's clients, sandboxes and facts.
pub struct Bench {
    pub(crate) fixture: Fixture,
    facts: Facts,
    client: AnyClient,
    sandbox: OnceCell<AnySandbox>,
}

impl fmt::Debug for Bench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bench").field("client", &self.client).finish_non_exhaustive()
    }
}

impl Bench {
    pub(crate) fn new(harness: &dyn Harness) -> Result<Self> {
        let fixture = harness.fixture()?;
        let client = (fixture.client)()?;
        Ok(Self { fixture, facts: harness.facts(), client, sandbox: OnceCell::new() })
    }

    /// The client.
    pub fn client(&self) -> &AnyClient {
        &self.client
    }

    /// Another client of the same account, as another process would have it.
    pub fn another_client(&self) -> Result<AnyClient> {
        (self.fixture.client)()
    }

    /// What is caused from outside.
    pub fn oracle(&self) -> &dyn Oracle {
        &*self.fixture.oracle
    }

    /// The recorded requests, where the harness records them.
    pub fn requests(&self) -> Option<&Recorder> {
        self.fixture.requests.as_ref()
    }

    /// Make the provider unreachable from now on.
    pub fn break_provider(&self) -> Check {
        match &self.fixture.fault {
            None => Err(Fault::ignored("the harness injects no fault")),
            Some(fault) => {
                fault();
                Ok(())
            }
        }
    }

    /// The facts about the provider.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// What is in a sandbox.
    pub fn inside(&self) -> &Inside {
        &self.facts.inside
    }

    /// The flags of the table.
    pub fn flags(&self) -> &'static Flags {
        self.client.capabilities().flags()
    }

    /// True where the row is filled and available here.
    pub fn can(&self, capability: Capability) -> bool {
        self.client.can(capability)
    }

    /// Leave the case out unless these rows are there.
    pub fn needs(&self, capabilities: &[Capability]) -> Check {
        match capabilities.iter().find(|capability| !self.can(**capability)) {
            None => Ok(()),
            Some(missing) => Err(Fault::ignored(format!("needs `{missing}`"))),
        }
    }

    /// Leave the case out unless commands are real processes.
    pub fn needs_processes(&self) -> Check {
        needs_inside(self.facts.inside.processes, "commands are no real processes here")
    }

    /// Leave the case out unless named pipes and devices exist inside.
    pub fn needs_devices(&self) -> Check {
        needs_inside(self.facts.inside.devices, "there are no pipes and devices inside")
    }

    /// Leave the case out unless output is bytes.
    pub fn needs_bytes(&self) -> Check {
        needs_inside(self.facts.inside.bytes, "commands read and print text only here")
    }

    /// Leave the case out unless permission bits hold inside.
    pub fn needs_permissions(&self) -> Check {
        needs_inside(self.facts.inside.permissions, "permission bits do not hold inside")
    }

    /// A good value of an option that only the provider knows.
    pub fn sample(&self, capability: Capability) -> Check<&Sample> {
        let samples = &self.facts.samples;
        samples
            .iter()
            .find(|(of, _)| *of == capability)
            .map(|(_, sample)| sample)
            .ok_or_else(|| Fault::ignored(format!("the harness gives no sample of `{capability}`")))
    }

    /// What every sandbox of the suite is asked to be: as the harness says, and open where the provider cannot
    /// deny.
    pub fn spec(&self) -> Spec {
        let spec = self.facts.spec.clone();
        let said = spec.egress_open.is_some() || spec.egress_control.is_some();
        if said || self.can(Capability::EgressControl) { spec } else { spec.network(Network::open()) }
    }

    /// A new sandbox.
    pub async fn create(&self, spec: Spec) -> Result<AnySandbox> {
        self.client.create(spec).await
    }

    /// The trial's sandbox, which its cases share.
    pub async fn sandbox(&self) -> Result<AnySandbox> {
        let create = || self.create(self.spec());
        self.sandbox.get_or_try_init(create).await.cloned()
    }

    /// Let time pass.
    pub async fn pass(&self, time: Duration) {
        match &self.fixture.clock {
            Some(pass) => pass(time).await,
            None => tokio::time::sleep(time).await,
        }
    }

    /// The address of this machine at which a sandbox with open egress finds a listener.
    pub fn outside(&self) -> Check<IpAddr> {
        if let Some(outside) = self.facts.outside {
            return Ok(outside);
        }
        // Connecting a datagram socket sends nothing, but tells which address would be used.
        let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
        let found = socket.connect("192.0.2.1:9").and_then(|()| socket.local_addr());
        match found {
            Ok(address) if !address.ip().is_loopback() => Ok(address.ip()),
            _ => Err(Fault::ignored("this machine has no address but loopback")),
        }
    }

    pub(crate) async fn finish(self) {
        if let Some(sandbox) = self.sandbox.get() {
            sandbox.destroy().await.ok();
        }
    }
}

fn needs_inside(there: bool, otherwise: &str) -> Check {
    if there { Ok(()) } else { Err(Fault::ignored(otherwise)) }
}

/// Run a shell text that must exit with 0; gives its standard output.
pub async fn sh(sandbox: &AnySandbox, text: impl Into<String>) -> Check<String> {
    let text = text.into();
    let output = run(sandbox, &text).await?;
    ensure!(
        output.status.success(),
        "`{text}` {}: {}{}",
        output.status,
        output.stdout.text(),
        output.stderr.text()
    );
    Ok(output.stdout.text().into_owned())
}

/// Run a shell text to its end.
pub async fn run(sandbox: &AnySandbox, text: &str) -> Check<Output> {
    if !sandbox.can(Capability::Run) {
        return Err(Fault::ignored("needs `exec.run`"));
    }
    Ok(sandbox.exec(text).await?)
}

/// Files and folders of the sandbox.
pub fn files(sandbox: &AnySandbox) -> Check<Files> {
    sandbox.files().ok_or_else(|| Fault::ignored("needs `files.read`"))
}

/// Write a file by whatever the provider has.
pub async fn put(sandbox: &AnySandbox, path: impl Into<SandboxPath>, content: &str) -> Check {
    let path = path.into();
    if sandbox.can(Capability::FilesWrite) && sandbox.can(Capability::FilesRead) {
        files(sandbox)?.write(&path, content.to_owned()).await?;
        return Ok(());
    }
    let path = path.to_string();
    sh(sandbox, format!("printf %s {} > {}", quoted(content), quoted(&path))).await?;
    Ok(())
}

/// Make a folder by whatever the provider has.
pub async fn folder(sandbox: &AnySandbox, path: &str) -> Check {
    if sandbox.can(Capability::FilesModify) && sandbox.can(Capability::FilesRead) {
        files(sandbox)?.mkdir(path).await?;
    } else if sandbox.can(Capability::Run) {
        sh(sandbox, format!("mkdir -p {}", quoted(path))).await?;
    } else {
        let options = WriteOptions::default().with_parents();
        files(sandbox)?.write_with(SandboxPath::from(path).join(".keep"), "", options).await?;
    }
    Ok(())
}

/// Read a file by whatever the provider has; `None` where there is none.
pub async fn get(sandbox: &AnySandbox, path: &str) -> Check<Option<String>> {
    if sandbox.can(Capability::FilesRead) {
        return match files(sandbox)?.read(path).await {
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        };
    }
    let there = run(sandbox, &format!("test -e {}", quoted(path))).await?;
    if !there.status.success() {
        return Ok(None);
    }
    Ok(Some(sh(sandbox, format!("cat {}", quoted(path))).await?))
}

/// A text as one word of a shell.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A number of seconds that no other process sleeps: finds a process again by its command line.
pub fn mark() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("3{:05}.{:04}", std::process::id() % 100_000, NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The arguments with `mark` in them of all processes inside, by listing `/proc` from inside.
pub async fn alive(sandbox: &AnySandbox, mark: &str) -> Check<Vec<String>> {
    let text = sh(sandbox, "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\000' '\\n'").await?;
    Ok(text.lines().filter(|line| line.contains(mark)).map(str::to_owned).collect())
}

/// How long something may take that is no matter of time: this machine may be busy.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// Fail unless the processes with `mark` are there, by a listing from inside, within a moment.
pub async fn starts(sandbox: &AnySandbox, mark: &str) -> Check {
    let begin = Instant::now();
    while alive(sandbox, mark).await?.is_empty() {
        ensure!(begin.elapsed() < PATIENCE, "the process with `{mark}` does not start");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Fail if a process with `mark` is alive, by a listing from inside, after at most `grace`.
pub async fn gone(sandbox: &AnySandbox, mark: &str, grace: Duration) -> Check {
    let begin = Instant::now();
    loop {
        let left = alive(sandbox, mark).await?;
        if left.is_empty() {
            return Ok(());
        }
        ensure!(begin.elapsed() < grace, "still alive inside: {left:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Fail if a process of this machine has `mark` in its command line, after at most `grace`.
pub async fn gone_from_host(mark: &str, grace: Duration) -> Check {
    let begin = Instant::now();
    loop {
        let left = host_processes(mark);
        if left.is_empty() {
            return Ok(());
        }
        ensure!(begin.elapsed() < grace, "still alive on this machine: {left:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Everything that a followed process still prints, both streams in order, and that positions have no gap.
pub async fn follow(process: &mut Process, from: u64) -> Check<Followed> {
    let mut followed =
        Followed { bytes: Vec::new(), stdout: Vec::new(), stderr: Vec::new(), skipped: 0, exit: None };
    let mut expected = from;
    while let Some(event) = process.next().await? {
        match event {
            Event::Output { stream, position, bytes } => {
                ensure_eq!(position, expected, "the position of a chunk of output");
                ensure!(followed.exit.is_none(), "output comes after the end");
                expected += bytes.len() as u64;
                followed.bytes.extend_from_slice(&bytes);
                match stream {
                    OutputStream::Stdout => followed.stdout.extend_from_slice(&bytes),
                    OutputStream::Stderr => followed.stderr.extend_from_slice(&bytes),
                }
            }
            Event::Gap { from, to } => {
                ensure!(from == expected && to > from, "a gap from {from} to {to} after position {expected}");
                followed.skipped += to - from;
                expected = to;
            }
            Event::Exited(exit) => followed.exit = Some(exit),
            other => return Err(Fault::failed(format!("an event that the suite does not know: {other:?}"))),
        }
    }
    Ok(followed)
}

/// What [`follow`] saw.
#[derive(Clone, Debug)]
pub struct Followed {
    /// Both streams, in order.
    pub bytes: Vec<u8>,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// How many bytes were reported as no longer kept.
    pub skipped: u64,
    /// How it ended, where the end was seen.
    pub exit: Option<capbox_core::api::Exit>,
}

/// Fail unless `call` ends within `limit`.
#[track_caller]
pub fn within<T>(
    limit: Duration,
    what: &str,
    call: impl Future<Output = T>,
) -> impl Future<Output = Check<T>> {
    let late = Fault::failed(format!("{what} takes longer than {limit:?}"));
    async move { tokio::time::timeout(limit, call).await.map_err(|_| late) }
}
