//! Starting commands: buffered, streamed, in the background, in a terminal.

use std::fmt;
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use super::BoxFuture;
use super::core::{Any, Core};
use super::output::Output;
use super::process::Process;
#[allow(clippy::wildcard_imports, reason = "the generated setters name every exec row")]
use crate::capability::rows::*;
use crate::capability::{Capability, NotSupported, cap};
use crate::error::{Error, Result};
use crate::spec::{Command, Env, Input, Program, SandboxPath, Stdin, TerminalSize};

/// Setters that every way to start a command shares.
macro_rules! command_setters {
    () => {
        /// Set one variable, over those of the sandbox.
        pub fn env(mut self, name: impl Into<String>, value: impl Into<std::ffi::OsString>) -> Self
        where
            K: HasExecEnv,
        {
            self.options.envs.get_or_insert_default().insert(name, value);
            self
        }

        exec_option_setters!();
    };
}

impl ExecOptions {
    /// Refuse what is wrong, or what `admit` does not, with `command`. Nothing is sent.
    ///
    /// Every way to start a command does this first. Those who create a sandbox for one command can do it
    /// before, with [`Client::require`](super::Client::require).
    pub fn check(
        &self,
        command: &Command,
        admit: impl Fn(Capability) -> Result<(), NotSupported>,
    ) -> Result<()> {
        command.check()?;
        for capability in self.asked() {
            admit(capability)?;
        }
        if let Some(env) = &self.envs {
            env.check(Some(&command.program))?;
        }
        if let Some(cwd) = &self.cwd {
            cwd.check()?;
        }
        if self.timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(Error::invalid_argument("timeout", "must be greater than zero"));
        }
        if self.user.as_deref().is_some_and(|user| user.is_empty() || user.contains(['\0', '\n', ':'])) {
            return Err(Error::invalid_argument("user", "is empty or holds `:`, a NUL or a line feed"));
        }
        if self.input.is_some() && self.stdin.is_some() {
            return Err(Error::invalid_argument("stdin", "cannot stay open when `input` is given"));
        }
        Ok(())
    }
}

fn check(core: &Core, command: &Command, options: &ExecOptions) -> Result<()> {
    options.check(command, |capability| core.admit(capability))
}

/// Options given at once, for callers that have them as data; on a typed handle each is a method.
macro_rules! options_at_once {
    ($($name:ident)*) => { $(
        impl $name<Any> {
            /// Set all options at once. What the sandbox does not honour is refused at `.await`.
            pub fn options(mut self, options: ExecOptions) -> Self {
                self.options = options;
                self
            }
        }
    )* };
}
options_at_once! { Exec Spawn Terminal }

/// A command to run to its end: set options, then `.await` the [`Output`].
///
/// A non-zero exit is data, not an error, and so is a timeout: see [`Output::status`]. Dropping the future kills
/// the command with everything that it started.
#[must_use = "nothing is run before `.await`"]
pub struct Exec<K = Any> {
    core: Arc<Core>,
    command: Command,
    options: ExecOptions,
    kind: PhantomData<fn() -> K>,
}

impl<K> Exec<K> {
    pub(super) fn new(core: Arc<Core>, program: Program) -> Self {
        Self { core, command: Command::new(program), options: ExecOptions::default(), kind: PhantomData }
    }

    command_setters!();

    /// Keep at most this many bytes of each stream: its head and its tail. 16 MiB where nothing is said.
    pub fn max_output(mut self, bytes: usize) -> Self {
        self.command.max_output = bytes;
        self
    }
}

impl<K: 'static> IntoFuture for Exec<K> {
    type Output = Result<Output>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { core, command, options, .. } = self;
            let api = core.api::<cap::Run>()?;
            check(&core, &command, &options)?;
            if options.stdin.is_some() {
                return Err(Error::invalid_argument(
                    "stdin",
                    "a buffered exec has no writer; use `input` or `spawn`",
                ));
            }
            core.op(Capability::Run.as_str(), api.run(command, options)).await
        })
    }
}

