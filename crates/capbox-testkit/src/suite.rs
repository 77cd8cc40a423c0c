//! The suite: which trials there are, and how one is run.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use capbox_core::api::AnySandbox;
use capbox_core::capability::{Capability, Level, Lowered, NotSupported, Refusal};
use capbox_core::error::{Admitted, Error, ErrorKind, Result};
use capbox_core::spec::{Network, Spec};
use libtest_mimic::{Arguments, Completion, Conclusion, Failed, Trial};

use crate::bench::Bench;
use crate::check::{Check, Fault};
use crate::contract::{Ask, BASE, Case, ENTRIES, Entry, FLAGS};
use crate::evidence::{self, CaseRecord, Half, Outcome, Record};
use crate::harness::Harness;
use crate::oracle::{Recorder, Request, caused};
use crate::{ensure, ensure_eq};

/// The contract suite over one provider.
#[derive(Clone)]
pub struct Suite {
    harness: Arc<dyn Harness>,
    one_at_a_time: bool,
}

impl fmt::Debug for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Suite").field("provider", &self.harness.rows().provider).finish_non_exhaustive()
    }
}

/// One trial: a row, a flag or a thing that every provider has.
#[derive(Clone, Copy, Debug)]
enum Subject {
    Row(Entry),
    Flag(&'static str, &'static [Case]),
    Base(&'static str, &'static [Case]),
}

impl Subject {
    fn all() -> impl Iterator<Item = Self> {
        let rows = ENTRIES.iter().map(|entry| Self::Row(*entry));
        let flags = FLAGS.iter().map(|(name, cases)| Self::Flag(name, cases));
        let base = BASE.iter().map(|(name, cases)| Self::Base(name, cases));
        base.chain(rows).chain(flags)
    }

    /// `exec.run`, `flag.streams`, `base.lease`.
    fn name(self) -> String {
        match self {
            Self::Row(entry) => entry.capability.to_string(),
            Self::Flag(name, _) => format!("flag.{name}"),
            Self::Base(name, _) => format!("base.{name}"),
        }
    }
}

impl Suite {
    /// The suite over the provider of `harness`.
    pub fn new(harness: impl Harness) -> Self {
        Self { harness: Arc::new(harness), one_at_a_time: false }
    }

    /// One trial after the other, unless the arguments say otherwise: for a provider whose trials share an account.
    #[must_use]
    pub fn one_at_a_time(mut self) -> Self {
        self.one_at_a_time = true;
        self
    }

    /// The whole `main` of a provider's `tests/contract.rs`: run the trials that the arguments name, write the
    /// evidence, exit.
    pub fn main(self) -> ! {
        self.run(&Arguments::from_args()).exit()
    }

    /// Run the trials that the arguments name, and write the evidence.
    pub fn run(&self, arguments: &Arguments) -> Conclusion {
        let records = Arc::new(Mutex::new(Vec::new()));
        let mut arguments = arguments.clone();
        if self.one_at_a_time {
            arguments.test_threads.get_or_insert(1);
        }
        let conclusion = libtest_mimic::run(&arguments, self.trials(&records));
        let records = std::mem::take(&mut *records.lock().unwrap_or_else(PoisonError::into_inner));
        // Nothing was shown where nothing could be tried: earlier evidence stands.
        if !records.is_empty() && self.harness.missing().is_none() {
            match evidence::write(self.harness.rows().provider, records) {
                Ok(path) => eprintln!("evidence: {}", path.display()),
                Err(error) => eprintln!("the evidence is not written: {error}"),
            }
        }
        conclusion
    }

