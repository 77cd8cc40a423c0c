//! What callers hold: clients, sandboxes, processes, files.
//!
//! Inside is one erased core; [`Sandbox<P>`](Sandbox) and [`Client<P>`](Client) add only a type. Every call of
//! every row passes one choke point (the file `api/core.rs`), whichever handle it came through.

mod client;
mod core;
pub(crate) mod erased;
mod exec;
mod files;
mod images;
mod metrics;
mod output;
mod ports;
mod process;
mod sandbox;
mod snapshots;
mod volumes;

pub use self::client::{AnyClient, Client, Create};
pub use self::core::Any;
#[doc(hidden)]
pub use self::core::{BaseVTable, ClientCore, Core};
pub use self::exec::{Exec, Pty, Spawn, SpawnBackground, Terminal};
pub use self::files::{
    Entry, EntryKind, FileEvent, FileEventKind, FileEvents, Files, Match, ReadRange, SearchQuery,
    Transferred, WriteOptions,
};
pub use self::images::Progress;
pub use self::metrics::{MetricsStream, Usage};
pub use self::output::{Captured, Event, Exit, ExitStatus, Output, OutputStream, collect};
pub use self::ports::{Ports, Preview, TcpAddress};
pub use self::process::{Killed, Process, ProcessId, ProcessInfo, ProcessState, Signal};
pub use self::sandbox::{AnySandbox, Sandbox, SandboxInfo, SandboxState};
pub use self::snapshots::{SnapshotInfo, Snapshots};
pub use self::volumes::{VolumeInfo, Volumes};

/// A future that can be sent, boxed.
pub(crate) type BoxFuture<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + Send + 'a>>;
