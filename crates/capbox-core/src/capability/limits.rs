//! Limits and constraints: data beside the rows, checked before any call.

use std::fmt;

use super::{Capability, Refusal};
use crate::spec::Spec;

/// The range of an option's number, in the option's own unit (bytes, seconds, CPUs, …).
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Limit {
    /// The option.
    pub capability: Capability,
    /// The least value; `f64::NEG_INFINITY` where there is none.
    pub min: f64,
    /// The greatest value; `f64::INFINITY` where there is none.
    pub max: f64,
    /// The unit, for messages.
    pub unit: &'static str,
}

impl Limit {
    /// `capability` takes `min` to `max`, both included.
    pub const fn range(capability: Capability, min: f64, max: f64, unit: &'static str) -> Self {
        Self { capability, min, max, unit }
    }
}

/// A combination that a provider does not honour although it honours each part.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Constraint {
    /// The row that is refused.
    pub capability: Capability,
    /// True where the spec meets the combination.
    pub when: fn(&Spec) -> bool,
    /// Whether the provider or the adapter is the cause.
    pub refusal: Refusal,
    /// Why, for the refusal.
    pub reason: &'static str,
}

impl Constraint {
    /// Refuse `capability` where `when` holds, since the provider cannot do it.
    pub const fn new(capability: Capability, when: fn(&Spec) -> bool, reason: &'static str) -> Self {
        Self { capability, when, refusal: Refusal::ProviderLacks, reason }
    }

    /// Refuse `capability` where `when` holds, since this adapter does not do it yet.
    pub const fn not_yet(capability: Capability, when: fn(&Spec) -> bool, reason: &'static str) -> Self {
        Self { capability, when, refusal: Refusal::NotAdapted, reason }
    }
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constraint")
            .field("capability", &self.capability)
            .field("refusal", &self.refusal)
            .field("reason", &self.reason)
            .finish_non_exhaustive()
    }
}
