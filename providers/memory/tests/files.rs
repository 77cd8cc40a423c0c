//! Files.

use std::time::{Duration, SystemTime};

use capbox_core::api::{
    EntryKind, FileEvent, FileEventKind, FileEvents, ReadRange, Sandbox, SearchQuery, WriteOptions,
};
use capbox_core::error::ErrorKind;
use capbox_core::provider::SandboxPath;
use capbox_memory::Memory;

async fn sandbox() -> Sandbox<Memory> {
    Memory::new().create().await.unwrap()
}

async fn sh(sandbox: &Sandbox<Memory>, text: &str) -> String {
    let output = sandbox.exec(text).await.unwrap();
    assert!(output.status.success(), "{text}: {output:?}");
    output.stdout.text().into_owned()
}

fn kind<T: std::fmt::Debug>(result: Result<T, capbox_core::error::Error>) -> ErrorKind {
    result.unwrap_err().kind()
}

/// B47, B49: bytes are bytes; text that is none is an error.
#[tokio::test]
async fn content() {
    let sandbox = sandbox().await;
    let files = sandbox.files();
    let all: Vec<u8> = (0..=255).collect();
    files.write("all", all.clone()).await.unwrap();
    assert_eq!(files.read("all").await.unwrap(), all);
    assert_eq!(files.read("/home/user/all").await.unwrap(), all);
    assert_eq!(kind(files.read_text("all").await), ErrorKind::InvalidArgument);
    let edge = format!("{}—", "a".repeat(8191));
    files.write("edge", edge.clone()).await.unwrap();
    assert_eq!(files.read_text("edge").await.unwrap(), edge);
    assert_eq!(files.read_range("all", ReadRange::new(250, 100)).await.unwrap(), all[250..]);
    assert_eq!(files.read_range("all", ReadRange::new(3, 4)).await.unwrap(), all[3..7]);
    assert!(files.read_range("all", ReadRange::new(1000, 4)).await.unwrap().is_empty());
    let big = vec![7; 1 << 20];
    files.write("big", big.clone()).await.unwrap();
    assert_eq!(
        sh(&sandbox, "sha256sum < big").await,
        sh(&sandbox, "head -c 1048576 /dev/zero | tr '\\0' '\\007' | sha256sum").await
    );
}

#[tokio::test]
async fn modes() {
    let sandbox = sandbox().await;
    let files = sandbox.files();
    assert_eq!(kind(files.write("a/b/f", "x").await), ErrorKind::NotFound);
    files.write_with("a/b/f", "x", WriteOptions::default().with_parents().with_mode(0o600)).await.unwrap();
    assert_eq!(files.stat("a/b/f").await.unwrap().mode, 0o600);
    files.set_mode("a/b/f", 0o4755).await.unwrap();
    files.write("a/b/f", "y").await.unwrap();
    assert_eq!(files.stat("a/b/f").await.unwrap().mode, 0o4755);
    assert_eq!(sh(&sandbox, "stat -c %a a/b/f; chmod 640 a/b/f").await, "755\n");
    assert_eq!(files.stat("a/b/f").await.unwrap().mode, 0o640);
}

/// B81, B82: names are verbatim.
#[tokio::test]
async fn names() {
    let sandbox = sandbox().await;
    let files = sandbox.files();
    let names: [&[u8]; 6] = [b"-rf", b"a b", b"notes.txt ", b"not\xffutf8", b"x\ny", "yé☕".as_bytes()];
    files.mkdir("d").await.unwrap();
    for name in names {
        files.write(SandboxPath::from("d").join(name), name.to_vec()).await.unwrap();
    }
    files.symlink("/tmp", "d/zlink").await.unwrap();
    files.mkdir("d/zz").await.unwrap();
    let list = files.list("d").await.unwrap();
    let listed: Vec<_> = list.iter().map(|entry| entry.name.as_bytes()).collect();
    let mut sorted = names;
    sorted.sort_unstable();
    assert_eq!(listed[..6], sorted);
    for entry in &list[..6] {
        assert_eq!(entry.kind, EntryKind::File);
        let path = SandboxPath::from("d").join(&entry.name);
        assert_eq!(files.read(path).await.unwrap(), entry.name.as_bytes().to_vec());
    }
    assert_eq!((list[6].kind, list[6].target.clone()), (EntryKind::Symlink, Some("/tmp".into())));
    assert_eq!(list[7].kind, EntryKind::Directory);
    assert_eq!(
        sh(&sandbox, "cat 'd/notes.txt '; cat -- d/-rf; rm -- d/-rf; ls d | wc -l").await,
        "notes.txt -rf8\n"
    );
}

