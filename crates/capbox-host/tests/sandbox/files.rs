//! Files from outside, copies and watching.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use capbox_host::{Error, Files, Kind, Launch, Search, WatchKind, WriteOptions};

use crate::support::{Outcome, guest, host, print, run_sh, scratch, tests};

tests! {
    Both content_survives_the_trip,
    Both ranges_and_limits,
    Both names_are_bytes,
    Both listing_tells_folders_from_files_and_nothing,
    Both special_files_are_refused,
    Both links_stay_inside,
    Both links_of_the_host_are_not_followed_below_a_source,
    Both doors_of_the_kernel_are_refused,
    Both a_swapped_parent_leads_nowhere_else,
    Both the_code_users_rights_hold,
    Both a_full_disk_keeps_the_old_content,
    Both writing_keeps_modes_and_goes_through_links,
    Both folders_names_and_modes,
    Both removing_a_deep_tree_blocks_nobody,
    Both copies_keep_trees,
    Both copies_of_single_files,
    Both a_hostile_target_is_not_followed,
    Both searching,
    Both watching_nested_folders,
    Both watching_tells_of_overflow,
    Both a_channel_does_not_keep_the_sandbox,
}

fn write(files: &Files, path: &str, content: &[u8]) -> Result<u64, Error> {
    files.write(Path::new(path), &mut &*content, &WriteOptions::default())
}

fn read(files: &Files, path: &str) -> Result<Vec<u8>, Error> {
    files.read(Path::new(path), 0..u64::MAX, 64 << 20)
}

/// B47, B89.
async fn content_survives_the_trip() -> Outcome {
    let guest = guest().await?;
    let files = guest.files().await?;
    for size in [0, 1, 256, 96 << 10, 1 << 20, 10 << 20] {
        let content: Vec<u8> = (0..size).map(|at: usize| (at * 7 / 3) as u8).collect();
        assert_eq!(write(&files, "f", &content)?, size as u64);
        assert!(read(&files, "/home/user/f")? == content);
    }
    assert_eq!(print(&guest, "stat -c '%s %a %U %G' f").await?, "10485760 644 user user\n");
    let mut text = String::new();
    write(&files, "/tmp/t", b"hello")?;
    files.open(Path::new("/tmp/t"))?.read_to_string(&mut text)?;
    assert_eq!(text, "hello");
    Ok(())
}

async fn ranges_and_limits() -> Outcome {
    let guest = guest().await?;
    let files = guest.files().await?;
    write(&files, "f", b"0123456789")?;
    let path = Path::new("f");
    assert_eq!(files.read(path, 2..5, 100)?, b"234");
    assert_eq!(files.read(path, 8..100, 100)?, b"89");
    assert_eq!(files.read(path, 20..30, 100)?, b"");
    assert!(matches!(files.read(path, 0..u64::MAX, 9), Err(Error::TooLarge { size: 10, limit: 9, .. })));
    let mut options = WriteOptions::default();
    options.append = true;
    files.write(path, &mut &b"ab"[..], &options)?;
    assert_eq!(read(&files, "f")?, b"0123456789ab");
    Ok(())
}

/// B81, B82.
async fn names_are_bytes() -> Outcome {
    let guest = guest().await?;
    let files = guest.files().await?;
    run_sh(
        &guest,
        "mkdir d; cd d; touch 'x\ny' ./-rf 'a b' 'notes.txt ' \"$(printf '\\377')\"; ln -s /tmp l; mkdir s",
    )
    .await?;
    let mut found: Vec<(Vec<u8>, Kind)> = files
        .list(Path::new("d"))?
        .into_iter()
        .map(|entry| (entry.name.as_bytes().to_vec(), entry.metadata.kind))
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    let expected: [(&[u8], Kind); 7] = [
        (b"-rf", Kind::File),
        (b"a b", Kind::File),
        (b"l", Kind::Symlink),
        (b"notes.txt ", Kind::File),
        (b"s", Kind::Directory),
        (b"x\ny", Kind::File),
        (b"\xff", Kind::File),
    ];
    assert!(found.iter().map(|(name, kind)| (name.as_slice(), *kind)).eq(expected), "{found:?}");
    for (name, kind) in &found {
        if *kind == Kind::File {
            let path = Path::new("d").join(OsStr::from_bytes(name));
            assert_eq!(files.read(&path, 0..10, 10)?, b"");
        }
    }
    Ok(())
}

