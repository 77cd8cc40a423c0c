//! `capbox cp` and `capbox files`.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;

use crate::{Sandbox, capbox, host, json, ran, ran_with_stdin};

/// A folder of this machine for one test.
fn folder(name: &str) -> PathBuf {
    let folder = host().join(name);
    fs::create_dir_all(&folder).expect("make a folder");
    folder
}

fn text(path: &std::path::Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn files_go_in_and_out() {
    let sandbox = Sandbox::create();
    let here = folder("in-and-out");
    let bytes: Vec<u8> = (0..=255).cycle().take(3 << 20).collect();
    fs::write(here.join("data"), &bytes).expect("write");
    ran(&["cp", text(&here.join("data")), &sandbox.at("/tmp/copy")]).printed();
    ran(&["cp", &sandbox.at("/tmp/copy"), text(&here.join("back"))]).printed();
    assert!(fs::read(here.join("back")).expect("read") == bytes);

    // Into a folder under its own name, wherever that folder is; and into the default folder.
    ran(&["cp", text(&here.join("data")), &sandbox.at("/tmp")]).printed();
    ran(&["cp", text(&here.join("data")), &sandbox.at("")]).printed();
    assert_eq!(sandbox.exec(&["cmp /tmp/data data && wc -c < data"]).trim(), bytes.len().to_string());
    fs::create_dir_all(here.join("into")).expect("make a folder");
    ran(&["cp", &sandbox.at("/tmp/copy"), text(&here.join("into"))]).printed();
    assert_eq!(fs::metadata(here.join("into/copy")).expect("stat").len(), bytes.len() as u64);
}

/// B93: with links, modes and empty folders.
#[test]
fn folders_go_in_and_out() {
    let sandbox = Sandbox::create();
    let here = folder("trees");
    let tree = here.join("tree");
    fs::create_dir_all(tree.join("empty")).expect("make a folder");
    fs::write(tree.join("run.sh"), "#!/bin/sh\necho ran\n").expect("write");
    fs::set_permissions(tree.join("run.sh"), fs::Permissions::from_mode(0o755)).expect("chmod");
    std::os::unix::fs::symlink("run.sh", tree.join("link")).expect("link");

    ran(&["cp", &format!("{}/", text(&tree)), &sandbox.at("/tmp/new")]).printed();
    assert_eq!(
        sandbox.exec(&["/tmp/new/link; ls -d /tmp/new/empty; readlink /tmp/new/link"]),
        "ran\n/tmp/new/empty\nrun.sh\n"
    );
    ran(&["cp", "-r", text(&tree), &sandbox.at("/tmp/new")]).printed();
    ran(&["cp", &format!("{}/.", text(&tree)), &sandbox.at("/tmp/content")]).printed();
    assert_eq!(
        sandbox.exec(&["ls /tmp/new/tree; ls /tmp/content"]),
        "empty\nlink\nrun.sh\nempty\nlink\nrun.sh\n"
    );

    ran(&["cp", &sandbox.at("/tmp/new/tree"), text(&here.join("back"))]).printed();
    assert!(here.join("back/empty").is_dir());
    assert_eq!(fs::read_link(here.join("back/link")).expect("read the link"), PathBuf::from("run.sh"));
    assert_eq!(fs::metadata(here.join("back/run.sh")).expect("stat").permissions().mode() & 0o777, 0o755);
}

#[test]
fn copies_that_cannot_be_made() {
    let sandbox = Sandbox::create();
    let (inside, elsewhere) = (sandbox.at("/tmp/x"), sandbox.at("/tmp/y"));
    for (source, target, named) in [
        ("", inside.as_str(), "SOURCE"),
        (inside.as_str(), "", "TARGET"),
        ("/no/such/file", inside.as_str(), "/no/such/file"),
        (inside.as_str(), "/tmp/never", "/tmp/x"),
        (inside.as_str(), elsewhere.as_str(), "both sides"),
        ("./a:b", "/tmp/never", "neither side"),
    ] {
        let ran = ran(&["cp", source, target]);
        assert_eq!((ran.code, ran.stdout.as_str()), (125, ""), "{source:?} {target:?}");
        assert!(ran.stderr.starts_with("error: ") && ran.stderr.contains(named), "{ran:?}");
    }
    assert!(!PathBuf::from("/tmp/never").exists());
}

#[test]
fn every_command_of_files() {
    let sandbox = Sandbox::create();
    let at = |path: &str| sandbox.at(path);
    ran_with_stdin(&["files", "write", "-p", "--mode", "700", &at("/tmp/a/b/note")], b"one\ntwo words\n")
        .printed();
    assert_eq!(ran(&["files", "cat", &at("/tmp/a/b/note")]).printed(), "one\ntwo words\n");
    let stat = json(&["files", "stat", "--json", &at("/tmp/a/b/note")]);
    assert_eq!(
        (&stat["name"], &stat["kind"], &stat["size"], &stat["mode"]),
        (&"note".into(), &"file".into(), &14.into(), &"0700".into())
    );
    ran(&["files", "mkdir", &at("/tmp/a/c/d")]).printed();
    assert_eq!(ran(&["files", "ls", &at("/tmp/a")]).printed(), "b\nc\n");
    ran(&["files", "mv", &at("/tmp/a/b/note"), "/tmp/a/c/moved"]).printed();
    ran(&["files", "mv", &at("/tmp/a/c/moved"), &at("/tmp/a/c/again")]).printed();
    assert_eq!(ran(&["files", "search", "--name", "aga*", &at("/tmp/a")]).printed(), "/tmp/a/c/again\n");
    assert_eq!(
        ran(&["files", "search", "--text", "two", &at("/tmp/a")]).printed(),
        "/tmp/a/c/again:2:two words\n"
    );
    assert!(ran(&["files", "ls", "-l", &at("/tmp/a/c")]).printed().contains("0700  14"));
    assert_eq!(ran(&["files", "rm", &at("/tmp/a/c")]).code, 125);
    ran(&["files", "rm", &at("/tmp/a/c/again")]).printed();
    ran(&["files", "rm", "-r", &at("/tmp/a")]).printed();
    assert_eq!(ran(&["files", "stat", &at("/tmp/a")]).code, 125);
    let other = ran(&["files", "mv", &at("/tmp/x"), "other:/tmp/y"]);
    assert!(other.code == 125 && other.stderr.contains("another sandbox"), "{other:?}");
}

/// B85, B87: what is not a folder, and what is not a file.
#[test]
fn wrong_kinds_of_files() {
    let sandbox = Sandbox::create();
    sandbox.exec(&["mkfifo /tmp/pipe"]);
    for (command, path) in [
        ("ls", "/etc/passwd"),
        ("ls", "/nope"),
        ("cat", "/nope"),
        ("cat", "/tmp"),
        ("cat", "/tmp/pipe"),
        ("cat", "/dev/zero"),
    ] {
        let ran = ran(&["files", command, &sandbox.at(path)]);
        assert_eq!((ran.code, ran.stdout.as_str()), (125, ""), "{command} {path}");
        assert!(ran.stderr.contains(path), "{command} {path}: {ran:?}");
    }
}

/// What cannot be written is named as it was asked for, and not by a file beside it.
#[test]
fn files_that_cannot_be_written() {
    let sandbox = Sandbox::create();
    let missing = ran(&["files", "write", &sandbox.at("/tmp/no/note")]);
    assert_eq!(missing.code, 125);
    assert_eq!(
        missing.stderr,
        "error: there is no folder `/tmp/no` (on `local`)\nhint: `-p` makes the folders above it\n"
    );
    let forbidden = ran(&["files", "write", &sandbox.at("/usr/note")]);
    assert_eq!(forbidden.code, 125);
    assert!(forbidden.stderr.starts_with("error: permission denied: `/usr/note`: "), "{forbidden:?}");
}

/// B81, B82, B186: names are bytes.
#[test]
fn odd_names() {
    let sandbox = Sandbox::create();
    sandbox.exec(&[
        "mkdir /tmp/odd; cd /tmp/odd; touch -- 'x\ny' -rf 'a b' 'end ' é; touch \"$(printf 'raw\\377')\"",
    ]);
    let listed = json(&["files", "ls", "--json", &sandbox.at("/tmp/odd")]);
    let names: Vec<&str> =
        listed["entries"].as_array().expect("a list").iter().filter_map(|e| e["name"].as_str()).collect();
    assert_eq!(names, ["-rf", "a b", "end ", "raw\u{fffd}", "x\ny", "é"]);
    assert_eq!(listed["entries"][3]["name_base64"], "cmF3/w==");
    let out = capbox(&["files", "ls", &sandbox.at("/tmp/odd")]).env("LC_ALL", "C").output().expect("start");
    assert_eq!(out.stdout, b"-rf\na b\nend \nraw\\xff\nx\\ny\n\xc3\xa9\n");
    let out = capbox(&["files", "ls", "-0", &sandbox.at("/tmp/odd")]).output().expect("start");
    assert_eq!(out.stdout, b"-rf\0a b\0end \0raw\xff\0x\ny\0\xc3\xa9\0");
    let out =
        capbox(&["files", "search", "-0", "--name", "x*", &sandbox.at("/tmp/odd")]).output().expect("start");
    assert_eq!(out.stdout, b"/tmp/odd/x\ny\0");

    ran_with_stdin(&["files", "write", &sandbox.at("/tmp/odd/end ")], b"with a blank").printed();
    assert_eq!(ran(&["files", "cat", &sandbox.at("/tmp/odd/end ")]).printed(), "with a blank");
    let raw = OsString::from_vec([sandbox.at("/tmp/odd/raw").into_bytes(), vec![0xff]].concat());
    assert_eq!(ran(&["files".into(), "cat".into(), raw]).printed(), "");
}

/// Names and texts from inside give a terminal no orders, nor a line of their own, whatever they go through first.
#[test]
fn names_that_are_orders_to_a_terminal() {
    let sandbox = Sandbox::create_with(&["--label", "of=\u{1b}[31mred"]);
    sandbox.exec(&[
        "mkdir /tmp/evil; cd /tmp/evil; printf 'text \\033[31m' > \"$(printf 'a\\033]0;x\\007b\\ncanary')\"",
    ]);
    let at = sandbox.at("/tmp/evil");
    for args in [
        &["files", "ls", &at][..],
        &["files", "ls", "-l", &at],
        &["files", "search", "--text", "text", &at],
        &["files", "search", "--name", "a*", &at],
        &["files", "ls", "--json", &at],
        &["ps"],
        &["ps", sandbox.id()],
    ] {
        let printed = ran(args).printed();
        assert!(!printed.contains(['\u{1b}', '\u{7}']), "{args:?}: {printed:?}");
        assert!(!printed.lines().any(|line| line.starts_with("canary")), "{args:?}: {printed:?}");
    }
}

/// No path is the default folder where something is looked at.
#[test]
fn a_sandbox_without_a_path() {
    let sandbox = Sandbox::create();
    sandbox.exec(&["echo text > note"]);
    assert_eq!(ran(&["files", "ls", &sandbox.at("")]).printed(), "note\n");
    assert_eq!(json(&["files", "stat", "--json", &sandbox.at("")])["kind"], "directory");
    assert!(ran(&["files", "search", "--text", "text", &sandbox.at("")]).printed().contains("note:1:text"));
    for command in ["rm", "cat", "mkdir"] {
        assert_eq!(ran(&["files", command, &sandbox.at("")]).code, 125, "{command}");
    }
    assert_eq!(ran(&["files", "rm", "-r", &sandbox.at("")]).code, 125);
    assert_eq!(ran(&["files", "ls", &sandbox.at("")]).printed(), "note\n");
}

/// B47: bytes stay bytes.
#[test]
fn bytes() {
    let sandbox = Sandbox::create();
    let bytes: Vec<u8> = (0..=255).cycle().take(9 << 20).collect();
    ran_with_stdin(&["files", "write", &sandbox.at("/tmp/bytes")], &bytes).printed();
    let out = capbox(&["files", "cat", &sandbox.at("/tmp/bytes")]).output().expect("start");
    assert!(out.status.success() && out.stdout == bytes);
}

/// B187: a moment, whatever the zone.
#[test]
fn times() {
    let sandbox = Sandbox::create();
    sandbox.exec(&["touch -d 2024-01-01T00:00:00Z /tmp/old"]);
    let out = capbox(&["files", "stat", "--json", &sandbox.at("/tmp/old")])
        .env("TZ", "America/New_York")
        .env("LC_TIME", "de_DE")
        .output()
        .expect("start");
    let entry: serde_json::Value = serde_json::from_slice(&out.stdout).expect("a document");
    assert_eq!(entry["modified"], "2024-01-01T00:00:00Z");
}

/// B99: links lead nowhere outside.
#[test]
fn links_stay_inside() {
    let sandbox = Sandbox::create();
    let secret = folder("secret").join("file");
    fs::write(&secret, "of the host").expect("write");
    sandbox.exec(&["ln", "-s", text(&secret), "/tmp/link"]);
    assert_eq!(ran(&["files", "cat", &sandbox.at("/tmp/link")]).code, 125);
}

#[test]
fn watching() {
    let sandbox = Sandbox::create();
    let mut child =
        capbox(&["files", "watch", &sandbox.at("/tmp")]).stdout(Stdio::piped()).spawn().expect("start");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    // When the watch begins is not told, so there is something to see again and again.
    let id = sandbox.id().to_owned();
    let touching = std::thread::spawn(move || {
        for i in 0..100 {
            if ran(&["exec", &id, "--", &format!("mkdir -p /tmp/a/b && touch /tmp/a/b/f{i}")]).code != 0 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    });
    let seen = lines.by_ref().map_while(Result::ok).find(|line| line.starts_with("created /tmp/a/b/f"));
    assert!(seen.is_some());
    child.kill().expect("end the watch");
    child.wait().expect("wait");
    drop(sandbox);
    touching.join().expect("touch");
}
