//! Sandboxes on this machine, without a daemon and without root.
//!
//! A sandbox is a process in Linux namespaces of its own: the *guest* ([`capbox_guest`]), process 1 inside. It builds
//! the sandbox's root from the host's read-only `/usr` and a writable layer, runs commands, keeps the output of those
//! in the background, gives access to files, and ends when its owner goes, its time is up, or somebody says so.
//! It needs no other process and outlives its creator where it is asked to.
//!
//! ```no_run
//! # async fn example() -> capbox_host::Result<()> {
//! use capbox_host::{Config, ExecRequest, Host, Launch};
//!
//! let host = Host::open(Config::default())?;
//! let guest = host.launch(Launch::default()).await?;
//! let mut job = guest.exec(ExecRequest::new(["sh", "-c", "echo hello"])).await?;
//! while let Some(event) = job.next().await? {
//!     println!("{event:?}");
//! }
//! guest.destroy().await
//! # }
//! ```
//!
//! # What is inside
//!
//! * **Files.** `/usr` (and `/bin`, `/lib`… where they are folders of their own), `/etc/ssl`, `/etc/pki` and
//!   `/etc/alternatives` of the host, read-only; the rest of `/` is the sandbox's own and writable: on the disk of the
//!   state folder, or in memory where that cannot carry an overlay. `/home/user` is home and where commands start.
//! * **Users.** Code runs as user 1000. If the caller is root, ids 0 to 65535 inside stand for a range of the host's
//!   ids that nobody else has (the one `/etc/subuid` and `/etc/subgid` give root, else 0x70000000 and up), and any
//!   of them but 65535 can be asked for. Otherwise the only user is the caller's own, seen as 1000 inside; the
//!   caller's supplementary groups stay with the code, as the kernel lets nobody but root leave them.
//! * **Environment.** `PATH`, `HOME`, `USER`, `LOGNAME`, `SHELL`, `LANG=C.UTF-8`; with a terminal also
//!   `TERM=xterm-256color`. Nothing of the caller's.
//! * **Network.** A loopback interface and nothing else.
//! * **Limits.** 512 processes and threads unless [`Launch::processes`] says otherwise.
//!
//! # What it is worth
//!
//! The host's kernel is shared: this is a container, not a virtual machine. Visible inside, and harmless: the
//! kernel's version and command line, the load average, facts about the processors, the paths of `/proc/self/cgroup`,
//! and the paths of folders that are mounted from the host. An unreadable program of the host's (mode 0711) is not
//! found by the kill of a single job; killing the sandbox reaches everything.

#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
mod error;

#[cfg(target_os = "linux")]
mod ended;
#[cfg(target_os = "linux")]
mod exec;
#[cfg(target_os = "linux")]
mod files;
#[cfg(target_os = "linux")]
mod guest;
#[cfg(target_os = "linux")]
mod host;
#[cfg(target_os = "linux")]
mod launch;
#[cfg(target_os = "linux")]
mod mount;
#[cfg(target_os = "linux")]
mod probe;
#[cfg(target_os = "linux")]
mod socket;
#[cfg(target_os = "linux")]
mod state;
#[cfg(target_os = "linux")]
mod watch;

#[cfg(not(target_os = "linux"))]
mod elsewhere;

pub use error::{Error, Result, SpawnStage};

#[cfg(not(target_os = "linux"))]
pub use elsewhere::{Config, Host};
#[cfg(target_os = "linux")]
pub use exec::{
    Attachment, Cause, Event, ExecRequest, Exit, Input, Job, JobInfo, Output, PtySize, Stream, Terminal,
};
#[cfg(target_os = "linux")]
pub use files::{Copied, Entry, Files, Found, Hit, Kind, Metadata, Search, WriteOptions};
#[cfg(target_os = "linux")]
pub use guest::{Guest, Info};
#[cfg(target_os = "linux")]
pub use host::{Config, Host, Launch, Mount};
#[cfg(target_os = "linux")]
pub use probe::{Fact, Probe};
#[cfg(target_os = "linux")]
pub use watch::{Watch, WatchEvent, WatchKind};
