//! Exec by the guest: a connection to the program that is process 1 of the container, and what its failures mean.

use std::sync::Arc;
use std::time::Duration;

use bollard::Docker as Api;
use bollard::models::ExecConfig;
use capbox_core::provider::*;
use capbox_guest::client::{Admitted as Known, Error as GuestError, Relay};
use capbox_guest::proto::{Refusal, Stage};
use tokio::time::timeout;

use super::frames::{Said, Stdout};
use super::hijack::{self, Address};
use crate::engine::Engine;
use crate::error::is_absent;
use crate::program;

/// Connect to the guest of a container, by a relay that the engine starts beside it.
///
/// The connection ends with the last clone of what this gives and the last of what came of it.
pub(crate) async fn connect(
    api: &Api,
    address: &Address,
    container: &str,
) -> std::result::Result<Relay, NotConnected> {
    let what = "the program of capbox in the container";
    let config = ExecConfig {
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        cmd: Some([program::PATH, "relay"].map(str::to_owned).to_vec()),
        user: Some("0:0".to_owned()),
        working_dir: Some("/".to_owned()),
        ..ExecConfig::default()
    };
    let connect = async {
        let made = api.create_exec(container, config).await.map_err(NotConnected::Engine)?;
        let started = hijack::start(api, address, &made.id, false, what).await;
        let (reader, writer) = started.map_err(NotConnected::Other)?;
        let said = Said::default();
        let relay = Relay::connect(Stdout::new(reader, said.clone()), writer).await;
        relay.map_err(|error| NotConnected::Other(no_relay(error, &said, what)))
    };
    timeout(DEFAULT_REQUEST_TIMEOUT, connect).await.unwrap_or_else(|_| {
        Err(NotConnected::Other(Error::new(ErrorKind::Timeout, format!("{what} does not answer"))))
    })
}

/// Why there is no connection.
pub(crate) enum NotConnected {
    /// The engine starts nothing in the container.
    Engine(bollard::errors::Error),
    Other(Error),
}

/// Why there is no relay, given what it or the engine said instead of a greeting.
fn no_relay(error: GuestError, said: &Said, what: &str) -> Error {
    let said = said.text();
    let said = if said.starts_with("capbox") { "" } else { said.as_str() };
    let reason = if said.is_empty() { error.to_string() } else { said.to_owned() };
    let kind = match error {
        GuestError::Lost { .. } if said.is_empty() => ErrorKind::ConnectionLost,
        _ => ErrorKind::Provider,
    };
    // Nothing has been asked of it yet.
    Error::new(kind, format!("{what} cannot be reached: {reason}"))
        .with_admitted(Admitted::No)
        .with_source(error)
}

/// Where a guest is, for those who ask why it does not answer.
#[derive(Clone, Debug)]
pub(crate) struct Whereabouts {
    pub(crate) engine: Arc<Engine>,
    pub(crate) id: String,
    pub(crate) container: String,
}

impl Whereabouts {
    /// The one error for a failed request to the guest, which was about `what`. Where the connection is lost because the
    /// container has ended, the error says so.
    pub(crate) async fn failed(&self, error: GuestError, what: &str) -> Error {
        let lost = matches!(error, GuestError::Lost { .. });
        let error = from_guest(error, what);
        if !lost || self.is_running().await {
            return error;
        }
        let admitted = error.admitted();
        Error::new(ErrorKind::SandboxGone, format!("the sandbox `{}` has ended", self.id))
            .with_admitted(admitted)
            .with_source(error)
    }

