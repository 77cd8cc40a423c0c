//! How sandboxes begin, are found, and end, and that nothing stays.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use capbox_host::{Config, Error, Host, Launch};

use crate::support::{Outcome, host, print, run_sh, scratch, sh, tests};

tests! {
    Both destroy_leaves_nothing,
    Both dropping_the_owner_leaves_nothing,
    Both a_cancelled_launch_leaves_nothing,
    Both a_killed_owner_leaves_nothing,
    Both a_detached_sandbox_outlives_its_process,
    Both time_to_live_ends_it,
    Both names_are_taken_once,
    Both bad_names_are_refused,
    Both a_killed_guest_is_gone_and_reaped,
    Both what_is_gone_does_not_run,
    Both info_tells_what_was_given,
    Both nobody_waits_for_the_guest,
    Both a_sandbox_in_memory,
    Both many_at_once,
    Both a_probe_tells_the_truth,
    Root a_state_folder_without_overlay_falls_back_to_memory,
    Root a_socket_of_another_user_is_not_trusted,
}

/// What is in the folder of sandboxes.
fn folders(host: &Host) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(host.state_dir().join("sandboxes")).expect("list sandboxes");
    entries.flatten().map(|entry| entry.path()).collect()
}

pub(crate) fn own_host(name: &str) -> Result<Host, Error> {
    let mut config = Config::default();
    config.state_dir = Some(scratch(name));
    Host::open(config)
}

