//! Commands: what goes in, what comes out, how they end.

use std::time::{Duration, Instant};

use capbox_host::{Cause, Error, Event, ExecRequest, SpawnStage, Stream};
use tokio::io::AsyncWriteExt;

use crate::support::{Outcome, collect, feed, guest, print, run_sh, sh, tests};

tests! {
    Both output_and_exit_code_arrive,
    Both signals_are_not_exit_codes,
    Both a_background_child_does_not_hold_the_call,
    Both arguments_and_environment_arrive_exactly,
    Both the_environment_is_a_base_and_nothing_of_the_caller,
    Both bad_names_of_variables_are_refused,
    Both failures_to_start_say_where,
    Both input_and_output_flow_at_once,
    Both a_child_may_close_its_input_early,
    Both large_input_is_counted_exactly,
    Both large_arguments_travel,
    Both output_waits_for_a_slow_reader,
    Both a_timeout_kills_the_tree_and_keeps_the_output,
    Both dropping_a_job_kills_its_tree,
    Both device_files_of_the_streams_can_be_opened,
    Both many_at_once_do_not_mix,
    Root other_users,
    User other_users_are_refused,
}

async fn output_and_exit_code_arrive() -> Outcome {
    let guest = guest().await?;
    let output = run_sh(&guest, "printf out; printf err >&2; exit 7").await?;
    assert_eq!(output.stdout, b"out");
    assert_eq!(output.stderr, b"err");
    assert_eq!(output.exit.code, Some(7));
    assert_eq!(output.exit.cause, Cause::Exited);
    assert_eq!(output.exit.remaining, 0);
    guest.destroy().await?;
    Ok(())
}

async fn signals_are_not_exit_codes() -> Outcome {
    let guest = guest().await?;
    for (script, signal) in [("kill -9 $$", 9), ("kill -ABRT $$", 6)] {
        let exit = run_sh(&guest, script).await?.exit;
        assert_eq!((exit.code, exit.signal), (None, Some(signal)));
        assert_eq!(exit.shell_code(), 128 + signal);
    }
    Ok(())
}

/// B1, B2: whatever it inherited.
async fn a_background_child_does_not_hold_the_call() -> Outcome {
    let guest = guest().await?;
    for script in [
        "sleep 30 & echo done",
        "sleep 30 </dev/null >/dev/null & echo done",
        "sleep 30 3>&1 >/dev/null 2>&1 & echo done",
        "setsid sleep 30 & echo done",
    ] {
        let start = Instant::now();
        let output = run_sh(&guest, script).await?;
        assert!(start.elapsed() < Duration::from_secs(2), "{script}: {:?}", start.elapsed());
        assert_eq!(output.stdout, b"done\n", "{script}");
        assert_eq!(output.exit.code, Some(0));
        assert_eq!(output.exit.remaining, 1, "{script}");
    }
    // They are found, by job, and can be killed.
    let left: Vec<_> = guest.ps().await?.into_iter().filter(|job| !job.pids.is_empty()).collect();
    assert_eq!(left.len(), 4, "{left:?}");
    for job in left {
        guest.kill(&job.id).await?;
        assert!(matches!(guest.kill(&job.id).await, Err(Error::Ended { .. })));
    }
    assert_eq!(print(&guest, "ps -e --no-headers | grep -c sleep").await?, "0\n");
    Ok(())
}

/// B6, B115, B116, B119.
async fn arguments_and_environment_arrive_exactly() -> Outcome {
    let guest = guest().await?;
    let value = "a b  'q' \"d\" $HOME `x` %s\\ \n last\n";
    let mut request = ExecRequest::new(["sh", "-c", "printf %s \"$X\"; printf %s \"$1\"; pwd", "sh", value]);
    request.env = vec![("X".into(), value.into()), ("MY-KEY".into(), "kept".into()), ("E".into(), "".into())];
    run_sh(&guest, "mkdir -p '/tmp/my dir'").await?;
    request.cwd = Some("/tmp/my dir".into());
    let output = collect(guest.exec(request).await?).await?;
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{value}{value}/tmp/my dir\n"));

    let mut request = ExecRequest::new(["env"]);
    request.env = vec![("MY-KEY".into(), "kept".into()), ("Q".into(), "cuda>=9.1".into())];
    let output = collect(guest.exec(request).await?).await?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("MY-KEY=kept\n") && text.contains("Q=cuda>=9.1\n"), "{text}");
    Ok(())
}

