//! Files.

use capbox_guest::client::{Error, Watch, WriteOptions};
use capbox_guest::proto::{Change, Entry, change};

use crate::support::{
    Outcome, Place, Sandbox, contain, print, run_job, sandbox, sandbox_with, sh, tests, until,
};

tests! {
    content_survives_the_trip,
    b81_names_are_bytes,
    b85_a_file_is_no_folder,
    b87_special_files_are_refused,
    b99_links_stay_inside_and_proc_is_no_place_for_files,
    a_write_keeps_the_mode_and_goes_through_links,
    b95_a_write_is_all_or_nothing,
    folders_are_made_moved_and_removed,
    everything_is_done_as_the_codes_user,
    a_large_folder_is_listed_whole,
    b109_a_watch_follows_new_folders,
    a_rename_is_told_as_a_pair,
    b111_a_watch_that_is_behind_says_so,
}

fn names(entries: Vec<Entry>) -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = entries.into_iter().map(|entry| entry.name.0).collect();
    names.sort();
    names
}

async fn content_survives_the_trip(place: Place) -> Outcome {
    let Sandbox { relay, process: _process, container: _container } = &sandbox(place).await?;
    let content: Vec<u8> = (0..3_000_000u32).map(|at| (at % 253) as u8).collect();
    relay.write(b"a", &content, &WriteOptions::default()).await?;
    assert!(relay.read(b"/tmp/a", 0, u64::MAX, 1 << 30).await? == content);
    assert_eq!(relay.read(b"a", 10, 5, 100).await?, content[10..15]);
    assert_eq!(relay.read(b"a", 0, 50, 20).await, Err(Error::TooLarge { size: 50, limit: 20 }));
    assert_eq!(relay.read(b"nope", 0, 1, 1).await, Err(Error::File { errno: 2 }));
    assert_eq!(relay.read(b"/tmp", 0, 1, 1).await, Err(Error::File { errno: 21 }));
    assert_eq!(names(relay.list(b"/tmp").await?), [b"a"]);
    let mut append = WriteOptions::default();
    append.append = true;
    relay.write(b"a", b"end", &append).await?;
    assert_eq!(relay.read(b"a", 2_999_999, 9, 9).await?, [content[2_999_999], b'e', b'n', b'd']);
    relay.write(b"a", b"", &WriteOptions::default()).await?;
    assert_eq!(relay.stat(b"a", false).await?.size, 0);
    Ok(())
}

async fn b81_names_are_bytes(place: Place) -> Outcome {
    let Sandbox { relay, process: _process, container: _container } = &sandbox(place).await?;
    let odd: [&[u8]; 5] = [b"-rf", b" a b ", b"x\ny", b"\xff\xfe", "é".as_bytes()];
    relay.mkdir(b"d", 0o755, false).await?;
    for name in odd {
        relay.write(&[b"d/", name].concat(), name, &WriteOptions::default()).await?;
    }
    let mut expected: Vec<Vec<u8>> = odd.iter().map(|name| name.to_vec()).collect();
    expected.sort();
    assert_eq!(names(relay.list(b"d").await?), expected);
    assert_eq!(relay.read(b"d/\xff\xfe", 0, 9, 9).await?, b"\xff\xfe");
    Ok(())
}

async fn b85_a_file_is_no_folder(place: Place) -> Outcome {
    let Sandbox { relay, process: _process, container: _container } = &sandbox(place).await?;
    assert_eq!(relay.list(b"/etc/passwd").await, Err(Error::File { errno: 20 }));
    assert_eq!(relay.list(b"/nope").await, Err(Error::File { errno: 2 }));
    relay.mkdir(b"empty", 0o755, false).await?;
    assert_eq!(relay.list(b"empty").await?, []);
    Ok(())
}

async fn b87_special_files_are_refused(place: Place) -> Outcome {
    let Sandbox { relay, process: _process, container: _container } = &sandbox(place).await?;
    print(relay, "mkfifo p").await?;
    for path in [&b"p"[..], b"/dev/zero"] {
        assert!(matches!(relay.read(path, 0, 1, 1).await, Err(Error::Special { .. })));
        let written = relay.write(path, b"x", &WriteOptions::default()).await;
        assert!(matches!(written, Err(Error::Special { .. })), "{written:?}");
    }
    Ok(())
}

