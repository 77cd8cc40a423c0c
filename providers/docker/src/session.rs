//! A living sandbox: a container, and the way to the guest inside.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bollard::models::{ContainerInspectResponse, ContainerState, ContainerStateStatusEnum};
use capbox_core::provider::*;
use capbox_guest::client::Relay;
use capbox_guest::proto::{Bytes, Contain};
use futures_util::FutureExt;
use tokio::sync::Mutex;

use crate::create::Original;
use crate::engine::Engine;
use crate::error::{from_engine, is_absent, is_conflict};
use crate::exec::guest::{self, NotConnected};
use crate::labels;
use crate::process::Terminals;

/// A container.
///
/// The creator's connection to the guest is the lease: when it closes, the guest ends the sandbox, unless it was
/// detached.
#[derive(Debug)]
pub struct Session {
    pub(crate) engine: Arc<Engine>,
    pub(crate) id: String,
    /// The engine's id, which stays when the name changes.
    pub(crate) container: String,
    pub(crate) leased: AtomicBool,
    pub(crate) paused: AtomicBool,
    pub(crate) native: Native,
    pub(crate) terminals: Terminals,
    relay: Mutex<Option<Relay>>,
}

/// What `sandbox.native()` gives. Outside semver.
#[derive(Clone, Debug)]
pub struct Native {
    /// The engine's client.
    pub engine: bollard::Docker,
    /// The engine's id of the container.
    pub container: String,
}

/// What a container that was started is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Booted {
    pub(crate) ttl: Option<Duration>,
    pub(crate) owned: bool,
}

impl Session {
    pub(crate) fn new(engine: Arc<Engine>, id: String, container: String, leased: bool) -> Self {
        let native = Native { engine: engine.raw.clone(), container: container.clone() };
        Self {
            engine,
            id,
            container,
            native,
            leased: AtomicBool::new(leased),
            paused: AtomicBool::new(false),
            terminals: Terminals::default(),
            relay: Mutex::new(None),
        }
    }

    /// What the engine says of the container.
    pub(crate) async fn inspect(&self) -> Result<ContainerInspectResponse> {
        let api = self.engine.api().await?;
        api.inspect_container(&self.container, None).await.map_err(|error| self.failed(error))
    }

    /// The one error for a failed request about this sandbox.
    pub(crate) fn failed(&self, error: bollard::errors::Error) -> Error {
        if is_absent(&error) {
            return self.gone().with_source(error);
        }
        from_engine(error, &format!("the sandbox `{}`", self.id))
    }

    pub(crate) fn gone(&self) -> Error {
        Error::new(ErrorKind::SandboxGone, format!("the sandbox `{}` is gone", self.id))
            .with_admitted(Admitted::No)
    }

    pub(crate) fn does_not_run(&self) -> Error {
        Error::new(ErrorKind::Conflict, format!("the sandbox `{}` is stopped", self.id))
            .with_hint(format!("start it: `capbox start {}`", self.id))
    }

    pub(crate) fn is_paused(&self) -> Error {
        Error::new(ErrorKind::Conflict, format!("the sandbox `{}` is paused", self.id))
            .with_hint(format!("let it go on: `capbox resume {}`", self.id))
    }

    /// The way to the guest, opened where it is not open.
    pub(crate) async fn relay(&self) -> Result<Relay> {
        if self.paused.load(Ordering::SeqCst) {
            return Err(self.is_paused());
        }
        let mut held = self.relay.lock().await;
        if let Some(relay) = held.as_ref().filter(|relay| relay.lost().now_or_never().is_none()) {
            return Ok(relay.clone());
        }
        *held = None;
        let relay = self.open().await?;
        *held = Some(relay.clone());
        Ok(relay)
    }

    /// Whether it has been told what it is for; a stopped or paused one has.
    pub(crate) async fn is_ready(&self) -> Result<bool> {
        use capbox_guest::client::Error as Failure;
        use capbox_guest::proto::Refusal;
        let status = self.inspect().await?.state.and_then(|state| state.status);
        match status {
            Some(ContainerStateStatusEnum::CREATED) => return Ok(false),
            Some(ContainerStateStatusEnum::RUNNING) => {}
            _ => return Ok(true),
        }
        match self.relay().await?.info().await {
            Ok(_) => Ok(true),
            Err(Failure::Refused(Refusal::Unbooted)) => Ok(false),
            Err(error) => Err(self.of_guest(error)),
        }
    }

