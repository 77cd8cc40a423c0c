//! Files by a shell and small tools.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::shell::{self, BLOCK, Encoding};
use crate::api::{Entry, EntryKind, ReadRange, Sandbox, WriteOptions};
use crate::capability::answer::Emulate;
use crate::capability::cap;
use crate::capability::rows::{HasInput, HasRun};
use crate::error::{Error, ErrorKind, Result};
use crate::provider::{self as spi, Table};
use crate::spec::SandboxPath;

/// `files.read`, `files.list`, `files.modify` and `files.permissions` over `exec.run`, and `files.write` over
/// `exec.run` and `exec.input`, with a POSIX shell and the small tools that `busybox` has.
///
/// Names and contents are exact, whatever bytes they hold; where the provider's output is not, they travel as
/// base64. Nothing but regular files is read or written. A write goes to a new file in the same folder, which
/// takes the old one's place, its mode and, where that is allowed, its owner.
///
/// # Loss
///
/// - read: "needs a shell, `cat`, `dd`, `tail` and `head`; holds at most 1 GiB in memory"
/// - write: "needs a shell, `mktemp`, `mv` and `stat`; breaks hard links, and a killed write leaves a `.capbox-…` file"
/// - list: "needs a shell, `stat`, `xargs` and `readlink`"
/// - modify: "needs a shell, `mkdir`, `mv`, `rm`, `rmdir` and `ln`; a rename is not atomic across file systems, nor
///   where it replaces a link to a folder"
/// - permissions: "needs `chmod`"
///
/// Each call costs one exec. What a path leads to is looked at just before it is opened, so a program in the
/// sandbox that puts a pipe there in between can make the call wait.
pub enum FilesOverExec {}

macro_rules! emulates {
    ($($Row:ident: $($Has:ident)*;)*) => { $(
        impl<P: Table $(+ $Has)*> Emulate<cap::$Row, P> for FilesOverExec {
            fn emulate(sandbox: Sandbox<P>) -> Arc<dyn spi::$Row> {
                Arc::new(OverExec(sandbox))
            }
        }
    )* };
}
emulates! {
    FilesRead: HasRun;
    FilesWrite: HasRun HasInput;
    FilesList: HasRun;
    FilesModify: HasRun;
    FilesPermissions: HasRun;
}

/// The most that a read holds in memory.
const MOST_READ: u64 = 1 << 30;

/// The most that a listing may be long.
const MOST_LISTED: usize = 256 << 20;

/// Prints the names in the folder `$1`; name and target of each link; and the facts of each, beginning with those
/// of the folder itself, which show that `stat` works. A name or target ends with NUL, a list with an empty one.
const LIST: &str = r#"
cd -P "$1" 2>/dev/null || { ls -d "$1/." >/dev/null; exit 1; }
[ -r . ] || exit 66
there() { [ -e "$1" ] || [ -L "$1" ]; }
set -- * .[!.]* ..?*
for n; do there "$n" && printf '%s\0' "$n"; done
printf '\0'
for n; do
    [ -L "$n" ] || continue
    printf '%s\0' "$n"
    readlink -n "./$n" 2>/dev/null || { [ -L "$n" ] && exit 127; }
    printf '\0'
done
printf '\0'
{ printf '.\0'; for n; do there "$n" && printf './%s\0' "$n"; done; } |
    xargs -0 stat -c '%f %s %Y %y/%n' 2>/dev/null
s=$?
[ $s = 123 ] || exit $s # one has vanished since
"#;

/// Prints the facts of `$1`, and what it says if it is a link; of what a link leads to where `$2` is not empty.
const STAT: &str = r#"
if [ "$2" ]; then exec stat -L -c '%f %s %Y %y/' "$1"; fi
stat -c '%f %s %Y %y/' "$1" || exit
if [ -L "$1" ]; then readlink -n "$1"; fi
"#;

const MKDIR: &str = r#"
if [ "$2" ]; then exec mkdir -p "$1"; fi
exec mkdir "$1"
"#;

