//! The values of option rows.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use bytes::Bytes;

use super::SandboxPath;
use crate::error::{Error, Result};

/// Ask that everything may be reached, but for what no provider opens: the host's loopback, metadata addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenEgress;

/// Ask that nothing may be reached, but what is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenyEgress;

/// Ask that rules with a port allow that port only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRules;

/// An address range that may be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CidrRule {
    /// The range, such as `192.0.2.0/24` or `2001:db8::/32`.
    pub cidr: String,
    /// Only this port.
    pub port: Option<u16>,
}

/// A host name that may be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRule {
    /// The name, or a pattern `*.example.com` for all names below `example.com`.
    pub host: String,
    /// Only this port.
    pub port: Option<u16>,
}

/// A network policy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Network {
    /// True where everything may be reached; else nothing but what is listed.
    pub open: bool,
    /// Host names that may be reached.
    pub hosts: Vec<HostRule>,
    /// Address ranges that may be reached.
    pub cidrs: Vec<CidrRule>,
}

impl Network {
    /// Reach nothing.
    pub const fn deny() -> Self {
        Self { open: false, hosts: Vec::new(), cidrs: Vec::new() }
    }

    /// Reach everything.
    pub const fn open() -> Self {
        Self { open: true, hosts: Vec::new(), cidrs: Vec::new() }
    }
}

impl FromStr for Network {
    type Err = Error;

    /// Reads `deny`, `open`, or a list of `HOST[:PORT]` and `CIDR[:PORT]` joined by commas.
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "deny" => return Ok(Self::deny()),
            "open" => return Ok(Self::open()),
            _ => {}
        }
        let mut network = Self::deny();
        for rule in text.split(',').map(str::trim) {
            let wrong = |what: &str| Error::invalid_argument("network", format!("the rule `{rule}` {what}"));
            if rule.is_empty() {
                return Err(wrong("is empty"));
            }
            let (host, port) = match rule.rsplit_once(':') {
                Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
                    (host, Some(port.parse().map_err(|_| wrong("has no port number after `:`"))?))
                }
                _ => (rule, None),
            };
            let host = host.trim_start_matches('[').trim_end_matches(']').to_lowercase();
            let host = host.strip_suffix('.').unwrap_or(&host).to_owned();
            let address = host.split('/').next().unwrap_or_default();
            if address.parse::<std::net::IpAddr>().is_ok() {
                network.cidrs.push(CidrRule { cidr: host, port });
            } else if host.is_empty() || host.contains(['/', ' ', '@', ':']) {
                return Err(wrong("is neither a host name nor an address range"));
            } else {
                network.hosts.push(HostRule { host, port });
            }
        }
        Ok(network)
    }
}

/// GPUs to ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// The model, in the provider's words; any where empty.
    pub model: String,
    /// How many.
    pub count: u32,
}

impl From<&str> for Gpu {
    /// Reads `MODEL` or `MODEL:COUNT`.
    fn from(text: &str) -> Self {
        match text.rsplit_once(':').and_then(|(model, count)| Some((model, count.parse().ok()?))) {
            Some((model, count)) => Self { model: model.to_owned(), count },
            None => Self { model: text.to_owned(), count: 1 },
        }
    }
}

/// What to do when a sandbox's time is up, instead of destroying it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnTimeout {
    /// Stop it and keep its disk.
    Stop,
    /// Pause it and keep its memory too.
    Pause,
}

/// Bytes for a command's standard input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input(pub Bytes);

impl From<&'static str> for Input {
    fn from(text: &'static str) -> Self {
        Self(Bytes::from_static(text.as_bytes()))
    }
}

impl From<String> for Input {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<Vec<u8>> for Input {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl From<Bytes> for Input {
    fn from(bytes: Bytes) -> Self {
        Self(bytes)
    }
}

/// What a process started by `spawn` reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stdin {
    /// What the caller writes, until the caller closes it. Where nothing is said, it is closed from the start.
    Open,
}

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminalSize {
    /// Lines.
    pub rows: u16,
    /// Characters per line.
    pub cols: u16,
}

impl TerminalSize {
    /// `rows` lines of `cols` characters.
    pub fn new(rows: u32, cols: u32) -> Result<Self> {
        let side = |name, n: u32| match u16::try_from(n) {
            Ok(n) if n > 0 => Ok(n),
            _ => Err(Error::invalid_argument(name, format!("{n} is not between 1 and 65535"))),
        };
        Ok(Self { rows: side("rows", rows)?, cols: side("cols", cols)? })
    }
}

impl Default for TerminalSize {
    fn default() -> Self {
        Self { rows: 24, cols: 80 }
    }
}

/// Labels to find sandboxes by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(pub BTreeMap<String, String>);

impl Labels {
    /// True where every label of `wanted` is here with the same value.
    pub fn contain(&self, wanted: &Self) -> bool {
        wanted.0.iter().all(|(name, value)| self.0.get(name) == Some(value))
    }

