//! What create sends, and how a container comes to be.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use bollard::Docker as Api;
use bollard::models::{
    ContainerCreateBody, DeviceRequest, HostConfig, HostConfigLogConfig, ImageConfig, NetworkingConfig,
};
use bollard::query_parameters::{CreateContainerOptionsBuilder, RemoveContainerOptionsBuilder};
use capbox_core::provider::*;

use crate::client::Docker;
use crate::error::{from_engine, is_absent, is_conflict};
use crate::images::{self, Ready};
use crate::labels::{self, Owner};
use crate::session::{Booted, Session};
use crate::{network, program, snapshots, volumes};

/// How long a container waits to be told what it is for, before it ends by itself.
const BOOT_WITHIN: Duration = Duration::from_mins(2);

/// What the engine is asked for.
#[derive(Debug, Default)]
pub struct Create {
    image: Option<Image>,
    snapshot: Option<String>,
    name: Option<String>,
    labels: Labels,
    env: Env,
    ttl: Option<Duration>,
    cpu: Option<f64>,
    memory: Option<u64>,
    disk: Option<u64>,
    processes: Option<u32>,
    gpu: Option<Gpu>,
    ports: Vec<u16>,
    open: bool,
    member: Option<PrivateNetwork>,
    volumes: VolumeMounts,
}

macro_rules! accepts {
    ($($Row:ident($value:ident: $Value:ty) $this:ident => $body:expr;)*) => { $(
        impl Accept<cap::$Row> for Create {
            fn accept(&mut self, $value: $Value) {
                let $this = self;
                $body
            }
        }
    )* };
}
accepts! {
    ImageName(name: String) this => { this.image = Some(Image::Name(name)); };
    ImageArchive(path: PathBuf) this => { this.image = Some(Image::Archive(path)); };
    ImageContext(path: PathBuf) this => { this.image = Some(Image::Context(path)); };
    FromSnapshot(id: String) this => { this.snapshot = Some(id); };
    Name(name: String) this => { this.name = Some(name); };
    Labels(labels: Labels) this => { this.labels = labels; };
    Env(env: Env) this => { this.env = env; };
    Ttl(ttl: Duration) this => { this.ttl = Some(ttl); };
    Cpu(cpus: f64) this => { this.cpu = Some(cpus); };
    Memory(bytes: u64) this => { this.memory = Some(bytes); };
    Disk(bytes: u64) this => { this.disk = Some(bytes); };
    Processes(count: u32) this => { this.processes = Some(count); };
    Gpu(gpu: Gpu) this => { this.gpu = Some(gpu); };
    Ports(ports: Vec<u16>) this => { this.ports = ports; };
    EgressOpen(_open: OpenEgress) this => { this.open = true; };
    EgressControl(_deny: DenyEgress) this => { this.open = false; };
    PrivateNetwork(member: PrivateNetwork) this => { this.member = Some(member); };
    Volumes(volumes: VolumeMounts) this => { this.volumes = volumes; };
    VolumeSubPath(_asked: SubPaths) _this => {};
    VolumeReadOnly(_asked: ReadOnlyVolumes) _this => {};
}

/// The image's own user, entry point and command, before capbox put its own program first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Original {
    pub(crate) user: String,
    pub(crate) entrypoint: Option<Vec<String>>,
    pub(crate) cmd: Option<Vec<String>>,
}

impl Original {
    fn of_image(config: &ImageConfig) -> Self {
        Self {
            user: config.user.clone().unwrap_or_default(),
            entrypoint: config.entrypoint.clone(),
            cmd: config.cmd.clone(),
        }
    }

    /// As the labels of a container say.
    pub(crate) fn of(labels: &HashMap<String, String>) -> Self {
        let read = |label: &String| {
            let (user, entrypoint, cmd) = serde_json::from_str(label).ok()?;
            Some(Self { user, entrypoint, cmd })
        };
        labels.get(labels::IMAGE).and_then(read).unwrap_or_default()
    }

    fn to_label(&self) -> String {
        serde_json::to_string(&(&self.user, &self.entrypoint, &self.cmd)).unwrap_or_default()
    }
}

/// A container's name, while it is leased.
pub(crate) fn leased_name(id: &str) -> String {
    format!("capbox-{id}-leased")
}

/// A container's name, once it is detached.
pub(crate) fn detached_name(id: &str) -> String {
    format!("capbox-{id}")
}

/// Removes a container that did not come to be what was asked for, also when the create is given up.
struct Unfinished {
    api: Api,
    container: Option<String>,
    member: Option<String>,
}

