//! Why an operation on the disk failed.

use std::io;

use capbox_core::provider::{Error, ErrorKind, SandboxPath};

/// The result of an operation on the disk.
pub(crate) type Outcome<T> = Result<T, Fault>;

/// Why an operation on the disk failed; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    NotFound,
    Exists,
    NotADirectory,
    IsADirectory,
    NotRegular,
    NotEmpty,
    IntoItself,
    Root,
    TooManyLinks,
    TooLong,
    Full,
}

impl Fault {
    /// The one error, about `path`.
    pub(crate) fn at(self, path: &SandboxPath) -> Error {
        let error = Error::new(self.kind(), format!("`{path}`: {}", self.text()));
        match self {
            Self::Full => error.with_hint("create the sandbox with a larger `disk`"),
            _ => error,
        }
    }

    /// The error that the interpreter shows.
    pub(crate) fn io(self) -> bashkit::Error {
        let kind = match self {
            Self::NotFound => io::ErrorKind::NotFound,
            Self::Exists => io::ErrorKind::AlreadyExists,
            Self::NotADirectory => io::ErrorKind::NotADirectory,
            Self::Root => io::ErrorKind::PermissionDenied,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, self.text()).into()
    }

    fn kind(self) -> ErrorKind {
        match self {
            Self::NotFound => ErrorKind::NotFound,
            Self::Exists => ErrorKind::AlreadyExists,
            Self::NotADirectory => ErrorKind::NotADirectory,
            Self::IsADirectory => ErrorKind::IsADirectory,
            Self::NotRegular => ErrorKind::NotARegularFile,
            Self::NotEmpty | Self::TooManyLinks => ErrorKind::Conflict,
            Self::IntoItself | Self::TooLong => ErrorKind::InvalidArgument,
            Self::Root => ErrorKind::PermissionDenied,
            Self::Full => ErrorKind::StorageFull,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::NotFound => "no such file or directory",
            Self::Exists => "file exists",
            Self::NotADirectory => "not a directory",
            Self::IsADirectory => "is a directory",
            Self::NotRegular => "not a regular file",
            Self::NotEmpty => "directory not empty",
            Self::IntoItself => "cannot be moved into itself",
            Self::Root => "the root cannot be replaced or removed",
            Self::TooManyLinks => "too many levels of symbolic links",
            Self::TooLong => "the name is longer than 255 bytes, or the path deeper than 128 folders",
            Self::Full => "no space left on device",
        }
    }
}
