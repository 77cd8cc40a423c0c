//! Files and folders.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use capbox_core::api::{
    AnySandbox, EntryKind, FileEventKind, FileEvents, ReadRange, SearchQuery, WriteOptions,
};
use capbox_core::capability::{Capability, cap};
use capbox_core::error::{Error, ErrorKind, Result};
use capbox_core::spec::SandboxPath;

use super::exec::SOON;
use super::{Ask, Case, Contract, cases};
use crate::bench::{Bench, files, folder, get, put, sh, within};
use crate::check::{Check, Fault, fails};
use crate::{ensure, ensure_eq};

/// Ask for a row by a call on `files`; where there is none, the gate's own answer counts.
macro_rules! asks {
    ($Row:ident, |$files:ident| $call:expr) => {
        Ask::Call(|sandbox| {
            Box::pin(async move {
                match sandbox.files() {
                    Some($files) => $call.await.map(drop),
                    None => no_files(sandbox, Capability::$Row),
                }
            })
        })
    };
}

fn no_files(sandbox: &AnySandbox, capability: Capability) -> Result<()> {
    sandbox.require(capability).map_err(Error::from)?;
    sandbox.require(Capability::FilesRead).map_err(Error::from)
}

/// Names that listings, quoting and joining get wrong.
const ODD_NAMES: &[&[u8]] = &[
    b"plain",
    b"a b",
    b" blanks around ",
    b"-rf",
    b"x\ny",
    b"it's",
    b"\"quoted\"",
    b"$HOME",
    b"`id`",
    b"back\\slash",
    b"*",
    b"a;b&c|d",
    b"...",
    b"\xe2\x98\x95",
    b"tab\there",
];

/// A name that is no UTF-8.
const NOT_TEXT: &[u8] = b"not \xff text";

impl Contract for cap::FilesRead {
    const ASK: Ask = asks!(FilesRead, |files| files.read("refused"));
    const CASES: &'static [Case] = cases![
        b47_bytes_are_exact,
        ranges_are_exact,
        what_commands_wrote_is_fresh,
        b85_reads_that_fail_say_why,
        b47_text_that_is_none_fails_clearly,
        b87_pipes_and_devices_are_refused,
        b99_the_host_is_not_read,
        relative_paths_start_where_commands_do,
    ];
}

async fn b47_bytes_are_exact(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    if t.can(Capability::FilesWrite) {
        let all: Vec<u8> = (0..=255).collect();
        files(&sandbox)?.write("all-bytes", all.clone()).await?;
        ensure_eq!(&files(&sandbox)?.read("all-bytes").await?[..], &all[..], "the 256 bytes");
    }
    put(&sandbox, "empty", "").await?;
    ensure_eq!(files(&sandbox)?.read("empty").await?.len(), 0, "the size of an empty file");
    // B49: a character across the end of a block.
    let text = format!("{}—", "a".repeat(8191));
    put(&sandbox, "b49", &text).await?;
    ensure!(files(&sandbox)?.read_text("b49").await? == text, "b49: a text of 8194 bytes is altered");
    Ok(())
}

async fn ranges_are_exact(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    put(&sandbox, "range", "0123456789").await?;
    let files = files(&sandbox)?;
    let ranges: [(u64, u64, &[u8]); 6] =
        [(0, 3, b"012"), (3, 4, b"3456"), (8, 100, b"89"), (10, 5, b""), (100, 5, b""), (4, 0, b"")];
    for (offset, length, expected) in ranges {
        let part = files.read_range("range", ReadRange::new(offset, length)).await?;
        ensure_eq!(&part[..], expected, "{length} bytes from {offset} on");
    }
    let mut rest = ReadRange::default();
    rest.offset = 7;
    ensure_eq!(&files.read_range("range", rest).await?[..], b"789", "the rest from 7 on");
    Ok(())
}

async fn what_commands_wrote_is_fresh(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let sandbox = t.sandbox().await?;
    for turn in 0..4 {
        sh(&sandbox, format!("printf turn-{turn} > fresh")).await?;
        let read = files(&sandbox)?.read("fresh").await?;
        ensure_eq!(String::from_utf8_lossy(&read), format!("turn-{turn}"), "what was just written");
    }
    sh(&sandbox, "rm fresh").await?;
    fails(files(&sandbox)?.read("fresh").await, &[ErrorKind::NotFound])?;
    Ok(())
}

async fn b85_reads_that_fail_say_why(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    put(&sandbox, "a-file", "x").await?;
    let files = files(&sandbox)?;
    fails(files.read("nope").await, &[ErrorKind::NotFound])?;
    fails(files.read("nope/below").await, &[ErrorKind::NotFound])?;
    fails(files.read("a-file/below").await, &[ErrorKind::NotADirectory, ErrorKind::NotFound])?;
    fails(files.read("/").await, &[ErrorKind::IsADirectory])?;
    fails(files.read("").await, &[ErrorKind::InvalidArgument])?;
    fails(files.read("a\0b").await, &[ErrorKind::InvalidArgument])?;
    Ok(())
}

async fn b47_text_that_is_none_fails_clearly(t: &Bench) -> Check {
    t.needs(&[Capability::FilesWrite])?;
    let sandbox = t.sandbox().await?;
    files(&sandbox)?.write("no-text", vec![b'o', b'k', 0xff]).await?;
    fails(files(&sandbox)?.read_text("no-text").await, &[ErrorKind::InvalidArgument])?;
    Ok(())
}

