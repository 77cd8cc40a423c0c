//! Commands.

use std::time::Duration;

use capbox_core::api::{Event, Exit, ExitStatus, Output, OutputStream, Sandbox};
use capbox_core::error::ErrorKind;
use capbox_core::provider::{Killed, ProcessState};
use capbox_memory::Memory;

async fn sandbox() -> Sandbox<Memory> {
    Memory::new().create().await.unwrap()
}

async fn run(text: &str) -> Output {
    sandbox().await.exec(text).await.unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("{output:?}"))
}

/// B5, B56: a string is for the shell; the streams are apart.
#[tokio::test]
async fn a_string_is_for_the_shell() {
    let output = run("echo a && echo b; printf err >&2; exit 7").await;
    assert_eq!((output.stdout.bytes(), output.stderr.bytes()), (&b"a\nb\n"[..], &b"err"[..]));
    assert_eq!(output.status, ExitStatus::Exited(7));
    assert!(!output.background_remains);
}

/// B5, B6: an argv is kept exactly.
#[tokio::test]
async fn an_argv_is_kept() {
    let sandbox = sandbox().await;
    let output = sandbox.exec(["printf", "%s|", "a b", "$HOME", "", "*", "-n", "'\"\n"]).await.unwrap();
    assert_eq!(output.stdout.text(), "a b|$HOME||*|-n|'\"\n|");
    assert_eq!(code(&sandbox.exec(["sh", "-c", "exit 5"]).await.unwrap()), 5);
    assert_eq!(code(&sandbox.exec(["exit", "6"]).await.unwrap()), 6);
    // B200
    let missing = sandbox.exec(["nope --x"]).await.unwrap();
    assert_eq!(code(&missing), 127);
    assert!(missing.stderr.text().contains("not found"));
}

/// B8, B153: what a command sets comes over a base; nothing of the host comes in.
#[tokio::test]
async fn variables_come_over_a_base() {
    let sandbox = Memory::new().create().env([("BOX", "1"), ("BOTH", "box")]).await.unwrap();
    let output = sandbox.exec(["env"]).env("FOO", "1").env("BOTH", "command").await.unwrap();
    let text = output.stdout.text();
    let lines: Vec<_> = text.lines().collect();
    for line in ["FOO=1", "BOX=1", "BOTH=command", "HOME=/home/user", "LANG=C.UTF-8"] {
        assert!(lines.contains(&line), "{line} in {lines:?}");
    }
    assert!(lines.contains(&"PATH=/usr/local/bin:/usr/bin:/bin"));
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
    assert!(!text.contains("CARGO"), "{text}");
}

/// B115, B116: any value, in any folder.
#[tokio::test]
async fn values_arrive_exactly() {
    let sandbox = sandbox().await;
    sandbox.files().mkdir("/tmp/my dir").await.unwrap();
    for value in ["hello world", "'\"$HOME`id`%s", "a\nb", "trailing\n", "", "a$b`c", "é☕"] {
        let run =
            sandbox.exec("printf '%s' \"$X\"; printf ' %s' \"$PWD\" >&2").env("X", value).cwd("/tmp/my dir");
        let output = run.await.unwrap();
        assert_eq!(output.stdout.text(), value);
        assert_eq!(output.stderr.text(), " /tmp/my dir");
    }
}

/// B118, B119, B120: odd names are delivered or refused, and never become a second variable.
#[tokio::test]
async fn names_of_variables() {
    let sandbox = sandbox().await;
    let output = sandbox.exec(["printenv", "MY-KEY"]).env("MY-KEY", "x").await.unwrap();
    assert_eq!(output.stdout.text(), "x\n");
    for name in ["A;touch /tmp/pwn;B", "MY-KEY", "A=B", ""] {
        let error = sandbox.exec("true").env(name, "x").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name}");
    }
    assert!(!sandbox.files().exists("/tmp/pwn").await.unwrap());
}

