//! The documents of `--json`. `docs/cli-json.md` describes them, and a test holds it to that.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use capbox::Error;
use capbox::api::{Captured, ExitStatus};
use capbox::spec::SandboxPath;
use serde::Serialize;

use crate::failure;
use crate::text;

/// Print one document.
pub(crate) fn print(document: &impl Serialize) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    serde_json::to_writer_pretty(&mut stdout, document)?;
    writeln!(stdout)?;
    stdout.flush()
}

/// Print one document of a stream of them, on one line.
pub(crate) fn print_line(document: &impl Serialize) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    serde_json::to_writer(&mut stdout, document)?;
    writeln!(stdout)?;
    stdout.flush()
}

/// Print the document of a failure of `capbox COMMAND`, as that command's documents are printed.
pub(crate) fn print_failure(command: &str, error: &Error, exit_code: u8) -> io::Result<()> {
    let failed = Failed::from(error);
    match command {
        "run" | "exec" => print(&Ended {
            cause: "failed",
            exit_code,
            code: None,
            signal: None,
            stdout: None,
            stderr: None,
            background_remains: false,
            duration: None,
            provider: error.provider(),
            sandbox: None,
            error: Some(failed),
        }),
        "logs" | "watch" => print_line(&Failure { error: failed }),
        _ => print(&Failure { error: failed }),
    }
}

/// Instead of a document.
#[derive(Serialize)]
struct Failure {
    error: Failed,
}

/// The end of a command, or why it did not come to one.
#[derive(Serialize)]
pub(crate) struct Ended<'a> {
    pub(crate) cause: &'static str,
    pub(crate) exit_code: u8,
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) stdout: Option<Stream>,
    pub(crate) stderr: Option<Stream>,
    pub(crate) background_remains: bool,
    pub(crate) duration: Option<f64>,
    pub(crate) provider: Option<&'a str>,
    pub(crate) sandbox: Option<&'a str>,
    pub(crate) error: Option<Failed>,
}

/// One stream of output.
#[derive(Serialize)]
pub(crate) struct Stream {
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
    total: u64,
    truncated: bool,
    cut_at: Option<usize>,
}

impl From<&Captured> for Stream {
    fn from(captured: &Captured) -> Self {
        let Text { text, base64 } = Text::of(captured.bytes());
        Self {
            text,
            base64,
            total: captured.total(),
            truncated: captured.truncated(),
            cut_at: captured.cut_at(),
        }
    }
}

/// Bytes as text; where they are not UTF-8 also as they are.
pub(crate) struct Text {
    pub(crate) text: String,
    pub(crate) base64: Option<String>,
}

impl Text {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self {
            text: String::from_utf8_lossy(bytes).into_owned(),
            base64: std::str::from_utf8(bytes).is_err().then(|| STANDARD.encode(bytes)),
        }
    }
}

/// A path inside a sandbox.
#[derive(Serialize)]
pub(crate) struct PathText {
    pub(crate) path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path_base64: Option<String>,
}

impl From<&SandboxPath> for PathText {
    fn from(path: &SandboxPath) -> Self {
        let Text { text, base64 } = Text::of(path.as_bytes());
        Self { path: text, path_base64: base64 }
    }
}

/// What failed.
#[derive(Serialize)]
pub(crate) struct Failed {
    kind: &'static str,
    message: String,
    hint: Option<String>,
    provider: Option<&'static str>,
    operation: Option<&'static str>,
    capability: Option<&'static str>,
    refusal: Option<&'static str>,
    admitted: &'static str,
    retryable: bool,
    retry_after: Option<f64>,
}

impl From<&Error> for Failed {
    fn from(error: &Error) -> Self {
        Self {
            kind: error.kind().as_str(),
            message: failure::message_of(error),
            hint: failure::hint_of(error),
            provider: error.provider(),
            operation: error.operation(),
            capability: error.capability().map(capbox::Capability::as_str),
            refusal: error.refusal().map(|refusal| refusal.refusal.as_str()),
            admitted: error.admitted().as_str(),
            retryable: error.retryable(),
            retry_after: error.retry_after().map(|after| after.as_secs_f64()),
        }
    }
}

/// The parts of an exit status.
pub(crate) fn status(status: ExitStatus) -> (&'static str, Option<i32>, Option<i32>) {
    (status.cause(), status.code(), status.signal())
}

/// A time as RFC 3339, in UTC.
pub(crate) fn time(time: Option<SystemTime>) -> Option<String> {
    time.map(text::time)
}

/// A length of time in seconds.
pub(crate) fn seconds(length: Duration) -> f64 {
    length.as_secs_f64()
}
