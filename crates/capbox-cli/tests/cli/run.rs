//! `capbox run`.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::{Ran, capbox, is_running, json, ran, ran_with_stdin};

fn snapshot(code: i32, stdout: &str, stderr: &str) -> Ran {
    Ran { code, stdout: stdout.to_owned(), stderr: stderr.to_owned() }
}

#[test]
fn streams_stay_apart() {
    assert_eq!(ran(&["run", "--", "echo out; echo err >&2"]), snapshot(0, "out\n", "err\n"));
}

/// B13, B14, B15: whatever ends the command, the exit code tells.
#[test]
fn exit_codes() {
    let script = |code: i32, command: &str| {
        assert_eq!(ran(&["run", "--", command]), snapshot(code, "", ""), "{command}");
        assert_eq!(ran(&["run", "--", "sh", "-c", command]), snapshot(code, "", ""), "{command}");
        let document = ran(&["run", "--json", "--", command]);
        assert_eq!((document.code, document.stderr.as_str()), (code, ""), "{command}");
    };
    script(0, "true");
    script(42, "exit 42");
    script(255, "exit 255");
    script(137, "kill -9 $$");
    script(134, "kill -ABRT $$");
    script(143, "kill -TERM $$");
}

/// B200: as in a shell.
#[test]
fn programs_that_cannot_be_started() {
    assert_eq!(
        ran(&["run", "--", "no-such-program", "x"]),
        snapshot(127, "", "error: there is no program `no-such-program` in the sandbox (on `local`)\n")
    );
    assert_eq!(
        ran(&["run", "--", "/etc/passwd", "x"]),
        snapshot(126, "", "error: `/etc/passwd` may not be executed (on `local`)\n")
    );
    assert_eq!(json(&["run", "--json", "--", "/no/such/program", "x"])["error"]["kind"], "program-not-found");
    assert_eq!(json(&["run", "--json", "--", "/etc/passwd", "x"])["error"]["kind"], "program-not-executable");
}

/// B199: the folder is to blame, not the program.
#[test]
fn folders_that_cannot_be_entered() {
    for on in ["local", "memory"] {
        for (folder, told) in [
            ("/nope", "there is no folder `/nope` in the sandbox"),
            ("/etc/passwd", "`/etc/passwd` in the sandbox is not a folder"),
        ] {
            let ran = ran(&["run", "--on", on, "--cwd", folder, "--", "echo x"]);
            assert_eq!(ran, snapshot(125, "", &format!("error: {told} (on `{on}`)\n")));
        }
    }
    assert_eq!(
        json(&["run", "--json", "--cwd", "/nope", "--", "echo x"])["error"]["kind"],
        "bad-working-directory"
    );
}

#[test]
fn users_that_are_not_there() {
    if rustix::process::geteuid().is_root() {
        assert_eq!(
            ran(&["run", "--user", "nobody-of-ours", "--", "true"]),
            snapshot(125, "", "error: there is no user `nobody-of-ours` in the sandbox\n")
        );
    }
}

/// B5, B6: one word is a text for the shell, several are an argv, kept exactly.
#[test]
fn words() {
    assert_eq!(ran(&["run", "--", "echo a && echo b"]).printed(), "a\nb\n");
    assert_eq!(ran(&["run", "--", "printf", "[%s]", "a b", "", "c'\"$HOME"]).printed(), "[a b][][c'\"$HOME]");
    assert_eq!(ran(&["run", "--", "echo", "--json", "-i"]).printed(), "--json -i\n");
}

/// B10: a text of several lines.
#[test]
fn heredocs() {
    assert_eq!(ran(&["run", "--", "cat <<'E'\nhello\nE\necho end"]).printed(), "hello\nend\n");
}

