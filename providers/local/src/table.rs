//! What the local provider can do: the single source.

use std::time::Duration;

use capbox_core::provider::*;

use crate::client::Local;

capbox_core::table! { Local {
    // lifecycle
    List: Native;
    Connect: Native;
    Name: Native;
    Labels: Native;
    Env: Native;
    Ttl: Native;
    OnTimeout: NotYet = "stop and pause are not in capbox yet";
    SetTimeout: NotYet = "the guest can change its deadline; the row has no trait yet";
    IdleTimeout: NotYet = "activity is not counted yet";
    OnIdle: NotYet = "stop and pause are not in capbox yet";
    Stop: NotYet = "the disk of a stopped sandbox is not kept yet";
    Pause: NotYet = "the freezer is not in capbox yet";
    AutoResume: NotYet = "stop and pause are not in capbox yet";
    Resize: NotYet = "limits cannot be changed yet";

    // kind
    Container: NotYet = "images are not in capbox yet";
    Vm: No = "a sandbox is a set of namespaces, not a machine";

    // source
    ImageName: No = "there is no registry client; load an archive instead";
    ImageArchive: NotYet = "images are not in capbox yet";
    ImageContext: NotYet = "images are not in capbox yet";
    PrepareImage: NotYet = "images are not in capbox yet";
    Template: No = "there are no templates of the provider's own";
    FromSnapshot: NotYet = "snapshots are not in capbox yet";

    // compute
    Cpu: NotYet = "control groups are not in capbox yet";
    Memory: NotYet = "control groups are not in capbox yet";
    Disk: NotYet = "quotas are not in capbox yet";
    Processes: Native;
    Gpu: No = "devices of the host are not passed in";
    Region: No = "there is one place: this machine";

    // exec
    Run: Native;
    Streaming: Native;
    Background: Native;
    ExecList: Native;
    Attach: Native;
    Replay: Native;
    KillProcess: Native;
    Signal: Native;
    Pty: Native;
    PtyResize: Native;
    ExecCwd: Native;
    ExecEnv: Native;
    User: Native;
    Timeout: Native;
    Input: Native;
    Stdin: Native;

    // files
    FilesRead: Native;
    FilesWrite: Native;
    FilesList: Native;
    FilesModify: Native;
    FilesPermissions: Native;
    FilesWatch: Native;
    FilesUpload: Native;
    FilesTree: Native;
    FilesSearch: Native;
    FilesSignedUrl: No = "there is no server that could answer it";
    FilesMount: Native;

    // code
    CodeInterpreter: NotYet = "interpreters are not in capbox yet";
    StatefulKernel: NotYet = "interpreters are not in capbox yet";
    RichOutput: NotYet = "interpreters are not in capbox yet";
    Interrupt: NotYet = "interpreters are not in capbox yet";

    // network
    Ports: NotYet = "ports are not in capbox yet";
    ExposePort: NotYet = "ports are not in capbox yet";
    ExposeTcp: NotYet = "ports are not in capbox yet";
    PublicPreview: NotYet = "ports are not in capbox yet";
    PrivatePreview: NotYet = "ports are not in capbox yet";
    EgressOpen: NotYet = "the way out is not in capbox yet; a sandbox reaches only itself";
    EgressControl: Native;
    EgressCidr: NotYet = "the way out is not in capbox yet; a sandbox reaches only itself";
    EgressHost: NotYet = "the way out is not in capbox yet; a sandbox reaches only itself";
    EgressPort: NotYet = "the way out is not in capbox yet; a sandbox reaches only itself";
    EgressUpdate: NotYet = "the way out is not in capbox yet; a sandbox reaches only itself";
    Ssh: No = "there is no SSH server; use `exec.pty`";
    ProxiedFetch: NotYet = "ports are not in capbox yet";
    PrivateNetwork: NotYet = "networks of sandboxes are not in capbox yet";

    // snapshot
    Snapshot: NotYet = "sealing the writable layer is not in capbox yet";
    SnapshotDelete: NotYet = "snapshots are not in capbox yet";
    SnapshotList: NotYet = "snapshots are not in capbox yet";
    MemorySnapshot: No = "the kernel has no such thing that works without root";
    Fork: NotYet = "snapshots are not in capbox yet";
    MemoryFork: No = "the kernel has no such thing that works without root";

    // volumes
    Volumes: NotYet = "volumes are not in capbox yet";
    VolumesManage: NotYet = "volumes are not in capbox yet";
    VolumeSubPath: NotYet = "volumes are not in capbox yet";
    VolumeReadOnly: NotYet = "volumes are not in capbox yet";

    // secrets
    SecretsVault: No = "there is no store; keep secrets where this machine keeps them";
    SecretInject: NotYet = "secrets are not in capbox yet";
    SecretBrokerHeader: NotYet = "the way out is not in capbox yet";
    SecretBrokerEnv: NotYet = "the way out is not in capbox yet";

    // tools, meta
    Git: NotYet = "to be emulated by `git` inside";
    Lsp: NotYet = "to be emulated by a language server inside";
    Metrics: NotYet = "figures are not collected yet";
    MetricsStream: NotYet = "figures are not collected yet";
} }

/// What callers observe.
pub(crate) const FLAGS: Flags = Flags::DEFAULT
    .exit_code_native(true)
    .streams(Streams::Separate)
    .output_bytes(OutputBytes::Exact)
    .output_retention(OutputRetention::Bounded)
    .background_survives(BackgroundSurvives::Client)
    .stdin_eof(true)
    .kill_reaches(KillReaches::Tree)
    .timeout_kills(TimeoutKills::Tree)
    .lifetime(Lifetime {
        clock: LifetimeClock::Running,
        change: LifetimeChange::None,
        granularity: Duration::from_millis(1),
        default: Span::NoLimit,
        max: Span::NoLimit,
    })
    .create_dedup(CreateDedup::Name)
    .id_stable(true)
    .ports_declared(PortsDeclared::Live)
    .default_egress(DefaultEgress::Deny)
    .isolation(Isolation::Container)
    .isolation_source("Linux namespaces and seccomp over the shared kernel; tests of this project, 2026-11")
    .on_this_machine(true);