async fn b87_pipes_and_devices_are_refused(t: &Bench) -> Check {
    t.needs_devices()?;
    let sandbox = t.sandbox().await?;
    sh(&sandbox, "mkfifo pipe").await?;
    let files = files(&sandbox)?;
    for path in ["pipe", "/dev/zero", "/dev/null"] {
        let read = within(SOON, &format!("reading `{path}`"), files.read(path)).await?;
        fails(read, &[ErrorKind::NotARegularFile])?;
    }
    if t.can(Capability::FilesList) {
        ensure!(
            within(SOON, "looking at a pipe", files.exists("pipe")).await??,
            "a pipe is said not to exist"
        );
        ensure_eq!(files.stat("pipe").await?.kind, EntryKind::Other, "what a pipe is");
    }
    Ok(())
}

/// A file of this machine that no sandbox may show or change.
pub(super) struct Canary {
    folder: tempfile::TempDir,
}

const SECRET: &str = "canary of the host";

impl Canary {
    pub(super) fn new() -> Check<Self> {
        let folder = tempfile::tempdir()?;
        fs::write(folder.path().join("secret"), SECRET)?;
        Ok(Self { folder })
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn path(&self) -> String {
        self.folder.path().join("secret").to_string_lossy().into_owned()
    }

    /// Fail if the folder is not as it was.
    pub(super) fn untouched(&self) -> Check {
        let names: Vec<_> =
            fs::read_dir(self.folder.path())?.filter_map(|e| Some(e.ok()?.file_name())).collect();
        ensure_eq!(names, ["secret"], "what is in a folder of the host");
        ensure_eq!(fs::read_to_string(self.path())?, SECRET, "a file of the host");
        Ok(())
    }
}

async fn b99_the_host_is_not_read(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    let canary = Canary::new()?;
    let path = canary.path();
    let mut ways = vec![path.clone(), format!("../../../../../../../../{path}"), format!("/..{path}")];
    if t.can(Capability::Run) {
        sh(&sandbox, format!("ln -s {path} out; ln -s {} out-dir", canary.folder().display())).await?;
        ways.extend(["out".to_owned(), "out-dir/secret".to_owned()]);
    }
    for way in ways {
        if let Ok(bytes) = files(&sandbox)?.read(way.as_str()).await {
            ensure!(bytes != SECRET.as_bytes(), "`{way}` reads a file of the host");
        }
    }
    Ok(())
}

async fn relative_paths_start_where_commands_do(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let sandbox = t.sandbox().await?;
    sh(&sandbox, "mkdir -p rel; echo here > rel/file").await?;
    let home = sh(&sandbox, "pwd").await?;
    let absolute = format!("{}/rel/file", home.trim_end().trim_end_matches('/'));
    for path in ["rel/file", "./rel/../rel/file", absolute.as_str()] {
        ensure_eq!(&files(&sandbox)?.read(path).await?[..], b"here\n", "the file at `{path}`");
    }
    Ok(())
}

impl Contract for cap::FilesWrite {
    const ASK: Ask = asks!(FilesWrite, |files| files.write("refused", "x"));
    const CASES: &'static [Case] = cases![
        commands_see_what_was_written,
        b89_any_size,
        b81_odd_names_are_exact,
        a_write_replaces_whole,
        modes_are_as_asked,
        parents_are_made_when_asked,
        writes_that_fail_say_why,
        b87_pipes_are_not_written,
        b99_the_host_is_not_written,
        links_are_followed_inside,
    ];
}

async fn commands_see_what_was_written(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let sandbox = t.sandbox().await?;
    for text in ["x", "no line feed", "two\nlines\n", "☕", ""] {
        files(&sandbox)?.write("seen", text.to_owned()).await?;
        ensure_eq!(sh(&sandbox, "cat seen").await?, text, "what a command reads");
    }
    Ok(())
}

async fn b89_any_size(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    for size in [96 << 10, 100 << 10, (128 << 10) + 1, t.inside().large] {
        let content: Vec<u8> = (0..251).cycle().take(size).collect();
        files(&sandbox)?.write("b89", content.clone()).await?;
        let read = files(&sandbox)?.read("b89").await?;
        ensure_eq!(read.len(), size, "the size of a file");
        ensure!(read == content, "a file of {size} bytes is altered");
    }
    Ok(())
}

async fn b81_odd_names_are_exact(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    let files = files(&sandbox)?;
    let mut names = ODD_NAMES.to_vec();
    if t.inside().bytes {
        names.push(NOT_TEXT);
    }
    for name in names {
        let path = SandboxPath::from("odd").join(SandboxPath::from_bytes(name));
        files.write_with(&path, name.to_vec(), WriteOptions::default().with_parents()).await?;
        ensure_eq!(&files.read(&path).await?[..], name, "the content of `{path}`");
    }
    if t.can(Capability::Run) {
        let text = sh(&sandbox, "cat 'odd/ blanks around '; cat odd/-rf; cat 'odd/x\ny'").await?;
        ensure_eq!(text, " blanks around -rfx\ny", "odd names, as commands see them");
    }
    Ok(())
}

async fn a_write_replaces_whole(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    let files = files(&sandbox)?;
    files.write("whole", "a long content that was there before").await?;
    files.write("whole", "short").await?;
    ensure_eq!(&files.read("whole").await?[..], b"short", "what is there after a shorter write");
    if t.can(Capability::FilesList) {
        let before = files.list(".").await?.len();
        files.write("whole", "again").await?;
        ensure_eq!(files.list(".").await?.len(), before, "the number of files after a write");
    }
    Ok(())
}

