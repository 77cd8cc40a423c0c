//! A sandbox: its disk, its processes and its end.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use bashkit::FileSystem;
use capbox_core::provider::*;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::client::Store;
use crate::disk::Disk;
use crate::error::{gone, no_process};
use crate::process::Process;
use crate::shell::Shell;

/// How many processes that have ended are still listed.
const ENDED: usize = 64;

/// A sandbox. It is what `native()` gives, and it is outside semver.
pub struct Machine {
    pub(crate) id: String,
    pub(crate) name: Option<String>,
    pub(crate) labels: Labels,
    pub(crate) env: Env,
    pub(crate) disk: Disk,
    created: SystemTime,
    deadline: Option<Instant>,
    detached: AtomicBool,
    gone: AtomicBool,
    processes: Mutex<Processes>,
    store: Weak<Store>,
    clock: Mutex<Option<AbortHandle>>,
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine").field("id", &self.id).field("gone", &self.is_gone()).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Processes {
    /// How many were started.
    started: u64,
    /// By number, so the oldest come first.
    known: BTreeMap<u64, Arc<Process>>,
}

/// What a machine is made from.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) id: String,
    pub(crate) name: Option<String>,
    pub(crate) labels: Labels,
    pub(crate) env: Env,
    pub(crate) disk: Disk,
    pub(crate) ttl: Option<Duration>,
}

impl Machine {
    /// A running sandbox, whose life ends with its ttl.
    pub(crate) fn start(parts: Parts, store: Weak<Store>) -> Arc<Self> {
        let Parts { id, name, labels, env, disk, ttl } = parts;
        // A ttl beyond what the clock can count is as good as none.
        let deadline = ttl.and_then(|ttl| Instant::now().checked_add(ttl));
        let machine = Arc::new(Self {
            id,
            name,
            labels,
            env,
            disk,
            created: SystemTime::now(),
            deadline,
            detached: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            processes: Mutex::default(),
            store,
            clock: Mutex::default(),
        });
        if let Some(deadline) = deadline {
            let weak = Arc::downgrade(&machine);
            let task = tokio::spawn(async move {
                tokio::time::sleep_until(deadline).await;
                if let Some(machine) = weak.upgrade() {
                    machine.end();
                }
            });
            *lock(&machine.clock) = Some(task.abort_handle());
        }
        machine
    }

    /// The file system as the interpreter sees it.
    pub fn file_system(&self) -> Arc<dyn FileSystem> {
        Arc::new(self.disk.clone())
    }

    /// Refuse if it has ended. The deadline counts also where no runtime is left to keep it.
    pub(crate) fn alive(&self) -> Result<()> {
        if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            self.end();
        }
        if self.is_gone() { Err(gone(&self.id)) } else { Ok(()) }
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Begin its end: from now on every call is refused, and what runs is stopped.
    pub(crate) fn end(&self) {
        if self.gone.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some(clock) = lock(&self.clock).take() {
            clock.abort();
        }
        if let Some(store) = self.store.upgrade() {
            store.forget(&self.id);
        }
        for process in self.running() {
            process.stop(ExitStatus::SandboxGone);
        }
        self.disk.close();
    }

    /// End it; returns when nothing of it runs.
    pub(crate) async fn destroy(&self) {
        self.end();
        for process in self.running() {
            process.kill(ExitStatus::SandboxGone).await;
        }
    }

    /// It outlives its owner from now on.
    pub(crate) fn detach(&self) {
        self.detached.store(true, Ordering::Release);
    }

    /// Its owner is gone.
    pub(crate) fn abandon(&self) {
        if !self.detached.load(Ordering::Acquire) {
            self.end();
        }
    }

    /// Start a process.
    pub(crate) fn spawn(&self, background: bool, shell: Shell) -> Result<Arc<Process>> {
        let mut processes = lock(&self.processes);
        // Under the lock, so that an end that comes now finds the process.
        self.alive_now()?;
        processes.started += 1;
        let number = processes.started;
        let process = Process::start(ProcessId::new(format!("p{number}")), background, shell);
        processes.known.insert(number, process.clone());
        processes.forget_old();
        Ok(process)
    }

    fn alive_now(&self) -> Result<()> {
        if self.is_gone() { Err(gone(&self.id)) } else { Ok(()) }
    }

    /// The process with this id.
    pub(crate) fn process(&self, id: &ProcessId) -> Result<Arc<Process>> {
        self.alive()?;
        let number = id.as_str().strip_prefix('p').and_then(|number| number.parse().ok());
        number
            .and_then(|number: u64| lock(&self.processes).known.get(&number).cloned())
            .filter(|process| process.id == *id)
            .ok_or_else(|| no_process(id))
    }

    /// Those that run and those that ended lately, the oldest first.
    pub(crate) fn processes(&self) -> Vec<Arc<Process>> {
        lock(&self.processes).known.values().cloned().collect()
    }

    fn running(&self) -> Vec<Arc<Process>> {
        self.processes().into_iter().filter(|process| !process.is_gone()).collect()
    }

    pub(crate) fn info(&self) -> SandboxInfo {
        let mut info = SandboxInfo::running(&self.id);
        info.name.clone_from(&self.name);
        info.created = Some(self.created);
        info.ttl_left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        info.detached = self.detached.load(Ordering::Acquire);
        info.labels = self.labels.clone();
        info
    }
}

impl Processes {
    fn forget_old(&mut self) {
        let ended: Vec<u64> =
            self.known.iter().filter(|(_, process)| process.is_gone()).map(|(number, _)| *number).collect();
        for number in &ended[..ended.len().saturating_sub(ENDED)] {
            self.known.remove(number);
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.end();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
