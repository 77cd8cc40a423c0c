//! What callers ask for: [`Spec`] (a sandbox), [`Command`] and [`ExecOptions`] (an exec), and their values.
//!
//! The option fields of [`Spec`] and [`ExecOptions`] are rows, so both structs are generated from the one list
//! of rows, each with one exhaustive lowering that typed and untyped callers share.

mod command;
mod path;
mod uri;
mod values;

use std::time::Duration;

pub use self::command::{Command, DEFAULT_MAX_OUTPUT, Env, Program};
pub use self::path::SandboxPath;
pub use self::uri::Uri;
pub(crate) use self::values::check_volume;
pub use self::values::{
    CidrRule, Container, DenyEgress, Gpu, HostRule, Image, Input, Labels, Mount, MountAccess, Mounts,
    Network, OnTimeout, OpenEgress, PortRules, PrivateNetwork, ReadOnlyVolumes, Resources, Stdin, SubPaths,
    TerminalSize, VolumeMount, VolumeMounts,
};
use crate::capability::flags::Isolation;
pub use crate::capability::rows::{ExecOptions, Spec};
use crate::capability::{Capabilities, Capability, NotSupported, Refusal, Rows};
use crate::error::{Error, Result};

/// A sandbox lives this long unless the spec says otherwise.
pub const DEFAULT_TTL: Duration = Duration::from_mins(5);

impl Spec {
    /// A spec that asks for nothing in particular.
    pub fn new() -> Self {
        Self::default()
    }

    /// Set the network policy: whether to deny or to open, and what to allow.
    #[must_use]
    pub fn network(mut self, network: Network) -> Self {
        let Network { open, hosts, cidrs } = network;
        self.egress_open = open.then_some(OpenEgress);
        self.egress_control = (!open).then_some(DenyEgress);
        self.egress_ports = None;
        self.egress_hosts = (!hosts.is_empty()).then_some(hosts);
        self.egress_cidrs = (!cidrs.is_empty()).then_some(cidrs);
        self.with_implied()
    }

    /// Start from this image.
    #[must_use]
    pub fn image(mut self, image: Image) -> Self {
        match image {
            Image::Name(name) => self.image_name = Some(name),
            Image::Archive(path) => self.image_archive = Some(path),
            Image::Context(path) => self.image_context = Some(path),
            Image::Template(id) => self.template = Some(id),
        }
        self
    }

    /// Refuse providers whose isolation is weaker than `floor`.
    #[must_use]
    pub fn require_isolation(mut self, floor: Isolation) -> Self {
        self.require_isolation = Some(floor);
        self
    }

    /// Everything that stands between this spec and a sandbox of a provider with `capabilities`: refused rows,
    /// broken limits and constraints, a missing policy. Empty where the provider takes it. Sends nothing.
    pub fn problems(&self, capabilities: &Capabilities) -> Vec<Error> {
        self.clone().with_implied().problems_of_all(capabilities)
    }

    /// Ask for the rows that a part of another option's value stands for, so that none is asked for in silence.
    fn with_implied(mut self) -> Self {
        let hosts = self.egress_hosts.iter().flatten().map(|rule| rule.port);
        let cidrs = self.egress_cidrs.iter().flatten().map(|rule| rule.port);
        if hosts.chain(cidrs).any(|port| port.is_some()) {
            self.egress_ports = Some(PortRules);
        }
        let volumes = self.volumes.iter().flat_map(|volumes| &volumes.0);
        if volumes.clone().any(|mount| mount.sub_path.is_some()) {
            self.volume_sub_paths = Some(SubPaths);
        }
        if volumes.clone().any(|mount| mount.read_only) {
            self.volumes_read_only = Some(ReadOnlyVolumes);
        }
        self
    }

    /// What stands against these options as a change of a sandbox that lives.
    pub(crate) fn changes_problem(&self, capabilities: &Capabilities) -> Option<Error> {
        let refused = self.asked().into_iter().find_map(|option| capabilities.require(option).err());
        let rows = capabilities.declared();
        let wrong = || self.invalid_values().into_iter().chain(self.broken_limits(rows)).next();
        refused.map(Error::from).or_else(wrong)
    }

