//! Flags: what a table says of behaviour, held against the behaviour.

use std::time::Duration;

use capbox_core::api::ExitStatus;
use capbox_core::capability::Capability;
use capbox_core::capability::flags::{
    BackgroundSurvives, CreateDedup, ForkSource, Isolation, KillReaches, LifetimeChange, OomEvidence,
    OutputBytes, OutputRetention, SnapshotSource, Streams, TimeoutKills,
};
use capbox_core::spec::Stdin;

use super::exec::SOON;
use super::{Case, cases};
use crate::bench::{Bench, alive, follow, get, gone, mark, put, run, sh, starts, within};
use crate::check::{Check, Fault};
use crate::{ensure, ensure_eq};

/// The flags that are observed, by name.
pub(crate) const FLAGS: &[(&str, &[Case])] = &[
    ("exit_code_native", cases![codes_cannot_be_forged]),
    ("streams", cases![b56_streams_are_apart_as_said]),
    ("output_bytes", cases![bytes_are_exact_as_said]),
    ("output_retention", cases![output_is_kept_as_said]),
    ("background_survives", cases![the_background_outlives_as_said]),
    ("stdin_eof", cases![input_ends_as_said]),
    ("kill_reaches", cases![a_kill_reaches_as_said]),
    ("timeout_kills", cases![a_timeout_reaches_as_said]),
    ("oom_evidence", cases![lack_of_memory_is_told_as_said]),
    ("lifetime", cases![lifetimes_are_as_said]),
    ("snapshot_source", cases![a_snapshot_leaves_its_source_as_said]),
    ("fork_source", cases![a_fork_copies_as_said]),
    ("create_dedup", cases![a_repeated_create_is_recognised_as_said]),
    ("id_stable", cases![the_id_stays]),
    ("isolation", cases![the_boundary_is_as_said]),
    ("isolation_source", cases![the_claim_has_a_source]),
    ("on_this_machine", cases![it_is_where_it_says]),
];

/// The flags that are not observed, and why.
#[cfg_attr(not(test), expect(dead_code, reason = "a test holds both lists against the flags"))]
pub(crate) const UNOBSERVED: &[(&str, &str)] = &[
    ("preserves_disk_on_stop", "`lifecycle.stop` has no trait yet"),
    ("preview_model", "`network.expose-port` has no trait yet"),
    ("kept_for", "it takes days"),
    ("resize_applies", "`lifecycle.resize` has no trait yet"),
    ("memory_snapshot_source", "`snapshot.memory` has no trait yet"),
    ("ports_declared", "`network.expose-port` has no trait yet"),
    ("default_egress", "capbox always says what it wants"),
    ("default_preview", "`network.expose-port` has no trait yet"),
    ("egress_names", "it is observed by the contract of `network.egress-host`"),
];

/// Nothing to hold it to.
fn claims_nothing() -> Fault {
    Fault::ignored("the flag claims nothing")
}

/// A wrapper that carries the code in the output, or in a file, loses or forges it here.
async fn codes_cannot_be_forged(t: &Bench) -> Check {
    if !t.flags().exit_code_native {
        return Err(claims_nothing());
    }
    let sandbox = t.sandbox().await?;
    for text in [
        "exec 1>&- 2>&-; exit 7",
        "printf 'exit=0\\n0\\n__EXIT__0\\n'; exit 7",
        "printf 'no line feed'; exit 7",
        "trap 'exit 7' EXIT; exit 0",
    ] {
        let output = run(&sandbox, text).await?;
        ensure_eq!(output.status, ExitStatus::Exited(7), "the end of `{text}`");
    }
    if t.inside().processes {
        let output = run(&sandbox, "kill -9 $$").await?;
        ensure!(!output.status.success(), "a command that killed itself succeeds");
    }
    Ok(())
}

async fn b56_streams_are_apart_as_said(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    let output = run(&sandbox, "printf out; printf err >&2; exit 7").await?;
    ensure_eq!(output.status, ExitStatus::Exited(7), "the end");
    if t.flags().streams == Streams::Merged {
        ensure_eq!(output.stderr.text(), "", "standard error where the streams are merged");
        ensure_eq!(output.stdout.text().len(), 6, "the size of both streams");
        return Ok(());
    }
    ensure_eq!(output.stdout.text(), "out", "standard output");
    ensure_eq!(output.stderr.text(), "err", "standard error");
    if t.can(Capability::Streaming) {
        let mut process = sandbox.spawn("printf out; printf err >&2").await?;
        let followed = follow(&mut process, 0).await?;
        ensure_eq!(followed.stdout, b"out", "standard output, followed");
        ensure_eq!(followed.stderr, b"err", "standard error, followed");
    }
    Ok(())
}

