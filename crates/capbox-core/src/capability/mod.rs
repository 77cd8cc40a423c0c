//! The capability table: what a caller can ask for, how a provider answers, and what a caller may observe.
//!
//! [`rows`] is the one list of rows; [`answer`] holds the types that answer them; [`flags`] what callers
//! observe rather than ask for; [`derived`] the flags that follow from the rest; [`limits`] the numbers and cross-option constraints beside the rows.

pub mod answer;
pub mod derived;
pub mod flags;
pub mod limits;
#[macro_use]
mod generate;
pub mod rows;

use std::fmt;

pub use self::rows::{Capability, cap};

/// How a provider honours a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Refused before anything is sent.
    Unsupported,
    /// Built by the core from other rows; the row states what is lost.
    Emulated,
    /// First-class at the provider.
    Native,
}

impl Level {
    /// The word used in every output: `native`, `emulated` or `unsupported`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unsupported => "unsupported",
            Self::Emulated => "emulated",
            Self::Native => "native",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Where a row is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowKind {
    /// A call on the client.
    Client,
    /// A call on a sandbox, or on a process of it.
    Call,
    /// An option of create.
    CreateOption,
    /// An option of exec.
    ExecOption,
}

/// Why a row is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The provider does not have it.
    ProviderLacks,
    /// The provider may have it; this adapter does not, yet.
    NotAdapted,
    /// Declared, but not to be had here: this host, plan or configuration lacks something.
    Unavailable,
    /// Declared, but withheld from this sandbox by its template or its creator.
    Withheld,
}

impl Refusal {
    /// A stable word for output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ProviderLacks => "provider-lacks",
            Self::NotAdapted => "not-adapted",
            Self::Unavailable => "unavailable",
            Self::Withheld => "withheld",
        }
    }
}

/// A refusal: which provider does not honour which row, and why.
///
/// It is `Copy` and never allocates, so asking is cheap. Which other providers honour the row is asked of a
/// registry, which the core does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NotSupported {
    /// The provider's id.
    pub provider: &'static str,
    /// The row that was asked for.
    pub capability: Capability,
    /// Why, in the words of the provider's table, of the probe or of the configuration.
    pub reason: &'static str,
    /// Which of the four kinds of refusal it is.
    pub refusal: Refusal,
}

impl NotSupported {
    /// A refusal of `capability` by `provider`.
    pub const fn new(
        provider: &'static str,
        capability: Capability,
        refusal: Refusal,
        reason: &'static str,
    ) -> Self {
        Self { provider, capability, reason, refusal }
    }
}

impl fmt::Display for NotSupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { provider, capability, reason, refusal } = self;
        match refusal {
            Refusal::ProviderLacks => write!(f, "`{provider}` does not support `{capability}`: {reason}"),
            Refusal::NotAdapted => {
                write!(f, "`{capability}` of `{provider}` cannot be used yet: {reason}")
            }
            Refusal::Unavailable => {
                write!(f, "`{capability}` of `{provider}` is unavailable here: {reason}")
            }
            Refusal::Withheld => write!(f, "`{capability}` is withheld from this sandbox: {reason}"),
        }
    }
}

impl std::error::Error for NotSupported {}

/// One row of a provider's table, as data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RowInfo {
    /// The row.
    pub capability: Capability,
    /// What the provider's table declares.
    pub level: Level,
    /// What is lost (emulated) or why not (unsupported); may be empty for native rows.
    pub note: &'static str,
    /// False where the provider may have it but the adapter does not yet.
    pub adapted: bool,
}

impl RowInfo {
    #[doc(hidden)]
    pub const fn new(capability: Capability, level: Level, note: &'static str, adapted: bool) -> Self {
        Self { capability, level, note, adapted }
    }
}

/// A provider's whole table, as data: the read-model of everything that is declared.
#[derive(Debug)]
#[non_exhaustive]
pub struct Rows {
    /// The provider's id; a variant has an id of its own.
    pub provider: &'static str,
    /// One entry per capability, in the order of [`Capability::ALL`].
    pub rows: &'static [RowInfo],
    /// What callers observe.
    pub flags: flags::Flags,
    /// Numeric limits of options.
    pub limits: &'static [limits::Limit],
    /// Options and values that exclude each other.
    pub constraints: &'static [limits::Constraint],
}