    /// The trials, named `PROVIDER::ROW`; what they find is added to `records`.
    fn trials(&self, records: &Arc<Mutex<Vec<Record>>>) -> Vec<Trial> {
        let provider = self.harness.rows().provider;
        let trial = |subject: Subject| {
            let (suite, records) = (self.clone(), records.clone());
            Trial::ignorable_test(format!("{provider}::{}", subject.name()), move || {
                let runtime = tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(2)
                    .enable_all()
                    .build()
                    .map_err(|error| Failed::from(error.to_string()))?;
                let record = runtime.block_on(suite.record(subject));
                runtime.shutdown_timeout(Duration::from_secs(5));
                let completion = match &record.outcome {
                    Outcome::Passed => Ok(Completion::Completed),
                    Outcome::Ignored(reason) => Ok(Completion::ignored_with(reason)),
                    Outcome::Failed(message) => Err(Failed::from(message)),
                };
                records.lock().unwrap_or_else(PoisonError::into_inner).push(record);
                completion
            })
        };
        Subject::all().map(trial).collect()
    }

    /// Run every trial whose name `wanted` takes, `parallel` at a time, in the tokio runtime of the caller; gives what each found. Writes no evidence.
    pub async fn records(&self, parallel: usize, wanted: impl Fn(&str) -> bool) -> Vec<Record> {
        let permits = Arc::new(tokio::sync::Semaphore::new(parallel.max(1)));
        let mut running = Vec::new();
        for subject in Subject::all().filter(|subject| wanted(&subject.name())) {
            let (suite, permits) = (self.clone(), permits.clone());
            running.push(tokio::spawn(async move {
                let _permit = permits.acquire_owned().await;
                suite.record(subject).await
            }));
        }
        let mut records = Vec::new();
        for trial in running {
            records.extend(trial.await);
        }
        records
    }

    async fn record(&self, subject: Subject) -> Record {
        let (when, begin) = (SystemTime::now(), Instant::now());
        let trial = subject.name();
        let facts = self.harness.facts();
        let left_out = facts.left_out;
        let left_out =
            left_out.iter().find(|(name, _)| *name == trial).map(|(_, reason)| (*reason).to_owned());
        let found = if let Some(reason) = self.harness.missing().or(left_out) {
            Found::whole(Half::Holds, Err(Fault::ignored(reason)))
        } else {
            // A task of its own, so that a panic of a provider is a failure of this trial only.
            let harness = self.harness.clone();
            let task = tokio::spawn(async move { try_subject(&*harness, subject).await });
            let abort = task.abort_handle();
            match tokio::time::timeout(facts.trial_timeout, task).await {
                Ok(Ok(found)) => found,
                Ok(Err(panic)) => Found::whole(Half::Holds, Err(Fault::failed(format!("panicked: {panic}")))),
                Err(_) => {
                    abort.abort();
                    let late = format!("hangs: not done after {:?}", facts.trial_timeout);
                    Found::whole(Half::Holds, Err(Fault::failed(late)))
                }
            }
        };
        let rows = self.harness.rows();
        let (row, level) = match subject {
            Subject::Row(entry) => (Some(entry.capability), Some(rows.row(entry.capability).level)),
            Subject::Flag(..) | Subject::Base(..) => (None, None),
        };
        Record {
            trial,
            row: row.map(|row| row.as_str().to_owned()),
            level: level.map(|level| level.as_str().to_owned()),
            half: found.half,
            outcome: found.outcome(),
            cases: found.cases,
            duration_ms: u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX),
            when: evidence::rfc3339(when),
            version: self.harness.version(),
            host: evidence::host(),
        }
    }
}

/// What a trial found, before it is a record.
struct Found {
    half: Half,
    cases: Vec<CaseRecord>,
}

impl Found {
    fn whole(half: Half, check: Check) -> Self {
        Self { half, cases: vec![CaseRecord { name: half.as_str().to_owned(), outcome: check.into() }] }
    }

    /// Failed if a case failed; ignored if all were left out.
    fn outcome(&self) -> Outcome {
        let mut failed = Vec::new();
        let mut left_out = Vec::new();
        for case in &self.cases {
            match &case.outcome {
                Outcome::Passed => {}
                Outcome::Failed(message) => failed.push(format!("{}: {message}", case.name)),
                Outcome::Ignored(reason) => left_out.push(reason.clone()),
            }
        }
        left_out.dedup();
        if !failed.is_empty() {
            Outcome::Failed(failed.join("\n"))
        } else if !self.cases.iter().any(|case| case.outcome == Outcome::Passed) {
            Outcome::Ignored(left_out.join("; "))
        } else {
            Outcome::Passed
        }
    }
}

