//! Object-safe traits for rows whose provider trait speaks of the provider's own types, and their adapters.

use std::sync::Arc;

use async_trait::async_trait;

use super::core::{ClientCore, Core};
use super::images::Progress;
use super::output::Output;
use super::process::ProcessId;
use super::sandbox::SandboxInfo;
use super::snapshots::SnapshotInfo;
use super::volumes::VolumeInfo;
use crate::capability::answer::{Implements, ImplementsClient};
use crate::capability::cap;
use crate::capability::rows::ExecOptions;
use crate::error::Result;
use crate::provider::{self as spi, Spawned, Table};
use crate::spec::{Command, Image, Labels, TerminalSize};

/// `lifecycle.list`, erased.
#[async_trait]
pub trait List: Send + Sync {
    async fn list(&self, labels: &Labels) -> Result<Vec<SandboxInfo>>;
}

/// `lifecycle.connect`, erased.
#[async_trait]
pub trait Connect: Send + Sync {
    async fn connect(&self, id: &str) -> Result<Arc<Core>>;
}

/// `snapshot.list`, erased.
#[async_trait]
pub trait SnapshotList: Send + Sync {
    async fn snapshots(&self) -> Result<Vec<SnapshotInfo>>;
}

/// `snapshot.delete`, erased.
#[async_trait]
pub trait SnapshotDelete: Send + Sync {
    async fn delete_snapshot(&self, id: &str) -> Result<()>;
}

/// `source.prepare`, erased.
#[async_trait]
pub trait PrepareImage: Send + Sync {
    async fn prepare_image(
        &self,
        image: Option<Image>,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Image>;
}

/// `volumes.manage`, erased.
#[async_trait]
pub trait VolumesManage: Send + Sync {
    async fn create_volume(&self, name: &str) -> Result<VolumeInfo>;
    async fn volumes(&self) -> Result<Vec<VolumeInfo>>;
    async fn delete_volume(&self, id: &str) -> Result<()>;
}

/// `exec.run`, erased.
#[async_trait]
pub trait Run: Send + Sync {
    async fn run(&self, command: Command, options: ExecOptions) -> Result<Output>;
}

/// `exec.streaming`, erased.
#[async_trait]
pub trait Streaming: Send + Sync {
    async fn spawn(&self, command: Command, options: ExecOptions) -> Result<Spawned>;
}

/// `exec.background`, erased.
#[async_trait]
pub trait Background: Send + Sync {
    async fn spawn_background(&self, command: Command, options: ExecOptions) -> Result<ProcessId>;
}

/// `exec.pty`, erased.
#[async_trait]
pub trait Pty: Send + Sync {
    async fn open(&self, command: Command, options: ExecOptions, size: TerminalSize) -> Result<Spawned>;
}

/// `snapshot.fork`, erased.
#[async_trait]
pub trait Fork: Send + Sync {
    async fn fork(&self, count: u32) -> Result<Vec<Result<Arc<Core>>>>;
}

/// The adapter of client rows.
struct OfClient<P> {
    provider: Arc<P>,
    client: Arc<ClientCore>,
}

/// The adapter of sandbox rows.
struct OfSession<P: Table> {
    session: Arc<P::Session>,
    client: Arc<ClientCore>,
}

/// The provider's own request for one exec.
pub(crate) fn lower<P: Table>(command: Command, options: ExecOptions) -> Result<P::Exec> {
    let mut body = P::Exec::from(command);
    options.lower::<P>(&mut body)?;
    Ok(body)
}

#[async_trait]
impl<P: spi::List> List for OfClient<P> {
    async fn list(&self, labels: &Labels) -> Result<Vec<SandboxInfo>> {
        self.provider.list(labels).await
    }
}

impl<P: spi::List> ImplementsClient<cap::List> for P {
    fn bind(this: &Arc<Self>, client: &Arc<ClientCore>) -> Arc<dyn List> {
        Arc::new(OfClient { provider: this.clone(), client: client.clone() })
    }
}

#[async_trait]
impl<P: spi::Connect + Table> Connect for OfClient<P> {
    async fn connect(&self, id: &str) -> Result<Arc<Core>> {
        Ok(Core::new::<P>(&self.client, self.provider.connect(id).await?))
    }
}

impl<P: spi::Connect + Table> ImplementsClient<cap::Connect> for P {
    fn bind(this: &Arc<Self>, client: &Arc<ClientCore>) -> Arc<dyn Connect> {
        Arc::new(OfClient { provider: this.clone(), client: client.clone() })
    }
}

#[async_trait]
impl<P: spi::SnapshotList> SnapshotList for OfClient<P> {
    async fn snapshots(&self) -> Result<Vec<SnapshotInfo>> {
        self.provider.snapshots().await
    }
}

impl<P: spi::SnapshotList> ImplementsClient<cap::SnapshotList> for P {
    fn bind(this: &Arc<Self>, client: &Arc<ClientCore>) -> Arc<dyn SnapshotList> {
        Arc::new(OfClient { provider: this.clone(), client: client.clone() })
    }
}

#[async_trait]
impl<P: spi::SnapshotDelete> SnapshotDelete for OfClient<P> {
    async fn delete_snapshot(&self, id: &str) -> Result<()> {
        self.provider.delete_snapshot(id).await
    }
}

impl<P: spi::SnapshotDelete> ImplementsClient<cap::SnapshotDelete> for P {
    fn bind(this: &Arc<Self>, client: &Arc<ClientCore>) -> Arc<dyn SnapshotDelete> {
        Arc::new(OfClient { provider: this.clone(), client: client.clone() })
    }
}

#[async_trait]
impl<P: spi::PrepareImage> PrepareImage for OfClient<P> {
    async fn prepare_image(
        &self,
        image: Option<Image>,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Image> {
        self.provider.prepare_image(image, progress).await
    }
}

impl<P: spi::PrepareImage> ImplementsClient<cap::PrepareImage> for P {
    fn bind(this: &Arc<Self>, client: &Arc<ClientCore>) -> Arc<dyn PrepareImage> {
        Arc::new(OfClient { provider: this.clone(), client: client.clone() })
    }
}

#[async_trait]
impl<P: spi::VolumesManage> VolumesManage for OfClient<P> {
    async fn create_volume(&self, name: &str) -> Result<VolumeInfo> {
        self.provider.create_volume(name).await
    }

