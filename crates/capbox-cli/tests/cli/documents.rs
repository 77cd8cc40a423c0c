//! `docs/cli-json.md` and the documents, held to each other.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::{Sandbox, ran, ran_with_stdin};

/// What the page says of one kind of document: its fields, and whether they are always there.
type Described = BTreeMap<String, Presence>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Always,
    Optional,
}

/// The fields that the section `heading` describes.
fn described(heading: &str) -> Described {
    let page = include_str!("../../../../docs/cli-json.md");
    let section = page
        .split("\n## ")
        .find(|section| section.starts_with(heading))
        .unwrap_or_else(|| panic!("the page has no section `{heading}`"));
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| {
        let (field, rest) = row.split_once("` |").expect("a field");
        let optional = rest.contains("| optional");
        (field.to_owned(), if optional { Presence::Optional } else { Presence::Always })
    })
    .collect()
}

/// The fields of a document, as the page writes them. `errors` are described in a section of their own.
fn fields(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            if path.ends_with("error") || path.ends_with("refusals[]") {
                check("Errors", value);
                return;
            }
            for (name, inner) in object {
                let field = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                if !matches!(inner, Value::Array(_)) || name == "pids" || name == "capabilities" {
                    found.insert(field.clone());
                }
                fields(inner, &field, found);
            }
        }
        Value::Array(all) if !path.ends_with("pids") && !path.ends_with("capabilities") => {
            found.insert(format!("{path}[]"));
            for inner in all {
                fields(inner, &format!("{path}[]"), found);
            }
        }
        _ => {}
    }
}

/// Hold a document to the section `heading`.
#[track_caller]
fn check(heading: &str, document: &Value) {
    let described = described(heading);
    let mut found = BTreeSet::new();
    fields(document, "", &mut found);
    let maps: Vec<&str> = described.keys().filter_map(|field| field.strip_suffix(".*")).collect();
    let in_a_map =
        |field: &str| maps.iter().any(|map| field == *map || field.starts_with(&format!("{map}.")));
    for field in &found {
        assert!(described.contains_key(field) || in_a_map(field), "{heading}: `{field}` is not described");
    }
    for (field, presence) in &described {
        let parent = field.rsplit_once('.').map(|(parent, _)| parent);
        let has_parent = parent.is_none_or(|parent| found.contains(parent) && !is_null(document, parent));
        if *presence == Presence::Always && has_parent && !field.ends_with(".*") {
            assert!(found.contains(field), "{heading}: `{field}` is missing in {document}");
        }
    }
}

fn is_null(document: &Value, path: &str) -> bool {
    document.pointer(&format!("/{}", path.replace("[]", "/0").replace('.', "/"))).is_none_or(Value::is_null)
}

#[track_caller]
fn document(args: &[&str]) -> Value {
    let ran = ran(args);
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{args:?}: {error}\n{ran:?}"))
}

const RUN: &str = "`capbox run --json`";

#[test]
fn runs() {
    check(RUN, &document(&["run", "--json", "--", "echo hi"]));
    check(RUN, &document(&["run", "--json", "--", "printf '\\377'; kill -9 $$"]));
    let failed = document(&["run", "--json", "--", "/no/such/program", "x"]);
    assert_eq!((&failed["cause"], &failed["exit_code"]), (&"failed".into(), &127.into()));
    check(RUN, &failed);
    let refused = document(&["run", "--json", "--on", "memory://", "--user", "x", "--", "true"]);
    assert_eq!((&refused["exit_code"], &refused["error"]["kind"]), (&125.into(), &"not-supported".into()));
    check(RUN, &refused);
    check(RUN, &document(&["run", "--json", "--no-such-option", "--", "true"]));
}

#[test]
fn failures() {
    check("Failures", &document(&["ps", "--json", "no-such-sandbox"]));
    check("Failures", &document(&["files", "ls", "--json", "no-such-sandbox:"]));
    check("Failures", &document(&["logs", "--json", "no-such-sandbox"]));
    check("Failures", &document(&["caps", "--json", "--no-such-option"]));
}

#[test]
fn sandboxes_and_processes() {
    let sandbox = Sandbox::create_with(&["--label", "a=b"]);
    let id = sandbox.id();
    ran(&["exec", "-d", id, "--", "echo hi; printf '\\377'"]).printed();
    let listed = document(&["ps", "--json"]);
    assert!(listed.to_string().contains(id));
    check("`capbox ps --json`", &listed);
    check("`capbox ps ID --json`", &document(&["ps", "--json", id]));
    let logs = ran(&["logs", "--json", "--follow", id]).printed();
    let lines: Vec<Value> =
        logs.lines().map(|line| serde_json::from_str(line).expect("a document")).collect();
    assert_eq!(lines.last().expect("a line")["event"], "exited");
    for line in &lines {
        check("`capbox logs --json`", line);
    }
}

#[test]
fn files() {
    let sandbox = Sandbox::create();
    ran_with_stdin(&["files", "write", &sandbox.at("/tmp/note")], b"text \xff\n").printed();
    sandbox.exec(&["ln -s note /tmp/link"]);
    check("`capbox files ls --json`", &document(&["files", "ls", "--json", &sandbox.at("/tmp")]));
    check(
        "`capbox files search --json`",
        &document(&["files", "search", "--json", "--text", "tex", &sandbox.at("/tmp")]),
    );
    check(
        "`capbox files search --json`",
        &document(&["files", "search", "--json", "--name", "li*", &sandbox.at("/tmp")]),
    );
}

#[test]
fn tables() {
    check("`capbox caps --json`", &document(&["caps", "--json"]));
    check("`capbox caps --json`", &document(&["caps", "--declared", "--json"]));
    check("`capbox plan --json`", &document(&["plan", "--need", "gpu,run", "--json"]));
    check("`capbox doctor --json`", &document(&["doctor", "--json"]));
}
