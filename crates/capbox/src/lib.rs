//! One API over every place where an AI agent's code can run.
//!
//! Each provider says exactly what it can do, and is held to it: what a provider does not declare does not
//! compile on a typed handle, and is refused at run time before anything is sent.
//!
//! ```no_run
//! use capbox::prelude::*;
//!
//! # async fn run() -> capbox::Result<()> {
//! let client = Client::from_uri("local://")?;
//! let sandbox = client.create(Spec::new().ttl(mins(10)).network(Network::deny())).await?;
//! let out = sandbox.exec("python3 -c 'print(6 * 7)'").env("A", "1").timeout(secs(30)).await?;
//! assert_eq!(out.status.code(), Some(0));
//! if let Some(files) = sandbox.files() {
//!     files.write("/tmp/note", "kept while the sandbox lives").await?;
//! }
//! sandbox.require(Capability::Pty)?; // or a refusal that says why
//! # Ok(())
//! # }
//! ```
//!
//! # Where to look
//!
//! * [`prelude`]: what most programs need.
//! * [`api`]: clients, sandboxes, processes, files.
//! * [`spec`]: what can be asked for.
//! * [`capability`]: the table of rows, answers and flags.
//! * [`Registry`] and [`plan`]: which provider can do what.
//! * [`provider`]: the interface for new providers.
//! * one module per provider that is compiled in, such as `capbox::local`.

mod builtin;
pub mod plan;
mod registry;

pub use capbox_core::{api, capability, emulate, error, provider, spec};

pub use self::api::{Client, Sandbox};
pub use self::builtin::*;
pub use self::capability::Capability;
pub use self::error::{Error, ErrorKind, Result};
pub use self::registry::{FromUri, Registry};

/// What most programs need.
pub mod prelude {
    use std::time::Duration;

    pub use crate::api::{
        AnyClient, AnySandbox, Client, Event, ExitStatus, Files, Output, OutputStream, Process, Pty, Sandbox,
        Signal,
    };
    pub use crate::capability::flags::Isolation;
    pub use crate::capability::{Capability, Level};
    pub use crate::error::{Error, ErrorKind};
    pub use crate::registry::{FromUri, Registry};
    pub use crate::spec::{Env, Labels, Mount, Network, Program, SandboxPath, Spec, Stdin, TerminalSize};

    /// `n` seconds.
    pub const fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    /// `n` minutes.
    pub const fn mins(n: u64) -> Duration {
        Duration::from_secs(n * 60)
    }
}
