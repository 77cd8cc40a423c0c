//! Small things that the tasks share.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What went wrong, for people.
pub(crate) type Result<T = ()> = std::result::Result<T, String>;

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_owned()
}

/// Where Cargo builds.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The Cargo that runs this.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Run `command` to its end, showing it first.
pub(crate) fn run(command: &mut Command) -> Result {
    eprintln!("$ {}", shown(command));
    let status = command.status().map_err(|e| format!("start `{}`: {e}", shown(command)))?;
    if status.success() { Ok(()) } else { Err(format!("`{}`: {status}", shown(command))) }
}

/// Run `command` to its end and give what it printed.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let out =
        command.stderr(Stdio::inherit()).output().map_err(|e| format!("start `{}`: {e}", shown(command)))?;
    if !out.status.success() {
        return Err(format!("`{}`: {}", shown(command), out.status));
    }
    String::from_utf8(out.stdout).map_err(|_| format!("`{}` did not print text", shown(command)))
}

/// Build the `capbox` program and give its path.
pub(crate) fn build_capbox(profile: &str) -> Result<PathBuf> {
    run(cargo().args(["build", "--quiet", "--package", "capbox-cli", "--profile", profile]))?;
    let folder = if profile == "dev" { "debug" } else { profile };
    Ok(target().join(folder).join("capbox"))
}

/// True where `program` can be started.
pub(crate) fn is_there(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()))
}

/// Install the Debian packages whose program is missing, where this is Debian and we may.
pub(crate) fn install_packages(packages: &[(&str, &str)]) {
    let missing: Vec<&str> =
        packages.iter().filter(|(_, program)| !is_there(program)).map(|(package, _)| *package).collect();
    if missing.is_empty() || !is_there("apt-get") {
        return;
    }
    let apt = |args: &[&str]| {
        run(Command::new("apt-get").args(args).env("DEBIAN_FRONTEND", "noninteractive").stdout(Stdio::null()))
    };
    let installed = apt(&["-qq", "update"])
        .and_then(|()| apt(&[&["-qq", "-y", "--no-install-recommends", "install"], &missing[..]].concat()));
    if let Err(message) = installed {
        eprintln!("warning: {message}; tests that need `{}` are skipped", missing.join("`, `"));
    }
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}
