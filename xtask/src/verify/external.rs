//! Promises to those who keep a provider elsewhere.

use super::{Promise, Trial};
use crate::tools::{Result, cargo, root, run, target};

pub(super) const PROMISES: &[Promise] = &[("external-provider-survives-a-new-row", survives_a_new_row)];

/// A provider in a workspace of its own compiles, passes its contract, and goes on doing so when a row is added.
fn survives_a_new_row(_: &Trial) -> Result {
    let external = root().join("examples/external-provider");
    run(cargo()
        .current_dir(&external)
        .env("CARGO_TARGET_DIR", target().join("external"))
        .args(["test", "--quiet"]))
}
