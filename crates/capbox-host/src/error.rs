use std::io;
use std::path::PathBuf;

/// What a call of this crate can fail with.
///
/// Each kind names what it is about; where something can be done about it, `hint` says what.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A sandbox, process or file that is not there.
    #[error("there is no {what} `{name}`")]
    NotFound {
        /// What was looked for: `sandbox`, `process`, `file`.
        what: &'static str,
        /// Its name or id.
        name: String,
    },
    /// A sandbox or file that is there already.
    #[error("there is a {what} `{name}` already")]
    AlreadyExists {
        /// What was to be made.
        what: &'static str,
        /// Its name or id.
        name: String,
    },
    /// A path of which a part, or the end, should be a folder and is not.
    #[error("`{path}` is not a folder")]
    NotADirectory {
        /// The path, lossily as text.
        path: String,
    },
    /// A folder where a file is wanted.
    #[error("`{path}` is a folder")]
    IsADirectory {
        /// The path, lossily as text.
        path: String,
    },
    /// A folder that should be empty and is not.
    #[error("the folder `{path}` is not empty")]
    NotEmpty {
        /// The path, lossily as text.
        path: String,
    },
    /// A FIFO, socket or device where a regular file or folder is wanted.
    #[error("`{path}` is a {kind}, not a regular file or folder")]
    NotRegular {
        /// The path, lossily as text.
        path: String,
        /// What it is.
        kind: &'static str,
    },
    /// The code's user may not do this, or the caller may not on the host.
    #[error("permission denied: {what}")]
    Permission {
        /// What was tried.
        what: String,
    },
    /// A path that leads to what is no file of the sandbox: `/proc` and its like, or out of a copy's destination.
    #[error("`{path}` leads outside the sandbox's files")]
    OutsideSandbox {
        /// The path, lossily as text.
        path: String,
    },
    /// A disk or a quota is full.
    #[error("no space left: {what}")]
    NoSpace {
        /// What was tried.
        what: String,
    },
    /// More than the caller asked for at most.
    #[error("`{path}` has {size} bytes, more than the limit of {limit}")]
    TooLarge {
        /// The path, lossily as text.
        path: String,
        /// How many bytes there are.
        size: u64,
        /// How many were allowed.
        limit: u64,
    },
    /// The sandbox has ended.
    #[error("the sandbox `{id}` is gone{}", if *.time_up { ": its time to live was up" } else { "" })]
    Gone {
        /// Its id.
        id: String,
        /// Whether its time to live was up by then.
        time_up: bool,
    },
    /// The process has ended.
    #[error("the process `{id}` has already ended")]
    Ended {
        /// Its id.
        id: String,
    },
    /// An argument that makes no sense.
    #[error("invalid {name}: {reason}")]
    InvalidArgument {
        /// Which argument.
        name: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// Something that this host, this process or this way of calling cannot do.
    #[error("{what} cannot be had")]
    Unsupported {
        /// What was asked for.
        what: String,
        /// What to do about it.
        hint: String,
    },
    /// The sandbox could not be built.
    #[error("cannot create a sandbox: {step}: {source}")]
    Launch {
        /// What was tried.
        step: String,
        /// What to do about it; empty if nothing is known.
        hint: String,
        /// Why it failed.
        source: io::Error,
    },
    /// A command could not be started.
    #[error("{}", not_started(.what, *.stage, .source))]
    Spawn {
        /// What it is about: the program, or the folder or the user that was asked for.
        what: String,
        /// Where it failed.
        stage: SpawnStage,
        /// Why.
        source: io::Error,
    },
    /// The folder that keeps sandboxes cannot be used.
    #[error("the folder that keeps sandboxes, `{path}`, cannot be used: {reason}")]
    State {
        /// The folder.
        path: String,
        /// Why not.
        reason: String,
    },
    /// The sandbox was made by another version of this library.
    #[error("sandbox `{id}` speaks protocol version {guest}, this library speaks {host}")]
    Version {
        /// The sandbox.
        id: String,
        /// The version that its guest speaks.
        guest: u16,
        /// The version that this library speaks.
        host: u16,
    },
    /// Anything else.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
}

