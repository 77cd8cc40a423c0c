//! Containers to test in.

use std::fs;
use std::future::Future;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Stdio;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use capbox_guest::client::{Event, Relay};
use capbox_guest::proto::{Contain, Exec, Exit, Stream};
use libtest_mimic::Failed;
use tokio::process::{Child, Command};

pub(crate) type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;
type Body = fn(Place) -> Pin<Box<dyn Future<Output = Outcome>>>;

#[derive(Clone, Copy)]
pub(crate) struct Test {
    pub(crate) name: &'static str,
    pub(crate) body: Body,
}

/// `tests! { name, … }`: a list of the functions with these names.
macro_rules! tests {
    ($($name:ident,)*) => {
        pub(crate) fn tests() -> Vec<crate::support::Test> {
            vec![$(crate::support::Test {
                name: concat!(module_path!(), "::", stringify!($name)),
                body: |place| Box::pin($name(place)),
            },)*]
        }
    };
}
pub(crate) use tests;

/// The group of the guest's file: not one that it is started with.
const GROUP: u32 = 65_534;

/// Where a test runs.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Place {
    /// In namespaces made by hand.
    Bare,
    /// In a container of an engine.
    Engine,
}

impl Place {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Engine => "engine",
        }
    }
}

pub(crate) fn places() -> Vec<Place> {
    let mut places = Vec::new();
    // SAFETY: takes no pointers.
    let root = unsafe { capbox_guest::raw!(capbox_guest::sys::nr::GETUID) } == Ok(0);
    if root && Path::new(BUSYBOX).exists() {
        places.push(Place::Bare);
    } else {
        eprintln!(
            "skipped: containers made by hand, which take root and `{BUSYBOX}` (package `busybox-static`)"
        );
    }
    if engine().is_some() {
        places.push(Place::Engine);
    } else {
        eprintln!(
            "skipped: containers of an engine; set `CAPBOX_TEST_DOCKER_HOST` and `CAPBOX_TEST_DOCKER_IMAGE`"
        );
    }
    places
}

const BUSYBOX: &str = "/usr/bin/busybox";

fn engine() -> Option<&'static (String, String)> {
    static ENGINE: OnceLock<Option<(String, String)>> = OnceLock::new();
    let read = || {
        Some((
            std::env::var("CAPBOX_TEST_DOCKER_HOST").ok()?,
            std::env::var("CAPBOX_TEST_DOCKER_IMAGE").ok()?,
        ))
    };
    ENGINE.get_or_init(read).as_ref()
}

pub(crate) fn run(place: Place, test: Test) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let body = async { tokio::time::timeout(Duration::from_mins(2), (test.body)(place)).await };
    let result = runtime.block_on(body);
    runtime.shutdown_timeout(Duration::from_secs(1));
    match result {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(format!("{error:?}: {error}").into()),
        Err(_) => Err("took more than two minutes".into()),
    }
}

/// A folder of this run, with the root file system that all bare containers share, and the guest's file.
fn scratch() -> &'static Path {
    static SCRATCH: OnceLock<PathBuf> = OnceLock::new();
    SCRATCH.get_or_init(|| {
        let path = std::env::temp_dir().join(format!("capbox-test-{}", std::process::id()));
        make_root(&path).expect("make a root file system");
        path
    })
}

fn make_root(path: &Path) -> std::io::Result<()> {
    for folder in
        ["guest", "over", "root/.capbox", "root/bin", "root/dev", "root/etc", "root/proc", "root/tmp"]
    {
        fs::create_dir_all(path.join(folder))?;
    }
    let guest = path.join("guest/guest");
    fs::write(&guest, capbox_guest::PROGRAM)?;
    chown(&guest, Some(0), Some(GROUP))?;
    fs::set_permissions(&guest, PermissionsExt::from_mode(0o2755))?;
    let root = path.join("root");
    fs::set_permissions(root.join("tmp"), PermissionsExt::from_mode(0o1777))?;
    if Path::new(BUSYBOX).exists() {
        fs::copy(BUSYBOX, root.join("bin/busybox"))?;
        let list = std::process::Command::new(BUSYBOX).arg("--list").output()?;
        for name in String::from_utf8_lossy(&list.stdout).lines().filter(|name| *name != "busybox") {
            symlink("busybox", root.join("bin").join(name))?;
        }
    }
    fs::write(
        root.join("etc/passwd"),
        "root:x:0:0:root:/root:/bin/sh\nnode:x:1000:1000::/home/node:/bin/sh\n",
    )?;
    fs::write(root.join("etc/group"), "root:x:0:\nnode:x:1000:\nextra:x:2000:node\n")
}

