//! `FilesOverExec`.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use capbox_core::provider::*;

use crate::providers::*;

everywhere! { [Bare PoorBare Piped]:
    bytes_are_exact names_are_verbatim errors_are_typed nothing_special_is_opened links
}
everywhere! { [Bare PoorBare]: ranges facts modify writing permissions }

fn kind<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.unwrap_err().kind()
}

/// Bytes without any pattern.
pub(crate) fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// B47, B89: what is written is there, and is read back, whatever it is and however long.
async fn bytes_are_exact<P: Whole>(place: &Place<P>) {
    let files = place.files();
    let all: Vec<u8> = (0..=255).collect();
    let sizes = [0, 1, 2, 3, 96 << 10, 100 << 10, 1 << 20, 5 << 20];
    let contents = sizes.map(noise).into_iter().chain([
        all,
        b"\n\n".to_vec(),
        b"x\n".to_vec(),
        b"\x01\x01\x01\0".to_vec(),
    ]);
    for content in contents {
        files.write("file", content.clone()).await.unwrap();
        assert!(fs::read(place.dir.join("file")).unwrap() == content, "{} bytes written", content.len());
        assert!(files.read("file").await.unwrap() == content, "{} bytes read", content.len());
    }
    assert_eq!(place.leftovers(), [""; 0]);
}

const ODD_NAMES: &[&[u8]] = &[
    b"x\ny",
    b"end\n",
    b"\n",
    b"-rf",
    b"--help",
    b"-",
    b"--",
    b"a b",
    b"notes.txt ",
    b" ",
    b"*",
    b"?[a]",
    b"\xff\xfe",
    b"caf\xc3\xa9",
    b".hidden",
    b"..x",
    b"...",
    b"'\"`$(id)$HOME\\n%s%n",
    b"tab\there",
    b"a=b",
    b"!",
    b"(",
    b"81a4 0 0 2024-01-01 00:00:00.000000000 +0000",
];

/// B81, B82: names are exact in every call.
async fn names_are_verbatim<P: Whole>(place: &Place<P>) {
    let files = place.files();
    fs::create_dir(place.dir.join("target")).unwrap();
    files.mkdir("in").await.unwrap();
    let base = SandboxPath::from("in");
    for name in ODD_NAMES {
        for path in [SandboxPath::from(*name), base.join(*name)] {
            files.write(&path, *name).await.unwrap();
            assert_eq!(files.read(&path).await.unwrap(), *name, "{path}");
            let entry = files.stat(&path).await.unwrap();
            assert_eq!((entry.name.as_bytes(), entry.size), (*name, name.len() as u64));
            files.set_mode(&path, 0o600).await.unwrap();
        }
    }
    files.symlink("../target", base.join("to a folder")).await.unwrap();
    let listed = files.list("in").await.unwrap();
    let mut expected: Vec<&[u8]> = ODD_NAMES.iter().copied().chain([&b"to a folder"[..]]).collect();
    expected.sort_unstable();
    assert_eq!(listed.iter().map(|entry| entry.name.as_bytes()).collect::<Vec<_>>(), expected);
    for entry in listed {
        let path = base.join(&entry.name);
        if entry.name.as_bytes() == b"to a folder" {
            assert_eq!((entry.kind, entry.target), (EntryKind::Symlink, Some("../target".into())));
        } else {
            assert_eq!((entry.kind, entry.size), (EntryKind::File, entry.name.as_bytes().len() as u64));
            assert_eq!(files.read(&path).await.unwrap(), entry.name.as_bytes());
            files.rename(&path, base.join("moved")).await.unwrap();
            files.rename(base.join("moved"), &path).await.unwrap();
        }
        files.remove(&path).await.unwrap();
    }
    assert!(files.list("in").await.unwrap().is_empty());
    assert!(place.dir.join("target").is_dir());
    for name in ODD_NAMES {
        files.remove(*name).await.unwrap();
        files.mkdir(base.join(*name)).await.unwrap();
        assert!(place.dir.join("in").join(OsStr::from_bytes(name)).is_dir());
        assert!(files.list(base.join(*name)).await.unwrap().is_empty());
    }
    files.remove_all("in").await.unwrap();
    assert!(!place.dir.join("in").exists());
}

