//! The options of create but for the network's.

use std::fs;
use std::time::{Duration, Instant};

use capbox_core::api::{AnySandbox, ExitStatus, SandboxState};
use capbox_core::capability::flags::OomEvidence;
use capbox_core::capability::{Capability, cap};
use capbox_core::error::ErrorKind;
use capbox_core::spec::{Env, Labels, Mount, MountAccess, Mounts, OnTimeout, Spec};

use super::files::Canary;
use super::options::ODD;
use super::{Ask, Case, Contract, cases};
use crate::bench::{Bench, files, get, put, run, sh};
use crate::check::{Check, Fault, fails};
use crate::oracle::caused;
use crate::{ensure, ensure_eq};

const GIB: u64 = 1 << 30;

/// Ask for an option by a value that every provider reads alike.
macro_rules! option {
    ($option:ident($value:expr)) => {
        Ask::Create(|spec, _| Ok(spec.$option($value)))
    };
}

/// Ask for an option by the harness's sample, or by any value where it is to be refused.
macro_rules! sampled {
    ($Row:ident: $option:ident($any:literal)) => {
        Ask::Create(|spec, t| {
            let value = match t.sample(Capability::$Row) {
                Ok(sample) => sample.value.clone(),
                Err(needed) if t.can(Capability::$Row) => return Err(needed),
                Err(_) => $any.to_owned(),
            };
            Ok(spec.$option(value))
        })
    };
}

impl Contract for cap::Name {
    const ASK: Ask = option!(name("contract-name"));
    const CASES: &'static [Case] = cases![
        the_same_name_is_the_same_sandbox,
        b152_created_at_once_it_is_one,
        a_destroyed_name_is_free,
        names_that_are_none_are_refused,
        b65_exit_bricks_nothing,
    ];
}

/// A name that no other trial uses: some providers share names between accounts.
fn name(what: &str) -> String {
    let mark = crate::bench::mark().replace('.', "-");
    format!("contract-{what}-{mark}")
}

async fn the_same_name_is_the_same_sandbox(t: &Bench) -> Check {
    let (one, other) = (name("one"), name("other"));
    let first = t.create(t.spec().name(one.as_str())).await?;
    ensure!(first.is_new(), "the first sandbox of a name is said to be there already");
    put(&first, "named", "x").await?;
    let second = t.another_client()?.create(t.spec().name(one.as_str())).await?;
    ensure!(!second.is_new(), "the second create of a name makes a new sandbox");
    ensure_eq!(second.id(), first.id(), "the sandbox of the same name");
    ensure_eq!(get(&second, "named").await?.as_deref(), Some("x"), "a file in it");
    let third = t.create(t.spec().name(other.as_str())).await?;
    ensure!(third.is_new() && third.id() != first.id(), "another name is the same sandbox");
    Ok(())
}

async fn b152_created_at_once_it_is_one(t: &Bench) -> Check {
    let name = name("once");
    let mut creating = Vec::new();
    for _ in 0..4 {
        let (client, spec) = (t.another_client()?, t.spec().name(name.as_str()));
        creating.push(tokio::spawn(async move { client.create(spec).await }));
    }
    let mut made: Vec<AnySandbox> = Vec::new();
    for create in creating {
        made.push(create.await.map_err(Fault::failed)??);
    }
    ensure!(made.iter().all(|sandbox| sandbox.id() == made[0].id()), "one name, several sandboxes: {made:?}");
    ensure_eq!(made.iter().filter(|sandbox| sandbox.is_new()).count(), 1, "how many say that theirs is new");
    Ok(())
}

async fn a_destroyed_name_is_free(t: &Bench) -> Check {
    let name = name("free");
    let first = t.create(t.spec().name(name.as_str())).await?;
    put(&first, "old", "x").await?;
    first.destroy().await?;
    let second = t.create(t.spec().name(name.as_str())).await?;
    ensure!(second.is_new(), "a sandbox that was destroyed is there again");
    ensure_eq!(get(&second, "old").await?, None, "a file of the destroyed sandbox of that name");
    Ok(())
}