const RENAME: &str = r#"
is_folder() { [ -d "$1" ] && [ ! -L "$1" ]; }
there() { [ -e "$1" ] || [ -L "$1" ]; }
there "$1" || { stat "$1" >/dev/null; exit 1; }
[ "$1" -ef "$2" ] && [ ! -L "$1" ] && [ ! -L "$2" ] && exit
if is_folder "$1"; then
    is_folder "$2" && exit 67
    there "$2" && exit 69
else
    is_folder "$2" && exit 64
fi
if [ -L "$2" ] && [ -d "$2" ]; then rm -f "$2"; fi # BusyBox would refuse to replace it
exec mv -fT "$1" "$2"
"#;

const REMOVE: &str = r#"
if [ -d "$1" ] && [ ! -L "$1" ]; then
    [ "$2" ] && exec rm -rf "$1"
    exec rmdir "$1"
fi
[ -e "$1" ] || [ -L "$1" ] || { stat "$1" >/dev/null; exit 1; }
exec rm -f "$1"
"#;

const SYMLINK: &str = r#"
[ -e "$2" ] && exit 67
[ -L "$2" ] && exit 67
exec ln -s -- "$1" "$2"
"#;

const CHMOD: &str = r#"
exec chmod "$2" "$1"
"#;

struct OverExec<P>(Sandbox<P>);

impl<P: Table + HasRun> OverExec<P> {
    /// What `script` prints about `path`, at most `most` bytes.
    async fn ask(
        &self,
        script: &'static str,
        path: &SandboxPath,
        args: Vec<OsString>,
        most: usize,
    ) -> Result<Vec<u8>> {
        let encoding = Encoding::of(&self.0);
        let program = encoding.program(script, args);
        let output = self.0.exec(program).max_output(encoding.limit(most)).await?;
        shell::printed(output, encoding, path)
    }

    /// Run `script`, which has nothing to say about `path` but that it failed.
    async fn tell(&self, script: &str, path: &SandboxPath, args: Vec<OsString>) -> Result<()> {
        shell::succeeded(&self.0.exec(shell::program(script, args)).await?, path)
    }
}

#[async_trait]
impl<P: Table + HasRun> spi::FilesRead for OverExec<P> {
    async fn read(&self, path: &SandboxPath, range: ReadRange) -> Result<Bytes> {
        let mut args = vec![shell::path(path)?];
        if range != ReadRange::default() {
            let (block, byte) = (range.offset / BLOCK, range.offset % BLOCK + 1);
            // Beyond any file, and what `dd` can count.
            let block = block.min(i64::MAX as u64 / BLOCK);
            let most = range.length.map(|length| length.min(MOST_READ + 1).to_string()).unwrap_or_default();
            args.extend([block.to_string(), byte.to_string(), most].map(OsString::from));
        }
        let most = usize::try_from(range.length.unwrap_or(MOST_READ).min(MOST_READ)).unwrap_or(usize::MAX);
        let encoding = Encoding::of(&self.0);
        let output =
            self.0.exec(encoding.program(shell::READ, args)).max_output(encoding.limit(most)).await?;
        let too_much = || {
            Error::new(
                ErrorKind::InvalidArgument,
                format!("`{path}`: more than {MOST_READ} bytes to read at once"),
            )
            .with_hint("read a range, or use `download`")
        };
        if output.status.success() && output.stdout.truncated() {
            return Err(too_much());
        }
        let bytes = shell::printed(output, encoding, path)?;
        if bytes.len() > most { Err(too_much()) } else { Ok(bytes.into()) }
    }
}

#[async_trait]
impl<P: Table + HasRun + HasInput> spi::FilesWrite for OverExec<P> {
    async fn write(&self, path: &SandboxPath, content: Bytes, options: WriteOptions) -> Result<()> {
        let args = write_args(path, content.len() as u64, options)?;
        let output = self.0.exec(shell::program(shell::WRITE, args)).input(content).await?;
        shell::succeeded(&output, path)
    }
}