async fn bytes_are_exact_as_said(t: &Bench) -> Check {
    if t.flags().output_bytes != OutputBytes::Exact {
        return Err(claims_nothing());
    }
    t.needs(&[Capability::Run])?;
    let sandbox = t.sandbox().await?;
    let all: Vec<u8> = (0..=255).collect();
    let text = "i=0; while [ $i -lt 256 ]; do printf \"\\\\$(printf %03o $i)\"; i=$((i+1)); done";
    let output = run(&sandbox, text).await?;
    ensure_eq!(output.stdout.bytes(), all, "the 256 bytes");
    if t.can(Capability::Streaming) {
        let mut process = sandbox.spawn(text).await?;
        ensure_eq!(follow(&mut process, 0).await?.stdout, all, "the 256 bytes, followed");
    }
    Ok(())
}

async fn output_is_kept_as_said(t: &Bench) -> Check {
    let retention = t.flags().output_retention;
    if retention == OutputRetention::None {
        return Err(claims_nothing());
    }
    t.needs(&[Capability::Background, Capability::Replay])?;
    let sandbox = t.sandbox().await?;
    let count = t.inside().large / 16;
    let text = format!("yes 0123456789abcde | head -n {count}; touch kept-there");
    let process = sandbox.spawn(text.as_str()).background().await?;
    crate::contract::exec::began(t, "kept-there").await?;
    let mut replayed = sandbox.process(process.id()).replay(0).await?;
    let followed = within(Duration::from_secs(30), "the replay", follow(&mut replayed, 0)).await??;
    let all = followed.bytes.len() as u64 + followed.skipped;
    ensure_eq!(all, count as u64 * 16, "what is kept and what is said to be missing");
    if retention == OutputRetention::Full {
        ensure_eq!(followed.skipped, 0, "what is missing although everything is kept");
    }
    ensure!(!followed.bytes.is_empty(), "nothing is kept");
    ensure!(followed.bytes.ends_with(b"0123456789abcde\n"), "the newest part is not kept");
    Ok(())
}