/// B85.
async fn listing_tells_folders_from_files_and_nothing() -> Outcome {
    let guest = guest().await?;
    let files = guest.files().await?;
    assert!(matches!(files.list(Path::new("/etc/hostname")), Err(Error::NotADirectory { .. })));
    assert!(matches!(files.list(Path::new("/nope")), Err(Error::NotFound { .. })));
    assert!(matches!(read(&files, "/etc"), Err(Error::IsADirectory { .. })));
    assert!(matches!(write(&files, "/tmp", b""), Err(Error::IsADirectory { .. })));
    assert!(matches!(read(&files, "/etc/hostname/x"), Err(Error::NotADirectory { .. })));
    let stat = files.stat(Path::new("/home/user"), false)?;
    assert_eq!((stat.kind, stat.uid, stat.gid, stat.mode), (Kind::Directory, 1000, 1000, 0o755));
    let entries = files.list(Path::new("/home"))?;
    assert_eq!((entries.len(), entries[0].metadata.uid), (1, 1000));
    Ok(())
}

/// B87.
async fn special_files_are_refused() -> Outcome {
    let guest = guest().await?;
    let files = guest.files().await?;
    run_sh(
        &guest,
        "mkfifo p; ln -s p q; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"s\")'",
    )
    .await?;
    for path in ["p", "q", "s", "/dev/zero", "/dev/tty"] {
        let start = Instant::now();
        for result in [read(&files, path).map(drop), write(&files, path, b"x").map(drop)] {
            assert!(
                matches!(result, Err(Error::NotRegular { .. } | Error::NotFound { .. })),
                "{path}: {result:?}"
            );
        }
        assert!(start.elapsed() < Duration::from_secs(1));
    }
    assert_eq!(files.stat(Path::new("p"), false)?.kind, Kind::Fifo);
    Ok(())
}

/// Code that can write to the source, since it is mounted, may put a link in a folder's place while it is copied. Fails when
/// folders are found by their paths.
async fn links_of_the_host_are_not_followed_below_a_source() -> Outcome {
    let (source, secret) = (scratch("source"), scratch("secret"));
    std::fs::write(secret.join("file"), "secret")?;
    let (folder, link) = (source.join("folder"), scratch("link").join("link"));
    std::fs::create_dir(&folder)?;
    std::fs::write(folder.join("file"), "public")?;
    symlink(&secret, &link)?;
    let guest = guest().await?;
    let files = guest.files().await?;
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| -> Outcome {
        let exchange = scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                let (from, to, how) = (&folder, &link, rustix::fs::RenameFlags::EXCHANGE);
                rustix::fs::renameat_with(rustix::fs::CWD, from, rustix::fs::CWD, to, how)?;
                std::thread::yield_now();
            }
            rustix::io::Result::Ok(())
        });
        let copied = (0..500).try_for_each(|copy| -> Outcome {
            let target = PathBuf::from(format!("copy{copy}"));
            // A link is copied as a link. That something has gone meanwhile may be an error.
            let _ = files.upload(&source, &target);
            let link =
                matches!(files.stat(&target.join("folder"), false), Ok(found) if found.kind == Kind::Symlink);
            if !link && let Ok(text) = files.read(&target.join("folder/file"), 0..100, 100) {
                return if text == b"public" { Ok(()) } else { Err("a link was followed".into()) };
            }
            Ok(())
        });
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        exchange.join().map_err(|_| "the exchange failed")??;
        copied
    })?;
    // As the source itself it is.
    files.upload(&secret.join("file"), Path::new("plain"))?;
    let link = scratch("link").join("link");
    symlink(secret.join("file"), &link)?;
    files.upload(&link, Path::new("through"))?;
    assert_eq!(files.read(Path::new("through"), 0..100, 100)?, b"secret");
    Ok(())
}