async fn until_empty(host: &Host) -> Outcome {
    for _ in 0..300 {
        if folders(host).is_empty() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Err(format!("left behind: {:?}", folders(host)).into())
}

const HARD_TO_REMOVE: &str = "
    mkdir -p /tmp/locked/in; echo x > /tmp/locked/in/f; chmod 0 /tmp/locked/in/f /tmp/locked/in /tmp/locked
    cd /tmp; i=0; while [ $i -lt 300 ]; do mkdir -p d/d/d/d/d/d/d/d/d/d; cd d/d/d/d/d/d/d/d/d/d; i=$((i+1)); done; echo deep > f
    cd /tmp; mkdir many; cd many; seq 1 2000 | xargs touch; ln -s /etc/passwd link; mkfifo fifo
    rm -rf /var/log /srv; mkdir /srv; echo x > /var/lib/x; true";

async fn destroy_leaves_nothing() -> Outcome {
    let host = own_host("destroy")?;
    let guest = host.launch(Launch::default()).await?;
    let output = run_sh(&guest, HARD_TO_REMOVE).await?;
    assert_eq!(output.exit.code, Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let job = guest.exec(sh("sleep 60")).await?;
    assert_eq!(folders(&host).len(), 1);
    guest.destroy().await?;
    assert_eq!(folders(&host), Vec::<PathBuf>::new());
    // Everything after says so, and never a made-up exit.
    let mut job = job;
    assert!(matches!(job.next().await, Err(Error::Gone { .. })));
    assert!(matches!(guest.exec(sh("true")).await, Err(Error::Gone { .. })));
    guest.destroy().await?;
    Ok(())
}

async fn dropping_the_owner_leaves_nothing() -> Outcome {
    let host = own_host("drop")?;
    let guest = host.launch(Launch::default()).await?;
    guest.spawn(sh("setsid sleep 60 & sleep 60")).await?;
    drop(guest);
    until_empty(&host).await
}

async fn a_cancelled_launch_leaves_nothing() -> Outcome {
    let host = own_host("cancel")?;
    for micros in [0, 50, 100, 200, 400, 600, 800, 1000, 1500, 2000, 3000] {
        let launch = host.launch(Launch::default());
        let _ = tokio::time::timeout(Duration::from_micros(micros), launch).await;
    }
    until_empty(&host).await
}

/// Started by the tests below: makes a sandbox, tells its id, waits.
pub(crate) async fn child(state: &str, detach: bool) -> Outcome {
    let mut config = Config::default();
    config.state_dir = Some(state.into());
    let host = Host::open(config)?;
    let mut launch = Launch::default();
    launch.detached = detach;
    let guest = host.launch(launch).await?;
    let job = guest.spawn(sh("echo begun; sleep 0.2; echo more; sleep 600")).await?;
    println!("{} {job}", guest.id());
    std::io::stdout().flush()?;
    tokio::time::sleep(Duration::from_mins(10)).await;
    Ok(())
}

fn start_child(
    host: &Host,
    detach: bool,
) -> Result<(std::process::Child, String, String), Box<dyn std::error::Error + Send + Sync>> {
    let mut child = Command::new(std::env::current_exe()?)
        .env("CAPBOX_TEST_CHILD", host.state_dir())
        .env("CAPBOX_TEST_DETACH", if detach { "1" } else { "" })
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().ok_or("no stdout")?).read_line(&mut line)?;
    let (id, job) = line.trim().split_once(' ').ok_or("no id")?;
    Ok((child, id.to_owned(), job.to_owned()))
}

/// B146.
async fn a_killed_owner_leaves_nothing() -> Outcome {
    let host = own_host("killed")?;
    let (mut child, id, _) = start_child(&host, false)?;
    let guest = host.connect(&id).await?;
    child.kill()?;
    child.wait()?;
    until_empty(&host).await?;
    assert!(matches!(guest.exec(sh("true")).await, Err(Error::Gone { .. })));
    Ok(())
}

/// B70.
async fn a_detached_sandbox_outlives_its_process() -> Outcome {
    let host = own_host("detached")?;
    let (mut child, id, job) = start_child(&host, true)?;
    child.kill()?;
    child.wait()?;
    tokio::time::sleep(Duration::from_millis(400)).await;
    let guest = host.connect(&id).await?;
    let mut attachment = guest.attach(&job, 0, false).await?;
    let mut text = Vec::new();
    while text.len() < 11 {
        match attachment.next().await? {
            Some(capbox_host::Event::Output { data, .. }) => text.extend_from_slice(&data),
            other => return Err(format!("{other:?}").into()),
        }
    }
    assert_eq!(text, b"begun\nmore\n");
    assert_eq!(host.list().await?.len(), 1);
    guest.destroy().await?;
    assert!(folders(&host).is_empty());
    assert!(matches!(host.connect(&id).await, Err(Error::NotFound { .. })));
    assert!(host.list().await?.is_empty());
    Ok(())
}

async fn time_to_live_ends_it() -> Outcome {
    let host = own_host("ttl")?;
    let mut launch = Launch::default();
    launch.ttl = Some(Duration::from_millis(300));
    launch.detached = true;
    let start = Instant::now();
    let guest = host.launch(launch).await?;
    let left = guest.info().await?.ttl_left.ok_or("no ttl")?;
    assert!(left <= Duration::from_millis(300));
    let mut job = guest.exec(sh("sleep 60")).await?;
    assert!(matches!(job.next().await, Err(Error::Gone { .. })));
    let took = start.elapsed();
    assert!((Duration::from_millis(290)..Duration::from_secs(1)).contains(&took), "{took:?}");
    until_empty(&host).await?;

    let guest = host.launch(Launch::default()).await?;
    assert!(guest.info().await?.ttl_left.is_none());
    guest.set_ttl(Some(Duration::from_millis(100))).await?;
    until_empty(&host).await
}

async fn names_are_taken_once() -> Outcome {
    let host = own_host("names")?;
    let mut launch = Launch::default();
    launch.name = Some("one".into());
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let (host, launch) = (host.clone(), launch.clone());
        tasks.push(tokio::task::spawn_local(async move { host.launch(launch).await }));
    }
    let mut made = Vec::new();
    for task in tasks {
        match task.await? {
            Ok(guest) => made.push(guest),
            Err(Error::AlreadyExists { name, .. }) => assert_eq!(name, "one"),
            Err(error) => return Err(error.into()),
        }
    }
    assert_eq!(made.len(), 1);
    assert_eq!(host.connect("one").await?.info().await?.id, "one");
    drop(made);
    until_empty(&host).await?;
    host.launch(launch).await?.destroy().await?;
    Ok(())
}