async fn names_that_are_none_are_refused(t: &Bench) -> Check {
    for name in ["", "A", "a/b", "..", "-a", "a b", &"a".repeat(64)] {
        let create = async { t.create(t.spec().name(name)).await.map(drop) };
        let (result, traces) = caused(t.oracle(), create).await;
        fails(result, &[ErrorKind::InvalidArgument])?;
        ensure!(traces.is_empty(), "the name `{name}` is refused, but something happened: {traces:?}");
    }
    Ok(())
}

/// `exit` ends one command, not what follows, nor a sandbox that is had again by its name.
async fn b65_exit_bricks_nothing(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let name = name("exit");
    for round in 0..2 {
        let sandbox = t.create(t.spec().name(name.as_str())).await?;
        run(&sandbox, "exit 0").await?;
        ensure_eq!(sh(&sandbox, "echo hi").await?, "hi\n", "the command after `exit`");
        let again = t.create(t.spec().name(name.as_str())).await?;
        ensure!(!again.is_new(), "a sandbox is gone since a command in it ended, in round {round}");
        ensure_eq!(sh(&again, "echo hi").await?, "hi\n", "a command in the sandbox of the same name");
        sandbox.destroy().await?;
    }
    Ok(())
}

impl Contract for cap::Labels {
    const ASK: Ask = option!(labels(Labels::from([("contract", "label")])));
    const CASES: &'static [Case] = cases![sandboxes_are_found_by_labels];
}

async fn sandboxes_are_found_by_labels(t: &Bench) -> Check {
    t.needs(&[Capability::List])?;
    let (a, b) = ("it's $HOME \"x\"", "two words ☕");
    let one = t.create(t.spec().labels(Labels::from([("kind", a), ("both", "yes")]))).await?;
    let two = t.create(t.spec().labels(Labels::from([("kind", b), ("both", "yes")]))).await?;
    let none = t.create(t.spec()).await?;
    let found = async |labels: Labels| {
        let mut ids: Vec<String> =
            t.client().list_with(&labels).await?.into_iter().map(|info| info.id).collect();
        ids.sort();
        Ok::<_, Fault>(ids)
    };
    let mut both = vec![one.id().to_owned(), two.id().to_owned()];
    both.sort();
    ensure_eq!(found(Labels::from([("kind", a)])).await?, [one.id()], "the sandboxes with one label");
    ensure_eq!(found(Labels::from([("both", "yes")])).await?, both, "the sandboxes with a common label");
    let and = Labels::from([("both", "yes"), ("kind", b)]);
    ensure_eq!(found(and).await?, [two.id()], "the sandboxes with both labels");
    let nobody = found(Labels::from([("both", "no")])).await?;
    ensure_eq!(nobody, Vec::<String>::new(), "the sandboxes with a label that none has");
    let list = t.client().list().await?;
    let own = list.iter().find(|info| info.id == one.id()).map(|info| info.labels.0.get("kind").cloned());
    ensure_eq!(own, Some(Some(a.to_owned())), "the label in the list");
    drop(none);
    Ok(())
}

impl Contract for cap::Env {
    const ASK: Ask = option!(env(Env::from([("CAPBOX_CONTRACT", "1")])));
    const CASES: &'static [Case] = cases![b115_every_command_gets_it, one_command_may_override_it];
}

