//! The workspace keeps its own rules.

use std::path::Path;

use capbox_testkit::architecture::check;

#[test]
fn the_workspace_keeps_its_rules() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).canonicalize().unwrap();
    let violations = check(here.ancestors().nth(2).unwrap()).unwrap();
    let lines: Vec<String> = violations.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "{}", lines.join("\n"));
}