async fn modes_are_as_asked(t: &Bench) -> Check {
    t.needs_permissions()?;
    t.needs(&[Capability::Run])?;
    let sandbox = t.sandbox().await?;
    let files = files(&sandbox)?;
    files.write("mode-plain", "x").await?;
    files.write_with("mode-run", "#!/bin/sh\necho ran\n", WriteOptions::default().with_mode(0o755)).await?;
    files.write_with("mode-own", "x", WriteOptions::default().with_mode(0o600)).await?;
    let modes = sh(&sandbox, "stat -c %a mode-plain mode-run mode-own; ./mode-run").await?;
    ensure_eq!(modes, "644\n755\n600\nran\n", "the permission bits of new files");
    Ok(())
}

async fn parents_are_made_when_asked(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    let files = files(&sandbox)?;
    fails(files.write("not/there/f", "x").await, &[ErrorKind::NotFound])?;
    files.write_with("not/there/f", "x", WriteOptions::default().with_parents()).await?;
    ensure_eq!(&files.read("not/there/f").await?[..], b"x", "a file in new folders");
    Ok(())
}

async fn writes_that_fail_say_why(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    let files = files(&sandbox)?;
    files.write_with("dir/f", "x", WriteOptions::default().with_parents()).await?;
    fails(files.write("dir", "x").await, &[ErrorKind::IsADirectory])?;
    fails(files.write("dir/f/below", "x").await, &[ErrorKind::NotADirectory, ErrorKind::NotFound])?;
    fails(files.write("", "x").await, &[ErrorKind::InvalidArgument])?;
    ensure_eq!(&files.read("dir/f").await?[..], b"x", "the file after writes that failed");
    Ok(())
}

async fn b87_pipes_are_not_written(t: &Bench) -> Check {
    t.needs_devices()?;
    t.needs(&[Capability::Run])?;
    let sandbox = t.sandbox().await?;
    sh(&sandbox, "mkfifo write-pipe").await?;
    let files = files(&sandbox)?;
    for path in ["write-pipe", "/dev/null"] {
        let write = within(SOON, &format!("writing `{path}`"), files.write(path, "x")).await?;
        let kinds = [ErrorKind::NotARegularFile, ErrorKind::PermissionDenied];
        fails(write, &kinds)?;
    }
    sh(&sandbox, "test -p write-pipe").await?;
    Ok(())
}

async fn b99_the_host_is_not_written(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    let canary = Canary::new()?;
    let new = canary.folder().join("new").to_string_lossy().into_owned();
    let mut ways = vec![canary.path(), new.clone(), format!("../../../../../../../..{new}")];
    if t.can(Capability::Run) {
        let folder = canary.folder().display();
        sh(&sandbox, format!("ln -s {} w1; ln -s {new} w2; ln -s {folder} w3", canary.path())).await?;
        ways.extend(["w1".to_owned(), "w2".to_owned(), "w3/secret".to_owned(), "w3/new".to_owned()]);
    }
    for way in ways {
        files(&sandbox)?.write(way.as_str(), "overwritten").await.ok();
        canary.untouched()?;
    }
    Ok(())
}

async fn links_are_followed_inside(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let sandbox = t.sandbox().await?;
    sh(&sandbox, "echo old > link-to; ln -s link-to link-in").await?;
    files(&sandbox)?.write("link-in", "new").await?;
    ensure_eq!(sh(&sandbox, "cat link-to; test -L link-in").await?, "new", "the file that a link leads to");
    Ok(())
}

impl Contract for cap::FilesList {
    const ASK: Ask = asks!(FilesList, |files| files.list("."));
    const CASES: &'static [Case] = cases![
        b81_names_and_kinds_are_exact,
        b85_a_list_that_fails_is_no_empty_list,
        an_empty_folder_is_empty,
        b187_times_are_of_the_epoch,
        a_link_is_described_as_a_link,
        b99_the_host_is_not_listed,
    ];
}

async fn b81_names_and_kinds_are_exact(t: &Bench) -> Check {
    t.needs(&[Capability::FilesWrite, Capability::Run])?;
    let sandbox = t.sandbox().await?;
    let files = files(&sandbox)?;
    let mut names: Vec<&[u8]> = ODD_NAMES.to_vec();
    if t.inside().bytes {
        names.push(NOT_TEXT);
    }
    for name in &names {
        let path = SandboxPath::from("kinds").join(SandboxPath::from_bytes(*name));
        files.write_with(path, name.to_vec(), WriteOptions::default().with_parents()).await?;
    }
    sh(&sandbox, "cd kinds; mkdir zz-dir; ln -s zz-dir zz-link; ln -s nowhere zz-lost").await?;
    names.extend([&b"zz-dir"[..], b"zz-link", b"zz-lost"]);
    names.sort_unstable();
    let list = files.list("kinds").await?;
    let listed: Vec<&[u8]> = list.iter().map(|entry| entry.name.as_bytes()).collect();
    ensure_eq!(listed, names, "the names, in order");
    for entry in &list {
        let (kind, size) = match entry.name.as_bytes() {
            b"zz-dir" => (EntryKind::Directory, None),
            b"zz-link" | b"zz-lost" => (EntryKind::Symlink, None),
            name => (EntryKind::File, Some(name.len() as u64)),
        };
        ensure_eq!(entry.kind, kind, "the kind of `{}`", entry.name);
        if let Some(size) = size {
            ensure_eq!(entry.size, size, "the size of `{}`", entry.name);
        }
        // B82: what is listed can be read.
        if kind == EntryKind::File {
            let read = files.read(SandboxPath::from("kinds").join(&entry.name)).await?;
            ensure_eq!(&read[..], entry.name.as_bytes(), "b82: the content of `{}`", entry.name);
        }
    }
    Ok(())
}