async fn b115_every_command_gets_it(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let env: Env = ODD.iter().enumerate().map(|(i, value)| (format!("V{i}"), *value)).collect();
    let sandbox = t.create(t.spec().env(env)).await?;
    for (i, value) in ODD.iter().enumerate() {
        let output = run(&sandbox, &format!("printf %s \"$V{i}\"")).await?;
        ensure_eq!(output.stdout.text(), *value, "the value of a variable of the sandbox");
    }
    ensure_eq!(sh(&sandbox, "echo ${PATH:+path}").await?, "path\n", "the base beside the sandbox's own env");
    if t.can(Capability::Streaming) {
        let output = sandbox.spawn("printf %s \"$V0\"").await?.output().await?;
        ensure_eq!(output.stdout.text(), ODD[0], "the variable in a followed command");
    }
    if t.can(Capability::Background) {
        sandbox.spawn("printf %s \"$V0\" > env-bg.new; mv env-bg.new env-bg").background().await?;
        let begin = Instant::now();
        while get(&sandbox, "env-bg").await?.is_none() {
            ensure!(begin.elapsed() < Duration::from_secs(5), "the background command does nothing");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        ensure_eq!(get(&sandbox, "env-bg").await?.as_deref(), Some(ODD[0]), "the variable in the background");
    }
    Ok(())
}

async fn one_command_may_override_it(t: &Bench) -> Check {
    t.needs(&[Capability::Run, Capability::ExecEnv])?;
    let sandbox = t.create(t.spec().env(Env::from([("A", "sandbox"), ("B", "sandbox")]))).await?;
    let output = sandbox.exec("echo $A $B").env("A", "command").await?;
    ensure_eq!(output.stdout.text(), "command sandbox\n", "one variable set again, one not");
    ensure_eq!(sh(&sandbox, "echo $A").await?, "sandbox\n", "the variable in the next command");
    Ok(())
}

impl Contract for cap::Ttl {
    const ASK: Ask = option!(ttl(Duration::from_mins(2)));
    const CASES: &'static [Case] =
        cases![at_its_end_nothing_is_left, before_it_all_is_there, zero_is_refused];
}

/// The least length of time that the provider counts, at least a second; none where that would take too long.
pub(super) fn short(t: &Bench, capability: Capability) -> Check<Duration> {
    let rows = t.client().capabilities().declared();
    let least = rows.limits.iter().find(|limit| limit.capability == capability);
    let least = least.and_then(|limit| Duration::try_from_secs_f64(limit.min).ok()).unwrap_or_default();
    let length = least.max(t.flags().lifetime.granularity).max(Duration::from_secs(1));
    if length > Duration::from_secs(10) && t.fixture.clock.is_none() {
        return Err(Fault::ignored(format!("the least that can be asked for is {length:?}")));
    }
    Ok(length)
}

/// Fail unless the sandbox is gone for everybody within a grace.
async fn over(t: &Bench, sandbox: &AnySandbox) -> Check {
    let begin = Instant::now();
    let gone = [ErrorKind::SandboxGone, ErrorKind::NotFound];
    loop {
        let call = if t.can(Capability::Run) {
            sandbox.exec("true").await.map(drop)
        } else {
            t.client().connect(sandbox.id()).await.map(drop)
        };
        match call {
            Err(error) if gone.contains(&error.kind()) => break,
            Err(error) => return Err(error.into()),
            Ok(()) => ensure!(begin.elapsed() < Duration::from_secs(5), "its time is up, and it still works"),
        }
        t.pass(Duration::from_millis(100)).await;
    }
    if t.can(Capability::Connect) {
        fails(t.another_client()?.connect(sandbox.id()).await, &gone)?;
    }
    if t.can(Capability::List) {
        let listed = t.client().list().await?.iter().any(|info| info.id == sandbox.id());
        ensure!(!listed, "its time is up, and it is still listed");
    }
    Ok(())
}

async fn at_its_end_nothing_is_left(t: &Bench) -> Check {
    let ttl = short(t, Capability::Ttl)?;
    let sandbox = t.create(t.spec().ttl(ttl)).await?;
    sandbox.detach().await?;
    let mark = crate::bench::mark();
    if t.can(Capability::Background) && t.inside().processes {
        sandbox.spawn(format!("sleep {mark}").as_str()).background().await?;
    }
    t.pass(ttl).await;
    over(t, &sandbox).await?;
    if t.flags().on_this_machine {
        crate::bench::gone_from_host(&format!("sleep {mark}"), Duration::from_secs(5)).await?;
    }
    Ok(())
}

async fn before_it_all_is_there(t: &Bench) -> Check {
    t.needs(&[Capability::List])?;
    let sandbox = t.create(t.spec().ttl(Duration::from_mins(10))).await?;
    let list = t.client().list().await?;
    let left = list.iter().find(|info| info.id == sandbox.id()).and_then(|info| info.ttl_left);
    if let Some(left) = left {
        let most = Duration::from_mins(10) + t.flags().lifetime.granularity;
        ensure!(left <= most && left > Duration::from_secs(500), "of 600 s, {left:?} are left at once");
    }
    Ok(())
}

async fn zero_is_refused(t: &Bench) -> Check {
    let create = async { t.create(t.spec().ttl(Duration::ZERO)).await.map(drop) };
    let (result, traces) = caused(t.oracle(), create).await;
    fails(result, &[ErrorKind::InvalidArgument])?;
    ensure!(traces.is_empty(), "a ttl of zero is refused, but something happened: {traces:?}");
    Ok(())
}

impl Contract for cap::OnTimeout {
    const ASK: Ask = option!(on_timeout(OnTimeout::Stop));
    const CASES: &'static [Case] = cases![at_the_end_it_is_kept];
}

/// Fail unless the sandbox is listed as stopped or paused within a grace.
async fn kept(t: &Bench, sandbox: &AnySandbox) -> Check {
    t.needs(&[Capability::List])?;
    let begin = Instant::now();
    loop {
        let list = t.client().list().await?;
        match list.iter().find(|info| info.id == sandbox.id()).map(|info| info.state) {
            Some(SandboxState::Stopped | SandboxState::Paused) => return Ok(()),
            None => return Err(Fault::failed("its time is up, and it is gone instead of kept")),
            Some(_) => {
                ensure!(begin.elapsed() < Duration::from_secs(10), "its time is up, and it still runs");
            }
        }
        t.pass(Duration::from_millis(100)).await;
    }
}

async fn at_the_end_it_is_kept(t: &Bench) -> Check {
    t.needs(&[Capability::Ttl])?;
    let ttl = short(t, Capability::Ttl)?;
    let sandbox = t.create(t.spec().ttl(ttl).on_timeout(OnTimeout::Stop)).await?;
    t.pass(ttl).await;
    kept(t, &sandbox).await
}

impl Contract for cap::IdleTimeout {
    const ASK: Ask = option!(idle_timeout(Duration::from_mins(1)));
    const CASES: &'static [Case] = cases![idle_it_is_destroyed, busy_it_is_not];
}

async fn idle_it_is_destroyed(t: &Bench) -> Check {
    t.needs(&[Capability::List])?;
    let idle = short(t, Capability::IdleTimeout)?;
    let sandbox = t.create(t.spec().idle_timeout(idle)).await?;
    t.pass(idle + Duration::from_secs(1)).await;
    let begin = Instant::now();
    while t.client().list().await?.iter().any(|info| info.id == sandbox.id()) {
        ensure!(begin.elapsed() < Duration::from_secs(5), "it is idle for long, and still listed");
        t.pass(Duration::from_millis(200)).await;
    }
    Ok(())
}

async fn busy_it_is_not(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let idle = short(t, Capability::IdleTimeout)?;
    let sandbox = t.create(t.spec().idle_timeout(idle)).await?;
    for _ in 0..6 {
        t.pass(idle / 3).await;
        sh(&sandbox, "echo busy").await?;
    }
    Ok(())
}

impl Contract for cap::OnIdle {
    const ASK: Ask = Ask::Create(|spec, t| {
        let spec =
            if t.can(Capability::IdleTimeout) { spec.idle_timeout(Duration::from_mins(1)) } else { spec };
        Ok(spec.on_idle(OnTimeout::Stop))
    });
    const CASES: &'static [Case] = cases![idle_it_is_kept];
}

async fn idle_it_is_kept(t: &Bench) -> Check {
    t.needs(&[Capability::IdleTimeout])?;
    let idle = short(t, Capability::IdleTimeout)?;
    let sandbox = t.create(t.spec().idle_timeout(idle).on_idle(OnTimeout::Stop)).await?;
    t.pass(idle + Duration::from_secs(1)).await;
    kept(t, &sandbox).await
}

impl Contract for cap::AutoResume {
    const ASK: Ask = option!(auto_resume(true));
    const CASES: &'static [Case] = cases![a_kept_sandbox_wakes_when_asked];
}

async fn a_kept_sandbox_wakes_when_asked(t: &Bench) -> Check {
    t.needs(&[Capability::OnTimeout, Capability::Ttl, Capability::Run])?;
    let ttl = short(t, Capability::Ttl)?;
    let spec = t.spec().ttl(ttl).on_timeout(OnTimeout::Stop).auto_resume(true);
    let sandbox = t.create(spec).await?;
    put(&sandbox, "asleep", "x").await?;
    t.pass(ttl).await;
    kept(t, &sandbox).await?;
    ensure_eq!(sh(&sandbox, "cat asleep").await?, "x", "a file, once it is awake");
    Ok(())
}

/// The sample's own proof: its command prints what it says, and, without the option, something else.
async fn shows(t: &Bench, capability: Capability, with: fn(Spec, String) -> Spec) -> Check {
    t.needs(&[Capability::Run])?;
    let sample = t.sample(capability)?.clone();
    let Some((command, expected)) = sample.shows else {
        return Err(Fault::ignored("the sample says nothing of how it shows inside"));
    };
    let sandbox = t.create(with(t.spec(), sample.value)).await?;
    ensure_eq!(sh(&sandbox, command.as_str()).await?, expected, "what `{command}` prints");
    let plain = run(&t.sandbox().await?, &command).await?;
    ensure!(plain.stdout.text() != expected, "`{command}` prints the same without the option");
    Ok(())
}

macro_rules! shown {
    ($($Row:ident: $option:ident($any:literal), $case:ident;)*) => { $(
        impl Contract for cap::$Row {
            const ASK: Ask = sampled!($Row: $option($any));
            const CASES: &'static [Case] = cases![$case];
        }

        async fn $case(t: &Bench) -> Check {
            shows(t, Capability::$Row, |spec, value| spec.$option(value)).await
        }
    )* };
}
shown! {
    ImageName: image_name("contract:image"), the_named_image_is_inside;
    ImageArchive: image_archive("/contract/image.tar"), the_archived_image_is_inside;
    ImageContext: image_context("/contract/context"), the_built_image_is_inside;
    Template: template("contract-template"), the_template_is_inside;
    Region: region("contract-region"), the_region_shows_inside;
}

impl Contract for cap::Gpu {
    const ASK: Ask = Ask::Create(|spec, t| {
        let sample = t.sample(Capability::Gpu);
        Ok(spec.gpu(sample.map_or("T4", |sample| &sample.value)))
    });
    const CASES: &'static [Case] = cases![the_gpu_shows_inside];
}

async fn the_gpu_shows_inside(t: &Bench) -> Check {
    shows(t, Capability::Gpu, |spec, value| spec.gpu(value.as_str())).await
}

impl Contract for cap::Cpu {
    const ASK: Ask = option!(cpu(1.0));
    const CASES: &'static [Case] =
        cases![it_bounds_what_a_busy_program_gets, numbers_that_are_none_are_refused];
}

/// How much time a busy loop of one second gets, in seconds.
pub(super) async fn busy(sandbox: &AnySandbox) -> Check<f64> {
    let text = "timeout 1 sh -c 'while :; do :; done'; times | tail -n 1";
    let output = run(sandbox, text).await?;
    let text = output.stdout.text().into_owned();
    let seconds = |word: &str| {
        let (minutes, seconds) = word.trim_end_matches('s').split_once('m')?;
        Some(minutes.parse::<f64>().ok()? * 60.0 + seconds.parse::<f64>().ok()?)
    };
    let spent: Option<f64> = text.split_whitespace().map(seconds).sum();
    spent.ok_or_else(|| Fault::failed(format!("`times` prints {text:?}")))
}

async fn it_bounds_what_a_busy_program_gets(t: &Bench) -> Check {
    t.needs_processes()?;
    let free = busy(&t.sandbox().await?).await?;
    if free < 0.6 {
        return Err(Fault::ignored(format!("this machine is too busy: a free loop gets {free} of 1 s")));
    }
    let sandbox = t.create(t.spec().cpu(0.2)).await?;
    let bound = busy(&sandbox).await?;
    ensure!(bound < 0.4, "with 0.2 CPUs a loop gets {bound} of 1 s");
    Ok(())
}

async fn numbers_that_are_none_are_refused(t: &Bench) -> Check {
    for cpus in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        fails(t.create(t.spec().cpu(cpus)).await, &[ErrorKind::InvalidArgument])?;
    }
    Ok(())
}