/// A command to follow while it runs: set options, then `.await` the [`Process`].
#[must_use = "nothing is started before `.await`"]
pub struct Spawn<K = Any> {
    core: Arc<Core>,
    command: Command,
    options: ExecOptions,
    kind: PhantomData<fn() -> K>,
}

impl<K> Spawn<K> {
    pub(super) fn new(core: Arc<Core>, program: Program) -> Self {
        Self { core, command: Command::new(program), options: ExecOptions::default(), kind: PhantomData }
    }

    command_setters!();

    /// All options at once, for what stands on this.
    pub(crate) fn with_options(mut self, options: ExecOptions) -> Self {
        self.options = options;
        self
    }

    /// Start it in the background: it goes on when this handle and this process are gone, and is found again
    /// by its id.
    pub fn background(self) -> SpawnBackground<K>
    where
        K: HasBackground,
    {
        SpawnBackground(self)
    }
}

impl<K: 'static> IntoFuture for Spawn<K> {
    type Output = Result<Process<K>>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { core, command, options, .. } = self;
            let api = core.api::<cap::Streaming>()?;
            check(&core, &command, &options)?;
            let spawned = core.op(Capability::Streaming.as_str(), api.spawn(command, options)).await?;
            Ok(Process::attached(core, spawned))
        })
    }
}

/// A command to start in the background: `.await` the [`Process`].
#[must_use = "nothing is started before `.await`"]
pub struct SpawnBackground<K = Any>(Spawn<K>);

impl<K: 'static> IntoFuture for SpawnBackground<K> {
    type Output = Result<Process<K>>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Spawn { core, command, options, .. } = self.0;
            let api = core.api::<cap::Background>()?;
            check(&core, &command, &options)?;
            let call = api.spawn_background(command, options);
            let id = core.op(Capability::Background.as_str(), call).await?;
            Ok(Process::detached(core, id))
        })
    }
}

/// Terminals: what `sandbox.pty()` gives.
pub struct Pty<K = Any> {
    core: Arc<Core>,
    kind: PhantomData<fn() -> K>,
}

impl<K> Pty<K> {
    pub(super) fn of(core: Arc<Core>) -> Self {
        Self { core, kind: PhantomData }
    }

    /// Run a command in a terminal of 24 lines of 80 characters: set options, then `.await` the [`Process`].
    pub fn open(&self, program: impl Into<Program>) -> Terminal<K> {
        Terminal {
            core: self.core.clone(),
            command: Command::new(program),
            options: ExecOptions::default(),
            size: TerminalSize::default(),
            kind: PhantomData,
        }
    }
}

/// A command to run in a terminal: set options, then `.await` the [`Process`].
///
/// What is written to the process is typed; output is one stream. Dropping the process hangs up and kills
/// everything that it started.
#[must_use = "nothing is started before `.await`"]
pub struct Terminal<K = Any> {
    core: Arc<Core>,
    command: Command,
    options: ExecOptions,
    size: TerminalSize,
    kind: PhantomData<fn() -> K>,
}

impl<K> Terminal<K> {
    command_setters!();

    /// The size of the terminal.
    pub fn size(mut self, size: TerminalSize) -> Self {
        self.size = size;
        self
    }
}

impl<K: 'static> IntoFuture for Terminal<K> {
    type Output = Result<Process<K>>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { core, command, options, size, .. } = self;
            let api = core.api::<cap::Pty>()?;
            check(&core, &command, &options)?;
            if options.stdin.is_some() {
                return Err(Error::invalid_argument("stdin", "a terminal is always open"));
            }
            let spawned = core.op(Capability::Pty.as_str(), api.open(command, options, size)).await?;
            Ok(Process::attached(core, spawned))
        })
    }
}

macro_rules! debug {
    ($($name:ident)*) => { $(
        impl<K> fmt::Debug for $name<K> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).field("command", &self.command).finish_non_exhaustive()
            }
        }
    )* };
}
debug! { Exec Spawn Terminal }

impl<K> fmt::Debug for SpawnBackground<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SpawnBackground").field(&self.0).finish()
    }
}

impl<K> fmt::Debug for Pty<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pty").finish_non_exhaustive()
    }
}