impl Rows {
    #[doc(hidden)]
    pub const fn new(
        provider: &'static str,
        rows: &'static [RowInfo],
        flags: flags::Flags,
        limits: &'static [limits::Limit],
        constraints: &'static [limits::Constraint],
    ) -> Self {
        Self { provider, rows, flags, limits, constraints }
    }

    /// The declared answer to `capability`.
    pub const fn row(&self, capability: Capability) -> &RowInfo {
        &self.rows[capability as usize]
    }

    /// Every flag by name, with its value as text: those that are written and those that follow from the rows.
    pub fn flag_entries(&self) -> Vec<(&'static str, String)> {
        let mut entries = self.flags.entries();
        entries.extend(derived::Derived::of(self).entries());
        entries
    }

    /// Refuse `capability` unless the table declares it.
    pub const fn declared(&self, capability: Capability) -> Result<(), NotSupported> {
        let row = self.row(capability);
        if !matches!(row.level, Level::Unsupported) {
            return Ok(());
        }
        let refusal = if row.adapted { Refusal::ProviderLacks } else { Refusal::NotAdapted };
        Err(NotSupported::new(self.provider, capability, refusal, row.note))
    }
}

/// Rows taken out of what is declared, each with its reason. It can only lower.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lowered(Vec<(Capability, Refusal, &'static str)>);

impl Lowered {
    /// Nothing lowered.
    pub const fn none() -> Self {
        Self(Vec::new())
    }

    /// Take a row out because this host, plan or configuration lacks something.
    #[must_use]
    pub fn unavailable(mut self, capability: Capability, reason: &'static str) -> Self {
        self.0.push((capability, Refusal::Unavailable, reason));
        self
    }

    /// Take a row out because the sandbox's creator or template does not grant it.
    #[must_use]
    pub fn withheld(mut self, capability: Capability, reason: &'static str) -> Self {
        self.0.push((capability, Refusal::Withheld, reason));
        self
    }

    /// Both sets of rows taken out.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        self.0.extend_from_slice(&other.0);
        self
    }

    /// The rows taken out, with kind and reason.
    pub fn iter(&self) -> impl Iterator<Item = (Capability, Refusal, &'static str)> + '_ {
        self.0.iter().copied()
    }

    /// The rows that are withheld, without those that are lacking.
    #[must_use]
    pub fn only_withheld(&self) -> Self {
        Self(self.0.iter().filter(|(_, refusal, _)| *refusal == Refusal::Withheld).copied().collect())
    }

    fn find(&self, capability: Capability) -> Option<(Refusal, &'static str)> {
        self.0.iter().find(|(c, ..)| *c == capability).map(|&(_, refusal, reason)| (refusal, reason))
    }
}

/// What a client or a sandbox can do: declared, effective and observed. Frozen for its life.
#[derive(Clone, Debug)]
pub struct Capabilities {
    declared: &'static Rows,
    lowered: Lowered,
}

impl Capabilities {
    /// The table `declared`, less what is `lowered`.
    pub fn new(declared: &'static Rows, lowered: Lowered) -> Self {
        Self { declared, lowered }
    }

    /// The provider's table: the upper bound.
    pub fn declared(&self) -> &'static Rows {
        self.declared
    }

    /// What was taken out of the table here.
    pub fn lowered(&self) -> &Lowered {
        &self.lowered
    }

    /// The level that holds here.
    pub fn effective(&self, capability: Capability) -> Level {
        match self.require(capability) {
            Ok(()) => self.declared.row(capability).level,
            Err(_) => Level::Unsupported,
        }
    }

    /// What callers observe.
    pub fn flags(&self) -> &'static flags::Flags {
        &self.declared.flags
    }

    /// Refuse `capability` unless it is declared and not lowered here. Never allocates.
    pub fn require(&self, capability: Capability) -> Result<(), NotSupported> {
        self.declared.declared(capability)?;
        match self.lowered.find(capability) {
            None => Ok(()),
            Some((refusal, reason)) => {
                Err(NotSupported::new(self.declared.provider, capability, refusal, reason))
            }
        }
    }
}
