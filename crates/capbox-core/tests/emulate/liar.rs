//! A provider without any machine: what it lists, reads and snapshots is made up.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use capbox_core::emulate::*;
use capbox_core::provider::*;

/// Answers with the entries that it was given.
#[derive(Default)]
pub(crate) struct Liar {
    tree: BTreeMap<Vec<u8>, Vec<Entry>>,
    pub(crate) snapshots: Arc<Mutex<Snapshots>>,
}

/// What became of snapshots and of the sandboxes created from them.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    pub(crate) living: Vec<String>,
    pub(crate) deleted: Vec<String>,
    pub(crate) created: usize,
    /// Which creation fails.
    pub(crate) fails: Option<usize>,
    /// Creations take for ever.
    pub(crate) hangs: bool,
}

impl Liar {
    /// A sandbox with these folders, by their path below `/`.
    pub(crate) async fn sandbox(tree: Vec<(&str, Vec<Entry>)>) -> Sandbox<Self> {
        let tree =
            tree.into_iter().map(|(path, entries)| (format!("/{path}").into_bytes(), entries)).collect();
        Self { tree, ..Self::default() }.create_one().await
    }

    pub(crate) async fn create_one(self) -> Sandbox<Self> {
        Client::new(self).create_with(Spec::new().network(Network::open())).await.unwrap()
    }
}

pub(crate) struct Session(BTreeMap<Vec<u8>, Vec<Entry>>, Arc<Mutex<Snapshots>>);

#[derive(Default)]
pub(crate) struct NewSandbox {
    open: bool,
    snapshot: Option<String>,
}
impl Accept<cap::EgressOpen> for NewSandbox {
    fn accept(&mut self, _: OpenEgress) {
        self.open = true;
    }
}
impl Accept<cap::Ttl> for NewSandbox {
    fn accept(&mut self, _: Duration) {}
}
impl Accept<cap::FromSnapshot> for NewSandbox {
    fn accept(&mut self, id: String) {
        self.snapshot = Some(id);
    }
}

#[async_trait]
impl Backend for Liar {
    const ID: &'static str = "liar";
    const FLAGS: Flags = Flags::DEFAULT;
    type Session = Session;
    type Create = NewSandbox;
    type Exec = Command;
    type NativeClient = ();
    type NativeSandbox = ();

    async fn create(&self, body: NewSandbox) -> Result<Created<Session>> {
        assert!(body.open, "who made the first one said that it may be open");
        if let Some(id) = body.snapshot {
            let (number, known, fails, hangs) = {
                let mut snapshots = self.snapshots.lock().unwrap();
                snapshots.created += 1;
                (snapshots.created, snapshots.living.contains(&id), snapshots.fails, snapshots.hangs)
            };
            if hangs {
                std::future::pending::<()>().await;
            }
            if !known || fails == Some(number) {
                return Err(Error::new(ErrorKind::NotFound, format!("no snapshot `{id}`")));
            }
        }
        Ok(Created::new(Session(self.tree.clone(), self.snapshots.clone())))
    }
    fn id(_: &Session) -> &'static str {
        "liar"
    }
    async fn destroy(_: &Session) -> Result<()> {
        Ok(())
    }
    async fn detach(_: &Session) -> Result<()> {
        Ok(())
    }
    async fn reap(&self) -> Result<Vec<String>> {
        Ok(vec![])
    }
    fn native_client(&self) -> &() {
        &()
    }
    fn native(_: &Session) -> &() {
        &()
    }
}

#[async_trait]
impl FilesList for Session {
    async fn list(&self, path: &SandboxPath) -> Result<Vec<Entry>> {
        let folder = self.0.get(path.as_bytes()).cloned();
        folder.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("no folder `{path}`")))
    }
    async fn stat(&self, path: &SandboxPath, _: bool) -> Result<Entry> {
        Ok(Entry::new(path.file_name(), EntryKind::File))
    }
}

#[async_trait]
impl FilesRead for Session {
    async fn read(&self, _: &SandboxPath, _: ReadRange) -> Result<Bytes> {
        Ok(Bytes::from_static(b"made up"))
    }
}

#[async_trait]
impl FilesModify for Session {
    async fn mkdir(&self, _: &SandboxPath, _: bool) -> Result<()> {
        Ok(())
    }
    async fn rename(&self, _: &SandboxPath, _: &SandboxPath) -> Result<()> {
        Ok(())
    }
    async fn remove(&self, _: &SandboxPath, _: bool) -> Result<()> {
        Ok(())
    }
    async fn symlink(&self, _: &SandboxPath, _: &SandboxPath) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl FilesPermissions for Session {
    async fn set_mode(&self, _: &SandboxPath, _: u32) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl FilesUpload for Session {
    async fn upload(&self, _: &Path, _: &SandboxPath) -> Result<Transferred> {
        Ok(Transferred::none())
    }
    async fn download(&self, _: &SandboxPath, target: &Path) -> Result<Transferred> {
        std::fs::write(target, "made up").unwrap();
        let mut one = Transferred::none();
        (one.files, one.bytes) = (1, 7);
        Ok(one)
    }
}

#[async_trait]
impl Snapshot for Session {
    async fn create(&self, _: Option<&str>) -> Result<SnapshotInfo> {
        let mut snapshots = self.1.lock().unwrap();
        let id = format!("snapshot-{}", snapshots.living.len() + snapshots.deleted.len());
        snapshots.living.push(id.clone());
        Ok(SnapshotInfo::new(id))
    }
}

#[async_trait]
impl SnapshotDelete for Liar {
    async fn delete_snapshot(&self, id: &str) -> Result<()> {
        let mut snapshots = self.snapshots.lock().unwrap();
        snapshots.living.retain(|living| living != id);
        snapshots.deleted.push(id.to_owned());
        Ok(())
    }
}

lean_table! { Liar {
    FilesRead: Native;
    FilesList: Native;
    FilesModify: Native;
    FilesPermissions: Native;
    FilesUpload: Native;
    FilesTree: Emulated<TreeByFiles> = "entry by entry";
    FilesWatch: Emulated<Polling> = "by looking";
    FilesSearch: Emulated<SearchByFiles> = "by reading";
    Snapshot: Native;
    SnapshotDelete: Native;
    Fork: Emulated<ForkBySnapshot> = "by a snapshot";
    FromSnapshot: Native;
    FilesWrite: No = "lean";
    Run: No = "lean";
    Streaming: No = "lean";
    Input: No = "lean";
    Stdin: No = "lean";
    ExecCwd: No = "lean";
    ExecEnv: No = "lean";
    Timeout: No = "lean";
} }
