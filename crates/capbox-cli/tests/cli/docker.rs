//! Sandboxes of a Docker Engine, where tests are told of one: see `CONTRIBUTING.md`.

use std::env;

use super::{Ran, capbox};

/// The URI of the engine's test image; nothing where there is no engine, which the provider's own tests report.
fn on() -> Option<String> {
    let host = env::var("CAPBOX_TEST_DOCKER_HOST").ok()?;
    let image = env::var("CAPBOX_TEST_DOCKER_IMAGE").ok()?;
    Some(format!("docker://{image}?host={host}"))
}

/// What `capbox COMMAND --on URI ARGS` leaves.
fn ran(on: &str, command: &[&str], args: &[&str]) -> Ran {
    let args = [command, &["--on", on], args].concat();
    Ran::of(&capbox(&args).output().expect("run capbox"))
}

/// The one line that it prints.
#[track_caller]
fn line(on: &str, command: &[&str], args: &[&str]) -> String {
    ran(on, command, args).printed().trim_end().to_owned()
}

#[test]
fn commands_end_as_they_do_elsewhere() {
    let Some(on) = on() else { return };
    let run = |args: &[&str]| ran(&on, &["run"], args);
    assert_eq!(
        run(&["--", "echo out; echo err >&2; exit 42"]),
        Ran { code: 42, stdout: "out\n".to_owned(), stderr: "err\n".to_owned() }
    );
    assert_eq!(run(&["--", "sh", "-c", "kill -9 $$"]).code, 137);
    assert_eq!(run(&["--timeout", "1s", "--", "setsid sleep 300 & sleep 300"]).code, 124);
    assert_eq!(run(&["--", "no-such-program", "x"]).code, 127);
}

#[test]
fn a_sandbox_is_used_kept_and_copied_by_commands() {
    let Some(on) = on() else { return };
    let id = line(&on, &["create"], &["--net", "open", "--port", "8000", "--label", "cli=docker"]);
    assert!(ran(&on, &["ps"], &["--label", "cli=docker", "--json"]).printed().contains(&id));
    assert_eq!(line(&on, &["exec"], &[&id, "--", "echo kept > /kept; cat /kept"]), "kept");
    let url = line(&on, &["port"], &[&id, "8000"]);
    assert!(url.starts_with("http://127.0.0.1:"), "{url}");
    let undeclared = ran(&on, &["port"], &[&id, "8001"]);
    assert!(undeclared.code == 125 && undeclared.stderr.contains("--port"), "{undeclared:?}");

    assert_eq!(line(&on, &["pause"], &[&id]), "");
    let paused = ran(&on, &["exec"], &[&id, "--", "true"]);
    assert!(paused.code == 125 && paused.stderr.contains("capbox resume"), "{paused:?}");
    assert_eq!(line(&on, &["resume"], &[&id]), "");
    assert_eq!(line(&on, &["stop"], &[&id]), "");
    let stopped = ran(&on, &["exec"], &[&id, "--", "true"]);
    assert!(stopped.code == 125 && stopped.stderr.contains("capbox start"), "{stopped:?}");
    assert_eq!(line(&on, &["start"], &[&id]), "");
    assert!(ran(&on, &["metrics"], &["--json", &id]).printed().contains("\"memory\""));

    let snapshot = line(&on, &["snapshot", "create"], &["--name", "cli", &id]);
    assert!(ran(&on, &["snapshot", "ls"], &[]).printed().contains("cli"));
    let restored = line(&on, &["snapshot", "restore"], &[&snapshot]);
    let forks = line(&on, &["fork"], &["-n", "2", &id]);
    let forks: Vec<&str> = forks.lines().collect();
    assert_eq!(forks.len(), 2);
    for copy in [restored.as_str(), forks[0], forks[1]] {
        assert_eq!(line(&on, &["exec"], &[copy, "--", "cat /kept"]), "kept");
    }
    assert_eq!(line(&on, &["snapshot", "rm"], &[&snapshot]), "");
    assert_eq!(line(&on, &["rm"], &[&id, &restored, forks[0], forks[1]]), "");
    assert!(!ran(&on, &["ps"], &["--json"]).printed().contains(&id));
}

#[test]
fn volumes_outlive_sandboxes() {
    let Some(on) = on() else { return };
    assert_eq!(line(&on, &["volume", "create"], &["cli-volume"]), "cli-volume");
    assert_eq!(line(&on, &["run"], &["--volume", "cli-volume:/v", "--", "echo x > /v/x"]), "");
    assert_eq!(line(&on, &["run"], &["--volume", "cli-volume:/v:ro", "--", "cat /v/x"]), "x");
    assert!(ran(&on, &["volume", "ls"], &[]).printed().contains("cli-volume"));
    assert_eq!(line(&on, &["volume", "rm"], &["cli-volume"]), "");
    let gone = ran(&on, &["run"], &["--volume", "cli-volume:/v", "--", "true"]);
    assert!(gone.code == 125 && gone.stderr.contains("capbox volume create"), "{gone:?}");
}

#[test]
fn what_an_engine_lacks_is_said_in_the_words_of_the_command_line() {
    let Some(on) = on() else { return };
    let allow = ran(&on, &["run"], &["--net", "example.com", "--", "true"]);
    assert!(
        allow.code == 125 && allow.stderr.contains("`--net HOST` is not supported by `docker`"),
        "{allow:?}"
    );
    let missing = ran(&on, &["run"], &["--image", "no-such.invalid/image:1", "--", "true"]);
    assert!(missing.code == 125 && missing.stderr.contains("no-such.invalid/image:1"), "{missing:?}");
    let nobody = ran("docker://x?host=unix:///no/such/socket", &["run"], &["--", "true"]);
    assert!(nobody.code == 125 && nobody.stderr.contains("DOCKER_HOST"), "{nobody:?}");
}