/// B99: a link is resolved inside, whatever it says.
async fn links_stay_inside() -> Outcome {
    let guest = guest().await?;
    let files = guest.files().await?;
    let secret = scratch("secret").join("file");
    std::fs::write(&secret, "host")?;
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o666))?;
    files.symlink(&secret, Path::new("link"))?;
    files.symlink(Path::new("../../../../../../etc/passwd"), Path::new("up"))?;
    files.symlink(Path::new("/"), Path::new("root"))?;
    files.symlink(Path::new("loop"), Path::new("loop"))?;
    assert!(matches!(read(&files, "link"), Err(Error::NotFound { .. })));
    assert!(matches!(read(&files, &format!("root{}", secret.display())), Err(Error::NotFound { .. })));
    assert!(read(&files, "up")?.starts_with(b"root:x:0:0:root:/root:"));
    assert!(read(&files, "../../../../etc/passwd")?.starts_with(b"root:x:0:0:root:/root:"));
    assert!(read(&files, "loop").is_err());
    // Through a dangling link: inside, or not at all.
    assert!(write(&files, "link", b"evil").is_err());
    assert_eq!(std::fs::read(&secret)?, b"host");
    // A link to somewhere inside is as good as the place.
    files.symlink(Path::new("/tmp/target"), Path::new("inside"))?;
    write(&files, "inside", b"through")?;
    assert_eq!(read(&files, "/tmp/target")?, b"through");
    assert_eq!(files.read_link(Path::new("inside"))?, Path::new("/tmp/target"));
    Ok(())
}

/// Hole 1. Fails when the check of the file system's type is out.
async fn doors_of_the_kernel_are_refused() -> Outcome {
    let guest = guest().await?;
    let files = guest.files().await?;
    let before = std::fs::read_to_string("/proc/sys/kernel/core_pattern")?;
    for target in [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/hostname",
        "/proc/self/environ",
        "/proc/self/mem",
        "/proc/1/environ",
        "/proc/1/mem",
        "/proc/self/root/etc/passwd",
        "/proc/self/fd/0",
        "/proc/self/cwd/x",
        "/proc/version",
    ] {
        files.symlink(Path::new(target), Path::new("link"))?;
        for path in ["link", target] {
            let error = read(&files, path).expect_err(path);
            assert!(
                matches!(
                    error,
                    Error::OutsideSandbox { .. } | Error::NotFound { .. } | Error::Permission { .. }
                ) || matches!(&error, Error::Io { source, .. } if source.raw_os_error() == Some(40)),
                "{target}: {error:?}"
            );
            assert!(write(&files, path, b"x").is_err(), "{path}");
        }
        files.remove(Path::new("link"))?;
    }
    assert!(matches!(read(&files, "/proc/version"), Err(Error::OutsideSandbox { .. })));
    assert!(matches!(files.list(Path::new("/proc")), Err(Error::OutsideSandbox { .. })));
    assert!(matches!(files.list(Path::new("/dev/pts")), Err(Error::OutsideSandbox { .. })));
    assert!(matches!(files.chmod(Path::new("/proc/version"), 0o666), Err(Error::OutsideSandbox { .. })));
    assert_eq!(std::fs::read_to_string("/proc/sys/kernel/core_pattern")?, before);
    Ok(())
}

/// B102.
async fn a_swapped_parent_leads_nowhere_else() -> Outcome {
    let guest = guest().await?;
    let files = guest.files().await?;
    let outside = scratch("outside");
    std::fs::set_permissions(&outside, std::fs::Permissions::from_mode(0o777))?;
    let script = format!(
        "mkdir e; ln -s {} l; while :; do mv -T e d; mv -T d e; mv -T l d; mv -T d l; done",
        outside.display()
    );
    let job = guest.spawn(crate::support::sh(&script)).await?;
    for _ in 0..500 {
        let _ = write(&files, "d/f", b"x");
        let _ = read(&files, "d/f");
    }
    guest.kill(&job).await?;
    assert_eq!(std::fs::read_dir(&outside)?.count(), 0);
    Ok(())
}

