//! Flags that follow from rows and other flags, so that nobody writes them twice.

use super::flags::Isolation;
use super::{Capability, Level, Rows};

/// What follows from a provider's table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Derived {
    /// A paused sandbox keeps its memory: `lifecycle.pause` is native.
    pub preserves_memory_on_pause: bool,
    /// A command can have variables and a folder of its own: `exec.env` and `exec.cwd` are native.
    pub per_command_env_cwd: bool,
    /// When a sandbox ends whose owner is gone.
    pub orphan_ends: OrphanEnds,
    /// A sandbox ends with the process that created it, detached or not: its boundary is that process.
    pub ends_with_process: bool,
    /// Virtual machines can be created.
    pub creates_vms: bool,
    /// Sandboxes can be put into a network of their own.
    pub private_network: bool,
    /// What a sandbox can start from.
    pub sandbox_accepts: Vec<Capability>,
    /// What a container can start from; nothing where there are no containers.
    pub container_accepts: Vec<Capability>,
}

/// When a sandbox ends whose owner is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OrphanEnds {
    /// At once: it runs beside its owner.
    AtOnce,
    /// Soon: the owner has to renew its lifetime again and again.
    Renewed,
    /// At the end of its lifetime.
    Ttl,
    /// When somebody calls `reap`.
    Reap,
}

impl OrphanEnds {
    /// The word used in every output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AtOnce => "at-once",
            Self::Renewed => "renewed",
            Self::Ttl => "ttl",
            Self::Reap => "reap",
        }
    }
}

/// The rows that say what something can start from.
const SOURCES: &[Capability] = &[
    Capability::ImageName,
    Capability::ImageArchive,
    Capability::ImageContext,
    Capability::Template,
    Capability::FromSnapshot,
];

impl Derived {
    /// What follows from `table`.
    pub fn of(table: &Rows) -> Self {
        let level = |capability| table.row(capability).level;
        let native = |capability| level(capability) == Level::Native;
        let filled = |capability| level(capability) != Level::Unsupported;
        let orphan_ends = if table.flags.on_this_machine {
            OrphanEnds::AtOnce
        } else if filled(Capability::SetTimeout) {
            OrphanEnds::Renewed
        } else if filled(Capability::Ttl) {
            OrphanEnds::Ttl
        } else {
            OrphanEnds::Reap
        };
        let accepts: Vec<_> = SOURCES.iter().copied().filter(|source| filled(*source)).collect();
        Self {
            preserves_memory_on_pause: native(Capability::Pause),
            per_command_env_cwd: native(Capability::ExecEnv) && native(Capability::ExecCwd),
            orphan_ends,
            ends_with_process: table.flags.isolation == Isolation::Process,
            creates_vms: filled(Capability::Vm),
            private_network: filled(Capability::PrivateNetwork),
            container_accepts: if filled(Capability::Container) { accepts.clone() } else { Vec::new() },
            sandbox_accepts: accepts,
        }
    }

    /// Every derived flag by name, with its value as text.
    pub fn entries(&self) -> Vec<(&'static str, String)> {
        let Self {
            preserves_memory_on_pause,
            per_command_env_cwd,
            orphan_ends,
            ends_with_process,
            creates_vms,
            private_network,
            sandbox_accepts,
            container_accepts,
        } = self;
        let joined = |sources: &[Capability]| {
            let names: Vec<_> = sources.iter().map(|source| source.name()).collect();
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        };
        vec![
            ("preserves_memory_on_pause", preserves_memory_on_pause.to_string()),
            ("per_command_env_cwd", per_command_env_cwd.to_string()),
            ("orphan_ends", orphan_ends.as_str().to_owned()),
            ("ends_with_process", ends_with_process.to_string()),
            ("creates_vms", creates_vms.to_string()),
            ("private_network", private_network.to_string()),
            ("sandbox_accepts", joined(sandbox_accepts)),
            ("container_accepts", joined(container_accepts)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capability::RowInfo;
    use crate::capability::flags::Flags;

    /// A table in which the rows of `native` are native and all others unsupported.
    fn table(native: &[Capability], flags: Flags) -> Rows {
        let rows: Vec<_> = Capability::ALL
            .iter()
            .map(|capability| {
                let level = if native.contains(capability) { Level::Native } else { Level::Unsupported };
                RowInfo::new(*capability, level, "for the test", true)
            })
            .collect();
        Rows::new("test", rows.leak(), flags, &[], &[])
    }

    #[test]
    fn orphans_end_by_the_strongest_means() {
        let ends = |native: &[Capability], flags| Derived::of(&table(native, flags)).orphan_ends;
        let both = [Capability::SetTimeout, Capability::Ttl];
        assert_eq!(ends(&both, Flags::DEFAULT.on_this_machine(true)), OrphanEnds::AtOnce);
        assert_eq!(ends(&both, Flags::DEFAULT), OrphanEnds::Renewed);
        assert_eq!(ends(&[Capability::Ttl], Flags::DEFAULT), OrphanEnds::Ttl);
        assert_eq!(ends(&[], Flags::DEFAULT), OrphanEnds::Reap);
    }

    #[test]
    fn what_is_part_of_a_process_ends_with_it() {
        let ends =
            |isolation| Derived::of(&table(&[], Flags::DEFAULT.isolation(isolation))).ends_with_process;
        assert!(ends(Isolation::Process));
        assert!(!ends(Isolation::Unknown) && !ends(Isolation::Container));
    }

    #[test]
    fn containers_accept_nothing_where_there_are_none() {
        let without = Derived::of(&table(&[Capability::ImageName], Flags::DEFAULT));
        assert_eq!(without.sandbox_accepts, [Capability::ImageName]);
        assert!(without.container_accepts.is_empty());
        let with = Derived::of(&table(&[Capability::ImageName, Capability::Container], Flags::DEFAULT));
        assert_eq!(with.container_accepts, [Capability::ImageName]);
    }

    #[test]
    fn both_halves_are_needed() {
        assert!(!Derived::of(&table(&[Capability::ExecEnv], Flags::DEFAULT)).per_command_env_cwd);
        let both = [Capability::ExecEnv, Capability::ExecCwd];
        assert!(Derived::of(&table(&both, Flags::DEFAULT)).per_command_env_cwd);
    }
}
