//! Lying providers: each is honest but for one lie, and the suite must catch exactly that.
//!
//! The base shows first that an honest provider passes: a suite that fails everybody catches nothing.

#![cfg(target_os = "linux")]

mod base;
mod files;
mod jobs;
mod liar;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use capbox_core::api::Client;
use capbox_core::provider::{Result, Rows, Table};
use capbox_testkit::evidence::{Outcome, Record};
use capbox_testkit::oracle::{Folder, all_of};
use capbox_testkit::{Facts, Fixture, Harness, Suite};

use self::base::Account;
use self::liar::{Liar, Lie};

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
        facts.trial_timeout = liar::TRIAL;
        facts
    }

    fn fixture(&self) -> Result<Fixture> {
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

async fn records(lie: Lie) -> Vec<Record> {
    Suite::new(Liars(lie)).records(8, |_| true).await
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

#[tokio::test(flavor = "multi_thread")]
async fn an_honest_provider_passes() {
    let records = records(Lie::None).await;
    assert!(failed(&records).is_empty(), "{}", show(&records));
    let passed = |trial: &str| {
        let record = records.iter().find(|record| record.trial == trial).unwrap();
        assert_eq!(record.outcome, Outcome::Passed, "{trial}");
    };
    // Nothing that a liar is caught by is left out of what the honest one passes.
    for (_, caught, _) in LIES {
        caught.iter().for_each(|trial| passed(trial));
    }
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
    (Lie::ReplaysWithAGap, &["exec.replay"], &[]),
    (Lie::RunsOnAfterCancel, &["exec.run"], &[]),
    (Lie::ListsNothingOnError, &["lifecycle.list"], &[]),
    (Lie::ListsNothingForMissingFolders, &["files.list"], &[]),
    (Lie::ReportsDestroyedWhileAlive, &["base.destroy"], &[]),
    (Lie::LeaksOnCancel, &["base.cancel"], &[]),
    (Lie::LeaksOnDrop, &["base.lease"], &[]),
    (Lie::LetsTrafficOut, &["network.egress-control"], &[]),
    (Lie::ReadsStaleFiles, &["files.read"], &[]),
    (Lie::ReadsFilesOfTheHost, &["files.read"], &[]),
    (Lie::ActsBeforeRefusing, &["source.from-snapshot"], &[]),
];

/// `LIE=IgnoresEnv cargo test --test liars` tries one only.
#[tokio::test(flavor = "multi_thread")]
async fn every_lie_is_caught() {
    let only = std::env::var("LIE").ok();
    let mut problems = Vec::new();
    for (lie, caught, noticed) in LIES {
        if only.as_ref().is_some_and(|only| *only != format!("{lie:?}")) {
            continue;
        }
        let records = records(*lie).await;
        let failed = failed(&records);
        let missed: Vec<_> = caught.iter().filter(|trial| !failed.contains(**trial)).collect();
        if !missed.is_empty() {
            problems.push(format!("{lie:?} is not caught by {missed:?}, but by {failed:?}"));
        }
        let known: BTreeSet<&str> = caught.iter().chain(*noticed).copied().collect();
        let more: Vec<_> = failed.difference(&known).collect();
        if !more.is_empty() {
            problems.push(format!("{lie:?} fails {more:?} beside what it lies about:\n{}", show(&records)));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n\n"));
}