    pub(crate) fn check(&self) -> Result<()> {
        let wrong = |name: &str| name.is_empty() || name.contains(['=', '\0', '\n', ',']);
        match self.0.keys().find(|name| wrong(name)) {
            None => Ok(()),
            Some(name) => Err(Error::invalid_argument(
                "labels",
                format!(
                    "the name `{}` is empty or holds `=`, `,`, a NUL or a line feed",
                    name.escape_debug()
                ),
            )),
        }
    }
}

impl<N: Into<String>, V: Into<String>, const C: usize> From<[(N, V); C]> for Labels {
    fn from(pairs: [(N, V); C]) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// What a sandbox may do in a mounted folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountAccess {
    /// Read.
    ReadOnly,
    /// Read and write, but not what host tools execute or trust: `.git`, editor tasks, `.envrc`.
    ReadWrite,
    /// Read and write everything.
    Unprotected,
}

/// A folder of this machine, seen inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// On this machine.
    pub source: PathBuf,
    /// Inside, absolute.
    pub target: SandboxPath,
    /// What the sandbox may do there.
    pub access: MountAccess,
}

impl Mount {
    /// `source` at `target`, read-only.
    pub fn read_only(source: impl AsRef<Path>, target: impl Into<SandboxPath>) -> Self {
        Self { source: source.as_ref().to_owned(), target: target.into(), access: MountAccess::ReadOnly }
    }

    /// `source` at `target`, writable but for what host tools trust.
    pub fn read_write(source: impl AsRef<Path>, target: impl Into<SandboxPath>) -> Self {
        Self { source: source.as_ref().to_owned(), target: target.into(), access: MountAccess::ReadWrite }
    }

    pub(crate) fn check(&self) -> Result<()> {
        check_target("mount", &self.target)?;
        if self.source.as_os_str().is_empty() {
            return Err(Error::invalid_argument(
                "mount",
                "the folder of this machine, the part before `:`, is empty",
            ));
        }
        Ok(())
    }
}

impl FromStr for Mount {
    type Err = Error;

    /// Reads `SOURCE:TARGET`, with `:ro`, `:rw` or `:unprotected` after it; read-write where nothing is said.
    fn from_str(text: &str) -> Result<Self> {
        let (rest, access) = match text.rsplit_once(':') {
            Some((rest, "ro")) => (rest, MountAccess::ReadOnly),
            Some((rest, "rw")) => (rest, MountAccess::ReadWrite),
            Some((rest, "unprotected")) => (rest, MountAccess::Unprotected),
            _ => (text, MountAccess::ReadWrite),
        };
        let (source, target) = rest.rsplit_once(':').ok_or_else(|| {
            Error::invalid_argument("mount", format!("`{text}` names one folder, and two are needed"))
                .with_hint("write `SOURCE:TARGET[:ro]`, such as `.:/work:ro`: a folder of this machine and its place inside")
        })?;
        let mount = Self { source: source.into(), target: target.into(), access };
        mount.check()?;
        Ok(mount)
    }
}

/// Folders of this machine, seen inside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mounts(pub Vec<Mount>);

impl From<Vec<Mount>> for Mounts {
    fn from(mounts: Vec<Mount>) -> Self {
        Self(mounts)
    }
}

impl From<Mount> for Mounts {
    fn from(mount: Mount) -> Self {
        Self(vec![mount])
    }
}

/// Run the image's own command, as a container does.
///
/// The command is process `main` of the sandbox; when it ends, the sandbox ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Container {
    /// Arguments in place of the image's own; its entry point stays.
    pub args: Option<Vec<String>>,
    /// The port that it listens on, which is exposed.
    pub port: Option<u16>,
}

impl Container {
    /// The image's own command, with no port.
    pub fn new() -> Self {
        Self::default()
    }

