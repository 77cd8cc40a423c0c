//! `capbox doctor`: what this machine offers and lacks.

use std::io;

use capbox::capability::flags::Isolation;
use capbox::capability::{Capability, Lowered, Refusal};
use capbox::{Error, Registry};
use serde::Serialize;

use crate::failure::Outcome;
use crate::json::{self, Failed};
use crate::text;

/// Show what this machine offers each provider, what it lacks, and what separates a sandbox from the rest
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// What trying a provider showed.
struct Finding {
    provider: &'static str,
    isolation: Isolation,
    lowered: Result<Lowered, Error>,
}

#[derive(Serialize)]
struct Document {
    providers: Vec<FindingDocument>,
}

#[derive(Serialize)]
struct FindingDocument {
    provider: &'static str,
    isolation: Option<&'static str>,
    protection: Option<&'static str>,
    lacking: Vec<Lacking>,
    error: Option<Failed>,
}

#[derive(Serialize)]
struct Lacking {
    refusal: &'static str,
    reason: &'static str,
    capabilities: Vec<&'static str>,
}

pub(crate) async fn run(args: &Args) -> Outcome {
    let registry = Registry::builtin();
    let mut findings = Vec::new();
    for provider in registry.providers() {
        let lowered = match registry.client(&format!("{}://", provider.id)) {
            Ok(client) => client.probe().await,
            Err(error) => Err(error),
        };
        let isolation = provider.tables.first().map_or(Isolation::Unknown, |table| table.flags.isolation);
        findings.push(Finding { provider: provider.id, isolation, lowered });
    }
    if args.json {
        json::print(&Document { providers: findings.iter().map(Into::into).collect() })?;
    } else {
        show(&findings)?;
    }
    Ok(0)
}

fn show(findings: &[Finding]) -> io::Result<()> {
    for Finding { provider, isolation, lowered } in findings {
        match lowered {
            Ok(lowered) if lowered.iter().next().is_none() => {
                text::line(&format!("{provider}: everything that its table says can be had here"))?;
            }
            Ok(lowered) => {
                text::line(&format!("{provider}: works, but for"))?;
                for Lacking { reason, capabilities, .. } in by_reason(lowered) {
                    text::line(&format!("  - {}: {reason}", capabilities.join(", ")))?;
                }
            }
            Err(error) => {
                text::line(&format!("{provider}: cannot be used here: {}", error.message()))?;
                if let Some(hint) = error.hint() {
                    text::line(&format!("  {hint}"))?;
                }
            }
        }
        // Where no sandbox can be made, nothing separates it from anything.
        if lowered.is_ok() {
            text::line(&format!("  isolation is `{isolation}`: {}", protection(*isolation)))?;
        }
        text::line("")?;
    }
    text::line(
        "A capability that is withheld from a sandbox is withheld from capbox's calls, not from programs: whoever\n\
         may run a shell in it may run any program that is in it.",
    )
}

/// What separates a sandbox from the rest, and what it does not protect from.
const fn protection(isolation: Isolation) -> &'static str {
    match isolation {
        Isolation::Process => {
            "sandboxes are part of this very process, which keeps honest code in order and hostile code from nothing"
        }
        Isolation::Container => {
            "namespaces and filters over the one kernel of this machine, which do not protect from a flaw in that \
             kernel, nor from side channels of the hardware"
        }
        Isolation::Gvisor => {
            "a kernel in user space takes the system calls, which does not protect from a flaw in it together with \
             one in the host's kernel, nor from side channels of the hardware"
        }
        Isolation::Microvm => {
            "a virtual machine of its own, which does not protect from a flaw in the hypervisor, nor from side \
             channels of the hardware"
        }
        _ => "what separates sandboxes is not known, so take them to protect from nothing",
    }
}

/// The rows that are lacking, gathered by what is to be done about them.
fn by_reason(lowered: &Lowered) -> Vec<Lacking> {
    let mut all: Vec<Lacking> = Vec::new();
    let mut put = |capability: Capability, refusal: Refusal, reason: &'static str| match all
        .iter_mut()
        .find(|lacking| lacking.reason == reason)
    {
        Some(lacking) => lacking.capabilities.push(capability.as_str()),
        None => {
            all.push(Lacking { refusal: refusal.as_str(), reason, capabilities: vec![capability.as_str()] });
        }
    };
    for (capability, refusal, reason) in lowered.iter() {
        put(capability, refusal, reason);
    }
    all
}

impl From<&Finding> for FindingDocument {
    fn from(Finding { provider, isolation, lowered }: &Finding) -> Self {
        Self {
            provider,
            isolation: lowered.is_ok().then_some(isolation.as_str()),
            protection: lowered.is_ok().then_some(protection(*isolation)),
            lacking: lowered.as_ref().map(by_reason).unwrap_or_default(),
            error: lowered.as_ref().err().map(Failed::from),
        }
    }
}