/// B85: absent, forbidden and of the wrong kind are three things, and none of them is an empty folder.
async fn errors_are_typed<P: Whole>(place: &Place<P>) {
    use ErrorKind::{IsADirectory, NotADirectory, NotFound, PermissionDenied};
    let files = place.files();
    files.write("file", "x").await.unwrap();
    files.mkdir("folder/inner").await.unwrap();
    files.mkdir("shut").await.unwrap();
    files.write("shut/file", "x").await.unwrap();

    assert_eq!(kind(files.list("file").await), NotADirectory);
    assert_eq!(kind(files.list("nope").await), NotFound);
    assert_eq!(kind(files.list("file/x").await), NotADirectory);
    assert_eq!(kind(files.read("nope").await), NotFound);
    assert_eq!(kind(files.read("nope/x").await), NotFound);
    assert_eq!(kind(files.read("file/x").await), NotADirectory);
    assert_eq!(kind(files.read("folder").await), IsADirectory);
    assert_eq!(kind(files.read_range("folder", ReadRange::new(0, 1)).await), IsADirectory);
    assert_eq!(kind(files.read_range("nope", ReadRange::new(1, 1)).await), NotFound);
    assert_eq!(kind(files.stat("nope").await), NotFound);
    assert_eq!(kind(files.stat("file/x").await), NotADirectory);
    assert_eq!(kind(files.write("folder", "x").await), IsADirectory);
    assert_eq!(kind(files.write("new/", "x").await), IsADirectory);
    assert_eq!(kind(files.write("nope/x", "x").await), NotFound);
    assert_eq!(kind(files.write("file/x", "x").await), NotADirectory);
    assert_eq!(kind(files.set_mode("nope", 0o600).await), NotFound);
    assert!(!files.exists("nope").await.unwrap());
    assert!(!files.exists("file/x").await.unwrap());
    assert!(files.exists("folder").await.unwrap());

    files.set_mode("file", 0o000).await.unwrap();
    assert_eq!(kind(files.read("file").await), PermissionDenied);
    assert_eq!(kind(files.read_range("file", ReadRange::new(0, 1)).await), PermissionDenied);
    files.set_mode("file", 0o444).await.unwrap();
    assert_eq!(kind(files.write("file", "y").await), PermissionDenied);
    files.set_mode("shut", 0o555).await.unwrap();
    assert_eq!(kind(files.write("shut/new", "y").await), PermissionDenied);
    assert_eq!(kind(files.mkdir("shut/new").await), PermissionDenied);
    assert_eq!(kind(files.remove("shut/file").await), PermissionDenied);
    assert_eq!(kind(files.remove_all("shut").await), PermissionDenied);
    assert_eq!(kind(files.rename("shut/file", "moved").await), PermissionDenied);
    assert_eq!(kind(files.symlink("x", "shut/link").await), PermissionDenied);
    files.set_mode("shut", 0o311).await.unwrap();
    assert_eq!(kind(files.list("shut").await), PermissionDenied);
    assert_eq!(files.read("shut/file").await.unwrap(), "x");
    files.set_mode("shut", 0o000).await.unwrap();
    assert_eq!(kind(files.list("shut").await), PermissionDenied);
    assert_eq!(kind(files.read("shut/file").await), PermissionDenied);
    assert_eq!(kind(files.stat("shut/file").await), PermissionDenied);
    assert_eq!(kind(files.exists("shut/file").await), PermissionDenied);
    files.set_mode("shut", 0o755).await.unwrap();
    assert_eq!(files.read("shut/file").await.unwrap(), "x");
}