async fn try_subject(harness: &dyn Harness, subject: Subject) -> Found {
    let bench = match Bench::new(harness) {
        Ok(bench) => bench,
        Err(error) => return Found::whole(Half::Holds, Err(error.into())),
    };
    let found = match subject {
        Subject::Row(entry) => match (bench.client().require(entry.capability), entry.contract) {
            (Err(refusal), contract) => Found::whole(Half::Refused, refused(&bench, refusal, contract).await),
            (Ok(()), Some((ask, cases))) => {
                let mut found = holds(&bench, &entry.capability.to_string(), cases).await;
                if let Some(case) = mark(&bench, entry.capability, ask).await {
                    found.cases.push(case);
                }
                found.cases.extend(withheld(&bench, entry.capability, ask).await);
                found
            }
            (Ok(()), None) => {
                let missing = Fault::failed("the row is filled, but has no contract yet");
                Found::whole(Half::Holds, Err(missing))
            }
        },
        Subject::Flag(_, cases) | Subject::Base(_, cases) => holds(&bench, &subject.name(), cases).await,
    };
    bench.finish().await;
    found
}

/// The positive half: every case, each with its own outcome.
async fn holds(bench: &Bench, trial: &str, cases: &[Case]) -> Found {
    let mut records = Vec::new();
    for case in cases {
        let name = format!("{trial}/{}", case.name);
        let left_out = bench.facts().left_out.iter().find(|(of, _)| *of == name);
        let check = match left_out {
            Some((_, reason)) => Err(Fault::ignored(*reason)),
            None => (case.run)(bench).await,
        };
        records.push(CaseRecord { name: case.name.to_owned(), outcome: check.into() });
    }
    Found { half: Half::Holds, cases: records }
}

/// The negative half: the row is refused, as the table says, and nothing happens.
async fn refused(bench: &Bench, expected: NotSupported, contract: Option<(Ask, &[Case])>) -> Check {
    let capability = expected.capability;
    let info = bench.client().capabilities().declared().row(capability);
    if info.level == Level::Unsupported {
        ensure_eq!(expected.reason, info.note, "the reason of the refusal");
    } else {
        let lowered = matches!(expected.refusal, Refusal::Unavailable | Refusal::Withheld);
        ensure!(lowered, "`{capability}` is declared, but refused as {}", expected.refusal.as_str());
    }
    ensure!(!expected.reason.is_empty(), "the refusal of `{capability}` gives no reason");
    ensure!(!bench.can(capability), "`can` says yes and `require` says no");
    let Some((ask, _)) = contract else { return Ok(()) };
    for (how, result, traces) in asked(bench, ask, capability, None).await? {
        is_refusal(&how, result, &traces, expected)?;
    }
    if capability == Capability::EgressControl {
        let plain = bench.client().create(bench.facts().spec.clone());
        if bench.spec().egress_open.is_some() && bench.facts().spec.egress_open.is_none() {
            let (result, traces) = caused(bench.oracle(), async { plain.await.map(drop) }).await;
            let how = "b158: create without a policy";
            let hint = result.as_ref().err().and_then(Error::hint).map(str::to_owned);
            is_refusal(how, result, &traces, expected)?;
            ensure!(hint.is_some(), "{how}: no hint says what to do");
        }
    }
    Ok(())
}

/// The ways to start a command.
const EXECS: &[Capability] = &[Capability::Run, Capability::Streaming, Capability::Background];

/// A way in which a row was asked for, what came of it, and what it caused.
type Asked = (String, Result<()>, Vec<String>);

