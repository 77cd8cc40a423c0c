//! Commands.

use capbox_guest::client::{Error, Event};
use capbox_guest::proto::{Cause, Exec, Refusal, Stage};
use tokio::io::AsyncWriteExt;

use crate::support::*;

tests! {
    results_are_exact,
    what_cannot_be_started_says_where,
    input_ends,
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
    let unknown = sandbox.relay.kill("nope").await;
    assert_eq!(unknown, Err(Error::Refused(Refusal::NotFound)));
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
    let mut got = Vec::new();
    while let Some(event) = job.next().await? {
        if let Event::Output { data, .. } = event {
            got.extend_from_slice(&data);
        }
    }
    feeding.await??;
    assert!(got == sent, "{} of {} bytes", got.len(), sent.len());
    Ok(())
}
