//! Files and folders. Everything is done with the rights of the code's default user, inside the container's root.
//! Paths are bytes; relative ones begin at the container's default folder.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::vec::Vec;

use bytes::Bytes;
use std::format;
use std::future::poll_fn;

use super::link::{Channel, Item};
use super::{Error, Relay, Result, nonsense};
use crate::proto::{self, Answer, Change, Entry, FileReply, FileRequest, Stat, Work, open};
use crate::stream::Kind;

/// Links that are followed before it counts as a loop.
const MOST_LINKS: u32 = 40;
const ENOENT: i32 = 2;
const EISDIR: i32 = 21;
const ELOOP: i32 = 40;
const FORMAT: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
const FOLDER: u32 = 0o040_000;
const LINK: u32 = 0o120_000;

/// How to write a file.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct WriteOptions {
    /// Permission bits; by default those of the file that was there, else 0644.
    pub mode: Option<u32>,
    /// Makes missing folders on the way.
    pub parents: bool,
    /// Writes at the end of what is there, rather than replacing it.
    pub append: bool,
}

impl Relay {
    /// What is known of a file. With `follow`, of what a link at the end of the path leads to.
    pub async fn stat(&self, path: &[u8], follow: bool) -> Result<Stat> {
        match self.ask_file(FileRequest::Stat { path: path.into(), follow }).await? {
            FileReply::Stat { stat } => Ok(stat),
            _ => Err(nonsense()),
        }
    }

    /// What is in a folder, `.` and `..` left out, in no order. Links are not followed.
    pub async fn list(&self, path: &[u8]) -> Result<Vec<Entry>> {
        let mut channel = self.0.open(&Work::List { path: path.into() }.encode())?;
        let mut found = Vec::new();
        loop {
            match reply(&mut channel).await? {
                Reply::Answer(Answer::Entries { entries }) => found.extend(entries),
                Reply::End => return Ok(found),
                _ => return Err(nonsense()),
            }
        }
    }

    /// The bytes of a regular file from a position on, `most` of them unless it ends before; more than `limit` is
    /// [`Error::TooLarge`].
    pub async fn read(&self, path: &[u8], from: u64, most: u64, limit: u64) -> Result<Vec<u8>> {
        let mut file = self.open_file(path, from, most).await?;
        let size = file.stat().size.saturating_sub(from).min(most);
        if size > limit {
            return Err(Error::TooLarge { size, limit });
        }
        let mut content = Vec::with_capacity(usize::try_from(size).unwrap_or_default());
        while let Some(data) = file.next().await? {
            if (content.len() + data.len()) as u64 > limit {
                return Err(Error::TooLarge { size: (content.len() + data.len()) as u64, limit });
            }
            content.extend_from_slice(&data);
        }
        Ok(content)
    }

    /// Opens a regular file to read it from a position on, at any size and pace: no more of it than `most`, nor than there
    /// is now.
    pub async fn open_file(&self, path: &[u8], from: u64, most: u64) -> Result<FileReader> {
        let mut channel = self.0.open(&Work::Read { path: path.into(), from, most }.encode())?;
        match reply(&mut channel).await? {
            Reply::Answer(Answer::Opened { stat }) => Ok(FileReader { channel, stat, ended: false }),
            _ => Err(nonsense()),
        }
    }

    /// Replaces a file's content, at once: see [`create_file`](Self::create_file).
    pub async fn write(&self, path: &[u8], content: &[u8], options: &WriteOptions) -> Result<()> {
        let mut file = self.create_file(path, options).await?;
        file.write(content).await?;
        file.finish().await
    }

