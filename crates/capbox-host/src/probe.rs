//! What this host can do, and what to do about what it cannot.
//!
//! Nothing here is read from settings: each fact is tried, since settings, security modules, containers and kernels
//! decide together.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;

use rustix::fs::{AtFlags, Mode, OFlags};

use crate::error::Error;
use crate::host::{Host, Launch};
use crate::launch::Ids;

/// What this host can do.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Probe {
    /// Whether sandboxes can be made at all.
    pub sandbox: Fact,
    /// Whether what they write is kept on disk; else it is kept in memory.
    pub disk: Fact,
    /// Whether code may run as several users.
    pub several_users: Fact,
    /// Whether folders of the host can be mounted so that they can be written.
    pub writable_mounts: Fact,
    /// Whether cgroups can be made, which limits of memory and processor time would need.
    pub cgroups: Fact,
}

/// Whether something works.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fact {
    /// Whether it does.
    pub works: bool,
    /// Why, or why not.
    pub reason: String,
    /// What to do about it if it does not; empty if nothing is known.
    pub hint: String,
}

impl Fact {
    fn yes(reason: impl Into<String>) -> Self {
        Self { works: true, reason: reason.into(), hint: String::new() }
    }

    fn no(reason: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { works: false, reason: reason.into(), hint: hint.into() }
    }
}

impl Host {
    /// Tries what this host can do. The answer is kept: it does not change while this process runs.
    ///
    /// Needs no call before [`Host::launch`], which says by itself what failed and what to do.
    pub async fn probe(&self) -> Probe {
        static KNOWN: OnceLock<Probe> = OnceLock::new();
        if let Some(known) = KNOWN.get() {
            return known.clone();
        }
        let probe = self.try_everything().await;
        KNOWN.get_or_init(|| probe).clone()
    }

    async fn try_everything(&self) -> Probe {
        // The real thing: namespaces, mounts in them, `/proc`, the overlay, the filter.
        let mut launch = Launch::default();
        launch.labels.insert(b"capbox".to_vec(), b"probe".to_vec());
        let (sandbox, disk) = match self.launch_on_disk(&launch).await {
            Ok(()) => (Fact::yes("one was made and ended"), Fact::yes("the state folder carries an overlay")),
            Err(on_disk) => {
                launch.memory_disk = Some(16 << 20);
                match self.make_and_end(launch).await {
                    Ok(()) => (Fact::yes("one was made and ended"), failure(&on_disk)),
                    Err(error) => (failure(&error), failure(&on_disk)),
                }
            }
        };
        Probe {
            sandbox,
            disk,
            several_users: several_users(self.ids()),
            writable_mounts: self.writable_mounts(),
            cgroups: cgroups(),
        }
    }

    async fn make_and_end(&self, launch: Launch) -> Result<(), Error> {
        self.launch(launch).await?.destroy().await
    }
}

fn failure(error: &Error) -> Fact {
    Fact::no(error.to_string(), error.hint().unwrap_or_default())
}

fn several_users(ids: Ids) -> Fact {
    match ids {
        Ids::Range { base } => Fact::yes(format!("ids {base} and up stand for those inside")),
        Ids::Own { .. } => {
            Fact::no("the caller may map no id but its own", "run as root to use other users inside")
        }
    }
}

impl Host {
    fn writable_mounts(&self) -> Fact {
        match self.ids() {
            Ids::Own { .. } => Fact::yes("files of the caller's are its code's"),
            Ids::Range { base } => match crate::mount::try_id_mapping(self.state_dir(), base) {
                Ok(()) => Fact::yes("the file system of the state folder can map ids; others may differ"),
                Err(error) => failure(&error),
            },
        }
    }
}

/// A cgroup is made and removed, in the tree that manages this process.
fn cgroups() -> Fact {
    const HINT: &str =
        "delegate a cgroup v2 subtree to this user, for example `systemd-run --user --scope -p Delegate=yes`";
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let Some(path) = own.lines().find_map(|line| line.strip_prefix("0::")) else {
        return Fact::no("there is no cgroup v2 tree", "mount cgroup2, or boot with a unified hierarchy");
    };
    let mut reason = "there is no cgroup v2 tree".to_owned();
    for tree in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
        let folder = format!("{tree}{path}");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(parent) = rustix::fs::open(&folder, flags, Mode::empty()) else { continue };
        if rustix::fs::statat(&parent, "cgroup.procs", AtFlags::empty()).is_err() {
            continue;
        }
        let name = format!("capbox-probe-{}", std::process::id());
        match rustix::fs::mkdirat(parent.as_fd(), &name, Mode::RWXU) {
            Ok(()) => {
                let _ = rustix::fs::unlinkat(parent.as_fd(), &name, AtFlags::REMOVEDIR);
                let path = format!("/proc/self/fd/{}/cgroup.controllers", parent.as_raw_fd());
                let controllers = fs::read_to_string(path).unwrap_or_default();
                return if controllers.contains("memory") {
                    Fact::yes(format!("`{folder}` with {}", controllers.trim()))
                } else {
                    Fact::no(format!("`{folder}` has no memory controller"), HINT)
                };
            }
            Err(error) => reason = format!("`{folder}`: {}", io::Error::from(error)),
        }
    }
    Fact::no(reason, HINT)
}

/// What to do about a step that failed; empty if nothing is known.
pub(crate) fn hint(step: &str, error: &io::Error) -> &'static str {
    let refused = matches!(error.kind(), io::ErrorKind::PermissionDenied);
    match step {
        "create namespaces" => {
            "allow user namespaces: set `sysctl user.max_user_namespaces` above 0 and, where they exist, \
             `kernel.unprivileged_userns_clone=1` and `kernel.apparmor_restrict_unprivileged_userns=0` (or add an \
             AppArmor profile with `userns`); in a container, allow `clone` and `unshare` in its seccomp profile"
        }
        "write uid_map" | "write gid_map" | "raise ambient capabilities" => {
            "a security module may have taken the rights in the new user namespace: set \
             `sysctl kernel.apparmor_restrict_unprivileged_userns=0` or add an AppArmor profile with `userns`"
        }
        "execute the guest" | "put the guest program into memory" => {
            "set `sysctl vm.memfd_noexec` below 2, and let a security module execute memory files"
        }
        "mount /proc" if refused => {
            "something is mounted over parts of /proc, as in most containers: unmask it (Docker: \
             `--security-opt systempaths=unconfined`)"
        }
        "mount the root (overlay)" => {
            "put the state folder (`CAPBOX_STATE_DIR`) on a file system that can carry an overlay, such as ext4, xfs or \
             btrfs, and not on an overlay itself; or keep what is written in memory"
        }
        "open the folder of all sandboxes" | "open the skeleton" => {
            "the caller must be able to enter every folder on the way to the state folder"
        }
        "protect a system folder" | "clone a system folder" | "clone a device" => {
            "Linux 5.12 or newer is needed, with the rights to mount in a user namespace: see AppArmor and the \
             container's seccomp profile"
        }
        "protect a file in a mounted folder" => {
            "a protected file or a folder on its way is a symbolic link, which cannot be protected: mount the folder \
             read-only or unprotected"
        }
        "make a mount point" => {
            "the target must not lead through a symbolic link, nor into a read-only folder"
        }
        "find a mounted folder again" => "the folder was replaced meanwhile: try again",
        "install the system call filter" => "a kernel with CONFIG_SECCOMP_FILTER is needed",
        _ => "",
    }
}