    fn problems_of_all(&self, capabilities: &Capabilities) -> Vec<Error> {
        let rows = capabilities.declared();
        let mut problems: Vec<Error> = self
            .asked()
            .into_iter()
            .filter_map(|capability| capabilities.require(capability).err())
            .map(Error::from)
            .collect();
        problems.extend(self.invalid_values());
        problems.extend(self.broken_limits(rows));
        problems.extend(
            rows.constraints
                .iter()
                .filter(|c| capabilities.require(c.capability).is_ok() && (c.when)(self))
                .map(|c| NotSupported::new(rows.provider, c.capability, c.refusal, c.reason).into()),
        );
        problems.extend(self.isolation_problem(rows));
        problems.extend(self.undeniable_egress(capabilities));
        problems.extend(self.unbounded_life(capabilities));
        problems
    }

    /// Fill in capbox's own defaults: reach nothing, live for five minutes.
    pub(crate) fn with_defaults(mut self, capabilities: &Capabilities) -> Self {
        if self.egress_open.is_none() && self.egress_control.is_none() {
            self.egress_control = Some(DenyEgress);
        }
        if self.ttl.is_none() && capabilities.require(Capability::Ttl).is_ok() {
            self.ttl = Some(DEFAULT_TTL);
        }
        self.with_implied()
    }

    fn invalid_values(&self) -> Vec<Error> {
        let mut problems = Vec::new();
        let mut zero = |name: &'static str, value: Option<f64>| {
            if value.is_some_and(|v| !(v.is_finite() && v > 0.0)) {
                problems.push(Error::invalid_argument(name, "must be greater than zero"));
            }
        };
        zero("ttl", self.ttl.map(|d| d.as_secs_f64()));
        zero("idle_timeout", self.idle_timeout.map(|d| d.as_secs_f64()));
        zero("cpu", self.cpu);
        for (name, bytes) in [("memory", self.memory), ("disk", self.disk)] {
            if bytes == Some(0) {
                problems.push(Error::invalid_argument(name, "must be greater than zero"));
            }
        }
        if self.processes == Some(0) {
            problems.push(Error::invalid_argument("processes", "must be greater than zero"));
        }
        if self.egress_open.is_some() && self.egress_control.is_some() {
            problems.push(Error::invalid_argument("network", "is open and denied at once"));
        }
        if let Some(name) = &self.name {
            problems.extend(values::check_name("name", name).err());
        }
        if let Some(labels) = &self.labels {
            problems.extend(labels.check().err());
        }
        if let Some(env) = &self.env {
            problems.extend(env.check(None).err());
        }
        if let Some(mounts) = &self.mounts {
            problems.extend(mounts.0.iter().filter_map(|m| m.check().err()));
        }
        if let Some(volumes) = &self.volumes {
            problems.extend(volumes.0.iter().filter_map(|m| m.check().err()));
        }
        if let Some(network) = &self.private_network {
            problems.extend(network.check().err());
        }
        let ports = self.ports.iter().flatten().copied();
        if ports.chain(self.container.iter().filter_map(|c| c.port)).any(|port| port == 0) {
            problems.push(Error::invalid_argument("ports", "must be between 1 and 65535"));
        }
        problems
    }

    fn broken_limits(&self, rows: &Rows) -> Vec<Error> {
        #[allow(clippy::cast_precision_loss, reason = "limits are compared, not counted")]
        let numbers = [
            (Capability::Ttl, self.ttl.map(|d| d.as_secs_f64())),
            (Capability::IdleTimeout, self.idle_timeout.map(|d| d.as_secs_f64())),
            (Capability::Cpu, self.cpu),
            (Capability::Memory, self.memory.map(|n| n as f64)),
            (Capability::Disk, self.disk.map(|n| n as f64)),
            (Capability::Processes, self.processes.map(f64::from)),
            (Capability::Gpu, self.gpu.as_ref().map(|g| f64::from(g.count))),
        ];
        let number = |capability| numbers.iter().find(|(of, _)| *of == capability)?.1;
        rows.limits
            .iter()
            .filter_map(|limit| {
                let value = number(limit.capability)?;
                let name = limit.capability.as_str();
                if value < limit.min {
                    Some(Error::invalid_argument(
                        name,
                        format!(
                            "{value} is below the least that `{}` takes, {} {}",
                            rows.provider, limit.min, limit.unit
                        ),
                    ))
                } else if value > limit.max {
                    Some(Error::invalid_argument(
                        name,
                        format!(
                            "{value} is above the most that `{}` takes, {} {}",
                            rows.provider, limit.max, limit.unit
                        ),
                    ))
                } else {
                    None
                }
            })
            .collect()
    }

    fn isolation_problem(&self, rows: &Rows) -> Option<Error> {
        let floor = self.require_isolation?;
        let given = rows.flags.isolation;
        (given == Isolation::Unknown || given < floor)
            .then(|| Error::isolation_too_weak(rows.provider, given, floor))
    }

    /// A provider that cannot deny is only used by those who said that it may be open.
    fn undeniable_egress(&self, capabilities: &Capabilities) -> Option<Error> {
        let cannot = capabilities.require(Capability::EgressControl).err()?;
        (self.egress_open.is_none() && self.egress_control.is_none()).then(|| {
            Error::from(cannot).with_hint(
                "this provider cannot deny network access; say so with `Network::open()` (`--net open`) to use it",
            )
        })
    }

    /// Nothing lives for ever by accident.
    fn unbounded_life(&self, capabilities: &Capabilities) -> Option<Error> {
        let unbounded = capabilities.require(Capability::Ttl).err()?;
        let bounded = capabilities.flags().lifetime.default.length().is_some();
        (self.ttl.is_none() && !bounded).then(|| {
            Error::from(NotSupported { refusal: Refusal::ProviderLacks, ..unbounded })
                .with_hint("sandboxes of this provider live until they are destroyed, so capbox does not create one without an owner")
        })
    }
}

