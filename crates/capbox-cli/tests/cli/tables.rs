//! `capbox caps`, `plan`, `doctor`, and what is generated.

use std::process::Stdio;

use crate::{capbox, host, json, ran};

#[test]
fn caps_of_one_provider() {
    let document = json(&["caps", "local", "--json"]);
    let [provider] = document["providers"].as_array().expect("a list").as_slice() else {
        panic!("{document}")
    };
    assert_eq!(provider["provider"], "local");
    let row = |id: &str| {
        let rows = provider["rows"].as_array().expect("a list");
        rows.iter().find(|row| row["capability"] == id).unwrap_or_else(|| panic!("no row `{id}`"))
    };
    assert_eq!((&row("exec.run")["level"], &row("exec.run")["kind"]), (&"native".into(), &"call".into()));
    assert_eq!(row("exec.kill-process")["alias"], "killProcess");
    assert_eq!(row("exec.run")["alias"], serde_json::Value::Null);
    assert_eq!(row("network.egress-control")["security"], true);
    assert_eq!(row("exec.run")["effective"], "native");
    assert_eq!((&row("kind.vm")["level"], &row("kind.vm")["adapted"]), (&"unsupported".into(), &true.into()));
    assert_eq!(provider["flags"]["on_this_machine"], true);
    assert_eq!(provider["flags"]["orphan_ends"], "at-once");
    assert_eq!(provider["flags"]["isolation"], "container");

    let text = ran(&["caps", "local"]).printed();
    assert!(text.contains("network.egress-control †") && text.contains("orphan_ends"), "{text}");
}

#[test]
fn caps_by_uri_and_declared() {
    assert_eq!(json(&["caps", "memory://", "--json"])["providers"][0]["provider"], "memory");
    let declared = json(&["caps", "--declared", "--json"]);
    let providers = declared["providers"].as_array().expect("a list");
    assert!(providers.len() >= 2);
    assert!(!declared.to_string().contains("\"effective\""));
}

#[test]
fn nobody_reads_the_tables() {
    for args in [&["caps"][..], &["caps", "--json"], &["completions", "bash"], &["--help"]] {
        let mut child = capbox(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start");
        drop(child.stdout.take());
        let out = child.wait_with_output().expect("wait");
        // Where it was faster than we were, it has ended well.
        assert!(matches!(out.status.code(), Some(141 | 0)), "{args:?}: {out:?}");
        assert_eq!(String::from_utf8_lossy(&out.stderr), "", "{args:?}");
    }
}

#[test]
fn caps_side_by_side() {
    let text = ran(&["caps"]).printed();
    let head = text.lines().next().expect("a line");
    assert!(head.starts_with("ROW ") && head.contains("local") && head.contains("memory"), "{text}");
    let row = text.lines().find(|line| line.starts_with("kind.vm †")).expect("a row");
    assert!(row.contains("no"), "{row}");
}

#[test]
fn plan_picks_and_explains() {
    let fits = ran(&["plan", "--need", "pty"]);
    assert_eq!(fits.code, 0);
    assert!(fits.stdout.contains("local: fits\n  + exec.pty is native\n"), "{fits:?}");
    assert!(fits.stdout.contains("memory: does not fit\n  - "), "{fits:?}");

    let none = ran(&["plan", "--need", "gpu,pty", "--json"]);
    assert_eq!((none.code, none.stderr.as_str()), (1, ""));
    let document: serde_json::Value = serde_json::from_str(&none.stdout).expect("a document");
    assert_eq!(document["best"], serde_json::Value::Null);
    for candidate in document["candidates"].as_array().expect("a list") {
        assert_eq!(candidate["fits"], false);
        let refusals = candidate["refusals"].as_array().expect("a list");
        assert!(refusals.iter().any(|refusal| refusal["capability"] == "compute.gpu"), "{candidate}");
    }
}

#[test]
fn a_plan_without_needs_is_an_overview() {
    let overview = ran(&["plan"]);
    assert_eq!(overview.code, 0);
    let lines: Vec<&str> = overview.stdout.lines().collect();
    assert_eq!(
        lines[0].split_whitespace().collect::<Vec<_>>(),
        ["PROVIDER", "NATIVE", "EMULATED", "ISOLATION", "WHERE"]
    );
    assert!(
        lines.iter().any(|line| line.starts_with("local ") && line.contains("container")),
        "{overview:?}"
    );
    assert!(overview.stderr.starts_with("note: nothing is needed"), "{overview:?}");
}

/// What cannot be made separates nothing.
#[test]
fn doctor_claims_no_isolation_where_there_is_no_sandbox() {
    let doctor = |args: &[&str]| {
        let out = capbox(args).env("CAPBOX_STATE_DIR", "relative").output().expect("start");
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    let text = doctor(&["doctor"]);
    assert!(text.contains("local: cannot be used here: ") && text.contains("CAPBOX_STATE_DIR"), "{text}");
    assert!(!text.contains("isolation is `container`"), "{text}");
    let document: serde_json::Value =
        serde_json::from_str(&doctor(&["doctor", "--json"])).expect("a document");
    let local = of(&document, "local");
    assert_eq!(local["isolation"], serde_json::Value::Null);
    assert_eq!(local["error"]["kind"], "permission-denied");
}

#[test]
fn plan_by_flag_and_isolation() {
    let by_flag = json(&["plan", "--flag", "isolation=process", "--json"]);
    assert_eq!(by_flag["best"], "memory");
    let by_floor = json(&["plan", "--isolation", "container", "--json"]);
    let candidates = by_floor["candidates"].as_array().expect("a list");
    let fits = |id: &str| candidates.iter().any(|one| one["provider"] == id && one["fits"] == true);
    assert!(fits("local") && !fits("memory"), "{by_floor}");
    assert_eq!(ran(&["plan", "--isolation", "microvm"]).code, 1);
    let at_once = ["plan", "--flag", "orphan_ends=at-once", "--need", "pty,files.mount", "--json"];
    assert_eq!(json(&at_once)["best"], "local");
}

/// B171: what the isolation is, and what it is not.
#[test]
fn doctor_tells_the_truth() {
    let text = ran(&["doctor"]).printed();
    assert!(
        text.contains("isolation is `container`: namespaces") && text.contains("isolation is `process`"),
        "{text}"
    );
    assert!(text.contains("may run any program"), "{text}");
    let document = json(&["doctor", "--json"]);
    assert_eq!(of(&document, "local")["error"], serde_json::Value::Null);
}

/// What `doctor` says of a provider.
fn of<'a>(document: &'a serde_json::Value, provider: &str) -> &'a serde_json::Value {
    let providers = document["providers"].as_array().expect("a list");
    providers.iter().find(|one| one["provider"] == provider).expect("the provider")
}

#[test]
fn completions() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = ran(&["completions", shell]).printed();
        assert!(script.contains("capbox") && script.contains("timeout"), "{shell}");
    }
}

#[test]
fn man_pages() {
    let folder = host().join("man");
    ran(&["man".as_ref(), folder.as_os_str()]).printed();
    for page in ["capbox.1", "capbox-run.1", "capbox-files-watch.1"] {
        let text =
            std::fs::read_to_string(folder.join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
        assert!(text.contains(".SH NAME"), "{page}");
    }
}