/// The arguments of [`shell::WRITE`].
pub(super) fn write_args(path: &SandboxPath, size: u64, options: WriteOptions) -> Result<Vec<OsString>> {
    if path.as_bytes().ends_with(b"/") {
        return Err(Error::new(ErrorKind::IsADirectory, format!("`{path}`: is a folder")));
    }
    let parent = match path.parent() {
        Some(parent) if options.parents => shell::path(&parent)?,
        _ => OsString::new(),
    };
    let mode = format!("{:o}", options.mode.unwrap_or(0o644) & 0o7777);
    Ok(vec![shell::path(path)?, mode.into(), size.to_string().into(), parent])
}

#[async_trait]
impl<P: Table + HasRun> spi::FilesList for OverExec<P> {
    async fn list(&self, path: &SandboxPath) -> Result<Vec<Entry>> {
        let printed = self.ask(LIST, path, vec![shell::path(path)?], MOST_LISTED).await?;
        listing(&printed).ok_or_else(|| shell::nonsense("is no list of a folder"))
    }

    async fn stat(&self, path: &SandboxPath, follow: bool) -> Result<Entry> {
        let printed = self.ask(STAT, path, vec![shell::path(path)?, flag(follow)], 64 << 10).await?;
        let entry = || {
            let (facts, rest) = facts(&printed)?;
            let target = rest.strip_prefix(b"\n")?;
            Some(facts.entry(path.file_name(), target))
        };
        entry().ok_or_else(|| shell::nonsense("are no facts about a file"))
    }
}

#[async_trait]
impl<P: Table + HasRun> spi::FilesModify for OverExec<P> {
    async fn mkdir(&self, path: &SandboxPath, parents: bool) -> Result<()> {
        self.tell(MKDIR, path, vec![shell::path(path)?, flag(parents)]).await
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        self.tell(RENAME, from, vec![shell::path(from)?, shell::path(to)?]).await
    }

    async fn remove(&self, path: &SandboxPath, recursive: bool) -> Result<()> {
        self.tell(REMOVE, path, vec![shell::path(path)?, flag(recursive)]).await
    }

    async fn symlink(&self, target: &SandboxPath, path: &SandboxPath) -> Result<()> {
        self.tell(SYMLINK, path, vec![shell::word(target.as_bytes())?, shell::path(path)?]).await
    }
}

#[async_trait]
impl<P: Table + HasRun> spi::FilesPermissions for OverExec<P> {
    async fn set_mode(&self, path: &SandboxPath, mode: u32) -> Result<()> {
        // Five digits: with fewer, GNU `chmod` leaves the set-id bits of a folder as they are.
        self.tell(CHMOD, path, vec![shell::path(path)?, format!("{mode:05o}").into()]).await
    }
}

/// An argument that a script takes for true or false.
fn flag(set: bool) -> OsString {
    if set { "x".into() } else { OsString::new() }
}

/// What `stat` says about something.
struct Facts {
    mode: u32,
    size: u64,
    seconds: i64,
    nanoseconds: u32,
}

impl Facts {
    fn entry(&self, name: &[u8], target: &[u8]) -> Entry {
        let kind = match self.mode & 0xf000 {
            0x8000 => EntryKind::File,
            0x4000 => EntryKind::Directory,
            0xa000 => EntryKind::Symlink,
            _ => EntryKind::Other,
        };
        Entry {
            size: if kind == EntryKind::File { self.size } else { 0 },
            mode: self.mode & 0o7777,
            modified: Some(spi::system_time(self.seconds, self.nanoseconds)),
            target: (kind == EntryKind::Symlink && !target.is_empty()).then(|| target.into()),
            ..Entry::new(name, kind)
        }
    }
}

/// Facts in the format of the scripts, up to the slash that ends them; and what comes after that.
fn facts(bytes: &[u8]) -> Option<(Facts, &[u8])> {
    let end = bytes.iter().position(|b| *b == b'/')?;
    let mut fields = std::str::from_utf8(&bytes[..end]).ok()?.split(' ');
    let facts = Facts {
        mode: u32::from_str_radix(fields.next()?, 16).ok()?,
        size: fields.next()?.parse().ok()?,
        seconds: fields.next()?.parse().ok()?,
        nanoseconds: {
            // `%y`: 2024-01-01 00:00:00.123456789 +0000, where only the fraction is not known from `%Y`.
            let (_date, time, _zone) = (fields.next()?, fields.next()?, fields.next());
            match time.split_once('.') {
                None => 0,
                Some((_, fraction)) if fraction.len() == 9 => fraction.parse().ok()?,
                Some(_) => return None,
            }
        },
    };
    if fields.next().is_some() { None } else { Some((facts, &bytes[end + 1..])) }
}

