//! Which providers there are. Explicit: a program makes the registry that it uses.

use capbox_core::api::{AnyClient, Client};
use capbox_core::capability::{Capability, Level, Rows};
use capbox_core::error::{Error, Result};
use capbox_core::provider::Provider;
use capbox_core::spec::Uri;

/// A set of providers.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    providers: Vec<Provider>,
}

impl Registry {
    /// No providers.
    pub const fn empty() -> Self {
        Self { providers: Vec::new() }
    }

    /// The providers that are compiled in.
    pub fn builtin() -> Self {
        Self { providers: crate::builtin::PROVIDERS.to_vec() }
    }

    /// This registry and one more provider, which replaces one of the same id.
    #[must_use]
    pub fn with(mut self, provider: Provider) -> Self {
        self.providers.retain(|known| known.id != provider.id);
        self.providers.push(provider);
        self
    }

    /// The providers.
    pub fn providers(&self) -> &[Provider] {
        &self.providers
    }

    /// The tables of all providers and variants.
    pub fn tables(&self) -> impl Iterator<Item = &'static Rows> + '_ {
        self.providers.iter().flat_map(|provider| provider.tables.iter().copied())
    }

    /// The table called `id`, or an error that lists those that there are.
    pub fn table(&self, id: &str) -> Result<&'static Rows> {
        self.tables().find(|table| table.provider == id).ok_or_else(|| self.unknown(id))
    }

    /// A client from a URI such as `local://`. Nothing is sent.
    pub fn client(&self, uri: &str) -> Result<AnyClient> {
        let uri: Uri = uri.parse()?;
        match self.providers.iter().find(|provider| provider.id == uri.provider()) {
            Some(provider) => (provider.open)(uri),
            None => Err(self.unknown(uri.provider())),
        }
    }

    /// The providers that honour `capability`, natively first.
    pub fn alternatives(&self, capability: Capability) -> Vec<&'static str> {
        let mut found: Vec<_> = self
            .tables()
            .map(|table| (table.row(capability).level, table.provider))
            .filter(|(level, _)| *level != Level::Unsupported)
            .collect();
        found.sort_by_key(|(level, id)| (std::cmp::Reverse(*level), *id));
        found.into_iter().map(|(_, id)| id).collect()
    }

    fn unknown(&self, id: &str) -> Error {
        let known: Vec<_> = self.tables().map(|table| table.provider).collect();
        if let Some(feature) = missing_feature(id, crate::builtin::FEATURES) {
            return Error::invalid_argument("provider", format!("`{id}` is not compiled in"))
                .with_hint(format!("enable the Cargo feature `{feature}` of `capbox`"));
        }
        Error::invalid_argument("provider", format!("there is no provider `{}`", id.escape_debug()))
            .with_hint(if known.is_empty() {
                "no provider is compiled in; enable a feature such as `provider-local`".to_owned()
            } else {
                format!("the providers are `{}`", known.join("`, `"))
            })
    }
}

/// The feature that would compile in the provider `id`; none where that is so, or no feature would.
fn missing_feature(id: &str, features: &[(&str, &'static str, bool)]) -> Option<&'static str> {
    features.iter().find(|(known, _, enabled)| *known == id && !enabled).map(|(_, feature, _)| *feature)
}

/// `Client::from_uri`: a client of a provider that is compiled in.
pub trait FromUri: Sized {
    /// A client from a URI such as `local://`. Nothing is sent.
    fn from_uri(uri: &str) -> Result<Self>;
}

impl FromUri for Client {
    fn from_uri(uri: &str) -> Result<Self> {
        Registry::builtin().client(uri)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_that_is_not_compiled_in_names_its_feature() {
        let features = [("near", "provider-near", true), ("far", "provider-far", false)];
        assert_eq!(missing_feature("far", &features), Some("provider-far"));
        assert_eq!(missing_feature("near", &features), None);
        assert_eq!(missing_feature("nowhere", &features), None);
    }

    /// Holds with any set of features.
    #[test]
    fn every_provider_of_the_project_is_there_or_says_how() {
        for (id, feature, enabled) in crate::builtin::FEATURES {
            match Registry::builtin().table(id) {
                Ok(_) => assert!(enabled, "{id}"),
                Err(error) => {
                    assert!(!enabled && error.hint().is_some_and(|hint| hint.contains(feature)), "{id}");
                }
            }
        }
    }
}