async fn bad_names_are_refused() -> Outcome {
    for name in ["", "..", ".new-x", "a/b", "-a", "A", "sb-abc", "a b", &"x".repeat(64)] {
        let mut launch = Launch::default();
        launch.name = Some(name.into());
        let error = host().launch(launch).await.expect_err(name);
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        if name != "sb-abc" {
            assert!(matches!(host().connect(name).await, Err(Error::NotFound { .. })), "{name}");
        }
    }
    Ok(())
}

/// The number of a guest outside: the process that holds the lock of its folder.
pub(crate) fn outer_pid(host: &Host) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    let inode = std::fs::metadata(folders(host).first()?).ok()?.ino();
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let line = locks.lines().find(|line| line.contains(&format!(":{inode} ")))?;
    line.split_whitespace().nth(4)?.parse().ok()
}

async fn a_killed_guest_is_gone_and_reaped() -> Outcome {
    let host = own_host("reap")?;
    let mut launch = Launch::default();
    launch.name = Some("victim".into());
    let guest = host.launch(launch.clone()).await?;
    run_sh(&guest, HARD_TO_REMOVE).await?;
    let mut job = guest.exec(sh("sleep 60")).await?;
    // One that lives is not touched.
    assert!(host.reap()?.is_empty());
    let pid = outer_pid(&host).ok_or("no lock")?;
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status()?.success());
    assert!(matches!(job.next().await, Err(Error::Gone { .. })));
    // The kernel closes what it had one after the other.
    while matches!(host.connect("victim").await, Err(Error::Gone { .. })) {}
    assert!(matches!(host.connect("victim").await, Err(Error::NotFound { .. })));
    assert_eq!(folders(&host).len(), 1);
    // The name is free at once, and what was left makes place.
    let again = host.launch(launch).await?;
    assert_eq!(print(&again, "ls /tmp").await?, "");
    let pid = outer_pid(&host).ok_or("no lock")?;
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status()?.success());
    for _ in 0..100 {
        if host.reap()? == ["victim"] {
            return until_empty(&host).await;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Err("not reaped".into())
}

/// A process that the kernel takes a while to end. Fails when a closed connection, or a free lock, counts as the end.
async fn what_is_gone_does_not_run() -> Outcome {
    let host = own_host("dying")?;
    let program = "import mmap, time
memory = mmap.mmap(-1, 400 << 20)
memory.madvise(mmap.MADV_NOHUGEPAGE)
for page in range(0, len(memory), 4096): memory[page] = 1
print('ready', flush=True)
time.sleep(600)";
    for reaping in [false, true] {
        let guest = host.launch(Launch::default()).await?;
        let mut job = guest.exec(capbox_host::ExecRequest::new(["python3", "-c", program])).await?;
        assert!(matches!(job.next().await?, Some(capbox_host::Event::Output { .. })));
        let pid = outer_pid(&host).ok_or("no lock")?;
        let code = children(pid);
        assert!(!code.is_empty());
        assert!(Command::new("kill").args(["-9", &pid.to_string()]).status()?.success());
        if reaping {
            while host.reap()?.is_empty() {}
        } else {
            while job.next().await.is_ok() {}
        }
        assert_eq!(code.into_iter().filter(|pid| is_alive(*pid)).collect::<Vec<_>>(), [0; 0], "{reaping}");
        while !folders(&host).is_empty() {
            host.reap()?;
        }
    }
    Ok(())
}

fn children(parent: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .filter(|pid: &u32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            status.lines().any(|line| line == format!("PPid:\t{parent}"))
        })
        .collect()
}

fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

async fn info_tells_what_was_given() -> Outcome {
    let mut launch = Launch::default();
    launch.labels.insert(b"a".to_vec(), b"\xff\0".to_vec());
    launch.meta = b"\x01\x02".to_vec();
    launch.hostname = "box".into();
    launch.cwd = "/work".into();
    launch.env = vec![("MADE".into(), "at creation".into())];
    launch.detached = true;
    let guest = host().launch(launch).await?;
    let info = guest.info().await?;
    assert_eq!((info.labels.get(&b"a"[..]), &info.meta[..]), (Some(&b"\xff\0".to_vec()), &[1, 2][..]));
    assert_eq!((info.owned, info.jobs, info.hostname.as_str()), (false, 0, "box"));
    assert!(info.created.elapsed()? < Duration::from_secs(10));
    assert_eq!(print(&guest, "hostname; pwd; echo $MADE").await?, "box\n/work\nat creation\n");
    guest.destroy().await?;
    Ok(())
}