impl Unfinished {
    async fn remove(mut self) {
        if let Some(container) = self.container.take() {
            remove(&self.api, &container, self.member.as_deref()).await;
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let Some(container) = self.container.take() else { return };
        let (api, member) = (self.api.clone(), self.member.take());
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { remove(&api, &container, member.as_deref()).await });
        } else {
            tracing::warn!(container, "an unfinished container is left; `capbox reap` removes it");
        }
    }
}

async fn remove(api: &Api, container: &str, member: Option<&str>) {
    let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
    match api.remove_container(container, Some(options)).await {
        Err(error) if !is_absent(&error) => {
            tracing::warn!(container, %error, "an unfinished container is left; `capbox reap` removes it");
        }
        _ => {}
    }
    if let Some(network) = member
        && let Err(error) = network::leave(api, network).await
    {
        tracing::warn!(network, %error, "a network is left");
    }
}

impl Docker {
    pub(crate) async fn create_container(&self, create: Create) -> Result<Created<Session>> {
        let env = variables(&create.env)?;
        let api = self.engine.api().await?;
        self.sweep(api).await;
        let Ready { name: image, facts } = self.image(api, &create).await?;
        if !program::runs_in(facts.os.as_deref(), facts.architecture.as_deref()) {
            let (os, arch) = (facts.os.unwrap_or_default(), facts.architecture.unwrap_or_default());
            let message =
                format!("the image `{image}` is for {os}/{arch}, where capbox's own program does not run");
            return Err(Error::new(ErrorKind::NotSupported, message)
                .with_hint("use an image for this machine's architecture, or `docker-api://`, which needs no program inside"));
        }
        program::install(api, &image).await?;
        let id = match &create.name {
            Some(name) => name.clone(),
            None => labels::new_id()?,
        };
        let member = create.member.as_ref().map(|member| {
            let host = member.host.clone().unwrap_or_else(|| id.clone());
            (member.network.clone(), host)
        });
        let plan = network::Plan::of(
            api,
            create.open,
            member.as_ref().map(|(network, host)| (network.as_str(), host.as_str())),
        )
        .await?;
        let mounts = volumes::mounts(api, &create.volumes).await?;
        let config = facts.config.unwrap_or_default();
        let original = Original::of_image(&config);
        let body = body(&id, &image, &create, &original, &plan, env, mounts, member.as_ref());

        let options = CreateContainerOptionsBuilder::new().name(&leased_name(&id)).build();
        let made = match api.create_container(Some(options), body).await {
            Ok(made) => made.id,
            Err(error) if is_conflict(&error) && create.name.is_some() => {
                return self.made_elsewhere(&id).await;
            }
            Err(error) => return Err(refused(error, &image, &create)),
        };
        let unfinished = Unfinished {
            api: api.clone(),
            container: Some(made.clone()),
            member: member.as_ref().map(|(network, _)| network.clone()),
        };
        // One of that name may have been detached since, which made the name free again.
        if create.name.is_some() && self.is_there(api, &detached_name(&id)).await? {
            unfinished.remove().await;
            return self.made_elsewhere(&id).await;
        }
        let finished = async {
            plan.connect_second(api, &made).await?;
            let start = api.start_container(&made, None).await;
            start.map_err(|error| refused(error, &image, &create))?;
            let session = Session::new(self.engine.clone(), id.clone(), made.clone(), true);
            session.boot(Booted { ttl: create.ttl, owned: true }).await?;
            Ok(session)
        }
        .await;
        match finished {
            Ok(session) => {
                let mut unfinished = unfinished;
                unfinished.container = None;
                let mut created = Created::new(session);
                created.private_host = member.map(|(_, host)| host);
                Ok(created)
            }
            Err(error) => {
                unfinished.remove().await;
                Err(error)
            }
        }
    }

    /// The image that is asked for, or the configured one.
    async fn image(&self, api: &Api, create: &Create) -> Result<Ready> {
        if let Some(id) = &create.snapshot {
            if !snapshots::is_id(id) {
                return Err(snapshots::absent(id));
            }
            let name = snapshots::image(id);
            return match api.inspect_image(&name).await {
                Ok(facts) => Ok(Ready { name, facts }),
                Err(error) if is_absent(&error) => Err(snapshots::absent(id)),
                Err(error) => Err(from_engine(error, &format!("the snapshot `{id}`"))),
            };
        }
        let configured = || self.config.image.clone().map(Image::Name);
        let image = create.image.clone().or_else(configured).ok_or_else(images::no_image)?;
        images::ready(api, image, &mut |_| {}).await
    }

    async fn is_there(&self, api: &Api, name: &str) -> Result<bool> {
        match api.inspect_container(name, None).await {
            Ok(_) => Ok(true),
            Err(error) if is_absent(&error) => Ok(false),
            Err(error) => Err(from_engine(error, &format!("the container `{name}`"))),
        }
    }
}

