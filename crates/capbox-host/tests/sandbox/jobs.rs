//! Jobs that outlive the call: in the background, on terminals, and how they are killed.

use std::time::{Duration, Instant};

use capbox_host::{Cause, Error, Event, ExecRequest, Guest, Launch, PtySize, Stream};
use tokio::io::AsyncWriteExt;

use crate::support::{Outcome, guest, host, print, sh, tests};

tests! {
    Both the_log_is_replayed_from_any_position,
    Both the_log_keeps_the_newest,
    Both a_follower_sees_what_comes,
    Both input_of_a_background_job,
    Both kill_tells_ended_from_unknown,
    Both kill_takes_a_whole_tree_and_nothing_else,
    Both a_bounded_fork_bomb_dies,
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
        let output = guest.exec(on_terminal("printf ok")).await?.collect(100).await?;
        assert_eq!((output.stdout.bytes.as_slice(), output.exit.code), (&b"ok"[..], Some(0)));
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
    let output = job.collect(1 << 20).await?;
    assert!(output.stdout.bytes.ends_with(b"4000\r\n"));
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
