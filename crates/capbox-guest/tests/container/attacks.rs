//! What code that is root inside tries.

use capbox_guest::client::Error;
use capbox_guest::proto::{self, Cause};
use capbox_guest::stream::{HEADER, Header, Kind, PREAMBLE};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{Outcome, Place, argv, print, run_job, sandbox, sh, tests, until};

tests! {
    code_is_no_client_of_process_1,
    nobody_looks_into_process_1_its_relays_and_its_keepers,
    a_relay_that_could_have_been_looked_into_refuses_to_work,
    a_killed_keeper_takes_its_job_along,
    a_stopped_keeper_goes_on,
    process_1_survives_what_is_sent_to_all,
    a_signal_from_inside_does_not_end_it,
    the_guests_file_stays_as_it_is,
    a_client_that_makes_no_sense_is_given_up,
}

/// What a relay says that cannot work.
fn reason(output: &[u8]) -> Option<String> {
    let frame = output.strip_prefix(&PREAMBLE)?;
    let header = Header::decode(*frame.first_chunk()?)?;
    match (header.kind, proto::Event::decode(frame.get(HEADER..HEADER + header.len)?)) {
        (Kind::Broken, Ok(proto::Event::BootFailed { step, .. })) => {
            Some(String::from_utf8_lossy(&step).into_owned())
        }
        _ => None,
    }
}

async fn code_is_no_client_of_process_1(place: Place) -> Outcome {
    let sandbox = sandbox(place).await?;
    for script in
        ["exec /.capbox/guest relay", "setsid /.capbox/guest relay", "(/.capbox/guest relay &); sleep 0.3"]
    {
        let output = run_job(&sandbox.relay, sh(script)).await?;
        assert_eq!(
            reason(&output.stdout).as_deref(),
            Some("be trusted by process 1"),
            "{script}: {output:?}"
        );
    }
    // The same program from outside is one.
    let (other, _process) = sandbox.container.relay().await?;
    other.info().await?;
    Ok(())
}

async fn nobody_looks_into_process_1_its_relays_and_its_keepers(place: Place) -> Outcome {
    let sandbox = sandbox(place).await?;
    // What each of these takes is what ptrace takes.
    let script = r#"
        relay=$(grep -l capbox-relay /proc/[0-9]*/comm | cut -d/ -f3)
        for pid in 1 $PPID $relay $$; do
            for file in mem environ maps auxv; do
                if head -c 0 /proc/$pid/$file 2>/dev/null && (exec 3</proc/$pid/$file) 2>/dev/null; then echo "$pid $file"; fi
            done
            readlink /proc/$pid/exe && echo $pid exe
            ls /proc/$pid/root/ >/dev/null 2>&1 && echo $pid root
        done | sed "s/^$$ /own /"
        echo "$relay" | wc -w
    "#;
    let text = print(&sandbox.relay, script).await?;
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.contains(&"own mem") && lines.contains(&"own root"), "the test can see something: {text}");
    assert!(
        lines.iter().all(|line| line.starts_with("own ") || *line == "1" || line.starts_with("/bin/")),
        "{text}"
    );
    assert_eq!(lines.last(), Some(&"1"), "there is a relay: {text}");
    Ok(())
}

async fn a_relay_that_could_have_been_looked_into_refuses_to_work(place: Place) -> Outcome {
    let sandbox = sandbox(place).await?;
    print(&sandbox.relay, "cat /.capbox/guest > /tmp/guest; chmod 755 /tmp/guest").await?;
    let output = sandbox.container.outside(&["/tmp/guest", "relay"]).await?.output().await?;
    assert_eq!(reason(&output.stdout).as_deref(), Some("hide from ptrace from the beginning"));
    Ok(())
}

async fn a_killed_keeper_takes_its_job_along(place: Place) -> Outcome {
    let sandbox = sandbox(place).await?;
    let neighbour = sandbox.relay.spawn(argv(&["sleep", "301"])).await?;
    for script in [
        "setsid sleep 300 & (setsid sh -c '(sleep 300 &) ; sleep 300' &) ; echo up; kill -9 $PPID; sleep 300",
        "kill -9 $PPID; exit 0",
    ] {
        let output = run_job(&sandbox.relay, sh(script)).await?;
        assert_eq!(output.exit.cause, Cause::Unknown as u16, "{output:?}");
        assert_ne!(output.exit.status, 0);
        assert_eq!(print(&sandbox.relay, "pidof sleep | wc -w").await?, "1\n", "the neighbour alone is left");
    }
    assert!(
        sandbox
            .relay
            .jobs()
            .await?
            .iter()
            .any(|job| job.id[..] == *neighbour.as_bytes() && job.exit.is_none())
    );
    Ok(())
}