/// Ask for the row in each way that there is; on a handle from which it is withheld, where that is given.
async fn asked(
    bench: &Bench,
    ask: Ask,
    capability: Capability,
    withhold: Option<&Lowered>,
) -> Check<Vec<Asked>> {
    let oracle = bench.oracle();
    let handle = |sandbox: AnySandbox| match withhold {
        None => sandbox,
        Some(lowered) => sandbox.withholding(lowered),
    };
    let way = |how: &str, (result, traces)| (how.to_owned(), result, traces);
    Ok(match ask {
        Ask::Client(call) => vec![way("the call", caused(oracle, call(bench.client())).await)],
        Ask::Call(call) => {
            let sandbox = handle(bench.sandbox().await?);
            vec![way("the call", caused(oracle, call(&sandbox)).await)]
        }
        Ask::Create(set) => {
            let spec = set(bench.spec(), bench)?;
            let create = async { bench.client().create(spec).await.map(drop) };
            vec![way("create", caused(oracle, create).await)]
        }
        Ask::Exec(on_exec, on_spawn) => {
            if !EXECS.iter().any(|row| bench.can(*row)) {
                return Ok(Vec::new()); // nobody can ask for an option of what there is not
            }
            let sandbox = handle(bench.sandbox().await?);
            let touch = format!("touch refused-{}", capability.as_str());
            let mut ways = Vec::new();
            if bench.can(Capability::Run) {
                let exec = on_exec(sandbox.exec(touch.as_str()), bench)?;
                ways.push(way("exec", caused(oracle, async { exec.await.map(drop) }).await));
            }
            if bench.can(Capability::Streaming) {
                let spawn = on_spawn(sandbox.spawn(touch.as_str()), bench)?;
                ways.push(way("spawn", caused(oracle, async { spawn.await.map(drop) }).await));
            }
            if bench.can(Capability::Background) {
                let spawn = on_spawn(sandbox.spawn(touch.as_str()), bench)?.background();
                ways.push(way("background", caused(oracle, async { spawn.await.map(drop) }).await));
            }
            ways
        }
    })
}

/// Fail unless `result` is exactly the refusal, and nothing was caused.
pub(crate) fn is_refusal(how: &str, result: Result<()>, traces: &[String], expected: NotSupported) -> Check {
    let Err(error) = result else {
        return Err(Fault::failed(format!(
            "{how} succeeds, although `{}` is not there",
            expected.capability
        )));
    };
    ensure_eq!(error.kind(), ErrorKind::NotSupported, "{how}: the kind of error (`{error}`)");
    ensure_eq!(error.refusal(), Some(expected), "{how}: the refusal");
    ensure_eq!(error.admitted(), Admitted::No, "{how}: whether it may have happened");
    let text = error.to_string();
    let named = text.contains(expected.capability.as_str()) && text.contains(expected.reason);
    ensure!(named, "{how}: the message names neither row nor reason: {text}");
    ensure!(traces.is_empty(), "{how} is refused, but something happened: {traces:?}");
    Ok(())
}

/// A filled row that is withheld from a handle is refused on that handle, and nothing happens.
async fn withheld(bench: &Bench, capability: Capability, ask: Ask) -> Option<CaseRecord> {
    if !matches!(ask, Ask::Call(_) | Ask::Exec(..)) {
        return None;
    }
    let reason = "the contract withholds it";
    let lowered = Lowered::none().withheld(capability, reason);
    let provider = bench.client().provider();
    let expected = NotSupported::new(provider, capability, Refusal::Withheld, reason);
    let check = async {
        if matches!(ask, Ask::Exec(..)) && !EXECS.iter().any(|row| bench.can(*row)) {
            return Err(Fault::ignored("nothing can be executed"));
        }
        for (how, result, traces) in asked(bench, ask, capability, Some(&lowered)).await? {
            is_refusal(&how, result, &traces, expected)?;
        }
        Ok(())
    };
    Some(CaseRecord { name: "withheld_is_refused".to_owned(), outcome: check.await.into() })
}

/// A declared option changes the recorded request, where requests are recorded.
async fn mark(bench: &Bench, capability: Capability, ask: Ask) -> Option<CaseRecord> {
    let recorder = bench.requests()?;
    if !matches!(ask, Ask::Create(_) | Ask::Exec(..)) {
        return None;
    }
    let check = leaves_a_mark(bench, recorder, capability, ask).await;
    Some(CaseRecord { name: "the_option_leaves_a_mark".to_owned(), outcome: check.into() })
}

