//! Commands.

use std::time::Duration;

use capbox_guest::client::{Error, Event, Job};
use capbox_guest::proto::{Cause, Exec, Refusal, Stage, Stream};
use tokio::io::AsyncWriteExt;

use crate::support::{
    Outcome, Place, Sandbox, argv, collect, contain, print, run_job, sandbox, sandbox_with, sh, tests, until,
};

tests! {
    results_are_exact,
    what_cannot_be_started_says_where,
    input_ends,
    input_that_nobody_reads_is_no_error,
    b54_a_slow_reader_blocks_nobody_and_loses_nothing,
    a_large_request_is_taken_whole,
    users_are_those_of_the_image,
    b74_the_last_output_of_a_terminal_is_kept,
    b73_a_line_that_a_terminal_would_cut_is_refused,
    a_terminal_can_be_resized,
    b70_background_output_is_found_again,
    b27_a_timeout_reaches_new_sessions,
    b30_a_kill_is_over_when_all_is_gone,
    processes_left_behind_are_told_and_can_be_killed,
    a_dropped_job_is_killed,
    a_fork_bomb_is_killed,
    many_at_a_time,
}

async fn results_are_exact(place: Place) -> Outcome {
    let sandbox = sandbox(place).await?;
    let output = run_job(&sandbox.relay, sh("echo out; echo err >&2; exit 7")).await?;
    assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
    assert_eq!((output.code(), output.exit.cause, output.exit.remaining), (Some(7), Cause::Own as u16, 0));
    let output = run_job(&sandbox.relay, sh("kill -TERM $$")).await?;
    assert_eq!(output.exit.status & 0x7f, 15);
    let mut exec = sh("echo \"$IMAGE,$A,$HOME\"; pwd; id -u");
    exec.env = vec![("A".into(), " x\n".into())];
    exec.cwd = "/etc".into();
    assert_eq!(run_job(&sandbox.relay, exec).await?.text(), "a b, x\n,/root\n/etc\n0\n");
    Ok(())
}

async fn what_cannot_be_started_says_where(place: Place) -> Outcome {
    let sandbox = sandbox(place).await?;
    let missing = sandbox.relay.exec(argv(&["nothing-like-this"])).await;
    assert!(matches!(missing, Err(Error::Spawn { stage: Stage::Program, errno: 2 })), "{missing:?}");
    let cwd = sandbox.relay.exec(Exec { cwd: "/nope".into(), ..argv(&["true"]) }).await;
    assert!(matches!(cwd, Err(Error::Spawn { stage: Stage::Cwd, errno: 2 })), "{cwd:?}");
    let user = sandbox.relay.exec(Exec { user: "nobody-here".into(), ..argv(&["true"]) }).await;
    assert!(matches!(user, Err(Error::Spawn { stage: Stage::User, .. })), "{user:?}");
    let guest = sandbox.relay.exec(Exec { user: "65535".into(), ..argv(&["true"]) }).await;
    assert!(matches!(guest, Err(Error::Spawn { stage: Stage::User, .. })), "{guest:?}");
    assert_eq!(sandbox.relay.kill("nope").await, Err(Error::Refused(Refusal::NotFound)));
    Ok(())
}

async fn input_ends(place: Place) -> Outcome {
    let sandbox = sandbox(place).await?;
    let mut job = sandbox.relay.exec(Exec { stdin: true, ..argv(&["cat"]) }).await?;
    let mut stdin = job.stdin.take().ok_or("no input")?;
    let sent: Vec<u8> = (0..3_000_000u32).map(|at| (at * 7 % 251) as u8).collect();
    let content = sent.clone();
    let feeding = tokio::spawn(async move {
        stdin.write_all(&content).await?;
        stdin.shutdown().await
    });
    let got = collect(job).await?;
    feeding.await??;
    assert!(got.stdout == sent, "{} of {} bytes", got.stdout.len(), sent.len());
    Ok(())
}