/// B3: without `-i` our stdin is not read and not waited for.
#[test]
fn an_open_stdin_does_not_matter() {
    let start = Instant::now();
    let mut child = capbox(&["run", "--timeout", "10s", "--", "echo hi; cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("start the program");
    let held_open = child.stdin.take();
    let mut out = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut out).expect("read its stdout");
    assert_eq!((child.wait().expect("wait").code(), out.as_str()), (Some(0), "hi\n"));
    assert!(start.elapsed() < Duration::from_secs(5));
    drop(held_open);
}

#[test]
fn stdin_goes_in_with_i() {
    assert_eq!(ran_with_stdin(&["run", "-i", "--", "cat"], b"some input").printed(), "some input");
    assert_eq!(ran_with_stdin(&["run", "--", "cat"], b"some input").printed(), "");
    let document = ran_with_stdin(&["run", "-i", "--json", "--", "cat"], b"some input");
    let document: serde_json::Value = serde_json::from_str(&document.stdout).expect("a document");
    assert_eq!(document["stdout"]["text"], "some input");
}

/// B37, B38: what is sent while nobody reads, and much of it.
#[test]
fn much_stdin() {
    let input = vec![b'x'; 2 << 20];
    let all = ran_with_stdin(&["run", "-i", "--", "cat"], &input).printed();
    assert_eq!(all.len(), input.len());
    assert_eq!(
        ran_with_stdin(&["run", "-i", "--", "wc -c"], &vec![0; 48 << 20]).printed().trim(),
        "50331648"
    );
    assert_eq!(
        ran_with_stdin(&["run", "-i", "--", "exec <&-; sleep 0.2; echo over"], &input).printed(),
        "over\n"
    );
}

/// B19, B20, B28: at the end of its time, with what it has printed, and with all that it started.
#[test]
fn timeouts() {
    let start = Instant::now();
    let over = ran(&[
        "run",
        "--timeout",
        "0.5s",
        "--",
        "trap '' TERM; printf partial; setsid sleep 301.25 & sleep 301.25",
    ]);
    assert_eq!(over, snapshot(124, "partial", "note: the command timed out after 500ms and was killed\n"));
    assert!(start.elapsed() < Duration::from_secs(4));
    assert!(!is_running("301.25"));
    let document = ran(&["run", "--json", "--timeout", "0.5s", "--", "printf partial; sleep 5"]);
    assert_eq!(document.code, 124);
    let document: serde_json::Value = serde_json::from_str(&document.stdout).expect("a document");
    assert_eq!(
        (&document["cause"], &document["stdout"]["text"], &document["code"]),
        (&"timed-out".into(), &"partial".into(), &serde_json::Value::Null)
    );
}

#[test]
fn output_comes_as_it_is_printed() {
    let start = Instant::now();
    let mut child = capbox(&["run", "--", "echo first; sleep 3; echo second"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("start the program");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert_eq!(lines.next().expect("a line").expect("read"), "first");
    assert!(start.elapsed() < Duration::from_secs(2), "the first line came after {:?}", start.elapsed());
    assert_eq!(lines.next().expect("a line").expect("read"), "second");
    assert!(child.wait().expect("wait").success());
}

/// B52, B54: long lines, and a slow reader.
#[test]
fn nothing_is_lost() {
    assert_eq!(ran(&["run", "--", "head -c 70000 /dev/zero | tr '\\0' a"]).printed().len(), 70_000);
    let mut child = capbox(&["run", "--", "head -c 4194304 /dev/zero"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("start the program");
    let mut stdout = child.stdout.take().expect("piped");
    let (mut buffer, mut total) = (vec![0; 256 << 10], 0);
    loop {
        match stdout.read(&mut buffer).expect("read its stdout") {
            0 => break,
            n => total += n,
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(total, 4 << 20);
    assert!(child.wait().expect("wait").success());
}

/// B51, B53: head and tail, and what is left out is told.
#[test]
fn bounded_output() {
    let cut = ran(&["run", "--max-output", "10", "--", "seq 100"]);
    assert_eq!(
        cut,
        snapshot(
            0,
            "1\n2\n3\n100\n",
            "note: stdout is cut: 10 of 292 bytes are shown, the tail begins after 5\n"
        ),
    );
    let document = json(&["run", "--json", "--max-output", "10", "--", "seq 100"]);
    let stdout = &document["stdout"];
    assert_eq!(
        (stdout["total"].as_u64(), stdout["truncated"].as_bool(), stdout["cut_at"].as_u64()),
        (Some(292), Some(true), Some(5))
    );
}

#[test]
fn merged_streams_keep_their_order() {
    let merged = ran(&["run", "--merge", "--", "echo a; echo b >&2; echo c; echo 'd'\\''s' >&2"]);
    assert_eq!(merged, snapshot(0, "a\nb\nc\nd's\n", ""));
    assert_eq!(ran(&["run", "--merge", "--", "sh", "-c", "exit 7"]), snapshot(7, "", ""));
}

/// B8, B115, B116: over a base, any text, together with a folder.
#[test]
fn variables() {
    assert_eq!(
        ran(&["run", "--env", "FOO=1", "--", "test -n \"$PATH\" && test -n \"$HOME\" && echo $FOO"])
            .printed(),
        "1\n"
    );
    for value in ["hello world", "'\"$HOME`x`", "a\nb", "%s", "end\n", "", "a=b=c", "é"] {
        let pair = format!("X={value}");
        let args = ["run", "--env", &pair, "--cwd", "/tmp", "--", "printf '%s|%s' \"$X\" \"$PWD\""];
        assert_eq!(ran(&args).printed(), format!("{value}|/tmp"));
    }
    assert_eq!(ran(&["run", "--env", "MY-KEY=1", "--", "printenv", "MY-KEY"]).printed(), "1\n");
}

/// B153: nothing of ours goes in.
#[test]
fn our_environment_stays_out() {
    let out = capbox(&["run", "--", "env"]).env("AWS_SECRET_ACCESS_KEY", "hunter2").output().expect("start");
    assert!(!String::from_utf8_lossy(&out.stdout).contains("hunter2"));
}

/// B1, B2: the command has ended, whoever still holds its streams.
#[test]
fn background_processes_are_told() {
    let note = "note: background processes remained, and ended with the sandbox\n";
    for command in [
        "sleep 302.5 & echo done",
        "sleep 302.5 </dev/null >/dev/null & echo done",
        "sleep 302.5 3>&1 >/dev/null 2>&1 & echo done",
    ] {
        let start = Instant::now();
        assert_eq!(ran(&["run", "--", command]), snapshot(0, "done\n", note), "{command}");
        assert!(start.elapsed() < Duration::from_secs(5));
    }
    assert_eq!(json(&["run", "--json", "--", "sleep 302.5 & echo done"])["background_remains"], true);
    assert!(!is_running("302.5"));
}

/// B45: text for people, bytes for programs.
#[test]
fn bytes() {
    let out = capbox(&["run", "--", "printf 'ok\\377\\n'; exit 3"]).output().expect("start");
    assert_eq!((out.status.code(), out.stdout.as_slice()), (Some(3), &b"ok\xff\n"[..]));
    let document = json(&["run", "--json", "--", "printf 'ok\\377\\n'; exit 3"]);
    assert_eq!(document["stdout"]["text"], "ok\u{fffd}\n");
    assert_eq!(document["stdout"]["base64"], "b2v/Cg==");
}

/// B186: UTF-8, whatever the locale of this machine.
#[test]
fn locales() {
    let out = capbox(&["run", "--", "echo é"]).env("LC_ALL", "C").output().expect("start");
    assert_eq!(out.stdout, "é\n".as_bytes());
}

#[test]
fn nobody_reads_our_output() {
    let mut child = capbox(&["run", "--", "while :; do echo y; done # 303.5"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start the program");
    let mut some = [0; 2];
    child.stdout.take().expect("piped").read_exact(&mut some).expect("read its stdout");
    let out = child.wait_with_output().expect("wait");
    assert_eq!((out.status.code(), String::from_utf8_lossy(&out.stderr).as_ref()), (Some(141), ""));
    assert!(!is_running("303.5"));
}

#[test]
fn folders_of_this_machine() {
    let parent = crate::host();
    let folder = parent.join("mounted");
    std::fs::create_dir_all(&folder).expect("make a folder");
    std::fs::write(folder.join("note"), "from outside").expect("write a file");
    let inside = |access: &str, command: &str| {
        let out =
            capbox(&["run", "--mount", &format!("mounted:/work{access}"), "--cwd", "/work", "--", command])
                .current_dir(parent)
                .output()
                .expect("start");
        Ran::of(&out)
    };
    assert_eq!(inside(":ro", "cat note").printed(), "from outside");
    assert_ne!(inside(":ro", "echo x > note").code, 0);
    inside("", "printf 'from inside' > answer").printed();
    assert_eq!(std::fs::read_to_string(folder.join("answer")).expect("read"), "from inside");
}
