//! Options of exec, by wrapping the program.

use std::ffi::{OsStr, OsString};
use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::shell;
use crate::api::{Event, ExitStatus, Output};
use crate::capability::answer::EmulateOption;
use crate::capability::cap;
use crate::error::{Error, ErrorKind, Result};
use crate::provider::Events;
use crate::spec::{Command, Env, Program, SandboxPath};

/// A program, and what is to be done before it starts: the part of a provider's request that [`WrapCwd`],
/// [`WrapEnv`] and [`WrapTimeout`] write to, in any order.
///
/// A provider whose requests take nothing but a program keeps it in its request, which is `AsMut<Wrapped>`; sends
/// [`argv`](Self::argv); and hands what came of it through [`output`](Self::output) or [`events`](Self::events),
/// which know the wrapper's own failures from the program's.
///
/// The wrapper, from the outside: enter the folder, start the clock, set the variables, become the program. So
/// none of the wrapper's tools is looked up in a `PATH`, or runs with an `LD_PRELOAD`, that is meant for the program.
#[derive(Clone, Debug)]
pub struct Wrapped {
    program: Program,
    cwd: Option<SandboxPath>,
    env: Env,
    timeout: Option<Duration>,
    report: Option<String>,
    /// Told by the wrapper alone.
    token: String,
    /// Before the program is started.
    made: Instant,
}

/// `exec.cwd` by `cd`.
///
/// # Loss
///
/// "by `cd` in a shell; `PWD` and `OLDPWD` are set"
pub enum WrapCwd {}

/// `exec.env` by `env`.
///
/// # Loss
///
/// "by `env`; the values pass through a command line inside, where other processes can read them for a moment"
pub enum WrapEnv {}

/// `exec.timeout` by `timeout`: `TERM` when the time is up, `KILL` two seconds later.
///
/// # Loss
///
/// "by `timeout`, which the program can kill; reaches the process group, with `busybox` the one process"
pub enum WrapTimeout {}

impl<B: AsMut<Wrapped>> EmulateOption<cap::ExecCwd, B> for WrapCwd {
    fn apply(body: &mut B, cwd: SandboxPath) {
        body.as_mut().cwd = Some(cwd);
    }
}

impl<B: AsMut<Wrapped>> EmulateOption<cap::ExecEnv, B> for WrapEnv {
    fn apply(body: &mut B, env: Env) {
        body.as_mut().env = env;
    }
}

impl<B: AsMut<Wrapped>> EmulateOption<cap::Timeout, B> for WrapTimeout {
    fn apply(body: &mut B, timeout: Duration) {
        body.as_mut().timeout = Some(timeout);
    }
}

/// Becomes the program from `$3` on, in the folder `$1`; says `$2` where that cannot be entered.
const ENTER: &str = r#"cd -P "$1" 2>/dev/null || { printf '%s\n' "$2" >&2; exit 126; }; shift 2; exec "$@""#;

/// Runs the program from `$2` on, and then writes its exit code to the new file `$1`. The subshell keeps builtins
/// of the same name from running in the program's place.
const REPORT: &str = r#"
f=$1
shift
(exec "$@")
s=$?
rm -f "$f"
(umask 077; set -C; printf '%s\n' "$s" >"$f")
exit "$s"
"#;

/// How long a program has to end after it was told to.
const GRACE: &str = "2";

impl Wrapped {
    /// `program`, with nothing around it.
    pub fn new(program: impl Into<Program>) -> Self {
        Self {
            program: program.into(),
            cwd: None,
            env: Env::new(),
            timeout: None,
            report: None,
            token: shell::token(),
            made: Instant::now(),
        }
    }

    /// The argv to run.
    pub fn argv(&self) -> Result<Vec<OsString>> {
        let mut argv = self.with_env();
        if let Some(timeout) = self.timeout {
            let seconds = timeout.as_secs_f64().to_string();
            argv.splice(0..0, ["timeout".into(), "-k".into(), GRACE.into(), seconds.into()]);
        }
        if let Some(cwd) = &self.cwd {
            let marker = self.marker().into();
            argv.splice(
                0..0,
                ["sh".into(), "-c".into(), ENTER.into(), "sh".into(), shell::path(cwd)?, marker],
            );
        }
        if let Some(file) = &self.report {
            argv.splice(0..0, ["sh".into(), "-c".into(), REPORT.into(), "sh".into(), file.into()]);
        }
        Ok(argv)
    }

    /// The program's output, its status mended: a time that was up is [`ExitStatus::TimedOut`], known by the exit
    /// code and the time since this was made; a folder that could not be entered is an error.
    pub fn output(&self, output: Output) -> Result<Output> {
        self.output_after(output, self.elapsed())
    }

    /// The same for a program that ended `elapsed` after this was made.
    pub(super) fn output_after(&self, mut output: Output, elapsed: Duration) -> Result<Output> {
        // Where the streams are merged, the wrapper's words come by the other one.
        let said = [output.stdout.bytes(), output.stderr.bytes()].iter().any(|said| self.is_marker(said));
        output.status = self.status(output.status, elapsed, said)?;
        Ok(output)
    }

    /// The program's events, the last one mended in the same way.
    pub fn events(&self, events: Box<dyn Events>) -> Box<dyn Events> {
        Box::new(WrappedEvents { wrapped: self.clone(), events, first: Vec::new() })
    }

    /// Have the exit code written to `file`, inside.
    pub(super) fn report_to(&mut self, file: String) {
        self.report = Some(file);
    }