async fn input_that_nobody_reads_is_no_error(place: Place) -> Outcome {
    let sandbox = sandbox(place).await?;
    let mut job =
        sandbox.relay.exec(Exec { stdin: true, ..sh("exec <&-; echo deaf; sleep 0.2; exit 4") }).await?;
    let mut stdin = job.stdin.take().ok_or("no input")?;
    let feeding = tokio::spawn(async move { stdin.write_all(&vec![0; 3_000_000]).await });
    let output = collect(job).await?;
    assert_eq!((output.text().as_str(), output.code()), ("deaf\n", Some(4)));
    let error = feeding.await?.expect_err("nobody has read it");
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
    Ok(())
}

async fn b54_a_slow_reader_blocks_nobody_and_loses_nothing(place: Place) -> Outcome {
    const LEN: usize = 20_000_000;
    let sandbox = sandbox(place).await?;
    let script = format!("head -c {LEN} /dev/zero; echo end >&2");
    let slow = sandbox.relay.exec(sh(&script)).await?;
    // It fills its window meanwhile, and waits.
    for _ in 0..20 {
        assert_eq!(print(&sandbox.relay, "echo quick").await?, "quick\n");
    }
    let output = collect(slow).await?;
    assert_eq!((output.stdout.len(), &output.stderr[..]), (LEN, &b"end\n"[..]));
    assert!(output.stdout.iter().all(|byte| *byte == 0));
    Ok(())
}

async fn a_large_request_is_taken_whole(place: Place) -> Outcome {
    let sandbox = sandbox(place).await?;
    let mut exec = sh("for i in 1 2 3; do eval \"echo \\${#V$i}\"; done");
    exec.env = (1..4)
        .map(|at| (format!("V{at}").as_str().into(), "x".repeat(100_000 + at).as_str().into()))
        .collect();
    assert_eq!(run_job(&sandbox.relay, exec).await?.text(), "100001\n100002\n100003\n");
    Ok(())
}

async fn users_are_those_of_the_image(place: Place) -> Outcome {
    let mut contain = contain();
    contain.user = "node".into();
    let Sandbox { relay, process: _process, container: _container } = &sandbox_with(place, contain).await?;
    let who =
        "id -u; id -g; id -G; echo $HOME; grep -E 'Cap(Prm|Eff|Amb)' /proc/self/status | tr -d '\\t\\n'";
    assert_eq!(
        print(relay, who).await?,
        "1000\n1000\n1000 2000\n/home/node\n\
         CapPrm:0000000000000000CapEff:0000000000000000CapAmb:0000000000000000"
    );
    let root =
        run_job(relay, Exec { user: "0".into(), ..sh("id -u; id -g; echo $HOME; chown 5 /tmp && echo may") })
            .await?;
    assert_eq!(root.text(), "0\n0\n/root\nmay\n");
    let numbers =
        run_job(relay, Exec { user: "77:88".into(), ..sh("id -u; id -g; id -G; echo $HOME") }).await?;
    assert_eq!(numbers.text(), "77\n88\n88\n/\n");
    let group = run_job(relay, Exec { user: "node:extra".into(), ..sh("id -u; id -g") }).await?;
    assert_eq!(group.text(), "1000\n2000\n");
    Ok(())
}

fn terminal(script: &str) -> Exec {
    Exec { pty: Some((24, 80)), ..sh(script) }
}

async fn b74_the_last_output_of_a_terminal_is_kept(place: Place) -> Outcome {
    let sandbox = sandbox(place).await?;
    for _ in 0..50 {
        let output = collect(sandbox.relay.exec(terminal("printf ok; exit 3")).await?).await?;
        assert_eq!((output.text().as_str(), output.code()), ("ok", Some(3)));
    }
    Ok(())
}

