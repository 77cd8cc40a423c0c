use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use capbox_guest::proto::{self, Boot, Bytes, Event, Request};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::error::{Context, Error, Result};
use crate::guest::{Guest, Info};
use crate::launch::{self, Ids};
use crate::mount::{self, Prepared};
use crate::socket::{self, Identity, Replies};
use crate::state::{self, State};

/// How to open the host.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Config {
    /// Where sandboxes keep their files. By default `$CAPBOX_STATE_DIR`; else for root `/var/lib/capbox`, and for
    /// others `$XDG_STATE_HOME/capbox` or `~/.local/state/capbox`.
    pub state_dir: Option<PathBuf>,
}

/// This machine, as a place for sandboxes. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Host(Arc<Opened>);

#[derive(Debug)]
struct Opened {
    state: State,
    /// The state folder's file system has refused to carry an overlay: write to memory at once.
    memory_only: AtomicBool,
}

/// A sandbox to be made.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Launch {
    /// A name makes it the only one of that name, and is its id: 1 to 63 lower-case letters, digits and dashes, not
    /// beginning with a dash or `sb-`. Without one, the id is `sb-` and random letters.
    pub name: Option<String>,
    /// The host name inside.
    pub hostname: String,
    /// Laid over the documented environment, for all commands.
    pub env: Vec<(OsString, OsString)>,
    /// Where commands start and relative paths begin.
    pub cwd: PathBuf,
    /// To find it by: any bytes.
    pub labels: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Any bytes, for the layer above; told by [`Guest::info`].
    pub meta: Vec<u8>,
    /// When it ends by itself, counted from creation. `None` is never.
    pub ttl: Option<Duration>,
    /// Whether it lives on when the [`Guest`] is dropped or this process ends.
    pub detached: bool,
    /// The most processes and threads at a time.
    pub processes: u64,
    /// Folders of the host that are seen inside.
    pub mounts: Vec<Mount>,
    /// Keeps what is written in memory, up to so many bytes, rather than on the disk of the state folder.
    pub memory_disk: Option<u64>,
    /// The size of `/dev/shm` in bytes.
    pub shm: u64,
}

impl Default for Launch {
    fn default() -> Self {
        Self {
            name: None,
            hostname: "sandbox".into(),
            env: Vec::new(),
            cwd: "/home/user".into(),
            labels: BTreeMap::new(),
            meta: Vec::new(),
            ttl: None,
            detached: false,
            processes: 512,
            mounts: Vec::new(),
            memory_disk: None,
            shm: 256 << 20,
        }
    }
}

/// A folder of the host that is seen inside.
///
/// Of one that can be written, what host tools execute or trust stays read-only: see [`Mount::PROTECTED`]. The state
/// folder, if it is in there, is covered.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Mount {
    /// The folder on the host. Links are followed.
    pub source: PathBuf,
    /// The absolute path inside; made if it is not there. Links are not followed.
    pub target: PathBuf,
    /// Whether it cannot be written.
    pub read_only: bool,
    /// Whether [`Mount::PROTECTED`] can be written, too.
    pub unprotected: bool,
}

impl Mount {
    /// A mount that can be written.
    pub fn new(source: impl Into<PathBuf>, target: impl Into<PathBuf>) -> Self {
        Self { source: source.into(), target: target.into(), read_only: false, unprotected: false }
    }
}

/// What a sandbox's writes may take of the memory where the disk cannot carry them.
const MEMORY_DISK: u64 = 1 << 30;

/// What a sandbox says about itself has to fit into one packet.
const MOST_LABELS: usize = 32 * 1024;

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

impl Host {
    /// Opens the state folder, making what is missing.
    pub fn open(config: Config) -> Result<Self> {
        let Config { state_dir } = config;
        let state = State::open(state_dir.as_deref())?;
        Ok(Self(Arc::new(Opened { state, memory_only: AtomicBool::new(false) })))
    }

    /// The state folder.
    pub fn state_dir(&self) -> &Path {
        &self.0.state.root
    }

    /// Whether code may run as users other than the default one: the caller is root.
    pub fn several_users(&self) -> bool {
        matches!(self.0.state.ids, Ids::Range { .. })
    }