/// B85: what is not a folder is not an empty one.
#[tokio::test]
async fn kinds_of_failure() {
    let sandbox = sandbox().await;
    let files = sandbox.files();
    assert_eq!(kind(files.list("/etc/hostname").await), ErrorKind::NotADirectory);
    assert_eq!(kind(files.list("/nope").await), ErrorKind::NotFound);
    assert_eq!(kind(files.read("/etc").await), ErrorKind::IsADirectory);
    assert_eq!(kind(files.read("/etc/hostname/x").await), ErrorKind::NotADirectory);
    assert_eq!(kind(files.read("/etc/hostname/").await), ErrorKind::NotADirectory);
    assert_eq!(kind(files.write("/etc", "x").await), ErrorKind::IsADirectory);
    assert_eq!(kind(files.mkdir("/etc/hostname").await), ErrorKind::AlreadyExists);
    assert_eq!(kind(files.remove("/nope").await), ErrorKind::NotFound);
    assert_eq!(kind(files.remove("/etc").await), ErrorKind::Conflict);
    assert_eq!(kind(files.remove_all("/").await), ErrorKind::PermissionDenied);
    assert_eq!(kind(files.symlink("x", "/etc").await), ErrorKind::AlreadyExists);
    assert_eq!(kind(files.write("x".repeat(256), "x").await), ErrorKind::InvalidArgument);
    assert_eq!(kind(files.mkdir("d/".repeat(200)).await), ErrorKind::InvalidArgument);
    assert!(!files.exists("/nope/x").await.unwrap());
    // B87
    for device in ["/dev/zero", "/dev/null", "/dev/urandom"] {
        assert_eq!(kind(files.read(device).await), ErrorKind::NotARegularFile, "{device}");
        assert_eq!(kind(files.write(device, "x").await), ErrorKind::NotARegularFile, "{device}");
        assert_eq!(files.stat(device).await.unwrap().kind, EntryKind::Other);
    }
    assert_eq!(sh(&sandbox, "head -c 5000000 /dev/zero | wc -c").await.trim(), "5000000");
    assert_eq!(
        sh(&sandbox, "echo x > /dev/null; head -c 4 /dev/urandom | wc -c; cat /dev/null").await.trim(),
        "4"
    );
}

/// B95: a full disk refuses, and keeps what was there.
#[tokio::test]
async fn a_full_disk() {
    let sandbox = Memory::new().create().disk(8_u64 << 20).await.unwrap();
    let files = sandbox.files();
    let old = vec![1; 1 << 20];
    files.write("f", old.clone()).await.unwrap();
    assert_eq!(kind(files.write("f", vec![2; 20 << 20]).await), ErrorKind::StorageFull);
    assert_eq!(files.read("f").await.unwrap(), old);
    let output = sandbox.exec("while cat f >> g; do :; done; ls g").await.unwrap();
    assert!(output.stderr.text().contains("no space left"), "{output:?}");
    // Room comes back.
    files.remove("g").await.unwrap();
    files.write("h", vec![3; 6 << 20]).await.unwrap();
    // Also without content something is taken.
    let sandbox = Memory::new().create().disk(1_u64 << 20).await.unwrap();
    let mut made = 0;
    while sandbox.files().write(format!("e{made}"), "").await.is_ok() {
        made += 1;
    }
    assert!((1000..=4096).contains(&made), "{made}");
}

