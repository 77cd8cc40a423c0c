//! The client: a host with its state folder.

use std::ffi::OsString;
use std::time::Duration;

use capbox_core::provider::*;
use capbox_host::{Config as HostConfig, ExecRequest, Guest, Host, Launch};

use crate::config::Config;
use crate::error::from_host;
use crate::session::Session;
use crate::table::FLAGS;

/// What a registry knows of this provider.
pub const PROVIDER: Provider = Provider {
    id: "local",
    tables: &[Local::ROWS],
    open: |uri| Ok(Local::configured(Config::from_uri(uri)?)?.into_any()),
};

/// The local provider: sandboxes on this machine.
#[derive(Debug)]
pub struct Local {
    host: Host,
}

impl Local {
    /// A client with the default configuration.
    #[allow(clippy::new_ret_no_self, reason = "what a provider's constructor gives is its client")]
    pub fn new() -> Result<Client<Self>> {
        Self::configured(Config::new())
    }

    /// A client with this configuration.
    pub fn configured(config: Config) -> Result<Client<Self>> {
        let Config { state } = config;
        let mut host = HostConfig::default();
        host.state_dir = state;
        let host = Host::open(host).map_err(from_host)?;
        Ok(Client::new(Self { host }))
    }
}

#[async_trait]
impl Backend for Local {
    const ID: &'static str = "local";
    const FLAGS: Flags = FLAGS;

    type Session = Session;
    type Create = Create;
    type Exec = Exec;
    type NativeClient = Host;
    type NativeSandbox = Guest;

    fn lowered(&self) -> Lowered {
        if self.host.several_users() {
            Lowered::none()
        } else {
            Lowered::none().unavailable(
                Capability::User,
                "the caller is not root, so there is only one user inside; run as root for more",
            )
        }
    }

    /// A sandbox is made and ended. Where that fails the provider cannot be used here, and the error says what to do.
    async fn probe(&self) -> Result<Lowered> {
        let probe = self.host.probe().await;
        if !probe.sandbox.works {
            let message = format!("no sandbox can be made on this machine: {}", probe.sandbox.reason);
            return Err(Error::new(ErrorKind::NotSupported, message).with_hint(probe.sandbox.hint));
        }
        let lowered = self.lowered();
        Ok(if probe.writable_mounts.works {
            lowered
        } else {
            lowered.unavailable(
                Capability::FilesMount,
                "the file system cannot map ids, so folders can be mounted read-only only; run as their owner",
            )
        })
    }

    async fn create(&self, body: Create) -> Result<Created<Session>> {
        let Create(launch) = body;
        let name = launch.name.clone();
        match (self.host.launch(launch).await, name) {
            (Ok(guest), _) => Ok(Created::new(Session::new(guest))),
            (Err(capbox_host::Error::AlreadyExists { .. }), Some(name)) => {
                let guest = self.host.connect(&name).await.map_err(from_host)?;
                Ok(Created::existing(Session::new(guest)))
            }
            (Err(error), _) => Err(from_host(error)),
        }
    }

    fn id(session: &Session) -> &str {
        session.guest.id()
    }

    async fn destroy(session: &Session) -> Result<()> {
        session.guest.destroy().await.map_err(from_host)
    }

    async fn detach(session: &Session) -> Result<()> {
        session.guest.detach().await.map_err(from_host)
    }

    async fn reap(&self) -> Result<Vec<String>> {
        let host = self.host.clone();
        crate::files::blocking(move || host.reap()).await
    }

    fn native_client(&self) -> &Host {
        &self.host
    }

    fn native(session: &Session) -> &Guest {
        &session.guest
    }
}

#[async_trait]
impl List for Local {
    async fn list(&self, labels: &Labels) -> Result<Vec<SandboxInfo>> {
        let all = self.host.list().await.map_err(from_host)?;
        Ok(all.into_iter().map(info).filter(|sandbox| sandbox.labels.contain(labels)).collect())
    }
}