    /// The time since this was made.
    pub(super) fn elapsed(&self) -> Duration {
        self.made.elapsed()
    }

    fn with_env(&self) -> Vec<OsString> {
        let mut argv = match &self.program {
            // As `system` has it: also where the `PATH` that is meant for the program leads to no shell.
            Program::Shell(text) if self.env.get("PATH").is_some() => {
                vec!["/bin/sh".into(), "-c".into(), text.clone()]
            }
            program => program.argv(),
        };
        let name = argv.first().map(|name| name.as_encoded_bytes().to_vec()).unwrap_or_default();
        if self.env.is_empty() {
            if name.starts_with(b"-") && (self.cwd.is_some() || self.report.is_some()) {
                argv.splice(0..0, ["env", "--"].map(OsString::from)); // not an option of the shell's `exec`
            }
            return argv;
        }
        if name.contains(&b'=') {
            argv.splice(0..0, ["/bin/sh", "-c", r#"exec "$@""#, "sh"].map(OsString::from)); // not a variable
        }
        let variable = |(name, value): (&str, &OsStr)| {
            let mut variable = OsString::from(name);
            variable.push("=");
            variable.push(value);
            variable
        };
        ["env".into(), "--".into()].into_iter().chain(self.env.iter().map(variable)).chain(argv).collect()
    }

    /// What the wrapper says where the folder cannot be entered.
    fn marker(&self) -> String {
        let cwd = self.cwd.as_ref().map(ToString::to_string).unwrap_or_default();
        format!("capbox: `{cwd}` cannot be entered [{}]", self.token)
    }

    fn is_marker(&self, said: &[u8]) -> bool {
        self.cwd.is_some() && said.trim_ascii_end() == self.marker().as_bytes()
    }

    /// What `status` after `elapsed` means, given whether the wrapper said that it cannot enter the folder.
    fn status(&self, status: ExitStatus, elapsed: Duration, not_entered: bool) -> Result<ExitStatus> {
        let is_up = self.timeout.is_some_and(|timeout| elapsed >= timeout);
        match (status, &self.cwd) {
            (ExitStatus::Exited(126), Some(cwd)) if not_entered => Err(Error::new(
                ErrorKind::BadWorkingDirectory,
                format!("`{cwd}` is not a folder that can be entered"),
            )),
            // 124 and 137 by GNU `timeout`; BusyBox leaves it at the signal.
            (ExitStatus::Exited(124 | 137 | 143) | ExitStatus::Signaled(9 | 15), _) if is_up => {
                Ok(ExitStatus::TimedOut)
            }
            _ => Ok(status),
        }
    }
}

impl From<Command> for Wrapped {
    fn from(command: Command) -> Self {
        Self::new(command.program)
    }
}

impl AsMut<Self> for Wrapped {
    fn as_mut(&mut self) -> &mut Self {
        self
    }
}

struct WrappedEvents {
    wrapped: Wrapped,
    events: Box<dyn Events>,
    /// Enough of the output to know the wrapper's words.
    first: Vec<u8>,
}

#[async_trait]
impl Events for WrappedEvents {
    async fn next(&mut self) -> Result<Option<Event>> {
        let mut event = self.events.next().await?;
        match &mut event {
            Some(Event::Output { bytes, .. }) => {
                let room = (self.wrapped.marker().len() + 2).saturating_sub(self.first.len());
                self.first.extend(bytes.iter().take(room));
            }
            Some(Event::Exited(exit)) => {
                let said = self.wrapped.is_marker(&self.first);
                exit.status = self.wrapped.status(exit.status, self.wrapped.elapsed(), said)?;
            }
            _ => {}
        }
        Ok(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_wrapping_is_no_matter() {
        let mut one = Wrapped::new(["prog"]);
        let mut other = one.clone();
        let env = Env::from([("A", "b")]);
        WrapCwd::apply(&mut one, "x".into());
        WrapEnv::apply(&mut one, env.clone());
        WrapTimeout::apply(&mut one, Duration::from_millis(1500));
        WrapTimeout::apply(&mut other, Duration::from_millis(1500));
        WrapEnv::apply(&mut other, env);
        WrapCwd::apply(&mut other, "x".into());
        let argv = one.argv().unwrap();
        assert_eq!(argv, other.argv().unwrap());
        assert_eq!(argv[4], "./x");
        assert_eq!(argv[6..], ["timeout", "-k", "2", "1.5", "env", "--", "A=b", "prog"]);
    }

    #[test]
    fn nothing_around_it() {
        assert_eq!(Wrapped::new("a b").argv().unwrap(), ["sh", "-c", "a b"]);
        assert_eq!(Wrapped::new(["a b"]).argv().unwrap(), ["a b"]);
        assert_eq!(Wrapped::new(["-x=y"]).argv().unwrap(), ["-x=y"]);
    }

    #[test]
    fn the_time_is_up_only_when_it_is() {
        let mut wrapped = Wrapped::new(["prog"]);
        WrapTimeout::apply(&mut wrapped, Duration::from_secs(1));
        let status = |status, millis| wrapped.status(status, Duration::from_millis(millis), false).unwrap();
        assert_eq!(status(ExitStatus::Exited(124), 1001), ExitStatus::TimedOut);
        assert_eq!(status(ExitStatus::Signaled(15), 1001), ExitStatus::TimedOut);
        assert_eq!(status(ExitStatus::Exited(124), 900), ExitStatus::Exited(124));
        assert_eq!(status(ExitStatus::Exited(1), 1001), ExitStatus::Exited(1));
    }
}