/// An engine takes text only.
fn variables(env: &Env) -> Result<Vec<String>> {
    let line = |(name, value): (&str, &std::ffi::OsStr)| match value.to_str() {
        Some(value) => Ok(format!("{name}={value}")),
        None => Err(Error::invalid_argument(
            "env",
            format!("the value of `{name}` is not UTF-8, which an engine does not take"),
        )),
    };
    env.iter().map(line).collect()
}

#[allow(clippy::too_many_arguments, reason = "all that a container is made of, each once")]
fn body(
    id: &str,
    image: &str,
    create: &Create,
    original: &Original,
    plan: &network::Plan,
    env: Vec<String>,
    mut mounts: Vec<bollard::models::Mount>,
    member: Option<&(String, String)>,
) -> ContainerCreateBody {
    let mut all: HashMap<String, String> = labels::of_caller(&create.labels).collect();
    let mut label = |name: &str, value: String| all.insert(name.to_owned(), value);
    label(labels::SANDBOX, id.to_owned());
    label(labels::CREATED, labels::millis(SystemTime::now()).to_string());
    label(labels::IMAGE, original.to_label());
    if let Some(owner) = Owner::this() {
        label(labels::OWNER, owner.to_label());
    }
    if let Some(ttl) = create.ttl {
        label(labels::TTL, ttl.as_millis().to_string());
    }
    if let Some((network, host)) = member {
        label(labels::MEMBER, format!("{network} {host}"));
    }
    mounts.push(program::mount());
    let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    #[allow(clippy::cast_possible_truncation, reason = "no machine has so many CPUs")]
    let nano_cpus = create.cpu.map(|cpus| (cpus * 1e9) as i64);
    let gpus = create.gpu.as_ref().map(|gpu| {
        vec![DeviceRequest {
            count: Some(i64::from(gpu.count)),
            capabilities: Some(vec![vec!["gpu".to_owned()]]),
            ..DeviceRequest::default()
        }]
    });
    let host = HostConfig {
        nano_cpus,
        memory: create.memory.map(signed),
        // No swap beside the memory: the limit is one.
        memory_swap: create.memory.map(signed),
        pids_limit: create.processes.map(i64::from),
        storage_opt: create.disk.map(|bytes| HashMap::from([("size".to_owned(), bytes.to_string())])),
        device_requests: gpus,
        network_mode: Some(plan.mode.clone()),
        port_bindings: Some(network::bindings(&create.ports)),
        mounts: Some(mounts),
        // What lets one sandbox pose as another on a bridge, make devices, or write the host's audit log.
        cap_drop: Some(["NET_RAW", "MKNOD", "AUDIT_WRITE"].map(str::to_owned).to_vec()),
        // The program prints nothing, and nothing else does so there.
        log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
        ..HostConfig::default()
    };
    let within = BOOT_WITHIN.as_millis().to_string();
    ContainerCreateBody {
        image: Some(image.to_owned()),
        hostname: Some(id.to_owned()),
        user: Some("0:0".to_owned()),
        entrypoint: Some([program::PATH, "init", "--boot-within", &within].map(str::to_owned).to_vec()),
        cmd: Some(Vec::new()),
        env: Some(env),
        labels: Some(all),
        exposed_ports: Some(network::exposed(&create.ports)),
        networking_config: plan.endpoint.clone().map(|endpoint| NetworkingConfig {
            endpoints_config: Some(HashMap::from([(plan.mode.clone(), endpoint)])),
        }),
        host_config: Some(host),
        ..ContainerCreateBody::default()
    }
}

/// Why the engine does not make or start the container, in the words of what was asked.
fn refused(error: bollard::errors::Error, image: &str, create: &Create) -> Error {
    let text = error.to_string();
    if create.disk.is_some() && text.contains("storage-opt") {
        return Error::new(
            ErrorKind::NotSupported,
            "this engine's storage cannot limit the disk of a container",
        )
        .with_hint("that takes `overlay2` on XFS with project quotas, `btrfs` or `zfs`")
        .with_source(error);
    }
    if create.gpu.is_some() && (text.contains("device driver") || text.contains("nvidia")) {
        return Error::new(ErrorKind::NotSupported, "this engine has no GPU to give")
            .with_hint("install the vendor's container toolkit, and see that `docker run --gpus all` works")
            .with_source(error);
    }
    from_engine(error, &format!("a container of the image `{image}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_images_own_command_comes_back_from_the_label() {
        let original = Original {
            user: "app:staff".to_owned(),
            entrypoint: Some(vec!["sh".to_owned(), "-c".to_owned()]),
            cmd: None,
        };
        let all = HashMap::from([(labels::IMAGE.to_owned(), original.to_label())]);
        assert_eq!(Original::of(&all), original);
        assert_eq!(Original::of(&HashMap::new()), Original::default());
    }
}
