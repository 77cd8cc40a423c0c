//! The contract suite, held against the memory provider.

use capbox_core::provider::{Result, Rows, Table};
use capbox_memory::Memory;
use capbox_testkit::oracle::Listed;
use capbox_testkit::{Facts, Fixture, Harness, Inside, Suite};

struct InMemory;

const NAMES: &str = "the interpreter refuses paths with control characters, which `files` does not";
const LEFT_OUT: &[(&str, &str)] = &[
    ("files.write/b81_odd_names_are_exact", NAMES),
    ("files.tree/b93_a_tree_goes_in_and_out_whole", NAMES),
    ("exec.cwd/a_command_starts_there", NAMES),
];

impl Harness for InMemory {
    fn rows(&self) -> &'static Rows {
        Memory::ROWS
    }

    fn version(&self) -> String {
        format!("capbox-memory {}", env!("CARGO_PKG_VERSION"))
    }

    fn facts(&self) -> Facts {
        let mut inside = Inside::INTERPRETER;
        inside.bytes = true;
        Facts::new().inside(inside).left_out(LEFT_OUT)
    }

    /// A store of its own; nothing is left elsewhere.
    fn fixture(&self) -> Result<Fixture> {
        let client = Memory::new().into_any();
        let same = client.clone();
        Ok(Fixture::new(move || Ok(same.clone()), Listed(client)))
    }
}

fn main() {
    Suite::new(InMemory).main();
}
