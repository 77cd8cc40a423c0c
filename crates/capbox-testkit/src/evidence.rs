//! Evidence: what ran, when, against what, and how it ended; read by the docs matrix.
//!
//! One JSON file per provider, `PROVIDER.json`, in the folder that `CAPBOX_EVIDENCE` names, else in
//! `dist/evidence` of the workspace. Trials that did not run this time keep what was found before; each record
//! says when and against which version it ran.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{env, fs, io};

use serde::{Deserialize, Serialize};

use crate::check::{Check, Fault};

/// The evidence of one provider: the content of its file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Evidence {
    /// The provider's id.
    pub provider: String,
    /// The latest record of each trial, by name.
    pub trials: Vec<Record>,
}

/// What one trial found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The trial: a row's id, `flag.NAME` or `base.NAME`.
    pub trial: String,
    /// The row's id.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub row: Option<String>,
    /// The declared level of the row.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub level: Option<String>,
    /// Which half of the contract was tried.
    pub half: Half,
    /// How it ended.
    pub outcome: Outcome,
    /// The same for each case.
    pub cases: Vec<CaseRecord>,
    /// How long it took.
    pub duration_ms: u64,
    /// When it began, in UTC, as RFC 3339.
    pub when: String,
    /// The provider's version.
    pub version: String,
    /// The host: system, kernel, architecture.
    pub host: String,
}

/// What one case found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaseRecord {
    /// The case.
    pub name: String,
    /// How it ended.
    pub outcome: Outcome,
}

/// Which half of a contract was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Half {
    /// The row is filled: it does what it promises.
    Holds,
    /// The row is not there: it is refused and nothing happens.
    Refused,
}

impl Half {
    /// `holds` or `refused`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Refused => "refused",
        }
    }
}

/// How a trial or case ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It holds.
    Passed,
    /// It does not: the message.
    Failed(String),
    /// It was left out: the reason.
    Ignored(String),
}

impl From<Check> for Outcome {
    fn from(check: Check) -> Self {
        match check {
            Ok(()) => Self::Passed,
            Err(Fault::Failed(message)) => Self::Failed(message),
            Err(Fault::Ignored(reason)) => Self::Ignored(reason),
        }
    }
}

/// Merge `records` into the provider's file; gives its path.
pub(crate) fn write(provider: &str, records: Vec<Record>) -> io::Result<PathBuf> {
    write_to(&folder()?, provider, records)
}

fn write_to(folder: &Path, provider: &str, records: Vec<Record>) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let path = folder.join(format!("{provider}.json"));
    let mut trials: Vec<Record> = match fs::read(&path) {
        Ok(bytes) => serde_json::from_slice::<Evidence>(&bytes).map(|old| old.trials).unwrap_or_default(),
        Err(_) => Vec::new(),
    };
    trials.retain(|old| records.iter().all(|new| new.trial != old.trial));
    trials.extend(records);
    trials.sort_by(|a, b| a.trial.cmp(&b.trial));
    let evidence = Evidence { provider: provider.to_owned(), trials };
    let mut text = serde_json::to_string_pretty(&evidence)?;
    text.push('\n');
    let new = path.with_extension("json.new");
    fs::write(&new, text)?;
    fs::rename(&new, &path)?;
    Ok(path)
}

fn folder() -> io::Result<PathBuf> {
    if let Some(folder) = env::var_os("CAPBOX_EVIDENCE") {
        return Ok(folder.into());
    }
    Ok(workspace_root(&env::current_dir()?).join("dist/evidence"))
}

/// The nearest folder above `from` whose `Cargo.toml` has a `[workspace]`; `from` itself where there is none.
pub(crate) fn workspace_root(from: &Path) -> PathBuf {
    let is_root = |folder: &&Path| {
        fs::read_to_string(folder.join("Cargo.toml"))
            .is_ok_and(|text| text.lines().any(|line| line.trim() == "[workspace]"))
    };
    from.ancestors().find(is_root).unwrap_or(from).to_owned()
}

/// The system, its kernel and its architecture.
pub(crate) fn host() -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let parts = [env::consts::OS, kernel.trim(), env::consts::ARCH];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

/// A time in UTC, to the second.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// Year, month and day, of days since 1970-01-01 (Howard Hinnant's algorithm, for days that are not negative).
fn civil(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let (era, doe) = (z / 146_097, z % 146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (yoe + era * 400 + u64::from(month <= 2), month, doy - (153 * mp + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn record(trial: &str, outcome: Outcome) -> Record {
        Record {
            trial: trial.to_owned(),
            row: None,
            level: None,
            half: Half::Refused,
            outcome,
            cases: vec![],
            duration_ms: 1,
            when: rfc3339(UNIX_EPOCH),
            version: "1".to_owned(),
            host: host(),
        }
    }

    #[test]
    fn later_runs_replace_only_what_ran() {
        let folder = tempfile::tempdir().unwrap();
        let first = vec![record("b", Outcome::Passed), record("a", Outcome::Passed)];
        write_to(folder.path(), "p", first).unwrap();
        let path = write_to(folder.path(), "p", vec![record("a", Outcome::Failed("x".into()))]).unwrap();
        let evidence: Evidence = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let trials: Vec<_> = evidence.trials.iter().map(|r| (r.trial.as_str(), r.outcome.clone())).collect();
        assert_eq!(trials, [("a", Outcome::Failed("x".into())), ("b", Outcome::Passed)]);
    }

    #[test]
    fn times() {
        let at = |seconds| rfc3339(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_826_154), "2000-02-29T12:09:14Z");
        assert_eq!(at(1_796_041_153), "2026-11-30T12:19:13Z");
    }
}
