//! Jobs that outlive the call: in the background, on terminals, and how they are killed.

use std::time::{Duration, Instant};

use capbox_host::{Cause, Error, Event, ExecRequest, Guest, Launch, Mount, PtySize, Stream};
use tokio::io::AsyncWriteExt;

use crate::support::{Outcome, collect, guest, host, print, scratch, sh, tests};

tests! {
    Both the_log_is_replayed_from_any_position,
    Both the_log_keeps_the_newest,
    Both a_follower_sees_what_comes,
    Both input_of_a_background_job,
    Both kill_tells_ended_from_unknown,
    Both kill_takes_a_whole_tree_and_nothing_else,
    Both a_bounded_fork_bomb_dies,
    Both a_process_without_its_first_thread_dies,
    Both a_process_that_never_holds_still_dies,
    Root a_process_that_cannot_be_looked_at_dies,
    Both signals_reach_the_group,
    Both a_terminal_is_the_sandboxs_own,
    Both output_of_a_terminal_is_complete,
    Both a_terminal_line_that_would_be_cut_is_refused,
    Both closing_a_terminal_kills_the_job_and_types_nothing,
    Both sizes_are_checked,
    Both a_background_terminal,
}

async fn follow(guest: &Guest, job: &str, after: u64) -> Result<(String, Option<i32>), Error> {
    let mut attachment = guest.attach(job, after, false).await?;
    let (mut text, mut next) = (String::new(), after);
    while let Some(event) = attachment.next().await? {
        match event {
            Event::Output { seq, stream, data } => {
                assert_eq!(seq, next);
                next += data.len() as u64;
                if stream == Stream::Stderr {
                    text.push('!');
                }
                text.push_str(&String::from_utf8_lossy(&data));
            }
            Event::Gap { from, to } => {
                assert_eq!(from, next);
                next = to;
                text.push_str("<gap>");
            }
            Event::Exited(exit) => return Ok((text, exit.code)),
            _ => {}
        }
    }
    Ok((text, None))
}

async fn the_log_is_replayed_from_any_position() -> Outcome {
    let guest = guest().await?;
    let job =
        guest.spawn(sh("printf one; sleep 0.1; printf two >&2; sleep 0.1; printf three; exit 5")).await?;
    // Live, then after the end, over another connection and from the middle.
    assert_eq!(follow(&guest, &job, 0).await?, ("one!twothree".into(), Some(5)));
    let other = host().connect(guest.id()).await?;
    assert_eq!(follow(&other, &job, 0).await?, ("one!twothree".into(), Some(5)));
    assert_eq!(follow(&other, &job, 4).await?, ("!wothree".into(), Some(5)));
    assert_eq!(follow(&other, &job, 11).await?, (String::new(), Some(5)));
    assert!(matches!(other.attach("nope", 0, false).await, Err(Error::NotFound { .. })));
    Ok(())
}