/// B98, B99, B100: a path ends inside the sandbox, whatever links say.
#[tokio::test]
async fn links_stay_inside() {
    let sandbox = sandbox().await;
    let files = sandbox.files();
    let secret = std::fs::read("/etc/passwd").unwrap_or_default();
    files.symlink("/etc/passwd", "link").await.unwrap();
    files.symlink("../../../../../../etc/passwd", "up").await.unwrap();
    for path in ["link", "up", "/../etc/passwd", "../../../etc/passwd"] {
        let read = files.read(path).await.unwrap();
        assert_ne!(read, secret);
        assert_eq!(read, files.read("/etc/passwd").await.unwrap(), "{path}");
    }
    files.symlink("/tmp/made", "dangling").await.unwrap();
    assert_eq!(kind(files.read("dangling").await), ErrorKind::NotFound);
    assert!(files.exists("dangling").await.unwrap());
    files.write("dangling", "x").await.unwrap();
    assert_eq!(files.read("/tmp/made").await.unwrap(), "x");
    files.symlink("loop", "loop").await.unwrap();
    assert_eq!(kind(files.read("loop").await), ErrorKind::Conflict);
    // The last link is not followed by what describes, renames or removes.
    assert_eq!(files.stat("link").await.unwrap().kind, EntryKind::Symlink);
    files.rename("link", "moved").await.unwrap();
    files.remove("moved").await.unwrap();
    assert!(files.exists("/etc/passwd").await.unwrap());
    files.mkdir("/tmp/real").await.unwrap();
    files.symlink("/tmp/real", "/tmp/root").await.unwrap();
    files.write("/tmp/root/f", "x").await.unwrap();
    assert_eq!(files.read("/tmp/real/f").await.unwrap(), "x");
    assert_eq!(files.list("/tmp/root").await.unwrap().len(), 1);
    assert_eq!(
        sh(&sandbox, "cat /tmp/root/f; ls -l /tmp/root | grep -c real; cd /tmp/root; pwd").await,
        "x1\n/tmp/root\n"
    );
}

#[tokio::test]
async fn renames() {
    let sandbox = sandbox().await;
    let files = sandbox.files();
    sh(&sandbox, "mkdir -p a/sub b full/x; echo 1 > f; echo 2 > g").await;
    files.rename("f", "g").await.unwrap();
    assert_eq!(files.read("g").await.unwrap(), "1\n");
    assert_eq!(kind(files.rename("f", "h").await), ErrorKind::NotFound);
    assert_eq!(kind(files.rename("g", "a").await), ErrorKind::IsADirectory);
    assert_eq!(kind(files.rename("a", "g").await), ErrorKind::NotADirectory);
    assert_eq!(kind(files.rename("a", "full").await), ErrorKind::Conflict);
    assert_eq!(kind(files.rename("a", "a/sub/a").await), ErrorKind::InvalidArgument);
    assert_eq!(kind(files.rename("g", "nope/g").await), ErrorKind::NotFound);
    assert_eq!(kind(files.rename("a", "/").await), ErrorKind::Conflict);
    assert_eq!(kind(files.rename("/", "a/x").await), ErrorKind::InvalidArgument);
    files.rename("g", "g").await.unwrap();
    files.rename("a", "b").await.unwrap();
    assert!(files.exists("b/sub").await.unwrap());
    assert!(!files.exists("a").await.unwrap());
}

/// B187: times are times.
#[tokio::test]
async fn times() {
    let sandbox = sandbox().await;
    let before = SystemTime::now();
    sandbox.files().write("f", "x").await.unwrap();
    assert!(sandbox.files().stat("f").await.unwrap().modified.unwrap() >= before);
    sh(&sandbox, "touch -d 2024-01-01T00:00:00Z f").await;
    let modified = sandbox.files().stat("f").await.unwrap().modified.unwrap();
    assert_eq!(modified, SystemTime::UNIX_EPOCH + Duration::from_hours(473_352));
}

async fn seen(events: &mut FileEvents) -> Vec<(FileEventKind, String)> {
    let mut seen = Vec::new();
    while let Ok(Ok(Some(FileEvent { kind, path, .. }))) =
        tokio::time::timeout(Duration::from_millis(20), events.next()).await
    {
        seen.push((kind, path.to_string()));
    }
    seen
}

