//! What one exec sends.

use std::ffi::OsString;
use std::time::Duration;

use bytes::Bytes;
use capbox_core::provider::*;

/// What one exec sends to the container.
#[derive(Debug)]
pub struct Exec {
    pub(crate) program: Program,
    pub(crate) cwd: Option<SandboxPath>,
    pub(crate) env: Env,
    pub(crate) user: Option<String>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) stdin: bool,
    pub(crate) input: Bytes,
    pub(crate) max_output: usize,
}

impl Exec {
    /// The argv that is executed.
    pub(crate) fn argv(&self) -> Vec<OsString> {
        self.program.argv()
    }
}

impl From<Command> for Exec {
    fn from(command: Command) -> Self {
        Self {
            program: command.program,
            cwd: None,
            env: Env::new(),
            user: None,
            timeout: None,
            stdin: false,
            input: Bytes::new(),
            max_output: command.max_output,
        }
    }
}

impl Accept<cap::ExecCwd> for Exec {
    fn accept(&mut self, path: SandboxPath) {
        self.cwd = Some(path);
    }
}

impl Accept<cap::ExecEnv> for Exec {
    fn accept(&mut self, env: Env) {
        self.env = env;
    }
}

impl Accept<cap::User> for Exec {
    fn accept(&mut self, user: String) {
        self.user = Some(user);
    }
}

impl Accept<cap::Timeout> for Exec {
    fn accept(&mut self, timeout: Duration) {
        self.timeout = Some(timeout);
    }
}

impl Accept<cap::Input> for Exec {
    fn accept(&mut self, input: Input) {
        self.stdin = true;
        self.input = input.0;
    }
}

impl Accept<cap::Stdin> for Exec {
    fn accept(&mut self, _: Stdin) {
        self.stdin = true;
    }
}
