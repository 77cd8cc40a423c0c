//! The disk as the interpreter sees it.
//!
//! The interpreter puts layers of its own on top, which take `stat` for `lstat` and follow the last link
//! themselves.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use bashkit::{
    DirEntry, FileSystem, FileSystemExt, FileType, FsLimits, FsUsage, InMemoryFs, Metadata, Result,
    async_trait,
};

use super::tree::{Device, MAX_DEPTH};
use super::{Disk, Fault, Kind, Node, Outcome};
use crate::stack;

/// What `/dev/zero` gives: the interpreter reads files whole.
const ZEROS: usize = 64 << 20;

/// The result as the interpreter wants it.
fn io<T>(outcome: Outcome<T>) -> Result<T> {
    outcome.map_err(Fault::io)
}

fn metadata(node: &Node) -> Metadata {
    Metadata {
        file_type: match node.kind {
            Kind::File(_) => FileType::File,
            Kind::Directory(_) => FileType::Directory,
            Kind::Link(_) => FileType::Symlink,
            // The nearest that there is: it is not a regular file.
            Kind::Device(_) => FileType::Fifo,
        },
        size: node.size(),
        mode: node.mode & 0o7777,
        modified: node.modified,
        created: node.modified,
    }
}

impl Disk {
    fn device(&self, path: &Path) -> Option<Device> {
        match self.node(&path.into(), true).ok()?.kind {
            Kind::Device(device) => Some(device),
            _ => None,
        }
    }
}

#[async_trait]
impl FileSystem for Disk {
    async fn read_file(&self, path: &Path) -> Result<Vec<u8>> {
        // A script that starts itself begins each time by being read.
        if stack::is_deep() {
            return Err(std::io::Error::other(stack::TOO_DEEP).into());
        }
        match self.device(path) {
            None => Ok(io(self.read(&path.into()))?.to_vec()),
            Some(Device::Null) => Ok(Vec::new()),
            Some(Device::Zero) => Ok(vec![0; ZEROS]),
            Some(Device::Random) => InMemoryFs::new().read_file(Path::new("/dev/urandom")).await,
        }
    }

    async fn write_file(&self, path: &Path, content: &[u8]) -> Result<()> {
        if self.device(path).is_some() {
            return Ok(());
        }
        io(self.write(&path.into(), content.to_vec(), 0o644))
    }

    async fn append_file(&self, path: &Path, content: &[u8]) -> Result<()> {
        if self.device(path).is_some() {
            return Ok(());
        }
        io(self.append(&path.into(), content))
    }

    async fn mkdir(&self, path: &Path, recursive: bool) -> Result<()> {
        io(Self::mkdir(self, &path.into(), recursive))
    }

    async fn remove(&self, path: &Path, recursive: bool) -> Result<()> {
        io(Self::remove(self, &path.into(), recursive))
    }

    async fn stat(&self, path: &Path) -> Result<Metadata> {
        io(self.node(&path.into(), false)).map(|node| metadata(&node))
    }

    async fn read_dir(&self, path: &Path) -> Result<Vec<DirEntry>> {
        let node = io(self.node(&path.into(), true))?;
        let children = io(node.children().ok_or(Fault::NotADirectory))?;
        Ok(children
            .iter()
            .map(|(name, node)| DirEntry {
                name: String::from_utf8_lossy(name).into_owned(),
                metadata: metadata(node),
            })
            .collect())
    }

    async fn exists(&self, path: &Path) -> Result<bool> {
        Ok(self.node(&path.into(), false).is_ok())
    }

    async fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        io(Self::rename(self, &from.into(), &to.into()))
    }

    async fn copy(&self, from: &Path, to: &Path) -> Result<()> {
        let content = self.read_file(from).await?;
        let mode = io(self.node(&from.into(), true))?.mode;
        if self.device(to).is_some() {
            return Ok(());
        }
        io(self.write(&to.into(), content, mode))
    }

    async fn symlink(&self, target: &Path, link: &Path) -> Result<()> {
        io(Self::symlink(self, target.as_os_str().as_encoded_bytes().to_vec(), &link.into()))
    }

    async fn read_link(&self, path: &Path) -> Result<PathBuf> {
        match &io(self.node(&path.into(), false))?.kind {
            Kind::Link(target) => Ok(String::from_utf8_lossy(target).into_owned().into()),
            _ => Err(std::io::Error::other("not a symlink").into()),
        }
    }

    async fn chmod(&self, path: &Path, mode: u32) -> Result<()> {
        io(self.set_mode(&path.into(), mode))
    }

    async fn set_modified_time(&self, path: &Path, time: SystemTime) -> Result<()> {
        io(self.set_modified(&path.into(), time))
    }
}

#[async_trait]
impl FileSystemExt for Disk {
    fn usage(&self) -> FsUsage {
        FsUsage { total_bytes: self.capacity() - self.free(), ..FsUsage::default() }
    }

    fn limits(&self) -> FsLimits {
        let mut limits = FsLimits::new();
        limits.max_total_bytes = self.capacity();
        limits.max_file_size = self.capacity();
        limits.max_file_count = u64::MAX;
        limits.max_dir_count = u64::MAX;
        limits.max_path_depth = MAX_DEPTH;
        limits
    }
}
