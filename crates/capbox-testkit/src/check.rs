//! What a check comes to: it holds, it fails, or it was left out for a stated reason.

use std::fmt;
use std::panic::Location;

use capbox_core::error::{Error, ErrorKind, Result};

/// The outcome of a check.
pub type Check<T = ()> = Result<T, Fault>;

/// Why a check does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails: the provider does not do what its table says.
    Failed(String),
    /// It was left out: the reason says what it needs.
    Ignored(String),
}

impl Fault {
    /// A failure, with the place of the caller.
    #[track_caller]
    pub fn failed(message: impl fmt::Display) -> Self {
        let place = Location::caller();
        Self::Failed(format!("{message} ({}:{})", place.file(), place.line()))
    }

    /// Left out, since it needs what is not there.
    pub fn ignored(reason: impl Into<String>) -> Self {
        Self::Ignored(reason.into())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(message) => f.write_str(message),
            Self::Ignored(reason) => write!(f, "left out: {reason}"),
        }
    }
}

impl From<Error> for Fault {
    #[track_caller]
    fn from(error: Error) -> Self {
        let hint = error.hint().map(|hint| format!("; hint: {hint}")).unwrap_or_default();
        Self::failed(format!("unexpected {} error: {error}{hint}", error.kind()))
    }
}

impl From<std::io::Error> for Fault {
    #[track_caller]
    fn from(error: std::io::Error) -> Self {
        Self::failed(format!("the test's own input or output failed: {error}"))
    }
}

/// Fail unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if $condition {
        } else {
            return Err($crate::check::Fault::failed(format!($($message)+)));
        }
    };
}

/// Fail unless both are equal.
#[macro_export]
macro_rules! ensure_eq {
    ($left:expr, $right:expr, $($what:tt)+) => {
        match (&$left, &$right) {
            (left, right) => {
                if left != right {
                    return Err($crate::check::Fault::failed(format!(
                        "{}: got {}, expected {}",
                        format!($($what)+), $crate::check::short(left), $crate::check::short(right)
                    )));
                }
            }
        }
    };
}

/// A value for a message, cut where it is long.
pub fn short(value: &impl fmt::Debug) -> String {
    let text = format!("{value:?}");
    match text.char_indices().nth(300) {
        None => text,
        Some((at, _)) => format!("{}… ({} characters)", &text[..at], text.chars().count()),
    }
}

/// Fail unless the call failed in one of these ways.
#[track_caller]
pub fn fails<T: fmt::Debug>(result: Result<T>, kinds: &[ErrorKind]) -> Check<Error> {
    match result {
        Err(error) if kinds.contains(&error.kind()) => Ok(error),
        Err(error) => {
            let got = error.kind();
            Err(Fault::failed(format!("failed as {got}, expected {}: {error}", join(kinds))))
        }
        Ok(value) => {
            Err(Fault::failed(format!("succeeded with {}, expected {}", short(&value), join(kinds))))
        }
    }
}

fn join(kinds: &[ErrorKind]) -> String {
    kinds.iter().map(|kind| kind.as_str()).collect::<Vec<_>>().join(" or ")
}