    /// Makes a sandbox.
    ///
    /// A name that is taken is [`Error::AlreadyExists`]; with [`Host::connect`] that makes get-or-create. Dropping the
    /// future at any point leaves nothing behind.
    pub async fn launch(&self, launch: Launch) -> Result<Guest> {
        let mut boot = self.boot(&launch)?;
        let Prepared { mounts: wire, fds: mounts, writes_host } =
            mount::prepare(&launch.mounts, self.0.state.ids, &self.0.state.root)?;
        boot.mounts = wire;
        boot.deny_set_id = writes_host;
        if boot.memory_upper == 0 && self.0.memory_only.load(Ordering::Relaxed) {
            boot.memory_upper = MEMORY_DISK;
        }
        match self.launch_once(&boot, &mounts).await {
            Err(Error::Launch { step, .. }) if boot.memory_upper == 0 && step.contains("(overlay)") => {
                boot.memory_upper = MEMORY_DISK;
                let guest = self.launch_once(&boot, &mounts).await?;
                self.0.memory_only.store(true, Ordering::Relaxed);
                Ok(guest)
            }
            // Perhaps of one that was killed: its folder is then nobody's.
            Err(Error::AlreadyExists { name, .. }) if self.0.state.remove_abandoned(&name)? => {
                self.launch_once(&boot, &mounts).await
            }
            result => result,
        }
    }

    /// Makes a sandbox and ends it, without falling back to memory.
    pub(crate) async fn launch_on_disk(&self, launch: &Launch) -> Result<()> {
        self.launch_once(&self.boot(launch)?, &[]).await?.destroy().await
    }

    pub(crate) fn ids(&self) -> Ids {
        self.0.state.ids
    }

    async fn launch_once(&self, boot: &Boot, mounts: &[OwnedFd]) -> Result<Guest> {
        let ttl = (boot.ttl > 0).then(|| Duration::from_millis(boot.ttl));
        let (owner, guest) = launch::start(self.0.state.ids)?;
        let sandbox = Identity::new(String::from_utf8_lossy(&boot.id), guest, Instant::now(), ttl);
        let mut owner = Replies::new(owner, sandbox.clone())?;
        let fds: Vec<_> = mounts.iter().map(AsFd::as_fd).collect();
        let message = Request::Boot { boot: boot.clone() }.encode();
        let lost = |source| launch::failed("give the guest its orders", source);
        socket::send(owner.as_fd(), &message, &fds).map_err(lost)?;
        match owner.next().await? {
            Some((Event::Ready, _)) => Ok(Guest::new(sandbox, owner.into_fd(), self.0.state.ids)),
            Some((Event::BootFailed { step, errno }, _)) => {
                let source = std::io::Error::from_raw_os_error(errno);
                if &*step == b"claim the id" && source.kind() == std::io::ErrorKind::AlreadyExists {
                    return Err(Error::AlreadyExists { what: "sandbox", name: sandbox.id.clone() });
                }
                Err(launch::failed(&String::from_utf8_lossy(&step), source))
            }
            _ => {
                let source = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
                Err(launch::failed("start the guest", source))
            }
        }
    }