async fn b85_a_list_that_fails_is_no_empty_list(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    put(&sandbox, "listed-file", "x").await?;
    let files = files(&sandbox)?;
    fails(files.list("listed-file").await, &[ErrorKind::NotADirectory])?;
    fails(files.list("nope").await, &[ErrorKind::NotFound])?;
    fails(files.stat("nope").await, &[ErrorKind::NotFound])?;
    ensure!(!files.exists("nope").await?, "what is not there is said to exist");
    ensure!(files.exists("listed-file").await?, "a file is said not to exist");
    let gone = t.create(t.spec()).await?;
    gone.destroy().await?;
    let Some(files) = gone.files() else { return Ok(()) };
    fails(files.list(".").await, &[ErrorKind::SandboxGone, ErrorKind::NotFound])?;
    Ok(())
}

async fn an_empty_folder_is_empty(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let sandbox = t.sandbox().await?;
    sh(&sandbox, "mkdir hollow").await?;
    ensure_eq!(files(&sandbox)?.list("hollow").await?, [], "the entries of an empty folder");
    Ok(())
}

async fn b187_times_are_of_the_epoch(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let sandbox = t.sandbox().await?;
    sh(&sandbox, "touch -d 2024-01-01T00:00:00Z dated").await?;
    #[allow(clippy::duration_suboptimal_units, reason = "seconds are what the epoch counts")]
    let expected: SystemTime = UNIX_EPOCH + Duration::from_secs(1_704_067_200);
    ensure_eq!(files(&sandbox)?.stat("dated").await?.modified, Some(expected), "the time of a dated file");
    Ok(())
}

async fn a_link_is_described_as_a_link(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let sandbox = t.sandbox().await?;
    sh(&sandbox, "mkdir described; ln -s described a-link; ln -s 'no where' lost").await?;
    let files = files(&sandbox)?;
    let entry = files.stat("a-link").await?;
    ensure_eq!(entry.kind, EntryKind::Symlink, "what a link to a folder is");
    ensure_eq!(entry.target, Some("described".into()), "what it says");
    ensure_eq!(files.stat("lost").await?.target, Some("no where".into()), "what a lost link says");
    ensure!(files.exists("lost").await?, "a link that leads nowhere is said not to exist");
    Ok(())
}

async fn b99_the_host_is_not_listed(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    let canary = Canary::new()?;
    let folder = canary.folder().to_string_lossy().into_owned();
    let mut ways = vec![folder.clone(), format!("../../../../../../../..{folder}")];
    if t.can(Capability::Run) {
        sh(&sandbox, format!("ln -s {folder} list-out")).await?;
        ways.push("list-out".to_owned());
    }
    for way in ways {
        if let Ok(list) = files(&sandbox)?.list(way.as_str()).await {
            let shows = list.iter().any(|entry| entry.name.as_bytes() == b"secret");
            ensure!(!shows, "`{way}` lists a folder of the host");
        }
    }
    Ok(())
}

impl Contract for cap::FilesModify {
    const ASK: Ask = asks!(FilesModify, |files| files.mkdir("refused"));
    const CASES: &'static [Case] = cases![
        folders_are_made_with_those_above,
        renaming_moves_and_replaces,
        removing_removes_one_thing,
        links_are_kept_as_they_are,
        changes_that_fail_say_why,
        b99_the_host_is_not_changed,
    ];
}

async fn folders_are_made_with_those_above(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    let files = files(&sandbox)?;
    files.mkdir("m/a b/c").await?;
    files.mkdir("m/a b/c").await?;
    put(&sandbox, "m/a b/c/f", "x").await?;
    ensure_eq!(get(&sandbox, "m/a b/c/f").await?.as_deref(), Some("x"), "a file in the new folder");
    Ok(())
}

async fn renaming_moves_and_replaces(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    let files = files(&sandbox)?;
    put(&sandbox, "from", "moved").await?;
    put(&sandbox, "to -x", "replaced").await?;
    files.rename("from", "to -x").await?;
    ensure_eq!(get(&sandbox, "to -x").await?.as_deref(), Some("moved"), "the file at its new place");
    ensure_eq!(get(&sandbox, "from").await?, None, "the file at its old place");
    files.mkdir("dir-from/below").await?;
    put(&sandbox, "dir-from/below/f", "deep").await?;
    files.rename("dir-from", "dir-to").await?;
    ensure_eq!(get(&sandbox, "dir-to/below/f").await?.as_deref(), Some("deep"), "a file in a moved folder");
    Ok(())
}

async fn removing_removes_one_thing(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    let files = files(&sandbox)?;
    files.mkdir("rm/full").await?;
    put(&sandbox, "rm/full/f", "x").await?;
    put(&sandbox, "rm/keep", "kept").await?;
    let refused = files.remove("rm/full").await;
    ensure!(refused.is_err(), "`remove` removes a folder that is not empty");
    ensure_eq!(
        get(&sandbox, "rm/full/f").await?.as_deref(),
        Some("x"),
        "the file in a folder that is not empty"
    );
    files.remove("rm/full/f").await?;
    files.remove("rm/full").await?;
    files.mkdir("rm/deep/er").await?;
    put(&sandbox, "rm/deep/er/f", "x").await?;
    files.remove_all("rm/deep").await?;
    ensure_eq!(get(&sandbox, "rm/deep/er/f").await?, None, "what was in a removed folder");
    ensure_eq!(get(&sandbox, "rm/keep").await?.as_deref(), Some("kept"), "the neighbour of what was removed");
    Ok(())
}