async fn b99_links_stay_inside_and_proc_is_no_place_for_files(place: Place) -> Outcome {
    let Sandbox { relay, process: _process, container: _container } = &sandbox(place).await?;
    relay.symlink(b"/etc/passwd", b"link").await?;
    assert_eq!(relay.read_link(b"link").await?, b"/etc/passwd");
    assert!(relay.read(b"link", 0, 5, 5).await? == b"root:");
    relay.symlink(b"../../../../etc/group", b"up").await?;
    assert!(relay.read(b"up", 0, 5, 5).await? == b"root:");
    for path in
        [&b"/proc/1/environ"[..], b"/proc/self/mem", b"/proc/1/root/etc/passwd", b"/proc/sys/kernel/hostname"]
    {
        let read = relay.read(path, 0, 1, 1).await;
        assert!(matches!(read, Err(Error::Outside | Error::File { errno: 13 | 40 | 2 })), "{read:?}");
    }
    relay.symlink(b"/proc/sys/kernel/core_pattern", b"door").await?;
    let written = relay.write(b"door", b"x", &WriteOptions::default()).await;
    assert!(matches!(written, Err(Error::Outside)), "{written:?}");
    assert!(matches!(relay.read(b"door", 0, 1, 1).await, Err(Error::Outside)));
    Ok(())
}

async fn a_write_keeps_the_mode_and_goes_through_links(place: Place) -> Outcome {
    let Sandbox { relay, process: _process, container: _container } = &sandbox(place).await?;
    relay.write(b"script", b"old", &WriteOptions::default()).await?;
    assert_eq!(relay.stat(b"script", false).await?.mode & 0o7777, 0o644);
    relay.chmod(b"script", 0o750).await?;
    relay.symlink(b"script", b"link").await?;
    relay.write(b"link", b"new", &WriteOptions::default()).await?;
    assert_eq!(relay.read(b"script", 0, 9, 9).await?, b"new");
    assert_eq!(relay.stat(b"script", false).await?.mode & 0o7777, 0o750);
    assert_eq!(relay.stat(b"link", false).await?.mode & 0o170_000, 0o120_000);
    let mut options = WriteOptions::default();
    (options.mode, options.parents) = (Some(0o400), true);
    relay.write(b"new/deep/file", b"x", &options).await?;
    assert_eq!(relay.stat(b"new/deep/file", false).await?.mode & 0o7777, 0o400);
    relay.set_modified(b"script", 1_000_000_000, 5).await?;
    let stat = relay.stat(b"script", true).await?;
    assert_eq!((stat.mtime, stat.mtime_nanos), (1_000_000_000, 5));
    Ok(())
}

async fn b95_a_write_is_all_or_nothing(place: Place) -> Outcome {
    let Sandbox { relay, process: _process, container: _container } = &sandbox(place).await?;
    relay.mkdir(b"d", 0o755, false).await?;
    relay.write(b"d/f", b"old", &WriteOptions::default()).await?;
    let mut half = relay.create_file(b"d/f", &WriteOptions::default()).await?;
    half.write(&vec![b'x'; 1_000_000]).await?;
    assert_eq!(relay.list(b"d").await?.len(), 2, "it is written beside the file");
    drop(half);
    until(async || relay.list(b"d").await.is_ok_and(|entries| entries.len() == 1)).await;
    assert_eq!(relay.read(b"d/f", 0, 9, 9).await?, b"old");
    // A file that cannot be put in its place.
    let half = relay.create_file(b"d/g", &WriteOptions::default()).await?;
    relay.mkdir(b"d/g", 0o755, false).await?;
    assert_eq!(half.finish().await, Err(Error::File { errno: 21 }));
    assert_eq!(names(relay.list(b"d").await?), [&b"f"[..], b"g"]);
    Ok(())
}

async fn folders_are_made_moved_and_removed(place: Place) -> Outcome {
    let Sandbox { relay, process: _process, container: _container } = &sandbox(place).await?;
    relay.mkdir(b"a/b/c", 0o755, true).await?;
    assert_eq!(relay.mkdir(b"a", 0o755, false).await, Err(Error::File { errno: 17 }));
    relay.write(b"a/b/c/f", b"x", &WriteOptions::default()).await?;
    relay.rename(b"a/b", b"moved", true).await?;
    assert_eq!(relay.read(b"moved/c/f", 0, 9, 9).await?, b"x");
    assert_eq!(relay.rename(b"moved/c/f", b"a", false).await, Err(Error::File { errno: 17 }));
    assert_eq!(relay.remove(b"moved").await, Err(Error::File { errno: 39 }));
    relay.remove_all(b"moved").await?;
    relay.remove(b"a").await?;
    assert_eq!(relay.stat(b"moved", false).await, Err(Error::File { errno: 2 }));
    assert_eq!(relay.list(b"/tmp").await?, []);
    Ok(())
}

