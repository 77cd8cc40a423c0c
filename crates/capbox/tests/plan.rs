//! The plan, over tables made for these tests.

use capbox::capability::flags::{Flags, Isolation, Streams};
use capbox::capability::{Level, Lowered, RowInfo, Rows};
use capbox::plan::{Candidate, Needs};
use capbox::prelude::{Capability, Error, ErrorKind, Network, Registry, Spec};
use capbox::provider::Provider;

/// A table in which the rows of `native` are native, those of `emulated` emulated, and all others unsupported.
fn table(id: &'static str, native: &[Capability], emulated: &[Capability], flags: Flags) -> &'static Rows {
    let level = |capability| {
        if native.contains(capability) {
            Level::Native
        } else if emulated.contains(capability) {
            Level::Emulated
        } else {
            Level::Unsupported
        }
    };
    let rows: Vec<_> = Capability::ALL
        .iter()
        .map(|capability| RowInfo::new(*capability, level(capability), "as the test says", true))
        .collect();
    Box::leak(Box::new(Rows::new(id, rows.leak(), flags, &[], &[])))
}

fn provider(id: &'static str, table: &'static Rows) -> Provider {
    let tables: &'static [&'static Rows] = vec![table].leak();
    Provider { id, tables, open: |_| Err(Error::new(ErrorKind::Provider, "a table cannot be opened")) }
}

/// What every provider of these tests has, so that a plain spec fits.
const BASE: [Capability; 3] = [Capability::Run, Capability::EgressControl, Capability::Ttl];

fn with(more: &[Capability]) -> Vec<Capability> {
    [&BASE[..], more].concat()
}

fn registry() -> Registry {
    let isolated = Flags::DEFAULT.isolation(Isolation::Microvm).streams(Streams::Separate);
    Registry::empty()
        .with(provider("plain", table("plain", &with(&[]), &[], Flags::DEFAULT)))
        .with(provider("emulating", table("emulating", &with(&[]), &[Capability::Pty], isolated)))
        .with(provider("native", table("native", &with(&[Capability::Pty]), &[], Flags::DEFAULT)))
}

fn best(needs: &Needs) -> Option<&'static str> {
    registry().plan(needs).best().map(|candidate| candidate.provider)
}

#[test]
fn native_before_emulated_before_refused() {
    let plan = registry().plan(&Needs::new().with_capabilities([Capability::Pty]));
    let order: Vec<_> = plan.candidates.iter().map(|candidate| candidate.provider).collect();
    assert_eq!(order, ["native", "emulating", "plain"]);
    assert_eq!(plan.best().map(|candidate| candidate.provider), Some("native"));
    assert!(plan.nearest().is_none());
    let refused: Vec<_> = plan.candidates[2].refusals.iter().map(Error::capability).collect();
    assert_eq!(refused, [Some(Capability::Pty)]);
}

#[test]
fn where_none_fits_the_nearest_is_told() {
    let plan = registry().plan(&Needs::new().with_capabilities([Capability::Pty, Capability::Gpu]));
    assert!(plan.best().is_none());
    assert_eq!(plan.nearest().map(|candidate| candidate.provider), Some("native"));
}

#[test]
fn a_spec_asks_for_its_rows_and_nothing_is_told_twice() {
    let spec = Spec::new().network("192.0.2.0/24".parse::<Network>().expect("a policy"));
    let needs = Needs::new().with_capabilities([Capability::EgressCidr]).with_spec(spec);
    for candidate in registry().plan(&needs).candidates {
        let refused: Vec<_> = candidate.refusals.iter().map(Error::capability).collect();
        assert_eq!(refused, [Some(Capability::EgressCidr)], "{}", candidate.provider);
    }
}

#[test]
fn isolation_is_a_floor_and_a_flag_is_exact() {
    let floor = Needs::new().with_spec(Spec::new().require_isolation(Isolation::Container));
    assert_eq!(best(&floor), Some("emulating"));
    let exact = |value| Needs::new().with_flag("isolation", value, &registry()).expect("a flag");
    assert_eq!(best(&exact("container")), None);
    assert_eq!(best(&exact("microvm")), Some("emulating"));
}

#[test]
fn flags_that_follow_from_rows_count_too() {
    let needs = Needs::new().with_flag("orphan_ends", "ttl", &registry()).expect("a flag");
    assert!(registry().plan(&needs).candidates.iter().all(Candidate::fits));
    let needs = Needs::new().with_flag("orphan_ends", "reap", &registry()).expect("a flag");
    assert_eq!(best(&needs), None);
}

#[test]
fn flags_that_there_are_not() {
    let unknown = Needs::new().with_flag("strams", "separate", &registry()).expect_err("a typing error");
    assert!(unknown.hint().is_some_and(|hint| hint.contains("`streams`")), "{unknown:?}");
    let never = Needs::new().with_flag("streams", "seperate", &registry()).expect_err("a typing error");
    assert!(never.hint().is_some_and(|hint| hint.contains("`separate`")), "{never:?}");
}

#[test]
fn what_is_not_to_be_had_here_does_not_fit() {
    let needs = Needs::new().with_capabilities([Capability::Pty]);
    let plan = registry().plan_with(&needs, |table| match table.provider {
        "native" => Lowered::none().unavailable(Capability::Pty, "there is no terminal here"),
        _ => Lowered::none(),
    });
    assert_eq!(plan.best().map(|candidate| candidate.provider), Some("emulating"));
}

#[test]
fn a_registry_knows_its_providers() {
    let registry = registry();
    assert_eq!(registry.alternatives(Capability::Pty), ["native", "emulating"]);
    assert!(registry.table("native").is_ok());
    let unknown = registry.client("nowhere://").expect_err("no such provider");
    assert_eq!(unknown.hint(), Some("the providers are `plain`, `emulating`, `native`"));
    let replaced = registry.with(provider("plain", table("plain", &[Capability::Pty], &[], Flags::DEFAULT)));
    assert_eq!(replaced.providers().len(), 3);
    assert_eq!(replaced.alternatives(Capability::Pty), ["native", "plain", "emulating"]);
}
