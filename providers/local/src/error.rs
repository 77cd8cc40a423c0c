//! Failures of the host library, as the one error.

use capbox_core::provider::{Admitted, Error, ErrorKind};
use capbox_host::{Error as HostError, SpawnStage};

/// The one error for a failure of the host library.
pub(crate) fn from_host(error: HostError) -> Error {
    let kind = match &error {
        HostError::NotFound { .. } => ErrorKind::NotFound,
        HostError::AlreadyExists { .. } => ErrorKind::AlreadyExists,
        HostError::NotADirectory { .. } => ErrorKind::NotADirectory,
        HostError::IsADirectory { .. } => ErrorKind::IsADirectory,
        HostError::NotRegular { .. } => ErrorKind::NotARegularFile,
        HostError::Permission { .. } | HostError::OutsideSandbox { .. } | HostError::State { .. } => {
            ErrorKind::PermissionDenied
        }
        HostError::NoSpace { .. } => ErrorKind::StorageFull,
        HostError::Gone { .. } => ErrorKind::SandboxGone,
        HostError::Ended { .. } | HostError::NotEmpty { .. } | HostError::Version { .. } => {
            ErrorKind::Conflict
        }
        HostError::InvalidArgument { .. } | HostError::TooLarge { .. } => ErrorKind::InvalidArgument,
        HostError::Unsupported { .. } => ErrorKind::NotSupported,
        HostError::Spawn { stage, source, .. } => spawn_kind(*stage, source),
        _ => ErrorKind::Provider,
    };
    let admitted = match &error {
        HostError::Gone { .. } | HostError::Io { .. } => Admitted::Unknown,
        // The guest answered, or nobody was asked: nothing was done.
        _ => Admitted::No,
    };
    let hint = error.hint().map(str::to_owned);
    let mapped = Error::new(kind, error.to_string()).with_admitted(admitted).with_source(error);
    match hint {
        Some(hint) => mapped.with_hint(hint),
        None => mapped,
    }
}

fn spawn_kind(stage: SpawnStage, source: &std::io::Error) -> ErrorKind {
    match stage {
        SpawnStage::Cwd => ErrorKind::BadWorkingDirectory,
        SpawnStage::Program if source.kind() == std::io::ErrorKind::NotFound => ErrorKind::ProgramNotFound,
        SpawnStage::Program | SpawnStage::Interpreter => ErrorKind::ProgramNotExecutable,
        SpawnStage::User | SpawnStage::Request | SpawnStage::Terminal => ErrorKind::InvalidArgument,
        _ => ErrorKind::Provider,
    }
}
