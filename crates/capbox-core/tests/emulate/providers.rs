//! Providers whose sandboxes are folders of this machine in which real shells run, with as little as can be native.

use std::ffi::OsString;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command as StdCommand, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use capbox_core::api::Files;
use capbox_core::capability::rows::*;
use capbox_core::emulate::*;
use capbox_core::provider::*;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin};
use tokio::sync::mpsc;

/// Which shell and tools a sandbox has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tools {
    /// `sh` as it is here, and GNU tools.
    Gnu,
    /// `bash` as `sh`, and GNU tools.
    Bash,
    /// `busybox`, and nothing else.
    Busybox,
}

/// What the sandboxes of [`Real`] can do by themselves: run with input.
pub(crate) const RUN: u8 = 0;
/// Stream, with input and open input.
pub(crate) const STREAM: u8 = 1;
/// Run, but not tell the exit code.
pub(crate) const CODELESS: u8 = 2;

/// A provider on this machine; a `POOR` one merges the streams and garbles what is not text.
pub(crate) struct Real<const KIND: u8, const POOR: bool>(pub(crate) Tools);

pub(crate) type Bare = Real<RUN, false>;
pub(crate) type PoorBare = Real<RUN, true>;
pub(crate) type Piped = Real<STREAM, false>;
pub(crate) type PoorPiped = Real<STREAM, true>;
pub(crate) type Codeless = Real<CODELESS, false>;

/// What tests of files need.
pub(crate) trait Whole:
    Table
    + HasRun
    + HasInput
    + HasExecCwd
    + HasExecEnv
    + HasTimeout
    + HasFilesRead
    + HasFilesWrite
    + HasFilesList
    + HasFilesModify
    + HasFilesPermissions
    + HasFilesWatch
    + HasFilesSearch
{
}
impl Whole for Bare {}
impl Whole for PoorBare {}
impl Whole for Piped {}
impl Whole for PoorPiped {}

/// What tests of commands need.
pub(crate) trait Runs: Table + HasRun + HasInput + HasExecCwd + HasExecEnv + HasTimeout {}
impl Runs for Bare {}
impl Runs for Piped {}
impl Runs for Codeless {}

/// What tests of copies need.
pub(crate) trait Copies: Whole + HasStreaming + HasFilesUpload + HasFilesTree {}
impl Copies for Piped {}
impl Copies for PoorPiped {}

/// A sandbox, and the folder that it is.
pub(crate) struct Place<P: Table> {
    pub(crate) sandbox: Sandbox<P>,
    pub(crate) dir: PathBuf,
}

impl<const KIND: u8, const POOR: bool> Real<KIND, POOR>
where
    Self: Table<Session = Session<KIND, POOR>, NativeSandbox = Session<KIND, POOR>>,
{
    /// A new sandbox; none, with a printed reason, where the tools are not there.
    pub(crate) async fn place(tools: Tools) -> Option<Place<Self>> {
        if tools.path().is_none() {
            println!("skipped: {tools:?} is not installed");
            return None;
        }
        let client = Client::new(Self(tools));
        let sandbox = client.create_with(Spec::new().network(Network::open())).await.unwrap();
        let dir = sandbox.native().dir.path().to_owned();
        Some(Place { sandbox, dir })
    }
}

impl<P: Table + HasFilesRead> Place<P> {
    pub(crate) fn files(&self) -> Files<P> {
        self.sandbox.files()
    }
}

impl<P: Table> Place<P> {
    /// Names that begin like those of unfinished files.
    pub(crate) fn leftovers(&self) -> Vec<OsString> {
        leftovers(&self.dir)
    }
}

/// Names in `dir` that begin like those of unfinished files.
pub(crate) fn leftovers(dir: &Path) -> Vec<OsString> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().starts_with(".capbox-")).collect()
}

