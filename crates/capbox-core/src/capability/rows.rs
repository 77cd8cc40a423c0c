//! The rows: one line each.
//!
//! A line reads: since which version of the provider interface, the row's type, its name in code, the bound
//! for typed handles, the trait or the type of the option's value, the id, and what the compiler says where a
//! provider does not have it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use super::answer::{
    AbsentSlot, Api, ClientFilled, ClientSlot, Filled, Honoured, Implements, Opt, OptionSlot, Row, Slot,
};
use super::{Level, NotSupported, Rows};
use crate::api::{Any, ClientCore, Core, Create, erased};
use crate::provider::{self as spi, Backend};
use crate::spec::{
    CidrRule, Container, DenyEgress, Env, Gpu, HostRule, Input, Labels, Mounts, OnTimeout, OpenEgress,
    PortRules, PrivateNetwork, ReadOnlyVolumes, SandboxPath, Stdin, SubPaths, VolumeMounts,
};

capabilities! {
    client {
        /// List the sandboxes of this account or machine, whatever their state.
        v1 List list HasList: erased::List, "lifecycle.list", "`{Self}` does not support `lifecycle.list`";
        /// Connect to a sandbox by its id, also from another process.
        v1 Connect connect HasConnect: erased::Connect, "lifecycle.connect", "`{Self}` does not support `lifecycle.connect`";
        /// List the snapshots that exist.
        v1 SnapshotList snapshot_list HasSnapshotList: erased::SnapshotList, "snapshot.list", "`{Self}` does not support `snapshot.list`";
        /// Delete a snapshot by its id, whether or not its sandbox is there.
        v2 SnapshotDelete snapshot_delete HasSnapshotDelete: erased::SnapshotDelete, "snapshot.delete", "`{Self}` does not support `snapshot.delete`";
        /// Pull, load or build an image ahead of the first create, with its progress.
        v2 PrepareImage prepare_image HasPrepareImage: erased::PrepareImage, "source.prepare", "`{Self}` does not support `source.prepare`";
        /// Make, list and delete volumes.
        v1 VolumesManage volumes_manage HasVolumesManage: erased::VolumesManage, "volumes.manage", "`{Self}` does not support `volumes.manage`";
    }
    call {
        /// List the processes that were started through the API.
        v1 ExecList exec_list HasExecList: spi::ExecList, "exec.list", "`{Self}` does not support `exec.list`";
        /// Join a process again by its id: its output from now on, its input where that is open.
        v1 Attach attach HasAttach: spi::Attach, "exec.attach", "`{Self}` does not support `exec.attach`";
        /// Read the output of a process again from a position.
        v1 Replay replay HasReplay: spi::Replay, "exec.replay", "`{Self}` does not support `exec.replay`";
        /// Kill a process with everything that it started.
        v1 KillProcess kill_process HasKillProcess: spi::KillProcess, "exec.kill-process", "`{Self}` does not support `exec.kill-process`";
        /// Send a signal to a process.
        v1 Signal signal HasSignal: spi::Signal, "exec.signal", "`{Self}` does not support `exec.signal`";
        /// Change the size of a terminal.
        v1 PtyResize pty_resize HasPtyResize: spi::PtyResize, "exec.pty-resize", "`{Self}` does not support `exec.pty-resize`";
        /// Read files, whole or a range.
        v1 FilesRead files_read HasFilesRead: spi::FilesRead, "files.read", "`{Self}` does not support `files.read`";
        /// Write files, all or nothing.
        v1 FilesWrite files_write HasFilesWrite: spi::FilesWrite, "files.write", "`{Self}` does not support `files.write`";
        /// List folders and ask for metadata.
        v1 FilesList files_list HasFilesList: spi::FilesList, "files.list", "`{Self}` does not support `files.list`";
        /// Make folders and links, rename and remove.
        v1 FilesModify files_modify HasFilesModify: spi::FilesModify, "files.modify", "`{Self}` does not support `files.modify`";
        /// Change permission bits.
        v1 FilesPermissions files_permissions HasFilesPermissions: spi::FilesPermissions, "files.permissions", "`{Self}` does not support `files.permissions`";
        /// Watch a folder for changes.
        v1 FilesWatch files_watch HasFilesWatch: spi::FilesWatch, "files.watch", "`{Self}` does not support `files.watch`";
        /// Copy one file of any size in or out, streamed.
        v1 FilesUpload files_upload HasFilesUpload: spi::FilesUpload, "files.upload", "`{Self}` does not support `files.upload`";
        /// Copy folders in or out, with links, permission bits and empty folders.
        v1 FilesTree files_tree HasFilesTree: spi::FilesTree, "files.tree", "`{Self}` does not support `files.tree`";
        /// Search by name and content.
        v1 FilesSearch files_search HasFilesSearch: spi::FilesSearch, "files.search", "`{Self}` does not support `files.search`";
        /// Keep the state of the disk under an id that outlives the sandbox.
        v1 Snapshot snapshot HasSnapshot: spi::Snapshot, "snapshot.snapshot", "`{Self}` does not support `snapshot.snapshot`";
        /// Change how long a sandbox may still live.
        v1 SetTimeout set_timeout HasSetTimeout: spi::SetTimeout, "lifecycle.set-timeout", "`{Self}` does not support `lifecycle.set-timeout`";
        /// End the processes and keep the sandbox; start it again.
        v1 Stop stop HasStop: spi::Stop, "lifecycle.stop", "`{Self}` does not support `lifecycle.stop`";
        /// Suspend with memory kept; resume.
        v1 Pause pause HasPause: spi::Pause, "lifecycle.pause", "`{Self}` does not support `lifecycle.pause`";
        /// Change the resources of a living sandbox.
        v1 Resize resize HasResize: spi::Resize, "lifecycle.resize", "`{Self}` does not support `lifecycle.resize`";
        /// The address of an HTTP port, with the headers to send.
        v1 ExposePort expose_port HasExposePort: spi::ExposePort, "network.expose-port", "`{Self}` does not support `network.expose-port`";
        /// The address of a raw TCP port.
        v1 ExposeTcp expose_tcp HasExposeTcp: spi::ExposeTcp, "network.expose-tcp", "`{Self}` does not support `network.expose-tcp`";
        /// Change the network policy while the sandbox runs.
        v1 EgressUpdate egress_update HasEgressUpdate: spi::EgressUpdate, "network.egress-update", "`{Self}` does not support `network.egress-update`";
        /// CPU, memory and disk in use, now.
        v1 Metrics metrics HasMetrics: spi::Metrics, "meta.metrics", "`{Self}` does not support `meta.metrics`";
        /// The same, as it changes.
        v1 MetricsStream metrics_stream HasMetricsStream: spi::MetricsStream, "meta.metrics-stream", "`{Self}` does not support `meta.metrics-stream`";
    }
    lowered {
        /// Run a command to its end and get its output.
        v1 Run run HasRun: erased::Run, "exec.run", "`{Self}` does not support `exec.run`";
        /// Get a command's output while it runs.
        v1 Streaming streaming HasStreaming: erased::Streaming, "exec.streaming", "`{Self}` does not support `exec.streaming`";
        /// Start a process that goes on when the call, and the caller, are gone.
        v1 Background background HasBackground: erased::Background, "exec.background", "`{Self}` does not support `exec.background`";
        /// Run a command in a pseudo-terminal.
        v1 Pty pty HasPty: erased::Pty, "exec.pty", "`{Self}` does not support `exec.pty`";
        /// Make independent copies of a sandbox, with a copy of its disk.
        v1 Fork fork HasFork: erased::Fork, "snapshot.fork", "`{Self}` does not support `snapshot.fork`";
    }
    create {
        /// A unique name: get the sandbox of that name, or create it.
        v1 Name name HasName: String, "lifecycle.name", "`{Self}` cannot honour `lifecycle.name`";
        /// Labels to find the sandbox by.
        v1 Labels labels HasLabels: Labels, "lifecycle.labels", "`{Self}` cannot honour `lifecycle.labels`";
        /// Variables that every command of the sandbox gets.
        v1 Env env HasEnv: Env, "lifecycle.env", "`{Self}` cannot honour `lifecycle.env`";
        /// How long the sandbox may live; at the end it is destroyed.
        v1 Ttl ttl HasTtl: Duration, "lifecycle.ttl", "`{Self}` cannot honour `lifecycle.ttl`";
        /// Stop or pause at the end of its life instead.
        v1 OnTimeout on_timeout HasOnTimeout: OnTimeout, "lifecycle.on-timeout", "`{Self}` cannot honour `lifecycle.on-timeout`";
        /// Destroy it after this long without activity.
        v1 IdleTimeout idle_timeout HasIdleTimeout: Duration, "lifecycle.idle-timeout", "`{Self}` cannot honour `lifecycle.idle-timeout`";
        /// Stop or pause when idle instead.
        v1 OnIdle on_idle HasOnIdle: OnTimeout, "lifecycle.on-idle", "`{Self}` cannot honour `lifecycle.on-idle`";
        /// Wake a stopped or paused sandbox when it is asked for something.
        v1 AutoResume auto_resume HasAutoResume: bool, "lifecycle.auto-resume", "`{Self}` cannot honour `lifecycle.auto-resume`";
        /// An image, by name.
        v1 ImageName image_name HasImageName: String, "source.image-name", "`{Self}` cannot honour `source.image-name`";
        /// An image, as a loadable archive on this machine.
        v1 ImageArchive image_archive HasImageArchive: PathBuf, "source.image-archive", "`{Self}` cannot honour `source.image-archive`";
        /// An image, as a build context on this machine.
        v1 ImageContext image_context HasImageContext: PathBuf, "source.image-context", "`{Self}` cannot honour `source.image-context`";
        /// The provider's own template, by id.
        v1 Template template HasTemplate: String, "source.template", "`{Self}` cannot honour `source.template`";
        /// A snapshot, by id.
        v1 FromSnapshot from_snapshot HasFromSnapshot: String, "source.from-snapshot", "`{Self}` cannot honour `source.from-snapshot`";
        /// CPUs, as a number that may be a fraction.
        v1 Cpu cpu HasCpu: f64, "compute.cpu", "`{Self}` cannot honour `compute.cpu`";
        /// Memory, in bytes.
        v1 Memory memory HasMemory: u64, "compute.memory", "`{Self}` cannot honour `compute.memory`";
        /// Disk, in bytes.
        v1 Disk disk HasDisk: u64, "compute.disk", "`{Self}` cannot honour `compute.disk`";
        /// The most processes and threads at a time.
        v1 Processes processes HasProcesses: u32, "compute.processes", "`{Self}` cannot honour `compute.processes`";
        /// GPUs.
        v1 Gpu gpu HasGpu: Gpu, "compute.gpu", "`{Self}` cannot honour `compute.gpu`";
        /// The region, in the provider's words.
        v1 Region region HasRegion: String, "compute.region", "`{Self}` cannot honour `compute.region`";
        /// Folders of this machine, seen inside.
        v1 FilesMount mounts HasFilesMount: Mounts, "files.mount", "`{Self}` cannot honour `files.mount`";
        /// Everything may be reached.
        v1 EgressOpen egress_open HasEgressOpen: OpenEgress, "network.egress-open", "`{Self}` cannot honour `network.egress-open`";
        /// Nothing may be reached, but what is listed.
        v1 EgressControl egress_control HasEgressControl: DenyEgress, "network.egress-control", "`{Self}` cannot honour `network.egress-control`";
        /// Address ranges that may be reached.
        v1 EgressCidr egress_cidrs HasEgressCidr: Vec<CidrRule>, "network.egress-cidr", "`{Self}` cannot honour `network.egress-cidr`";
        /// Host names that may be reached.
        v1 EgressHost egress_hosts HasEgressHost: Vec<HostRule>, "network.egress-host", "`{Self}` cannot honour `network.egress-host`";
        /// Narrow what may be reached to the ports that the rules name.
        v1 EgressPort egress_ports HasEgressPort: PortRules, "network.egress-port", "`{Self}` cannot honour `network.egress-port`";
        /// Run an image's own command, with a port.
        v1 Container container HasContainer: Container, "kind.container", "`{Self}` cannot honour `kind.container`";
        /// Ports to expose, declared at create.
        v1 Ports ports HasPorts: Vec<u16>, "network.ports", "`{Self}` cannot honour `network.ports`";
        /// A network of the named sandboxes and nobody else.
        v1 PrivateNetwork private_network HasPrivateNetwork: PrivateNetwork, "network.private-network", "`{Self}` cannot honour `network.private-network`";
        /// Mount volumes.
        v1 Volumes volumes HasVolumes: VolumeMounts, "volumes.mount", "`{Self}` cannot honour `volumes.mount`";
        /// Mount one folder of a volume and nothing above it.
        v1 VolumeSubPath volume_sub_paths HasVolumeSubPath: SubPaths, "volumes.sub-path", "`{Self}` cannot honour `volumes.sub-path`";
        /// Mount a volume so that it cannot be written.
        v1 VolumeReadOnly volumes_read_only HasVolumeReadOnly: ReadOnlyVolumes, "volumes.read-only", "`{Self}` cannot honour `volumes.read-only`";
    }
    exec {
        /// The folder to start in; the sandbox's default folder where nothing is said.
        v1 ExecCwd cwd HasExecCwd: SandboxPath, "exec.cwd", "`{Self}` cannot honour `exec.cwd`";
        /// Variables of this command, over those of the sandbox.
        v1 ExecEnv envs HasExecEnv: Env, "exec.env", "`{Self}` cannot honour `exec.env`";
        /// Run as this user of the sandbox.
        v1 User user HasUser: String, "exec.user", "`{Self}` cannot honour `exec.user`";
        /// Kill the command, with everything that it started, after this long.
        v1 Timeout timeout HasTimeout: Duration, "exec.timeout", "`{Self}` cannot honour `exec.timeout`";
        /// Bytes for the command's standard input, then end of file.
        v1 Input input HasInput: Input, "exec.input", "`{Self}` cannot honour `exec.input`";
        /// Keep standard input open, to be written while the command runs.
        v1 Stdin stdin HasStdin: Stdin, "exec.stdin", "`{Self}` cannot honour `exec.stdin`";
    }
    later {
        /// A machine with a kernel of its own, in which root can run containers.
        v1 Vm vm CreateOption "kind.vm";
        /// An address that reads or writes one file for a time, without credentials.
        v1 FilesSignedUrl files_signed_url Call "files.signed-url";
        /// Run source code: output, result, error.
        v1 CodeInterpreter code_interpreter Call "code.interpreter";
        /// Contexts that keep their state between runs.
        v1 StatefulKernel stateful_kernel Call "code.stateful-kernel";
        /// Results as HTML, images and data.
        v1 RichOutput rich_output Call "code.rich-output";
        /// Stop a run and keep the state.
        v1 Interrupt interrupt Call "code.interrupt";
        /// Exposed ports answer anybody.
        v1 PublicPreview public_preview CreateOption "network.public-preview";
        /// Exposed ports answer only with a credential.
        v1 PrivatePreview private_preview CreateOption "network.private-preview";
        /// Credentials and an address for an SSH client.
        v1 Ssh ssh Call "network.ssh";
        /// An HTTP request to a port, through the provider.
        v1 ProxiedFetch proxied_fetch Call "network.proxied-fetch";
        /// Save disk, memory and processes.
        v1 MemorySnapshot memory_snapshot Call "snapshot.memory";
        /// A second sandbox with a copy of disk and processes.
        v1 MemoryFork memory_fork Call "snapshot.memory-fork";
        /// A store of secrets at the provider; values are never returned.
        v1 SecretsVault secrets_vault Client "secrets.vault";
        /// A secret as a variable inside, kept out of env and settings.
        v1 SecretInject secret_inject CreateOption "secrets.inject";
        /// A secret set as a header on the way to named hosts, never inside.
        v1 SecretBrokerHeader secret_broker_header CreateOption "secrets.broker-header";
        /// A placeholder inside, replaced on the way to named hosts.
        v1 SecretBrokerEnv secret_broker_env CreateOption "secrets.broker-env";
        /// Git operations, as calls.
        v1 Git git Call "tools.git";
        /// A language server: completions, symbols.
        v1 Lsp lsp Call "tools.lsp";
    }
}

