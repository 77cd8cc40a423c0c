//! Files and folders: the file rows, by the guest, so with the rights of the code's user, and at one moment each.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use capbox_core::emulate::host::{Incoming, Outgoing};
use capbox_core::provider::*;
use capbox_guest::client::{self, Error as GuestError, Relay, Watch};
use capbox_guest::proto::{Stat, change};
use futures_util::{StreamExt, TryStreamExt};

use crate::exec::guest::Whereabouts;
use crate::session::Session;

/// The most that a read holds in memory.
const MOST_READ: u64 = 1 << 30;

/// How many links are read at a time.
const LINKS: usize = 32;

const FORMAT: u32 = 0o170_000;
const FOLDER: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

const EINVAL: i32 = 22;
const ENOENT: i32 = 2;

#[async_trait]
impl FilesRead for Session {
    async fn read(&self, path: &SandboxPath, range: ReadRange) -> Result<Bytes> {
        let most = range.length.unwrap_or(u64::MAX);
        let read = async |relay: Relay| relay.read(path.as_bytes(), range.offset, most, MOST_READ).await;
        self.ask(&path.to_string(), read).await.map(Bytes::from)
    }
}

#[async_trait]
impl FilesWrite for Session {
    async fn write(&self, path: &SandboxPath, content: Bytes, options: WriteOptions) -> Result<()> {
        let WriteOptions { mode, parents, .. } = options;
        let mut how = client::WriteOptions::default();
        how.mode = mode;
        how.parents = parents;
        self.ask(&path.to_string(), async |relay| relay.write(path.as_bytes(), &content, &how).await).await
    }
}

#[async_trait]
impl FilesList for Session {
    async fn list(&self, path: &SandboxPath) -> Result<Vec<Entry>> {
        let list = async |relay: Relay| {
            let found = relay.list(path.as_bytes()).await?;
            let entries = found.into_iter().map(|found| {
                let (relay, inside) = (&relay, path.join(found.name.0.clone()));
                async move {
                    let target = link_target(relay, inside.as_bytes(), &found.stat).await?;
                    Ok::<_, GuestError>(entry(found.name.0, &found.stat, target))
                }
            });
            let mut entries: Vec<_> =
                futures_util::stream::iter(entries).buffered(LINKS).try_collect().await?;
            entries.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(entries)
        };
        self.ask(&path.to_string(), list).await
    }

    async fn stat(&self, path: &SandboxPath, follow: bool) -> Result<Entry> {
        let stat = async |relay: Relay| {
            let stat = relay.stat(path.as_bytes(), follow).await?;
            let target = link_target(&relay, path.as_bytes(), &stat).await?;
            Ok(entry(path.file_name().to_vec(), &stat, target))
        };
        self.ask(&path.to_string(), stat).await
    }
}