async fn the_background_outlives_as_said(t: &Bench) -> Check {
    t.needs(&[Capability::Background])?;
    let survives = t.flags().background_survives;
    let sandbox = t.create(t.spec()).await?;
    let text =
        "i=0; while [ $i -lt 600 ]; do i=$((i+1)); echo $i > beat.new; mv beat.new beat; sleep 0.05; done";
    drop(sandbox.spawn(text).background().await?);
    let mut watching = sandbox;
    if survives >= BackgroundSurvives::Connection {
        t.needs(&[Capability::Connect])?;
        let (id, client) = (watching.id().to_owned(), t.another_client()?);
        // The creator's handle goes, and would take the sandbox with it; another client looks.
        watching.detach().await?;
        watching = client.connect(&id).await?;
    }
    let begin = std::time::Instant::now();
    let mut beats = std::collections::BTreeSet::new();
    while beats.len() < 3 {
        ensure!(begin.elapsed() < SOON, "the background process has stopped: {beats:?}");
        beats.extend(get(&watching, "beat").await?);
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    watching.destroy().await?;
    Ok(())
}

async fn input_ends_as_said(t: &Bench) -> Check {
    if !t.flags().stdin_eof {
        return Err(claims_nothing());
    }
    let sandbox = t.sandbox().await?;
    if t.can(Capability::Stdin) && t.can(Capability::Streaming) {
        let mut process = sandbox.spawn("cat; echo end; sleep 0.1; exit 3").stdin(Stdin::Open).await?;
        process.write(b"in\n").await?;
        process.close_stdin().await?;
        let followed = within(SOON, "the end after the input's", follow(&mut process, 0)).await??;
        ensure_eq!(followed.stdout, b"in\nend\n", "what comes before and after the end of input");
        ensure_eq!(followed.exit.map(|exit| exit.status), Some(ExitStatus::Exited(3)), "the end");
        return Ok(());
    }
    t.needs(&[Capability::Input, Capability::Run])?;
    let exec = sandbox.exec("cat; echo end").input("in\n");
    let output = within(SOON, "the end after the input's", async { exec.await }).await??;
    ensure_eq!(output.stdout.text(), "in\nend\n", "what comes before and after the end of input");
    Ok(())
}

/// A job of three: a child, a member of its group, and one in a session of its own.
struct Job {
    child: String,
    group: String,
    session: String,
}

impl Job {
    fn new() -> Self {
        Self { child: mark(), group: mark(), session: mark() }
    }

    fn text(&self) -> String {
        let Self { child, group, session } = self;
        format!("sleep {group} & setsid sleep {session} & sleep {child}; true")
    }

    /// Fail if what was said to be reached is alive, by a listing from inside.
    async fn is_gone(&self, t: &Bench, group: bool, tree: bool) -> Check {
        let sandbox = t.sandbox().await?;
        if group {
            gone(&sandbox, &self.child, Duration::ZERO).await?;
            gone(&sandbox, &self.group, Duration::ZERO).await?;
        }
        if tree {
            gone(&sandbox, &self.session, Duration::ZERO).await?;
        }
        Ok(())
    }
}

async fn a_kill_reaches_as_said(t: &Bench) -> Check {
    t.needs(&[Capability::KillProcess, Capability::Background])?;
    t.needs_processes()?;
    let (sandbox, job) = (t.sandbox().await?, Job::new());
    let process = sandbox.spawn(job.text().as_str()).background().await?;
    for mark in [&job.child, &job.group, &job.session] {
        starts(&sandbox, mark).await?;
    }
    process.kill().await?;
    let reaches = t.flags().kill_reaches;
    job.is_gone(t, reaches >= KillReaches::Group, reaches >= KillReaches::Tree).await
}

async fn a_timeout_reaches_as_said(t: &Bench) -> Check {
    t.needs(&[Capability::Timeout, Capability::Run])?;
    t.needs_processes()?;
    let (sandbox, job) = (t.sandbox().await?, Job::new());
    let output = sandbox.exec(job.text().as_str()).timeout(Duration::from_millis(800)).await?;
    ensure_eq!(output.status, ExitStatus::TimedOut, "the end");
    let kills = t.flags().timeout_kills;
    if kills == TimeoutKills::Nothing {
        return Err(claims_nothing());
    }
    job.is_gone(t, kills >= TimeoutKills::Group, kills >= TimeoutKills::Tree).await
}

async fn lack_of_memory_is_told_as_said(t: &Bench) -> Check {
    if t.flags().oom_evidence != OomEvidence::Process {
        return Err(claims_nothing());
    }
    t.needs(&[Capability::Memory, Capability::Run])?;
    t.needs_processes()?;
    let sandbox = t.create(t.spec().memory(64_u64 << 20)).await?;
    let argv = ["dd", "if=/dev/zero", "of=/dev/null", "bs=256M", "count=1"];
    let output = sandbox.exec(argv).await?;
    ensure_eq!(output.status, ExitStatus::OutOfMemory, "the end of a program without memory");
    // And nothing else is called so.
    let output = run(&sandbox, "kill -9 $$").await?;
    ensure!(output.status != ExitStatus::OutOfMemory, "a plain kill is called lack of memory");
    Ok(())
}

async fn lifetimes_are_as_said(t: &Bench) -> Check {
    let lifetime = t.flags().lifetime;
    ensure!(!lifetime.granularity.is_zero(), "the step of a lifetime is zero");
    let changes = lifetime.change != LifetimeChange::None;
    ensure_eq!(t.can(Capability::SetTimeout), changes, "whether `lifetime.change` agrees with `set-timeout`");
    if let (Some(default), Some(max)) = (lifetime.default.length(), lifetime.max.length()) {
        ensure!(default <= max, "the default lifetime is longer than the longest");
    }
    t.needs(&[Capability::Ttl])?;
    if let Some(max) = lifetime.max.length() {
        let spec = t.spec().ttl(max + lifetime.granularity * 2);
        ensure!(t.create(spec).await.is_err(), "a sandbox is created for longer than the longest");
    }
    Ok(())
}

async fn a_snapshot_leaves_its_source_as_said(t: &Bench) -> Check {
    t.needs(&[Capability::Snapshot, Capability::Background, Capability::Run])?;
    let sandbox = t.sandbox().await?;
    let text =
        "i=0; while [ $i -lt 600 ]; do i=$((i+1)); echo $i > beat.new; mv beat.new beat; sleep 0.05; done";
    sandbox.spawn(text).background().await?;
    crate::contract::exec::began(t, "beat").await?;
    let snapshots = sandbox.snapshots().ok_or_else(|| Fault::ignored("needs `snapshot.snapshot`"))?;
    let snapshot = snapshots.create(None).await?;
    if t.flags().snapshot_source != SnapshotSource::Stops {
        let before = get(&sandbox, "beat").await?;
        let begin = std::time::Instant::now();
        while get(&sandbox, "beat").await? == before {
            ensure!(begin.elapsed() < SOON, "the source does not run on after a snapshot");
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }
    if t.can(Capability::SnapshotDelete) {
        t.client().delete_snapshot(&snapshot.id).await?;
    }
    Ok(())
}

async fn a_fork_copies_as_said(t: &Bench) -> Check {
    t.needs(&[Capability::Fork])?;
    let sandbox = t.sandbox().await?;
    if t.flags().fork_source == ForkSource::LastSnapshot {
        return Err(claims_nothing());
    }
    put(&sandbox, "just-now", "x").await?;
    let fork = sandbox.fork(1).await?.into_iter().next();
    let fork = fork.ok_or_else(|| Fault::failed("one fork was asked for, none came"))??;
    ensure_eq!(get(&fork, "just-now").await?.as_deref(), Some("x"), "what was written just before the fork");
    Ok(())
}

async fn a_repeated_create_is_recognised_as_said(t: &Bench) -> Check {
    if t.flags().create_dedup != CreateDedup::Name {
        return Err(claims_nothing());
    }
    t.needs(&[Capability::Name])?;
    let name = format!("dedup-{}", mark().replace('.', "-"));
    let one = t.create(t.spec().name(name.as_str())).await?;
    let two = t.create(t.spec().name(name.as_str())).await?;
    ensure_eq!(one.id(), two.id(), "the sandbox of a repeated create");
    Ok(())
}

async fn the_id_stays(t: &Bench) -> Check {
    if !t.flags().id_stable {
        return Err(claims_nothing());
    }
    t.needs(&[Capability::Connect])?;
    let sandbox = t.sandbox().await?;
    for _ in 0..3 {
        let again = t.another_client()?.connect(sandbox.id()).await?;
        ensure_eq!(again.id(), sandbox.id(), "the id after connecting");
    }
    Ok(())
}

/// What a file of `/proc` says inside and here.
async fn seen(t: &Bench, command: &str, here: std::io::Result<String>) -> Check<(String, String)> {
    t.needs_processes()?;
    let inside = sh(&t.sandbox().await?, command).await?;
    Ok((inside.trim().to_owned(), here?.trim().to_owned()))
}

async fn boot_ids(t: &Bench) -> Check<(String, String)> {
    let path = "/proc/sys/kernel/random/boot_id";
    seen(t, &format!("cat {path}"), std::fs::read_to_string(path)).await
}

async fn the_boundary_is_as_said(t: &Bench) -> Check {
    let isolation = t.flags().isolation;
    if isolation <= Isolation::Process {
        return Err(claims_nothing());
    }
    if isolation == Isolation::Container {
        let link = std::fs::read_link("/proc/self/ns/pid").map(|link| link.to_string_lossy().into_owned());
        let (inside, here) = seen(t, "readlink /proc/self/ns/pid", link).await?;
        ensure!(inside != here, "a container shares the process namespace of this machine");
        let sandbox = t.sandbox().await?;
        let own = format!("/proc/{}/environ", std::process::id());
        let output = run(&sandbox, &format!("cat {own}; cat /proc/1/environ")).await?;
        ensure!(
            !output.stdout.text().contains("CARGO_PKG_NAME"),
            "b154: the host's environment is read by /proc"
        );
    } else {
        let (inside, here) = boot_ids(t).await?;
        ensure!(inside != here, "the kernel inside is the kernel of this machine");
    }
    Ok(())
}

async fn the_claim_has_a_source(t: &Bench) -> Check {
    if t.flags().isolation == Isolation::Unknown {
        return Err(claims_nothing());
    }
    ensure!(!t.flags().isolation_source.is_empty(), "the claim of isolation has no source");
    Ok(())
}

async fn it_is_where_it_says(t: &Bench) -> Check {
    if t.flags().isolation >= Isolation::Gvisor {
        return Err(Fault::ignored("a kernel of its own hides where it runs"));
    }
    let (inside, here) = boot_ids(t).await?;
    ensure_eq!(inside == here, t.flags().on_this_machine, "whether it runs on this machine's kernel");
    if t.flags().on_this_machine && t.can(Capability::Background) {
        let (sandbox, mark) = (t.sandbox().await?, mark());
        let process = sandbox.spawn(format!("sleep {mark}").as_str()).background().await?;
        starts(&sandbox, &mark).await?;
        let here = crate::oracle::host_processes(&mark);
        ensure!(!here.is_empty(), "its processes are not seen on this machine");
        ensure!(!alive(&sandbox, &mark).await?.is_empty(), "its process is not listed inside");
        drop(process);
    }
    Ok(())
}
