//! What is written on containers, images, volumes and networks, by which capbox knows its own.
//!
//! Labels cannot be changed. The one thing that changes, whether a sandbox is leased, is in the container's name:
//! `capbox-ID-leased` becomes `capbox-ID` when it is detached.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use capbox_core::provider::{Error, ErrorKind, Labels, Result};

/// A container: the sandbox's id.
pub(crate) const SANDBOX: &str = "dev.capbox.sandbox";
/// A container: the process that created it. See [`Owner`].
pub(crate) const OWNER: &str = "dev.capbox.owner";
/// A container: milliseconds of its first life.
pub(crate) const TTL: &str = "dev.capbox.ttl";
/// A container: milliseconds since 1970 when it was created.
pub(crate) const CREATED: &str = "dev.capbox.created";
/// A container: the image's own user, entry point and command, as JSON; what a snapshot gets again.
pub(crate) const IMAGE: &str = "dev.capbox.image";
/// A container: its private network and its name there, `NETWORK HOST`.
pub(crate) const MEMBER: &str = "dev.capbox.member";
/// An image: a snapshot, and its name.
pub(crate) const SNAPSHOT: &str = "dev.capbox.snapshot";
/// A volume, a network: made by capbox.
pub(crate) const OURS: &str = "dev.capbox";
/// A container: before each label of the caller.
const CALLERS: &str = "dev.capbox.label.";

pub(crate) fn of_caller(labels: &Labels) -> impl Iterator<Item = (String, String)> {
    labels.0.iter().map(|(name, value)| (format!("{CALLERS}{name}"), value.clone()))
}

/// The caller's labels among those of a container.
pub(crate) fn caller(all: &HashMap<String, String>) -> Labels {
    let of =
        all.iter().filter_map(|(name, value)| Some((name.strip_prefix(CALLERS)?.to_owned(), value.clone())));
    Labels(of.collect())
}

/// Filters of a listing: everything that has all of these labels.
pub(crate) fn filter(labels: impl IntoIterator<Item = String>) -> HashMap<String, Vec<String>> {
    HashMap::from([("label".to_owned(), labels.into_iter().collect())])
}

pub(crate) fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The time that a label says, if it is one.
pub(crate) fn time(labels: &HashMap<String, String>, label: &str) -> Option<SystemTime> {
    duration(labels, label).and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since))
}

/// The length of time that a label says, if it is one.
pub(crate) fn duration(labels: &HashMap<String, String>, label: &str) -> Option<Duration> {
    labels.get(label)?.parse().ok().map(Duration::from_millis)
}

/// A process of a machine: the one that holds a sandbox's lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// This run of this machine, and the pid namespace in which the number means something.
    place: String,
    pid: u32,
    /// Ticks from the machine's start to the process's.
    started: u64,
}

impl Owner {
    /// This process; nothing where the system does not tell.
    pub(crate) fn this() -> Option<Self> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let namespace = std::fs::read_link("/proc/self/ns/pid").ok()?;
        let pid = std::process::id();
        let place =
            format!("{}.{}", boot.trim(), namespace.to_str()?.trim_matches(|c: char| !c.is_ascii_digit()));
        Some(Self { place, pid, started: started(pid)? })
    }

    pub(crate) fn to_label(&self) -> String {
        format!("{}:{}:{}", self.place, self.pid, self.started)
    }

    fn parse(label: &str) -> Option<Self> {
        let mut parts = label.split(':');
        let (place, pid, started) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Self { place: place.to_owned(), pid: pid.parse().ok()?, started: started.parse().ok()? })
    }

    /// True where the process of the label was of this machine and is certainly gone.
    pub(crate) fn is_dead(label: &str) -> bool {
        match (Self::parse(label), Self::this()) {
            (Some(owner), Some(this)) => {
                owner.place == this.place && started(owner.pid) != Some(owner.started)
            }
            _ => false,
        }
    }
}

/// Field 22 of `/proc/PID/stat`, which is the twentieth after the name in brackets.
fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

/// A new id: twelve hexadecimal digits of the system's randomness.
pub(crate) fn new_id() -> Result<String> {
    use std::io::Read;
    let mut bytes = [0; 8];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes[2..]));
    read.map_err(|error| Error::new(ErrorKind::Provider, format!("read `/dev/urandom`: {error}")))?;
    Ok(format!("{:012x}", u64::from_be_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_certainly_dead_are_dead() {
        let this = Owner::this().unwrap();
        assert_eq!(Owner::parse(&this.to_label()), Some(this.clone()));
        assert!(!Owner::is_dead(&this.to_label()));
        let earlier = Owner { started: this.started + 1, ..this.clone() };
        assert!(Owner::is_dead(&earlier.to_label()), "its number has gone to another process");
        let elsewhere = Owner { place: "another-machine.1".to_owned(), ..earlier };
        assert!(!Owner::is_dead(&elsewhere.to_label()));
        for wrong in ["", "::", "a:b:c", "a"] {
            assert!(!Owner::is_dead(wrong), "{wrong}");
        }
    }

    #[test]
    fn labels_of_the_caller_cannot_pose_as_ours() {
        let labels = Labels::from([("dev.capbox.sandbox", "x"), ("team", "a=b")]);
        let all: HashMap<_, _> = of_caller(&labels).collect();
        assert!(!all.contains_key(SANDBOX));
        assert_eq!(caller(&all), labels);
    }
}