async fn the_code_users_rights_hold() -> Outcome {
    let guest = guest().await?;
    let files = guest.files().await?;
    assert!(matches!(write(&files, "/usr/x", b"x"), Err(Error::Permission { .. })));
    run_sh(&guest, "echo x > locked; chmod 0 locked; mkdir shut; touch shut/f; chmod 0 shut").await?;
    for result in [
        read(&files, "locked").map(drop),
        read(&files, "shut/f").map(drop),
        files.list(Path::new("shut")).map(drop),
    ] {
        assert!(matches!(result, Err(Error::Permission { .. })), "{result:?}");
    }
    if rustix::process::geteuid().is_root() {
        // What belongs to root inside is not the code's.
        for path in ["/etc/passwd", "/root/x"] {
            assert!(matches!(write(&files, path, b"x"), Err(Error::Permission { .. })), "{path}");
        }
    }
    Ok(())
}

/// B95.
async fn a_full_disk_keeps_the_old_content() -> Outcome {
    let mut launch = Launch::default();
    launch.memory_disk = Some(8 << 20);
    let guest = host().launch(launch).await?;
    let files = guest.files().await?;
    let old = vec![b'o'; 1 << 20];
    write(&files, "f", &old)?;
    let error = write(&files, "f", &vec![b'n'; 20 << 20]).expect_err("a full disk");
    assert!(matches!(error, Error::NoSpace { .. }), "{error:?}");
    assert!(read(&files, "f")? == old);
    assert_eq!(files.list(Path::new("."))?.len(), 1);
    Ok(())
}

async fn writing_keeps_modes_and_goes_through_links() -> Outcome {
    let guest = guest().await?;
    let files = guest.files().await?;
    run_sh(&guest, "echo old > script; chmod 755 script; mkdir d; ln -s ../script d/link").await?;
    write(&files, "d/link", b"new")?;
    assert_eq!(
        print(&guest, "cat script; stat -c ' %a' script; readlink d/link").await?,
        "new 755\n../script\n"
    );
    let mut options = WriteOptions::default();
    options.mode = Some(0o600);
    options.parents = true;
    files.write(Path::new("a/b/c"), &mut &b"x"[..], &options)?;
    assert_eq!(print(&guest, "stat -c %a a/b/c a/b").await?, "600\n755\n");
    assert!(matches!(write(&files, "no/such/folder", b""), Err(Error::NotFound { .. })));
    Ok(())
}

async fn folders_names_and_modes() -> Outcome {
    let guest = guest().await?;
    let files = guest.files().await?;
    let path = Path::new;
    files.mkdir(path("a"), false, 0o700)?;
    assert!(matches!(files.mkdir(path("a"), false, 0o700), Err(Error::AlreadyExists { .. })));
    assert!(matches!(files.mkdir(path("x/y"), false, 0o700), Err(Error::NotFound { .. })));
    files.mkdir(path("a/b/c/"), true, 0o750)?;
    files.mkdir(path("/home/user/a/b/c"), true, 0o750)?;
    write(&files, "a/f", b"1")?;
    assert!(matches!(files.mkdir(path("a/f"), true, 0o750), Err(Error::AlreadyExists { .. })));
    assert!(matches!(files.mkdir(path("a/f/g"), true, 0o750), Err(Error::NotADirectory { .. })));
    write(&files, "a/g", b"2")?;
    assert!(matches!(files.rename(path("a/f"), path("a/g"), false), Err(Error::AlreadyExists { .. })));
    assert!(
        matches!(files.rename(path("a/nope"), path("a/g"), true), Err(Error::NotFound { name, .. }) if name == "a/nope")
    );
    files.rename(path("a/f"), path("a/g"), true)?;
    assert_eq!(read(&files, "a/g")?, b"1");
    assert!(matches!(files.remove(path("a")), Err(Error::NotEmpty { .. })));
    files.remove(path("a/b/c"))?;
    files.chmod(path("a/g"), 0o4755)?;
    files.set_modified(path("a/g"), SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000))?;
    assert_eq!(print(&guest, "stat -c '%a %Y' a/g").await?, "4755 1000000000\n");
    assert_eq!(
        files.stat(path("a/g"), false)?.modified,
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)
    );
    files.remove_all(path("a"))?;
    assert!(matches!(files.stat(path("a"), false), Err(Error::NotFound { .. })));
    for bad in ["", "a\0b"] {
        assert!(matches!(files.stat(path(bad), false), Err(Error::InvalidArgument { .. })));
    }
    for bad in ["/", ".", "/tmp/.."] {
        assert!(files.remove_all(path(bad)).is_err());
    }
    assert!(matches!(files.read_link(path("/etc")), Err(Error::InvalidArgument { .. })));
    Ok(())
}