    /// Whether the container runs, as far as the engine can be asked.
    async fn is_running(&self) -> bool {
        /// How long the end of a container may take to be noted, after that of its process 1.
        const NOTED_WITHIN: u32 = 20;
        for _ in 0..NOTED_WITHIN {
            match self.engine.raw.inspect_container(&self.container, None).await {
                Ok(facts) if facts.state.as_ref().and_then(|state| state.running) == Some(false) => {
                    return false;
                }
                Ok(_) => {}
                Err(error) => return !is_absent(&error),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        true
    }
}

/// The one error for a failed request to the guest, which was about `what`: a path, a process, a program.
pub(crate) fn from_guest(error: GuestError, what: &str) -> Error {
    let (kind, message) = match &error {
        GuestError::Lost { .. } => (ErrorKind::ConnectionLost, error.to_string()),
        GuestError::Version => {
            (ErrorKind::Conflict, "the sandbox is of another version of capbox".to_owned())
        }
        GuestError::Spawn { stage, errno } => {
            let (kind, failed) = not_started(*stage, *errno);
            (kind, format!("start `{what}`: {failed}: {}", reason(*errno).1))
        }
        GuestError::Refused(refusal) => refused(*refusal, what),
        GuestError::File { errno } => {
            let (kind, text) = reason(*errno);
            (kind, format!("`{what}`: {text}"))
        }
        GuestError::Outside => {
            (ErrorKind::PermissionDenied, format!("`{what}` leads outside the sandbox's files"))
        }
        GuestError::Special { .. } => {
            (ErrorKind::NotARegularFile, format!("`{what}` is neither a regular file nor a folder"))
        }
        GuestError::TooLarge { .. } | GuestError::TooMuch(_) => {
            (ErrorKind::InvalidArgument, format!("`{what}`: {error}"))
        }
        _ => (ErrorKind::Provider, format!("`{what}`: {error}")),
    };
    let admitted = match &error {
        GuestError::Lost { admitted, .. } => match admitted {
            Known::No => Admitted::No,
            Known::Unknown => Admitted::Unknown,
            Known::Yes => Admitted::Yes,
        },
        // The guest answered, or was not asked.
        _ => Admitted::No,
    };
    let mapped = Error::new(kind, message).with_admitted(admitted);
    match &error {
        GuestError::Version => mapped.with_hint("destroy the sandbox with the version that made it"),
        GuestError::TooLarge { .. } => mapped.with_hint("read a range, or use `download`"),
        _ => mapped,
    }
    .with_source(error)
}

fn not_started(stage: Stage, errno: i32) -> (ErrorKind, &'static str) {
    const ENOENT: i32 = 2;
    match stage {
        Stage::Cwd => (ErrorKind::BadWorkingDirectory, "enter the folder"),
        Stage::Program if errno == ENOENT => (ErrorKind::ProgramNotFound, "find the program"),
        Stage::Program => (ErrorKind::ProgramNotExecutable, "execute the program"),
        Stage::Interpreter => (ErrorKind::ProgramNotExecutable, "find the interpreter of the program"),
        Stage::User => (ErrorKind::InvalidArgument, "become the user"),
        Stage::Request => (ErrorKind::InvalidArgument, "understand the request"),
        Stage::Terminal => (ErrorKind::InvalidArgument, "make the terminal"),
        Stage::Process => (ErrorKind::Provider, "make the process"),
    }
}

fn refused(refusal: Refusal, what: &str) -> (ErrorKind, String) {
    match refusal {
        Refusal::NotFound => (ErrorKind::NotFound, format!("there is no process `{what}`")),
        Refusal::Ended => (ErrorKind::Conflict, format!("the process `{what}` has ended")),
        Refusal::Invalid => {
            (ErrorKind::InvalidArgument, format!("`{what}`: the guest cannot make sense of that"))
        }
        Refusal::Unsupported => (ErrorKind::NotSupported, format!("the process `{what}` has no such thing")),
        Refusal::Busy => (ErrorKind::Conflict, format!("`{what}`: too much at once")),
        Refusal::Stranger => {
            (ErrorKind::PermissionDenied, "the guest does not take orders from here".to_owned())
        }
        Refusal::Unbooted => (ErrorKind::Conflict, "the sandbox has not been told what it is for".to_owned()),
    }
}

/// What an error number of Linux means, whatever this machine runs.
fn reason(errno: i32) -> (ErrorKind, String) {
    use ErrorKind::{
        AlreadyExists, Conflict, InvalidArgument, IsADirectory, NotADirectory, NotFound, PermissionDenied,
        Provider, StorageFull,
    };
    let (kind, text) = match errno {
        1 | 13 => (PermissionDenied, "permission denied"),
        2 => (NotFound, "no such file or folder"),
        11 => (Conflict, "there is no room for another process"),
        12 => (Conflict, "out of memory"),
        16 | 26 => (Conflict, "it is in use"),
        17 => (AlreadyExists, "it is there already"),
        18 => (Conflict, "it is on another file system"),
        20 => (NotADirectory, "it is not a folder"),
        21 => (IsADirectory, "it is a folder"),
        22 => (InvalidArgument, "it makes no sense"),
        27 | 28 | 122 => (StorageFull, "no space is left"),
        30 => (PermissionDenied, "the file system is read-only"),
        36 => (InvalidArgument, "the name is too long"),
        39 => (Conflict, "the folder is not empty"),
        40 => (Conflict, "too many links"),
        other => return (Provider, format!("error {other}")),
    };
    (kind, text.to_owned())
}