async fn the_log_keeps_the_newest() -> Outcome {
    let guest = guest().await?;
    let mut request = sh("seq 1 100000; echo end");
    request.retain = 1000;
    let job = guest.spawn(request).await?;
    loop {
        let jobs = guest.ps().await?;
        if jobs.iter().any(|other| other.id == job && other.exit.is_some()) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let (text, code) = follow(&guest, &job, 0).await?;
    assert_eq!((text.len(), code), (1000 + "<gap>".len(), Some(0)));
    assert!(text.starts_with("<gap>") && text.ends_with("100000\nend\n"));
    Ok(())
}

async fn a_follower_sees_what_comes() -> Outcome {
    let guest = guest().await?;
    let job = guest
        .spawn(sh(
            "i=0; while [ $i -lt 5 ]; do echo $i; i=$((i+1)); sleep 0.05; done; head -c 3000000 /dev/zero",
        ))
        .await?;
    let mut attachment = guest.attach(&job, 0, false).await?;
    let mut seen = 0;
    while let Some(event) = attachment.next().await? {
        match event {
            Event::Output { data, .. } => seen += data.len() as u64,
            Event::Gap { from, to } => seen += to - from,
            Event::Exited(exit) => assert_eq!(exit.code, Some(0)),
            _ => {}
        }
    }
    assert_eq!(seen, 3_000_010);
    Ok(())
}

async fn input_of_a_background_job() -> Outcome {
    let guest = guest().await?;
    let mut request = sh("read line; echo got $line; cat; echo end");
    request.stdin = true;
    let job = guest.spawn(request).await?;
    let mut attachment = guest.attach(&job, 0, true).await?;
    let mut input = attachment.input.take().ok_or("no input")?;
    input.write_all(b"hello\nmore\n").await?;
    drop(input);
    guest.close_stdin(&job).await?;
    let mut text = Vec::new();
    while let Some(event) = attachment.next().await? {
        if let Event::Output { data, .. } = event {
            text.extend_from_slice(&data);
        }
    }
    assert_eq!(String::from_utf8_lossy(&text), "got hello\nmore\nend\n");
    Ok(())
}

/// B31.
async fn kill_tells_ended_from_unknown() -> Outcome {
    let guest = guest().await?;
    assert!(matches!(guest.kill("nope").await, Err(Error::NotFound { .. })));
    let job = guest.spawn(sh("sleep 60")).await?;
    guest.kill(&job).await?;
    assert!(matches!(guest.kill(&job).await, Err(Error::Ended { .. })));
    let jobs = guest.ps().await?;
    let exit = jobs.into_iter().find(|other| other.id == job).and_then(|job| job.exit).ok_or("no exit")?;
    assert_eq!((exit.cause, exit.signal), (Cause::Killed, Some(9)));
    let job = guest.spawn(sh("true")).await?;
    follow(&guest, &job, 0).await?;
    assert!(matches!(guest.kill(&job).await, Err(Error::Ended { .. })));
    Ok(())
}

/// Six processes in three sessions, some deaf to signals, beside a neighbour. B27, B30.
async fn kill_takes_a_whole_tree_and_nothing_else() -> Outcome {
    let guest = guest().await?;
    let neighbour = guest.spawn(sh("sleep 62 & sleep 62")).await?;
    let mut times = Vec::new();
    for _ in 0..20 {
        let job = guest
            .spawn(sh("setsid sh -c 'trap \"\" TERM HUP INT; sleep 60 & sleep 60' & setsid sh -c 'sleep 60; touch /tmp/late' & sleep 60"))
            .await?;
        loop {
            let jobs = guest.ps().await?;
            if jobs.iter().any(|other| other.id == job && other.pids.len() >= 6) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let start = Instant::now();
        guest.kill(&job).await?;
        times.push(start.elapsed());
        let jobs = guest.ps().await?;
        let of = |id: &str| jobs.iter().find(|job| job.id == id).map_or(0, |job| job.pids.len());
        assert_eq!((of(&job), of(&neighbour)), (0, 3));
    }
    times.sort();
    println!("kill of a tree: {:?} (median), {:?} (worst)", times[10], times[19]);
    Ok(())
}

async fn a_bounded_fork_bomb_dies() -> Outcome {
    let mut launch = Launch::default();
    launch.processes = 64;
    let guest = host().launch(launch).await?;
    // bash goes on when it cannot fork, others give up.
    let job = guest.spawn(ExecRequest::new(["bash", "-c", "b() { b | b & }; while :; do b; done"])).await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let start = Instant::now();
    guest.kill(&job).await?;
    let took = start.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
    println!("kill of a fork bomb of 64: {took:?}");
    assert_eq!(print(&guest, "echo alive").await?, "alive\n");
    assert!(guest.ps().await?.iter().all(|job| job.pids.is_empty()));
    Ok(())
}

/// Whether something still writes its progress to `/tmp/alive`.
async fn goes_on(guest: &Guest) -> Result<bool, Error> {
    let script = "cat /tmp/alive; sleep 0.3; echo; cat /tmp/alive";
    let text = print(guest, script).await?;
    let (before, after) = text.split_once('\n').unwrap_or_default();
    Ok(before != after)
}

/// The rest of the process has no mark in plain sight then. Fails when only the first thread is looked at.
async fn a_process_without_its_first_thread_dies() -> Outcome {
    let guest = guest().await?;
    let program = "
import ctypes, threading, time
def work():
    for i in range(300):
        open('/tmp/alive', 'w').write(str(i)); time.sleep(0.05)
threading.Thread(target=work).start()
ctypes.CDLL(None).syscall(60 if __import__('os').uname().machine == 'x86_64' else 93, 0)
";
    let mut request = ExecRequest::new(["python3", "-c", program]);
    let job = guest.spawn(request.clone()).await?;
    while !goes_on(&guest).await? {}
    guest.kill(&job).await?;
    assert!(!goes_on(&guest).await?);

    request.timeout = Some(Duration::from_millis(700));
    let mut job = guest.exec(request).await?;
    let exit = tokio::time::timeout(Duration::from_secs(5), job.wait()).await??;
    assert_eq!(exit.cause, Cause::TimedOut);
    assert!(!goes_on(&guest).await?);
    Ok(())
}

/// It goes on in one child after the other, some ten thousand times a second. Fails (nearly always, with so many tries)
/// when one pass that meets nothing is the end of a kill.
async fn a_process_that_never_holds_still_dies() -> Outcome {
    const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static char stacks[64][4096] __attribute__((aligned(16)));
static volatile unsigned long hops;
static int file;
static time_t end;
static int hop(void *nothing) {
    for (;;) {
        unsigned long now = ++hops;
        if (now % 256 == 0) pwrite(file, &now, sizeof now, 0);
        if (now % 256 == 0 && time(0) > end) syscall(SYS_exit, 0);
        int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND;
        if (clone(hop, stacks[now % 64] + 4096, flags, 0) > 0) syscall(SYS_exit, 0);
    }
}
int main(void) {
    close(0); close(1); close(2);
    file = open("/tmp/alive", O_CREAT | O_RDWR, 0644);
    end = time(0) + 30;
    hop(0);
}
"#;
    let folder = scratch("hop");
    let (source, program) = (folder.join("hop.c"), folder.join("hop"));
    std::fs::write(&source, PROGRAM)?;
    let compiled =
        std::process::Command::new("cc").arg("-O1").arg("-o").args([&program, &source]).status()?;
    assert!(compiled.success());
    let mut launch = Launch::default();
    launch.processes = 64;
    let guest = host().launch(launch).await?;
    guest.files().await?.upload(&program, std::path::Path::new("hop"))?;
    for _ in 0..30 {
        let job = guest.spawn(ExecRequest::new(["./hop"])).await?;
        tokio::time::sleep(Duration::from_millis(30)).await;
        guest.kill(&job).await?;
        let script = "cksum < /tmp/alive; sleep 0.03; cksum < /tmp/alive";
        let text = print(&guest, script).await?;
        let (before, after) = text.split_once('\n').ok_or("no output")?;
        assert_eq!(before, after.trim_end());
    }
    Ok(())
}

/// It executes what it may not read, and what belongs to nobody inside. Fails when the guest sees no more of `/proc` than
/// the code does, and when what it may not look at is no job's.
async fn a_process_that_cannot_be_looked_at_dies() -> Outcome {
    use std::os::unix::fs::{PermissionsExt, chown};
    let folder = scratch("hidden");
    let program = folder.join("program");
    std::fs::copy("/bin/sleep", &program)?;
    chown(&folder, Some(4321), Some(4321))?;
    chown(&program, Some(4322), Some(4322))?;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o711))?;
    let mut launch = Launch::default();
    launch.mounts = vec![Mount::new(&folder, "/work/hidden")];
    let guest = host().launch(launch).await?;
    let there = "pkill -0 -x program && echo there";
    let other = guest.spawn(sh("sleep 60")).await?;
    let mut request = sh("setsid /work/hidden/program 61 & sleep 0.2; exec /work/hidden/program 62");
    let job = guest.spawn(request.clone()).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    // Out of sight inside, but there.
    assert_eq!(print(&guest, there).await?, "");
    let alive = "n=0; for p in $(seq 2 200); do kill -0 $p 2>/dev/null && n=$((n+1)); done; echo $n";
    let before: u32 = print(&guest, alive).await?.trim().parse()?;
    guest.kill(&job).await?;
    let after: u32 = print(&guest, alive).await?.trim().parse()?;
    assert_eq!(before - after, 2);
    request.timeout = Some(Duration::from_millis(500));
    let mut job = guest.exec(request).await?;
    let exit = tokio::time::timeout(Duration::from_secs(5), job.wait()).await??;
    assert_eq!(exit.cause, Cause::TimedOut);
    assert_eq!(print(&guest, alive).await?.trim().parse::<u32>()?, after);
    guest.kill(&other).await?;
    Ok(())
}

