//! What people type who know other programs: what to write here instead.

use std::ffi::OsString;

/// Commands by their names elsewhere.
const COMMANDS: &[(&[&str], &str)] = &[
    (&["list", "ls", "status", "inspect", "sandboxes"], "`capbox ps` lists the sandboxes"),
    (
        &["delete", "destroy", "remove", "terminate", "kill-all", "killall", "prune"],
        "`capbox rm ID` destroys a sandbox",
    ),
    (
        &["shell", "ssh", "sh", "bash", "console", "enter", "login", "connect"],
        "write `capbox exec -it ID -- sh`",
    ),
    (
        &["new", "up", "launch", "spawn"],
        "`capbox create` makes a sandbox that stays, `capbox run -- COMMAND` runs one command",
    ),
    (&["unpause"], "`capbox resume ID` lets a sandbox go on"),
    (&["commit", "save"], "`capbox snapshot create ID` keeps the disk of a sandbox"),
    (&["stats", "top"], "`capbox metrics ID` tells what a sandbox uses"),
    (&["copy", "push", "pull", "upload", "download", "put", "get"], "write `capbox cp SOURCE TARGET`"),
    (&["capabilities", "providers", "features"], "`capbox caps` lists the providers and what they can do"),
    (&["help"], "`capbox --help` lists the commands, `capbox COMMAND --help` explains one"),
    (&["version"], "write `capbox --version`"),
];

/// The same below `capbox files`.
const FILES: &[(&[&str], &str)] = &[
    (&["read", "get", "show", "print"], "write `capbox files cat ID:PATH`"),
    (&["list", "dir"], "write `capbox files ls ID:PATH`"),
    (&["put", "save", "create", "touch"], "write `capbox files write ID:PATH`; it takes our stdin"),
    (&["delete", "remove", "unlink"], "write `capbox files rm ID:PATH`"),
    (&["move", "rename"], "write `capbox files mv ID:PATH PATH`"),
    (&["find", "grep", "glob"], "write `capbox files search --name PATTERN ID:PATH`, or `--text TEXT`"),
    (&["cp", "copy", "upload", "download"], "write `capbox cp SOURCE TARGET`"),
];

/// Options by their names elsewhere.
const OPTIONS: &[(&[&str], &str)] = &[
    (&["-v"], "write `--mount SOURCE:TARGET[:ro]`, or `--volume VOLUME:TARGET`"),
    (&["-p", "--publish"], "write `--port PORT`, and then `capbox port ID PORT`"),
    (&["-e"], "write `--env NAME=VALUE`"),
    (&["-w", "--workdir", "--cd"], "write `--cwd DIR`"),
    (&["-u"], "write `--user USER`"),
    (&["-m"], "write `--memory SIZE`"),
    (&["--network"], "write `--net deny`, `--net open` or `--net HOST`"),
    (&["--pids-limit"], "write `--pids N`"),
    (&["--rm"], "leave it out: the sandbox of `capbox run` ends with it"),
    (&["--provider"], "write `--on PROVIDER`"),
    (&["-f"], "write `--follow`"),
];

/// What to write instead of the command `name`.
pub(crate) fn command(name: &str) -> Option<String> {
    find(if typed().first().is_some_and(|word| word == "files") { FILES } else { COMMANDS }, name)
}

/// What to write instead of `argument`, which the command does not know.
pub(crate) fn argument(argument: &str) -> Option<String> {
    let typed = typed();
    let runs = typed.first().is_some_and(|word| word == "run" || word == "exec");
    if runs && !argument.starts_with('-') && !std::env::args_os().any(|word| word == "--") {
        return Some("put `--` before the command".to_owned());
    }
    if typed.first().is_some_and(|word| word == "create") && !argument.starts_with('-') {
        return Some(format!("write `--name {argument}` to name the sandbox"));
    }
    find(OPTIONS, argument)
}

/// The command whose document is asked for by `--json`, as far as that can be told from what was typed.
pub(crate) fn asks_for_json() -> Option<String> {
    let typed = typed();
    if !typed.iter().any(|word| word == "--json") {
        return None;
    }
    let mut words = typed.iter().filter_map(|word| word.to_str());
    match words.next()? {
        "files" => words.next().map(str::to_owned),
        command => Some(command.to_owned()),
    }
}

/// Our arguments, without the command to run.
fn typed() -> Vec<OsString> {
    std::env::args_os().skip(1).take_while(|word| word != "--").collect()
}

fn find(known: &[(&[&str], &str)], name: &str) -> Option<String> {
    known.iter().find(|(names, _)| names.contains(&name)).map(|(_, hint)| (*hint).to_owned())
}
