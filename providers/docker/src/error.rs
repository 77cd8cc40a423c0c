//! Answers of the engine, as the one error.

use bollard::errors::Error as EngineError;
use capbox_core::provider::{Admitted, Error, ErrorKind};

/// The one error for a failed request, which was for `what`: "the image `x`", "the sandbox `y`".
pub(crate) fn from_engine(error: EngineError, what: &str) -> Error {
    let (kind, message) = match &error {
        EngineError::DockerResponseServerError { status_code, message } => {
            let message = printable(message);
            match status_code {
                400 => (ErrorKind::InvalidArgument, format!("{what}: {message}")),
                401 | 403 => (ErrorKind::PermissionDenied, format!("{what}: {message}")),
                404 => (ErrorKind::NotFound, format!("{what} is not there: {message}")),
                409 => (ErrorKind::Conflict, format!("{what}: {message}")),
                501 => (ErrorKind::NotSupported, format!("{what}: {message}")),
                _ => (ErrorKind::Provider, format!("{what}: the engine fails: {message}")),
            }
        }
        EngineError::DockerStreamError { error } => {
            (ErrorKind::Provider, format!("{what}: {}", printable(error)))
        }
        EngineError::SocketNotFoundError(_) => return unreachable(error),
        EngineError::HyperLegacyError { err } if err.is_connect() => return unreachable(error),
        EngineError::RequestTimeoutError => {
            (ErrorKind::Timeout, format!("{what}: the engine does not answer"))
        }
        EngineError::HyperResponseError { .. }
        | EngineError::HyperLegacyError { .. }
        | EngineError::IOError { .. } => {
            (ErrorKind::ConnectionLost, format!("{what}: the connection to the engine broke: {error}"))
        }
        _ => (ErrorKind::Provider, format!("{what}: {error}")),
    };
    Error::new(kind, message).with_source(error)
}

/// Nobody was there to be asked.
fn unreachable(error: EngineError) -> Error {
    Error::new(ErrorKind::ConnectionLost, format!("no Docker Engine can be reached: {error}"))
        .with_hint("start it, or say where it is by `DOCKER_HOST` or by the key `host` of the URI")
        .with_admitted(Admitted::No)
        .with_source(error)
}

/// True where the engine has nothing of that name.
pub(crate) fn is_absent(error: &EngineError) -> bool {
    matches!(error, EngineError::DockerResponseServerError { status_code: 404, .. })
}

/// True where something of that name is there, or its state forbids it.
pub(crate) fn is_conflict(error: &EngineError) -> bool {
    matches!(error, EngineError::DockerResponseServerError { status_code: 409, .. })
}

/// Text of the engine, some of which comes from images and programs: on one line, and no orders to a terminal.
pub(crate) fn printable(text: &str) -> String {
    text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
