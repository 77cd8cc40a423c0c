//! Sandboxes that outlive the command line, and the processes in them.

use std::path::Path;

use crate::{STATE, Sandbox, eventually, is_running, json, ran, ran_with_stdin};

#[test]
fn create_exec_ps_rm() {
    let sandbox = Sandbox::create_with(&["--label", "of=create-exec-ps-rm", "--env", "A=from create"]);
    let id = sandbox.id();
    assert_eq!(sandbox.exec(&["echo $A; echo kept > note"]), "from create\n");
    assert_eq!(sandbox.exec(&["cat", "note"]), "kept\n");
    assert_eq!(ran(&["exec", "--env", "A=from exec", id, "--", "echo $A; exit 3"]).code, 3);

    let listed = json(&["ps", "--json", "--label", "of=create-exec-ps-rm"]);
    let [info] = listed["sandboxes"].as_array().expect("a list").as_slice() else { panic!("{listed}") };
    assert_eq!(
        (&info["id"], &info["state"], &info["detached"]),
        (&id.into(), &"running".into(), &true.into())
    );
    assert!(info["ttl_left"].as_f64().is_some_and(|left| left > 200.0 && left <= 300.0), "{info}");
    let created = info["created"].as_str().expect("a time");
    assert!(created.ends_with('Z') && created.len() == 20, "{created}");
    let table = ran(&["ps", "--label", "of=create-exec-ps-rm"]).printed();
    assert!(
        table.starts_with("ID ") && table.contains(id) && table.contains("of=create-exec-ps-rm"),
        "{table}"
    );

    assert_eq!(ran(&["rm", id]).printed(), "");
    assert_eq!(
        json(&["ps", "--json", "--label", "of=create-exec-ps-rm"])["sandboxes"].as_array().map(Vec::len),
        Some(0)
    );
}

/// B203: gone is gone, whoever asks.
#[test]
fn what_is_gone_is_not_found() {
    let sandbox = Sandbox::create();
    let id = sandbox.id();
    ran(&["rm", id]).printed();
    let at = sandbox.at("/etc/passwd");
    for args in [
        vec!["exec", id, "--", "true"],
        vec!["ps", id],
        vec!["kill", id, "p1"],
        vec!["logs", id, "p1"],
        vec!["attach", id, "p1"],
        vec!["files", "cat", &at],
        vec!["cp", &at, "/dev/null"],
        vec!["rm", id],
    ] {
        let ran = ran(&args);
        assert_eq!((ran.code, ran.stdout.as_str()), (125, ""), "{args:?}");
        assert!(
            ran.stderr.contains(id) && ran.stderr.ends_with("hint: `capbox ps` lists the sandboxes\n"),
            "{args:?}: {ran:?}"
        );
    }
}

#[test]
fn rm_goes_on_after_a_failure() {
    let sandbox = Sandbox::create();
    let ran = ran(&["rm", "no-such-sandbox", sandbox.id()]);
    assert_eq!(ran.code, 125);
    assert_eq!(
        ran.stderr,
        "error: there is no sandbox `no-such-sandbox`\nhint: `capbox ps` lists the sandboxes\n"
    );
    assert!(!json(&["ps", "--json"]).to_string().contains(sandbox.id()));
}

#[test]
fn a_name_is_created_once() {
    let first = Sandbox::create_with(&["--name", "named-once"]);
    let again = ran(&["create", "--name", "named-once"]);
    assert_eq!((again.code, again.stdout.trim_end()), (0, first.id()));
    assert_eq!(again.stderr, "note: it was there already, and is as it was created\n");
}

#[test]
fn the_end_of_a_life() {
    let id = ran(&["create", "--ttl", "1s"]).printed();
    let id = id.trim_end();
    eventually("a sandbox ends with its ttl", || ran(&["exec", id, "--", "true"]).code == 125);
    let gone = ran(&["run", "--ttl", "0.5s", "--", "sleep 308.5"]);
    assert_eq!(gone.code, 125);
    assert!(gone.stderr.contains("error: ") && gone.stderr.contains("--ttl"), "{gone:?}");
    assert!(!is_running("308.5"));
}

#[test]
fn a_long_timeout_needs_no_ttl() {
    let document = json(&["run", "--json", "--timeout", "20m", "--", "true"]);
    assert_eq!(document["cause"], "exited");
}

