//! `UploadOverExec` and `TreeByFiles`.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use capbox_core::provider::*;
use tempfile::TempDir;

use crate::files::noise;
use crate::liar::Liar;
use crate::providers::*;

everywhere! { [Piped PoorPiped]: one_file copies_that_fail trees trees_merge }

fn host() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn kind(result: Result<Transferred>) -> ErrorKind {
    result.unwrap_err().kind()
}

/// B47, B89: whatever it holds and however long it is.
async fn one_file<P: Copies>(place: &Place<P>) {
    let (files, host) = (place.files(), host());
    let (source, back) = (host.path().join("source"), host.path().join("back"));
    for (size, mode) in [(0, 0o600), (5, 0o755), (300_001, 0o644), (9 << 20, 0o640)] {
        let content = noise(size);
        fs::write(&source, &content).unwrap();
        fs::set_permissions(&source, PermissionsExt::from_mode(mode)).unwrap();
        let name = SandboxPath::from_bytes(format!("-f \n{size}\u{ff}").into_bytes());
        let up = files.upload(&source, &name).await.unwrap();
        assert_eq!((up.files, up.bytes), (1, size as u64));
        assert!(files.read(&name).await.unwrap() == content);
        assert_eq!(files.stat(&name).await.unwrap().mode, mode);
        let down = files.download(&name, &back).await.unwrap();
        assert_eq!((down.files, down.bytes), (1, size as u64));
        assert!(fs::read(&back).unwrap() == content);
    }
    assert_eq!((place.leftovers(), leftovers(host.path())), (vec![], vec![]));
}

/// Errors say what is wrong, and leave both ends as they were.
async fn copies_that_fail<P: Copies>(place: &Place<P>) {
    let (files, host) = (place.files(), host());
    let (old, new) = (host.path().join("old"), host.path().join("new"));
    fs::write(&old, "old").unwrap();
    files.write("old", "old").await.unwrap();
    files.mkdir("folder").await.unwrap();

    assert_eq!(kind(files.download("nope", &old).await), ErrorKind::NotFound);
    assert_eq!(kind(files.download("folder", &old).await), ErrorKind::IsADirectory);
    assert_eq!(kind(files.download("/dev/zero", &old).await), ErrorKind::NotARegularFile);
    assert_eq!(kind(files.download("old", host.path()).await), ErrorKind::IsADirectory);
    assert_eq!(kind(files.download("old", host.path().join("nope/x")).await), ErrorKind::NotFound);
    assert_eq!(fs::read_to_string(&old).unwrap(), "old");

    assert_eq!(kind(files.upload(&new, "old").await), ErrorKind::NotFound);
    assert_eq!(kind(files.upload(host.path(), "old").await), ErrorKind::IsADirectory);
    assert_eq!(kind(files.upload("/dev/zero", "old").await), ErrorKind::NotARegularFile);
    fs::write(&new, noise(3 << 20)).unwrap();
    assert_eq!(kind(files.upload(&new, "folder").await), ErrorKind::IsADirectory);
    assert_eq!(kind(files.upload(&new, "nope/x").await), ErrorKind::NotFound);
    assert_eq!(kind(files.upload(&new, "old/x").await), ErrorKind::NotADirectory);
    files.set_mode("old", 0o444).await.unwrap();
    assert_eq!(kind(files.upload(&new, "old").await), ErrorKind::PermissionDenied);
    assert_eq!(files.read("old").await.unwrap(), "old");
    assert_eq!((place.leftovers(), leftovers(host.path())), (vec![], vec![]));
}

#[tokio::test]
async fn a_copy_that_is_given_up_changes_nothing() {
    let place = Piped::place(Tools::Gnu).await.unwrap();
    let (files, host) = (place.files(), host());
    let (big, old) = (host.path().join("big"), host.path().join("old"));
    fs::File::create(&big).unwrap().set_len(8 << 30).unwrap();
    fs::File::create(place.dir.join("big")).unwrap().set_len(8 << 30).unwrap();
    fs::write(&old, "old").unwrap();
    files.write("old", "old").await.unwrap();
    let soon = Duration::from_millis(300);
    tokio::time::timeout(soon, files.upload(&big, "old")).await.unwrap_err();
    tokio::time::timeout(soon, files.download("big", &old)).await.unwrap_err();
    assert_eq!(files.read("old").await.unwrap(), "old");
    assert_eq!(fs::read_to_string(&old).unwrap(), "old");
    assert_eq!(leftovers(host.path()), [""; 0]);
}