async fn everything_is_done_as_the_codes_user(place: Place) -> Outcome {
    let mut contain = contain();
    contain.user = "node".into();
    let Sandbox { relay, process: _process, container: _container } = &sandbox_with(place, contain).await?;
    relay.write(b"/tmp/mine", b"x", &WriteOptions::default()).await?;
    let stat = relay.stat(b"/tmp/mine", false).await?;
    assert_eq!((stat.uid, stat.gid), (1000, 1000));
    let options = WriteOptions::default();
    assert_eq!(relay.write(b"/etc/mine", b"x", &options).await, Err(Error::File { errno: 13 }));
    let root = capbox_guest::proto::Exec {
        user: "root".into(),
        ..sh("mkdir -m 700 /tmp/roots; echo x > /tmp/roots/f")
    };
    run_job(relay, root).await?;
    assert_eq!(relay.list(b"/tmp/roots").await, Err(Error::File { errno: 13 }));
    assert_eq!(relay.read(b"/tmp/roots/f", 0, 1, 1).await, Err(Error::File { errno: 13 }));
    assert!(relay.watch(b"/tmp/roots", true).await.is_err());
    // A folder of its own that only it may enter.
    relay.mkdir(b"/tmp/own", 0o700, false).await?;
    relay.write(b"/tmp/own/f", b"x", &options).await?;
    assert_eq!(names(relay.list(b"/tmp/own").await?), [b"f"]);
    Ok(())
}

async fn a_large_folder_is_listed_whole(place: Place) -> Outcome {
    let Sandbox { relay, process: _process, container: _container } = &sandbox(place).await?;
    print(relay, "mkdir many; cd many; for i in $(seq 3000); do : > \"a-file-with-a-long-name-$i\"; done")
        .await?;
    let found = names(relay.list(b"many").await?);
    let mut expected: Vec<Vec<u8>> =
        (1..=3000).map(|at| format!("a-file-with-a-long-name-{at}").into()).collect();
    expected.sort();
    assert!(found == expected, "{} names", found.len());
    Ok(())
}

/// Waits for a change of a name. Answers with it.
async fn wait_for(
    watch: &mut Watch,
    kind: u16,
    path: &[u8],
) -> Result<Change, Box<dyn std::error::Error + Send + Sync>> {
    loop {
        let change = watch.next().await?.ok_or("the watch has ended")?;
        if change.kind == kind && change.path[..] == *path {
            return Ok(change);
        }
    }
}

async fn b109_a_watch_follows_new_folders(place: Place) -> Outcome {
    let Sandbox { relay, process: _process, container: _container } = &sandbox(place).await?;
    relay.mkdir(b"w/old/deep", 0o755, true).await?;
    let mut watch = relay.watch(b"w", true).await?;
    print(relay, "cd w; mkdir -p a/b/c && touch a/b/c/f; echo x > old/deep/g; rm old/deep/g").await?;
    let mut wanted = vec![
        (change::CREATED, &b"a"[..], true),
        (change::CREATED, b"a/b", true),
        (change::CREATED, b"a/b/c", true),
        (change::CREATED, b"a/b/c/f", false),
        (change::REMOVED, b"old/deep/g", false),
    ];
    // What happens in different folders may be told in another order.
    while !wanted.is_empty() {
        let change = watch.next().await?.ok_or("the watch has ended")?;
        wanted.retain(|wanted| *wanted != (change.kind, &change.path[..], change.directory));
    }
    relay.remove_all(b"w").await?;
    wait_for(&mut watch, change::REMOVED, b"").await?;
    assert_eq!(watch.next().await?, None);
    let flat = relay.watch(b"/etc/passwd", false).await;
    assert!(matches!(flat, Err(Error::File { errno: 20 })), "{flat:?}");
    Ok(())
}

async fn a_rename_is_told_as_a_pair(place: Place) -> Outcome {
    let Sandbox { relay, process: _process, container: _container } = &sandbox(place).await?;
    relay.mkdir(b"w", 0o755, false).await?;
    relay.write(b"w/a", b"x", &WriteOptions::default()).await?;
    let mut watch = relay.watch(b"w", true).await?;
    relay.rename(b"w/a", b"w/b", true).await?;
    let gone = wait_for(&mut watch, change::REMOVED, b"a").await?;
    let come = wait_for(&mut watch, change::CREATED, b"b").await?;
    assert!(gone.cookie != 0 && gone.cookie == come.cookie, "{gone:?} {come:?}");
    Ok(())
}

async fn b111_a_watch_that_is_behind_says_so(place: Place) -> Outcome {
    let Sandbox { relay, process: _process, container: _container } = &sandbox(place).await?;
    relay.mkdir(b"w", 0o755, false).await?;
    let mut watch = relay.watch(b"w", true).await?;
    // More than the window, the relay and the kernel keep together, while nobody reads.
    let script = "cd w; n=x; while [ ${#n} -lt 100 ]; do n=$n$n; done; i=0; \
                  while [ $i -lt 16 ]; do seq 1 1500 | sed \"s/^/$n/\" | xargs touch; rm -f *; i=$((i+1)); done; : > last";
    let output = run_job(relay, sh(script)).await?;
    assert_eq!(output.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    loop {
        let change = watch.next().await?.ok_or("the watch has ended")?;
        if change.kind == change::OVERFLOW {
            return Ok(());
        }
        assert!(change.path[..] != *b"last", "no overflow was told");
    }
}
