//! The lies, each with the trials that must catch it.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use capbox_core::api::Client;
use capbox_core::provider::{Rows, Table};
use capbox_testkit::evidence::{Outcome, Record};
use capbox_testkit::oracle::{Folder, all_of};
use capbox_testkit::{Facts, Fixture, Harness, Suite};

use libtest_mimic::{Arguments, Failed, Trial};

use crate::base::{self, Account};
use crate::liar::{self, Liar, Lie};

struct Liars(Lie);

impl Harness for Liars {
    fn rows(&self) -> &'static Rows {
        Liar::ROWS
    }

    fn version(&self) -> String {
        format!("{:?}", self.0)
    }

    fn facts(&self) -> Facts {
        const NO_ROOT: &str = "commands of the base have no file system of their own";
        let mut facts = Facts::new().left_out(&[
            ("network.egress-control/a_socket_of_the_host_is_not_reached", NO_ROOT),
            ("files.upload/b99_copies_do_not_reach_the_host", NO_ROOT),
            ("files.tree/b105_a_hostile_tree_stays_in_its_folder", NO_ROOT),
        ]);
        // A liar is caught by running out of time, too; who is honest, or held to everything at once, may be slow.
        let patient = self.0 == Lie::None || std::env::var_os(EVERY_TRIAL).is_some();
        facts.trial_timeout = if patient { liar::TRIAL } else { liar::TRIAL / 6 };
        facts
    }

    fn fixture(&self) -> capbox_core::provider::Result<Fixture> {
        let (account, lie) = (Account::new(), self.0);
        let oracle =
            all_of(vec![Box::new(Folder(account.root().to_owned())), Box::new(account.requests.clone())]);
        let (clients, broken) = (account.clone(), account.clone());
        let client = move || Ok(Client::new(Liar::new(clients.clone(), lie)).into_any());
        Ok(Fixture::new(client, oracle)
            .with_requests(account.requests.clone())
            .with_fault(move || broken.broken.store(true, Ordering::SeqCst)))
    }
}

/// Set to hold each liar against the whole suite, which takes minutes, rather than against what must catch it.
const EVERY_TRIAL: &str = "CAPBOX_EVERY_TRIAL";

async fn records(lie: Lie, wanted: impl Fn(&str) -> bool) -> Vec<Record> {
    Suite::new(Liars(lie)).records(4, wanted).await
}

fn failed(records: &[Record]) -> BTreeSet<&str> {
    let failed = records.iter().filter(|record| matches!(record.outcome, Outcome::Failed(_)));
    failed.map(|record| record.trial.as_str()).collect()
}

fn show(records: &[Record]) -> String {
    let line = |record: &Record| match &record.outcome {
        Outcome::Failed(message) => Some(format!("{}: {message}", record.trial)),
        Outcome::Passed | Outcome::Ignored(_) => None,
    };
    records.iter().filter_map(line).collect::<Vec<_>>().join("\n")
}

/// Nothing fails for who is honest, and nothing that a liar is caught by is left out.
async fn an_honest_provider_passes() -> Result<(), Failed> {
    let records = records(Lie::None, |_| true).await;
    if !failed(&records).is_empty() {
        return Err(show(&records).into());
    }
    let by: BTreeSet<&str> = LIES.iter().flat_map(|(_, caught, _)| *caught).copied().collect();
    let left_out = records.iter().filter(|record| by.contains(record.trial.as_str()));
    let left_out: Vec<&str> =
        left_out.filter(|record| record.outcome != Outcome::Passed).map(|record| &*record.trial).collect();
    if !left_out.is_empty() && base::can_deny() {
        return Err(format!("{left_out:?} would catch liars, and are left out").into());
    }
    Ok(())
}