pub(crate) fn clean_up() {
    let _ = fs::remove_dir_all(std::env::temp_dir().join(format!("capbox-test-{}", std::process::id())));
}

/// A container whose process 1 is the guest. It ends with this.
pub(crate) struct Container {
    place: Place,
    /// The process that holds it.
    holder: Child,
    name: String,
}

impl Container {
    pub(crate) async fn start(place: Place, arguments: &[&str]) -> std::io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("capbox-test-{}-{number}", std::process::id());
        let mut command = match place {
            Place::Bare => bare(),
            Place::Engine => contained(&name),
        };
        command.arg("init").args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        let holder = command.spawn()?;
        let container = Self { place, holder, name };
        container.wait_for_start().await?;
        Ok(container)
    }

    async fn wait_for_start(&self) -> std::io::Result<()> {
        for _ in 0..1000 {
            if self.pid().await.is_some_and(|pid| {
                fs::read_to_string(format!("/proc/{pid}/comm"))
                    .is_ok_and(|name| name.trim() == "capbox-guest")
            }) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Err(std::io::Error::other("the container does not start"))
    }

    /// The number of its process 1 outside.
    pub(crate) async fn pid(&self) -> Option<u32> {
        match self.place {
            Place::Bare => {
                let holder = self.holder.id()?;
                let children = fs::read_to_string(format!("/proc/{holder}/task/{holder}/children")).ok()?;
                children.split_ascii_whitespace().next()?.parse().ok()
            }
            Place::Engine => {
                let output =
                    docker(&["inspect", "--format", "{{.State.Pid}}", &self.name]).output().await.ok()?;
                String::from_utf8_lossy(&output.stdout).trim().parse().ok().filter(|pid| *pid != 0)
            }
        }
    }

    /// A relay, not yet connected to.
    pub(crate) async fn relay_process(&self) -> Result<Child, Box<dyn std::error::Error + Send + Sync>> {
        let mut command = self.outside(&["/.capbox/guest", "relay"]).await?;
        Ok(command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?)
    }

    /// Something that the engine starts in the container.
    pub(crate) async fn outside(
        &self,
        argv: &[&str],
    ) -> Result<Command, Box<dyn std::error::Error + Send + Sync>> {
        Ok(match self.place {
            Place::Bare => {
                let pid = self.pid().await.ok_or("the container has ended")?;
                let mut command = Command::new("nsenter");
                let target = format!("--target={pid}");
                command.args([&target, "--mount", "--net", "--pid", "--root", "--wd"]).args(argv);
                command
            }
            Place::Engine => {
                let mut command = docker(&["exec", "-i", "-u", "0", &self.name]);
                command.args(argv);
                command
            }
        })
    }

    /// A relay that is connected, and the process that carries it.
    pub(crate) async fn relay(&self) -> Result<(Relay, Child), Box<dyn std::error::Error + Send + Sync>> {
        let mut process = self.relay_process().await?;
        let (input, output) = (process.stdin.take().ok_or("stdin")?, process.stdout.take().ok_or("stdout")?);
        Ok((Relay::connect(output, input).await?, process))
    }

    /// What an engine does to stop it.
    pub(crate) async fn stop(&self) -> Outcome {
        let stopped = match self.place {
            Place::Bare => {
                let pid = self.pid().await.ok_or("the container has ended")?;
                Command::new("kill").args(["-TERM", &pid.to_string()]).output().await?
            }
            // It must not need to be killed.
            Place::Engine => docker(&["stop", "--time=60", &self.name]).output().await?,
        };
        if stopped.status.success() { Ok(()) } else { Err(format!("{stopped:?}").into()) }
    }

    /// Kills all relays, from outside.
    pub(crate) async fn kill_relays(&self) -> Outcome {
        let script = "for c in /proc/[0-9]*/comm; do read n < $c && [ $n = capbox-relay ] && \
                      { p=${c%/comm}; kill -9 ${p#/proc/}; }; done; true";
        self.outside(&["sh", "-c", script]).await?.output().await?;
        Ok(())
    }

    /// Waits until it has ended.
    pub(crate) async fn ended(&mut self) -> std::io::Result<()> {
        self.holder.wait().await.map(drop)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if self.place == Place::Engine {
            let (host, _) = engine().expect("an engine");
            let _ = std::process::Command::new("docker")
                .args(["-H", host, "rm", "-f", &self.name])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
        }
    }
}

fn docker(arguments: &[&str]) -> Command {
    let (host, _) = engine().expect("an engine");
    let mut command = Command::new("docker");
    command.args(["-H", host]).args(arguments);
    command
}

