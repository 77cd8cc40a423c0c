//! The client: an engine, and the containers on it that are capbox's.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bollard::Docker as Api;
use bollard::models::{ContainerSummary, ContainerSummaryStateEnum};
use bollard::query_parameters::{
    ListContainersOptionsBuilder, RemoveContainerOptionsBuilder, RenameContainerOptionsBuilder,
};
use capbox_core::provider::*;

use crate::config::Config;
use crate::create::{Create, detached_name, leased_name};
use crate::engine::{Engine, SUB_PATH_SINCE};
use crate::error::{from_engine, is_absent, is_conflict};
use crate::exec::Exec;
use crate::labels::{self, Owner, SANDBOX};
use crate::session::{Native, Session};
use crate::table::FLAGS;
use crate::{network, snapshots};

/// What a registry knows of this provider.
pub const PROVIDER: Provider = Provider {
    id: "docker",
    tables: &[Docker::ROWS],
    open: |uri| Ok(Docker::configured(Config::from_uri(uri)?)?.into_any()),
};

/// The exit code of a guest whose time was up, whose lease ended, or which was told to end: nobody will start it again.
const ENDED: &str = "0";

/// How often, and after what time, one looks for a sandbox that somebody else is making: half a minute in all.
const MAKING_TAKES: u32 = 600;
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The Docker provider: sandboxes are containers of an engine.
#[derive(Debug)]
pub struct Docker {
    pub(crate) engine: Arc<Engine>,
    pub(crate) config: Config,
    /// What the engine is known to lack.
    lowered: Lowered,
    swept: AtomicBool,
}

impl Docker {
    /// A client with the default configuration. Nothing is sent.
    #[allow(clippy::new_ret_no_self, reason = "what a provider's constructor gives is its client")]
    pub fn new() -> Result<Client<Self>> {
        Self::configured(Config::new())
    }

    /// A client with this configuration. Nothing is sent.
    pub fn configured(config: Config) -> Result<Client<Self>> {
        Self::of(config, Lowered::none()).map(Client::new)
    }

    /// A client with this configuration, of an engine that was asked what it lacks.
    pub async fn connect(config: Config) -> Result<Client<Self>> {
        let lowered = Self::of(config.clone(), Lowered::none())?.ask().await?;
        Self::of(config, lowered).map(Client::new)
    }

    fn of(config: Config, lowered: Lowered) -> Result<Self> {
        let engine = Arc::new(Engine::of(&config)?);
        Ok(Self { engine, config, lowered, swept: AtomicBool::new(false) })
    }

    /// Ask the engine what it lacks.
    async fn ask(&self) -> Result<Lowered> {
        let api = self.engine.api().await?;
        let facts = api.info().await.map_err(|error| from_engine(error, "the engine"))?;
        let mut lowered = Lowered::none();
        let mut lacks =
            |capability, reason| lowered = std::mem::take(&mut lowered).unavailable(capability, reason);
        if api.client_version() < SUB_PATH_SINCE {
            lacks(
                Capability::VolumeSubPath,
                "this engine cannot mount a folder of a volume; use Docker 26 or later",
            );
        }
        if facts.memory_limit == Some(false) {
            lacks(Capability::Memory, "this engine's kernel has no control group for memory");
        }
        if facts.cpu_cfs_quota == Some(false) {
            lacks(Capability::Cpu, "this engine's kernel has no quota of CPU time");
        }
        if facts.pids_limit == Some(false) {
            lacks(Capability::Processes, "this engine's kernel has no control group for processes");
        }
        let backing = facts.driver_status.iter().flatten().find_map(|pair| match pair.as_slice() {
            [name, value] if name == "Backing Filesystem" => Some(value.as_str()),
            _ => None,
        });
        let quotas = match facts.driver.as_deref() {
            Some("btrfs" | "zfs") => true,
            Some("overlay2") => backing == Some("xfs"),
            _ => false,
        };
        if !quotas {
            lacks(
                Capability::Disk,
                "this engine's storage cannot limit a container's disk; that takes `overlay2` on XFS with project quotas, `btrfs` or `zfs`",
            );
        }
        let runtimes = facts.runtimes.unwrap_or_default();
        if !runtimes.keys().any(|name| name.contains("nvidia")) {
            lacks(
                Capability::Gpu,
                "this engine has no runtime for GPUs; install the vendor's container toolkit",
            );
        }
        Ok(lowered)
    }