async fn signals_reach_the_group() -> Outcome {
    let guest = guest().await?;
    let job =
        guest.spawn(sh("trap 'echo caught; exit 3' USR1; echo ready; while :; do sleep 0.01; done")).await?;
    let mut attachment = guest.attach(&job, 0, false).await?;
    assert!(matches!(attachment.next().await?, Some(Event::Output { .. })));
    guest.signal(&job, 10).await?;
    let (text, code) = follow(&guest, &job, 0).await?;
    assert!(text.starts_with("ready\n") && text.ends_with("caught\n") && code == Some(3), "{text}");
    assert!(matches!(guest.signal(&job, 10).await, Err(Error::Ended { .. })));
    assert!(matches!(
        guest.signal(&job, 999).await,
        Err(Error::Ended { .. } | Error::InvalidArgument { .. })
    ));
    Ok(())
}

fn on_terminal(script: &str) -> ExecRequest {
    let mut request = sh(script);
    request.pty = Some(PtySize { rows: 30, columns: 100 });
    request
}

async fn a_terminal_is_the_sandboxs_own() -> Outcome {
    let guest = guest().await?;
    let mut job =
        guest.exec(on_terminal("tty; stty size; echo $TERM; read x; echo got $x; stty size")).await?;
    let mut text = String::new();
    let mut typed = false;
    while let Some(event) = job.next().await? {
        match event {
            Event::Output { data, .. } => text.push_str(&String::from_utf8_lossy(&data)),
            Event::Exited(exit) => assert_eq!(exit.code, Some(0)),
            _ => {}
        }
        if !typed && text.contains("xterm") {
            typed = true;
            job.resize(PtySize { rows: 40, columns: 120 })?;
            job.stdin.as_mut().ok_or("no terminal")?.write_all(b"hello\n").await?;
        }
    }
    for part in ["/dev/pts/0\r\n", "30 100\r\n", "xterm-256color\r\n", "got hello\r\n", "40 120\r\n"] {
        assert!(text.contains(part), "{text:?}");
    }
    // B77: afterwards an answer, not a crash.
    assert!(matches!(job.resize(PtySize { rows: 1, columns: 1 }), Err(Error::Ended { .. })));
    Ok(())
}

