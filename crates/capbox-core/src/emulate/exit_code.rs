//! Exit codes that travel by a file, for providers that tell output but no exit code.

use std::sync::Arc;

use async_trait::async_trait;

use super::shell;
use super::wrap::Wrapped;
use crate::api::{ExitStatus, Output, Sandbox, erased};
use crate::capability::answer::Emulate;
use crate::capability::cap;
use crate::capability::rows::ExecOptions;
use crate::error::Result;
use crate::provider::Table;
use crate::spec::Command;

/// What a session can do that runs programs, but never learns how they ended.
#[async_trait]
pub trait RawRun<B>: Send + Sync {
    /// Run to the end. The status is [`ExitStatus::Unknown`]. When the future is dropped, the whole job is killed.
    async fn run_raw(&self, body: B) -> Result<Output>;
}

/// `exec.run` over [`RawRun`]: a shell around the program writes its exit code to a new file in `/tmp` of a name
/// that nobody guesses, and a second command reads that file and removes it.
///
/// A code that cannot be read is [`ExitStatus::Unknown`], never 0. A signal shows as 128 and its number, as in a
/// shell. The request's [`Wrapped`] is the one that `exec.cwd` and the like are put into; this hands the output
/// through [`Wrapped::output`] by itself.
///
/// # Loss
///
/// "a second command for each; needs a shell and `/tmp`; a program that looks for the file can forge its exit code"
pub enum ExitCodeByFile {}

impl<P> Emulate<cap::Run, P> for ExitCodeByFile
where
    P: Table<Session: RawRun<P::Exec>, Exec: AsMut<Wrapped>>,
{
    fn emulate(sandbox: Sandbox<P>) -> Arc<dyn erased::Run> {
        Arc::new(Reporting(sandbox))
    }
}

struct Reporting<P>(Sandbox<P>);

/// Prints the file `$1` and removes it.
const COLLECT: &str = r#"
cat "$1" && rm -f "$1"
"#;

#[async_trait]
impl<P> erased::Run for Reporting<P>
where
    P: Table<Session: RawRun<P::Exec>, Exec: AsMut<Wrapped>>,
{
    async fn run(&self, command: Command, options: ExecOptions) -> Result<Output> {
        let session = self.0.core().session::<P>();
        let file = format!("/tmp/.capbox-{}", shell::token());
        let mut body = erased::lower::<P>(command, options)?;
        body.as_mut().report_to(file.clone());
        let wrapped = body.as_mut().clone();
        let mut output = session.run_raw(body).await?;
        let elapsed = wrapped.elapsed();
        let collect = Command::new(shell::program(COLLECT, [file.into()]));
        let said = session.run_raw(P::Exec::from(collect)).await?;
        output.status = exit_code(said.stdout.bytes()).map_or(ExitStatus::Unknown, ExitStatus::Exited);
        wrapped.output_after(output, elapsed)
    }
}

/// The exit code that the file holds: a decimal number up to 255 on a line.
fn exit_code(file: &[u8]) -> Option<i32> {
    let text = std::str::from_utf8(file).ok()?.trim_end();
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse::<u8>().ok()).flatten().map(i32::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes() {
        assert_eq!(exit_code(b"0\n"), Some(0));
        assert_eq!(exit_code(b"137\n"), Some(137));
        for wrong in [&b""[..], b"\n", b"256\n", b"-1\n", b"+1\n", b"0\n0\n", b"cat: no such file\n"] {
            assert_eq!(exit_code(wrong), None, "{wrong:?}");
        }
    }
}