/// The common vocabulary of the field: names that are accepted beside the ids.
const ALIASES: &[(&str, Capability)] = &[
    ("list", Capability::List),
    ("stop", Capability::Stop),
    ("pause", Capability::Pause),
    ("setTimeout", Capability::SetTimeout),
    ("gpu", Capability::Gpu),
    ("region", Capability::Region),
    ("streaming", Capability::Streaming),
    ("background", Capability::Background),
    ("stdin", Capability::Stdin),
    ("killProcess", Capability::KillProcess),
    ("pty", Capability::Pty),
    ("filesWatch", Capability::FilesWatch),
    ("filesUpload", Capability::FilesUpload),
    ("codeInterpreter", Capability::CodeInterpreter),
    ("statefulKernel", Capability::StatefulKernel),
    ("exposePort", Capability::ExposePort),
    ("privatePreview", Capability::PrivatePreview),
    ("egressControl", Capability::EgressControl),
    ("ssh", Capability::Ssh),
    ("proxiedFetch", Capability::ProxiedFetch),
    ("snapshot", Capability::Snapshot),
    ("fork", Capability::Fork),
    ("volumes", Capability::Volumes),
    ("secretsVault", Capability::SecretsVault),
    ("metrics", Capability::Metrics),
];

/// The groups, in the order in which they are shown.
const GROUPS: &[&str] = &[
    "lifecycle",
    "kind",
    "source",
    "compute",
    "exec",
    "files",
    "code",
    "network",
    "snapshot",
    "volumes",
    "secrets",
    "tools",
    "meta",
];