/// B8, B153.
async fn the_environment_is_a_base_and_nothing_of_the_caller() -> Outcome {
    let guest = guest().await?;
    let mut request = ExecRequest::new(["env"]);
    request.env = vec![("FOO".into(), "1".into())];
    let output = collect(guest.exec(request).await?).await?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut names: Vec<_> = text.lines().filter_map(|line| line.split('=').next()).collect();
    names.sort_unstable();
    assert_eq!(names, ["FOO", "HOME", "LANG", "LOGNAME", "PATH", "SHELL", "USER"]);
    Ok(())
}

/// B118, B120.
async fn bad_names_of_variables_are_refused() -> Outcome {
    let guest = guest().await?;
    for (name, value) in [("", "x"), ("A=B", "x"), ("A\nB", "x"), ("A\0", "x"), ("A", "x\0y")] {
        let mut request = sh("true");
        request.env = vec![(name.into(), value.into())];
        let error = guest.exec(request).await.expect_err(name);
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    }
    // A line feed in a value is a value.
    let mut request = sh("printf %s \"$A\"; env | grep -c ^EVIL");
    request.env = vec![("A".into(), "x\nexport EVIL=1".into())];
    let output = collect(guest.exec(request).await?).await?;
    assert_eq!(output.stdout, b"x\nexport EVIL=10\n");
    Ok(())
}

/// B199, B200: what a shell would answer with 127 and 126, and the folder.
async fn failures_to_start_say_where() -> Outcome {
    let guest = guest().await?;
    run_sh(
        &guest,
        "cd /tmp; echo '#!/nope/sh' > interp; chmod +x interp; echo x > plain; mkdir locked; chmod 0 locked",
    )
    .await?;
    let cases: [(&str, Option<&str>, SpawnStage, i32); 6] = [
        ("no-such-program", None, SpawnStage::Program, 2),
        ("/tmp/nope", None, SpawnStage::Program, 2),
        ("/tmp/plain", None, SpawnStage::Program, 13),
        ("/tmp/interp", None, SpawnStage::Interpreter, 2),
        ("true", Some("/nope"), SpawnStage::Cwd, 2),
        ("true", Some("/tmp/locked"), SpawnStage::Cwd, 13),
    ];
    for (program, cwd, stage, errno) in cases {
        let mut request = ExecRequest::new([program]);
        request.cwd = cwd.map(Into::into);
        match guest.exec(request).await.expect_err(program) {
            Error::Spawn { stage: found, source, .. } => {
                assert_eq!((found, source.raw_os_error()), (stage, Some(errno)), "{program} in {cwd:?}");
            }
            other => panic!("{program}: {other:?}"),
        }
    }
    // Nothing of that has hurt.
    assert_eq!(print(&guest, "echo fine").await?, "fine\n");
    Ok(())
}

/// B37: prints before it reads, and 2 MB through `cat`.
async fn input_and_output_flow_at_once() -> Outcome {
    let guest = guest().await?;
    let input: Vec<u8> = (0..2_000_000u32).map(|at| (at / 7) as u8).collect();
    let mut request = ExecRequest::new(["cat"]);
    request.stdin = true;
    let output = feed(guest.exec(request).await?, &input).await?;
    assert!(output.stdout == input);

    let mut request = sh("head -c 200000 /dev/zero; wc -c");
    request.stdin = true;
    let output = feed(guest.exec(request).await?, &input).await?;
    assert!(output.stdout.ends_with(b"2000000\n"));
    Ok(())
}

async fn a_child_may_close_its_input_early() -> Outcome {
    let guest = guest().await?;
    let mut request = sh("exec 0<&-; echo fine");
    request.stdin = true;
    let output = feed(guest.exec(request).await?, &vec![b'x'; 1 << 20]).await?;
    assert_eq!((output.stdout.as_slice(), output.exit.code), (&b"fine\n"[..], Some(0)));
    Ok(())
}

/// B38.
async fn large_input_is_counted_exactly() -> Outcome {
    let guest = guest().await?;
    let mut request = ExecRequest::new(["wc", "-c"]);
    request.stdin = true;
    let output = feed(guest.exec(request).await?, &vec![b'x'; 48 << 20]).await?;
    assert_eq!(output.stdout, b"50331648\n");
    Ok(())
}

async fn large_arguments_travel() -> Outcome {
    let guest = guest().await?;
    let word = "w".repeat(100_000);
    let mut words =
        vec!["sh".to_owned(), "-c".into(), "echo $#; printf %s \"$1\" | wc -c".into(), "sh".into()];
    words.extend(std::iter::repeat_n(word, 10));
    let output = collect(guest.exec(ExecRequest::new(words)).await?).await?;
    assert_eq!(output.stdout, b"10\n100000\n");
    Ok(())
}