    /// Begins to replace a file's content. It is written beside the file, which is replaced by
    /// [`finish`](FileWriter::finish): until then, and when anything fails, the old content is there, and nothing else. A
    /// link at the end of the path is written through. Appending writes to the file itself.
    pub async fn create_file(&self, path: &[u8], options: &WriteOptions) -> Result<FileWriter> {
        let WriteOptions { mode, parents, append } = options;
        if *parents && let Some((folder, _)) = split(path).filter(|(folder, _)| !folder.is_empty()) {
            self.mkdir(folder, 0o755, true).await?;
        }
        let (path, old) = self.resolve(path.to_vec()).await?;
        let mode = mode.or(old.map(|old| old.mode & 0o7777)).unwrap_or(0o644);
        let work = if *append {
            let flags = open::WRITE | open::APPEND | open::CREATE;
            Work::Write { path: path[..].into(), flags, mode, then: None }
        } else {
            let flags = open::WRITE | open::CREATE | open::EXCLUSIVE;
            let mut beside = split(&path).map_or(&b""[..], |(folder, _)| folder).to_vec();
            beside.extend_from_slice(format!(".capbox-{:016x}", random()).as_bytes());
            Work::Write { path: beside[..].into(), flags, mode: mode & 0o1777, then: Some(path[..].into()) }
        };
        let mut channel = self.0.open(&work.encode())?;
        match reply(&mut channel).await? {
            Reply::Answer(Answer::Opened { .. }) => Ok(FileWriter { channel, failed: false }),
            _ => Err(nonsense()),
        }
    }

    /// Follows links at the end of a path. Answers with the path of a regular file, or of nothing yet.
    async fn resolve(&self, mut path: Vec<u8>) -> Result<(Vec<u8>, Option<Stat>)> {
        for _ in 0..MOST_LINKS {
            let found = match self.stat(&path, false).await {
                Ok(found) => found,
                Err(Error::File { errno: ENOENT }) => return Ok((path, None)),
                Err(error) => return Err(error),
            };
            match found.mode & FORMAT {
                REGULAR => return Ok((path, Some(found))),
                FOLDER => return Err(Error::File { errno: EISDIR }),
                LINK => {
                    // Wherever it points: process 1 keeps it inside.
                    let target = self.read_link(&path).await?;
                    let mut next = Vec::new();
                    if target.first() != Some(&b'/') {
                        next.extend_from_slice(split(&path).map_or(b"", |(folder, _)| folder));
                    }
                    next.extend_from_slice(&target);
                    path = next;
                }
                _ => return Err(Error::Special { mode: found.mode }),
            }
        }
        Err(Error::File { errno: ELOOP })
    }

    /// Makes a folder. With `parents`, also those missing on the way, and one that is there already is no error.
    pub async fn mkdir(&self, path: &[u8], mode: u32, parents: bool) -> Result<()> {
        self.order_file(FileRequest::Mkdir { path: path.into(), mode, parents }).await
    }

    /// Gives a file or folder another name; with `replace`, in place of what has that name.
    pub async fn rename(&self, from: &[u8], to: &[u8], replace: bool) -> Result<()> {
        self.order_file(FileRequest::Rename { from: from.into(), to: to.into(), no_replace: !replace }).await
    }

    /// Removes a file, a link (not what it leads to), or an empty folder.
    pub async fn remove(&self, path: &[u8]) -> Result<()> {
        match self.order_file(FileRequest::Remove { path: path.into(), directory: false }).await {
            Err(Error::File { errno: EISDIR }) => {
                self.order_file(FileRequest::Remove { path: path.into(), directory: true }).await
            }
            result => result,
        }
    }

    /// Removes a file or link, or a folder with all that is in it. What is mounted is left alone.
    pub async fn remove_all(&self, path: &[u8]) -> Result<()> {
        self.order_file(FileRequest::RemoveTree { path: path.into() }).await
    }

    /// Makes a symbolic link at `path` that says `target`.
    pub async fn symlink(&self, target: &[u8], path: &[u8]) -> Result<()> {
        self.order_file(FileRequest::Symlink { target: target.into(), path: path.into() }).await
    }

    /// What a symbolic link says.
    pub async fn read_link(&self, path: &[u8]) -> Result<Vec<u8>> {
        match self.ask_file(FileRequest::Readlink { path: path.into() }).await? {
            FileReply::Link { target } => Ok(target.0),
            _ => Err(nonsense()),
        }
    }

    /// Sets the permission bits of a file or folder.
    pub async fn chmod(&self, path: &[u8], mode: u32) -> Result<()> {
        self.order_file(FileRequest::Chmod { path: path.into(), mode }).await
    }

    /// Sets when a file's content last changed: seconds since 1970, and nanoseconds.
    pub async fn set_modified(&self, path: &[u8], seconds: i64, nanos: u32) -> Result<()> {
        self.order_file(FileRequest::SetTimes { path: path.into(), follow: true, seconds, nanos }).await
    }