    /// With these arguments in place of the image's own.
    #[must_use]
    pub fn with_args<A: Into<String>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args = Some(args.into_iter().map(Into::into).collect());
        self
    }

    /// With this port, which is exposed.
    #[must_use]
    pub fn with_port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }
}

/// A network of those sandboxes that name it, and nobody else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivateNetwork {
    /// The network's name. The first sandbox makes it, and it goes with the last.
    pub network: String,
    /// The name by which the others reach this sandbox; the provider's choice where unset.
    pub host: Option<String>,
}

impl PrivateNetwork {
    /// The network of that name.
    pub fn named(network: impl Into<String>) -> Self {
        Self { network: network.into(), host: None }
    }

    /// Reached by the others as `host`.
    #[must_use]
    pub fn with_host(mut self, host: impl Into<String>) -> Self {
        self.host = Some(host.into());
        self
    }

    pub(super) fn check(&self) -> Result<()> {
        check_name("private_network", &self.network)?;
        self.host.as_ref().map_or(Ok(()), |host| check_name("private_network", host))
    }
}

impl From<&str> for PrivateNetwork {
    fn from(network: &str) -> Self {
        Self::named(network)
    }
}

/// Ask that a mount with a sub-path shows that folder of the volume and nothing above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubPaths;

/// Ask that a read-only mount of a volume cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadOnlyVolumes;

/// A volume, seen inside.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VolumeMount {
    /// The volume's id.
    pub volume: String,
    /// Inside, absolute.
    pub target: SandboxPath,
    /// The one folder of the volume that is shown, relative to its root; made where it is not there.
    pub sub_path: Option<SandboxPath>,
    /// True where it cannot be written.
    pub read_only: bool,
}

impl VolumeMount {
    /// All of `volume` at `target`, writable.
    pub fn new(volume: impl Into<String>, target: impl Into<SandboxPath>) -> Self {
        Self { volume: volume.into(), target: target.into(), sub_path: None, read_only: false }
    }

    /// One folder of it, and nothing above.
    #[must_use]
    pub fn with_sub_path(mut self, path: impl Into<SandboxPath>) -> Self {
        self.sub_path = Some(path.into());
        self
    }

    /// Not to be written.
    #[must_use]
    pub fn with_read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    pub(super) fn check(&self) -> Result<()> {
        let wrong = |what: String| Error::invalid_argument("volumes", what);
        check_volume(&self.volume)?;
        check_target("volumes", &self.target)?;
        match &self.sub_path {
            Some(path) if path.is_absolute() || steps_up(path) || path.as_bytes().is_empty() => {
                Err(wrong(format!("the folder `{path}` must be relative to the volume's root, without `..`")))
            }
            _ => Ok(()),
        }
    }
}

impl FromStr for VolumeMount {
    type Err = Error;

    /// Reads `VOLUME[/FOLDER]:TARGET`, with `:ro` after it where it cannot be written.
    fn from_str(text: &str) -> Result<Self> {
        let (rest, read_only) = match text.rsplit_once(':') {
            Some((rest, "ro")) => (rest, true),
            Some((rest, "rw")) => (rest, false),
            _ => (text, false),
        };
        let (source, target) = rest.rsplit_once(':').ok_or_else(|| {
            Error::invalid_argument("volumes", format!("`{text}` is not `VOLUME[/FOLDER]:TARGET[:ro]`"))
        })?;
        let (volume, folder) = source.split_once('/').map_or((source, None), |(v, f)| (v, Some(f)));
        let mount = Self {
            volume: volume.to_owned(),
            target: target.into(),
            sub_path: folder.map(Into::into),
            read_only,
        };
        mount.check()?;
        Ok(mount)
    }
}

/// Volumes, seen inside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeMounts(pub Vec<VolumeMount>);

impl From<Vec<VolumeMount>> for VolumeMounts {
    fn from(mounts: Vec<VolumeMount>) -> Self {
        Self(mounts)
    }
}

impl From<VolumeMount> for VolumeMounts {
    fn from(mount: VolumeMount) -> Self {
        Self(vec![mount])
    }
}

/// An image that is to be ready for create.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Image {
    /// By name.
    Name(String),
    /// A loadable archive on this machine.
    Archive(PathBuf),
    /// A build context on this machine.
    Context(PathBuf),
    /// The provider's own template, by id.
    Template(String),
}

/// What to change in a living sandbox; what is unset stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Resources {
    /// CPUs, as a number that may be a fraction.
    pub cpu: Option<f64>,
    /// Memory, in bytes.
    pub memory: Option<u64>,
    /// Disk, in bytes.
    pub disk: Option<u64>,
}

