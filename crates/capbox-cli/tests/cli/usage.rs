//! What is said about command lines that cannot be done.

use crate::{capbox, ran};

/// Each with the whole of what is printed.
const SNAPSHOTS: &[(&[&str], &str)] = &[
    (&[], "error: no command is given\nhint: `--help` lists the commands\n"),
    (&["rum"], "error: there is no command `rum`\nhint: did you mean `run`?\n"),
    (&["run"], "error: missing: `COMMAND`\nhint: usage: capbox run -- <COMMAND>...\n"),
    (&["run", "--"], "error: missing: `COMMAND`\nhint: usage: capbox run -- <COMMAND>...\n"),
    (&["run", "--", ""], "error: `command`: is empty\n"),
    (
        &["run", "echo", "hi"],
        "error: there is no argument `echo` here\nhint: usage: capbox run [OPTIONS] -- <COMMAND>...\n",
    ),
    (
        &["run", "--timeoot", "1s", "--", "true"],
        "error: there is no argument `--timeoot` here\nhint: did you mean `--timeout`?\n",
    ),
    (&["run", "--timeout"], "error: `--timeout` has no value\n"),
    (&["run", "--timeout", "0s", "--", "true"], "error: `--timeout`: `0s` must be greater than zero\n"),
    (&["run", "--timeout", "-1s", "--", "true"], "error: `--timeout`: `-1s` must be greater than zero\n"),
    (
        &["run", "--timeout", "5", "--", "true"],
        "error: `--timeout`: `5` has no unit; write for example `90s`, `5m` or `1.5h`\n",
    ),
    (&["run", "--ttl", "0s", "--", "true"], "error: `--ttl`: `0s` must be greater than zero\n"),
    (
        &["run", "--memory", "0", "--", "true"],
        "error: `--memory`: `0` must be at least one byte and at most 1024 PiB\n",
    ),
    (&["run", "--cpus", "0", "--", "true"], "error: `--cpus`: `0` is not a number greater than zero\n"),
    (
        &["run", "--pids", "-3", "--", "true"],
        "error: `--pids`: `-3` is not a whole number greater than zero\n",
    ),
    (
        &["run", "--mount", "/tmp:relative", "--", "true"],
        "error: `--mount`: the target `relative` must be an absolute path below `/`, without `..`\n",
    ),
    (&["run", "--mount", "/tmp", "--", "true"], "error: `--mount`: `/tmp` is not `SOURCE:TARGET[:ro]`\n"),
    (
        &["run", "--net", "http://x", "--", "true"],
        "error: `--net`: the rule `http://x` has no port number after `:`\n",
    ),
    (
        &["run", "--env", "hunter2", "--", "true"],
        "error: `--env`: there is no `=` in it\nhint: write `--env NAME=VALUE`\n",
    ),
    (&["run", "--env", "=hunter2", "--", "true"], "error: `env`: the name `` is empty\n"),
    (
        &["run", "--env", "A;B=hunter2", "--", "echo hi"],
        "error: `env`: the name `A;B` would be dropped by the shell; give the command as an argv, or use letters, \
         digits and `_`\n",
    ),
    (
        &["run", "-t", "--json", "--", "true"],
        "error: `--tty` cannot be used with `--json`\nhint: usage: capbox run --tty -- <COMMAND>...\n",
    ),
    (
        &["run", "--on", "nowhere://", "--", "true"],
        "error: `provider`: there is no provider `nowhere`\nhint: the providers are `local`, `memory`\n",
    ),
    (
        &["run", "--on", "not a uri", "--", "true"],
        "error: `uri`: there is no `://` in it\nhint: write `PROVIDER://TARGET?KEY=VALUE`, such as `local://` or \
         `memory://`\n",
    ),
    (&["exec", "x"], "error: missing: `COMMAND`\nhint: usage: capbox exec <ID> -- <COMMAND>...\n"),
    (
        &["files", "cat", "note"],
        "error: `ID:PATH`: `note` names no sandbox\nhint: write the sandbox's id, `:` and a path inside, such as \
         `ID:/tmp/note`\n",
    ),
    (
        &["files", "search", "x:/"],
        "error: missing: `--name`\nhint: usage: capbox files search --name <PATTERN> <ID:PATH>\n",
    ),
    (
        &["files", "write", "--mode", "9", "x:/"],
        "error: `--mode`: `9` is not a mode in octal, such as `755`\n",
    ),
    (
        &["create", "--label", "x"],
        "error: `--label`: there is no `=` in `x`\nhint: write `--label NAME=VALUE`\n",
    ),
    (
        &["caps", "nowhere"],
        "error: `provider`: there is no provider `nowhere`\nhint: the providers are `local`, `memory`\n",
    ),
    (
        &["plan", "--need", "telepathy"],
        "error: `--need`: no capability is called `telepathy`\nhint: `capbox caps` lists the rows\n",
    ),
    (
        &["plan", "--flag", "streams=wide"],
        "error: `flag`: `streams` is never `wide`\nhint: it is one of `separate`, `merged`\n",
    ),
    (
        &["plan", "--isolation", "steel"],
        "error: `--isolation`: `steel` is none of `unknown`, `process`, `container`, `gvisor`, `microvm`\n",
    ),
    (
        &["completions", "nosh"],
        "error: `SHELL`: `nosh` is not one of its values\nhint: did you mean `zsh`?\n",
    ),
];