/// Each lie with the trials that must catch it, and others that may notice.
const LIES: &[(Lie, &[&str], &[&str])] = &[
    (Lie::IgnoresEnv, &["exec.env"], &["exec.cwd", "lifecycle.env"]),
    (Lie::IgnoresCwd, &["exec.cwd"], &[]),
    (Lie::IgnoresTimeout, &["exec.timeout", "flag.timeout_kills"], &[]),
    (Lie::IgnoresTtl, &["lifecycle.ttl"], &[]),
    (Lie::IgnoresName, &["lifecycle.name", "flag.create_dedup"], &[]),
    (Lie::IgnoresLabels, &["lifecycle.labels"], &[]),
    (Lie::DropsInput, &["exec.input"], &[]),
    (
        Lie::MakesUpExitZero,
        &["exec.run", "exec.streaming", "exec.pty", "flag.exit_code_native"],
        &[
            "exec.attach",
            "exec.input",
            "exec.kill-process",
            "exec.replay",
            "exec.signal",
            "exec.stdin",
            "exec.timeout",
            "files.upload",
            "flag.stdin_eof",
            "flag.streams",
            "flag.timeout_kills",
            "network.egress-control",
        ],
    ),
    (Lie::CollapsesSignals, &["exec.run", "exec.streaming", "exec.pty", "exec.signal"], &[]),
    (
        Lie::LosesOutput,
        &["exec.run", "exec.streaming", "flag.output_retention"],
        &["exec.input", "files.upload"],
    ),
    (
        Lie::AltersBytes,
        &["flag.output_bytes", "exec.run"],
        &["exec.env", "exec.input", "exec.pty", "files.upload", "files.write", "lifecycle.env"],
    ),
    (Lie::MergesStreams, &["flag.streams"], &["exec.signal"]),
    (Lie::InheritsTheHostsEnv, &["exec.run"], &[]),
    (Lie::KillsTheParentOnly, &["exec.kill-process", "flag.kill_reaches"], &[]),
    (Lie::TimesOutTheParentOnly, &["exec.timeout", "flag.timeout_kills"], &[]),
    (Lie::KillsWhatNeverWas, &["exec.kill-process"], &[]),
    (Lie::AttachesFromTheStart, &["exec.attach"], &[]),
    (Lie::ReplaysWithAGap, &["exec.replay", "flag.output_retention"], &[]),
    (Lie::RunsOnAfterCancel, &["exec.run"], &[]),
    (Lie::ListsNothingOnError, &["lifecycle.list"], &[]),
    (Lie::ListsNothingForMissingFolders, &["files.list"], &["files.search", "files.tree", "files.watch"]),
    (
        Lie::ReportsDestroyedWhileAlive,
        &["base.destroy", "base.lease", "lifecycle.connect", "lifecycle.list"],
        &["exec.list", "exec.run", "files.list", "lifecycle.name"],
    ),
    (Lie::LeaksOnCancel, &["base.cancel"], &[]),
    (Lie::LeaksOnDrop, &["base.lease"], &["base.cancel"]),
    (Lie::LetsTrafficOut, &["network.egress-control"], &[]),
    (
        Lie::ReadsStaleFiles,
        &["files.read"],
        &["files.upload", "flag.background_survives", "flag.snapshot_source"],
    ),
    (Lie::ReadsFilesOfTheHost, &["files.read"], &["lifecycle.connect"]),
    (Lie::ActsBeforeRefusing, &["source.from-snapshot"], &[]),
];

/// The trials that are to catch the lie fail, and, where every trial is run, none that has nothing to do with it.
///
/// That each of them passes for who does not lie is shown by the honest provider.
async fn the_lie_is_caught(lie: Lie, caught: &[&str], noticed: &[&str]) -> Result<(), Failed> {
    let every = std::env::var_os(EVERY_TRIAL).is_some();
    let records = records(lie, |trial| every || caught.contains(&trial)).await;
    let failed = failed(&records);
    let missed: Vec<_> = caught.iter().filter(|trial| !failed.contains(**trial)).collect();
    if !missed.is_empty() {
        return Err(format!("not caught by {missed:?}, but by {failed:?}").into());
    }
    let known: BTreeSet<&str> = caught.iter().chain(noticed).copied().collect();
    let more: Vec<_> = failed.difference(&known).collect();
    if !more.is_empty() {
        return Err(format!("{more:?} fail beside what it lies about:\n{}", show(&records)).into());
    }
    Ok(())
}

/// One trial per lie, and one for who does not lie.
pub(crate) fn main() -> ! {
    fn trial(name: String, run: impl Future<Output = Result<(), Failed>> + Send + 'static) -> Trial {
        Trial::test(name, || tokio::runtime::Runtime::new().expect("a runtime").block_on(run))
    }
    let honest = trial("an_honest_provider_passes".to_owned(), an_honest_provider_passes());
    let lies = LIES
        .iter()
        .filter(|(lie, ..)| *lie != Lie::LetsTrafficOut || base::can_deny())
        .map(|&(lie, caught, noticed)| trial(format!("{lie:?}"), the_lie_is_caught(lie, caught, noticed)));
    libtest_mimic::run(&Arguments::from_args(), std::iter::once(honest).chain(lies).collect()).exit()
}