async fn a_stopped_keeper_goes_on(place: Place) -> Outcome {
    let sandbox = sandbox(place).await?;
    let output = run_job(&sandbox.relay, sh("kill -STOP $PPID; echo out; exit 5")).await?;
    assert_eq!((output.text().as_str(), output.code()), ("out\n", Some(5)));
    Ok(())
}

async fn process_1_survives_what_is_sent_to_all(place: Place) -> Outcome {
    let sandbox = sandbox(place).await?;
    sandbox.relay.detach().await?;
    sandbox.relay.spawn(sh("setsid sleep 300 & sleep 300")).await?;
    let killer = run_job(&sandbox.relay, sh("kill -9 -1; sleep 300")).await;
    assert!(matches!(killer, Err(Error::Lost { .. })), "the relay is killed, too: {killer:?}");
    let (relay, _process) = sandbox.container.relay().await?;
    until(async || print(&relay, "pidof sleep; true").await.is_ok_and(|text| text.is_empty())).await;
    Ok(())
}

async fn a_signal_from_inside_does_not_end_it(place: Place) -> Outcome {
    let sandbox = sandbox(place).await?;
    let script = "for s in TERM KILL STOP INT HUP SEGV USR1; do kill -$s 1; done; echo alive";
    assert_eq!(print(&sandbox.relay, script).await?, "alive\n");
    assert_eq!(print(&sandbox.relay, "echo still").await?, "still\n");
    Ok(())
}

async fn the_guests_file_stays_as_it_is(place: Place) -> Outcome {
    let sandbox = sandbox(place).await?;
    let script = "cd /.capbox; (echo x > guest) 2>/dev/null || rm guest 2>/dev/null || mv guest x 2>/dev/null || \
                  chmod 777 guest 2>/dev/null || touch new 2>/dev/null || mount -o remount,rw . 2>/dev/null || echo refused";
    assert_eq!(print(&sandbox.relay, script).await?, "refused\n");
    Ok(())
}

async fn a_client_that_makes_no_sense_is_given_up(place: Place) -> Outcome {
    let sandbox = sandbox(place).await?;
    let frame = |kind: Kind, channel, payload: &[u8]| {
        [&PREAMBLE[..], &Header { kind, len: payload.len(), channel }.encode(), payload].concat()
    };
    let nonsense: [Vec<u8>; 6] = [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        [&PREAMBLE[..], &[0xff; 64]].concat(),
        frame(Kind::Data, 7, b"to nobody"),
        frame(Kind::Event, 0, b""),
        frame(Kind::Request, 1, b""),
        frame(Kind::Request, 0, &proto::Request::Info.encode()),
    ];
    for bytes in nonsense {
        let mut process = sandbox.container.relay_process().await?;
        let mut input = process.stdin.take().ok_or("stdin")?;
        input.write_all(&bytes).await?;
        // It ends although the stream goes on.
        process.wait().await?;
        drop(input);
    }
    // What it must not pass on is refused.
    let mut process = sandbox.container.relay_process().await?;
    let (mut input, mut output) =
        (process.stdin.take().ok_or("stdin")?, process.stdout.take().ok_or("stdout")?);
    let open = proto::FileRequest::Open { path: "/etc/passwd".into(), flags: 1, mode: 0 };
    input.write_all(&frame(Kind::Request, 1, &open.encode())).await?;
    input.write_all(&Header { kind: Kind::Request, len: 4, channel: 2 }.encode()).await?;
    input.write_all(&proto::Request::Files.encode()).await?;
    drop(input);
    let mut answer = Vec::new();
    output.read_to_end(&mut answer).await?;
    assert!(answer.len() > PREAMBLE.len() && answer.len() < 100, "{answer:?}");
    assert_eq!(print(&sandbox.relay, "echo alive").await?, "alive\n");
    Ok(())
}
