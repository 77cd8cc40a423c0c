//! Failures of this provider.

use capbox_core::provider::{Admitted, Error, ErrorKind, ProcessId};

/// The sandbox has ended.
pub(crate) fn gone(id: &str) -> Error {
    Error::new(ErrorKind::SandboxGone, format!("the sandbox `{id}` is gone")).with_admitted(Admitted::No)
}

/// There is no such thing in this client.
pub(crate) fn not_found(what: &str, id: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no {what} `{id}` in this client"))
        .with_hint("each client keeps its own; use the one that made it, or a clone of that")
}

/// The sandbox has started no such process.
pub(crate) fn no_process(id: &ProcessId) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no process `{id}`"))
}