async fn removing_a_deep_tree_blocks_nobody() -> Outcome {
    let guest = guest().await?;
    let files = guest.files().await?;
    run_sh(
        &guest,
        "mkdir t; cd t; i=0; while [ $i -lt 200 ]; do mkdir -p d/d/d/d/d/d/d/d/d/d; cd d/d/d/d/d/d/d/d/d/d; i=$((i+1)); done
         cd ~/t; mkdir many shut; seq 1 20000 | (cd many; xargs touch); touch shut/f; chmod 0 shut",
    )
    .await?;
    let removal = tokio::task::spawn_blocking(move || files.remove_all(Path::new("t")));
    let mut slowest = Duration::ZERO;
    while !removal.is_finished() {
        let start = Instant::now();
        guest.info().await?;
        slowest = slowest.max(start.elapsed());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    removal.await??;
    assert!(slowest < Duration::from_millis(200), "{slowest:?}");
    assert_eq!(print(&guest, "ls").await?, "");
    Ok(())
}

/// B93.
async fn copies_keep_trees() -> Outcome {
    let guest = guest().await?;
    let files = guest.files().await?;
    let source = scratch("tree");
    std::fs::create_dir_all(source.join("empty"))?;
    std::fs::create_dir_all(source.join("sub/deep"))?;
    std::fs::write(source.join("sub/deep/f"), "content")?;
    std::fs::write(source.join("run"), "#!/bin/sh\n")?;
    std::fs::set_permissions(source.join("run"), std::fs::Permissions::from_mode(0o755))?;
    std::fs::create_dir(source.join("shut"))?;
    std::fs::write(source.join("shut/f"), "x")?;
    std::fs::set_permissions(source.join("shut"), std::fs::Permissions::from_mode(0o555))?;
    symlink("/usr/bin/python3", source.join("python"))?;
    symlink("nowhere", source.join("dangling"))?;
    std::fs::write(source.join(OsStr::from_bytes(b"\xff\n")), "odd")?;
    rustix::fs::mknodat(rustix::fs::CWD, source.join("fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0)?;

    let slashed = PathBuf::from(format!("{}/", source.display()));
    for _ in 0..2 {
        let copied = files.upload(&slashed, Path::new("deep/er/copy"))?;
        assert_eq!((copied.files, copied.directories, copied.links), (4, 5, 2));
        assert_eq!(copied.skipped, [source.join("fifo")]);
    }
    let listing = "find . -printf '%P %y %m %l|' | tr '|' '\\n' | LC_ALL=C sort";
    let inside = print(&guest, &format!("cd deep/er/copy; {listing}")).await?;
    for line in [
        "empty d 755 ",
        "sub/deep/f f 644 ",
        "run f 755 ",
        "shut d 555 ",
        "python l 777 /usr/bin/python3",
        "dangling l 777 nowhere",
    ] {
        assert!(inside.contains(line), "{inside}");
    }

    run_sh(&guest, "cd deep/er/copy; mkfifo fifo; chmod u+s run").await?;
    let target = scratch("back").join("copy");
    for _ in 0..2 {
        let copied = files.download(Path::new("deep/er/copy"), &target)?;
        assert_eq!((copied.files, copied.directories, copied.links), (4, 5, 2));
        assert_eq!(copied.skipped, [Path::new("deep/er/copy/fifo")]);
    }
    assert_eq!(std::fs::read_to_string(target.join("sub/deep/f"))?, "content");
    assert_eq!(std::fs::read_link(target.join("python"))?, Path::new("/usr/bin/python3"));
    assert_eq!(std::fs::metadata(target.join("run"))?.mode() & 0o7777, 0o755);
    assert_eq!(std::fs::metadata(target.join("shut"))?.mode() & 0o7777, 0o555);
    assert!(target.join("empty").is_dir());
    assert_eq!(
        std::fs::metadata(target.join("run"))?.modified()?,
        std::fs::metadata(source.join("run"))?.modified()?
    );

    assert!(matches!(files.upload(Path::new(""), Path::new("x")), Err(Error::InvalidArgument { .. })));
    assert!(matches!(files.upload(Path::new("/no/such"), Path::new("x")), Err(Error::NotFound { .. })));
    assert!(matches!(files.download(Path::new("nope"), &target), Err(Error::NotFound { .. })));
    assert!(matches!(files.download(Path::new("deep"), Path::new("")), Err(Error::InvalidArgument { .. })));
    Ok(())
}

async fn copies_of_single_files() -> Outcome {
    let guest = guest().await?;
    let files = guest.files().await?;
    let folder = scratch("single");
    let source = folder.join("f");
    std::fs::write(&source, "one")?;
    files.upload(&source, Path::new("d/g"))?;
    std::fs::write(&source, "two")?;
    files.upload(&source, Path::new("d/g"))?;
    assert_eq!(read(&files, "d/g")?, b"two");
    files.download(Path::new("d/g"), &folder.join("h"))?;
    assert_eq!(std::fs::read(folder.join("h"))?, b"two");
    assert!(matches!(files.download(Path::new("d/g"), &folder.join("no/h")), Err(Error::NotFound { .. })));
    assert!(matches!(
        files.download(Path::new("/dev/null"), &folder.join("h")),
        Err(Error::NotRegular { .. })
    ));
    assert!(matches!(
        files.download(Path::new("/proc/version"), &folder.join("h")),
        Err(Error::OutsideSandbox { .. })
    ));
    Ok(())
}

/// B105: what is at the target already does not lead the copy out of it.
async fn a_hostile_target_is_not_followed() -> Outcome {
    let guest = guest().await?;
    let files = guest.files().await?;
    run_sh(&guest, "mkdir -p t/l; echo evil > t/l/f; echo evil > t/g").await?;
    let (target, outside) = (scratch("target"), scratch("elsewhere"));
    std::fs::write(outside.join("g"), "kept")?;
    symlink(&outside, target.join("l"))?;
    symlink(outside.join("g"), target.join("g"))?;
    assert!(matches!(
        files.download(Path::new("t"), &target),
        Err(Error::OutsideSandbox { .. } | Error::NotADirectory { .. })
    ));
    assert!(!outside.join("f").exists());
    assert_eq!(std::fs::read(outside.join("g"))?, b"kept");
    std::fs::remove_file(target.join("l"))?;
    files.download(Path::new("t"), &target)?;
    assert_eq!(std::fs::read(outside.join("g"))?, b"kept");
    assert_eq!(std::fs::read(target.join("g"))?, b"evil\n");
    // The target itself may be one, too, where code sees the folder around it through a mount.
    std::fs::create_dir(target.join("around"))?;
    symlink(&outside, target.join("around/t"))?;
    let error = files.download(Path::new("t"), &target.join("around/t")).expect_err("a link as the target");
    assert!(matches!(error, Error::OutsideSandbox { .. }), "{error:?}");
    assert!(!outside.join("l").exists());
    assert_eq!(std::fs::read(outside.join("g"))?, b"kept");
    Ok(())
}

async fn searching() -> Outcome {
    let guest = guest().await?;
    let files = guest.files().await?;
    run_sh(
        &guest,
        "mkdir -p p/src/a p/target; cd p; echo 'fn main() {}' > src/main.rs; printf 'x\\ny needle\\n\\nneedle' > src/a/lib.rs
         echo needle > target/out.rs; ln -s /etc src/etc; mkfifo src/fifo; echo needle > src/locked.rs; chmod 0 src/locked.rs",
    )
    .await?;
    let mut search = Search::new("p");
    let sources = |name: &OsStr| name.as_bytes().ends_with(b".rs");
    let found = files.search(&search, sources)?;
    let names: Vec<_> = found.hits.iter().map(|hit| hit.path.display().to_string()).collect();
    assert_eq!(names, ["p/src/locked.rs", "p/src/main.rs", "p/src/a/lib.rs", "p/target/out.rs"]);
    search.root = "p/src".into();
    search.content = Some(b"needle".to_vec());
    let found = files.search(&search, sources)?;
    assert_eq!(
        found.hits.iter().map(|hit| (hit.line, hit.text.as_slice())).collect::<Vec<_>>(),
        [(Some(2), &b"y needle"[..]), (Some(4), b"needle")]
    );
    search.hits = 1;
    assert!(files.search(&search, sources)?.truncated);
    assert!(matches!(files.search(&Search::new("nope"), |_| true), Err(Error::NotFound { .. })));
    Ok(())
}

/// B109.
async fn watching_nested_folders() -> Outcome {
    let guest = guest().await?;
    let mut watch = guest.watch(Path::new("/home/user"), true).await?;
    for round in 0..20 {
        run_sh(&guest, &format!("mkdir -p r{round}/b/c && touch r{round}/b/c/f")).await?;
        let mut missing: Vec<String> =
            ["", "/b", "/b/c", "/b/c/f"].iter().map(|part| format!("/home/user/r{round}{part}")).collect();
        while !missing.is_empty() {
            let event = watch.next().await?.ok_or("ended")?;
            if event.kind == WatchKind::Created {
                missing.retain(|path| Path::new(path) != event.path);
            }
        }
    }
    run_sh(&guest, "echo x > r1/b/c/f; mv r1 moved; echo y > moved/b/c/f; rm -r moved").await?;
    let mut seen = Vec::new();
    while !seen.contains(&(WatchKind::Removed, "/home/user/moved".to_owned())) {
        let event = watch.next().await?.ok_or("ended")?;
        seen.push((event.kind, event.path.display().to_string()));
    }
    for expected in [
        (WatchKind::Modified, "/home/user/r1/b/c/f"),
        (WatchKind::Removed, "/home/user/r1"),
        (WatchKind::Created, "/home/user/moved"),
    ] {
        assert!(seen.contains(&(expected.0, expected.1.to_owned())), "{expected:?}: {seen:?}");
    }
    assert!(guest.watch(Path::new("nope"), true).await.is_err());
    Ok(())
}

/// B111.
async fn watching_tells_of_overflow() -> Outcome {
    let guest = guest().await?;
    let mut watch = guest.watch(Path::new("/tmp"), true).await?;
    run_sh(&guest, "cd /tmp; seq 1 20000 | xargs touch").await?;
    loop {
        if watch.next().await?.ok_or("ended")?.kind == WatchKind::Overflow {
            return Ok(());
        }
    }
}

async fn a_channel_does_not_keep_the_sandbox() -> Outcome {
    let guest = guest().await?;
    let files = guest.files().await?;
    guest.destroy().await?;
    assert!(matches!(read(&files, "/etc/passwd"), Err(Error::Gone { .. })));
    Ok(())
}
