//! `capbox caps`: what providers can do.

use std::io;

use capbox::capability::limits::Limit;
use capbox::capability::{Capabilities, Capability, Level, NotSupported, RowKind, Rows};
use capbox::{Registry, Result};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::failure::Outcome;
use crate::json;
use crate::text;

/// Show what a provider can do, row by row; or all of them side by side
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Show what the provider's table says, whatever this machine or configuration lacks
    #[arg(long)]
    declared: bool,
    /// Print one JSON document, with the flags, limits and constraints too
    #[arg(long)]
    json: bool,
    /// The provider: an id such as `local`, or a URI
    provider: Option<String>,
}

/// A table, and what holds of it here where that is known.
struct View {
    table: &'static Rows,
    here: Option<Capabilities>,
}

impl View {
    /// Why a declared row cannot be had here.
    fn lowered(&self, capability: Capability) -> Option<NotSupported> {
        let declared = self.table.row(capability).level != Level::Unsupported;
        self.here.as_ref().filter(|_| declared)?.require(capability).err()
    }

    /// The answer to a row in a word, and what there is to say about it.
    fn answer(&self, capability: Capability) -> (&'static str, &'static str) {
        let row = self.table.row(capability);
        match (self.lowered(capability), row.level, row.adapted) {
            (Some(lowered), ..) => (lowered.refusal.as_str(), lowered.reason),
            (None, Level::Unsupported, true) => ("no", row.note),
            (None, Level::Unsupported, false) => ("not yet", row.note),
            (None, level, _) => (level.as_str(), row.note),
        }
    }
}

#[derive(Serialize)]
struct Document {
    providers: Vec<ProviderDocument>,
}

#[derive(Serialize)]
struct ProviderDocument {
    provider: &'static str,
    rows: Vec<RowDocument>,
    flags: Map<String, Value>,
    limits: Vec<LimitDocument>,
    constraints: Vec<ConstraintDocument>,
}

#[derive(Serialize)]
struct RowDocument {
    capability: &'static str,
    alias: Option<&'static str>,
    kind: &'static str,
    security: bool,
    level: &'static str,
    adapted: bool,
    note: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    effective: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lowered: Option<LoweredDocument>,
}

#[derive(Serialize)]
struct LoweredDocument {
    refusal: &'static str,
    reason: &'static str,
}

#[derive(Serialize)]
struct LimitDocument {
    capability: &'static str,
    min: Option<f64>,
    max: Option<f64>,
    unit: &'static str,
}

#[derive(Serialize)]
struct ConstraintDocument {
    capability: &'static str,
    refusal: &'static str,
    reason: &'static str,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let registry = Registry::builtin();
    let views = match &args.provider {
        Some(provider) => vec![one(&registry, provider)?],
        None => registry.tables().map(|table| View { table, here: here(&registry, table) }).collect(),
    };
    let views: Vec<_> = views
        .into_iter()
        .map(|view| if args.declared { View { here: None, ..view } } else { view })
        .collect();
    match views.as_slice() {
        _ if args.json => {
            json::print(&Document { providers: views.iter().map(ProviderDocument::from).collect() })?;
        }
        [view] => show_one(view)?,
        all => show_matrix(all)?,
    }
    Ok(0)
}

fn one(registry: &Registry, provider: &str) -> Result<View> {
    if provider.contains("://") {
        let here = registry.client(provider)?.capabilities().clone();
        return Ok(View { table: here.declared(), here: Some(here) });
    }
    let table = registry.table(provider)?;
    Ok(View { table, here: here(registry, table) })
}

/// What holds here, where a client can be had without more configuration.
pub(super) fn here(registry: &Registry, table: &'static Rows) -> Option<Capabilities> {
    let client = registry.client(&format!("{}://", table.provider)).ok()?;
    Some(client.capabilities().clone())
}

fn show_one(view @ View { table, .. }: &View) -> io::Result<()> {
    let rows: Vec<_> = Capability::in_groups()
        .into_iter()
        .map(|capability| {
            let (word, note) = view.answer(capability);
            [named(capability), word.to_owned(), note.to_owned()]
        })
        .collect();
    text::columns(&["ROW", "LEVEL", "NOTE"], &rows)?;
    text::line("")?;
    let flags: Vec<_> =
        table.flag_entries().into_iter().map(|(name, value)| [name.to_owned(), value]).collect();
    text::columns(&["FLAG", "VALUE"], &flags)?;
    text::line("\n† a security row: it is never emulated, never defaulted away")
}

fn show_matrix(views: &[View]) -> io::Result<()> {
    let head: Vec<_> = std::iter::once("ROW").chain(views.iter().map(|view| view.table.provider)).collect();
    let rows: Vec<Vec<_>> = Capability::in_groups()
        .into_iter()
        .map(|capability| {
            let words = views.iter().map(|view| view.answer(capability).0.to_owned());
            std::iter::once(named(capability)).chain(words).collect()
        })
        .collect();
    text::columns(&head, &rows)?;
    text::line("\n† a security row; `capbox caps PROVIDER` shows notes and flags")
}

fn named(capability: Capability) -> String {
    let mark = if capability.is_security() { " †" } else { "" };
    format!("{capability}{mark}")
}

const fn kind_word(kind: RowKind) -> &'static str {
    match kind {
        RowKind::Client => "client",
        RowKind::Call => "call",
        RowKind::CreateOption => "create-option",
        RowKind::ExecOption => "exec-option",
    }
}

impl From<&View> for ProviderDocument {
    fn from(view @ View { table, here }: &View) -> Self {
        let rows = Capability::in_groups()
            .into_iter()
            .map(|capability| {
                let row = table.row(capability);
                RowDocument {
                    capability: capability.as_str(),
                    alias: capability.alias(),
                    kind: kind_word(capability.kind()),
                    security: capability.is_security(),
                    level: row.level.as_str(),
                    adapted: row.adapted,
                    note: row.note,
                    effective: here.as_ref().map(|here| here.effective(capability).as_str()),
                    lowered: view.lowered(capability).map(|lowered| LoweredDocument {
                        refusal: lowered.refusal.as_str(),
                        reason: lowered.reason,
                    }),
                }
            })
            .collect();
        let flags = table.flag_entries().into_iter().map(|(name, value)| {
            let value = match value.as_str() {
                "true" => Value::Bool(true),
                "false" => Value::Bool(false),
                _ => Value::String(value),
            };
            (name.to_owned(), value)
        });
        Self {
            provider: table.provider,
            rows,
            flags: flags.collect(),
            limits: table.limits.iter().map(LimitDocument::from).collect(),
            constraints: table
                .constraints
                .iter()
                .map(|constraint| ConstraintDocument {
                    capability: constraint.capability.as_str(),
                    refusal: constraint.refusal.as_str(),
                    reason: constraint.reason,
                })
                .collect(),
        }
    }
}

impl From<&Limit> for LimitDocument {
    fn from(limit: &Limit) -> Self {
        let bound = |bound: f64| bound.is_finite().then_some(bound);
        Self {
            capability: limit.capability.as_str(),
            min: bound(limit.min),
            max: bound(limit.max),
            unit: limit.unit,
        }
    }
}