impl Error {
    /// What to do about it, if anything is known.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Unsupported { hint, .. } | Self::Launch { hint, .. } if !hint.is_empty() => Some(hint),
            Self::State { .. } => Some("set `CAPBOX_STATE_DIR` to the absolute path of a folder of your own"),
            Self::Spawn { stage: SpawnStage::Process, source, .. }
                if source.kind() == io::ErrorKind::WouldBlock =>
            {
                Some("end some, or create the sandbox with a higher limit")
            }
            Self::Version { .. } => Some("destroy the sandbox with the version that made it, or reap it"),
            // Code of a sandbox that has this user's id keeps many descriptors on their way, but fewer than this user may
            // have at the most. A library does not raise the limits of its process by itself.
            Self::Io { source, .. } if source.raw_os_error() == Some(TOO_MANY_ON_THEIR_WAY) => Some(
                "raise this process's soft limit on open files to the hard one: programs of this user, perhaps in a sandbox, \
                 have as many on their way through sockets",
            ),
            _ => None,
        }
    }
}

/// `ETOOMANYREFS`.
const TOO_MANY_ON_THEIR_WAY: i32 = 109;

/// Where starting a command failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpawnStage {
    /// The folder to start in.
    Cwd,
    /// The program: not found (`ENOENT`; a shell would answer 127), or not to be executed (else; 126).
    Program,
    /// The interpreter that the program's first line names is not there.
    Interpreter,
    /// The user.
    User,
    /// Creating the process: most often the limit on their number (`EAGAIN`).
    Process,
    /// The terminal.
    Terminal,
    /// The request itself.
    Request,
}

/// Why a command could not be started, in the words of whoever asked for it.
fn not_started(what: &str, stage: SpawnStage, source: &io::Error) -> String {
    use io::ErrorKind::{IsADirectory, NotADirectory, NotFound, PermissionDenied, WouldBlock};
    match (stage, source.kind()) {
        (SpawnStage::Cwd, NotFound) => format!("there is no folder `{what}` in the sandbox"),
        (SpawnStage::Cwd, NotADirectory) => format!("`{what}` in the sandbox is not a folder"),
        (SpawnStage::Cwd, _) => format!("the folder `{what}` of the sandbox cannot be entered: {source}"),
        (SpawnStage::Program, NotFound) => format!("there is no program `{what}` in the sandbox"),
        (SpawnStage::Program, PermissionDenied | IsADirectory) => format!("`{what}` may not be executed"),
        (SpawnStage::Program, _) => format!("`{what}` cannot be executed: {source}"),
        (SpawnStage::Interpreter, _) => {
            format!("`{what}` cannot be executed: the interpreter that its first line names is not there")
        }
        (SpawnStage::User, NotFound) => format!("there is no user `{what}` in the sandbox"),
        (SpawnStage::User, _) => format!("commands cannot run as the user `{what}` in the sandbox"),
        (SpawnStage::Process, WouldBlock) => {
            format!("`{what}` cannot be started: the sandbox has as many processes as it may")
        }
        (SpawnStage::Terminal, _) => format!("a terminal for `{what}` cannot be made: {source}"),
        (SpawnStage::Process | SpawnStage::Request, _) => format!("`{what}` cannot be started: {source}"),
    }
}

/// The result of a call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Says what was tried when a call of the system fails.
pub(crate) trait Context<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T>;
    /// For files on the host: the path is named, and the usual reasons are told apart.
    fn on(self, path: &std::path::Path) -> Result<T>;
}

impl<T, E: Into<io::Error>> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Error::Io { what: what(), source: error.into() })
    }

    fn on(self, path: &std::path::Path) -> Result<T> {
        self.map_err(|error| {
            from_errno(error.into(), "file or folder", &PathBuf::from(path).to_string_lossy())
        })
    }
}

/// The kind that an error of the system means when it is about `name`.
pub(crate) fn from_errno(error: io::Error, what: &'static str, name: &str) -> Error {
    let name = name.to_owned();
    match error.kind() {
        io::ErrorKind::NotFound => Error::NotFound { what, name },
        io::ErrorKind::AlreadyExists => Error::AlreadyExists { what, name },
        io::ErrorKind::NotADirectory => Error::NotADirectory { path: name },
        io::ErrorKind::IsADirectory => Error::IsADirectory { path: name },
        io::ErrorKind::DirectoryNotEmpty => Error::NotEmpty { path: name },
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            Error::Permission { what: format!("`{name}`: {error}") }
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            Error::NoSpace { what: format!("`{name}`") }
        }
        _ => Error::Io { what: format!("`{name}`"), source: error },
    }
}