/// B10, B65, B67: many lines; each command has a shell of its own.
#[tokio::test]
async fn commands_do_not_touch_each_other() {
    let sandbox = sandbox().await;
    let output = sandbox.exec("cat > f <<'E'\nhello\nE\nls f").await.unwrap();
    assert_eq!(output.stdout.text(), "f\n");
    assert_eq!(code(&sandbox.exec("set -e; X=1; cd /tmp; false; echo not").await.unwrap()), 1);
    assert_eq!(code(&sandbox.exec("cat <<'E").await.unwrap()), 2);
    let output = sandbox.exec("false; echo \"next $X $PWD\"").await.unwrap();
    assert_eq!(output.stdout.text(), "next  /home/user\n");
    assert_eq!(sandbox.files().read("f").await.unwrap(), "hello\n");
}

/// B13, B14: what a signal ends is never 0.
#[tokio::test]
async fn signals() {
    assert_eq!(run("kill -9 $$; echo no").await.status.shell_code(), 137);
    assert_eq!(run("sh -c 'kill -ABRT $$'").await.status.shell_code(), 134);
    assert_eq!(run("kill -TERM $$").await.status.shell_code(), 143);
}

/// B1, B2: a call ends soon after its command, whoever goes on.
#[tokio::test(start_paused = true)]
async fn what_goes_on_does_not_hold_the_call() {
    for text in
        ["sleep 30 & echo done", "sleep 30 </dev/null >/dev/null & echo done", "(sleep 30 &) ; echo done"]
    {
        let sandbox = sandbox().await;
        let start = tokio::time::Instant::now();
        let output = sandbox.exec(text).await.unwrap();
        assert!(start.elapsed() < Duration::from_secs(1), "{text}: {:?}", start.elapsed());
        assert_eq!((code(&output), output.stdout.bytes()), (0, &b"done\n"[..]), "{text}");
        assert!(output.background_remains, "{text}");
    }
}

/// No byte is lost, also of what a job prints before the command ends.
#[tokio::test(start_paused = true)]
async fn jobs_are_heard() {
    let output = run("(sleep 0.2; echo job; echo err >&2) & sleep 0.4; echo command; exit 3").await;
    let mut lines: Vec<_> = output.stdout.text().lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!((lines.as_slice(), code(&output)), (&["command".to_owned(), "job".to_owned()][..], 3));
    assert_eq!(output.stderr.text(), "err\n");
    assert!(!output.background_remains);
}

/// A command cannot tell another exit code than its own.
#[tokio::test]
async fn the_exit_code_cannot_be_forged() {
    let output = run("__capbox_returned 0 0; __capbox_returned \"$1\" 0; history; set; exit 9").await;
    assert_eq!(code(&output), 9);
}

/// B19, B20, B21, B27: time is up at its time, with what was printed so far.
#[tokio::test(start_paused = true)]
async fn timeouts() {
    let sandbox = sandbox().await;
    let start = tokio::time::Instant::now();
    let text = "printf partial; printf err >&2; sleep 50 & sh -c 'sleep 50; echo late > /tmp/late' | cat";
    let output = sandbox.exec(text).timeout(Duration::from_millis(1500)).await.unwrap();
    assert_eq!(output.status, ExitStatus::TimedOut);
    assert_eq!((output.stdout.text(), output.stderr.text()), ("partial".into(), "err".into()));
    let took = start.elapsed();
    assert!((Duration::from_millis(1500)..Duration::from_secs(2)).contains(&took), "{took:?}");
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert!(!sandbox.files().exists("/tmp/late").await.unwrap());
    let zero = sandbox.exec("true").timeout(Duration::ZERO).await.unwrap_err();
    assert_eq!(zero.kind(), ErrorKind::InvalidArgument);
}

/// A timeout also ends what the command left behind.
#[tokio::test(start_paused = true)]
async fn a_timeout_reaches_what_is_left_behind() {
    let sandbox = sandbox().await;
    let text = "(sleep 5; echo late > /tmp/late) & echo done";
    let output = sandbox.spawn(text).timeout(Duration::from_secs(2)).background().await.unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(!sandbox.files().exists("/tmp/late").await.unwrap());
    let exit = output.attach().await.unwrap().wait().await.unwrap();
    assert_eq!(exit, Exit::new(ExitStatus::Exited(0)).with_background(true));
}