#[async_trait]
impl Connect for Local {
    async fn connect(&self, id: &str) -> Result<Created<Session>> {
        let guest = self.host.connect(id).await.map_err(from_host)?;
        Ok(Created::existing(Session::new(guest)))
    }
}

fn info(info: capbox_host::Info) -> SandboxInfo {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let mut sandbox = SandboxInfo::running(&info.id);
    // A name is the id; without one the id says so.
    sandbox.name = (!info.id.starts_with("sb-")).then_some(info.id);
    sandbox.created = Some(info.created);
    sandbox.ttl_left = info.ttl_left;
    sandbox.detached = !info.owned;
    sandbox.labels = Labels(info.labels.into_iter().map(|(name, value)| (text(name), text(value))).collect());
    sandbox
}

/// What `create` sends to the guest.
#[derive(Debug, Default)]
pub struct Create(Launch);

impl Accept<cap::Name> for Create {
    fn accept(&mut self, name: String) {
        self.0.name = Some(name);
    }
}

impl Accept<cap::Labels> for Create {
    fn accept(&mut self, labels: Labels) {
        self.0.labels =
            labels.0.into_iter().map(|(name, value)| (name.into_bytes(), value.into_bytes())).collect();
    }
}

impl Accept<cap::Env> for Create {
    fn accept(&mut self, env: Env) {
        self.0.env = variables(&env);
    }
}

impl Accept<cap::Ttl> for Create {
    fn accept(&mut self, ttl: Duration) {
        self.0.ttl = Some(ttl);
    }
}

impl Accept<cap::Processes> for Create {
    fn accept(&mut self, processes: u32) {
        self.0.processes = u64::from(processes);
    }
}

impl Accept<cap::FilesMount> for Create {
    fn accept(&mut self, mounts: Mounts) {
        self.0.mounts = mounts.0.into_iter().map(mount).collect();
    }
}

impl Accept<cap::EgressControl> for Create {
    /// Nothing to send: a sandbox has a loopback interface and nothing else.
    fn accept(&mut self, _: DenyEgress) {}
}

fn mount(mount: Mount) -> capbox_host::Mount {
    let target = crate::files::host_path(&mount.target);
    let mut there = capbox_host::Mount::new(mount.source, target);
    there.read_only = mount.access == MountAccess::ReadOnly;
    there.unprotected = mount.access == MountAccess::Unprotected;
    there
}

/// What one exec sends to the guest.
#[derive(Debug)]
pub struct Exec {
    pub(crate) request: ExecRequest,
    pub(crate) input: bytes::Bytes,
    pub(crate) max_output: usize,
}

impl From<Command> for Exec {
    fn from(command: Command) -> Self {
        Self {
            request: ExecRequest::new(command.program.argv()),
            input: bytes::Bytes::new(),
            max_output: command.max_output,
        }
    }
}

impl Accept<cap::ExecCwd> for Exec {
    fn accept(&mut self, path: SandboxPath) {
        self.request.cwd = Some(crate::files::host_path(&path));
    }
}

impl Accept<cap::ExecEnv> for Exec {
    fn accept(&mut self, env: Env) {
        self.request.env = variables(&env);
    }
}

impl Accept<cap::User> for Exec {
    fn accept(&mut self, user: String) {
        self.request.user = Some(user);
    }
}

impl Accept<cap::Timeout> for Exec {
    fn accept(&mut self, timeout: Duration) {
        self.request.timeout = Some(timeout);
    }
}

impl Accept<cap::Input> for Exec {
    fn accept(&mut self, input: Input) {
        self.request.stdin = true;
        self.input = input.0;
    }
}

impl Accept<cap::Stdin> for Exec {
    fn accept(&mut self, _: Stdin) {
        self.request.stdin = true;
    }
}

fn variables(env: &Env) -> Vec<(OsString, OsString)> {
    env.iter().map(|(name, value)| (name.into(), value.into())).collect()
}
