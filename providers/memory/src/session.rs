//! Sessions: processes and snapshots of a sandbox.

use std::sync::{Arc, Weak};

use capbox_core::provider::*;

use crate::client::{Exec, Store};
use crate::disk::{Fault, Route};
use crate::error::gone;
use crate::machine::Machine;
use crate::process::{Process, Reader};
use crate::shell::{HOME, Shell};

/// A handle to a sandbox. The session of the one who created it holds the lease.
#[derive(Debug)]
pub struct Session {
    machine: Arc<Machine>,
    store: Weak<Store>,
    leased: bool,
}

impl Session {
    /// The handle of the creator: when it is dropped, the sandbox ends.
    pub(crate) fn leased(machine: Arc<Machine>, store: &Arc<Store>) -> Self {
        Self { machine, store: Arc::downgrade(store), leased: true }
    }

    /// A handle without a lease.
    pub(crate) fn connected(machine: Arc<Machine>, store: &Arc<Store>) -> Self {
        Self { machine, store: Arc::downgrade(store), leased: false }
    }

    pub(crate) fn machine(&self) -> &Machine {
        &self.machine
    }

    fn start(&self, background: bool, exec: Exec) -> Result<Arc<Process>> {
        self.machine.alive()?;
        let Exec { command, cwd, env, timeout, input } = exec;
        let cwd = self.folder(cwd)?;
        let env = self.machine.env.clone().merged(&env);
        let shell = Shell::new(&command.program, &cwd, &env, input, timeout, self.machine.disk.clone())?;
        self.machine.spawn(background, shell)
    }

    /// The folder to start in, as an absolute path.
    fn folder(&self, cwd: Option<SandboxPath>) -> Result<String> {
        let Some(cwd) = cwd else { return Ok(HOME.to_owned()) };
        let refuse = |why: Fault| {
            let message = match why {
                Fault::NotFound => format!("there is no folder `{cwd}` in the sandbox"),
                Fault::NotADirectory => format!("`{cwd}` in the sandbox is not a folder"),
                _ => format!("the folder {} cannot be entered", why.at(&cwd).message()),
            };
            Error::new(ErrorKind::BadWorkingDirectory, message)
        };
        let node =
            self.machine.disk.node(&Route::new(cwd.as_bytes(), HOME.as_bytes()), true).map_err(refuse)?;
        if node.children().is_none() {
            return Err(refuse(Fault::NotADirectory));
        }
        let path = SandboxPath::from(HOME).join(&cwd);
        path.to_str().map(str::to_owned).ok_or_else(|| {
            Error::invalid_argument(
                "cwd",
                format!("`{cwd}` is not UTF-8, which the interpreter does not take"),
            )
        })
    }

    fn store(&self) -> Result<Arc<Store>> {
        self.machine.alive()?;
        self.store.upgrade().ok_or_else(|| gone(&self.machine.id))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.leased {
            self.machine.abandon();
        }
    }
}

#[async_trait]
impl Run<Exec> for Session {
    async fn run(&self, body: Exec) -> Result<Output> {
        let max_output = body.command.max_output;
        let reader = Reader::owner(self.start(false, body)?);
        collect(Box::new(reader), max_output).await
    }
}

#[async_trait]
impl Streaming<Exec> for Session {
    async fn spawn(&self, body: Exec) -> Result<Spawned> {
        Ok(Reader::owner(self.start(false, body)?).spawned())
    }
}

#[async_trait]
impl Background<Exec> for Session {
    async fn spawn_background(&self, body: Exec) -> Result<ProcessId> {
        Ok(self.start(true, body)?.id.clone())
    }
}

#[async_trait]
impl ExecList for Session {
    async fn processes(&self) -> Result<Vec<ProcessInfo>> {
        self.machine.alive()?;
        Ok(self.machine.processes().iter().map(|process| process.info()).collect())
    }
}

#[async_trait]
impl Attach for Session {
    async fn attach(&self, process: &ProcessId) -> Result<Spawned> {
        Ok(Reader::attached(self.machine.process(process)?).spawned())
    }
}

#[async_trait]
impl Replay for Session {
    async fn replay(&self, process: &ProcessId, after: u64, follow: bool) -> Result<Spawned> {
        Ok(Reader::replaying(self.machine.process(process)?, after, follow).spawned())
    }
}

#[async_trait]
impl KillProcess for Session {
    async fn kill(&self, process: &ProcessId) -> Result<Killed> {
        Ok(self.machine.process(process)?.kill(ExitStatus::Killed).await)
    }
}

#[async_trait]
impl Snapshot for Session {
    async fn create(&self, name: Option<&str>) -> Result<SnapshotInfo> {
        Ok(self.store()?.save(&self.machine, name))
    }
}