async fn leaves_a_mark(bench: &Bench, recorder: &Recorder, capability: Capability, ask: Ask) -> Check {
    let plain = requests(bench, recorder, (capability, ask), false).await?;
    let again = requests(bench, recorder, (capability, ask), false).await?;
    let with = requests(bench, recorder, (capability, ask), true).await?;
    if plain.is_empty() && with.is_empty() && matches!(ask, Ask::Exec(..)) {
        return Err(Fault::ignored("commands do not go by requests that are recorded"));
    }
    ensure!(!plain.is_empty(), "nothing is recorded, so the record proves nothing");
    ensure_eq!(plain, again, "the same request twice, which must be recorded alike");
    ensure!(plain != with, "the option `{capability}` leaves no mark in the request: {with:?}");
    Ok(())
}

/// A spec that does not ask for the option. Deny is what nobody needs to ask for, so it is held against open.
fn without(bench: &Bench, capability: Capability) -> Check<Spec> {
    if capability != Capability::EgressControl {
        return Ok(bench.spec());
    }
    bench.needs(&[Capability::EgressOpen])?;
    Ok(bench.spec().network(Network::open()))
}

/// What a create or an exec sends, with the option or without it.
async fn requests(
    bench: &Bench,
    recorder: &Recorder,
    (capability, ask): (Capability, Ask),
    option: bool,
) -> Check<Vec<Request>> {
    match ask {
        Ask::Client(_) | Ask::Call(_) => Ok(Vec::new()),
        Ask::Create(set) => {
            let spec = if option { set(bench.spec(), bench)? } else { without(bench, capability)? };
            let before = recorder.requests().len();
            let created = bench.client().create(spec).await;
            let requests = recorder.requests().split_off(before);
            if let Ok(sandbox) = created {
                sandbox.destroy().await?;
            }
            Ok(requests)
        }
        Ask::Exec(set, _) => {
            bench.needs(&[Capability::Run])?;
            let sandbox = bench.sandbox().await?;
            let exec = sandbox.exec("true");
            let exec = if option { set(exec, bench)? } else { exec };
            let before = recorder.requests().len();
            exec.await.ok();
            Ok(recorder.requests().split_off(before))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LACKS: NotSupported =
        NotSupported::new("p", Capability::Pty, Refusal::ProviderLacks, "there is no terminal");

    /// The negative half fails on each thing that can be wrong with a refusal.
    #[test]
    fn a_refusal_is_exact() {
        let good = || Err(Error::from(LACKS));
        assert_eq!(is_refusal("x", good(), &[], LACKS), Ok(()));
        let other = NotSupported::new("p", Capability::Pty, Refusal::NotAdapted, "not yet");
        let wrong: [(Result<()>, Vec<String>); 5] = [
            (Ok(()), vec![]),
            (good(), vec!["request 0: create".to_owned()]),
            (Err(other.into()), vec![]),
            (Err(Error::new(ErrorKind::Provider, LACKS.to_string())), vec![]),
            (Err(Error::from(LACKS).with_admitted(Admitted::Unknown)), vec![]),
        ];
        for (result, traces) in wrong {
            assert!(matches!(is_refusal("x", result, &traces, LACKS), Err(Fault::Failed(_))));
        }
    }

    /// Every flag is either observed or said to be unobservable, with the reason.
    #[test]
    fn every_flag_is_accounted_for() {
        use capbox_core::capability::flags::Flags;
        let whole = |name: &'static str| name.split_once('.').map_or(name, |(whole, _)| whole);
        let mut names: Vec<&str> =
            Flags::DEFAULT.entries().into_iter().map(|(name, _)| whole(name)).collect();
        let mut accounted: Vec<&str> = FLAGS.iter().map(|(name, _)| *name).collect();
        accounted.extend(crate::contract::flags::UNOBSERVED.iter().map(|(name, _)| *name));
        names.sort_unstable();
        names.dedup();
        accounted.sort_unstable();
        assert_eq!(names, accounted);
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<String> = Subject::all().map(Subject::name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(count > Capability::ALL.len());
    }
}