impl Contract for cap::Memory {
    const ASK: Ask = option!(memory(GIB));
    const CASES: &'static [Case] = cases![b175_a_program_cannot_have_more];
}

async fn b175_a_program_cannot_have_more(t: &Bench) -> Check {
    t.needs_processes()?;
    let sandbox = t.create(t.spec().memory(64_u64 << 20)).await?;
    let little = run(&sandbox, "dd if=/dev/zero of=/dev/null bs=16M count=1 2>/dev/null").await?;
    ensure_eq!(little.status, ExitStatus::Exited(0), "a program that needs 16 of 64 MiB");
    let much = sandbox.exec(["dd", "if=/dev/zero", "of=/dev/null", "bs=256M", "count=1"]).await?;
    ensure!(!much.status.success(), "a program gets 256 MiB where 64 MiB is the limit");
    if t.flags().oom_evidence == OomEvidence::Process {
        let out_of_memory = matches!(much.status, ExitStatus::OutOfMemory | ExitStatus::Exited(1));
        ensure!(out_of_memory, "lack of memory shows as: {}", much.status);
    }
    ensure_eq!(sh(&sandbox, "echo alive").await?, "alive\n", "the sandbox afterwards");
    Ok(())
}

impl Contract for cap::Disk {
    const ASK: Ask = option!(disk(GIB));
    const CASES: &'static [Case] = cases![b95_a_full_disk_keeps_what_was_there];
}

