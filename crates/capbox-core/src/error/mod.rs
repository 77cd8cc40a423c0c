//! The one error: what failed, on which provider, whether it may have happened, and what to do.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use crate::capability::flags::Isolation;
use crate::capability::{Capability, NotSupported};

/// The result of every fallible call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of failure it is. Branch on this, never on the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The provider, this host or this sandbox does not honour what was asked; nothing was sent.
    NotSupported,
    /// An argument is wrong; nothing was sent.
    InvalidArgument,
    /// There is no such sandbox, process, file or snapshot.
    NotFound,
    /// There is one already.
    AlreadyExists,
    /// A folder is needed and something else is there.
    NotADirectory,
    /// A file is needed and a folder is there.
    IsADirectory,
    /// The path is a device, pipe or socket, which read and write refuse.
    NotARegularFile,
    /// The disk is full; what was there before is unchanged.
    StorageFull,
    /// The folder to start in cannot be entered.
    BadWorkingDirectory,
    /// The program is not there (126 and 127 as in a shell: this is 127).
    ProgramNotFound,
    /// The program is there and cannot be executed (126).
    ProgramNotExecutable,
    /// The credentials are missing or wrong.
    Unauthenticated,
    /// The credentials, the policy or the file system forbid it.
    PermissionDenied,
    /// Too many requests.
    RateLimited,
    /// The account's limits are reached.
    QuotaExceeded,
    /// The phase took too long.
    Timeout,
    /// The sandbox ended while the call ran, or before.
    SandboxGone,
    /// The connection broke: the sandbox may be alive.
    ConnectionLost,
    /// The state does not allow it now.
    Conflict,
    /// The provider failed in its own way.
    Provider,
}

impl ErrorKind {
    /// A stable word for output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotSupported => "not-supported",
            Self::InvalidArgument => "invalid-argument",
            Self::NotFound => "not-found",
            Self::AlreadyExists => "already-exists",
            Self::NotADirectory => "not-a-directory",
            Self::IsADirectory => "is-a-directory",
            Self::NotARegularFile => "not-a-regular-file",
            Self::StorageFull => "storage-full",
            Self::BadWorkingDirectory => "bad-working-directory",
            Self::ProgramNotFound => "program-not-found",
            Self::ProgramNotExecutable => "program-not-executable",
            Self::Unauthenticated => "unauthenticated",
            Self::PermissionDenied => "permission-denied",
            Self::RateLimited => "rate-limited",
            Self::QuotaExceeded => "quota-exceeded",
            Self::Timeout => "timeout",
            Self::SandboxGone => "sandbox-gone",
            Self::ConnectionLost => "connection-lost",
            Self::Conflict => "conflict",
            Self::Provider => "provider",
        }
    }

    /// What is known of the effect where nothing else was said.
    const fn admitted(self) -> Admitted {
        match self {
            Self::Timeout | Self::SandboxGone | Self::ConnectionLost | Self::Provider => Admitted::Unknown,
            _ => Admitted::No,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Whether the provider may have done what was asked, although the call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Admitted {
    /// It did.
    Yes,
    /// It did not: it is safe to try again.
    No,
    /// It may have.
    Unknown,
}

impl Admitted {
    /// `yes`, `no` or `unknown`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::Unknown => "unknown",
        }
    }
}

/// A failure. See [`ErrorKind`] for what to branch on.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    hint: Option<String>,
    provider: Option<&'static str>,
    operation: Option<&'static str>,
    refusal: Option<NotSupported>,
    admitted: Admitted,
    retryable: bool,
    retry_after: Option<Duration>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// A failure of `kind`; the message says what failed, in the imperative or as a fact, without a full stop.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            hint: None,
            provider: None,
            operation: None,
            refusal: None,
            admitted: kind.admitted(),
            retryable: matches!(kind, ErrorKind::RateLimited),
            retry_after: None,
            source: None,
        }))
    }

    /// `argument` is wrong: the message says how.
    pub fn invalid_argument(argument: &str, message: impl fmt::Display) -> Self {
        Self::new(ErrorKind::InvalidArgument, format!("`{argument}`: {message}"))
    }

    pub(crate) fn isolation_too_weak(provider: &str, given: Isolation, floor: Isolation) -> Self {
        Self::new(
            ErrorKind::NotSupported,
            format!("`{provider}` isolates by `{given}`, which is weaker than the required `{floor}`"),
        )
        .with_hint("`capbox plan --isolation` lists providers that are strong enough")
    }

    /// The same failure in other words.
    #[must_use]
    pub fn with_message(mut self, message: impl Into<String>) -> Self {
        self.0.message = message.into();
        self
    }

    /// Add what to do about it.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Add what caused it.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Say whether the provider may have done it.
    #[must_use]
    pub fn with_admitted(mut self, admitted: Admitted) -> Self {
        self.0.admitted = admitted;
        self
    }

    /// Say that the same call may succeed later, and when at the soonest.
    #[must_use]
    pub fn with_retry(mut self, after: Option<Duration>) -> Self {
        self.0.retryable = true;
        self.0.retry_after = after;
        self
    }

    /// Say where it happened, unless it is said already.
    #[must_use]
    pub fn at(mut self, provider: &'static str, operation: &'static str) -> Self {
        self.0.provider.get_or_insert(provider);
        self.0.operation.get_or_insert(operation);
        self
    }

    /// What to branch on.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What failed.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    /// The provider's id.
    pub fn provider(&self) -> Option<&'static str> {
        self.0.refusal.map(|r| r.provider).or(self.0.provider)
    }

    /// The operation: the id of a row, or `create`, `destroy`, …
    pub fn operation(&self) -> Option<&'static str> {
        self.0.operation
    }

    /// The row that is not supported.
    pub fn capability(&self) -> Option<Capability> {
        self.0.refusal.map(|r| r.capability)
    }

    /// The refusal, for [`ErrorKind::NotSupported`].
    pub fn refusal(&self) -> Option<NotSupported> {
        self.0.refusal
    }

    /// Whether the provider may have done it.
    pub fn admitted(&self) -> Admitted {
        self.0.admitted
    }

    /// True where the same call may succeed later.
    pub fn retryable(&self) -> bool {
        self.0.retryable
    }

    /// How long to wait before trying again, where the provider said so.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }
}

impl From<NotSupported> for Error {
    fn from(refusal: NotSupported) -> Self {
        let mut error = Self::new(ErrorKind::NotSupported, refusal.to_string());
        error.0.refusal = Some(refusal);
        error
    }
}

/// What failed comes first; where it did comes after that, unless the message names it.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.refusal, self.0.operation, self.0.provider) {
            (None, Some(operation), Some(provider)) if self.0.kind != ErrorKind::InvalidArgument => {
                write!(f, "{} (`{operation}` on `{provider}`)", self.0.message)
            }
            _ => f.write_str(&self.0.message),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("message", &self.0.message)
            .field("provider", &self.provider())
            .field("operation", &self.0.operation)
            .field("capability", &self.capability())
            .field("hint", &self.0.hint)
            .field("admitted", &self.0.admitted)
            .field("retryable", &self.0.retryable)
            .field("source", &self.0.source)
            .finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_ref().map(|source| source.as_ref() as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_comes_first() {
        let error = Error::new(ErrorKind::NotFound, "there is no file `x`").at("here", "files.read");
        assert_eq!(error.to_string(), "there is no file `x` (`files.read` on `here`)");
        let wrong = Error::invalid_argument("ttl", "must be greater than zero").at("here", "create");
        assert_eq!(wrong.to_string(), "`ttl`: must be greater than zero");
    }
}