/// B29, B53: a loop that never gives way by itself is stopped, and does not hold up the runtime.
#[tokio::test]
async fn busy_loops() {
    let sandbox = sandbox().await;
    for text in [
        "while :; do :; done",
        "while ((1)); do ((i++)); done",
        "while :; do echo x; done",
        "yes",
        "yes > /dev/null",
    ] {
        let start = std::time::Instant::now();
        let ticks = async {
            let mut ticks = 0;
            loop {
                tokio::time::sleep(Duration::from_millis(20)).await;
                ticks += 1;
                if start.elapsed() > Duration::from_millis(900) {
                    return ticks;
                }
            }
        };
        let run = sandbox.exec(text).timeout(Duration::from_secs(1)).max_output(1000);
        let (output, ticks) = tokio::join!(async { run.await.unwrap() }, ticks);
        assert_eq!(output.status, ExitStatus::TimedOut, "{text}");
        assert!(ticks >= 5, "{text}: {ticks}");
        assert!(start.elapsed() < Duration::from_secs(4), "{text}: {:?}", start.elapsed());
    }
}

/// Dropping the call kills the command.
#[tokio::test]
async fn dropping_kills() {
    let sandbox = sandbox().await;
    let text = "i=0; while :; do echo $((i++)) > /tmp/n; done";
    tokio::time::timeout(Duration::from_millis(100), async { sandbox.exec(text).await }).await.unwrap_err();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let before = sandbox.files().read("/tmp/n").await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(sandbox.files().read("/tmp/n").await.unwrap(), before);
    assert!(matches!(sandbox.processes().await.unwrap()[0].state, ProcessState::Exited(ExitStatus::Killed)));
}

/// Hostile scripts meet a limit, within seconds and with a message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits() {
    let sandbox = sandbox().await;
    for text in ["f(){ f; }; f", "awk 'BEGIN{while(1);}'", "seq 1000000000"] {
        let output = sandbox.exec(text).timeout(Duration::from_secs(30)).await.unwrap();
        assert!(output.status.code().is_some_and(|code| code != 0), "{text}: {output:?}");
        assert!(!output.stderr.bytes().is_empty(), "{text}");
    }
    let output = sandbox.exec("x=aaaaaaaa; while :; do x=$x$x; done").await.unwrap();
    assert_eq!(output.status, ExitStatus::OutOfMemory);
    for bomb in [":(){ :|:& };:", "f(){ f&f&f&f; }; f"] {
        let start = std::time::Instant::now();
        sandbox.exec(bomb).timeout(Duration::from_secs(1)).await.unwrap();
        assert!(start.elapsed() < Duration::from_secs(30), "{bomb}: {:?}", start.elapsed());
    }
}