async fn b95_a_full_disk_keeps_what_was_there(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let sandbox = t.create(t.spec().disk(16_u64 << 20)).await?;
    let old = "o".repeat(1 << 20);
    put(&sandbox, "old", &old).await?;
    let fill = run(&sandbox, "head -c 64000000 /dev/zero > fill").await?;
    ensure!(!fill.status.success(), "64 MB fit on a disk of 16 MiB");
    run(&sandbox, "rm -f fill").await?;
    t.needs(&[Capability::FilesWrite])?;
    fails(files(&sandbox)?.write("old", vec![b'n'; 20 << 20]).await, &[ErrorKind::StorageFull])?;
    ensure!(get(&sandbox, "old").await? == Some(old), "a write that did not fit altered the old file");
    Ok(())
}

impl Contract for cap::Processes {
    const ASK: Ask = option!(processes(64_u32));
    const CASES: &'static [Case] = cases![there_are_never_more];
}

async fn there_are_never_more(t: &Bench) -> Check {
    t.needs_processes()?;
    let (sandbox, mark) = (t.create(t.spec().processes(20_u32)).await?, crate::bench::mark());
    let many = format!("i=0; while [ $i -lt 60 ]; do sleep {mark} & i=$((i+1)); done");
    run(&sandbox, &many).await?;
    // Listing from inside may lack the processes that it needs, so the host looks where it can.
    let alive = if t.flags().on_this_machine {
        crate::oracle::host_processes(&format!("sleep {mark}")).len()
    } else {
        crate::bench::alive(&sandbox, &mark).await?.len()
    };
    ensure!(alive <= 20, "{alive} processes are alive where 20 is the limit");
    sandbox.destroy().await?;
    let free = t.sandbox().await?;
    run(&free, "i=0; while [ $i -lt 60 ]; do sleep 5 & i=$((i+1)); done; echo $i").await?;
    Ok(())
}