/// B87: a pipe or a device never keeps a call.
async fn nothing_special_is_opened<P: Whole>(place: &Place<P>) {
    let files = place.files();
    let made = place.sandbox.exec(["mkfifo", "pipe"]).await.unwrap();
    assert!(made.status.success() && fs::metadata(place.dir.join("pipe")).unwrap().file_type().is_fifo());
    files.symlink("pipe", "link").await.unwrap();
    let calls = async {
        for path in ["pipe", "link", "/dev/zero", "/dev/null"] {
            assert_eq!(kind(files.read(path).await), ErrorKind::NotARegularFile, "{path}");
            assert_eq!(kind(files.read_range(path, ReadRange::new(0, 1)).await), ErrorKind::NotARegularFile);
            assert_eq!(kind(files.write(path, "x").await), ErrorKind::NotARegularFile, "{path}");
            assert!(files.exists(path).await.unwrap());
        }
        assert_eq!(files.stat("pipe").await.unwrap().kind, EntryKind::Other);
        assert_eq!(files.list(".").await.unwrap()[1].kind, EntryKind::Other);
    };
    tokio::time::timeout(Duration::from_secs(20), calls).await.expect("no call waits for a pipe");
}

/// Links are described as links, and followed by read and write.
async fn links<P: Whole>(place: &Place<P>) {
    let files = place.files();
    files.mkdir("folder").await.unwrap();
    files.write("folder/file", "old").await.unwrap();
    files.symlink("folder/file", "to file").await.unwrap();
    files.symlink("folder", "to folder").await.unwrap();
    files.symlink("folder/new\n", "dangling").await.unwrap();
    files.symlink("nope/nope", "lost").await.unwrap();
    files.symlink("loop", "loop").await.unwrap();
    files.symlink("-n", "-e").await.unwrap();

    let entry = files.stat("to file").await.unwrap();
    assert_eq!((entry.kind, entry.target, entry.size), (EntryKind::Symlink, Some("folder/file".into()), 0));
    assert_eq!(files.stat("-e").await.unwrap().target, Some("-n".into()));
    assert_eq!(files.stat("dangling").await.unwrap().target, Some("folder/new\n".into()));
    let targets: Vec<_> =
        files.list(".").await.unwrap().into_iter().filter_map(|entry| entry.target).collect();
    assert_eq!(
        targets,
        ["-n", "folder/new\n", "loop", "nope/nope", "folder/file", "folder"].map(SandboxPath::from)
    );
    assert_eq!(files.list("to folder").await.unwrap().len(), 1);
    assert_eq!(files.list("to folder/..").await.unwrap().len(), files.list(".").await.unwrap().len());

    assert_eq!(files.read("to file").await.unwrap(), "old");
    files.write("to file", "new").await.unwrap();
    assert_eq!(files.read("folder/file").await.unwrap(), "new");
    assert_eq!(files.stat("to file").await.unwrap().kind, EntryKind::Symlink);
    files.write("dangling", "made").await.unwrap();
    assert_eq!(files.read("folder/new\n").await.unwrap(), "made");
    assert_eq!(kind(files.write("lost", "x").await), ErrorKind::NotFound);
    assert_eq!(kind(files.read("lost").await), ErrorKind::NotFound);
    assert_eq!(kind(files.read("loop").await), ErrorKind::Conflict);
    assert_eq!(kind(files.write("loop", "x").await), ErrorKind::Conflict);
    assert_eq!(kind(files.symlink("x", "to file").await), ErrorKind::AlreadyExists);
    assert_eq!(kind(files.symlink("x", "folder").await), ErrorKind::AlreadyExists);

    files.remove("to folder").await.unwrap();
    files.remove_all("dangling").await.unwrap();
    assert_eq!(files.list("folder").await.unwrap().len(), 2);
}