impl Capability {
    /// Every row, group by group, in the order in which they are shown.
    pub fn in_groups() -> Vec<Self> {
        let mut rows = Self::ALL.to_vec();
        rows.sort_by_key(|row| GROUPS.iter().position(|group| *group == row.group()));
        rows
    }

    /// The field's common name for the row, in camelCase, where it has one.
    pub fn alias(self) -> Option<&'static str> {
        ALIASES.iter().find(|(_, capability)| *capability == self).map(|(alias, _)| *alias)
    }

    /// The part of the id before the dot.
    pub fn group(self) -> &'static str {
        self.as_str().split_once('.').map_or("", |(group, _)| group)
    }

    /// The part of the id after the dot.
    pub fn name(self) -> &'static str {
        self.as_str().split_once('.').map_or("", |(_, name)| name)
    }

    /// True for security controls: they are never emulated, never defaulted away.
    pub const fn is_security(self) -> bool {
        matches!(
            self,
            Self::Vm
                | Self::FilesMount
                | Self::PrivatePreview
                | Self::EgressControl
                | Self::EgressCidr
                | Self::EgressHost
                | Self::EgressPort
                | Self::EgressUpdate
                | Self::PrivateNetwork
                | Self::VolumeSubPath
                | Self::VolumeReadOnly
                | Self::SecretsVault
                | Self::SecretInject
                | Self::SecretBrokerHeader
                | Self::SecretBrokerEnv
        )
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The text is neither the id nor the common name of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownCapability {
    /// What was given.
    pub given: String,
    /// The ids that look most like it.
    pub similar: Vec<&'static str>,
}

impl fmt::Display for UnknownCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no capability is called `{}`", self.given)?;
        match self.similar.as_slice() {
            [] => Ok(()),
            similar => write!(f, "; did you mean `{}`?", similar.join("`, `")),
        }
    }
}