impl Contract for cap::FilesMount {
    const ASK: Ask =
        Ask::Create(|spec, _| Ok(spec.mounts(Mount::read_only(std::env::temp_dir(), "/contract"))));
    const CASES: &'static [Case] = cases![
        read_only_is_read_and_never_written,
        read_write_is_both,
        what_host_tools_trust_is_protected,
        b99_links_do_not_lead_out_of_it,
        a_source_that_is_not_there_leaves_nothing,
    ];
}

async fn mounted(t: &Bench, canary: &Canary, access: MountAccess) -> Check<AnySandbox> {
    let mount = Mount { access, ..Mount::read_only(canary.folder(), "/mounted") };
    Ok(t.create(t.spec().mounts(Mounts(vec![mount]))).await?)
}

async fn read_only_is_read_and_never_written(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let canary = Canary::new()?;
    let sandbox = mounted(t, &canary, MountAccess::ReadOnly).await?;
    ensure_eq!(sh(&sandbox, "cat /mounted/secret").await?, "canary of the host", "a mounted file");
    for text in [
        "echo x > /mounted/secret",
        "echo x > /mounted/new",
        "rm -f /mounted/secret",
        "mkdir /mounted/d",
        "chmod 777 /mounted/secret",
        "mv /mounted/secret /mounted/s",
        "mount -o remount,rw /mounted && echo x > /mounted/new",
    ] {
        run(&sandbox, text).await?;
        canary.untouched()?;
    }
    if let Some(files) = sandbox.files() {
        ensure_eq!(&files.read("/mounted/secret").await?[..], b"canary of the host", "b165: a mounted file");
        files.write("/mounted/secret", "x").await.ok();
        files.write("/mounted/new", "x").await.ok();
        canary.untouched()?;
    }
    Ok(())
}

