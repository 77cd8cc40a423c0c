//! What the Docker provider can do: the single source.

use std::time::Duration;

use capbox_core::emulate::*;
use capbox_core::provider::*;

use crate::client::Docker;

capbox_core::table! { Docker {
    // lifecycle
    List: Native;
    Connect: Native;
    Name: Native;
    Labels: Native;
    Env: Native;
    Ttl: Native;
    OnTimeout: NotYet = "the guest ends the container at the end of its life, and does nothing else yet";
    SetTimeout: Native;
    IdleTimeout: NotYet = "activity is not counted yet";
    OnIdle: NotYet = "activity is not counted yet";
    Stop: Native;
    Pause: Native;
    AutoResume: NotYet = "stopped and paused containers are only started when asked for";
    Resize: Native = "CPU and memory; the disk cannot be changed";

    // kind
    Container: NotYet = "the image's own command is not run yet";
    Vm: No = "containers share the kernel of the engine's machine";

    // source
    ImageName: Native;
    ImageArchive: Native;
    ImageContext: Native;
    PrepareImage: Native;
    Template: No = "an engine has images, and no templates beside them";
    FromSnapshot: Native;

    // compute
    Cpu: Native;
    Memory: Native;
    Disk: Native = "where the engine's storage has quotas";
    Processes: Native;
    Gpu: Native = "where the engine has a runtime for GPUs";
    Region: No = "an engine is at one place";

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
    FilesTree: Emulated<TreeByFiles> = "one or more calls for each entry; not a picture of one moment";
    FilesSearch: Emulated<SearchByFiles> = "every file that is searched for a text is transferred";
    FilesSignedUrl: No = "an engine has no address for a file";
    FilesMount: NotYet = "folders of this machine are not mounted yet; copy them, or use a volume";

    // code
    CodeInterpreter: NotYet = "interpreters are not in capbox yet";
    StatefulKernel: NotYet = "interpreters are not in capbox yet";
    RichOutput: NotYet = "interpreters are not in capbox yet";
    Interrupt: NotYet = "interpreters are not in capbox yet";

    // network
    Ports: Native = "at ports of this machine's loopback; only with open egress, since a container without a way out has no ports";
    ExposePort: Native = "declared ports only";
    ExposeTcp: Native = "declared ports only";
    PublicPreview: NotYet = "ports are exposed on this machine's loopback only";
    PrivatePreview: No = "an engine asks nobody for a credential";
    EgressOpen: Native;
    EgressControl: Native = "deny: the container has no network but its own loopback";
    EgressCidr: No = "an engine has no lists of what a container may reach";
    EgressHost: No = "an engine has no lists of what a container may reach";
    EgressPort: No = "an engine has no lists of what a container may reach";
    EgressUpdate: Native = "between deny and open";
    Ssh: No = "there is no SSH server; use `exec.pty`";
    ProxiedFetch: NotYet = "requests are not passed on yet; expose the port";
    PrivateNetwork: Native;

    // snapshot
    Snapshot: Native = "of the disk; volumes are left out";
    SnapshotList: Native;
    SnapshotDelete: Native;
    MemorySnapshot: No = "checkpoints are an experiment of the engine, and do not survive its own updates";
    Fork: Emulated<ForkBySnapshot> = "takes a snapshot and deletes it; lifetime, network and limits of the copies are the defaults";
    MemoryFork: No = "checkpoints are an experiment of the engine, and do not survive its own updates";

    // volumes
    Volumes: Native;
    VolumesManage: Native;
    VolumeSubPath: Native = "with Docker 26 or later";
    VolumeReadOnly: Native;

    // secrets
    SecretsVault: No = "an engine has secrets for swarms only";
    SecretInject: NotYet = "secrets are not passed in yet";
    SecretBrokerHeader: No = "an engine does not look into traffic";
    SecretBrokerEnv: No = "an engine does not look into traffic";

    // tools, meta
    Git: NotYet = "to be emulated by `git` inside";
    Lsp: NotYet = "to be emulated by a language server inside";
    Metrics: Native = "CPU, memory, network and processes; not the disk";
    MetricsStream: Emulated<PollMetrics> = "asks for `meta.metrics` in turns; what comes and goes in between is not seen";
} }

/// What callers observe.
pub(crate) const FLAGS: Flags = Flags::DEFAULT
    .preserves_disk_on_stop(true)
    .exit_code_native(true)
    .preview_model(PreviewModel::DeclaredPorts)
    .streams(Streams::Separate)
    .output_bytes(OutputBytes::Exact)
    .output_retention(OutputRetention::Bounded)
    .background_survives(BackgroundSurvives::Client)
    .stdin_eof(true)
    .kill_reaches(KillReaches::Tree)
    .timeout_kills(TimeoutKills::Tree)
    .lifetime(Lifetime {
        clock: LifetimeClock::Running,
        change: LifetimeChange::Both,
        granularity: Duration::from_millis(1),
        default: Span::NoLimit,
        max: Span::NoLimit,
    })
    .kept_for(KeptFor { paused: Span::NoLimit, stopped: Span::NoLimit, snapshot: Span::NoLimit })
    .resize_applies(ResizeApplies::Live)
    .snapshot_source(SnapshotSource::Pauses)
    .fork_source(ForkSource::Live)
    .create_dedup(CreateDedup::Name)
    .id_stable(true)
    .ports_declared(PortsDeclared::Create)
    .default_egress(DefaultEgress::Open)
    .default_preview(DefaultPreview::Public)
    .isolation(Isolation::Container)
    .isolation_source(
        "the engine's default profile: namespaces, capabilities, seccomp; tests of this project, 2026-11",
    )
    .on_this_machine(true);

/// Combinations that are not honoured.
pub(crate) const CONSTRAINTS: &[Constraint] = &[
    Constraint::not_yet(
        Capability::Ports,
        |spec| spec.ports.is_some() && spec.egress_open.is_none(),
        "an engine publishes no port of a container without a way out; ask for open egress, too (`--net open`)",
    ),
    Constraint::new(
        Capability::Gpu,
        |spec| spec.gpu.as_ref().is_some_and(|gpu| !matches!(gpu.model.as_str(), "" | "any" | "nvidia")),
        "an engine chooses GPUs by number, not by model; ask for `any`",
    ),
];