async fn ranges<P: Whole>(place: &Place<P>) {
    let files = place.files();
    let content = noise(100_000);
    files.write("file", content.clone()).await.unwrap();
    for (offset, length) in [
        (0, 0),
        (0, 1),
        (0, 100_000),
        (0, 200_000),
        (1, 5),
        (65_535, 2),
        (65_536, 70_000),
        (99_999, 5),
        (100_000, 5),
        (1 << 40, 5),
    ] {
        let from = usize::try_from(offset).unwrap().min(content.len());
        let to = (from + usize::try_from(length).unwrap()).min(content.len());
        let read = files.read_range("file", ReadRange::new(offset, length)).await.unwrap();
        assert!(read == content[from..to], "{offset} {length}");
    }
    let mut tail = ReadRange::default();
    tail.offset = 99_990;
    assert_eq!(files.read_range("file", tail).await.unwrap(), content[99_990..]);
    tail.offset = u64::MAX;
    assert!(files.read_range("file", tail).await.unwrap().is_empty());
    assert!(files.read_range("file", ReadRange::new(u64::MAX, u64::MAX)).await.unwrap().is_empty());
    // Beyond what 32 bits count, in a file with a hole.
    let far = (5 << 30) + 7;
    fs::File::options().write(true).open(place.dir.join("file")).unwrap().write_all_at(b"far", far).unwrap();
    assert_eq!(files.read_range("file", ReadRange::new(far - 1, 10)).await.unwrap(), &b"\0far"[..]);
}

/// B187: sizes, permission bits and times, whatever the zone.
async fn facts<P: Whole>(place: &Place<P>) {
    let files = place.files();
    files.write_with("file", "12345", WriteOptions::default().with_mode(0o640)).await.unwrap();
    let time = SystemTime::UNIX_EPOCH + Duration::new(1_704_067_200, 123_456_789);
    fs::File::options().write(true).open(place.dir.join("file")).unwrap().set_modified(time).unwrap();
    for entry in [files.stat("file").await.unwrap(), files.list(".").await.unwrap().remove(0)] {
        assert_eq!((entry.kind, entry.size, entry.mode), (EntryKind::File, 5, 0o640));
        assert_eq!(entry.modified, Some(time));
    }
    let before = SystemTime::UNIX_EPOCH - Duration::from_secs(100);
    fs::File::options().write(true).open(place.dir.join("file")).unwrap().set_modified(before).unwrap();
    assert_eq!(files.stat("file").await.unwrap().modified, Some(before));
    fs::create_dir(place.dir.join("sticky")).unwrap();
    fs::set_permissions(place.dir.join("sticky"), PermissionsExt::from_mode(0o1755)).unwrap();
    let entry = files.stat("sticky").await.unwrap();
    assert_eq!((entry.kind, entry.size, entry.mode), (EntryKind::Directory, 0, 0o1755));
    assert_eq!(files.stat("/").await.unwrap().kind, EntryKind::Directory);
    // As many as one `stat` does not take at once.
    fs::create_dir(place.dir.join("many")).unwrap();
    for i in 0..1500 {
        fs::write(place.dir.join(format!("many/{i:0>100}")), "x").unwrap();
    }
    let many = files.list("many").await.unwrap();
    assert!(many.len() == 1500 && many.iter().all(|entry| entry.size == 1));
}

async fn modify<P: Whole>(place: &Place<P>) {
    use ErrorKind::{AlreadyExists, Conflict, IsADirectory, NotADirectory, NotFound};
    let files = place.files();
    files.mkdir("a/b/c").await.unwrap();
    files.mkdir("a/b/c").await.unwrap();
    files.write("file", "1").await.unwrap();
    files.write("other", "2").await.unwrap();
    assert_eq!(kind(files.mkdir("file").await), AlreadyExists);
    assert_eq!(kind(files.mkdir("file/x").await), NotADirectory);

    files.rename("file", "other").await.unwrap();
    assert_eq!(files.read("other").await.unwrap(), "1");
    assert_eq!(kind(files.read("file").await), NotFound);
    assert_eq!(kind(files.rename("file", "x").await), NotFound);
    assert_eq!(kind(files.rename("other", "a").await), IsADirectory);
    assert_eq!(kind(files.rename("a", "other").await), NotADirectory);
    files.mkdir("empty").await.unwrap();
    assert_eq!(kind(files.rename("a", "empty").await), AlreadyExists);
    files.rename("other", "other").await.unwrap();
    files.rename("a", "a").await.unwrap();
    files.rename("a", "moved").await.unwrap();
    assert_eq!(files.list("moved/b").await.unwrap().len(), 1);
    // A link is moved and replaced itself, not what it leads to.
    files.symlink("moved", "link").await.unwrap();
    files.rename("link", "link2").await.unwrap();
    assert_eq!(files.stat("link2").await.unwrap().kind, EntryKind::Symlink);
    files.rename("other", "link2").await.unwrap();
    assert_eq!(files.read("link2").await.unwrap(), "1");
    assert_eq!(files.list("moved").await.unwrap().len(), 1);

    assert_eq!(kind(files.remove("nope").await), NotFound);
    assert_eq!(kind(files.remove_all("nope").await), NotFound);
    assert_eq!(kind(files.remove("moved").await), Conflict);
    files.remove("empty").await.unwrap();
    files.remove("link2").await.unwrap();
    files.remove_all("moved").await.unwrap();
    assert!(files.list(".").await.unwrap().is_empty());
}