async fn links_are_kept_as_they_are(t: &Bench) -> Check {
    t.needs(&[Capability::FilesList])?;
    let sandbox = t.sandbox().await?;
    let files = files(&sandbox)?;
    files.mkdir("linked").await?;
    put(&sandbox, "linked/f", "kept").await?;
    files.symlink("linked", "link").await?;
    files.symlink("../up/and away", "lost-link").await?;
    ensure_eq!(files.stat("link").await?.target, Some("linked".into()), "what a new link says");
    ensure_eq!(files.stat("lost-link").await?.target, Some("../up/and away".into()), "what a lost link says");
    files.rename("link", "link-2").await?;
    ensure_eq!(files.stat("link-2").await?.kind, EntryKind::Symlink, "what a renamed link is");
    files.remove_all("link-2").await?;
    ensure_eq!(get(&sandbox, "linked/f").await?.as_deref(), Some("kept"), "what a removed link led to");
    let again = files.symlink("x", "linked").await;
    fails(again, &[ErrorKind::AlreadyExists])?;
    Ok(())
}

async fn changes_that_fail_say_why(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    let files = files(&sandbox)?;
    put(&sandbox, "in-the-way", "x").await?;
    fails(files.rename("nope", "nope-2").await, &[ErrorKind::NotFound])?;
    fails(files.remove("nope").await, &[ErrorKind::NotFound])?;
    let under = files.mkdir("in-the-way/below").await;
    fails(under, &[ErrorKind::NotADirectory, ErrorKind::AlreadyExists, ErrorKind::NotFound])?;
    fails(files.mkdir("in-the-way").await, &[ErrorKind::AlreadyExists, ErrorKind::NotADirectory])?;
    Ok(())
}

async fn b99_the_host_is_not_changed(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    let files = files(&sandbox)?;
    let canary = Canary::new()?;
    let folder = canary.folder().to_string_lossy().into_owned();
    files.symlink(folder.as_str(), "modify-out").await.ok();
    put(&sandbox, "modify-in", "x").await?;
    for base in [folder.as_str(), "modify-out"] {
        let below = |name: &str| SandboxPath::from(base).join(name);
        files.mkdir(below("made")).await.ok();
        files.rename("modify-in", below("moved")).await.ok();
        files.rename(below("secret"), "stolen").await.ok();
        files.remove(below("secret")).await.ok();
        files.symlink("x", below("linked")).await.ok();
        canary.untouched()?;
    }
    files.remove_all("modify-out").await.ok();
    canary.untouched()
}

impl Contract for cap::FilesPermissions {
    const ASK: Ask = asks!(FilesPermissions, |files| files.set_mode(".", 0o755));
    const CASES: &'static [Case] = cases![bits_are_set, bits_that_are_none_are_refused];
}

async fn bits_are_set(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    put(&sandbox, "bits", "#!/bin/sh\necho ran\n").await?;
    let files = files(&sandbox)?;
    for mode in [0o600, 0o755, 0o444, 0o640] {
        files.set_mode("bits", mode).await?;
        if t.can(Capability::FilesList) {
            ensure_eq!(files.stat("bits").await?.mode & 0o7777, mode, "the permission bits");
        }
        if t.can(Capability::Run) && t.inside().permissions {
            let seen = sh(&sandbox, "stat -c %a bits").await?;
            ensure_eq!(seen.trim(), format!("{mode:o}"), "the permission bits, as a command sees them");
        }
    }
    fails(files.set_mode("nope", 0o644).await, &[ErrorKind::NotFound])?;
    Ok(())
}

async fn bits_that_are_none_are_refused(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    fails(files(&sandbox)?.set_mode(".", 0o100_644).await, &[ErrorKind::InvalidArgument])?;
    Ok(())
}

impl Contract for cap::FilesWatch {
    const ASK: Ask = asks!(FilesWatch, |files| files.watch("."));
    const CASES: &'static [Case] = cases![
        changes_are_told,
        b109_folders_made_later_are_watched,
        b111_a_burst_is_whole_or_says_so,
        only_what_is_below_is_told,
        watching_what_is_not_there_fails,
    ];
}

/// Read events until each of `wanted` was seen, or an overflow says that it may be lost.
async fn told(events: &mut FileEvents, wanted: &[(FileEventKind, &str)]) -> Check {
    let mut missing = wanted.to_vec();
    while !missing.is_empty() {
        let what = format!("the event for {missing:?}");
        let Some(event) = within(Duration::from_secs(10), &what, events.next()).await?? else {
            return Err(Fault::failed(format!("the watch ends before {missing:?}")));
        };
        ensure!(event.kind != FileEventKind::Overflow, "a few changes overflow");
        missing.retain(|(kind, path)| *kind != event.kind || event.path != SandboxPath::from(*path));
    }
    Ok(())
}

async fn changes_are_told(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    folder(&sandbox, "watched").await?;
    let mut events = files(&sandbox)?.watch("watched").await?;
    put(&sandbox, "watched/f", "x").await?;
    told(&mut events, &[(FileEventKind::Created, "watched/f")]).await?;
    if t.can(Capability::Run) {
        sh(&sandbox, "echo more >> watched/f").await?;
        told(&mut events, &[(FileEventKind::Modified, "watched/f")]).await?;
    }
    t.needs(&[Capability::FilesModify])?;
    files(&sandbox)?.rename("watched/f", "watched/g h").await?;
    let renamed = [(FileEventKind::Removed, "watched/f"), (FileEventKind::Created, "watched/g h")];
    told(&mut events, &renamed).await?;
    files(&sandbox)?.remove("watched/g h").await?;
    told(&mut events, &[(FileEventKind::Removed, "watched/g h")]).await
}