    /// Tells changes in a folder, and with `recursive` in all below it, from now on.
    pub async fn watch(&self, path: &[u8], recursive: bool) -> Result<Watch> {
        let mut channel = self.0.open(&Work::Watch { path: path.into(), recursive }.encode())?;
        match reply(&mut channel).await? {
            Reply::Answer(Answer::Opened { .. }) => Ok(Watch { channel, pending: VecDeque::new() }),
            _ => Err(nonsense()),
        }
    }

    async fn order_file(&self, request: FileRequest) -> Result<()> {
        match self.ask_file(request).await? {
            FileReply::Done => Ok(()),
            _ => Err(nonsense()),
        }
    }

    async fn ask_file(&self, request: FileRequest) -> Result<FileReply> {
        match reply(&mut self.0.open(&request.encode())?).await? {
            Reply::File(reply) => Ok(reply),
            _ => Err(nonsense()),
        }
    }
}

/// What comes on a channel that is about files. Failures are errors.
enum Reply {
    Answer(Answer),
    File(FileReply),
    Data(Bytes),
    End,
}

async fn reply(channel: &mut Channel) -> Result<Reply> {
    let bytes = match channel.next().await?.ok_or_else(nonsense)? {
        Item::Event(bytes) => bytes,
        Item::Data(data) => return Ok(Reply::Data(data)),
        Item::End => return Ok(Reply::End),
        Item::Errors(_) => return Err(nonsense()),
    };
    if let Ok(answer) = Answer::decode(&bytes) {
        return Ok(Reply::Answer(answer));
    }
    Err(match FileReply::decode(&bytes) {
        Ok(FileReply::Failed { errno }) => Error::File { errno },
        Ok(FileReply::Outside) => Error::Outside,
        Ok(FileReply::Special { mode }) => Error::Special { mode },
        Ok(FileReply::Version { .. }) | Err(proto::Malformed::Version(_)) => Error::Version,
        Ok(reply) => return Ok(Reply::File(reply)),
        Err(_) => nonsense(),
    })
}

/// The path's folder with its slash, and its last name.
fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = path.iter().rposition(|byte| *byte != b'/')? + 1;
    let slash = path[..end].iter().rposition(|byte| *byte == b'/');
    Some(path[..end].split_at(slash.map_or(0, |slash| slash + 1)))
}

/// A number that nobody inside can guess: the seed of this process's hash tables.
fn random() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// A regular file that is being read.
#[derive(Debug)]
pub struct FileReader {
    channel: Channel,
    stat: Stat,
    ended: bool,
}

impl FileReader {
    /// What was known of it when it was opened.
    pub fn stat(&self) -> &Stat {
        &self.stat
    }

    /// The next bytes; `None` at the end. May be dropped and called again.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        if self.ended {
            return Ok(None);
        }
        match reply(&mut self.channel).await? {
            Reply::Data(data) => Ok(Some(data)),
            Reply::End => {
                self.ended = true;
                Ok(None)
            }
            _ => Err(nonsense()),
        }
    }
}

/// A file that is being written. Dropped before it is finished, it leaves nothing.
#[derive(Debug)]
pub struct FileWriter {
    channel: Channel,
    failed: bool,
}

impl FileWriter {
    /// Writes all of `content`. An error may be about what was written before.
    pub async fn write(&mut self, mut content: &[u8]) -> Result<()> {
        while !content.is_empty() && !self.failed {
            match poll_fn(|cx| self.channel.poll_write(cx, content)).await {
                Ok(len) => content = &content[len..],
                // Why, the relay has said, or says at the end.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.failed = true,
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Puts the file in its place.
    pub async fn finish(mut self) -> Result<()> {
        self.channel.put(Kind::End, &[]);
        match reply(&mut self.channel).await? {
            Reply::File(FileReply::Done) => Ok(()),
            _ => Err(nonsense()),
        }
    }
}

/// Changes in a folder.
#[derive(Debug)]
pub struct Watch {
    channel: Channel,
    pending: VecDeque<Change>,
}

impl Watch {
    /// The next change; `None` once what is watched is gone. May be dropped and called again.
    pub async fn next(&mut self) -> Result<Option<Change>> {
        loop {
            if let Some(change) = self.pending.pop_front() {
                return Ok(Some(change));
            }
            match reply(&mut self.channel).await? {
                Reply::Answer(Answer::Changes { changes }) => self.pending.extend(changes),
                Reply::End => return Ok(None),
                _ => return Err(nonsense()),
            }
        }
    }
}
