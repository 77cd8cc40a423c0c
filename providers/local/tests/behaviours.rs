//! Behaviours of the local provider that the contract suite does not cover, each with its number.

use std::fs;
use std::os::unix::fs::symlink;

use capbox_core::provider::*;
use capbox_local::{Config, Local};

type Sandbox = capbox_core::api::Sandbox<Local>;

/// A client with a state folder of its own, which the returned guard removes.
fn client() -> (Client<Local>, tempfile::TempDir) {
    let state = tempfile::tempdir().expect("a temporary folder");
    (Local::configured(Config::new().with_state(state.path())).expect("a client"), state)
}

async fn sandbox() -> (Sandbox, tempfile::TempDir) {
    let (client, state) = client();
    (client.create().await.expect("a sandbox"), state)
}

/// B98: a copy to `out` writes nothing to its neighbour `out-evil`, whatever the names and links inside say.
#[tokio::test]
async fn b98_a_neighbour_with_a_longer_name_is_no_part_of_the_target() {
    let (sandbox, state) = sandbox().await;
    let (out, evil) = (state.path().join("out"), state.path().join("out-evil"));
    fs::create_dir(&evil).unwrap();
    sandbox
        .exec(format!(
            "mkdir t && cd t && echo x > f && ln -s {evil} up && ln -s ../out-evil side",
            evil = evil.display()
        ))
        .await
        .unwrap();
    sandbox.files().download_tree("t", &out).await.unwrap();
    assert_eq!(fs::read(out.join("f")).unwrap(), b"x\n");
    assert!(fs::symlink_metadata(out.join("up")).unwrap().is_symlink(), "links stay links");
    assert_eq!(fs::read_dir(&evil).unwrap().count(), 0);
}

/// B100: a state folder that is reached by a link is the same by both spellings.
#[tokio::test]
async fn b100_the_state_folder_may_be_a_link() {
    let folder = tempfile::tempdir().unwrap();
    let (real, link) = (folder.path().join("real"), folder.path().join("link"));
    fs::create_dir(&real).unwrap();
    symlink(&real, &link).unwrap();
    let by_link = Local::configured(Config::new().with_state(&link)).unwrap();
    let by_name = Local::configured(Config::new().with_state(&real)).unwrap();
    let sandbox = by_link.create().name("one").await.unwrap();
    sandbox.files().write("f", "x").await.unwrap();
    let same = by_name.connect("one").await.unwrap();
    assert_eq!(same.files().read("f").await.unwrap(), "x");
    sandbox.exec("ln -s /etc/passwd l").await.unwrap();
    let inside = same.files().read_text("l").await.unwrap();
    assert!(inside.contains("/home/user"), "the link leads to the sandbox's own file: {inside}");
}

/// B157: what is secret in a URI, in an environment or in input shows in no error, nor in `Debug`.
#[tokio::test]
async fn b157_errors_show_no_secret() {
    let secret = "hunter2-secret";
    let uri = |text: String| text.parse::<Uri>().map_err(|e| format!("{e} {e:?}"));
    let uri = uri(format!("local://?token={secret}")).expect("well-formed");
    assert!(!format!("{uri:?}").contains(secret));
    let refused = (capbox_local::PROVIDER.open)(uri).expect_err("an unknown key");
    assert!(!format!("{refused} {refused:?}").contains(secret));

    let (sandbox, _state) = sandbox().await;
    for wrong in ["A=B", ""] {
        let exec = sandbox.exec(["true"]).env(wrong, secret).input(secret);
        assert!(!format!("{exec:?}").contains(secret), "`Debug` of a command");
        let error = exec.await.expect_err("a name that is none");
        assert!(!format!("{error} {error:?}").contains(secret));
    }
    let error = sandbox.exec(["no-such-program"]).env("TOKEN", secret).await.expect_err("not there");
    assert_eq!(error.kind(), ErrorKind::ProgramNotFound);
    assert!(!format!("{error} {error:?}").contains(secret));
}

/// What this machine can do is found by trying, and leaves nothing.
#[tokio::test]
async fn the_probe_tries_and_leaves_nothing() {
    let (client, state) = client();
    let lowered = client.probe().await.expect("sandboxes can be made here");
    for (capability, _, reason) in lowered.iter() {
        assert!(!reason.is_empty(), "{capability}");
    }
    assert_eq!(fs::read_dir(state.path().join("sandboxes")).unwrap().count(), 0);
}

/// The mark by which the processes of a job are found is not given to the next job while a kill still looks for it.
#[tokio::test]
async fn a_kill_reaches_no_later_command() {
    let (sandbox, _state) = sandbox().await;
    for round in 0..200 {
        let doomed = sandbox.spawn("echo up; sleep 30 & sleep 30").await.unwrap();
        drop(doomed);
        for _ in 0..4 {
            let output = sandbox.exec(["sh", "-c", "exit 3"]).await.unwrap();
            assert_eq!(output.status, ExitStatus::Exited(3), "in round {round}");
        }
    }
}