/// Tools are programs of the sandbox: what they say is checked.
#[tokio::test]
async fn a_tool_that_prints_nonsense() {
    let place = PoorPiped::place(Tools::Gnu).await.unwrap();
    let (files, host) = (place.files(), host());
    let (old, evil) = (host.path().join("old"), place.dir.join("evil"));
    fs::write(&old, "old").unwrap();
    files.write("file", "new").await.unwrap();
    fs::create_dir(&evil).unwrap();
    place.sandbox.native().prepend_path(&evil);
    for nonsense in ["bmV3IQ", "bmV3!", "bmU=bmV3"] {
        fs::write(evil.join("base64"), format!("#!/bin/sh\ncat >/dev/null; echo {nonsense}\n")).unwrap();
        fs::set_permissions(evil.join("base64"), PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(kind(files.download("file", &old).await), ErrorKind::Provider, "{nonsense}");
        assert_eq!(fs::read_to_string(&old).unwrap(), "old");
        assert_eq!(leftovers(host.path()), [""; 0]);
    }
}

/// All that is below `root`: path, kind, permission bits, and content or target.
fn picture(root: &Path) -> Vec<(String, String)> {
    fn walk(root: &Path, folder: &Path, all: &mut Vec<(String, String)>) {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let metadata = entry.metadata().unwrap();
            let mode = metadata.mode() & 0o7777;
            let what = if metadata.is_symlink() {
                format!("link to {}", fs::read_link(entry.path()).unwrap().display())
            } else if metadata.is_dir() {
                walk(root, &entry.path(), all);
                format!("folder {mode:o}")
            } else {
                format!("file {mode:o} {:?}", fs::read(entry.path()).unwrap())
            };
            all.push((entry.path().strip_prefix(root).unwrap().display().to_string(), what));
        }
    }
    let mut all = Vec::new();
    walk(root, root, &mut all);
    all.sort();
    all
}

fn plant(root: &Path) {
    let set_mode =
        |name: &str, mode| fs::set_permissions(root.join(name), PermissionsExt::from_mode(mode)).unwrap();
    fs::create_dir_all(root.join("a/b c/empty")).unwrap();
    fs::write(root.join("a/file\n"), "1").unwrap();
    fs::write(root.join("a/b c/-tool"), [0, 255, 10]).unwrap();
    set_mode("a/b c/-tool", 0o755);
    set_mode("a/file\n", 0o640);
    set_mode("a/b c/empty", 0o700);
    symlink("../a/file\n", root.join("a/inside")).unwrap();
    symlink("/usr/bin/python3", root.join("a/outside")).unwrap();
    symlink("nowhere", root.join("dangling")).unwrap();
    symlink("a", root.join("to folder")).unwrap();
}

/// B93, B107: empty folders, links wherever they lead, permission bits; folders that cannot be written.
async fn trees<P: Copies>(place: &Place<P>) {
    let (files, host) = (place.files(), host());
    let (source, back) = (host.path().join("source"), host.path().join("new/back"));
    fs::create_dir(&source).unwrap();
    plant(&source);
    fs::write(source.join("a/b c/locked"), "x").unwrap();
    fs::set_permissions(source.join("a/b c"), PermissionsExt::from_mode(0o555)).unwrap();
    let up = files.upload_tree(source.join(""), "in/tree").await.unwrap();
    let counts = |t: Transferred| [t.files, t.directories, t.symlinks, t.bytes, t.skipped];
    assert_eq!(counts(up), [3, 4, 4, 5, 0]);
    assert_eq!(picture(&source), picture(&place.dir.join("in/tree")));
    let mkfifo = place.sandbox.exec(["mkfifo", "in/tree/pipe"]).await.unwrap();
    assert!(mkfifo.status.success());
    let down = files.download_tree("in/tree/", &back).await.unwrap();
    assert_eq!(counts(down), [3, 4, 4, 5, 1]);
    assert_eq!(picture(&source), picture(&back));

    assert_eq!(kind(files.upload_tree("", "x").await), ErrorKind::InvalidArgument);
    assert_eq!(kind(files.upload_tree(host.path().join("nope"), "x").await), ErrorKind::NotFound);
    assert_eq!(kind(files.upload_tree(source.join("a/file\n"), "x").await), ErrorKind::NotADirectory);
    assert!(!files.exists("x").await.unwrap());
    let new = host.path().join("new2");
    assert_eq!(kind(files.download_tree("nope", &new).await), ErrorKind::NotFound);
    assert_eq!(kind(files.download_tree("in/tree/a/file\n", &new).await), ErrorKind::NotADirectory);
    assert!(!new.exists());
    fs::set_permissions(back.join("a/b c"), PermissionsExt::from_mode(0o755)).unwrap();
    fs::set_permissions(source.join("a/b c"), PermissionsExt::from_mode(0o755)).unwrap();
    files.set_mode("in/tree/a/b c", 0o755).await.unwrap();
}

