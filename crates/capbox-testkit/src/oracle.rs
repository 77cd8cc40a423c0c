//! Oracles: what a provider has caused so far, seen from outside of it.
//!
//! A refusal must cause nothing. The suite looks before and after; what is new is the proof against it. Which
//! oracle fits depends on the provider: a [`Recorder`] of its requests, the [`Folder`] that it keeps its state
//! in, the [`Marked`] processes of this machine, or [`all_of`] them.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use capbox_core::api::AnyClient;
use capbox_core::capability::Capability;
use capbox_core::error::Result;

/// A future that can be sent, boxed.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Sees what was caused so far.
pub trait Oracle: Send + Sync {
    /// Everything that was caused so far and can still be seen.
    fn look(&self) -> BoxFuture<'_, Traces>;
}

/// What an oracle sees: one line per request, sandbox, file or process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traces(BTreeSet<String>);

impl Traces {
    /// What is here and was not there `before`, or the other way round.
    pub fn changes_since(&self, before: &Self) -> Vec<String> {
        let new = self.0.difference(&before.0).map(|trace| format!("new: {trace}"));
        let gone = before.0.difference(&self.0).map(|trace| format!("gone: {trace}"));
        new.chain(gone).collect()
    }

    /// The lines.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

impl<S: Into<String>> FromIterator<S> for Traces {
    fn from_iter<I: IntoIterator<Item = S>>(lines: I) -> Self {
        Self(lines.into_iter().map(Into::into).collect())
    }
}

/// A request that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What was asked: `create`, `POST /sandboxes`, …
    pub operation: String,
    /// What was sent, without what is made up anew for each request (ids, keys, times).
    pub body: String,
}

/// Records what a provider sends. Clones share one record.
///
/// A provider's test puts it where requests leave: the stub server, the transport, or a wrapper of its calls.
#[derive(Clone, Debug, Default)]
pub struct Recorder(Arc<Mutex<Vec<Request>>>);

impl Recorder {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Record a request.
    pub fn record(&self, operation: impl Into<String>, body: impl fmt::Debug) {
        let request = Request { operation: operation.into(), body: format!("{body:?}") };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(request);
    }

    /// All requests so far, in order.
    pub fn requests(&self) -> Vec<Request> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Oracle for Recorder {
    fn look(&self) -> BoxFuture<'_, Traces> {
        let line = |(i, r): (usize, &Request)| format!("request {i}: {} {}", r.operation, r.body);
        let traces = self.requests().iter().enumerate().map(line).collect();
        Box::pin(async { traces })
    }
}

/// Every entry below a folder of this machine, with its type, size and time of change.
#[derive(Clone, Debug)]
pub struct Folder(pub PathBuf);

impl Oracle for Folder {
    fn look(&self) -> BoxFuture<'_, Traces> {
        let mut lines = BTreeSet::new();
        walk(&self.0, &mut lines);
        Box::pin(async { Traces(lines) })
    }
}

fn walk(folder: &Path, lines: &mut BTreeSet<String>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(meta) = path.symlink_metadata() else { continue };
        // A folder's own time changes when a lock file comes and goes in it, which is no effect.
        let detail =
            if meta.is_dir() { String::new() } else { format!("{} {:?}", meta.len(), meta.modified().ok()) };
        lines.insert(format!("file {} {:?} {detail}", path.display(), meta.file_type()));
        if meta.is_dir() {
            walk(&path, lines);
        }
    }
}

/// The processes of this machine whose command line or environment holds a text (Linux).
#[derive(Clone, Debug)]
pub struct Marked(pub String);

impl Oracle for Marked {
    fn look(&self) -> BoxFuture<'_, Traces> {
        let traces = host_processes(&self.0).into_iter().map(|line| format!("process {line}")).collect();
        Box::pin(async { traces })
    }
}

/// The processes of this machine, other than this one, whose command line or environment holds `mark`: the pid and the
/// command line of each. Empty where there is no `/proc`.
pub fn host_processes(mark: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if pid == std::process::id() {
            continue;
        }
        let read = |file: &str| fs::read(entry.path().join(file)).unwrap_or_default();
        let cmdline = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
        if cmdline.contains(mark) || String::from_utf8_lossy(&read("environ")).contains(mark) {
            found.push(format!("{pid} {cmdline}"));
        }
    }
    found
}

/// The sandboxes that a client lists.
///
/// Weaker than the others, since it believes the provider; where the list fails, that is the trace.
#[derive(Clone, Debug)]
pub struct Listed(pub AnyClient);

impl Oracle for Listed {
    fn look(&self) -> BoxFuture<'_, Traces> {
        Box::pin(async {
            if !self.0.can(Capability::List) {
                return Traces::default();
            }
            match self.0.list().await {
                Ok(sandboxes) => sandboxes.into_iter().map(|info| format!("sandbox {}", info.id)).collect(),
                Err(error) => Traces::from_iter([format!("the list failed: {error}")]),
            }
        })
    }
}

/// Everything that any of the oracles sees.
pub fn all_of(oracles: Vec<Box<dyn Oracle>>) -> impl Oracle {
    AllOf(oracles)
}

struct AllOf(Vec<Box<dyn Oracle>>);

impl Oracle for AllOf {
    fn look(&self) -> BoxFuture<'_, Traces> {
        Box::pin(async {
            let mut all = Traces::default();
            for oracle in &self.0 {
                all.0.extend(oracle.look().await.0);
            }
            all
        })
    }
}

/// How long what was done before may still be going on, and how long an effect may take to show.
const SETTLES: Duration = Duration::from_secs(3);
const SHOWS: Duration = Duration::from_millis(30);

/// Run `call` and give what it caused, beside its result. What was done before is waited for.
pub async fn caused<T>(
    oracle: &dyn Oracle,
    call: impl Future<Output = Result<T>>,
) -> (Result<T>, Vec<String>) {
    let begin = Instant::now();
    let mut before = oracle.look().await;
    loop {
        tokio::time::sleep(SHOWS).await;
        let now = oracle.look().await;
        let settled = now == before;
        before = now;
        if settled || begin.elapsed() > SETTLES {
            break;
        }
    }
    let result = call.await;
    tokio::time::sleep(SHOWS).await;
    let after = oracle.look().await;
    (result, after.changes_since(&before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_recorder_sees_what_a_call_sends() {
        let recorder = Recorder::new();
        let (_, traces) = caused(&recorder, async { Ok(()) }).await;
        assert_eq!(traces, Vec::<String>::new());
        let (_, traces) = caused(&recorder, async {
            recorder.record("create", "x");
            Ok(())
        })
        .await;
        assert_eq!(traces, ["new: request 0: create \"x\""]);
    }

    #[tokio::test]
    async fn a_folder_shows_what_comes_goes_and_changes() {
        let folder = tempfile::tempdir().unwrap();
        let oracle = Folder(folder.path().to_owned());
        let file = folder.path().join("a/f");
        let write = |text: &'static str| {
            let file = file.clone();
            async move {
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, text).unwrap();
                Ok(())
            }
        };
        assert_eq!(caused(&oracle, write("x")).await.1.len(), 2);
        assert_eq!(caused(&oracle, write("xy")).await.1.len(), 2);
        assert_eq!(caused(&oracle, async { Ok(()) }).await.1.len(), 0);
    }
}