    async fn volumes(&self) -> Result<Vec<VolumeInfo>> {
        self.provider.volumes().await
    }

    async fn delete_volume(&self, id: &str) -> Result<()> {
        self.provider.delete_volume(id).await
    }
}

impl<P: spi::VolumesManage> ImplementsClient<cap::VolumesManage> for P {
    fn bind(this: &Arc<Self>, client: &Arc<ClientCore>) -> Arc<dyn VolumesManage> {
        Arc::new(OfClient { provider: this.clone(), client: client.clone() })
    }
}

macro_rules! adapted {
    ($($Row:ident: $bound:path;)*) => { $(
        impl<P, S> Implements<cap::$Row, P> for S
        where
            P: Table<Session = S>,
            S: $bound + Send + Sync + 'static,
        {
            fn bind(this: Arc<Self>, core: &Arc<Core>) -> Arc<dyn $Row> {
                Arc::new(OfSession::<P> { session: this, client: core.client.clone() })
            }
        }
    )* };
}
adapted! {
    Run: spi::Run<P::Exec>;
    Streaming: spi::Streaming<P::Exec>;
    Background: spi::Background<P::Exec>;
    Pty: spi::Pty<P::Exec>;
    Fork: spi::Fork<Session = S>;
}

#[async_trait]
impl<P: Table<Session: spi::Run<P::Exec>>> Run for OfSession<P> {
    async fn run(&self, command: Command, options: ExecOptions) -> Result<Output> {
        spi::Run::run(&*self.session, lower::<P>(command, options)?).await
    }
}

#[async_trait]
impl<P: Table<Session: spi::Streaming<P::Exec>>> Streaming for OfSession<P> {
    async fn spawn(&self, command: Command, options: ExecOptions) -> Result<Spawned> {
        spi::Streaming::spawn(&*self.session, lower::<P>(command, options)?).await
    }
}

#[async_trait]
impl<P: Table<Session: spi::Background<P::Exec>>> Background for OfSession<P> {
    async fn spawn_background(&self, command: Command, options: ExecOptions) -> Result<ProcessId> {
        spi::Background::spawn_background(&*self.session, lower::<P>(command, options)?).await
    }
}

#[async_trait]
impl<P: Table<Session: spi::Pty<P::Exec>>> Pty for OfSession<P> {
    async fn open(&self, command: Command, options: ExecOptions, size: TerminalSize) -> Result<Spawned> {
        spi::Pty::open(&*self.session, lower::<P>(command, options)?, size).await
    }
}

#[async_trait]
impl<P: Table<Session: spi::Fork<Session = P::Session>>> Fork for OfSession<P> {
    async fn fork(&self, count: u32) -> Result<Vec<Result<Arc<Core>>>> {
        let forks = spi::Fork::fork(&*self.session, count).await?;
        Ok(forks.into_iter().map(|fork| Ok(Core::new::<P>(&self.client, fork?))).collect())
    }
}
