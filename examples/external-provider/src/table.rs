//! The table: one line per row that the interface `v1` has.
//!
//! Rows that capbox gets later are answered for us, as not adapted.

use capbox_core::emulate::{Polling, SearchByFiles};
use capbox_core::provider::v1::{self, Emulated, Native, No, NotYet};

use crate::Shelf;

v1::table! { Shelf {
    // lifecycle
    List: Native;
    Connect: Native;
    Name: NotYet = "the store knows ids only";
    Labels: Native;
    Env: No = "nothing runs in a sandbox";
    Ttl: Native;
    OnTimeout: No = "nothing runs that could be stopped";
    IdleTimeout: No = "a sandbox has one clock, its ttl";
    OnIdle: No = "a sandbox has one clock, its ttl";
    AutoResume: No = "nothing runs that could be stopped";
    SetTimeout: NotYet = "the deadline could be moved";
    Stop: No = "nothing runs that could be stopped";
    Pause: No = "nothing runs that could be stopped";
    Resize: No = "nothing runs that could be stopped";

    // kind
    Container: No = "nothing runs in a sandbox";
    Vm: No = "nothing runs in a sandbox";

    // source
    ImageName: No = "a sandbox starts empty";
    ImageArchive: No = "a sandbox starts empty";
    ImageContext: No = "a sandbox starts empty";
    Template: No = "a sandbox starts empty";
    FromSnapshot: NotYet = "a copy of the map would do it";

    // compute
    Cpu: No = "nothing runs in a sandbox";
    Memory: No = "nothing runs in a sandbox";
    Disk: No = "nothing runs in a sandbox";
    Processes: No = "nothing runs in a sandbox";
    Gpu: No = "nothing runs in a sandbox";
    Region: No = "nothing runs in a sandbox";

    // exec
    ExecList: No = "nothing runs in a sandbox";
    Attach: No = "nothing runs in a sandbox";
    Replay: No = "nothing runs in a sandbox";
    KillProcess: No = "nothing runs in a sandbox";
    Signal: No = "nothing runs in a sandbox";
    PtyResize: No = "nothing runs in a sandbox";
    Run: No = "nothing runs in a sandbox";
    Streaming: No = "nothing runs in a sandbox";
    Background: No = "nothing runs in a sandbox";
    Pty: No = "nothing runs in a sandbox";
    ExecCwd: No = "nothing runs in a sandbox";
    ExecEnv: No = "nothing runs in a sandbox";
    User: No = "nothing runs in a sandbox";
    Timeout: No = "nothing runs in a sandbox";
    Input: No = "nothing runs in a sandbox";
    Stdin: No = "nothing runs in a sandbox";

    // files
    FilesRead: Native;
    FilesWrite: Native;
    FilesList: Native;
    FilesModify: NotYet = "removing and renaming are not written";
    FilesPermissions: No = "files have no permission bits";
    FilesWatch: Emulated<Polling> = "looks again and again; what comes and goes between two looks is not seen";
    FilesUpload: NotYet = "copying to and from this machine is not written";
    FilesTree: NotYet = "copying to and from this machine is not written";
    FilesSearch: Emulated<SearchByFiles> = "reads every file";
    FilesMount: No = "a folder of this machine is no file in memory";
    FilesSignedUrl: No = "files have no addresses";

    // code
    CodeInterpreter: No = "nothing runs in a sandbox";
    StatefulKernel: No = "nothing runs in a sandbox";
    RichOutput: No = "nothing runs in a sandbox";
    Interrupt: No = "nothing runs in a sandbox";

    // network
    EgressOpen: No = "nothing runs in a sandbox, so there is no network";
    EgressControl: Native = "nothing runs in a sandbox, so nothing is reached";
    EgressCidr: No = "nothing runs in a sandbox, so there is no network";
    EgressHost: No = "nothing runs in a sandbox, so there is no network";
    EgressPort: No = "nothing runs in a sandbox, so there is no network";
    Ports: No = "nothing runs in a sandbox, so there is no network";
    ExposePort: No = "nothing runs in a sandbox, so there is no network";
    ExposeTcp: No = "nothing runs in a sandbox, so there is no network";
    PublicPreview: No = "nothing runs in a sandbox, so there is no network";
    PrivatePreview: No = "nothing runs in a sandbox, so there is no network";
    EgressUpdate: No = "nothing runs in a sandbox, so there is no network";
    Ssh: No = "nothing runs in a sandbox, so there is no network";
    ProxiedFetch: No = "nothing runs in a sandbox, so there is no network";
    PrivateNetwork: No = "nothing runs in a sandbox, so there is no network";

    // snapshot
    SnapshotList: NotYet = "a copy of the map would do it";
    Snapshot: NotYet = "a copy of the map would do it";
    Fork: NotYet = "a copy of the map would do it";
    MemorySnapshot: NotYet = "a copy of the map would do it";
    MemoryFork: NotYet = "a copy of the map would do it";

    // volumes
    Volumes: No = "there is nothing but the files of the sandbox";
    VolumesManage: No = "there is nothing but the files of the sandbox";
    VolumeSubPath: No = "there is nothing but the files of the sandbox";
    VolumeReadOnly: No = "there is nothing but the files of the sandbox";

    // secrets
    SecretsVault: No = "there is nothing but the files of the sandbox";
    SecretInject: No = "there is nothing but the files of the sandbox";
    SecretBrokerHeader: No = "there is nothing but the files of the sandbox";
    SecretBrokerEnv: No = "there is nothing but the files of the sandbox";

    // tools
    Git: No = "nothing runs in a sandbox";
    Lsp: No = "nothing runs in a sandbox";

    // meta
    Metrics: No = "nothing runs in a sandbox";
    MetricsStream: No = "nothing runs in a sandbox";
} }