/// Parse a length of time: a number with `ms`, `s`, `m`, `h` or `d`, such as `90s` or `1.5h`. Zero, negative
/// and unit-less numbers are refused.
pub fn parse_duration(text: &str) -> Result<Duration> {
    let wrong = |what: &str| Error::invalid_argument("duration", format!("`{text}` {what}"));
    let split = text
        .find(|c: char| c.is_ascii_alphabetic())
        .ok_or_else(|| wrong("has no unit; write for example `90s`, `5m` or `1.5h`"))?;
    let (number, unit) = text.split_at(split);
    let number: f64 =
        number.trim().parse().map_err(|_| wrong("is not a number with a unit, such as `90s`"))?;
    let seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(wrong("has an unknown unit; use `ms`, `s`, `m`, `h` or `d`")),
    };
    let total = number * seconds;
    if total.is_nan() || total <= 0.0 {
        return Err(wrong("must be greater than zero"));
    }
    Duration::try_from_secs_f64(total).map_err(|_| wrong("is too long"))
}

/// Parse a size in bytes: a number with `K`, `M`, `G` or `T` (powers of 1024; `KiB`, `MiB`, … mean the same).
pub fn parse_size(text: &str) -> Result<u64> {
    let wrong = |what: &str| Error::invalid_argument("size", format!("`{text}` {what}"));
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number.trim().parse().map_err(|_| wrong("is not a size, such as `512M` or `2GiB`"))?;
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(wrong("has an unknown unit; use `K`, `M`, `G` or `T`")),
    };
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let bytes = {
        let bytes = number * (1_u64 << shift) as f64;
        if !bytes.is_finite() || bytes < 1.0 || bytes > (1_u64 << 60) as f64 {
            return Err(wrong("must be at least one byte and at most 1024 PiB"));
        }
        bytes as u64
    };
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(parse_duration("90s").unwrap(), Duration::from_secs(90));
        assert_eq!(parse_duration("0.5s").unwrap(), Duration::from_millis(500));
        assert_eq!(parse_duration("2m").unwrap(), Duration::from_mins(2));
        for wrong in ["", "10", "0s", "-1s", "1y", "s", "NaNs", "1e400s"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("512M").unwrap(), 512 << 20);
        assert_eq!(parse_size("1.5GiB").unwrap(), 3 << 29);
        assert_eq!(parse_size("17").unwrap(), 17);
        for wrong in ["", "0", "-1M", "1X", "M", "1e99"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