    /// The sandbox of that id, as it is.
    pub(crate) async fn existing(&self, id: &str) -> Result<Created<Session>> {
        let api = self.engine.api().await?;
        let found = list(api, [format!("{SANDBOX}={id}")], None).await?;
        let Some(found) = found.into_iter().find(|one| !has_ended(one)) else {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no sandbox `{id}`"))
                .with_hint("list those that there are: `capbox ps --on docker://`"));
        };
        let container = found.id.clone().unwrap_or_default();
        let session = Session::new(self.engine.clone(), id.to_owned(), container, false);
        session.paused.store(found.state == Some(ContainerSummaryStateEnum::PAUSED), Ordering::SeqCst);
        let mut created = Created::existing(session);
        let member = found.labels.as_ref().and_then(|labels| labels.get(labels::MEMBER));
        created.private_host = member.and_then(|member| Some(member.split_once(' ')?.1.to_owned()));
        Ok(created)
    }

    /// The sandbox of that name, which somebody else has made, or is making: then once it is ready.
    pub(crate) async fn made_elsewhere(&self, name: &str) -> Result<Created<Session>> {
        for _ in 0..MAKING_TAKES {
            match self.existing(name).await {
                Ok(created) if created.session.is_ready().await? => return Ok(created),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        let message = format!("a sandbox called `{name}` is being made, and does not get ready");
        Err(Error::new(ErrorKind::Conflict, message)
            .with_hint("try again, or remove what is left: `capbox reap`"))
    }

    /// Remove what has ended while nobody looked; once for each client.
    pub(crate) async fn sweep(&self, api: &Api) {
        if self.swept.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Err(error) = remove_all(api, ended(api).await).await {
            tracing::warn!(%error, "what has ended is not removed");
        }
    }
}

/// capbox's containers that have all of these labels, in whatever state.
async fn list(
    api: &Api,
    labels: impl IntoIterator<Item = String>,
    exited: Option<&str>,
) -> Result<Vec<ContainerSummary>> {
    let mut filters = labels::filter(labels);
    if let Some(code) = exited {
        filters.insert("exited".to_owned(), vec![code.to_owned()]);
    }
    let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
    api.list_containers(Some(options)).await.map_err(|error| from_engine(error, "the containers"))
}

/// Those whose guest ended by itself.
async fn ended(api: &Api) -> Result<Vec<ContainerSummary>> {
    let mut exited = list(api, [SANDBOX.to_owned()], Some(ENDED)).await?;
    exited.retain(has_ended);
    Ok(exited)
}

/// True where the guest ended by itself; the engine tells the exit code in words only: `Exited (0) 3 seconds ago`.
fn has_ended(container: &ContainerSummary) -> bool {
    let status = container.status.as_deref().unwrap_or_default();
    container.state == Some(ContainerSummaryStateEnum::EXITED) && status.starts_with("Exited (0)")
}

/// True where the container's creator held a lease, and is gone.
fn is_orphan(container: &ContainerSummary) -> bool {
    is_leased(container)
        && container
            .labels
            .as_ref()
            .and_then(|labels| labels.get(labels::OWNER))
            .is_some_and(|owner| Owner::is_dead(owner))
}

fn is_leased(container: &ContainerSummary) -> bool {
    let id = container.labels.as_ref().and_then(|labels| labels.get(SANDBOX));
    let leased = id.map(|id| format!("/{}", leased_name(id)));
    container.names.iter().flatten().any(|name| Some(name) == leased.as_ref())
}

/// Remove the containers, and what only they used; gives the ids of the sandboxes.
async fn remove_all(api: &Api, containers: Result<Vec<ContainerSummary>>) -> Result<Vec<String>> {
    let mut ids = Vec::new();
    for container in containers? {
        let Some(id) = container.id else { continue };
        remove(api, &id).await?;
        let labels = container.labels.unwrap_or_default();
        ids.extend(labels.get(SANDBOX).cloned());
    }
    if !ids.is_empty() {
        network::tidy(api).await?;
        snapshots::tidy(api).await?;
    }
    Ok(ids)
}

/// Remove a container with all that runs in it.
pub(crate) async fn remove(api: &Api, container: &str) -> Result<()> {
    let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
    match api.remove_container(container, Some(options)).await {
        Ok(()) => Ok(()),
        Err(error) if is_absent(&error) => Ok(()),
        // Somebody else removes it: it is gone when it is no longer found.
        Err(error) if is_conflict(&error) => removed(api, container).await,
        Err(error) => Err(from_engine(error, &format!("the container `{container}`"))),
    }
}

async fn removed(api: &Api, container: &str) -> Result<()> {
    loop {
        match api.inspect_container(container, None).await {
            Err(error) if is_absent(&error) => return Ok(()),
            Err(error) => return Err(from_engine(error, &format!("the container `{container}`"))),
            Ok(_) => tokio::time::sleep(LOOK_AGAIN).await,
        }
    }
}

#[async_trait]
impl Backend for Docker {
    const ID: &'static str = "docker";
    const FLAGS: Flags = FLAGS;
    const CONSTRAINTS: &'static [Constraint] = crate::table::CONSTRAINTS;

    type Session = Session;
    type Create = Create;
    type Exec = Exec;
    type NativeClient = Api;
    type NativeSandbox = Native;

    fn lowered(&self) -> Lowered {
        self.lowered.clone()
    }

    async fn probe(&self) -> Result<Lowered> {
        self.ask().await
    }

    async fn create(&self, body: Create) -> Result<Created<Session>> {
        self.create_container(body).await
    }

    fn id(session: &Session) -> &str {
        &session.id
    }

    async fn destroy(session: &Session) -> Result<()> {
        let api = session.engine.api().await?;
        session.leased.store(false, Ordering::SeqCst);
        let member = match session.inspect().await {
            Ok(facts) => {
                let labels = facts.config.and_then(|config| config.labels).unwrap_or_default();
                labels.get(labels::MEMBER).and_then(|member| Some(member.split_once(' ')?.0.to_owned()))
            }
            Err(error) if error.kind() == ErrorKind::SandboxGone => return Ok(()),
            Err(error) => return Err(error),
        };
        remove(api, &session.container).await?;
        session.close().await;
        match member {
            Some(network) => network::leave(api, &network).await,
            None => Ok(()),
        }
    }

    async fn detach(session: &Session) -> Result<()> {
        let api = session.engine.api().await?;
        session.relay().await?.detach().await.map_err(|error| session.of_guest(error))?;
        let options = RenameContainerOptionsBuilder::new().name(&detached_name(&session.id)).build();
        api.rename_container(&session.container, options).await.map_err(|error| session.failed(error))?;
        session.leased.store(false, Ordering::SeqCst);
        Ok(())
    }

    async fn reap(&self) -> Result<Vec<String>> {
        let api = self.engine.api().await?;
        let mut left = list(api, [SANDBOX.to_owned()], None).await?;
        left.retain(|container| has_ended(container) || is_orphan(container));
        let ids = remove_all(api, Ok(left)).await?;
        network::tidy(api).await?;
        snapshots::tidy(api).await?;
        Ok(ids)
    }

    fn native_client(&self) -> &Api {
        &self.engine.raw
    }

    fn native(session: &Session) -> &Native {
        &session.native
    }
}

#[async_trait]
impl List for Docker {
    async fn list(&self, labels: &Labels) -> Result<Vec<SandboxInfo>> {
        let api = self.engine.api().await?;
        let wanted = labels::of_caller(labels).map(|(name, value)| format!("{name}={value}"));
        let all = list(api, wanted.chain([SANDBOX.to_owned()]), None).await?;
        Ok(all.iter().filter(|container| !has_ended(container)).filter_map(info).collect())
    }
}

#[async_trait]
impl Connect for Docker {
    async fn connect(&self, id: &str) -> Result<Created<Session>> {
        self.existing(id).await
    }
}

fn info(container: &ContainerSummary) -> Option<SandboxInfo> {
    let empty = HashMap::new();
    let labels = container.labels.as_ref().unwrap_or(&empty);
    let mut info = SandboxInfo::running(labels.get(SANDBOX)?);
    info.state = match container.state {
        Some(ContainerSummaryStateEnum::RUNNING) => SandboxState::Running,
        Some(ContainerSummaryStateEnum::PAUSED) => SandboxState::Paused,
        Some(ContainerSummaryStateEnum::EXITED) => SandboxState::Stopped,
        // Between its creation and its first start, it is nobody's yet; while it is removed, no longer.
        Some(
            ContainerSummaryStateEnum::CREATED
            | ContainerSummaryStateEnum::REMOVING
            | ContainerSummaryStateEnum::DEAD,
        ) => return None,
        _ => SandboxState::Unknown,
    };
    info.created = labels::time(labels, labels::CREATED);
    info.detached = !is_leased(container);
    info.labels = labels::caller(labels);
    Some(info)
}
