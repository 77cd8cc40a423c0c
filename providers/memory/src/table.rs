//! What the memory provider can do: the single source.

use std::time::Duration;

use capbox_core::emulate::{ForkBySnapshot, TreeByFiles};
use capbox_core::provider::*;

use crate::client::Memory;

capbox_core::table! { Memory {
    // lifecycle
    List: Native;
    Connect: Native = "from all clones of one client";
    Name: Native = "unique within one client";
    Labels: Native;
    Env: Native = "values must be UTF-8";
    Ttl: Native;
    OnTimeout: NotYet = "a sandbox cannot be stopped or paused yet";
    SetTimeout: NotYet = "the deadline is fixed at create so far";
    IdleTimeout: NotYet = "activity is not counted yet";
    OnIdle: NotYet = "a sandbox cannot be stopped or paused yet";
    Stop: NotYet = "the disk could be kept without its processes; nothing does that yet";
    Pause: NotYet = "the tasks of a sandbox could be held; nothing does that yet";
    AutoResume: NotYet = "a sandbox cannot be stopped or paused yet";
    Resize: NotYet = "the size of the disk is fixed at create so far";

    // kind
    Container: No = "images hold programs, which only an operating system can run";
    Vm: No = "there is no machine: an interpreter in the calling process";

    // source
    ImageName: No = "images hold programs, which only an operating system can run";
    ImageArchive: No = "images hold programs, which only an operating system can run";
    PrepareImage: No = "images hold programs, which only an operating system can run";
    ImageContext: No = "images hold programs, which only an operating system can run";
    Template: No = "there are no templates of the provider's own";
    FromSnapshot: Native;

    // compute
    Cpu: No = "commands share the threads of the calling process";
    Memory: No = "what one sandbox takes of the memory of the calling process is not measured";
    Disk: Native;
    Processes: No = "commands are not processes; one command has at most 8 jobs at a time";
    Gpu: No = "the interpreter uses no devices";
    Region: No = "there is one place: this process";

    // exec
    Run: Native;
    Streaming: Native;
    Background: Native = "goes on as long as the client and the runtime on which it was started";
    ExecList: Native;
    Attach: Native;
    Replay: Native;
    KillProcess: Native;
    Signal: No = "commands are not processes; a signal to one could only be a kill";
    Pty: No = "the interpreter has no terminal";
    PtyResize: No = "the interpreter has no terminal";
    ExecCwd: Native;
    ExecEnv: Native = "values must be UTF-8";
    User: No = "there is one user, and nothing to protect from others";
    Timeout: Native;
    Input: Native = "at most 64 MiB, held whole";
    Stdin: NotYet = "the interpreter takes its input whole, before it starts";

    // files
    FilesRead: Native;
    FilesWrite: Native;
    FilesList: Native;
    FilesModify: Native;
    FilesPermissions: Native = "kept and told, but not enforced";
    FilesWatch: Native;
    FilesUpload: Native;
    FilesTree: Emulated<TreeByFiles> = "one or more calls for each entry; not a picture of one moment";
    FilesSearch: Native;
    FilesSignedUrl: No = "nothing listens for requests";
    FilesMount: No = "the disk has no way to the file system of the host";

    // code
    CodeInterpreter: No = "the only language is that of the shell";
    StatefulKernel: No = "the only language is that of the shell";
    RichOutput: No = "the only language is that of the shell";
    Interrupt: No = "the only language is that of the shell";

    // network
    Ports: No = "there is no network, so nothing listens";
    ExposePort: No = "there is no network, so nothing listens";
    ExposeTcp: No = "there is no network, so nothing listens";
    PublicPreview: No = "there is no network, so nothing listens";
    PrivatePreview: No = "there is no network, so nothing listens";
    EgressOpen: No = "there is no network at all";
    EgressControl: Native = "there is no network at all";
    EgressCidr: No = "there is no network at all";
    EgressHost: No = "there is no network at all";
    EgressPort: No = "there is no network at all";
    EgressUpdate: No = "there is no network at all";
    Ssh: No = "there is no network, so nothing listens";
    ProxiedFetch: No = "there is no network, so nothing listens";
    PrivateNetwork: No = "there is no network at all";

    // snapshot
    Snapshot: Native;
    SnapshotList: Native;
    SnapshotDelete: Native;
    MemorySnapshot: No = "the state of the interpreter cannot be saved";
    Fork: Emulated<ForkBySnapshot> = "takes a snapshot and deletes it; lifetime and limits of the copies are the defaults";
    MemoryFork: No = "the state of the interpreter cannot be copied";

    // volumes
    Volumes: NotYet = "a part of the disk could be shared; nothing does that yet";
    VolumesManage: NotYet = "a part of the disk could be shared; nothing does that yet";
    VolumeSubPath: NotYet = "a part of the disk could be shared; nothing does that yet";
    VolumeReadOnly: NotYet = "a part of the disk could be shared; nothing does that yet";

    // secrets
    SecretsVault: No = "a vault in the calling process would protect nothing from it";
    SecretInject: NotYet = "variables could be kept out of settings and snapshots; nothing does that yet";
    SecretBrokerHeader: No = "there is no network at all";
    SecretBrokerEnv: No = "there is no network at all";

    // tools, meta
    Git: No = "the interpreter has no git";
    Lsp: No = "the interpreter starts no programs, so no language server";
    Metrics: No = "what one sandbox takes of the calling process is not measured";
    MetricsStream: No = "what one sandbox takes of the calling process is not measured";
} }

/// What callers observe.
pub(crate) const FLAGS: Flags = Flags::DEFAULT
    .exit_code_native(true)
    .streams(Streams::Separate)
    .output_bytes(OutputBytes::Exact)
    .output_retention(OutputRetention::Bounded)
    .background_survives(BackgroundSurvives::Connection)
    .stdin_eof(true)
    .kill_reaches(KillReaches::Tree)
    .timeout_kills(TimeoutKills::Tree)
    .oom_evidence(OomEvidence::Process)
    .lifetime(Lifetime {
        clock: LifetimeClock::Running,
        change: LifetimeChange::None,
        granularity: Duration::from_millis(1),
        default: Span::NoLimit,
        max: Span::NoLimit,
    })
    .kept_for(KeptFor { paused: Span::Unknown, stopped: Span::Unknown, snapshot: Span::NoPromise })
    .snapshot_source(SnapshotSource::KeepsRunning)
    .fork_source(ForkSource::Live)
    .create_dedup(CreateDedup::Name)
    .id_stable(true)
    .default_egress(DefaultEgress::Deny)
    .isolation(Isolation::Process)
    .isolation_source("the interpreter runs within the calling process, by construction; 2026-11-30")
    .on_this_machine(true);