async fn read_write_is_both(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let canary = Canary::new()?;
    let sandbox = mounted(t, &canary, MountAccess::ReadWrite).await?;
    sh(&sandbox, "echo new > /mounted/new; cat /mounted/secret").await?;
    ensure_eq!(fs::read_to_string(canary.folder().join("new"))?, "new\n", "what the host sees");
    fs::write(canary.folder().join("from-host"), "x")?;
    ensure_eq!(sh(&sandbox, "cat /mounted/from-host").await?, "x", "what the host wrote meanwhile");
    Ok(())
}

async fn what_host_tools_trust_is_protected(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let canary = Canary::new()?;
    let git = canary.folder().join(".git");
    fs::create_dir_all(git.join("hooks"))?;
    fs::write(git.join("config"), "safe")?;
    fs::write(canary.folder().join(".envrc"), "safe")?;
    let text = "cd /mounted || exit; echo evil > .git/hooks/pre-commit; echo evil > .git/config; echo evil > .envrc; \
        mv .git .git2; rm -rf .git/hooks; echo ../evil > .git/commondir; echo fine > readme; true";
    let sandbox = mounted(t, &canary, MountAccess::ReadWrite).await?;
    run(&sandbox, text).await?;
    ensure!(!git.join("hooks/pre-commit").exists(), "a hook is written through a mount");
    ensure_eq!(fs::read_to_string(git.join("config"))?, "safe", "`.git/config` on the host");
    ensure_eq!(fs::read_to_string(canary.folder().join(".envrc"))?, "safe", "`.envrc` on the host");
    ensure!(!git.join("commondir").exists(), "git is led to a configuration of the sandbox's choosing");
    ensure_eq!(fs::read_to_string(canary.folder().join("readme"))?, "fine\n", "what is not protected");
    let sandbox = mounted(t, &canary, MountAccess::Unprotected).await?;
    run(&sandbox, "echo asked > /mounted/.git/config").await?;
    ensure_eq!(
        fs::read_to_string(git.join("config"))?,
        "asked\n",
        "`.git/config` where `:unprotected` is said"
    );
    Ok(())
}

async fn b99_links_do_not_lead_out_of_it(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let (canary, other) = (Canary::new()?, Canary::new()?);
    #[cfg(unix)]
    std::os::unix::fs::symlink(other.path(), canary.folder().join("out"))?;
    let sandbox = mounted(t, &canary, MountAccess::ReadWrite).await?;
    let output = run(&sandbox, "cat /mounted/out; echo x > /mounted/out").await?;
    ensure!(!output.stdout.text().contains("canary"), "a link in a mount reads another folder of the host");
    if let Some(files) = sandbox.files() {
        let read = files.read("/mounted/out").await;
        ensure!(read.is_err(), "a link in a mount reads another folder of the host by `files.read`");
        files.write("/mounted/out", "x").await.ok();
    }
    other.untouched()
}

async fn a_source_that_is_not_there_leaves_nothing(t: &Bench) -> Check {
    let spec = t.spec().mounts(Mount::read_only("/no/such/folder", "/mounted"));
    let create = async { t.create(spec).await.map(drop) };
    let (result, traces) = caused(t.oracle(), create).await;
    fails(result, &[ErrorKind::NotFound, ErrorKind::InvalidArgument])?;
    let left: Vec<_> = traces.iter().filter(|trace| !trace.starts_with("new: request ")).collect();
    ensure!(left.is_empty(), "a create that failed leaves something: {left:?}");
    Ok(())
}