/// B30, B31, B59, B70: found again by its id, replayed, killed as a whole.
#[test]
fn background_processes() {
    let sandbox = Sandbox::create();
    let id = sandbox.id();
    let process =
        ran(&["exec", "-d", id, "--", "echo one; echo two >&2; setsid sleep 309.5 & sleep 309.5"]).printed();
    let process = process.trim_end();
    eventually("it has printed", || ran(&["logs", id, process]).stderr == "two\n");
    let logs = ran(&["logs", id, process]);
    assert_eq!((logs.code, logs.stdout.as_str(), logs.stderr.as_str()), (0, "one\n", "two\n"));
    assert_eq!(ran(&["logs", "--after", "8", id, process]).printed(), "");
    assert_eq!(ran(&["logs", id]).stdout, "one\n");

    let listed = json(&["ps", "--json", id]);
    let [info] = listed["processes"].as_array().expect("a list").as_slice() else { panic!("{listed}") };
    assert_eq!(
        (&info["id"], &info["state"], &info["background"]),
        (&process.into(), &"running".into(), &true.into())
    );
    assert!(ran(&["ps", id]).printed().contains("running"));

    assert_eq!(ran(&["kill", id, process]).printed(), "");
    assert!(!is_running("309.5"));
    let again = ran(&["kill", id, process]);
    assert_eq!((again.code, again.stderr), (0, format!("note: `{process}` had ended already\n")));
    let unknown = ran(&["kill", id, "nope"]);
    assert_eq!(unknown.code, 125);
    assert!(unknown.stderr.contains("nope"), "{unknown:?}");
}

#[test]
fn signals_to_processes() {
    let sandbox = Sandbox::create();
    let id = sandbox.id();
    let process = ran(&[
        "exec",
        "-d",
        id,
        "--",
        "trap 'echo caught; exit 5' USR1; echo up; while :; do sleep 0.05; done",
    ])
    .printed();
    let process = process.trim_end();
    eventually("it is up", || ran(&["logs", id, process]).stdout == "up\n");
    ran(&["kill", "--signal", "USR1", id, process]).printed();
    eventually("it has caught the signal", || ran(&["logs", id, process]).stdout == "up\ncaught\n");
    eventually("it has ended", || json(&["ps", "--json", id])["processes"][0]["code"] == 5);
    let wrong = ran(&["kill", "--signal", "NOPE", id, process]);
    assert_eq!(wrong.code, 125);
    assert!(wrong.stderr.contains("NOPE"), "{wrong:?}");
}

#[test]
fn following_a_process() {
    let sandbox = Sandbox::create();
    let id = sandbox.id();
    let process = ran(&["exec", "-d", id, "--", "echo one; sleep 0.5; echo two; exit 6"]).printed();
    let process = process.trim_end();
    assert_eq!(ran(&["logs", "--follow", id, process]).printed(), "one\ntwo\n");
    let lines = ran(&["logs", "--json", "--after", "4", id, process]).printed();
    let first: serde_json::Value =
        serde_json::from_str(lines.lines().next().expect("a line")).expect("a document");
    assert_eq!(
        (&first["stream"], &first["position"], &first["text"]),
        (&"stdout".into(), &4.into(), &"two\n".into())
    );
}

#[test]
fn attaching_to_a_process() {
    let sandbox = Sandbox::create();
    let id = sandbox.id();
    let process =
        ran(&["exec", "-d", "-i", id, "--", "while read x; do echo got $x; done; exit 7"]).printed();
    let process = process.trim_end();
    let attached = ran_with_stdin(&["attach", "-i", id, process], b"a\nb\n");
    assert_eq!((attached.code, attached.stdout.as_str()), (7, "got a\ngot b\n"));

    let without = ran(&["exec", "-d", id, "--", "sleep 2"]).printed();
    let refused = ran(&["attach", "-i", id, without.trim_end()]);
    assert_eq!(refused.code, 125);
    assert!(refused.stderr.contains("hint: start it with `capbox exec -d -i`"), "{refused:?}");
}

#[test]
fn processes_are_named_where_there_are_several() {
    let sandbox = Sandbox::create();
    let id = sandbox.id();
    assert_eq!(ran(&["logs", id]).code, 125);
    let first = ran(&["exec", "-d", id, "--", "sleep 5"]).printed();
    let second = ran(&["exec", "-d", id, "--", "sleep 5"]).printed();
    let ran = ran(&["logs", id]);
    assert_eq!(ran.code, 125);
    assert!(ran.stderr.contains(first.trim_end()) && ran.stderr.contains(second.trim_end()), "{ran:?}");
}

/// B150: each gets its own.
#[test]
fn many_at_once() {
    let sandbox = Sandbox::create();
    let id = sandbox.id();
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..10)
            .map(|i| {
                scope.spawn(move || (i, ran(&["exec", id, "--", &format!("sleep 0.1; echo {i}; exit {i}")])))
            })
            .collect();
        for one in all {
            let (i, ran) = one.join().expect("run");
            assert_eq!((ran.code, ran.stdout), (i, format!("{i}\n")));
        }
    });
}

#[test]
fn reap_takes_nothing_that_is_wanted() {
    let sandbox = Sandbox::create();
    let reaped = ran(&["reap"]).printed();
    assert!(!reaped.contains(sandbox.id()));
    assert_eq!(sandbox.exec(&["echo alive"]), "alive\n");
}

/// The state folder is that of this test run: nothing was made elsewhere.
#[test]
fn sandboxes_are_kept_where_we_said() {
    let sandbox = Sandbox::create();
    assert!(Path::new(STATE).join("sandboxes").join(sandbox.id()).exists());
}
