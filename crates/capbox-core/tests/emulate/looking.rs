//! `Polling` and `SearchByFiles`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime};

use capbox_core::api::FileEvents;
use capbox_core::provider::*;

use crate::liar::Liar;
use crate::providers::*;

everywhere! { [PoorBare]: watching searching }

/// The next `count` events, as `kind path`.
async fn events(watch: &mut FileEvents, count: usize) -> Vec<String> {
    let mut seen = Vec::new();
    while seen.len() < count {
        let next = tokio::time::timeout(Duration::from_secs(20), watch.next()).await.expect("an event comes");
        let Some(event) = next.unwrap() else {
            seen.push("end".to_owned());
            break;
        };
        seen.push(format!("{} {}", event.kind.as_str(), event.path));
    }
    seen
}

async fn watching<P: Whole>(place: &Place<P>) {
    let files = place.files();
    files.mkdir("w/kept").await.unwrap();
    files.write("w/old", "1").await.unwrap();
    let mut watch = files.watch("w").await.unwrap();
    // B109: folders made in folders that have just been made.
    place.sandbox.exec("mkdir -p w/a/b/c && touch w/a/b/c/f").await.unwrap();
    assert_eq!(
        events(&mut watch, 4).await,
        ["created w/a", "created w/a/b", "created w/a/b/c", "created w/a/b/c/f"]
    );
    // Of the same size, and within the same second.
    let at = |nanos| SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, nanos);
    let file = fs::File::options().write(true).open(place.dir.join("w/old")).unwrap();
    file.set_modified(at(1)).unwrap();
    assert_eq!(events(&mut watch, 1).await, ["modified w/old"]);
    file.set_modified(at(2)).unwrap();
    assert_eq!(events(&mut watch, 1).await, ["modified w/old"]);
    files.set_mode("w/kept", 0o700).await.unwrap();
    assert_eq!(events(&mut watch, 1).await, ["modified w/kept"]);
    // A folder is not changed by what is in it.
    files.write("w/kept/x", "1").await.unwrap();
    files.remove("w/kept/x").await.unwrap();
    files.write("w/kept/y", "1").await.unwrap();
    assert_eq!(events(&mut watch, 1).await, ["created w/kept/y"]);
    files.remove("w/kept/y").await.unwrap();
    assert_eq!(events(&mut watch, 1).await, ["removed w/kept/y"]);
    // Dropping the future loses nothing.
    files.rename("w/old", "w/new\n").await.unwrap();
    for _ in 0..3 {
        tokio::time::timeout(Duration::from_millis(1), watch.next()).await.unwrap_err();
    }
    assert_eq!(events(&mut watch, 2).await, ["removed w/old", "created w/new\\n"]);
    // A folder that is shut for a while has not lost what is in it.
    fs::set_permissions(place.dir.join("w/a"), PermissionsExt::from_mode(0o000)).unwrap();
    assert_eq!(events(&mut watch, 1).await, ["modified w/a"]);
    fs::set_permissions(place.dir.join("w/a"), PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(events(&mut watch, 1).await, ["modified w/a"]);
    files.remove_all("w/a").await.unwrap();
    assert_eq!(
        events(&mut watch, 4).await,
        ["removed w/a/b/c/f", "removed w/a/b/c", "removed w/a/b", "removed w/a"]
    );
    files.remove_all("w").await.unwrap();
    assert_eq!(events(&mut watch, 3).await, ["removed w/new\\n", "removed w/kept", "end"]);
    assert_eq!(files.watch("w").await.unwrap_err().kind(), ErrorKind::NotFound);
}

/// B111: what is too much to compare is said, each time.
#[tokio::test(start_paused = true)]
async fn an_overflow_is_told() {
    let many = (0..10_001).map(|i| Entry::new(i.to_string(), EntryKind::File)).collect();
    let sandbox = Liar::sandbox(vec![("", many)]).await;
    let mut watch = sandbox.files().watch("/").await.unwrap();
    assert_eq!(events(&mut watch, 3).await, ["overflow /"; 3]);
}

async fn searching<P: Whole>(place: &Place<P>) {
    let files = place.files();
    for (path, content) in [
        ("s/a.rs", &b"one\nneedle two\n\nthree needle"[..]),
        ("s/b.txt", b"needle"),
        ("s/deep/er/c.rs", b"no\nn\xffeedle\nneedle\r\n"),
        ("s/deep/binary.rs", b"\0needle\n"),
        ("s/shut.rs", b"needle"),
    ] {
        files.write_with(path, content, WriteOptions::default().with_parents()).await.unwrap();
    }
    files.set_mode("s/shut.rs", 0o000).await.unwrap();
    files.symlink("a.rs", "s/link.rs").await.unwrap();
    let show = |found: Vec<Match>| -> Vec<String> {
        let line = |(number, line): (u64, bytes::Bytes)| format!(":{number}:{}", line.escape_ascii());
        found.into_iter().map(|m| format!("{}{}", m.path, m.line.map(line).unwrap_or_default())).collect()
    };
    let query = SearchQuery::default();
    let both = query.clone().with_name("*.rs").with_text("needle");
    assert_eq!(
        show(files.search("s", &both).await.unwrap()),
        ["s/a.rs:2:needle two", "s/a.rs:4:three needle", "s/deep/er/c.rs:3:needle\\r"]
    );
    assert_eq!(show(files.search("s", &both.with_limit(1)).await.unwrap()), ["s/a.rs:2:needle two"]);
    let names = query.clone().with_name("?e*");
    assert_eq!(show(files.search("s", &names).await.unwrap()), ["s/deep"]);
    let names = query.clone().with_name("*.rs");
    assert_eq!(
        show(files.search("s", &names).await.unwrap()),
        ["s/a.rs", "s/link.rs", "s/shut.rs", "s/deep/binary.rs", "s/deep/er/c.rs"]
    );
    assert_eq!(files.search("nope", &names).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(files.search("s/a.rs", &names).await.unwrap_err().kind(), ErrorKind::NotADirectory);
    assert_eq!(files.search("s", &query).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
}