impl Tools {
    /// The `PATH` that leads to them.
    fn path(self) -> Option<OsString> {
        static DIRS: Mutex<Vec<(Tools, Option<TempDir>)>> = Mutex::new(Vec::new());
        if self == Self::Gnu {
            return Some("/usr/bin:/bin".into());
        }
        let mut dirs = DIRS.lock().unwrap();
        if !dirs.iter().any(|(tools, _)| *tools == self) {
            dirs.push((self, self.install()));
        }
        let dir = dirs.iter().find(|(tools, _)| *tools == self)?.1.as_ref()?.path();
        Some(if self == Self::Bash { format!("{}:/usr/bin:/bin", dir.display()).into() } else { dir.into() })
    }

    fn install(self) -> Option<TempDir> {
        let program = if self == Self::Bash { "bash" } else { "busybox" };
        let program =
            ["/bin", "/usr/bin"].map(|dir| Path::new(dir).join(program)).into_iter().find(|p| p.exists())?;
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let names = if self == Self::Bash {
            "sh".to_owned()
        } else {
            String::from_utf8(StdCommand::new(&program).arg("--list").output().unwrap().stdout).unwrap()
        };
        for name in names.lines() {
            symlink(&program, dir.path().join(name)).unwrap();
        }
        Some(dir)
    }
}

/// Everybody's least: where tests run as root, programs do not, so that permissions hold.
const NOBODY: u32 = 65534;

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub(crate) struct Session<const KIND: u8, const POOR: bool> {
    id: String,
    pub(crate) dir: TempDir,
    path: Mutex<OsString>,
    /// Lose the second half of what comes in.
    pub(crate) cut_input: AtomicBool,
    /// The argv of the last command.
    pub(crate) last: Mutex<Vec<OsString>>,
}

#[derive(Default)]
pub(crate) struct NewSandbox;
impl Accept<cap::EgressOpen> for NewSandbox {
    fn accept(&mut self, _: OpenEgress) {}
}
impl Accept<cap::Ttl> for NewSandbox {
    fn accept(&mut self, _: Duration) {}
}

pub(crate) struct Body<const KIND: u8> {
    wrapped: Wrapped,
    max_output: usize,
    input: Bytes,
    stdin: bool,
}
impl<const KIND: u8> From<Command> for Body<KIND> {
    fn from(command: Command) -> Self {
        Self { max_output: command.max_output, wrapped: command.into(), input: Bytes::new(), stdin: false }
    }
}
impl<const KIND: u8> AsMut<Wrapped> for Body<KIND> {
    fn as_mut(&mut self) -> &mut Wrapped {
        &mut self.wrapped
    }
}
impl<const KIND: u8> Accept<cap::Input> for Body<KIND> {
    fn accept(&mut self, input: Input) {
        self.input = input.0;
    }
}
impl Accept<cap::Stdin> for Body<STREAM> {
    fn accept(&mut self, _: Stdin) {
        self.stdin = true;
    }
}

const RICH: Flags = Flags::DEFAULT.streams(Streams::Separate).output_bytes(OutputBytes::Exact);

#[async_trait]
impl<const KIND: u8, const POOR: bool> Backend for Real<KIND, POOR> {
    const ID: &'static str = "real";
    const FLAGS: Flags = if POOR { Flags::DEFAULT } else { RICH };
    type Session = Session<KIND, POOR>;
    type Create = NewSandbox;
    type Exec = Body<KIND>;
    type NativeClient = ();
    type NativeSandbox = Session<KIND, POOR>;