/// B21, B118, B120 and their like: refused before anything is made, by name, with what to do.
#[test]
fn snapshots() {
    for (args, stderr) in SNAPSHOTS {
        let ran = ran(args);
        assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (125, "", *stderr), "{args:?}");
    }
}

/// B156: a value may be a secret.
#[test]
fn values_of_variables_are_not_shown() {
    for args in [
        &["run", "--env", "hunter2", "--", "true"][..],
        &["run", "--env", "A B=hunter2", "--", "true"],
        &["run", "--json", "--env", "A B=hunter2", "--", "true"],
        &["create", "--env", "=hunter2"],
        &["run", "--env", "TOKEN=hunter2", "--cwd", "/nope", "--", "true"],
        &["run", "--env", "TOKEN=hunter2", "--bogus", "--", "true"],
    ] {
        let ran = ran(args);
        assert_eq!(ran.code, 125);
        assert!(!format!("{ran:?}").contains("hunter2"), "{args:?}: {ran:?}");
    }
}

#[test]
fn what_is_not_supported_says_who_supports_it() {
    let ran = ran(&["run", "--on", "memory://", "-t", "--", "true"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (125, ""));
    let lines: Vec<&str> = ran.stderr.lines().collect();
    assert!(lines[0].starts_with("error: ") && lines[0].contains("exec.pty"), "{ran:?}");
    assert_eq!(lines[1], "hint: `exec.pty` is supported by `local`");
}

#[test]
fn the_default_provider_can_be_chosen() {
    let out = capbox(&["run", "--", "true"]).env("CAPBOX_ON", "nowhere://").output().expect("start");
    assert!(String::from_utf8_lossy(&out.stderr).contains("nowhere"));
    let out = capbox(&["run", "--json", "--", "true"]).env("CAPBOX_ON", "memory://").output().expect("start");
    let document: serde_json::Value = serde_json::from_slice(&out.stdout).expect("a document");
    assert_eq!(document["provider"], "memory");
}

#[test]
fn help_and_version() {
    assert_eq!(ran(&["--version"]).printed(), format!("capbox {}\n", env!("CARGO_PKG_VERSION")));
    let help = ran(&["--help"]).printed();
    let commands = [
        "run",
        "create",
        "exec",
        "attach",
        "kill",
        "logs",
        "ps",
        "rm",
        "reap",
        "cp",
        "files",
        "caps",
        "plan",
        "doctor",
        "completions",
    ];
    for command in commands {
        assert!(
            help.lines().any(|line| line.split_whitespace().next() == Some(command)),
            "{command}: {help}"
        );
        let of_command = ran(&[command, "--help"]).printed();
        assert!(of_command.contains("Usage: capbox"), "{of_command}");
    }
    assert!(!help.contains("\u{1b}["));
}

#[test]
fn messages_have_no_colour_unless_somebody_sees_it() {
    assert!(!ran(&["rum"]).stderr.contains('\u{1b}'));
}

/// A name may come from inside a sandbox: it must not make the terminal do anything.
#[test]
fn messages_give_a_terminal_no_orders() {
    let ran = ran(&["run", "--cwd", "/\u{1b}]0;title\u{7}\u{9b}31m", "--", "true"]);
    assert_eq!(ran.code, 125);
    assert!(ran.stderr.contains("title"), "{ran:?}");
    assert!(!ran.stderr.contains(['\u{1b}', '\u{7}', '\u{9b}']), "{ran:?}");
}
