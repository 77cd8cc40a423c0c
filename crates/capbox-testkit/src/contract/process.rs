//! Processes that outlive their call: started, found again, joined, replayed, killed.

use std::time::{Duration, Instant};

use capbox_core::api::{AnySandbox, Event, ExitStatus, Killed, Process, ProcessState, Signal};
use capbox_core::capability::flags::{KillReaches, OutputRetention};
use capbox_core::capability::{Capability, cap};
use capbox_core::error::ErrorKind;
use capbox_core::spec::Stdin;

use super::exec::SOON;
use super::{Ask, Case, Contract, cases};
use crate::bench::{Bench, PATIENCE, alive, follow, get, gone, mark, starts, within};
use crate::check::{Check, Fault, fails};
use crate::{ensure, ensure_eq};

impl Contract for cap::Background {
    const ASK: Ask = Ask::Call(|sandbox| {
        Box::pin(async { sandbox.spawn("touch refused-background").background().await.map(drop) })
    });
    const CASES: &'static [Case] = cases![
        it_goes_on_without_its_handle,
        starting_returns_at_once,
        ids_are_distinct_and_no_pids,
        another_command_sees_it
    ];
}

/// Wait until `file` is there.
async fn appears(sandbox: &AnySandbox, file: &str) -> Check {
    let begin = Instant::now();
    while get(sandbox, file).await?.is_none() {
        ensure!(begin.elapsed() < PATIENCE, "`{file}` does not appear");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

async fn it_goes_on_without_its_handle(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    drop(sandbox.spawn("sleep 0.3; echo done > bg-done").background().await?);
    appears(&sandbox, "bg-done").await
}

async fn starting_returns_at_once(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    let spawn = sandbox.spawn("sleep 30").background();
    within(SOON, "starting a long command", async { spawn.await }).await??;
    Ok(())
}

async fn ids_are_distinct_and_no_pids(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    let mut ids = Vec::new();
    for _ in 0..5 {
        let process = sandbox.spawn("true").background().await?;
        let id = process.id().to_string();
        ensure!(!id.is_empty() && id.parse::<u32>().is_err(), "b32: `{id}` is a bare pid");
        ensure!(!ids.contains(&id), "b32: `{id}` is used twice");
        ids.push(id);
    }
    Ok(())
}

async fn another_command_sees_it(t: &Bench) -> Check {
    t.needs_processes()?;
    let (sandbox, mark) = (t.sandbox().await?, mark());
    let text = format!("sleep {mark}");
    sandbox.spawn(text.as_str()).background().await?;
    starts(&sandbox, &mark).await
}

impl Contract for cap::ExecList {
    const ASK: Ask = Ask::Call(|sandbox| Box::pin(async { sandbox.processes().await.map(drop) }));
    const CASES: &'static [Case] = cases![
        it_shows_what_runs_and_how_it_ended,
        an_empty_list_is_for_a_new_sandbox,
        a_list_of_the_gone_fails
    ];
}

async fn state(sandbox: &AnySandbox, id: &capbox_core::api::ProcessId) -> Check<Option<ProcessState>> {
    let list = sandbox.processes().await?;
    Ok(list.into_iter().find(|info| info.id == *id).map(|info| info.state))
}

/// Wait until the list says that the process ended; gives how.
async fn ends(sandbox: &AnySandbox, id: &capbox_core::api::ProcessId) -> Check<ExitStatus> {
    let begin = Instant::now();
    loop {
        match state(sandbox, id).await? {
            Some(ProcessState::Exited(status)) => return Ok(status),
            Some(_) => {}
            None => return Err(Fault::failed("a process that ended lately is not listed")),
        }
        ensure!(begin.elapsed() < SOON, "the list says that `{id}` runs, long after it ended");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn it_shows_what_runs_and_how_it_ended(t: &Bench) -> Check {
    t.needs(&[Capability::Background])?;
    let sandbox = t.sandbox().await?;
    let text = "while ! test -e list-go; do sleep 0.05; done; exit 7";
    let process = sandbox.spawn(text).background().await?;
    let list = sandbox.processes().await?;
    let Some(info) = list.iter().find(|info| info.id == *process.id()) else {
        return Err(Fault::failed(format!("`{}` is not in the list: {list:?}", process.id())));
    };
    ensure_eq!(info.state, ProcessState::Running, "the state of a process that runs");
    ensure!(info.background, "a background process is not listed as one");
    ensure!(info.command.contains("list-go"), "the command is listed as `{}`", info.command);
    crate::bench::put(&sandbox, "list-go", "").await?;
    ensure_eq!(ends(&sandbox, process.id()).await?, ExitStatus::Exited(7), "how it ended");
    Ok(())
}

async fn an_empty_list_is_for_a_new_sandbox(t: &Bench) -> Check {
    let sandbox = t.create(t.spec()).await?;
    let list = sandbox.processes().await?;
    ensure!(list.iter().all(|info| !info.background), "a new sandbox has background processes: {list:?}");
    Ok(())
}

async fn a_list_of_the_gone_fails(t: &Bench) -> Check {
    let sandbox = t.create(t.spec()).await?;
    sandbox.destroy().await?;
    fails(sandbox.processes().await, &[ErrorKind::SandboxGone, ErrorKind::NotFound])?;
    Ok(())
}

impl Contract for cap::Attach {
    const ASK: Ask = Ask::Call(|sandbox| Box::pin(async { sandbox.process("p").attach().await.map(drop) }));
    const CASES: &'static [Case] = cases![
        it_follows_from_now_on,
        b70_from_another_client,
        input_can_be_joined_too,
        leaving_does_not_end_it,
        unknown_ids_are_not_found,
    ];
}

/// A background process that prints a line for each turn until `file` is there and exits with 5, once it has
/// printed a few.
async fn ticking(sandbox: &AnySandbox, file: &str) -> Check<Process> {
    let text = format!(
        "i=0; while ! test -e {file}; do i=$((i+1)); echo tick$i; test $i = 3 && touch {file}-3; sleep 0.05; done; exit 5"
    );
    let process = sandbox.spawn(text.as_str()).background().await?;
    appears(sandbox, &format!("{file}-3")).await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    Ok(process)
}

/// Attach, see it tick, let it end.
async fn joined(here: &AnySandbox, id: &capbox_core::api::ProcessId, file: &str) -> Check {
    let mut process = here.process(id).attach().await?;
    let first = within(SOON, "output after attaching", process.next()).await??;
    let Some(Event::Output { bytes, .. }) = first else {
        return Err(Fault::failed(format!("the first event is {first:?}")));
    };
    ensure!(!bytes.starts_with(b"tick1\n"), "attaching shows output from before it");
    crate::bench::put(here, file, "").await?;
    let exit = within(SOON, "the end", process.wait()).await??;
    ensure_eq!(exit.status, ExitStatus::Exited(5), "the end, as seen after attaching");
    Ok(())
}

async fn it_follows_from_now_on(t: &Bench) -> Check {
    t.needs(&[Capability::Background])?;
    let sandbox = t.sandbox().await?;
    let process = ticking(&sandbox, "attach-go").await?;
    joined(&sandbox, process.id(), "attach-go").await
}

async fn b70_from_another_client(t: &Bench) -> Check {
    t.needs(&[Capability::Background, Capability::Connect])?;
    let sandbox = t.sandbox().await?;
    let process = ticking(&sandbox, "attach-2-go").await?;
    let there = t.another_client()?.connect(sandbox.id()).await?;
    joined(&there, process.id(), "attach-2-go").await
}

async fn input_can_be_joined_too(t: &Bench) -> Check {
    t.needs(&[Capability::Background, Capability::Stdin])?;
    let sandbox = t.sandbox().await?;
    let spawn = sandbox.spawn("while read -r x; do echo \"got $x\"; done; exit 6").stdin(Stdin::Open);
    let process = spawn.background().await?;
    let mut joined = sandbox.process(process.id()).attach().await?;
    joined.write(b"word\n").await?;
    let first = within(SOON, "the answer", joined.next()).await??;
    let Some(Event::Output { bytes, .. }) = first else {
        return Err(Fault::failed(format!("instead of the answer: {first:?}")));
    };
    ensure_eq!(&bytes[..], b"got word\n", "the answer to the input of a joined process");
    joined.close_stdin().await?;
    let exit = within(SOON, "the end after the input's", joined.wait()).await??;
    ensure_eq!(exit.status, ExitStatus::Exited(6), "the end");
    Ok(())
}

async fn leaving_does_not_end_it(t: &Bench) -> Check {
    t.needs(&[Capability::Background])?;
    let sandbox = t.sandbox().await?;
    let process = sandbox.spawn("sleep 0.5; touch attach-left").background().await?;
    drop(sandbox.process(process.id()).attach().await?);
    appears(&sandbox, "attach-left").await
}

async fn unknown_ids_are_not_found(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    fails(sandbox.process("nope").attach().await, &[ErrorKind::NotFound])?;
    Ok(())
}

impl Contract for cap::Replay {
    const ASK: Ask = Ask::Call(|sandbox| Box::pin(async { sandbox.process("p").replay(0).await.map(drop) }));
    const CASES: &'static [Case] = cases![
        b59_all_output_without_a_gap,
        from_any_position,
        following_goes_on_to_the_end,
        logs_end_where_the_output_ends_now,
        both_streams_are_kept,
        b70_replayed_from_another_client,
        unknown_ids_cannot_be_replayed,
    ];
}

/// What `seq 1 COUNT` prints.
fn numbers(count: usize) -> Vec<u8> {
    (1..=count).flat_map(|n| format!("{n}\n").into_bytes()).collect()
}

/// A background process that prints the numbers to `COUNT` and exits with 5, once it has ended.
async fn counted(sandbox: &AnySandbox, count: usize) -> Check<Process> {
    let file = format!("counted-{count}");
    let text = format!("seq 1 {count}; touch {file}; exit 5");
    let process = sandbox.spawn(text.as_str()).background().await?;
    appears(sandbox, &file).await?;
    Ok(process)
}

/// Fail unless what was followed from `after` on is exactly that part of `expected`, but for what is reported as
/// no longer kept by a provider that keeps a part only.
fn is_rest(t: &Bench, followed: &crate::bench::Followed, expected: &[u8], after: usize) -> Check {
    let skipped = usize::try_from(followed.skipped).map_err(Fault::failed)?;
    if t.flags().output_retention == OutputRetention::Full {
        ensure_eq!(skipped, 0, "bytes that are no longer kept although everything is");
    }
    let size = expected.len() - after;
    ensure_eq!(followed.bytes.len() + skipped, size, "the size of the replayed output from {after} on");
    ensure!(followed.bytes == expected[after + skipped..], "the replayed output from {after} on is altered");
    Ok(())
}

async fn b59_all_output_without_a_gap(t: &Bench) -> Check {
    t.needs(&[Capability::Background])?;
    let (sandbox, count) = (t.sandbox().await?, 2000);
    let process = counted(&sandbox, count).await?;
    let mut replayed = sandbox.process(process.id()).replay(0).await?;
    let followed = within(SOON, "the replay", follow(&mut replayed, 0)).await??;
    is_rest(t, &followed, &numbers(count), 0)?;
    ensure_eq!(followed.exit.map(|exit| exit.status), Some(ExitStatus::Exited(5)), "the replayed end");
    Ok(())
}

async fn from_any_position(t: &Bench) -> Check {
    t.needs(&[Capability::Background])?;
    let (sandbox, count) = (t.sandbox().await?, 1000);
    let process = counted(&sandbox, count).await?;
    let expected = numbers(count);
    for after in [1, 2, 777, expected.len() - 1, expected.len()] {
        let mut replayed = sandbox.process(process.id()).replay(after as u64).await?;
        let followed = within(SOON, "the replay", follow(&mut replayed, after as u64)).await??;
        is_rest(t, &followed, &expected, after)?;
    }
    Ok(())
}

async fn following_goes_on_to_the_end(t: &Bench) -> Check {
    t.needs(&[Capability::Background])?;
    let sandbox = t.sandbox().await?;
    let text = "seq 1 50; while ! test -e replay-go; do sleep 0.05; done; seq 51 100; exit 5";
    let process = sandbox.spawn(text).background().await?;
    let mut replayed = sandbox.process(process.id()).replay(0).await?;
    let first = within(SOON, "the first part", replayed.next()).await??;
    let Some(Event::Output { position: 0, bytes, .. }) = first else {
        return Err(Fault::failed(format!("the first event is {first:?}")));
    };
    crate::bench::put(&sandbox, "replay-go", "").await?;
    let rest = within(SOON, "the rest", follow(&mut replayed, bytes.len() as u64)).await??;
    let all = [&bytes[..], &rest.bytes].concat();
    ensure!(all == numbers(100), "what was there and what came are not the whole: {} bytes", all.len());
    ensure_eq!(rest.exit.map(|exit| exit.status), Some(ExitStatus::Exited(5)), "the end");
    Ok(())
}

async fn logs_end_where_the_output_ends_now(t: &Bench) -> Check {
    t.needs(&[Capability::Background])?;
    let sandbox = t.sandbox().await?;
    let process = sandbox.spawn("seq 1 20; touch logs-there; sleep 30").background().await?;
    appears(&sandbox, "logs-there").await?;
    // What the process has written may still be on its way.
    let begin = Instant::now();
    loop {
        let mut logs = sandbox.process(process.id()).logs(0).await?;
        let followed = within(SOON, "the logs of a living process", follow(&mut logs, 0)).await??;
        ensure!(followed.exit.is_none(), "a living process is said to have ended");
        if followed.bytes.len() as u64 + followed.skipped >= 51 || begin.elapsed() > SOON {
            return is_rest(t, &followed, &numbers(20), 0);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn both_streams_are_kept(t: &Bench) -> Check {
    t.needs(&[Capability::Background])?;
    let sandbox = t.sandbox().await?;
    let text = "echo out; echo err >&2; touch both-there";
    let process = sandbox.spawn(text).background().await?;
    appears(&sandbox, "both-there").await?;
    let mut replayed = sandbox.process(process.id()).replay(0).await?;
    let followed = within(SOON, "the replay", follow(&mut replayed, 0)).await??;
    let text = String::from_utf8_lossy(&followed.bytes).into_owned();
    ensure!(text.contains("out\n") && text.contains("err\n") && text.len() == 8, "both streams: {text:?}");
    Ok(())
}

async fn b70_replayed_from_another_client(t: &Bench) -> Check {
    t.needs(&[Capability::Background, Capability::Connect])?;
    let sandbox = t.sandbox().await?;
    let process = counted(&sandbox, 300).await?;
    let there = t.another_client()?.connect(sandbox.id()).await?;
    let mut replayed = there.process(process.id()).replay(0).await?;
    let followed = within(SOON, "the replay", follow(&mut replayed, 0)).await??;
    is_rest(t, &followed, &numbers(300), 0)
}

async fn unknown_ids_cannot_be_replayed(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    fails(sandbox.process("nope").replay(0).await, &[ErrorKind::NotFound])?;
    fails(sandbox.process("nope").logs(0).await, &[ErrorKind::NotFound])?;
    Ok(())
}

impl Contract for cap::KillProcess {
    const ASK: Ask = Ask::Call(|sandbox| Box::pin(async { sandbox.process("p").kill().await.map(drop) }));
    const CASES: &'static [Case] = cases![
        b30_when_it_returns_all_is_gone,
        b28_it_cannot_be_ignored,
        b31_what_ended_and_what_never_was,
        its_end_says_killed,
        neighbours_live_on,
        a_followed_process_can_be_killed,
    ];
}

async fn b30_when_it_returns_all_is_gone(t: &Bench) -> Check {
    t.needs(&[Capability::Background])?;
    let sandbox = t.sandbox().await?;
    if !t.inside().processes {
        let process = sandbox.spawn("touch kill-began; sleep 1; touch kill-late").background().await?;
        appears(&sandbox, "kill-began").await?;
        ensure_eq!(process.kill().await?, Killed::Stopped, "the kill of a process that runs");
        t.pass(Duration::from_millis(1500)).await;
        ensure_eq!(get(&sandbox, "kill-late").await?, None, "what a killed process did later");
        return Ok(());
    }
    let (child, group, session) = (mark(), mark(), mark());
    let text =
        format!("sleep {group} & setsid sleep {session} & sh -c 'sleep {child}; touch kill-late'; true");
    let process = sandbox.spawn(text.as_str()).background().await?;
    for mark in [&child, &group, &session] {
        starts(&sandbox, mark).await?;
    }
    ensure_eq!(process.kill().await?, Killed::Stopped, "the kill of a process that runs");
    let reaches = t.flags().kill_reaches;
    let mut left = Vec::new();
    if reaches >= KillReaches::Group {
        left.extend(alive(&sandbox, &child).await?);
        left.extend(alive(&sandbox, &group).await?);
    }
    if reaches >= KillReaches::Tree {
        left.extend(alive(&sandbox, &session).await?);
    }
    ensure!(left.is_empty(), "the kill has returned, and this is alive: {left:?}");
    Ok(())
}

async fn b28_it_cannot_be_ignored(t: &Bench) -> Check {
    t.needs(&[Capability::Background])?;
    t.needs_processes()?;
    let (sandbox, mark) = (t.sandbox().await?, mark());
    let text = format!("trap '' TERM INT HUP; touch stubborn; while :; do sleep 0.1; done; echo {mark}");
    let process = sandbox.spawn(text.as_str()).background().await?;
    appears(&sandbox, "stubborn").await?;
    within(Duration::from_secs(15), "the kill", process.kill()).await??;
    gone(&sandbox, &mark, Duration::ZERO).await
}

async fn b31_what_ended_and_what_never_was(t: &Bench) -> Check {
    t.needs(&[Capability::Background])?;
    let sandbox = t.sandbox().await?;
    fails(sandbox.process("nope").kill().await, &[ErrorKind::NotFound])?;
    let process = sandbox.spawn("sleep 30").background().await?;
    ensure_eq!(process.kill().await?, Killed::Stopped, "the first kill");
    ensure_eq!(process.kill().await?, Killed::AlreadyExited, "the second kill");
    let process = sandbox.spawn("touch b31-ended").background().await?;
    appears(&sandbox, "b31-ended").await?;
    if t.can(Capability::ExecList) {
        ends(&sandbox, process.id()).await?;
    } else {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    ensure_eq!(process.kill().await?, Killed::AlreadyExited, "the kill of what ended by itself");
    Ok(())
}

async fn its_end_says_killed(t: &Bench) -> Check {
    t.needs(&[Capability::Background, Capability::ExecList])?;
    let sandbox = t.sandbox().await?;
    let process = sandbox.spawn("sleep 30").background().await?;
    process.kill().await?;
    ensure_eq!(ends(&sandbox, process.id()).await?, ExitStatus::Killed, "how a killed process ended");
    Ok(())
}

async fn neighbours_live_on(t: &Bench) -> Check {
    t.needs(&[Capability::Background])?;
    let sandbox = t.sandbox().await?;
    let text = "while ! test -e neighbour-go; do sleep 0.05; done; touch neighbour-done";
    sandbox.spawn(text).background().await?;
    let process = sandbox.spawn("sleep 30").background().await?;
    process.kill().await?;
    crate::bench::put(&sandbox, "neighbour-go", "").await?;
    appears(&sandbox, "neighbour-done").await
}

async fn a_followed_process_can_be_killed(t: &Bench) -> Check {
    t.needs(&[Capability::Streaming])?;
    let sandbox = t.sandbox().await?;
    let mut process = sandbox.spawn("echo began; sleep 30").await?;
    within(SOON, "the first output", process.next()).await??;
    ensure_eq!(process.kill().await?, Killed::Stopped, "the kill");
    let exit = within(SOON, "the end", process.wait()).await??;
    ensure_eq!(exit.status, ExitStatus::Killed, "how it ended");
    Ok(())
}

impl Contract for cap::Signal {
    const ASK: Ask = Ask::Call(|sandbox| Box::pin(async { sandbox.process("p").signal(Signal::TERM).await }));
    const CASES: &'static [Case] =
        cases![a_signal_can_be_caught, a_signal_that_is_not_caught_ends_it, signals_to_nobody_fail];
}

async fn a_signal_can_be_caught(t: &Bench) -> Check {
    t.needs(&[Capability::Streaming])?;
    let sandbox = t.sandbox().await?;
    let text = "trap 'echo caught; exit 3' USR1; echo ready; while :; do sleep 0.05; done";
    let mut process = sandbox.spawn(text).await?;
    within(SOON, "the first output", process.next()).await??;
    process.signal("USR1".parse()?).await?;
    let followed = within(SOON, "the end", follow(&mut process, 6)).await??;
    ensure_eq!(followed.stdout, b"caught\n", "what the trap printed");
    ensure_eq!(followed.exit.map(|exit| exit.status), Some(ExitStatus::Exited(3)), "the end by the trap");
    Ok(())
}

async fn a_signal_that_is_not_caught_ends_it(t: &Bench) -> Check {
    t.needs(&[Capability::Streaming])?;
    for signal in [Signal::TERM, Signal::INT, Signal::KILL] {
        let mut process = t.sandbox().await?.spawn("echo ready; exec sleep 30").await?;
        within(SOON, "the first output", process.next()).await??;
        process.signal(signal).await?;
        let exit = within(SOON, "the end", process.wait()).await??;
        ensure_eq!(exit.status.shell_code(), 128 + signal.number(), "the end by {signal} ({})", exit.status);
    }
    Ok(())
}

async fn signals_to_nobody_fail(t: &Bench) -> Check {
    t.needs(&[Capability::Streaming])?;
    let sandbox = t.sandbox().await?;
    fails(sandbox.process("nope").signal(Signal::TERM).await, &[ErrorKind::NotFound])?;
    let mut process = sandbox.spawn("true").await?;
    process.wait().await?;
    let late = process.signal(Signal::TERM).await;
    fails(late, &[ErrorKind::Conflict, ErrorKind::NotFound])?;
    Ok(())
}
