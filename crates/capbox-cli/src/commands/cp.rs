//! `capbox cp`: files and folders, in and out.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use capbox::api::{EntryKind, Transferred};
use capbox::prelude::{ErrorKind, Files, SandboxPath};
use capbox::{Error, Result};

use super::files::of_sandbox;
use crate::args::{On, Place};
use crate::failure::{self, Outcome};

/// Copy a file or a folder into a sandbox, or out of one
///
/// What is copied goes into the target where that is a folder or ends with `/`; else it becomes the target. Of a
/// folder whose name ends with `/.` the content is copied. A path of this machine with a `:` in it is written
/// `./a:b`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    on: On,
    /// As other programs want it for folders; here they are copied anyway
    #[arg(short = 'r', long, hide = true)]
    recursive: bool,
    /// A path of this machine, or `ID:PATH`
    source: OsString,
    /// A path of this machine, or `ID:PATH`
    target: OsString,
}

pub(crate) async fn run(args: Args) -> Outcome {
    if args.source.is_empty() || args.target.is_empty() {
        let side = if args.source.is_empty() { "SOURCE" } else { "TARGET" };
        return Err(Error::invalid_argument(side, "is empty").into());
    }
    let (source, target) = (Place::of(&args.source), Place::of(&args.target));
    let copied = match (source, target) {
        (None, Some(target)) => {
            let files = of_sandbox(&args.on.connect(&target.id).await?)?;
            shown(&args, copy_in(&files, Path::new(&args.source), &target.path)).await?
        }
        (Some(source), None) => {
            let files = of_sandbox(&args.on.connect(&source.id).await?)?;
            shown(&args, copy_out(&files, &source.path, Path::new(&args.target))).await?
        }
        (Some(_), Some(_)) => {
            return Err(Error::invalid_argument("TARGET", "both sides name a sandbox")
                .with_hint("copy to this machine first, and then from there")
                .into());
        }
        (None, None) => {
            return Err(Error::invalid_argument("TARGET", "neither side names a sandbox")
                .with_hint("write one of them as `ID:PATH`")
                .into());
        }
    };
    if copied.skipped > 0 {
        failure::note(format_args!("{} devices, pipes and sockets are left out", copied.skipped));
    }
    Ok(0)
}

async fn copy_in(files: &Files, source: &Path, target: &SandboxPath) -> Result<Transferred> {
    let kind = std::fs::metadata(source).map_err(|error| of_host(source, &error))?;
    let target = match name_to_keep(source.as_os_str()) {
        Some(name) if wants_name(target) || is_folder(files, &or_here(target)).await? => {
            or_here(target).join(name.as_bytes())
        }
        _ => or_here(target),
    };
    if kind.is_dir() { files.upload_tree(source, target).await } else { files.upload(source, target).await }
}

async fn copy_out(files: &Files, source: &SandboxPath, target: &Path) -> Result<Transferred> {
    let folder = is_folder(files, &or_here(source)).await?;
    let bytes = source.as_bytes();
    let target = match name_to_keep(OsStr::from_bytes(bytes)) {
        Some(name) if target.as_os_str().as_bytes().ends_with(b"/") || target.is_dir() => target.join(name),
        _ => target.to_owned(),
    };
    if folder {
        files.download_tree(or_here(source), target).await
    } else {
        files.download(or_here(source), target).await
    }
}

/// The name that the copy keeps inside a target folder; none for the content of a folder.
fn name_to_keep(source: &OsStr) -> Option<OsString> {
    let bytes = source.as_bytes();
    if bytes == b"." || bytes.ends_with(b"/.") {
        return None;
    }
    Path::new(source).file_name().map(OsStr::to_owned)
}

fn wants_name(target: &SandboxPath) -> bool {
    target.as_bytes().is_empty() || target.as_bytes().ends_with(b"/")
}

/// The path; the sandbox's default folder where it is empty.
fn or_here(path: &SandboxPath) -> SandboxPath {
    if path.as_bytes().is_empty() { SandboxPath::from(".") } else { path.clone() }
}

/// True for a folder, or a link to one. What is not there is none.
async fn is_folder(files: &Files, path: &SandboxPath) -> Result<bool> {
    let kind = match files.stat(path).await {
        Ok(entry) => entry.kind,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    Ok(match kind {
        EntryKind::Directory => true,
        // Listing follows it.
        EntryKind::Symlink => files.list(path).await.is_ok(),
        _ => false,
    })
}

fn of_host(path: &Path, error: &io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
        io::ErrorKind::NotADirectory => ErrorKind::NotADirectory,
        _ => ErrorKind::Provider,
    };
    Error::new(kind, format!("`{}` on this machine: {error}", path.display()))
}

/// Do `work`; where it takes long and somebody watches, say that it goes on.
async fn shown<T>(args: &Args, work: impl Future<Output = T>) -> T {
    const LONG: Duration = Duration::from_secs(1);
    if !io::stderr().is_terminal() {
        return work.await;
    }
    let start = Instant::now();
    let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + LONG, LONG);
    let mut work = std::pin::pin!(work);
    let mut told = false;
    let done = loop {
        tokio::select! {
            biased;
            done = &mut work => break done,
            _ = ticks.tick() => {
                eprint!("\rcopying `{}`, {} s", args.source.display(), start.elapsed().as_secs());
                told = true;
            }
        }
    };
    if told {
        eprint!("\r\x1b[K");
        // Nobody is left to tell where stderr is closed.
        let _ = io::stderr().flush();
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_of_a_folder_keeps_no_name() {
        let name = |source: &str| name_to_keep(OsStr::new(source));
        assert_eq!(name("/a/b"), Some("b".into()));
        assert_eq!(name("/a/b/"), Some("b".into()));
        for content in [".", "/a/b/.", "..", "/"] {
            assert_eq!(name(content), None, "{content}");
        }
    }
}