/// B95: a write is all or nothing, and keeps what the file is.
async fn writing<P: Whole>(place: &Place<P>) {
    let files = place.files();
    let mode = |path: &str| fs::metadata(place.dir.join(path)).unwrap().mode() & 0o7777;
    files.write("new", "x").await.unwrap();
    assert_eq!(mode("new"), 0o644);
    files.write_with("tool", "x", WriteOptions::default().with_mode(0o755)).await.unwrap();
    assert_eq!(mode("tool"), 0o755);
    files.write_with("tool", "y", WriteOptions::default().with_mode(0o600)).await.unwrap();
    assert_eq!(mode("tool"), 0o755);
    files.write_with("p/q/file", "x", WriteOptions::default().with_parents()).await.unwrap();
    assert_eq!(files.read("p/q/file").await.unwrap(), "x");
    let absolute = place.dir.join("abs/file");
    let absolute = SandboxPath::from(absolute.as_os_str().as_bytes());
    files.write_with(&absolute, "x", WriteOptions::default().with_parents()).await.unwrap();
    assert_eq!(files.read("abs/file").await.unwrap(), "x");
    // Whoever reads meanwhile sees the old content or the new.
    let open = fs::File::open(place.dir.join("tool")).unwrap();
    files.write("tool", "z").await.unwrap();
    assert_eq!(std::io::read_to_string(open).unwrap(), "y");
}

#[tokio::test]
async fn a_write_that_arrives_in_part_changes_nothing() {
    let place = Bare::place(Tools::Gnu).await.unwrap();
    let files = place.files();
    files.write("file", "old").await.unwrap();
    place.sandbox.native().cut_input.store(true, Ordering::Relaxed);
    assert_eq!(kind(files.write("file", "longer").await), ErrorKind::Conflict);
    assert_eq!(kind(files.write("new", "longer").await), ErrorKind::Conflict);
    assert_eq!(files.read("file").await.unwrap(), "old");
    assert!(!files.exists("new").await.unwrap());
    assert_eq!(place.leftovers(), [""; 0]);
}

/// B95: a full disk leaves the old content.
#[tokio::test]
async fn a_full_disk() {
    for tools in [Tools::Gnu, Tools::Busybox] {
        let Some(place) = Bare::place(tools).await else { continue };
        let Some(_disk) = SmallDisk::mount(place.dir.join("disk")) else {
            println!("skipped: mounting a small disk needs root");
            return;
        };
        let files = place.files();
        let old = noise(1 << 20);
        files.write("disk/file", old.clone()).await.unwrap();
        assert_eq!(
            kind(files.write("disk/file", noise(20 << 20)).await),
            ErrorKind::StorageFull,
            "{tools:?}"
        );
        assert!(files.read("disk/file").await.unwrap() == old);
        assert_eq!(leftovers(&place.dir.join("disk")), [""; 0]);
    }
}

struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: PathBuf) -> Option<Self> {
        fs::create_dir(&path).unwrap();
        let mut mount = std::process::Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", "size=8m,mode=777", "tmpfs"]).arg(&path).output();
        mounted.is_ok_and(|output| output.status.success()).then_some(Self(path))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        std::process::Command::new("umount").arg(&self.0).status().unwrap();
    }
}

