//! Rows built from other rows.
//!
//! Each emulation is a type for a provider's table, beside the sentence that says what is lost; its documentation
//! holds that sentence under *Loss*. It is written against the public typed API, exactly as a user would write it,
//! so its bounds name the rows that it stands on, and one emulation may stand on another:
//!
//! ```ignore
//! Run:         Native;
//! Input:       Native;
//! FilesRead:   Emulated<FilesOverExec> = "by `cat` and `head`; needs a shell, and holds the file in memory";
//! FilesList:   Emulated<FilesOverExec> = "by `stat`; needs a shell";
//! FilesWatch:  Emulated<Polling>       = "by looking every half second; what comes and goes in between is not seen";
//! ```
//!
//! | emulation | rows | stands on |
//! |---|---|---|
//! | [`FilesOverExec`] | `files.read`, `.list`, `.modify`, `.permissions`; `files.write` | `exec.run`; and `exec.input` |
//! | [`UploadOverExec`] | `files.upload` | `exec.streaming`, `exec.stdin` |
//! | [`TreeByFiles`] | `files.tree` | the other rows of files |
//! | [`SearchByFiles`] | `files.search` | `files.read`, `files.list` |
//! | [`Polling`] | `files.watch` | `files.read`, `files.list` |
//! | [`RunByStreaming`] | `exec.run` | `exec.streaming` |
//! | [`ExitCodeByFile`] | `exec.run` | [`RawRun`], [`Wrapped`] |
//! | [`WrapCwd`], [`WrapEnv`], [`WrapTimeout`] | `exec.cwd`, `exec.env`, `exec.timeout` | [`Wrapped`] |
//! | [`PollMetrics`] | `meta.metrics-stream` | `meta.metrics` |
//! | [`ForkBySnapshot`] | `snapshot.fork` | `snapshot.snapshot`, `snapshot.delete`, `source.from-snapshot` |
//!
//! Nothing here emulates a kill or a signal: a process id of one provider says nothing about a pid inside.

mod exit_code;
mod files_over_exec;
mod fork_by_snapshot;
pub mod host;
mod poll_metrics;
mod polling;
mod run_by_streaming;
mod search_by_files;
mod shell;
mod tree_by_files;
mod upload_over_exec;
mod walk;
mod wrap;

pub use self::exit_code::{ExitCodeByFile, RawRun};
pub use self::files_over_exec::FilesOverExec;
pub use self::fork_by_snapshot::ForkBySnapshot;
pub use self::poll_metrics::PollMetrics;
pub use self::polling::Polling;
pub use self::run_by_streaming::RunByStreaming;
pub use self::search_by_files::SearchByFiles;
pub use self::tree_by_files::TreeByFiles;
pub use self::upload_over_exec::UploadOverExec;
pub use self::wrap::{WrapCwd, WrapEnv, WrapTimeout, Wrapped};