async fn b73_a_line_that_a_terminal_would_cut_is_refused(place: Place) -> Outcome {
    let sandbox = sandbox(place).await?;
    let mut job = sandbox.relay.exec(terminal("stty -echo; echo ready; read line; echo ${#line}")).await?;
    let mut stdin = job.stdin.take().ok_or("no keyboard")?;
    wait_for(&mut job, "ready").await?;
    let error = async {
        stdin.write_all(&[b'x'; 5000]).await?;
        stdin.flush().await
    };
    assert_eq!(error.await.expect_err("too long").kind(), std::io::ErrorKind::InvalidInput);
    stdin.write_all(&[b'y'; 4000]).await?;
    stdin.write_all(b"\n").await?;
    let output = collect(job).await?;
    assert!(output.text().contains("4000"), "{}", output.text());
    Ok(())
}

async fn a_terminal_can_be_resized(place: Place) -> Outcome {
    let sandbox = sandbox(place).await?;
    let script = "trap 'stty size; exit' WINCH; stty size; while :; do sleep 0.05; done";
    let mut job = sandbox.relay.exec(terminal(script)).await?;
    wait_for(&mut job, "24 80").await?;
    job.terminal().resize((50, 132));
    let output = collect(job).await?;
    assert!(output.text().contains("50 132"), "{}", output.text());
    Ok(())
}

/// Reads until something has been printed.
async fn wait_for(job: &mut Job, text: &str) -> Outcome {
    let mut seen = String::new();
    while !seen.contains(text) {
        match job.next().await? {
            Some(Event::Output { data, .. }) => seen += &String::from_utf8_lossy(&data),
            other => return Err(format!("{other:?} after {seen:?}").into()),
        }
    }
    Ok(())
}

async fn b70_background_output_is_found_again(place: Place) -> Outcome {
    let sandbox = sandbox(place).await?;
    let script = "echo one; read line; echo \"$line\" >&2; cat; exit 9";
    let id = sandbox.relay.spawn(Exec { stdin: true, ..sh(script) }).await?;
    let jobs = sandbox.relay.jobs().await?;
    assert_eq!((jobs.len(), &jobs[0].id[..], jobs[0].background), (1, id.as_bytes(), true));
    // From another process, as another client would.
    let (other, _process) = sandbox.container.relay().await?;
    let mut attached = other.attach(&id, 0, true).await?;
    let mut input = attached.input.take().ok_or("no input")?;
    input.write_all(b"two\nthree").await?;
    input.shutdown().await?;
    other.close_stdin(&id).await?;
    let (mut text, mut end) = (Vec::new(), 0);
    while let Some(event) = attached.next().await? {
        match event {
            Event::Output { seq, stream, data } => {
                assert_eq!(seq, end);
                end += data.len() as u64;
                text.push((stream, data));
            }
            Event::Exited(exit) => assert_eq!(exit.status >> 8, 9),
            other => return Err(format!("{other:?}").into()),
        }
    }
    let of = |wanted| -> Vec<u8> {
        text.iter().filter(|(stream, _)| *stream == wanted).flat_map(|(_, data)| data.to_vec()).collect()
    };
    assert_eq!((of(Stream::Stdout), of(Stream::Stderr)), (b"one\nthree".to_vec(), b"two\n".to_vec()));
    let mut again = sandbox.relay.attach(&id, 4, false).await?;
    assert!(matches!(again.next().await?, Some(Event::Output { seq: 4, .. })));
    assert_eq!(sandbox.relay.kill(&id).await, Err(Error::Refused(Refusal::Ended)));
    Ok(())
}

async fn b27_a_timeout_reaches_new_sessions(place: Place) -> Outcome {
    let sandbox = sandbox(place).await?;
    let script = "printf partial; setsid sh -c 'sleep 300 & setsid sleep 300' & sleep 300";
    let output = run_job(&sandbox.relay, Exec { timeout: 300, ..sh(script) }).await?;
    assert_eq!((output.text().as_str(), output.exit.cause), ("partial", Cause::TimedOut as u16));
    assert_eq!(print(&sandbox.relay, "pidof sleep; true").await?, "");
    Ok(())
}

