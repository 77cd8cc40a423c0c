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

/// B200: a script whose interpreter is missing is there, and cannot be executed.
#[test]
fn a_script_without_its_interpreter() {
    let sandbox = Sandbox::create();
    sandbox.exec(&["printf '#!/no/such\\n' > script; chmod +x script"]);
    let ran = ran(&["exec", sandbox.id(), "--", "./script", "x"]);
    assert_eq!(ran.code, 126);
    assert_eq!(
        ran.stderr,
        "error: `./script` cannot be executed: the interpreter that its first line names is not there (on `local`)\n"
    );
}

#[test]
fn rm_goes_on_after_a_failure() {
    let sandbox = Sandbox::create();
    let ran = ran(&["rm", "no-such-sandbox", sandbox.id()]);
    assert_eq!(ran.code, 125);
    assert_eq!(
        ran.stderr,
        "error: there is no sandbox `no-such-sandbox` (on `local`)\nhint: `capbox ps` lists the sandboxes\n"
    );
    assert!(!json(&["ps", "--json"]).to_string().contains(sandbox.id()));
}

#[test]
fn a_name_is_created_once() {
    let first = Sandbox::create_with(&["--name", "named-once"]);
    let again = ran(&["create", "--name", "named-once"]);
    assert_eq!((again.code, again.stdout.trim_end()), (0, first.id()));
    assert_eq!(again.stderr, "note: it was there already, and is as it was created\n");
    let listed = json(&["ps", "--json"]);
    let all = listed["sandboxes"].as_array().expect("a list");
    assert!(all.iter().any(|info| info["name"] == "named-once" && info["id"] == first.id()), "{listed}");
    let without = Sandbox::create();
    let listed = json(&["ps", "--json"]);
    let all = listed["sandboxes"].as_array().expect("a list");
    let info = all.iter().find(|info| info["id"] == without.id()).expect("it is listed");
    assert_eq!(info["name"], serde_json::Value::Null);
}

#[test]
fn the_end_of_a_life() {
    let id = ran(&["create", "--ttl", "1s"]).printed();
    let id = id.trim_end();
    eventually("a sandbox ends with its ttl", || ran(&["exec", id, "--", "true"]).code == 125);
    let gone = ran(&["run", "--ttl", "0.5s", "--", "sleep 308.5"]);
    assert_eq!(gone.code, 125);
    assert!(gone.stderr.contains("its time to live was up (on `local`)\nhint: "), "{gone:?}");
    assert!(gone.stderr.contains("--ttl"), "{gone:?}");
    assert!(!is_running("308.5"));

    let id = ran(&["create", "--ttl", "4s"]).printed();
    let id = id.trim_end();
    let cut = ran(&["exec", id, "--", "echo up; sleep 308.5"]);
    assert_eq!((cut.code, cut.stdout.as_str()), (125, "up\n"));
    let told = format!("error: the sandbox `{id}` is gone: its time to live was up (on `local`)\n");
    assert!(cut.stderr.starts_with(&told), "{cut:?}");
}

/// Who removes a sandbox has not let its time run out.
#[test]
fn a_sandbox_that_is_removed_is_only_gone() {
    let sandbox = Sandbox::create();
    let child = crate::capbox(&["exec", sandbox.id(), "--", "echo up; sleep 310.5"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("start");
    eventually("it runs", || {
        is_running("310.5") && ran(&["ps", sandbox.id()]).stdout.contains("sleep 310.5")
    });
    ran(&["rm", sandbox.id()]).printed();
    let out = child.wait_with_output().expect("wait");
    let told = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(
        told.starts_with(&format!("error: the sandbox `{}` is gone (on `local`)\n", sandbox.id())),
        "{told}"
    );
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
    for command in ["kill", "logs", "attach"] {
        let unknown = ran(&[command, id, "nope"]);
        assert_eq!(unknown.code, 125);
        assert_eq!(
            unknown.stderr,
            format!(
                "error: there is no process `nope` (on `local`)\nhint: `capbox ps {id}` lists its processes\n"
            ),
            "{command}"
        );
    }
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