async fn b109_folders_made_later_are_watched(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let sandbox = t.sandbox().await?;
    sh(&sandbox, "mkdir nested").await?;
    let mut events = files(&sandbox)?.watch("nested").await?;
    sh(&sandbox, "mkdir -p nested/a/b/c && touch nested/a/b/c/f").await?;
    let created = ["nested/a", "nested/a/b", "nested/a/b/c", "nested/a/b/c/f"];
    told(&mut events, &created.map(|path| (FileEventKind::Created, path))).await?;
    sh(&sandbox, "echo x > nested/a/b/c/late").await?;
    told(&mut events, &[(FileEventKind::Created, "nested/a/b/c/late")]).await
}

async fn b111_a_burst_is_whole_or_says_so(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let sandbox = t.sandbox().await?;
    sh(&sandbox, "mkdir burst").await?;
    let mut events = files(&sandbox)?.watch("burst").await?;
    sh(&sandbox, "cd burst; seq 1 2000 | xargs touch").await?;
    let mut created = std::collections::BTreeSet::new();
    while created.len() < 2000 {
        let event = within(Duration::from_secs(10), "the rest of a burst", events.next()).await??;
        match event {
            Some(event) if event.kind == FileEventKind::Overflow => return Ok(()),
            Some(event) if event.kind == FileEventKind::Created => drop(created.insert(event.path)),
            Some(_) => {}
            None => return Err(Fault::failed("the watch ends in a burst")),
        }
    }
    Ok(())
}

async fn only_what_is_below_is_told(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    folder(&sandbox, "one").await?;
    folder(&sandbox, "one-more").await?;
    let mut events = files(&sandbox)?.watch("one").await?;
    put(&sandbox, "one-more/f", "x").await?;
    put(&sandbox, "one/f", "x").await?;
    // What an atomic write makes on its way may show too, but only below `one`.
    loop {
        let Some(event) = within(Duration::from_secs(10), "the event", events.next()).await?? else {
            return Err(Fault::failed("the watch ends"));
        };
        ensure!(event.path.as_bytes().starts_with(b"one/"), "`{}` is not below `one`", event.path);
        if event.path == SandboxPath::from("one/f") {
            return Ok(());
        }
    }
}

async fn watching_what_is_not_there_fails(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    fails(files(&sandbox)?.watch("nope").await.map(drop), &[ErrorKind::NotFound])?;
    Ok(())
}

impl Contract for cap::FilesUpload {
    const ASK: Ask = Ask::Call(|sandbox| {
        Box::pin(async {
            let file = tempfile::NamedTempFile::new()
                .map_err(|error| Error::new(ErrorKind::Provider, error.to_string()))?;
            match sandbox.files() {
                Some(files) => files.upload(file.path(), "refused").await.map(drop),
                None => no_files(sandbox, Capability::FilesUpload),
            }
        })
    });
    const CASES: &'static [Case] = cases![
        a_file_goes_in_and_out_unaltered,
        copies_go_to_exactly_the_target,
        copies_that_fail_leave_nothing,
        b99_copies_do_not_reach_the_host,
    ];
}

async fn a_file_goes_in_and_out_unaltered(t: &Bench) -> Check {
    let (sandbox, host) = (t.sandbox().await?, tempfile::tempdir()?);
    let files = files(&sandbox)?;
    let sizes = [0, 1, 65_537, t.inside().large];
    for size in sizes {
        let content: Vec<u8> = (0..=255).cycle().take(size).collect();
        let (from, back) = (host.path().join("from"), host.path().join("back"));
        fs::write(&from, &content)?;
        let into = files.upload(&from, "copy").await?;
        ensure_eq!((into.files, into.bytes), (1, size as u64), "what was copied in");
        ensure!(files.read("copy").await? == content, "a file of {size} bytes is altered on the way in");
        let out = files.download("copy", &back).await?;
        ensure_eq!((out.files, out.bytes), (1, size as u64), "what was copied out");
        ensure!(fs::read(&back)? == content, "a file of {size} bytes is altered on the way out");
    }
    Ok(())
}

async fn copies_go_to_exactly_the_target(t: &Bench) -> Check {
    let (sandbox, host) = (t.sandbox().await?, tempfile::tempdir()?);
    let files = files(&sandbox)?;
    let from = host.path().join("a b");
    fs::write(&from, "new")?;
    put(&sandbox, "target -x", "a longer old content").await?;
    files.upload(&from, "target -x").await?;
    ensure_eq!(get(&sandbox, "target -x").await?.as_deref(), Some("new"), "what was there before");
    let to = host.path().join("to");
    fs::write(&to, "a longer old content")?;
    files.download("target -x", &to).await?;
    ensure_eq!(fs::read_to_string(&to)?, "new", "what was there on the host before");
    Ok(())
}

async fn copies_that_fail_leave_nothing(t: &Bench) -> Check {
    let (sandbox, host) = (t.sandbox().await?, tempfile::tempdir()?);
    let files = files(&sandbox)?;
    let missing = host.path().join("missing");
    let kinds = [ErrorKind::NotFound, ErrorKind::InvalidArgument];
    fails(files.upload(&missing, "never").await, &kinds)?;
    fails(files.upload(Path::new(""), "never").await, &[ErrorKind::InvalidArgument])?;
    fails(files.upload(host.path(), "never").await, &[ErrorKind::IsADirectory, ErrorKind::InvalidArgument])?;
    ensure_eq!(get(&sandbox, "never").await?, None, "the target of a copy that failed");
    fails(files.download("nope", host.path().join("x")).await, &[ErrorKind::NotFound])?;
    fails(files.download(".", host.path().join("x")).await, &[ErrorKind::IsADirectory])?;
    ensure_eq!(fs::read_dir(host.path())?.count(), 0, "the files that failed copies left on the host");
    Ok(())
}