/// Namespaces, and an own copy of the root file system as far as it is written to.
fn bare() -> Command {
    const SCRIPT: &str = r#"
        set -e
        mount --make-rprivate /
        cd "$1"
        mount -t tmpfs none over
        mkdir over/upper over/work over/root
        mount -t overlay none -o lowerdir=root,upperdir=over/upper,workdir=over/work over/root
        cd over/root
        mount --bind "$1/guest" .capbox
        mount -o remount,bind,ro .capbox
        mount -t tmpfs none dev
        mkdir dev/pts dev/shm
        touch dev/null dev/zero dev/tty
        mount --bind /dev/null dev/null
        mount --bind /dev/zero dev/zero
        mount --bind /dev/tty dev/tty
        mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts dev/pts
        ln -s pts/ptmx dev/ptmx
        mount -t proc proc proc
        mkdir -p root home/node
        chown 1000:1000 home/node
        shift
        # What engines leave: chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap, net_bind_service,
        # net_raw, sys_chroot, mknod, audit_write, setfcap.
        exec setpriv --bounding-set=-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service,+net_raw,+sys_chroot,+mknod,+audit_write,+setfcap \
            chroot . /.capbox/guest "$@"
    "#;
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--net", "--mount", "--ipc"]);
    command.args(["sh", "-c", SCRIPT, "sh"]).arg(scratch());
    command.stderr(Stdio::inherit());
    command
}

/// A container of the engine, with the guest's file in a volume-like mount that cannot be written.
fn contained(name: &str) -> Command {
    let (_, image) = engine().expect("an engine");
    let volume = format!("{}:/.capbox:ro", scratch().join("guest").display());
    let entry = "--entrypoint=/.capbox/guest";
    let mut command =
        docker(&["run", "--rm", "--name", name, "--network=none", "-u", "0", "-v", &volume, entry]);
    command.args(["--pids-limit=2048", image]);
    command
}

/// What a container of the tests is told: owned, with a `PATH`, a variable of its own, and root as its user.
pub(crate) fn contain() -> Contain {
    Contain {
        id: "test".into(),
        env: vec![("PATH".into(), "/bin:/usr/bin:/sbin:/usr/sbin".into()), ("IMAGE".into(), "a b".into())],
        cwd: "/tmp".into(),
        owned: true,
        ttl: 120_000,
        version: "7".into(),
        ..Contain::default()
    }
}

/// A container that knows what it is for, and its owner's relay.
pub(crate) struct Sandbox {
    pub(crate) relay: Relay,
    pub(crate) process: Child,
    pub(crate) container: Container,
}

pub(crate) async fn sandbox(place: Place) -> Result<Sandbox, Box<dyn std::error::Error + Send + Sync>> {
    sandbox_with(place, contain()).await
}

pub(crate) async fn sandbox_with(
    place: Place,
    contain: Contain,
) -> Result<Sandbox, Box<dyn std::error::Error + Send + Sync>> {
    let container = Container::start(place, &[]).await?;
    let (relay, process) = container.relay().await?;
    relay.boot(contain).await?;
    Ok(Sandbox { relay, process, container })
}

pub(crate) fn argv(words: &[&str]) -> Exec {
    Exec { argv: words.iter().map(|word| (*word).into()).collect(), ..Exec::default() }
}

pub(crate) fn sh(script: &str) -> Exec {
    argv(&["sh", "-c", script])
}

/// What a command wrote, and how it ended.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) exit: Exit,
}

impl Output {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// The exit code, if there is one.
    pub(crate) fn code(&self) -> Option<i32> {
        let [signal, code, ..] = self.exit.status.to_le_bytes();
        (signal.trailing_zeros() >= 7).then_some(code.into())
    }
}

pub(crate) async fn run_job(relay: &Relay, exec: Exec) -> Result<Output, capbox_guest::client::Error> {
    collect(relay.exec(exec).await?).await
}

pub(crate) async fn collect(
    mut job: capbox_guest::client::Job,
) -> Result<Output, capbox_guest::client::Error> {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    while let Some(event) = job.next().await? {
        match event {
            Event::Output { stream: Stream::Stdout, data, .. } => stdout.extend_from_slice(&data),
            Event::Output { stream: Stream::Stderr, data, .. } => stderr.extend_from_slice(&data),
            Event::Exited(exit) => return Ok(Output { stdout, stderr, exit }),
            _ => {}
        }
    }
    unreachable!("a job ends with its exit")
}

/// What a script prints.
pub(crate) async fn print(relay: &Relay, script: &str) -> Result<String, capbox_guest::client::Error> {
    let output = run_job(relay, sh(script)).await?;
    Ok(output.text() + &String::from_utf8_lossy(&output.stderr))
}

/// Waits for something that is bound to come.
pub(crate) async fn until<F: Future<Output = bool>>(mut condition: impl FnMut() -> F) {
    while !condition().await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