/// B54: back-pressure, and every byte.
async fn output_waits_for_a_slow_reader() -> Outcome {
    let guest = guest().await?;
    let mut job = guest.exec(sh("head -c 4194304 /dev/zero")).await?;
    let mut total = 0;
    while let Some(event) = job.next().await? {
        match event {
            Event::Output { stream: Stream::Stdout, data, seq } => {
                assert_eq!(seq, total);
                total += data.len() as u64;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Event::Exited(exit) => assert_eq!(exit.code, Some(0)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(total, 4 << 20);
    Ok(())
}

/// B19, B20, B27, B28, B29.
async fn a_timeout_kills_the_tree_and_keeps_the_output() -> Outcome {
    let guest = guest().await?;
    for script in [
        "printf partial; sleep 60",
        "printf partial; setsid sleep 60 & sleep 60",
        "printf partial; trap '' TERM; while :; do sleep 1; done",
        "printf partial; (sleep 60; echo hello) | sh",
        "printf partial; exec 0<&- >&- 2>&-; (setsid sh -c 'sleep 60 & sleep 60' &) ; sleep 60",
    ] {
        let mut request = sh(script);
        request.timeout = Some(Duration::from_millis(300));
        let start = Instant::now();
        let output = collect(guest.exec(request).await?).await?;
        assert!(start.elapsed() < Duration::from_secs(2), "{script}: {:?}", start.elapsed());
        assert!(start.elapsed() >= Duration::from_millis(300));
        assert_eq!(output.exit.cause, Cause::TimedOut, "{script}");
        assert_eq!(output.stdout, b"partial", "{script}");
        assert_eq!(output.exit.remaining, 0);
        assert_eq!(print(&guest, "ps -e --no-headers | grep -c sleep").await?, "0\n", "{script}");
    }
    Ok(())
}

async fn dropping_a_job_kills_its_tree() -> Outcome {
    let guest = guest().await?;
    let mut job = guest.exec(sh("setsid sleep 61 & echo up; sleep 61")).await?;
    assert!(matches!(job.next().await?, Some(Event::Output { .. })));
    drop(job);
    for _ in 0..100 {
        if print(&guest, "ps -e --no-headers | grep -c sleep").await? == "0\n" {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Err("processes of a dropped job are still there".into())
}

async fn device_files_of_the_streams_can_be_opened() -> Outcome {
    let guest = guest().await?;
    let mut request = sh(
        "cat /dev/stdin; echo out > /dev/stdout; echo err > /dev/stderr; echo null > /dev/null; head -c 4 /dev/zero | wc -c",
    );
    request.stdin = true;
    let output = feed(guest.exec(request).await?, b"in ").await?;
    assert_eq!(output.stdout, b"in out\n4\n");
    assert_eq!(output.stderr, b"err\n");
    Ok(())
}

/// B150.
async fn many_at_once_do_not_mix() -> Outcome {
    let guest = guest().await?;
    let jobs: Vec<_> = (0..40)
        .map(|number| {
            let guest = guest.clone();
            tokio::task::spawn_local(async move {
                let output = run_sh(&guest, &format!("sleep 0.0{}; echo {number}", number % 10)).await?;
                assert_eq!(output.stdout, format!("{number}\n").into_bytes());
                Ok::<_, Error>(())
            })
        })
        .collect();
    for job in jobs {
        job.await??;
    }
    Ok(())
}

async fn other_users() -> Outcome {
    let guest = guest().await?;
    for (user, shown) in [("root", "0:0"), ("user", "1000:1000"), ("1234", "1234:1234"), ("1:2", "1:2")] {
        let mut request = sh("echo $(id -u):$(id -g); grep CapEff /proc/self/status");
        request.user = Some(user.into());
        let output = collect(guest.exec(request).await?).await?;
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{shown}\nCapEff:\t0000000000000000\n"));
    }
    for user in ["65535", "0:65535", "70000", "nobody-of-that-name"] {
        let mut request = sh("true");
        request.user = Some(user.into());
        let error = guest.exec(request).await.expect_err(user);
        assert!(matches!(error, Error::Spawn { stage: SpawnStage::User, .. }), "{error}");
    }
    Ok(())
}

async fn other_users_are_refused() -> Outcome {
    let guest = guest().await?;
    let mut request = sh("true");
    request.user = Some("root".into());
    let error = guest.exec(request).await.expect_err("root");
    assert!(matches!(error, Error::Spawn { stage: SpawnStage::User, .. }), "{error}");
    let mut job = guest.exec(sh("cat")).await?;
    assert!(job.stdin.is_none());
    if let Some(stdin) = &mut job.stdin {
        stdin.write_all(b"x").await?;
    }
    assert_eq!(job.wait().await?.code, Some(0));
    Ok(())
}