    fn boot(&self, launch: &Launch) -> Result<Boot> {
        // All fields by name: a new one cannot be forgotten.
        let Launch {
            name,
            hostname,
            env,
            cwd,
            labels,
            meta,
            ttl,
            detached,
            processes,
            mounts: _,
            memory_disk,
            shm,
        } = launch;
        if let Some(name) = name {
            state::check_name(name)?;
        }
        let invalid = |name, reason: &str| Err(Error::InvalidArgument { name, reason: reason.into() });
        if hostname.is_empty() || hostname.len() > 64 || hostname.bytes().any(|byte| !byte.is_ascii_graphic())
        {
            return invalid("hostname", "use 1 to 64 printable characters");
        }
        if !cwd.is_absolute() || bytes(cwd).contains(&0) {
            return invalid("cwd", "use an absolute path");
        }
        let labelled: usize = labels.iter().map(|(key, value)| key.len() + value.len()).sum();
        if labelled + meta.len() > MOST_LABELS {
            return invalid("labels", "labels and meta data are limited to 32 KiB");
        }
        if *ttl == Some(Duration::ZERO) {
            return invalid("ttl", "use more than zero, or none for no end");
        }
        if *processes == 0 || *memory_disk == Some(0) {
            return invalid("limit", "use more than zero");
        }
        let base = [
            ("PATH", PATH),
            ("HOME", "/home/user"),
            ("USER", "user"),
            ("LOGNAME", "user"),
            ("SHELL", "/bin/sh"),
            ("LANG", "C.UTF-8"),
        ];
        let mut environment: Vec<(Bytes, Bytes)> =
            base.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        for (name, value) in env {
            crate::exec::check_env(name, value)?;
            environment.push((name.as_bytes().into(), value.as_bytes().into()));
        }
        let state = &self.0.state;
        Ok(Boot {
            sandboxes: bytes(&state.sandboxes).into(),
            skeleton: bytes(&state.skeleton).into(),
            id: name.clone().unwrap_or_else(|| format!("sb-{}", state::random_name(16))).as_str().into(),
            several_ids: matches!(state.ids, Ids::Range { .. }),
            hostname: hostname.as_str().into(),
            env: environment,
            cwd: bytes(cwd).into(),
            labels: labels.iter().map(|(key, value)| (key[..].into(), value[..].into())).collect(),
            meta: meta[..].into(),
            version: env!("CARGO_PKG_VERSION").into(),
            ttl: ttl.map_or(0, millis),
            owned: !detached,
            processes: *processes,
            created: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, millis),
            system: state.system.iter().map(|path| bytes(path).into()).collect(),
            mounts: Vec::new(),
            memory_upper: memory_disk.unwrap_or(0),
            shm: *shm,
            deny_set_id: false,
        })
    }

    /// Connects to a sandbox that lives: made by this process or another of the same user, in the same network namespace.
    ///
    /// That is how a guest knows who is no sandboxed code: see `docs/adr/0009-who-may-command-a-guest.md`.
    pub async fn connect(&self, id: &str) -> Result<Guest> {
        let guest = self.reach(id)?;
        guest.introduction().await?;
        Ok(guest)
    }

    fn reach(&self, id: &str) -> Result<Guest> {
        let not_found = || Error::NotFound { what: "sandbox", name: id.to_owned() };
        if !state::is_id(id) {
            return Err(not_found());
        }
        let Ok(folder) = state::open_path(&self.0.state.sandboxes.join(id)) else {
            return Err(not_found());
        };
        // The address of a socket is short; the path of the folder may not be.
        let path = format!("/proc/self/fd/{}/{}", folder.as_raw_fd(), proto::SOCKET);
        let address = SocketAddrUnix::new(path).context(|| "address the sandbox".into())?;
        let flags = SocketFlags::CLOEXEC;
        let connection = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .context(|| "make a socket".into())?;
        match rustix::net::connect(&connection, &address) {
            Ok(()) => {}
            Err(rustix::io::Errno::CONNREFUSED | rustix::io::Errno::NOENT) => return Err(not_found()),
            Err(error) => return Err(error).context(|| format!("connect to sandbox `{id}`")),
        }
        let peer = rustix::net::sockopt::socket_peercred(&connection)
            .context(|| format!("identify sandbox `{id}`"))?;
        let expected = match self.0.state.ids {
            Ids::Range { base } => base + proto::GUEST_ID,
            Ids::Own { uid, .. } => uid,
        };
        if peer.uid.as_raw() != expected {
            return Err(Error::Permission {
                what: format!("connect to sandbox `{id}`: it is another user's"),
            });
        }
        // How long it lives is told when it says what it is.
        Ok(Guest::new(Identity::new(id, peer.pid, Instant::now(), None), connection, self.0.state.ids))
    }

    /// All sandboxes that live, of this user and state folder.
    pub async fn list(&self) -> Result<Vec<Info>> {
        let mut found = Vec::new();
        for id in self.0.state.folders()? {
            match self.reach(&id) {
                Ok(guest) => match guest.introduction().await {
                    Ok(info) => found.push(info),
                    Err(Error::Gone { .. }) => {}
                    Err(error) => return Err(error),
                },
                Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Removes what sandboxes left behind whose guest was killed, and answers with their ids.
    pub fn reap(&self) -> Result<Vec<String>> {
        let mut reaped = Vec::new();
        for name in self.0.state.folders()? {
            if (state::is_id(&name) || name.starts_with(".new-")) && self.0.state.remove_abandoned(&name)? {
                reaped.push(name);
            }
        }
        Ok(reaped)
    }
}

pub(crate) fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// Whole milliseconds, rounded up: a time that is asked for is never cut to none.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