/// Scripts that nest without end do not overflow the stack of the process.
#[tokio::test]
async fn depth() {
    let sandbox = sandbox().await;
    let nest = |n: usize, open: &str, mid: &str, close: &str| open.repeat(n) + mid + &close.repeat(n);
    let endless = [
        "x='eval \"$x\"'; eval \"$x\"".to_owned(),
        "echo '. /tmp/s' > /tmp/s; . /tmp/s".to_owned(),
        "echo '/tmp/t' > /tmp/t; chmod +x /tmp/t; /tmp/t".to_owned(),
        "f(){ echo x | while read l; do f; done; }; f".to_owned(),
        "f(){ f | f; }; f".to_owned(),
        format!("f(){{ {}; }}; f", nest(30, "if true; then ", "f", "; fi")),
        format!("f(){{ {}; }}; f", nest(30, "( ", "f", " )")),
        format!("f(){{ {}; }}; f", nest(30, "echo $( ", "f", " )")),
        format!("f(){{ {}; }}; f", nest(35, "{ ", "f", "; }")),
        nest(1000, "{ ", "echo x", "; }"),
        nest(1000, "echo $( ", "echo x", " )"),
        format!("echo '{}' | bc", nest(3000, "(", "1", ")")),
        format!("find / {}", nest(3000, "\\( ", "-name x", " \\)")),
    ];
    for text in endless {
        let output = sandbox.exec(text.clone()).timeout(Duration::from_secs(5)).await.unwrap();
        assert_ne!(output.status, ExitStatus::Unknown, "{text}");
    }
    let endless = sandbox.exec("x='eval \"$x\"'; eval \"$x\"").await.unwrap();
    assert_eq!(code(&endless), 1);
    assert!(endless.stderr.text().contains("commands nest too deep"), "{endless:?}");
    // Not so deep is fine.
    let text = "f(){ [ $1 = 0 ] || { echo $1; f $(($1 - 1)); }; }; f 12";
    assert_eq!(sandbox.exec(text).await.unwrap().stdout.text().lines().count(), 12);
    let deep = nest(12, "if true; then ( ", "echo x", " ); fi");
    assert_eq!(sandbox.exec(deep).await.unwrap().stdout.text(), "x\n");
}

