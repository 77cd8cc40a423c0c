//! `capbox plan`: who can do what is needed, and why the others cannot.

use std::io;

use capbox::capability::flags::Isolation;
use capbox::capability::{Capability, Level, Lowered, Rows};
use capbox::plan::{Candidate, Needs, Plan};
use capbox::{Error, Registry, Result};
use serde::Serialize;

use crate::args::SpecArgs;
use crate::failure::{self, Failure, Outcome};
use crate::json::{self, Failed};
use crate::text;

/// Show which providers can do what is needed, the best first, and why the others cannot
///
/// The exit code is 1 where none can.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Rows that are needed, joined by commas: ids such as `exec.pty`, or common names such as `killProcess`
    #[arg(long, value_name = "ROW,…", value_delimiter = ',')]
    need: Vec<String>,
    /// A flag that must have this value; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    flag: Vec<String>,
    /// The weakest isolation that is good enough: `process`, `container`, `gvisor` or `microvm`
    #[arg(long, value_name = "LEVEL", value_parser = isolation)]
    isolation: Option<Isolation>,
    /// The region, in the provider's words
    #[arg(long)]
    region: Option<String>,
    #[command(flatten)]
    spec: SpecArgs,
    /// Go by the providers' tables alone, whatever this machine or configuration lacks
    #[arg(long)]
    declared: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Document {
    best: Option<&'static str>,
    candidates: Vec<CandidateDocument>,
}

#[derive(Serialize)]
struct CandidateDocument {
    provider: &'static str,
    fits: bool,
    honoured: Vec<HonouredDocument>,
    refusals: Vec<Failed>,
}

#[derive(Serialize)]
struct HonouredDocument {
    capability: &'static str,
    level: &'static str,
    note: &'static str,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let registry = Registry::builtin();
    let needs = needs(args, &registry)?;
    let plan = if args.declared {
        registry.plan(&needs)
    } else {
        registry.plan_with(&needs, |table| lacks(&registry, table))
    };
    if args.json {
        let best = plan.best().map(|candidate| candidate.provider);
        json::print(&Document { best, candidates: plan.candidates.iter().map(Into::into).collect() })?;
    } else if needs.is_empty() {
        overview(&plan, &registry)?;
    } else {
        show(&plan)?;
    }
    if plan.best().is_some() { Ok(0) } else { Err(Failure::Told(1)) }
}

fn needs(args: &Args, registry: &Registry) -> Result<Needs> {
    let capabilities = args
        .need
        .iter()
        .map(|name| {
            name.parse::<Capability>().map_err(|error| {
                Error::invalid_argument("--need", error).with_hint("`capbox caps` lists the rows")
            })
        })
        .collect::<Result<Vec<_>>>()?;
    let mut spec = args.spec.spec();
    spec.require_isolation = args.isolation;
    spec.region.clone_from(&args.region);
    let mut needs = Needs::new().with_capabilities(capabilities).with_spec(spec);
    for flag in &args.flag {
        let (name, value) = flag.split_once('=').ok_or_else(|| {
            Error::invalid_argument("--flag", format!("there is no `=` in `{flag}`"))
                .with_hint("write `--flag NAME=VALUE`")
        })?;
        needs = needs.with_flag(name, value, registry)?;
    }
    Ok(needs)
}

/// What a provider lacks here: all, where no client can be had.
fn lacks(registry: &Registry, table: &'static Rows) -> Lowered {
    match registry.client(&format!("{}://", table.provider)) {
        Ok(client) => client.capabilities().lowered().clone(),
        Err(error) => {
            // Reasons are for the life of the program, which ends soon.
            let reason: &str = format!("it cannot be used here: {}", error.message()).leak();
            Capability::ALL.iter().fold(Lowered::none(), |lacks, row| lacks.unavailable(*row, reason))
        }
    }
}

/// Nothing is needed, so nothing is refused: say what there is to choose from.
fn overview(plan: &Plan, registry: &Registry) -> io::Result<()> {
    let rows: Vec<_> = plan
        .candidates
        .iter()
        .filter_map(|candidate| {
            let table = registry.table(candidate.provider).ok()?;
            let count = |level| table.rows.iter().filter(|row| row.level == level).count().to_string();
            Some([
                table.provider.to_owned(),
                count(Level::Native),
                count(Level::Emulated),
                table.flags.isolation.to_string(),
                if table.flags.on_this_machine { "this machine" } else { "elsewhere" }.to_owned(),
            ])
        })
        .collect();
    text::columns(&["PROVIDER", "NATIVE", "EMULATED", "ISOLATION", "WHERE"], &rows)?;
    failure::note("nothing is needed, so all fit; say what is, such as `capbox plan --need pty,snapshot`");
    Ok(())
}

fn show(plan: &Plan) -> io::Result<()> {
    for Candidate { provider, honoured, refusals, .. } in &plan.candidates {
        let verdict = if refusals.is_empty() { "fits" } else { "does not fit" };
        text::line(&format!("{provider}: {verdict}"))?;
        for row in honoured {
            let note = if row.note.is_empty() { String::new() } else { format!(", {}", row.note) };
            text::line(&format!("  + {} is {}{note}", row.capability, row.level))?;
        }
        for refusal in refusals {
            text::line(&format!("  - {refusal}"))?;
        }
    }
    Ok(())
}

fn isolation(text: &str) -> Result<Isolation, String> {
    text.parse()
}

impl From<&Candidate> for CandidateDocument {
    fn from(candidate: &Candidate) -> Self {
        Self {
            provider: candidate.provider,
            fits: candidate.fits(),
            honoured: candidate
                .honoured
                .iter()
                .map(|row| HonouredDocument {
                    capability: row.capability.as_str(),
                    level: row.level.as_str(),
                    note: row.note,
                })
                .collect(),
            refusals: candidate.refusals.iter().map(Failed::from).collect(),
        }
    }
}