/// B74.
async fn output_of_a_terminal_is_complete() -> Outcome {
    let guest = guest().await?;
    for _ in 0..100 {
        let output = collect(guest.exec(on_terminal("printf ok")).await?).await?;
        assert_eq!((output.stdout.as_slice(), output.exit.code), (&b"ok"[..], Some(0)));
    }
    Ok(())
}

/// B73.
async fn a_terminal_line_that_would_be_cut_is_refused() -> Outcome {
    let guest = guest().await?;
    let mut job = guest.exec(on_terminal("read x; echo ${#x}")).await?;
    let input = job.stdin.as_mut().ok_or("no terminal")?;
    let error = input.write_all("x".repeat(5000).as_bytes()).await.expect_err("5000 bytes in a line");
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    input.write_all(("y".repeat(4000) + "\n").as_bytes()).await?;
    let output = collect(job).await?;
    assert!(output.stdout.ends_with(b"4000\r\n"));
    Ok(())
}

/// B78, B79.
async fn closing_a_terminal_kills_the_job_and_types_nothing() -> Outcome {
    let guest = guest().await?;
    let mut job = guest.exec(on_terminal("nohup sleep 60 & setsid sleep 60 & echo up; exec sh -i")).await?;
    while let Some(event) = job.next().await? {
        if matches!(event, Event::Output { ref data, .. } if data.windows(2).any(|pair| pair == b"up")) {
            break;
        }
    }
    job.stdin.as_mut().ok_or("no terminal")?.write_all(b"touch /tmp/typed").await?;
    drop(job);
    for _ in 0..100 {
        if print(&guest, "ps -e --no-headers | grep -c sleep; ls /tmp").await? == "0\n" {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Err("processes of a closed terminal are still there, or it typed".into())
}

async fn sizes_are_checked() -> Outcome {
    let guest = guest().await?;
    for size in [PtySize { rows: 0, columns: 80 }, PtySize { rows: 24, columns: 0 }] {
        let mut request = sh("true");
        request.pty = Some(size);
        assert!(matches!(guest.exec(request).await, Err(Error::InvalidArgument { .. })));
    }
    Ok(())
}

async fn a_background_terminal() -> Outcome {
    let guest = guest().await?;
    let job = guest.spawn(on_terminal("stty size; read x; echo got $x; stty size")).await?;
    let mut attachment = guest.attach(&job, 0, true).await?;
    guest.resize(&job, PtySize { rows: 50, columns: 132 }).await?;
    attachment.input.as_mut().ok_or("no terminal")?.write_all(b"abc\n").await?;
    let mut text = String::new();
    while let Some(event) = attachment.next().await? {
        if let Event::Output { data, .. } = event {
            text.push_str(&String::from_utf8_lossy(&data));
        }
    }
    assert!(text.contains("got abc\r\n") && text.contains("50 132\r\n"), "{text:?}");
    Ok(())
}