/// B37, B38: input of any size that fits arrives whole.
#[tokio::test]
async fn input() {
    let sandbox = sandbox().await;
    let big = vec![b'x'; 8 << 20];
    let output = sandbox.exec("wc -c").input(big.clone()).await.unwrap();
    assert_eq!(output.stdout.text().trim(), big.len().to_string());
    let output = sandbox.exec("wc -c").input(vec![b'x'; 48 << 20]).await.unwrap();
    assert_eq!(output.stdout.text().trim(), (48 << 20).to_string());
    let output = sandbox.exec(["cat"]).input(big.clone()).await.unwrap();
    assert_eq!(output.stdout.bytes(), big);
    let output = sandbox.exec("head -c 3").input(vec![0, 0xFF, b'\n', 7]).await.unwrap();
    assert_eq!(output.stdout.bytes(), [0, 0xFF, b'\n']);
    let output = sandbox.exec("read a; read b; echo \"$b $a\"").input("one\ntwo\n").await.unwrap();
    assert_eq!(output.stdout.text(), "two one\n");
    // An early end is no error.
    assert_eq!(code(&sandbox.exec("exit 4").input(big).await.unwrap()), 4);
    let error = sandbox.exec("cat").input(vec![0; (64 << 20) + 1]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

/// B3, B189: without input there is none.
#[tokio::test]
async fn no_input() {
    assert_eq!(run("cat; read x; echo $?").await.stdout.text(), "1\n");
}

/// B44, B45, B52: bytes and characters arrive as they were printed.
#[tokio::test]
async fn bytes() {
    let sandbox = sandbox().await;
    let output = sandbox.exec("printf 'ok\\377\\n'; exit 3").await.unwrap();
    assert_eq!((output.stdout.bytes(), code(&output)), (&b"ok\xff\n"[..], 3));
    assert_eq!(output.stdout.text(), "ok\u{fffd}\n");

    let all: Vec<u8> = (0..=255).collect();
    sandbox.files().write("/tmp/all", all.clone()).await.unwrap();
    for text in [
        "cat /tmp/all",
        "cat < /tmp/all",
        "cat /tmp/all | cat",
        "head -c 256 /tmp/all",
        "tail -c 256 /tmp/all",
        "dd if=/tmp/all 2>/dev/null",
        "base64 /tmp/all | base64 -d",
        "cp /tmp/all /tmp/b; cat /tmp/b",
    ] {
        assert_eq!(sandbox.exec(text).await.unwrap().stdout.bytes(), all, "{text}");
    }

    let coffee = "☕".repeat(100_000);
    sandbox.files().write("/tmp/coffee", coffee.clone()).await.unwrap();
    let mut process = sandbox.spawn("cat /tmp/coffee").await.unwrap();
    let mut seen = Vec::new();
    while let Some(event) = process.next().await.unwrap() {
        if let Event::Output { bytes, position, .. } = event {
            assert_eq!(position, seen.len() as u64);
            seen.extend_from_slice(&bytes);
        }
    }
    assert_eq!(String::from_utf8(seen).unwrap(), coffee);

    let output = sandbox.exec("printf 'a%.0s' $(seq 70000)").await.unwrap();
    assert_eq!(output.stdout.total(), 70_000);
}

/// `head` and `yes` are done anew: the interpreter's own are cut short or slow.
#[tokio::test]
async fn heads() {
    let sandbox = sandbox().await;
    let cases = [
        ("yes | head -n 2", "y\ny\n"),
        ("yes a b | head -n 50000 | wc -l", "50000\n"),
        ("printf 'a\\nb' | head -n 2", "a\nb"),
        ("printf 'a\\nb\\nc\\n' | head -2", "a\nb\n"),
        ("echo abcdef | head -c 3", "abc"),
        ("printf '1\\n2\\n' > x; echo 3 > y; head -n 1 x y", "==> x <==\n1\n\n==> y <==\n3\n"),
        ("printf '1\\n2\\n' | { head -n 1; cat > /dev/null; }", "1\n"),
        ("head -n 1 < x", "1\n"),
        ("while :; do echo x; done | head -n 3", "x\nx\nx\n"),
        ("sed 's/2/two/' x | head | tail -n 1", "two\n"),
    ];
    for (text, expected) in cases {
        let output = sandbox.exec(text).timeout(Duration::from_secs(20)).await.unwrap();
        assert_eq!((output.stdout.text().as_ref(), code(&output)), (expected, 0), "{text}");
    }
    let missing = sandbox.exec("head nope x").await.unwrap();
    assert_eq!((code(&missing), missing.stdout.text().lines().count()), (1, 3));
    assert_eq!(code(&sandbox.exec("head -n -1 x").await.unwrap()), 1);
}

/// B51, B53: head and tail are kept, and the true size is told.
#[tokio::test]
async fn too_much_output() {
    let sandbox = sandbox().await;
    sandbox.files().write("/tmp/big", vec![b'x'; 3 << 20]).await.unwrap();
    let output = sandbox.exec("echo begin; cat /tmp/big; echo end").max_output(100).await.unwrap();
    assert!(output.stdout.truncated());
    assert_eq!(output.stdout.total(), (3 << 20) + 10);
    let text = output.stdout.text();
    assert!(text.starts_with("begin\n") && text.ends_with("end\n") && text.len() <= 100, "{text}");
}

/// Output comes while the command runs.
#[tokio::test(start_paused = true)]
async fn streaming() {
    let sandbox = sandbox().await;
    let start = tokio::time::Instant::now();
    let mut process = sandbox.spawn("echo one; sleep 10; echo two >&2; exit 5").await.unwrap();
    let one = process.next().await.unwrap().unwrap();
    assert_eq!(one, Event::Output { stream: OutputStream::Stdout, position: 0, bytes: "one\n".into() });
    assert!(start.elapsed() < Duration::from_secs(1));
    let two = process.next().await.unwrap().unwrap();
    assert_eq!(two, Event::Output { stream: OutputStream::Stderr, position: 4, bytes: "two\n".into() });
    assert!(start.elapsed() >= Duration::from_secs(10));
    assert_eq!(process.next().await.unwrap(), Some(Event::Exited(Exit::new(ExitStatus::Exited(5)))));
    assert_eq!(process.next().await.unwrap(), None);
}

/// B54: a slow reader holds the command up, and loses nothing.
#[tokio::test]
async fn back_pressure() {
    let sandbox = sandbox().await;
    sandbox.files().write("/tmp/big", vec![b'x'; 4 << 20]).await.unwrap();
    let mut process = sandbox.spawn("cat /tmp/big; echo > /tmp/done").await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!sandbox.files().exists("/tmp/done").await.unwrap());
    let mut seen = 0;
    while let Some(event) = process.next().await.unwrap() {
        if let Event::Output { bytes, position, .. } = event {
            assert_eq!(position, seen);
            seen += bytes.len() as u64;
        }
    }
    assert_eq!(seen, 4 << 20);
    assert!(sandbox.files().exists("/tmp/done").await.unwrap());
}

/// A slow reader gets all also where the command leaves something behind.
#[tokio::test]
async fn slow_readers_of_what_is_left_behind() {
    let sandbox = sandbox().await;
    sandbox.files().write("/tmp/big", vec![b'x'; 1 << 20]).await.unwrap();
    let mut process = sandbox.spawn("sleep 30 & cat /tmp/big").await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut seen = 0;
    while let Some(event) = process.next().await.unwrap() {
        match event {
            Event::Output { bytes, .. } => seen += bytes.len(),
            Event::Exited(exit) => assert!(exit.background_remains),
            other => panic!("{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(seen, 1 << 20);
}

/// B70: a process is found again by its id, from any client of the store, and its output is replayed.
#[tokio::test(start_paused = true)]
async fn background() {
    let client = Memory::new();
    let owner = client.create().await.unwrap();
    let text = "for i in 1 2 3; do echo $i; sleep 60; done; exit 4";
    let id = owner.spawn(text).background().await.unwrap().id().clone();
    tokio::time::sleep(Duration::from_secs(90)).await;

    let other = client.clone().connect(owner.id()).await.unwrap();
    let listed = &other.processes().await.unwrap()[0];
    assert_eq!((&listed.id, listed.state, listed.background), (&id, ProcessState::Running, true));
    assert_eq!(listed.command, text);

    let logs = other.process(&id).logs(0).await.unwrap().output().await.unwrap();
    assert_eq!((logs.stdout.text(), logs.status), ("1\n2\n".into(), ExitStatus::Unknown));
    let attached = other.process(&id).attach().await.unwrap().output().await.unwrap();
    assert_eq!((attached.stdout.text(), code(&attached)), ("3\n".into(), 4));
    let replayed = other.process(&id).replay(2).await.unwrap().output().await.unwrap();
    assert_eq!((replayed.stdout.text(), code(&replayed)), ("2\n3\n".into(), 4));
    let state = other.processes().await.unwrap()[0].state;
    assert_eq!(state, ProcessState::Exited(ExitStatus::Exited(4)));
}

/// The newest megabyte is kept, and what is gone is told.
#[tokio::test]
async fn retention() {
    let sandbox = sandbox().await;
    sandbox.files().write("/tmp/big", vec![b'x'; 3 << 20]).await.unwrap();
    let process = sandbox.spawn("cat /tmp/big; echo end").background().await.unwrap();
    let id = process.id().clone();
    process.attach().await.unwrap().wait().await.unwrap();
    let mut replayed = sandbox.process(&id).replay(0).await.unwrap();
    let Some(Event::Gap { from: 0, to }) = replayed.next().await.unwrap() else { panic!("a gap") };
    assert!((2 << 20..=(2 << 20) + 8192).contains(&to), "{to}");
    let rest = replayed.output().await.unwrap();
    assert_eq!(rest.stdout.total(), (3 << 20) + 4 - to);
    assert!(rest.stdout.text().ends_with("xend\n"));
}

/// B30, B31: a kill ends the whole job, and tells what it did.
#[tokio::test(start_paused = true)]
async fn kills() {
    let sandbox = sandbox().await;
    let text = "echo begun; sh -c 'sleep 200; touch /tmp/late' & sleep 200; touch /tmp/late";
    let process = sandbox.spawn(text).background().await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(process.kill().await.unwrap(), Killed::Stopped);
    assert_eq!(process.kill().await.unwrap(), Killed::AlreadyExited);
    tokio::time::sleep(Duration::from_secs(290)).await;
    assert!(!sandbox.files().exists("/tmp/late").await.unwrap());
    let unknown = sandbox.process("nope").kill().await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
}

/// A kill after the end reaches what was left behind.
#[tokio::test(start_paused = true)]
async fn kills_reach_what_is_left_behind() {
    let sandbox = sandbox().await;
    let process = sandbox.spawn("(sleep 10; touch /tmp/late) & echo done").background().await.unwrap();
    let id = process.id().clone();
    assert!(process.attach().await.unwrap().wait().await.unwrap().background_remains);
    assert_eq!(sandbox.process(&id).kill().await.unwrap(), Killed::AlreadyExited);
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(!sandbox.files().exists("/tmp/late").await.unwrap());
}

/// B150: commands at once do not mix.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn at_once() {
    let sandbox = sandbox().await;
    let runs = (0..20).map(|n| {
        let sandbox = sandbox.clone();
        tokio::spawn(async move {
            let text = format!("X={n}; sleep 0.0$((RANDOM % 9)); echo $X; echo $X > /tmp/$X");
            (n, sandbox.exec(text).await.unwrap().stdout.text().into_owned())
        })
    });
    for run in runs.collect::<Vec<_>>() {
        let (n, text) = run.await.unwrap();
        assert_eq!(text, format!("{n}\n"));
        assert_eq!(sandbox.files().read_text(format!("/tmp/{n}")).await.unwrap(), format!("{n}\n"));
    }
}

/// B199: a folder that is not there is not the program's fault.
#[tokio::test]
async fn bad_folders() {
    let sandbox = sandbox().await;
    for (cwd, why) in [("/nope", "no folder"), ("/etc/hostname", "not a folder")] {
        let error = sandbox.exec("true").cwd(cwd).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadWorkingDirectory);
        assert!(error.message().contains(cwd) && error.message().contains(why), "{error}");
    }
    sandbox.files().mkdir("sub").await.unwrap();
    assert_eq!(sandbox.exec("pwd").cwd("sub").await.unwrap().stdout.text(), "/home/user/sub\n");
}

/// Nothing can be reached: the interpreter is built without a network.
#[tokio::test]
async fn no_network() {
    let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let sandbox = sandbox().await;
    for text in
        ["curl -s http://A/", "wget -q -O- http://A/", "http GET http://A/", "exec 3<>/dev/tcp/H/P; echo >&3"]
    {
        let text = text.replace('A', &address.to_string());
        let text = text.replace('H', "127.0.0.1").replace('P', &address.port().to_string());
        let output = sandbox.exec(text.clone()).await.unwrap();
        assert!(output.stderr.total() + output.stdout.total() > 0, "{text}: {output:?}");
    }
    let connection = tokio::time::timeout(Duration::from_millis(50), server.accept()).await;
    assert!(connection.is_err());
}

/// The clock of the tests is the clock of `sleep`, however long.
#[tokio::test(start_paused = true)]
async fn sleeping() {
    let sandbox = Memory::new().create().await.unwrap();
    let start = tokio::time::Instant::now();
    assert_eq!(code(&sandbox.exec("sleep 2m 0.5m 10").await.unwrap()), 0);
    let took = start.elapsed();
    assert!((160..161).contains(&took.as_secs()), "{took:?}");
    for wrong in ["sleep", "sleep x", "sleep -1"] {
        assert_eq!(code(&sandbox.exec(wrong).await.unwrap()), 1, "{wrong}");
    }
}

/// Programs by path, and scripts.
#[tokio::test]
async fn programs() {
    let sandbox = sandbox().await;
    assert_eq!(sandbox.exec("which ls; /bin/echo hi").await.unwrap().stdout.text(), "/usr/bin/ls\nhi\n");
    sandbox.files().write("s", "#!/usr/bin/env bash\necho \"$0 $1\"; exit 3\n").await.unwrap();
    assert_eq!(code(&sandbox.exec(["./s", "x"]).await.unwrap()), 126);
    sandbox.files().set_mode("s", 0o755).await.unwrap();
    let output = sandbox.exec(["./s", "x y"]).await.unwrap();
    assert_eq!((output.stdout.text(), code(&output)), ("./s x y\n".into(), 3));
}