    async fn create(&self, _: NewSandbox) -> Result<Created<Self::Session>> {
        let dir = tempfile::tempdir().unwrap();
        if is_root() {
            chown(dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let mut path = self.0.path().unwrap();
        path.push(":");
        path.push(dir.path());
        Ok(Created::new(Session {
            id: dir.path().display().to_string(),
            dir,
            path: Mutex::new(path),
            cut_input: AtomicBool::new(false),
            last: Mutex::default(),
        }))
    }
    fn id(session: &Self::Session) -> &str {
        &session.id
    }
    async fn destroy(_: &Self::Session) -> Result<()> {
        Ok(())
    }
    async fn detach(_: &Self::Session) -> Result<()> {
        Ok(())
    }
    async fn reap(&self) -> Result<Vec<String>> {
        Ok(vec![])
    }
    fn native_client(&self) -> &() {
        &()
    }
    fn native(session: &Self::Session) -> &Self::NativeSandbox {
        session
    }
}

impl<const KIND: u8, const POOR: bool> Session<KIND, POOR> {
    /// Look for programs in `dir` first.
    pub(crate) fn prepend_path(&self, dir: &Path) {
        let mut path = self.path.lock().unwrap();
        *path = format!("{}:{}", dir.display(), path.display()).into();
    }

    /// Look for programs in `dir` alone.
    pub(crate) fn set_path(&self, dir: &Path) {
        *self.path.lock().unwrap() = dir.into();
    }

    fn start(&self, body: &Body<KIND>) -> Result<(ProcessEvents<POOR>, ChildStdin)> {
        let argv = body.wrapped.argv()?;
        self.last.lock().unwrap().clone_from(&argv);
        let mut command = tokio::process::Command::new(&argv[0]);
        command
            .args(&argv[1..])
            .current_dir(self.dir.path())
            .env_clear()
            .env("PATH", &*self.path.lock().unwrap())
            .env("TZ", "America/New_York")
            .env("LC_ALL", "C.UTF-8")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        if is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        let mut child = command.spawn().map_err(|e| {
            let kind = match e.kind() {
                std::io::ErrorKind::NotFound => ErrorKind::ProgramNotFound,
                _ => ErrorKind::ProgramNotExecutable,
            };
            Error::new(kind, e.to_string())
        })?;
        let stdin = child.stdin.take().unwrap();
        Ok((ProcessEvents::follow(child), stdin))
    }

    /// The process's events, with all input on its way.
    fn feed(&self, body: &Body<KIND>) -> Result<(Box<dyn Events>, Option<ChildStdin>)> {
        let (events, mut stdin) = self.start(body)?;
        let events = Box::new(events);
        if body.stdin {
            return Ok((events, Some(stdin)));
        }
        let mut input = body.input.clone();
        if self.cut_input.load(Ordering::Relaxed) {
            input.truncate(input.len() / 2);
        }
        tokio::spawn(async move { stdin.write_all(&input).await });
        Ok((events, None))
    }
}

#[async_trait]
impl<const POOR: bool> Run<Body<RUN>> for Session<RUN, POOR> {
    async fn run(&self, body: Body<RUN>) -> Result<Output> {
        let (events, _) = self.feed(&body)?;
        body.wrapped.output(collect(events, body.max_output).await?)
    }
}

#[async_trait]
impl<const POOR: bool> Streaming<Body<STREAM>> for Session<STREAM, POOR> {
    async fn spawn(&self, body: Body<STREAM>) -> Result<Spawned> {
        let (events, stdin) = self.feed(&body)?;
        let events = body.wrapped.events(events);
        Ok(Spawned { id: "one".into(), events, stdin: stdin.map(|stdin| Box::pin(stdin) as Writer) })
    }
}

#[async_trait]
impl<const POOR: bool> RawRun<Body<CODELESS>> for Session<CODELESS, POOR> {
    async fn run_raw(&self, body: Body<CODELESS>) -> Result<Output> {
        let (events, _) = self.feed(&body)?;
        let mut output = collect(events, body.max_output).await?;
        output.status = ExitStatus::Unknown;
        Ok(output)
    }
}

struct ProcessEvents<const POOR: bool> {
    child: Child,
    chunks: mpsc::Receiver<(OutputStream, Bytes)>,
    position: u64,
    status: Option<ExitStatus>,
    over: bool,
}

impl<const POOR: bool> ProcessEvents<POOR> {
    fn follow(mut child: Child) -> Self {
        let (sender, chunks) = mpsc::channel(4);
        tokio::spawn(pump(child.stdout.take().unwrap(), OutputStream::Stdout, sender.clone()));
        tokio::spawn(pump(child.stderr.take().unwrap(), OutputStream::Stderr, sender));
        Self { child, chunks, position: 0, status: None, over: false }
    }

    fn output(&mut self, (stream, bytes): (OutputStream, Bytes)) -> Event {
        let (stream, bytes) = if POOR { (OutputStream::Stdout, garbled(&bytes)) } else { (stream, bytes) };
        let position = self.position;
        self.position += bytes.len() as u64;
        Event::Output { stream, position, bytes }
    }
}

/// As some clouds have it: no NUL, and nothing that is not UTF-8.
fn garbled(bytes: &[u8]) -> Bytes {
    String::from_utf8_lossy(bytes).replace('\0', "").into_bytes().into()
}

async fn pump(
    mut pipe: impl tokio::io::AsyncRead + Unpin,
    stream: OutputStream,
    sender: mpsc::Sender<(OutputStream, Bytes)>,
) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(n @ 1..) = pipe.read(&mut buffer).await {
        if sender.send((stream, Bytes::copy_from_slice(&buffer[..n]))).await.is_err() {
            return;
        }
    }
}

#[async_trait]
impl<const POOR: bool> Events for ProcessEvents<POOR> {
    async fn next(&mut self) -> Result<Option<Event>> {
        if self.over {
            return Ok(None);
        }
        if self.status.is_none() {
            let ended = tokio::select! {
                biased;
                chunk = self.chunks.recv() => match chunk {
                    Some(chunk) => return Ok(Some(self.output(chunk))),
                    None => self.child.wait().await,
                },
                ended = self.child.wait() => ended,
            };
            let ended = ended.unwrap();
            self.status = Some(match (ended.code(), ended.signal()) {
                (Some(code), _) => ExitStatus::Exited(code),
                (None, Some(signal)) => ExitStatus::Signaled(signal),
                (None, None) => ExitStatus::Unknown,
            });
        }
        // What is still in the pipes; a background process may hold them open.
        if let Ok(Some(chunk)) = tokio::time::timeout(Duration::from_millis(200), self.chunks.recv()).await {
            return Ok(Some(self.output(chunk)));
        }
        self.over = true;
        Ok(self.status.map(|status| Event::Exited(Exit::new(status))))
    }
}

impl<const POOR: bool> Drop for ProcessEvents<POOR> {
    fn drop(&mut self) {
        if let (None, Some(pid)) = (self.status, self.child.id()) {
            let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
            rustix::process::kill_process_group(pid, rustix::process::Signal::KILL).ok();
        }
    }
}

/// Rows that tests of emulations do without, beside those that are given.
#[macro_export]
macro_rules! lean_table {
    ($P:ident { $($given:tt)* }) => { capbox_core::table! { $P { $($given)*
        List: No = "lean"; Connect: No = "lean"; SnapshotList: No = "lean"; PrepareImage: No = "lean";
        ExecList: No = "lean";
        Attach: No = "lean"; Replay: No = "lean"; KillProcess: No = "lean"; Signal: No = "lean";
        PtyResize: No = "lean"; Background: No = "lean"; Pty: No = "lean"; Name: No = "lean";
        Labels: No = "lean"; Env: No = "lean"; OnTimeout: No = "lean"; IdleTimeout: No = "lean";
        OnIdle: No = "lean"; AutoResume: No = "lean"; ImageName: No = "lean"; ImageArchive: No = "lean";
        ImageContext: No = "lean"; Template: No = "lean"; Cpu: No = "lean"; Memory: No = "lean";
        Disk: No = "lean"; Processes: No = "lean"; Gpu: No = "lean"; Region: No = "lean";
        FilesMount: No = "lean"; EgressControl: No = "lean"; EgressCidr: No = "lean"; EgressHost: No = "lean";
        EgressPort: No = "lean"; User: No = "lean"; SetTimeout: No = "lean"; Stop: No = "lean";
        Pause: No = "lean"; Resize: No = "lean"; Container: No = "lean"; Vm: No = "lean";
        FilesSignedUrl: No = "lean"; CodeInterpreter: No = "lean"; StatefulKernel: No = "lean";
        RichOutput: No = "lean"; Interrupt: No = "lean"; Ports: No = "lean"; ExposePort: No = "lean";
        ExposeTcp: No = "lean"; PublicPreview: No = "lean"; PrivatePreview: No = "lean";
        EgressUpdate: No = "lean"; Ssh: No = "lean"; ProxiedFetch: No = "lean"; PrivateNetwork: No = "lean";
        MemorySnapshot: No = "lean"; MemoryFork: No = "lean"; Volumes: No = "lean"; VolumesManage: No = "lean";
        VolumeSubPath: No = "lean"; VolumeReadOnly: No = "lean"; SecretsVault: No = "lean";
        SecretInject: No = "lean"; SecretBrokerHeader: No = "lean"; SecretBrokerEnv: No = "lean";
        Git: No = "lean"; Lsp: No = "lean"; Metrics: No = "lean"; MetricsStream: No = "lean";
        EgressOpen: Native; Ttl: Native;
    } } };
}

macro_rules! files_over_exec {
    ($P:ident { $($given:tt)* }) => { lean_table! { $P { $($given)*
        FilesRead: Emulated<FilesOverExec> = "over exec";
        FilesWrite: Emulated<FilesOverExec> = "over exec";
        FilesList: Emulated<FilesOverExec> = "over exec";
        FilesModify: Emulated<FilesOverExec> = "over exec";
        FilesPermissions: Emulated<FilesOverExec> = "over exec";
        FilesWatch: Emulated<Polling> = "by looking";
        FilesSearch: Emulated<SearchByFiles> = "by reading";
        ExecCwd: Emulated<WrapCwd> = "wrapped";
        ExecEnv: Emulated<WrapEnv> = "wrapped";
        Timeout: Emulated<WrapTimeout> = "wrapped";
        Input: Native;
        Snapshot: No = "lean";
        SnapshotDelete: No = "lean";
        Fork: No = "lean";
        FromSnapshot: No = "lean";
    } } };
}

macro_rules! runs {
    ($($P:ident)*) => { $( files_over_exec! { $P {
        Run: Native;
        Streaming: No = "lean";
        Stdin: No = "lean";
        FilesUpload: No = "lean";
        FilesTree: No = "lean";
    } } )* };
}
runs! { Bare PoorBare }

macro_rules! streams {
    ($($P:ident)*) => { $( files_over_exec! { $P {
        Run: Emulated<RunByStreaming> = "collected";
        Streaming: Native;
        Stdin: Native;
        FilesUpload: Emulated<UploadOverExec> = "over exec";
        FilesTree: Emulated<TreeByFiles> = "entry by entry";
    } } )* };
}
streams! { Piped PoorPiped }

lean_table! { Codeless {
    Run: Emulated<ExitCodeByFile> = "by a file";
    ExecCwd: Emulated<WrapCwd> = "wrapped";
    ExecEnv: Emulated<WrapEnv> = "wrapped";
    Timeout: Emulated<WrapTimeout> = "wrapped";
    Input: Native;
    Streaming: No = "lean";
    Stdin: No = "lean";
    FilesRead: No = "lean";
    FilesWrite: No = "lean";
    FilesList: No = "lean";
    FilesModify: No = "lean";
    FilesPermissions: No = "lean";
    FilesWatch: No = "lean";
    FilesSearch: No = "lean";
    FilesUpload: No = "lean";
    FilesTree: No = "lean";
    Snapshot: No = "lean";
    SnapshotDelete: No = "lean";
    Fork: No = "lean";
    FromSnapshot: No = "lean";
} }