/// What is there is merged: files and links are replaced, the rest stays.
async fn trees_merge<P: Copies>(place: &Place<P>) {
    let (files, host) = (place.files(), host());
    let (source, back) = (host.path().join("source"), host.path().join("back"));
    fs::create_dir(&source).unwrap();
    plant(&source);
    for target in [&back, &place.dir.join("tree")] {
        fs::create_dir_all(target.join("a")).unwrap();
        fs::write(target.join("a/file\n"), "old").unwrap();
        fs::write(target.join("kept"), "kept").unwrap();
        fs::write(target.join("dangling"), "was a file").unwrap();
        symlink("else", target.join("a/inside")).unwrap();
        fs::set_permissions(target, PermissionsExt::from_mode(0o770)).unwrap();
        if is_root() {
            let nobody = std::process::Command::new("chown").args(["-R", "65534"]).arg(target).status();
            assert!(nobody.unwrap().success());
        }
    }
    let root_mode = fs::metadata(place.dir.join("tree")).unwrap().mode();
    files.upload_tree(&source, "tree").await.unwrap();
    files.download_tree("tree", &back).await.unwrap();
    fs::write(source.join("kept"), "kept").unwrap();
    assert_eq!(picture(&source), picture(&place.dir.join("tree")));
    assert_eq!(picture(&source), picture(&back));
    assert_eq!(fs::metadata(place.dir.join("tree")).unwrap().mode(), root_mode, "it was there before");
    // A folder never takes the place of something else, nor the other way round.
    fs::remove_file(source.join("dangling")).unwrap();
    fs::create_dir(source.join("dangling")).unwrap();
    fs::remove_file(source.join("kept")).unwrap();
    fs::create_dir(source.join("kept")).unwrap();
    assert!(files.upload_tree(&source, "tree").await.is_err());
    assert_eq!(files.read("tree/kept").await.unwrap(), "kept");
}

/// B98, B105: a sandbox that lies about its names gets nothing written, here or elsewhere.
#[tokio::test]
async fn hostile_names_are_refused_before_anything_is_written() {
    let file = |name: &str| Entry::new(name, EntryKind::File);
    let folder = |name: &str| Entry::new(name, EntryKind::Directory);
    let link = |name: &str, to: &str| {
        let mut link = Entry::new(name, EntryKind::Symlink);
        link.target = Some(to.into());
        link
    };
    let trees = [
        vec![("", vec![file("good"), file("../evil")])],
        vec![("", vec![file("good"), file("..")])],
        vec![("", vec![file("good"), folder(".")])],
        vec![("", vec![file("good"), file("/etc/evil")])],
        vec![("", vec![file("good"), file("a/b")])],
        vec![("", vec![file("good"), file("")])],
        vec![("", vec![file("good"), file("nul\0")])],
        vec![("", vec![file("good"), link("l", "/outside"), folder("l")]), ("l", vec![file("evil")])],
        vec![("", vec![file("good"), link("l", "/outside"), file("l")])],
        vec![
            ("", vec![file("good"), folder("d")]),
            ("d", vec![folder("e")]),
            ("d/e", vec![file("../../../evil")]),
        ],
    ];
    for tree in trees {
        let host = host();
        let target = host.path().join("target");
        let sandbox = Liar::sandbox(tree.clone()).await;
        let error = sandbox.files().download_tree("/", &target).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{tree:?}");
        assert!(picture(host.path()).is_empty(), "{tree:?}");
    }
}

/// B99, B105: no link is followed on this machine, neither one of the sandbox nor one that was there.
#[tokio::test]
async fn links_on_this_machine_are_not_followed() {
    let host = host();
    let (target, outside) = (host.path().join("target"), host.path().join("outside"));
    let mut tool = Entry::new("f", EntryKind::File);
    tool.mode = 0o6755;
    let mut link = Entry::new("l", EntryKind::Symlink);
    link.target = Some(outside.to_str().unwrap().into());
    let sandbox = Liar::sandbox(vec![("", vec![link, tool])]).await;
    fs::create_dir(&target).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("f"), "mine").unwrap();
    symlink(outside.join("f"), target.join("f")).unwrap();
    sandbox.files().download_tree("/", &target).await.unwrap();
    assert_eq!(picture(&outside), [("f".to_owned(), format!("file 644 {:?}", b"mine"))]);
    assert_eq!(fs::symlink_metadata(target.join("f")).unwrap().mode() & 0o7777, 0o755, "no set-id bits");
    assert_eq!(fs::read_link(target.join("l")).unwrap(), outside);

    // The link that has just been made, and a folder of its name the next time.
    let tree = vec![
        ("", vec![Entry::new("l", EntryKind::Directory)]),
        ("l", vec![Entry::new("evil", EntryKind::File)]),
    ];
    let sandbox = Liar::sandbox(tree).await;
    assert_eq!(kind(sandbox.files().download_tree("/", &target).await), ErrorKind::NotADirectory);
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    assert_eq!(leftovers(&target), [""; 0]);
}