/// A program that waits for any child does not meet the guest, and one that never does has no zombie.
async fn nobody_waits_for_the_guest() -> Outcome {
    let host = own_host("parent")?;
    let guest = host.launch(Launch::default()).await?;
    let pid = outer_pid(&host).ok_or("no lock")?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:\t")).ok_or("no parent")?;
    assert_ne!(parent, std::process::id().to_string());
    guest.destroy().await?;
    Ok(())
}

async fn a_sandbox_in_memory() -> Outcome {
    let mut launch = Launch::default();
    launch.memory_disk = Some(8 << 20);
    let guest = host().launch(launch).await?;
    let text = print(&guest, "echo x > f; cat f; head -c 20000000 /dev/zero > big || echo full").await?;
    assert!(text.starts_with("x\n") && text.contains("full"), "{text}");
    guest.destroy().await?;
    Ok(())
}

async fn many_at_once() -> Outcome {
    let host = own_host("many")?;
    let mut tasks = Vec::new();
    for _ in 0..30 {
        let host = host.clone();
        tasks.push(tokio::task::spawn_local(async move {
            let guest = host.launch(Launch::default()).await?;
            assert_eq!(print(&guest, "echo hi").await?, "hi\n");
            Ok::<_, Error>(guest)
        }));
    }
    let mut guests = Vec::new();
    for task in tasks {
        guests.push(task.await??);
    }
    assert_eq!(host.list().await?.len(), 30);
    drop(guests);
    until_empty(&host).await
}

/// `SO_PEERCRED`: a folder with a socket that somebody else listens on.
async fn a_socket_of_another_user_is_not_trusted() -> Outcome {
    let host = own_host("impostor")?;
    let folder = host.state_dir().join("sandboxes/impostor");
    std::fs::create_dir(&folder)?;
    let socket =
        rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET, None)?;
    rustix::net::bind(&socket, &rustix::net::SocketAddrUnix::new(folder.join("control"))?)?;
    rustix::net::listen(&socket, 1)?;
    assert!(matches!(host.connect("impostor").await, Err(Error::Permission { .. })));
    // Not ours either to remove: it belongs to root, not to a guest.
    assert!(host.reap()?.is_empty());
    Ok(())
}

async fn a_probe_tells_the_truth() -> Outcome {
    let host = own_host("probe")?;
    let probe = host.probe().await;
    assert!(probe.sandbox.works, "{:?}", probe.sandbox);
    assert_eq!(probe.several_users.works, rustix::process::geteuid().is_root());
    for fact in [&probe.sandbox, &probe.disk, &probe.several_users, &probe.writable_mounts, &probe.cgroups] {
        assert!(!fact.reason.is_empty());
        assert!(fact.works || !fact.hint.is_empty(), "{fact:?}");
    }
    until_empty(&host).await
}

/// An overlay cannot carry the writable layer of another one.
async fn a_state_folder_without_overlay_falls_back_to_memory() -> Outcome {
    let folder = scratch("fallback");
    for name in ["lower", "upper", "work", "merged"] {
        std::fs::create_dir(folder.join(name))?;
    }
    let options = format!("lowerdir={0}/lower,upperdir={0}/upper,workdir={0}/work", folder.display());
    let merged = folder.join("merged");
    let mounted =
        Command::new("mount").args(["-t", "overlay", "overlay", "-o", &options]).arg(&merged).status()?;
    if !mounted.success() {
        println!("skipped: cannot mount an overlay");
        return Ok(());
    }
    let outcome = async {
        let mut config = Config::default();
        config.state_dir = Some(merged.clone());
        let host = Host::open(config)?;
        for _ in 0..2 {
            let guest = host.launch(Launch::default()).await?;
            assert_eq!(
                print(&guest, "echo x > f; cat f; grep -c memory /proc/self/mountinfo").await?,
                "x\n0\n"
            );
            guest.destroy().await?;
        }
        until_empty(&host).await
    }
    .await;
    Command::new("umount").arg(&merged).status()?;
    outcome
}
