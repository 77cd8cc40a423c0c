//! The process that holds an engine: starts it, starts it again when a test kills it, and ends all that came of it when
//! whoever asked for it is gone, however that went.
//!
//! ```text
//! cargo xtask …            holds the lease: the supervisor's standard input
//! └ supervisor             a process group of its own; adopts what the engine leaves behind
//!   ├ holder               its network and mounts are the engine's
//!   └ dockerd              in them
//!     └ containerd, containers, …
//! ```

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, wait};

use crate::tools::Result;

/// The task that is this.
pub(crate) const TASK: &str = "supervise-engine";

/// How long an engine may take to answer.
const STARTS: Duration = Duration::from_mins(1);
/// How soon the end of the lease or of the engine is seen.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// What an engine writes outside of its folders (`/run/containerd`, `/opt/containerd`, `/etc/docker`) goes to a file
/// system of its own. Its network has an address that is not loopback, where containers find what listens here.
const HOLD: &str = "\
set -e
mount -t tmpfs tmpfs /run
for name in etc opt; do
    mkdir -p /run/over/$name/upper /run/over/$name/work
    mount -t overlay -o lowerdir=/$name,upperdir=/run/over/$name/upper,workdir=/run/over/$name/work overlay /$name
done
ip link set lo up
ip link add outside type bridge
ip address add 198.51.100.1/24 dev outside
ip link set outside up
ip route add default via 198.51.100.2
echo ready
exec cat
";

/// Where this process's engine is: short, since the path of a socket must be.
pub(crate) fn folder() -> PathBuf {
    PathBuf::from(format!("/var/tmp/capbox-engine-{}", std::process::id()))
}

pub(crate) fn socket(folder: &Path) -> PathBuf {
    folder.join("docker.sock")
}

pub(crate) fn pid_file(folder: &Path) -> PathBuf {
    folder.join("docker.pid")
}

/// Hold an engine in `folder` until standard input ends. The one line of standard output says `ready HOLDER` or
/// `failed REASON`.
pub(crate) fn task(folder: &Path) -> Result {
    set_child_subreaper(Some(getpid())).map_err(|e| format!("adopt the engine's processes: {e}"))?;
    let held = hold(folder);
    end_descendants();
    for group in cgroups(&cgroup(folder)) {
        remove_cgroup(&group);
    }
    fs::remove_dir_all(folder).map_err(|e| format!("remove `{}`: {e}", folder.display()))?;
    if let Err(reason) = &held {
        say(&format!("failed {}", reason.replace('\n', "; ")));
    }
    held
}

/// What is there of the engine that was in `folder`: processes, mounts, control groups, files.
pub(crate) fn left(folder: &Path) -> Vec<String> {
    let name = cgroup(folder);
    let mut left: Vec<String> = processes()
        .filter(|process| {
            let has = |file: &str| {
                let content = fs::read(process.join(file)).unwrap_or_default();
                String::from_utf8_lossy(&content).contains(&name)
            };
            has("cmdline") || has("cgroup")
        })
        .map(|process| process.display().to_string())
        .collect();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    left.extend(mounts.lines().filter(|mount| mount.contains(&name)).map(str::to_owned));
    left.extend(cgroups(&name).iter().map(|group| group.display().to_string()));
    left.extend(folder.exists().then(|| folder.display().to_string()));
    left
}

fn hold(folder: &Path) -> Result {
    fs::create_dir(folder).map_err(|e| format!("make `{}`: {e}", folder.display()))?;
    configure(folder).map_err(|e| format!("configure the engine: {e}"))?;
    let mut holder = Command::new("unshare")
        .args(["--net", "--mount", "--propagation", "slave", "--", "sh", "-c", HOLD])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| format!("start `unshare`: {e}"))?;
    let mut line = String::new();
    let stdout = holder.stdout.take().expect("piped");
    BufReader::new(stdout).read_line(&mut line).map_err(|e| format!("make namespaces: {e}"))?;
    if line != "ready\n" {
        return Err("this machine lets nobody make a network and mounts".to_owned());
    }

    let mut engine = start(folder, &holder)?;
    say(&format!("ready {}", holder.id()));
    while !lease_ended()? {
        // A test has killed it: it comes back as under any init system.
        if has_ended(&engine) {
            engine = start(folder, &holder)?;
        }
    }
    Ok(())
}