/// What a link says; `None` where it is none, or gone by now.
async fn link_target(relay: &Relay, path: &[u8], stat: &Stat) -> Result<Option<SandboxPath>, GuestError> {
    if stat.mode & FORMAT != LINK {
        return Ok(None);
    }
    match relay.read_link(path).await {
        Ok(target) => Ok(Some(SandboxPath::from_bytes(target))),
        Err(GuestError::File { errno: ENOENT | EINVAL }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn entry(name: Vec<u8>, stat: &Stat, target: Option<SandboxPath>) -> Entry {
    let kind = match stat.mode & FORMAT {
        REGULAR => EntryKind::File,
        FOLDER => EntryKind::Directory,
        LINK => EntryKind::Symlink,
        _ => EntryKind::Other,
    };
    let mut entry = Entry::new(SandboxPath::from_bytes(name), kind);
    entry.size = if kind == EntryKind::File { stat.size } else { 0 };
    entry.mode = stat.mode & 0o7777;
    entry.modified = modified(stat);
    entry.target = target;
    entry
}

/// When the content changed last, where that is a time that this machine can tell.
fn modified(stat: &Stat) -> Option<SystemTime> {
    let seconds = Duration::from_secs(stat.mtime.unsigned_abs());
    let whole =
        if stat.mtime < 0 { UNIX_EPOCH.checked_sub(seconds) } else { UNIX_EPOCH.checked_add(seconds) };
    whole?.checked_add(Duration::from_nanos(stat.mtime_nanos.into()))
}

#[async_trait]
impl FilesModify for Session {
    async fn mkdir(&self, path: &SandboxPath, parents: bool) -> Result<()> {
        self.ask(&path.to_string(), async |relay| relay.mkdir(path.as_bytes(), 0o755, parents).await).await
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        let rename = async |relay: Relay| relay.rename(from.as_bytes(), to.as_bytes(), true).await;
        self.ask(&from.to_string(), rename).await
    }

    async fn remove(&self, path: &SandboxPath, recursive: bool) -> Result<()> {
        let remove = async |relay: Relay| {
            if recursive {
                relay.remove_all(path.as_bytes()).await
            } else {
                relay.remove(path.as_bytes()).await
            }
        };
        self.ask(&path.to_string(), remove).await
    }

    async fn symlink(&self, target: &SandboxPath, path: &SandboxPath) -> Result<()> {
        let link = async |relay: Relay| relay.symlink(target.as_bytes(), path.as_bytes()).await;
        self.ask(&path.to_string(), link).await
    }
}

#[async_trait]
impl FilesPermissions for Session {
    async fn set_mode(&self, path: &SandboxPath, mode: u32) -> Result<()> {
        self.ask(&path.to_string(), async |relay| relay.chmod(path.as_bytes(), mode).await).await
    }
}

#[async_trait]
impl FilesUpload for Session {
    async fn upload(&self, source: &Path, target: &SandboxPath) -> Result<Transferred> {
        let file = Outgoing::open(source).await?;
        let (size, modified) = (file.size(), file.modified());
        let mut how = client::WriteOptions::default();
        how.mode = Some(file.mode());
        how.parents = true;
        let what = target.to_string();
        let relay = self.relay().await?;
        let failed = async |error| Err(self.whereabouts().failed(error, &what).await);
        let mut writer = match relay.create_file(target.as_bytes(), &how).await {
            Ok(writer) => writer,
            Err(error) => return failed(error).await,
        };
        let mut pieces = file.pieces();
        let mut sent = 0;
        while let Some(piece) = pieces.recv().await {
            let piece = piece.map_err(|error| capbox_core::emulate::host::error(source, error))?;
            sent += piece.len() as u64;
            if let Err(error) = writer.write(&piece).await {
                return failed(error).await;
            }
        }
        if sent != size {
            let message = format!("`{}` on this machine became shorter meanwhile", source.display());
            return Err(Error::new(ErrorKind::Conflict, message));
        }
        let finish = async {
            writer.finish().await?;
            match modified.map(since_the_epoch) {
                Some((seconds, nanos)) => relay.set_modified(target.as_bytes(), seconds, nanos).await,
                None => Ok(()),
            }
        };
        if let Err(error) = finish.await {
            return failed(error).await;
        }
        Ok(transferred(size))
    }

    async fn download(&self, source: &SandboxPath, target: &Path) -> Result<Transferred> {
        let what = source.to_string();
        let mut file =
            self.ask(&what, async |relay| relay.open_file(source.as_bytes(), 0, u64::MAX).await).await?;
        let mut incoming = Incoming::create(target).await?;
        let mut size = 0;
        loop {
            match file.next().await {
                Ok(Some(bytes)) => {
                    size += bytes.len() as u64;
                    incoming.write(bytes).await?;
                }
                Ok(None) => break,
                Err(error) => return Err(self.whereabouts().failed(error, &what).await),
            }
        }
        incoming.place(Some(file.stat().mode), modified(file.stat())).await?;
        Ok(transferred(size))
    }
}

fn since_the_epoch(time: SystemTime) -> (i64, u32) {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => (i64::try_from(after.as_secs()).unwrap_or(i64::MAX), after.subsec_nanos()),
        Err(before) => (-i64::try_from(before.duration().as_secs()).unwrap_or(i64::MAX), 0),
    }
}

fn transferred(bytes: u64) -> Transferred {
    let mut done = Transferred::none();
    done.files = 1;
    done.bytes = bytes;
    done
}

#[async_trait]
impl FilesWatch for Session {
    async fn watch(&self, path: &SandboxPath, recursive: bool) -> Result<Box<dyn FileEvents>> {
        let watch = async |relay: Relay| relay.watch(path.as_bytes(), recursive).await;
        let watch = self.ask(&path.to_string(), watch).await?;
        Ok(Box::new(Watched { watch, root: path.clone(), whereabouts: self.whereabouts() }))
    }
}

struct Watched {
    watch: Watch,
    root: SandboxPath,
    whereabouts: Whereabouts,
}

#[async_trait]
impl FileEvents for Watched {
    async fn next(&mut self) -> Result<Option<FileEvent>> {
        let found = match self.watch.next().await {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(None),
            Err(error) => return Err(self.whereabouts.failed(error, &self.root.to_string()).await),
        };
        let kind = match found.kind {
            change::CREATED => FileEventKind::Created,
            change::MODIFIED => FileEventKind::Modified,
            change::REMOVED => FileEventKind::Removed,
            _ => FileEventKind::Overflow,
        };
        let path = if found.path.is_empty() { self.root.clone() } else { self.root.join(found.path.0) };
        Ok(Some(FileEvent::new(kind, path)))
    }
}