/// B109: folders made at once are all seen.
#[tokio::test]
async fn watches() {
    use FileEventKind::{Created, Modified, Removed};
    let sandbox = sandbox().await;
    sh(&sandbox, "mkdir w other").await;
    let mut events = sandbox.files().watch("w").await.unwrap();
    sh(&sandbox, "mkdir -p w/a/b/c && touch w/a/b/c/f; touch other/x").await;
    let paths: Vec<_> =
        seen(&mut events).await.into_iter().filter(|(kind, _)| *kind == Created).map(|(_, p)| p).collect();
    assert_eq!(paths, ["w/a", "w/a/b", "w/a/b/c", "w/a/b/c/f"]);
    sandbox.files().write("w/a/b/c/f", "more").await.unwrap();
    sandbox.files().rename("w/a/b/c/f", "w/g").await.unwrap();
    let expected = [(Modified, "w/a/b/c/f"), (Removed, "w/a/b/c/f"), (Created, "w/g")];
    assert_eq!(seen(&mut events).await, expected.map(|(kind, path)| (kind, path.to_owned())));
    sandbox.files().remove_all("w/a").await.unwrap();
    let removed = ["w/a/b/c", "w/a/b", "w/a"];
    assert_eq!(seen(&mut events).await, removed.map(|path| (Removed, path.to_owned())));
    sh(&sandbox, "rm -r w").await;
    assert_eq!(events.next().await.unwrap().map(|event| event.kind), Some(Removed));
    assert!(events.next().await.unwrap().is_none());
    assert_eq!(kind(sandbox.files().watch("w").await), ErrorKind::NotFound);
    assert_eq!(kind(sandbox.files().watch("/etc/passwd").await), ErrorKind::NotADirectory);
}

/// B111: what is too much is told.
#[tokio::test]
async fn too_many_changes() {
    let sandbox = sandbox().await;
    let mut events = sandbox.files().watch("/tmp").await.unwrap();
    for n in 0..5000 {
        sandbox.files().write(format!("/tmp/{n}"), "").await.unwrap();
    }
    let first = events.next().await.unwrap().unwrap();
    assert_eq!((first.kind, first.path), (FileEventKind::Overflow, "/tmp".into()));
    let next = events.next().await.unwrap().unwrap();
    assert_eq!((next.kind, next.path), (FileEventKind::Created, "/tmp/4096".into()));
}

#[tokio::test]
async fn searches() {
    let sandbox = sandbox().await;
    sh(&sandbox, "mkdir -p s/sub; printf 'one\\ntwo fish\\n' > s/a.txt; echo 'red fish' > s/sub/b.txt; echo fish > s/c.rs").await;
    let found = |query: SearchQuery| {
        let files = sandbox.files();
        async move {
            let found = files.search("s", &query).await.unwrap();
            found.iter().map(|m| (m.path.to_string(), m.line.as_ref().map(|(n, _)| *n))).collect::<Vec<_>>()
        }
    };
    let query = SearchQuery::default;
    assert_eq!(
        found(query().with_name("*.txt")).await,
        [("s/a.txt".into(), None), ("s/sub/b.txt".into(), None)]
    );
    assert_eq!(found(query().with_name("s?b")).await, [("s/sub".to_owned(), None)]);
    let both = [("s/a.txt".to_owned(), Some(2)), ("s/sub/b.txt".to_owned(), Some(1))];
    assert_eq!(found(query().with_name("*.txt").with_text("fish")).await, both);
    assert_eq!(found(query().with_text("fish").with_limit(1)).await.len(), 1);
    // B111: a regular expression is plain text.
    assert!(found(query().with_text("f.sh")).await.is_empty());
}

#[tokio::test]
async fn copies_of_one_file() {
    let sandbox = sandbox().await;
    let files = sandbox.files();
    let folder = std::env::temp_dir().join(format!("capbox-memory-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let content: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(folder.join("in"), &content).unwrap();
    let sent = files.upload(folder.join("in"), "up").await.unwrap();
    assert_eq!((sent.files, sent.bytes), (1, content.len() as u64));
    files.download("up", folder.join("out")).await.unwrap();
    assert_eq!(std::fs::read(folder.join("out")).unwrap(), content);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2);
    // B93: failures are typed.
    assert_eq!(kind(files.upload(folder.join("nope"), "x").await), ErrorKind::NotFound);
    assert_eq!(kind(files.upload(&folder, "x").await), ErrorKind::IsADirectory);
    assert_eq!(kind(files.upload("", "x").await), ErrorKind::InvalidArgument);
    assert_eq!(kind(files.download("nope", folder.join("x")).await), ErrorKind::NotFound);
    assert_eq!(kind(files.download("up", folder.join("no/x")).await), ErrorKind::NotFound);
    assert!(!folder.join("x").exists());
    std::fs::remove_dir_all(&folder).unwrap();
}