impl Resources {
    /// Nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// This many CPUs.
    #[must_use]
    pub fn with_cpu(mut self, cpus: f64) -> Self {
        self.cpu = Some(cpus);
        self
    }

    /// This many bytes of memory.
    #[must_use]
    pub fn with_memory(mut self, bytes: u64) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// This many bytes of disk.
    #[must_use]
    pub fn with_disk(mut self, bytes: u64) -> Self {
        self.disk = Some(bytes);
        self
    }
}

/// The id of a volume: one word that is no path.
pub(crate) fn check_volume(volume: &str) -> Result<()> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if !volume.is_empty()
        && volume.len() <= 128
        && !volume.starts_with(['-', '.'])
        && volume.chars().all(good)
    {
        return Ok(());
    }
    Err(Error::invalid_argument(
        "volume",
        format!(
            "`{}` must be letters, digits, `-`, `_` and `.`, and start with neither `-` nor `.`",
            volume.escape_debug()
        ),
    ))
}

fn steps_up(path: &SandboxPath) -> bool {
    path.as_bytes().split(|b| *b == b'/').any(|part| part == b"..")
}

/// Where something is mounted: an absolute path below the root.
fn check_target(name: &'static str, target: &SandboxPath) -> Result<()> {
    target.check()?;
    if target.is_absolute() && !steps_up(target) && target.as_bytes() != b"/" {
        return Ok(());
    }
    Err(Error::invalid_argument(
        name,
        format!("the target `{target}` must be an absolute path below `/`, without `..`"),
    ))
}

/// A sandbox name: lower-case letters, digits and `-`, at most 63, so that it can be part of a host name.
pub(super) fn check_name(argument: &'static str, name: &str) -> Result<()> {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let good = !name.is_empty() && name.len() <= 63 && name.bytes().all(allowed) && !name.starts_with('-');
    if good {
        return Ok(());
    }
    Err(Error::invalid_argument(
        argument,
        format!("`{}` must be 1 to 63 of a-z, 0-9 and `-`, not starting with `-`", name.escape_debug()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks() {
        assert_eq!("deny".parse::<Network>().unwrap(), Network::deny());
        let network = "Example.com.:443,192.0.2.0/24,[2001:db8::1]:53,*.a.test".parse::<Network>().unwrap();
        assert!(!network.open);
        assert_eq!(network.hosts[0], HostRule { host: "example.com".into(), port: Some(443) });
        assert_eq!(network.hosts[1], HostRule { host: "*.a.test".into(), port: None });
        assert_eq!(network.cidrs[0], CidrRule { cidr: "192.0.2.0/24".into(), port: None });
        assert_eq!(network.cidrs[1], CidrRule { cidr: "2001:db8::1".into(), port: Some(53) });
        for wrong in ["", "a,,b", "http://x", "a:port", "a b"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn mounts() {
        assert_eq!("/a:/b:ro".parse::<Mount>().unwrap(), Mount::read_only("/a", "/b"));
        assert_eq!("/a:/b".parse::<Mount>().unwrap(), Mount::read_write("/a", "/b"));
        for wrong in ["", "/a", "/a:b", "/a:/../b", ":/b", "/a:/"] {
            assert!(wrong.parse::<Mount>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn volumes() {
        let plain = VolumeMount::new("cache", "/cache");
        assert_eq!("cache:/cache".parse::<VolumeMount>().unwrap(), plain);
        let tenant = plain.with_sub_path("tenants/7").with_read_only();
        assert_eq!("cache/tenants/7:/cache:ro".parse::<VolumeMount>().unwrap(), tenant);
        for wrong in
            ["", "cache", "cache:x", "cache/../x:/c", "cache//x:/c", "../x:/c", ".x:/c", "a b:/c", "c:/"]
        {
            assert!(wrong.parse::<VolumeMount>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn names() {
        assert!(check_name("name", "build-7").is_ok());
        for wrong in ["", "-a", "A", "a/b", "..", &"a".repeat(64)] {
            assert!(check_name("name", wrong).is_err(), "{wrong}");
        }
    }

    /// B77: sizes are validated.
    #[test]
    fn terminal_sizes() {
        assert!(TerminalSize::new(24, 80).is_ok());
        assert!(TerminalSize::new(0, 0).is_err());
        assert!(TerminalSize::new(70_000, 1).is_err());
    }
}