impl std::error::Error for UnknownCapability {}

impl FromStr for Capability {
    type Err = UnknownCapability;

    /// Reads an id (`exec.pty`), a common name (`killProcess`) or the part of an id after the dot where that
    /// is the name of one row only (`kill-process`).
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(capability) = Self::ALL.iter().find(|c| c.as_str() == text) {
            return Ok(*capability);
        }
        if let Some((_, capability)) = ALIASES.iter().find(|(alias, _)| *alias == text) {
            return Ok(*capability);
        }
        let mut named = Self::ALL.iter().filter(|c| c.name() == text);
        if let (Some(capability), None) = (named.next(), named.next()) {
            return Ok(*capability);
        }
        let flat = |s: &str| s.replace(['-', '_', '.'], "").to_lowercase();
        let wanted = flat(text);
        let similar = Self::ALL
            .iter()
            .map(|c| c.as_str())
            .filter(|id| !wanted.is_empty() && (flat(id).contains(&wanted) || wanted.contains(&flat(id))))
            .collect();
        Err(UnknownCapability { given: text.to_owned(), similar })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_read_back() {
        for (i, capability) in Capability::ALL.iter().enumerate() {
            assert_eq!(*capability as usize, i);
            assert_eq!(capability.as_str().parse(), Ok(*capability));
            assert_eq!(Capability::ALL.iter().filter(|c| c.as_str() == capability.as_str()).count(), 1);
            assert!(GROUPS.contains(&capability.group()), "{capability}");
        }
    }

    #[test]
    fn the_common_names_are_accepted() {
        assert_eq!(ALIASES.len(), 25);
        for (alias, capability) in ALIASES {
            assert_eq!(alias.parse(), Ok(*capability));
            assert_eq!(capability.alias(), Some(*alias));
        }
        assert_eq!("kill-process".parse(), Ok(Capability::KillProcess));
        let unknown = "telepathy".parse::<Capability>().unwrap_err();
        assert_eq!(unknown.to_string(), "no capability is called `telepathy`");
    }
}