/// All in one file, so that the machine's own `/etc/docker/daemon.json` says nothing.
fn configure(folder: &Path) -> std::io::Result<()> {
    let config = serde_json::json!({
        "hosts": [format!("unix://{}", socket(folder).display())],
        "data-root": folder.join("data"),
        "exec-root": folder.join("exec"),
        "pidfile": pid_file(folder),
        "cgroup-parent": format!("/{}", cgroup(folder)),
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
    });
    fs::write(folder.join("daemon.json"), config.to_string())
}

/// Start the engine in the holder's namespaces, and wait until it answers.
fn start(folder: &Path, holder: &Child) -> Result<Child> {
    let log = folder.join("log");
    let open =
        || fs::File::options().create(true).append(true).open(&log).map_err(|e| format!("open a log: {e}"));
    let engine = Command::new("setpriv")
        .args([
            "--pdeathsig",
            "KILL",
            "nsenter",
            "--target",
            &holder.id().to_string(),
            "--net",
            "--mount",
            "--",
        ])
        .args(["dockerd", "--config-file"])
        .arg(folder.join("daemon.json"))
        .stdin(Stdio::null())
        .stdout(open()?)
        .stderr(open()?)
        .spawn()
        .map_err(|e| format!("start `dockerd`: {e}"))?;
    let begin = Instant::now();
    while !answers(&socket(folder)) {
        if lease_ended()? || has_ended(&engine) || begin.elapsed() > STARTS {
            let log = fs::read_to_string(&log).unwrap_or_default();
            let last = log.lines().last().unwrap_or("it says nothing");
            return Err(format!("`dockerd` does not start: {last}"));
        }
    }
    Ok(engine)
}

/// Reap whatever of ours has ended, which the engine takes for alive else; true if the engine is among it.
fn has_ended(engine: &Child) -> bool {
    let mut ended = false;
    while let Ok(Some((pid, _))) = wait(WaitOptions::NOHANG) {
        ended |= Pid::from_child(engine) == pid;
    }
    ended
}

fn answers(socket: &Path) -> bool {
    let ask = || {
        let mut stream = UnixStream::connect(socket)?;
        stream.write_all(b"GET /_ping HTTP/1.0\r\n\r\n")?;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer)?;
        Ok::<_, std::io::Error>(answer)
    };
    ask().is_ok_and(|answer| answer.ends_with(b" 200"))
}

/// True once nobody holds the other end of our standard input; waits a tick for that.
fn lease_ended() -> Result<bool> {
    let stdin = std::io::stdin();
    let mut polled = [PollFd::new(&stdin, PollFlags::empty())]; // a hang-up is always told
    match poll(&mut polled, Some(&TICK)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(format!("watch the lease: {error}")),
    }
}

fn say(line: &str) {
    let mut stdout = std::io::stdout();
    // Whoever asked may be gone, which the lease tells.
    writeln!(stdout, "{line}").and_then(|()| stdout.flush()).ok();
}

/// Kill and reap all that came of the engine. What a killed process leaves becomes our child, and is next.
fn end_descendants() {
    loop {
        for child in children() {
            kill_process(child, Signal::KILL).ok();
        }
        if wait(WaitOptions::empty()).is_err() {
            return;
        }
    }
}

fn children() -> Vec<Pid> {
    let us = std::process::id().to_string();
    let child = |process: PathBuf| {
        let stat = fs::read_to_string(process.join("stat")).ok()?;
        // `PID (NAME) STATE PARENT …`, where the name may hold anything.
        let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?;
        if parent == us { Pid::from_raw(process.file_name()?.to_str()?.parse().ok()?) } else { None }
    };
    processes().filter_map(child).collect()
}

/// The folders of all processes.
fn processes() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let process = |name: &str| name.starts_with(|c: char| c.is_ascii_digit());
    entries.filter(move |entry| entry.file_name().to_str().is_some_and(process)).map(|entry| entry.path())
}

/// The name of the control group of all containers.
fn cgroup(folder: &Path) -> String {
    folder.file_name().expect("a name").to_string_lossy().into_owned()
}

/// The groups of this name: below the root (version 2), or below each controller's (version 1).
fn cgroups(name: &str) -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let controllers = fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
    std::iter::once(root.to_owned())
        .chain(controllers)
        .map(|parent| parent.join(name))
        .filter(|group| group.is_dir())
        .collect()
}

fn remove_cgroup(group: &Path) {
    let Ok(entries) = fs::read_dir(group) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        remove_cgroup(&entry.path());
    }
    fs::remove_dir(group).ok();
}