async fn permissions<P: Whole>(place: &Place<P>) {
    let files = place.files();
    let mode = |path: &str| fs::metadata(place.dir.join(path)).unwrap().mode() & 0o7777;
    files.write("file", "x").await.unwrap();
    for wanted in [0o000, 0o755, 0o600, 0o4755, 0o755] {
        files.set_mode("file", wanted).await.unwrap();
        assert_eq!(mode("file"), wanted);
    }
    files.mkdir("folder").await.unwrap();
    for wanted in [0o2775, 0o755, 0o1777, 0o700] {
        files.set_mode("folder", wanted).await.unwrap();
        assert_eq!(mode("folder"), wanted, "exactly, without what was set before");
    }
    files.symlink("file", "link").await.unwrap();
    files.set_mode("link", 0o640).await.unwrap();
    assert_eq!(mode("file"), 0o640);
}

/// Tools are programs of the sandbox: what they say is checked, and bounded.
#[tokio::test]
async fn hostile_tools() {
    lied_to(&Bare::place(Tools::Gnu).await.unwrap()).await;
    lied_to(&PoorBare::place(Tools::Gnu).await.unwrap()).await;
}

async fn lied_to<const POOR: bool>(place: &Place<Real<RUN, POOR>>)
where
    Real<RUN, POOR>: Whole + Backend<NativeSandbox = Session<RUN, POOR>>,
{
    let files = place.files();
    files.write("file", "x").await.unwrap();
    let evil = place.dir.join("evil");
    fs::create_dir(&evil).unwrap();
    let put = |name: &str, text: &str| {
        fs::write(evil.join(name), format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(evil.join(name), PermissionsExt::from_mode(0o755)).unwrap();
    };
    place.sandbox.native().prepend_path(&evil);
    put("stat", "echo 81a4 5 nonsense");
    assert_eq!(kind(files.list(".").await), ErrorKind::Provider);
    assert_eq!(kind(files.stat("file").await), ErrorKind::Provider);
    // One that fails without a word, as if the folder had become empty.
    put("stat", "exit 1");
    assert_eq!(kind(files.list(".").await), ErrorKind::Provider);
    assert_eq!(kind(files.stat("file").await), ErrorKind::Provider);
    put("head", "exec /usr/bin/head -c 100000 /dev/zero");
    assert_eq!(kind(files.read_range("file", ReadRange::new(0, 10)).await), ErrorKind::InvalidArgument);
    // Messages are read, so they must be in English whatever the sandbox speaks.
    put("cat", r#"printf %s "$LC_ALL""#);
    assert_eq!(files.read("file").await.unwrap(), "C");
    put("cat", "echo nothing; exit 1");
    assert_eq!(kind(files.read("file").await), ErrorKind::Provider);
}

/// A missing tool is an error, not an answer.
#[tokio::test]
async fn missing_tools() {
    let place = PoorBare::place(Tools::Gnu).await.unwrap();
    let files = place.files();
    files.write("file", "x").await.unwrap();
    let only = place.dir.join("only");
    fs::create_dir(&only).unwrap();
    place.sandbox.native().set_path(&only);
    let put = |name: &str| symlink(Path::new("/usr/bin").join(name), only.join(name)).unwrap();
    assert_eq!(kind(files.read("file").await), ErrorKind::ProgramNotFound);
    put("sh");
    assert_eq!(kind(files.read("file").await), ErrorKind::ProgramNotFound);
    put("cat");
    assert_eq!(kind(files.read("file").await), ErrorKind::ProgramNotFound, "`base64` is missing");
    put("base64");
    assert_eq!(files.read("file").await.unwrap(), "x");
    assert_eq!(kind(files.list(".").await), ErrorKind::ProgramNotFound, "`xargs` is missing");
    put("xargs");
    assert_eq!(kind(files.list(".").await), ErrorKind::ProgramNotFound, "`stat` is missing");
    put("stat");
    assert_eq!(kind(files.list("only").await), ErrorKind::ProgramNotFound, "`readlink` is missing");
    put("readlink");
    assert_eq!(files.list("only").await.unwrap().len(), 6);
    assert_eq!(kind(files.write("file", "y").await), ErrorKind::ProgramNotFound, "`mktemp` is missing");
    assert_eq!(files.read("file").await.unwrap(), "x");
}
