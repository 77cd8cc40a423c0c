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
        self.target.check()?;
        let bytes = self.target.as_bytes();
        let steps_up = bytes.split(|b| *b == b'/').any(|part| part == b"..");
        if !self.target.is_absolute() || steps_up || bytes == b"/" {
            return Err(Error::invalid_argument(
                "mount",
                format!("the target `{}` must be an absolute path below `/`, without `..`", self.target),
            ));
        }
        if self.source.as_os_str().is_empty() {
            return Err(Error::invalid_argument("mount", "the source is empty"));
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
            Error::invalid_argument("mount", format!("`{text}` is not `SOURCE:TARGET[:ro]`"))
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

/// A sandbox name: lower-case letters, digits and `-`, at most 63, so that it can be part of a host name.
pub(super) fn check_name(name: &str) -> Result<()> {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let good = !name.is_empty() && name.len() <= 63 && name.bytes().all(allowed) && !name.starts_with('-');
    if good {
        return Ok(());
    }
    Err(Error::invalid_argument(
        "name",
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
    fn names() {
        assert!(check_name("build-7").is_ok());
        for wrong in ["", "-a", "A", "a/b", "..", &"a".repeat(64)] {
            assert!(check_name(wrong).is_err(), "{wrong}");
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