async fn b99_copies_do_not_reach_the_host(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let (sandbox, host, canary) = (t.sandbox().await?, tempfile::tempdir()?, Canary::new()?);
    let files = files(&sandbox)?;
    let (from, to) = (host.path().join("from"), host.path().join("to"));
    fs::write(&from, "overwritten")?;
    sh(&sandbox, format!("ln -s {} up1; ln -s {} up2", canary.path(), canary.folder().display())).await?;
    for way in ["up1", "up2/secret", "up2/new"] {
        files.upload(&from, way).await.ok();
        canary.untouched()?;
        files.download(way, &to).await.ok();
        ensure!(
            fs::read(&to).map_or(true, |got| got != SECRET.as_bytes()),
            "`{way}` copies a file of the host"
        );
    }
    Ok(())
}

impl Contract for cap::FilesTree {
    const ASK: Ask = Ask::Call(|sandbox| {
        Box::pin(async {
            let folder =
                tempfile::tempdir().map_err(|error| Error::new(ErrorKind::Provider, error.to_string()))?;
            match sandbox.files() {
                Some(files) => files.upload_tree(folder.path(), "refused").await.map(drop),
                None => no_files(sandbox, Capability::FilesTree),
            }
        })
    });
    const CASES: &'static [Case] = cases![
        b93_a_tree_goes_in_and_out_whole,
        b93_copies_of_trees_that_fail_say_why,
        trees_are_merged,
        b105_a_hostile_tree_stays_in_its_folder,
    ];
}

/// A folder with what copies lose.
fn tree(at: &Path) -> std::io::Result<()> {
    fs::create_dir_all(at.join("empty"))?;
    fs::create_dir_all(at.join("a b/deep"))?;
    fs::write(at.join("a b/deep/-rf"), "deep")?;
    fs::write(at.join("x\ny"), "odd")?;
    fs::write(at.join("run"), "#!/bin/sh\necho ran\n")?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::{PermissionsExt, symlink};
        fs::set_permissions(at.join("run"), fs::Permissions::from_mode(0o755))?;
        symlink("a b/deep", at.join("link"))?;
        symlink("no/where", at.join("lost"))?;
    }
    Ok(())
}

/// What is in a folder: paths with kind, content and permission to execute.
fn look(folder: &Path) -> std::io::Result<Vec<String>> {
    let mut lines = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next)? {
            let path = entry?.path();
            let name = path.strip_prefix(folder).unwrap_or(&path).display().to_string();
            let meta = path.symlink_metadata()?;
            #[cfg(unix)]
            let executable = std::os::unix::fs::PermissionsExt::mode(&meta.permissions()) & 0o100 != 0;
            #[cfg(not(unix))]
            let executable = false;
            if meta.is_symlink() {
                lines.push(format!("{name} -> {}", fs::read_link(&path)?.display()));
            } else if meta.is_dir() {
                lines.push(format!("{name}/"));
                folders.push(path);
            } else {
                lines.push(format!("{name} {executable} {:?}", fs::read_to_string(&path)?));
            }
        }
    }
    lines.sort();
    Ok(lines)
}

async fn b93_a_tree_goes_in_and_out_whole(t: &Bench) -> Check {
    let (sandbox, host) = (t.sandbox().await?, tempfile::tempdir()?);
    let files = files(&sandbox)?;
    let (from, back) = (host.path().join("from"), host.path().join("back"));
    tree(&from)?;
    let copied = files.upload_tree(&from, "tree").await?;
    ensure_eq!((copied.files, copied.symlinks, copied.skipped), (3, 2, 0), "what was copied in");
    if t.can(Capability::Run) {
        let text =
            sh(&sandbox, "cd tree; cat link/-rf; test -d empty && test -L lost && echo; cat 'x\ny'").await?;
        ensure_eq!(text, "deep\nodd", "the tree, as commands see it");
        if t.inside().permissions {
            ensure_eq!(sh(&sandbox, "tree/run").await?, "ran\n", "what the program in the tree prints");
        }
    }
    files.download_tree("tree", &back).await?;
    ensure_eq!(look(&back)?, look(&from)?, "the tree that came back");
    let slash = host.path().join("slash");
    files.download_tree("tree/", &slash).await?;
    ensure_eq!(look(&slash)?, look(&from)?, "the tree of a source with a slash at the end");
    Ok(())
}

async fn b93_copies_of_trees_that_fail_say_why(t: &Bench) -> Check {
    let (sandbox, host) = (t.sandbox().await?, tempfile::tempdir()?);
    let files = files(&sandbox)?;
    fails(files.upload_tree(Path::new(""), "never").await, &[ErrorKind::InvalidArgument])?;
    let missing = host.path().join("missing");
    fails(files.upload_tree(&missing, "never").await, &[ErrorKind::NotFound, ErrorKind::InvalidArgument])?;
    fails(files.download_tree("nope", host.path().join("x")).await, &[ErrorKind::NotFound])?;
    put(&sandbox, "no-tree", "x").await?;
    fails(files.download_tree("no-tree", host.path().join("x")).await, &[ErrorKind::NotADirectory])?;
    if t.can(Capability::FilesList) {
        ensure!(!files.exists("never").await?, "a copy that failed leaves its target");
    }
    Ok(())
}

