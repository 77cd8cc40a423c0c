//! Which provider can do what is needed, and why the others cannot.

use capbox_core::capability::flags::Flags;
use capbox_core::capability::{Capabilities, Capability, Level, Lowered, NotSupported, Rows};
use capbox_core::error::{Error, ErrorKind, Result};
use capbox_core::spec::Spec;

use crate::Registry;

/// What is needed of a provider.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Needs {
    /// Rows that must be honoured, beside those that the spec asks for.
    pub capabilities: Vec<Capability>,
    /// Flags that must have this value, by name.
    pub flags: Vec<(String, String)>,
    /// The sandbox that is wanted: image form, region, resources, isolation, network.
    pub spec: Spec,
}

impl Needs {
    /// Nothing in particular.
    pub fn new() -> Self {
        Self::default()
    }

    /// These rows too.
    #[must_use]
    pub fn with_capabilities(mut self, capabilities: impl IntoIterator<Item = Capability>) -> Self {
        self.capabilities.extend(capabilities);
        self
    }

    /// A flag of this name with this value; a name, or a word, that no flag has is refused.
    pub fn with_flag(mut self, name: &str, value: &str, registry: &Registry) -> Result<Self> {
        let known: Vec<_> = registry.tables().next().map(Rows::flag_entries).unwrap_or_default();
        if !known.is_empty() && !known.iter().any(|(flag, _)| *flag == name) {
            let names: Vec<_> = known.iter().map(|(flag, _)| *flag).collect();
            return Err(Error::invalid_argument("flag", format!("there is no flag `{name}`"))
                .with_hint(format!("the flags are `{}`", names.join("`, `"))));
        }
        let words = Flags::words(name);
        if !words.is_empty() && !words.contains(&value) {
            return Err(Error::invalid_argument("flag", format!("`{name}` is never `{value}`"))
                .with_hint(format!("it is one of `{}`", words.join("`, `"))));
        }
        self.flags.push((name.to_owned(), value.to_owned()));
        Ok(self)
    }

    /// True where nothing is needed, so that everything fits.
    pub fn is_empty(&self) -> bool {
        let Self { capabilities, flags, spec } = self;
        let any_spec = spec.asked().is_empty() && spec.require_isolation.is_none();
        capabilities.is_empty() && flags.is_empty() && any_spec
    }

    /// A sandbox like this.
    #[must_use]
    pub fn with_spec(mut self, spec: Spec) -> Self {
        self.spec = spec;
        self
    }
}

/// The answer for every provider and variant, the best first.
#[derive(Debug)]
#[non_exhaustive]
pub struct Plan {
    /// The candidates: those that fit first, with fewer emulations first.
    pub candidates: Vec<Candidate>,
}

/// The answer for one provider or variant.
#[derive(Debug)]
#[non_exhaustive]
pub struct Candidate {
    /// The id of the table.
    pub provider: &'static str,
    /// How each needed row is honoured; refused rows are in `refusals`.
    pub honoured: Vec<Honoured>,
    /// Everything that stands against it.
    pub refusals: Vec<Error>,
}

/// A needed row that is honoured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Honoured {
    /// The row.
    pub capability: Capability,
    /// Native or emulated.
    pub level: Level,
    /// What is lost, where it is emulated.
    pub note: &'static str,
}

impl Candidate {
    /// True where nothing stands against it.
    pub fn fits(&self) -> bool {
        self.refusals.is_empty()
    }

    fn emulated(&self) -> usize {
        self.honoured.iter().filter(|h| h.level == Level::Emulated).count()
    }
}

impl Plan {
    /// The best provider that fits.
    pub fn best(&self) -> Option<&Candidate> {
        self.candidates.first().filter(|candidate| candidate.fits())
    }

    /// Where none fits: the one with the least against it.
    pub fn nearest(&self) -> Option<&Candidate> {
        match self.best() {
            Some(_) => None,
            None => self.candidates.first(),
        }
    }
}

impl Registry {
    /// Answer `needs` for every provider and variant, from the tables alone.
    pub fn plan(&self, needs: &Needs) -> Plan {
        self.plan_with(needs, |_| Lowered::none())
    }

    /// Answer `needs` for every provider and variant, less what `lowered` says is not to be had here.
    pub fn plan_with(&self, needs: &Needs, lowered: impl Fn(&'static Rows) -> Lowered) -> Plan {
        let mut candidates: Vec<_> =
            self.tables().map(|table| candidate(needs, &Capabilities::new(table, lowered(table)))).collect();
        candidates.sort_by_key(|c| (c.refusals.len(), c.emulated(), c.provider));
        Plan { candidates }
    }
}

fn candidate(needs: &Needs, capabilities: &Capabilities) -> Candidate {
    let table = capabilities.declared();
    let mut needed = needs.spec.asked();
    for capability in &needs.capabilities {
        if !needed.contains(capability) {
            needed.push(*capability);
        }
    }
    let honoured = needed
        .iter()
        .filter(|capability| capabilities.require(**capability).is_ok())
        .map(|capability| {
            let row = table.row(*capability);
            Honoured { capability: *capability, level: row.level, note: row.note }
        })
        .collect();

    let mut refusals = needs.spec.problems(capabilities);
    let told: Vec<NotSupported> = refusals.iter().filter_map(Error::refusal).collect();
    let refused = needs.capabilities.iter().filter_map(|capability| capabilities.require(*capability).err());
    refusals.extend(refused.filter(|refusal| !told.contains(refusal)).map(Error::from));
    refusals.extend(other_flags(needs, table));
    Candidate { provider: table.provider, honoured, refusals }
}

/// The flags that have other values than those needed.
fn other_flags(needs: &Needs, table: &Rows) -> Vec<Error> {
    let entries = table.flag_entries();
    let value = |name: &str| entries.iter().find(|(flag, _)| *flag == name).map(|(_, value)| value);
    needs
        .flags
        .iter()
        .filter_map(|(name, wanted)| {
            let value = value(name)?;
            (value != wanted).then(|| {
                let provider = table.provider;
                let message = format!("the flag `{name}` of `{provider}` is `{value}`, not `{wanted}`");
                Error::new(ErrorKind::NotSupported, message)
            })
        })
        .collect()
}
