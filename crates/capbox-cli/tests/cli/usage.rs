//! What is said about command lines that cannot be done.

use crate::{capbox, ran};

/// Each with the whole of what is printed.
const SNAPSHOTS: &[(&[&str], &str)] = &[
    (&[], "error: no command is given\nhint: `--help` lists the commands\n"),
    (&["rum"], "error: there is no command `rum`\nhint: did you mean `run`, `resume`?\n"),
    (&["run"], "error: missing: `COMMAND`\nhint: usage: capbox run -- <COMMAND>...\n"),
    (&["run", "--"], "error: missing: `COMMAND`\nhint: usage: capbox run -- <COMMAND>...\n"),
    (&["run", "--", ""], "error: `command`: is empty\n"),
    (&["run", "echo", "hi"], "error: there is no argument `echo` here\nhint: put `--` before the command\n"),
    (
        &["run", "--timeout", "1s", "python3", "-c", "x"],
        "error: there is no argument `python3` here\nhint: put `--` before the command\n",
    ),
    (
        &["exec", "x", "ls", "-l"],
        "error: there is no argument `ls` here\nhint: put `--` before the command\n",
    ),
    (
        &["run", "-v", "/tmp:/work", "--", "true"],
        "error: there is no argument `-v` here\nhint: write `--mount SOURCE:TARGET[:ro]`, or `--volume VOLUME:TARGET`\n",
    ),
    (
        &["run", "-e", "A=1", "--", "true"],
        "error: there is no argument `-e` here\nhint: write `--env NAME=VALUE`\n",
    ),
    (
        &["run", "-w", "/tmp", "--", "true"],
        "error: there is no argument `-w` here\nhint: write `--cwd DIR`\n",
    ),
    (
        &["exec", "x", "-u", "root", "--", "true"],
        "error: there is no argument `-u` here\nhint: write `--user USER`\n",
    ),
    (
        &["create", "box"],
        "error: there is no argument `box` here\nhint: write `--name box` to name the sandbox\n",
    ),
    (&["list"], "error: there is no command `list`\nhint: `capbox ps` lists the sandboxes\n"),
    (&["delete", "x"], "error: there is no command `delete`\nhint: `capbox rm ID` destroys a sandbox\n"),
    (&["kill-all"], "error: there is no command `kill-all`\nhint: `capbox rm ID` destroys a sandbox\n"),
    (&["shell", "x"], "error: there is no command `shell`\nhint: write `capbox exec -it ID -- sh`\n"),
    (
        &["up", "x"],
        "error: there is no command `up`\nhint: `capbox create` makes a sandbox that stays, `capbox run -- \
         COMMAND` runs one command\n",
    ),
    (
        &["files", "read", "x:/note"],
        "error: there is no command `read`\nhint: write `capbox files cat ID:PATH`\n",
    ),
    (
        &["run", "-it", "--", "cat"],
        "error: `-t`: our stdin is not a terminal\nhint: leave out `-t` to send it in as it is, or `-i` to send \
         nothing in\n",
    ),
    (
        &["create", "--on", "memory"],
        "error: a sandbox of `memory` would end with this command\nhint: `capbox run` does all in one command; \
         sandboxes of `docker`, `local` stay\n",
    ),
    (
        &["run", "--on", "memory", "--cpus", "2", "--", "true"],
        "error: `--cpus` is not supported by `memory`: commands share the threads of the calling process\nhint: `--cpus` \
         is supported by `docker`\n",
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
    (
        &["run", "--mount", "/tmp", "--", "true"],
        "error: `--mount`: `/tmp` names one folder, and two are needed\nhint: write `SOURCE:TARGET[:ro]`, such as \
         `.:/work:ro`: a folder of this machine and its place inside\n",
    ),
    (
        &["run", "--mount", ":/work", "--", "true"],
        "error: `--mount`: the folder of this machine, the part before `:`, is empty\n",
    ),
    (
        &["run", "--mount", "/etc/passwd:/work", "--", "true"],
        "error: `--mount`: `/etc/passwd` is not a folder, and only folders can be mounted\nhint: mount the folder \
         that it is in\n",
    ),
    (
        &["run", "--mount", "/no/such:/work", "--", "true"],
        "error: `--mount`: there is no folder `/no/such` on this machine\n",
    ),
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
        &["run", "--on", "nowhere://", "--", "true"],
        "error: `provider`: there is no provider `nowhere`\nhint: the providers are `docker`, `local`, `memory`\n",
    ),
    (
        &["run", "--on", "not a uri", "--", "true"],
        "error: `uri`: there is no `://` in it\nhint: write `PROVIDER` or `PROVIDER://TARGET?KEY=VALUE`, such as \
         `local` or `memory://`\n",
    ),
    (&["exec", "x"], "error: missing: `COMMAND`\nhint: usage: capbox exec <ID> -- <COMMAND>...\n"),
    (
        &["files", "cat", "note"],
        "error: `ID:PATH`: `note` has no `:`, so it names no path of a sandbox\nhint: write `note:PATH`; `note:` \
         alone is the default folder of `note`\n",
    ),
    (
        &["files", "cat", "./a:b"],
        "error: `ID:PATH`: `./a:b` names no sandbox\nhint: write the sandbox's id, `:` and a path inside, such as \
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
        "error: `provider`: there is no provider `nowhere`\nhint: the providers are `docker`, `local`, `memory`\n",
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
    assert_eq!(
        ran.stderr,
        "error: `-t` is not supported by `memory`: the interpreter has no terminal\nhint: `-t` is supported by \
         `docker`, `local`\n"
    );
}

#[test]
fn what_is_not_there_yet_is_named_as_it_was_asked_for() {
    let ran = ran(&["run", "--net", "example.com", "--on", "memory", "--", "true"]);
    assert!(ran.stderr.starts_with("error: `--net HOST` is not supported by `memory`: "), "{ran:?}");
}

/// The id alone means the same as the URI without anything in it.
#[test]
fn a_provider_is_named_by_its_id() {
    for on in ["memory", "memory://"] {
        assert_eq!(ran(&["run", "--on", on, "--", "echo hi"]).printed(), "hi\n");
        assert_eq!(ran(&["caps", on]).printed(), ran(&["caps", "memory"]).printed());
    }
}

/// Who asks for documents gets one also where the command line is wrong.
#[test]
fn command_lines_that_are_wrong_have_a_document_too() {
    let run = ran(&["run", "--json", "--timeout", "5", "--", "true"]);
    assert_eq!(run.code, 125);
    let document: serde_json::Value = serde_json::from_str(&run.stdout).expect("a document");
    assert_eq!(
        (&document["cause"], &document["exit_code"], &document["error"]["kind"]),
        (&"failed".into(), &125.into(), &"invalid-argument".into())
    );
    for args in
        [&["ps", "--json", "--nope"][..], &["ps", "--json", "no-such"], &["plan", "--json", "--need", "x"]]
    {
        let ran = ran(args);
        assert_eq!(ran.code, 125, "{args:?}");
        let document: serde_json::Value = serde_json::from_str(&ran.stdout).expect("a document");
        assert!(
            document["error"]["message"].as_str().is_some_and(|message| ran.stderr.contains(message)),
            "{ran:?}"
        );
    }
    let both = ran(&["run", "-t", "--json", "--", "true"]);
    assert_eq!(both.code, 125);
    assert_eq!(
        both.stderr,
        "error: `--tty` cannot be used with `--json`\nhint: usage: capbox run --tty -- <COMMAND>...\n"
    );
    assert!(both.stdout.contains("\"invalid-argument\""), "{both:?}");
    // What is meant for the command is no wish of ours.
    assert_eq!(ran(&["run", "--on", "nowhere", "--", "echo", "--json"]).stdout, "");
}

#[test]
fn the_state_folder_is_told_and_checked() {
    for args in [&["--help"][..], &["help"]] {
        let ran = ran(args);
        assert!(ran.stdout.contains("CAPBOX_STATE_DIR") || ran.code == 125, "{ran:?}");
    }
    let with_state = |folder: &str| {
        let out = capbox(&["ps"]).env("CAPBOX_STATE_DIR", folder).output().expect("start");
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let hint = "hint: set `CAPBOX_STATE_DIR` to the absolute path of a folder of your own\n";
    assert_eq!(
        with_state("relative"),
        (
            Some(125),
            format!(
                "error: the folder that keeps sandboxes, `relative`, cannot be used: `CAPBOX_STATE_DIR` is not an \
                 absolute path\n{hint}"
            )
        )
    );
    if rustix::process::geteuid().is_root() {
        let folder = crate::host().join("of-another-user");
        std::fs::create_dir_all(&folder).expect("make a folder");
        std::os::unix::fs::chown(&folder, Some(12_345), Some(12_345)).expect("give it away");
        let shown = folder.canonicalize().expect("resolve");
        let told = format!(
            "error: the folder that keeps sandboxes, `{}`, cannot be used: it belongs to another user\n{hint}",
            shown.display()
        );
        assert_eq!(with_state(folder.to_str().expect("UTF-8")), (Some(125), told));
    }
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