async fn trees_are_merged(t: &Bench) -> Check {
    let (sandbox, host) = (t.sandbox().await?, tempfile::tempdir()?);
    let files = files(&sandbox)?;
    tree(host.path())?;
    files.upload_tree(host.path(), "merged").await?;
    put(&sandbox, "merged/more", "kept").await?;
    put(&sandbox, "merged/run", "changed").await?;
    files.upload_tree(host.path(), "merged").await?;
    ensure_eq!(get(&sandbox, "merged/more").await?.as_deref(), Some("kept"), "what was in the target");
    ensure_eq!(
        get(&sandbox, "merged/run").await?.as_deref(),
        Some("#!/bin/sh\necho ran\n"),
        "a file of the tree"
    );
    Ok(())
}

async fn b105_a_hostile_tree_stays_in_its_folder(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let (sandbox, host, canary) = (t.sandbox().await?, tempfile::tempdir()?, Canary::new()?);
    let files = files(&sandbox)?;
    let out = canary.folder().display().to_string();
    sh(&sandbox, format!("mkdir -p hostile/l; ln -s {out} hostile/out; echo evil > hostile/l/secret"))
        .await?;
    // The host has a link where the tree has a folder.
    let target = host.path().join("target");
    fs::create_dir(&target)?;
    #[cfg(unix)]
    std::os::unix::fs::symlink(canary.folder(), target.join("l"))?;
    files.download_tree("hostile", &target).await.ok();
    canary.untouched()?;
    let fresh = host.path().join("fresh");
    files.download_tree("hostile", &fresh).await.ok();
    canary.untouched()?;
    let up = tempfile::tempdir()?;
    fs::create_dir(up.path().join("out"))?;
    fs::write(up.path().join("out/secret"), "evil")?;
    files.upload_tree(up.path(), "hostile").await.ok();
    canary.untouched()
}

impl Contract for cap::FilesSearch {
    const ASK: Ask = asks!(FilesSearch, |files| files.search(".", &SearchQuery::default().with_name("*")));
    const CASES: &'static [Case] =
        cases![names_are_found, texts_are_found, searches_are_bounded, searches_that_fail_say_why];
}

/// Files to search in, in the folder `FOLDER`.
async fn haystack(t: &Bench, folder: &str) -> Check<AnySandbox> {
    t.needs(&[Capability::Run])?;
    let sandbox = t.sandbox().await?;
    let text = "mkdir -p F/sub 'F/a b'; echo needle > F/one.txt; printf 'hay\\nmore needle.*\\n' > F/sub/two.txt; \
        echo hay > 'F/a b/x.rs'; printf 'needle$' > 'F/sub/x.rs'; echo hay > 'F/[x].rs'";
    sh(&sandbox, text.replace("F/", &format!("{folder}/"))).await?;
    Ok(sandbox)
}

async fn paths(sandbox: &AnySandbox, folder: &str, query: SearchQuery) -> Check<Vec<String>> {
    let found = files(sandbox)?.search(folder, &query).await?;
    let line = |found: &capbox_core::api::Match| match &found.line {
        None => found.path.to_string(),
        Some((number, line)) => format!("{}:{number}:{}", found.path, String::from_utf8_lossy(line)),
    };
    let mut lines: Vec<String> = found.iter().map(line).collect();
    lines.sort();
    Ok(lines)
}

async fn names_are_found(t: &Bench) -> Check {
    let sandbox = haystack(t, "names").await?;
    let query = |pattern: &str| SearchQuery::default().with_name(pattern);
    let found = paths(&sandbox, "names", query("*.txt")).await?;
    ensure_eq!(found, ["names/one.txt", "names/sub/two.txt"], "the files `*.txt`");
    let found = paths(&sandbox, "names", query("?.rs")).await?;
    ensure_eq!(found, ["names/a b/x.rs", "names/sub/x.rs"], "the files `?.rs`");
    // No other character is special.
    ensure_eq!(paths(&sandbox, "names", query("[x].rs")).await?, ["names/[x].rs"], "the file `[x].rs`");
    ensure_eq!(paths(&sandbox, "names", query("*.none")).await?, Vec::<String>::new(), "the files `*.none`");
    Ok(())
}

async fn texts_are_found(t: &Bench) -> Check {
    let sandbox = haystack(t, "texts").await?;
    let query = |text: &str| SearchQuery::default().with_text(text);
    let found = paths(&sandbox, "texts", query("needle")).await?;
    let expected =
        ["texts/one.txt:1:needle", "texts/sub/two.txt:2:more needle.*", "texts/sub/x.rs:1:needle$"];
    ensure_eq!(found, expected, "the lines with `needle`");
    // Plain text, no pattern.
    ensure_eq!(paths(&sandbox, "texts", query(".*")).await?, [expected[1]], "the lines with `.*`");
    let both = query("needle").with_name("*.rs");
    ensure_eq!(paths(&sandbox, "texts", both).await?, [expected[2]], "the lines with `needle` in `*.rs`");
    Ok(())
}

async fn searches_are_bounded(t: &Bench) -> Check {
    let sandbox = haystack(t, "bounded").await?;
    sh(&sandbox, "cd bounded; seq 1 50 | sed s/^/many-/ | xargs touch").await?;
    let query = SearchQuery::default().with_name("many-*").with_limit(7);
    ensure_eq!(paths(&sandbox, "bounded", query).await?.len(), 7, "the number of matches with a limit of 7");
    Ok(())
}

async fn searches_that_fail_say_why(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    let files = files(&sandbox)?;
    let query = SearchQuery::default().with_name("*");
    fails(files.search("nope", &query).await, &[ErrorKind::NotFound])?;
    fails(files.search(".", &SearchQuery::default()).await, &[ErrorKind::InvalidArgument])?;
    Ok(())
}