    /// Close the way to the guest, after the container was stopped.
    pub(crate) async fn close(&self) {
        *self.relay.lock().await = None;
    }

    /// Start a relay inside, and greet it.
    async fn open(&self) -> Result<Relay> {
        let api = self.engine.api().await?;
        match guest::connect(api, &self.engine.address, &self.container).await {
            Ok(relay) => Ok(relay),
            Err(NotConnected::Engine(error)) if is_conflict(&error) => Err(self.why_not().await),
            Err(NotConnected::Engine(error)) => Err(self.failed(error)),
            // The container may have ended between the two steps of it.
            Err(NotConnected::Other(error)) => match self.inspect().await {
                Ok(facts) if facts.state.as_ref().and_then(|state| state.running) == Some(true) => Err(error),
                _ => Err(self.why_not().await),
            },
        }
    }

    /// Why the engine starts nothing in the container now.
    async fn why_not(&self) -> Error {
        match self.inspect().await {
            Err(error) => error,
            Ok(facts) => match facts.state.as_ref().and_then(|state| state.status) {
                _ if facts.state.as_ref().is_some_and(has_ended) => self.gone(),
                Some(ContainerStateStatusEnum::PAUSED) => self.is_paused(),
                _ => self.does_not_run(),
            },
        }
    }

    /// The one error for a failed request to the guest about the sandbox as a whole.
    pub(crate) fn of_guest(&self, error: capbox_guest::client::Error) -> Error {
        use capbox_guest::client::{Admitted as Known, Error as Failure};
        let (kind, admitted) = match &error {
            Failure::Lost { admitted: Known::No, .. } => (ErrorKind::ConnectionLost, Admitted::No),
            Failure::Lost { admitted: Known::Yes, .. } => (ErrorKind::ConnectionLost, Admitted::Yes),
            Failure::Lost { .. } => (ErrorKind::ConnectionLost, Admitted::Unknown),
            Failure::Version | Failure::Refused(_) => (ErrorKind::Conflict, Admitted::No),
            _ => (ErrorKind::Provider, Admitted::No),
        };
        Error::new(kind, format!("the sandbox `{}`: {error}", self.id))
            .with_admitted(admitted)
            .with_source(error)
    }

    /// Tell the container, which was just started, what it is for; this connection is then the lease.
    pub(crate) async fn boot(&self, booted: Booted) -> Result<()> {
        let config = self.inspect().await?.config.unwrap_or_default();
        let all = config.labels.unwrap_or_default();
        let relay = self.relay().await?;
        let Original { user, .. } = Original::of(&all);
        let contain = Contain {
            id: self.id.as_str().into(),
            env: config.env.iter().flatten().filter_map(|line| variable(line)).collect(),
            cwd: config
                .working_dir
                .filter(|cwd| cwd.starts_with('/'))
                .unwrap_or_else(|| "/".to_owned())
                .as_str()
                .into(),
            user: user.as_str().into(),
            labels: Vec::new(),
            meta: Bytes::default(),
            version: env!("CARGO_PKG_VERSION").into(),
            hostname: self.id.as_str().into(),
            ttl: booted.ttl.map_or(0, |ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1)),
            owned: booted.owned,
            created: created(&all),
        };
        relay.boot(contain).await.map_err(|error| self.of_guest(error))
    }
}

/// A leased sandbox ends with its last handle. Without a runtime the guest still ends, and its container is removed by
/// the next client.
impl Drop for Session {
    fn drop(&mut self) {
        if !self.leased.load(Ordering::SeqCst) {
            return;
        }
        let (engine, container) = (self.engine.clone(), self.container.clone());
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if let Err(error) = crate::client::remove(&engine.raw, &container).await {
                    tracing::warn!(container, %error, "a container is left; `capbox reap` removes it");
                }
            });
        }
    }
}

/// True where the guest ended by itself: see [`crate::client`].
fn has_ended(state: &ContainerState) -> bool {
    state.status == Some(ContainerStateStatusEnum::EXITED) && state.exit_code == Some(0)
}

fn created(all: &HashMap<String, String>) -> u64 {
    labels::time(all, labels::CREATED).map_or(0, labels::millis)
}

fn variable(line: &str) -> Option<(Bytes, Bytes)> {
    let (name, value) = line.split_once('=')?;
    Some((name.into(), value.into()))
}