/// The entries that [`LIST`] printed.
fn listing(mut rest: &[u8]) -> Option<Vec<Entry>> {
    let mut known = HashSet::new();
    let mut names = Vec::new();
    loop {
        match string(&mut rest)? {
            b"" => break,
            b"." | b".." => return None,
            name if name.contains(&b'/') || !known.insert(name) => return None,
            name => names.push(name),
        }
    }
    let mut targets = HashMap::new();
    loop {
        match string(&mut rest)? {
            b"" => break,
            name => targets.insert(name, string(&mut rest)?),
        };
    }
    rest = line(rest, b".")?.1;
    let mut entries = Vec::with_capacity(names.len());
    for name in names {
        // One that `stat` did not find has vanished since.
        if let Some((facts, after)) = line(rest, &[b"./", name].concat()) {
            entries.push(facts.entry(name, targets.get(name).copied().unwrap_or_default()));
            rest = after;
        }
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    rest.is_empty().then_some(entries)
}

/// Bytes up to a NUL.
fn string<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = rest.iter().position(|b| *b == 0)?;
    let string = &rest[..end];
    *rest = &rest[end + 1..];
    Some(string)
}

/// The facts of `name`, and what comes after their line.
fn line<'a>(rest: &'a [u8], name: &[u8]) -> Option<(Facts, &'a [u8])> {
    let (facts, after) = facts(rest)?;
    let after = after.strip_prefix(name)?.strip_prefix(b"\n")?;
    Some((facts, after))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DOT: &str = "41ed 4096 1704067200 2024-01-01 00:00:00.000000000 +0000/.\n";

    #[test]
    fn a_listing() {
        let text = format!(
            "b\0a\nb\0gone\0\0b\0../x\0\0{DOT}\
             a1ff 4 1704067200 2024-01-01 00:00:00.000000000 +0000/./b\n\
             81a4 5 1704067200 2024-01-01 05:30:00.000000007 +0530/./a\nb\n"
        );
        let entries = listing(text.as_bytes()).unwrap();
        assert_eq!(entries.len(), 2);
        assert_eq!((&entries[0].name, entries[0].size), (&"a\nb".into(), 5));
        assert_eq!(entries[0].modified, Some(spi::system_time(1_704_067_200, 7)));
        assert_eq!((entries[1].kind, &entries[1].target), (EntryKind::Symlink, &Some("../x".into())));
    }

    #[test]
    fn an_empty_folder_is_told_from_a_broken_tool() {
        assert_eq!(listing(format!("\0\0{DOT}").as_bytes()), Some(vec![]));
        assert_eq!(listing(b"\0\0"), None);
        assert_eq!(listing(b"a\0\0\0"), None);
    }

    /// B105: a tool of the sandbox cannot lead anybody out of the folder.
    #[test]
    fn hostile_names() {
        for name in ["../x", "..", ".", "/etc", "a/b"] {
            let text = format!("{name}\0\0\0{DOT}81a4 0 0 2024-01-01 00:00:00 +0000/./{name}\n");
            assert_eq!(listing(text.as_bytes()), None, "{name}");
        }
        assert_eq!(listing(format!("a\0a\0\0\0{DOT}").as_bytes()), None, "twice");
    }

    proptest! {
        #[test]
        fn anything_else_is_no_listing(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(listing(&bytes), None);
        }

        #[test]
        fn cut_short_is_no_listing(cut in 0_usize..80) {
            let text = format!("a\0\0\0{DOT}81a4 0 0 2024-01-01 00:00:00.000000000 +0000/./a\n");
            let all = text.len();
            // Without the last line `a` has vanished; any other cut shows.
            let cut = cut.min(all - 1);
            let kept = &text.as_bytes()[..all - 1 - cut];
            prop_assert_eq!(listing(kept).is_some(), kept.ends_with(b"/.\n"));
        }
    }
}
