//! New rows do not break providers kept elsewhere, and are not forgotten here.

use std::path::Path;

use capbox_testkit::bridge::drill;

#[test]
fn new_rows_break_nobody_elsewhere_and_are_not_forgotten_here() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).canonicalize().unwrap();
    let shown = drill(here.ancestors().nth(2).unwrap()).unwrap();
    assert_eq!(shown.answers, "meta.drill: not-adapted\nmeta.drill-call: not-adapted\n");
    let missing =
        "not all trait items implemented, missing: `SnapshotDelete`, `PrepareImage`, `DrillCall`, `Drill`";
    assert!(shown.in_workspace.contains(missing), "{}", shown.in_workspace);
    let contract = "the row `capbox_core::cap::DrillCall` has no contract";
    assert!(shown.suite.contains(contract), "{}", shown.suite);
}