async fn b30_a_kill_is_over_when_all_is_gone(place: Place) -> Outcome {
    let sandbox = sandbox(place).await?;
    let neighbour = sandbox.relay.spawn(argv(&["sleep", "301"])).await?;
    let script = "trap '' TERM; for i in 1 2 3; do (setsid sh -c '(sleep 300 &) ; sleep 300' &) ; done; echo up; sleep 300";
    let mut job = sandbox.relay.exec(sh(script)).await?;
    wait_for(&mut job, "up").await?;
    until(async || sandbox.relay.jobs().await.is_ok_and(|jobs| jobs.iter().any(|job| job.pids.len() >= 7)))
        .await;
    sandbox.relay.kill(job.id()).await?;
    let left = print(&sandbox.relay, "pidof sleep | wc -w").await?;
    assert_eq!(left, "1\n", "the neighbour alone is left");
    let output = collect(job).await?;
    assert_eq!((output.exit.cause, output.exit.remaining), (Cause::Killed as u16, 0));
    sandbox.relay.signal(&neighbour, 15).await?;
    let mut attached = sandbox.relay.attach(&neighbour, 0, false).await?;
    assert!(matches!(attached.next().await?, Some(Event::Exited(exit)) if exit.status & 0x7f == 15));
    Ok(())
}

async fn processes_left_behind_are_told_and_can_be_killed(place: Place) -> Outcome {
    let sandbox = sandbox(place).await?;
    let job = sandbox
        .relay
        .exec(sh("(setsid sleep 300 >/dev/null 2>&1 &) ; (sleep 300 &) ; echo here; exit 3"))
        .await?;
    let id = job.id().to_owned();
    let output = collect(job).await?;
    assert_eq!((output.text().as_str(), output.code(), output.exit.remaining), ("here\n", Some(3), 2));
    sandbox.relay.kill(&id).await?;
    assert_eq!(print(&sandbox.relay, "pidof sleep; true").await?, "");
    assert_eq!(sandbox.relay.kill(&id).await, Err(Error::Refused(Refusal::Ended)));
    Ok(())
}

async fn a_dropped_job_is_killed(place: Place) -> Outcome {
    let sandbox = sandbox(place).await?;
    let mut job =
        sandbox.relay.exec(Exec { stdin: true, ..sh("setsid sleep 300 & echo up; sleep 300") }).await?;
    wait_for(&mut job, "up").await?;
    let mut stdin = job.stdin.take().ok_or("no input")?;
    drop(job);
    until(async || print(&sandbox.relay, "pidof sleep; true").await.is_ok_and(|text| text.is_empty())).await;
    assert_eq!(stdin.write(b"x").await.expect_err("it is gone").kind(), std::io::ErrorKind::BrokenPipe);
    Ok(())
}

async fn a_fork_bomb_is_killed(place: Place) -> Outcome {
    let sandbox = sandbox(place).await?;
    let script = "ulimit -u 200; echo up; bomb() { bomb | bomb & }; while :; do bomb 2>/dev/null; done";
    let mut job = sandbox.relay.exec(Exec { user: "54321".into(), ..sh(script) }).await?;
    wait_for(&mut job, "up").await?;
    tokio::time::sleep(Duration::from_millis(200)).await;
    match sandbox.relay.kill(job.id()).await {
        // A shell that cannot fork ends.
        Ok(()) | Err(Error::Refused(Refusal::Ended)) => {}
        Err(error) => return Err(error.into()),
    }
    let jobs = sandbox.relay.jobs().await?;
    assert!(jobs.iter().all(|job| job.pids.is_empty()), "{jobs:?}");
    drop(job);
    assert_eq!(print(&sandbox.relay, "echo alive").await?, "alive\n");
    Ok(())
}

async fn many_at_a_time(place: Place) -> Outcome {
    let sandbox = sandbox(place).await?;
    let jobs: Vec<_> = (0..40)
        .map(|number| {
            let relay = sandbox.relay.clone();
            tokio::spawn(
                async move { print(&relay, &format!("sleep 0.0{}; echo {number}", number % 10)).await },
            )
        })
        .collect();
    for (number, job) in jobs.into_iter().enumerate() {
        assert_eq!(job.await??, format!("{number}\n"));
    }
    Ok(())
}
