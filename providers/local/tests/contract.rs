//! The contract suite, held against the local provider.

use std::fs;

use capbox_core::provider::{Result, Rows, Table};
use capbox_local::{Config, Local};
use capbox_testkit::oracle::Folder;
use capbox_testkit::{Fixture, Harness, Sample, Suite};

struct OnThisMachine;

impl Harness for OnThisMachine {
    fn rows(&self) -> &'static Rows {
        Local::ROWS
    }

    fn version(&self) -> String {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        format!("capbox-local {}, Linux {}", env!("CARGO_PKG_VERSION"), kernel.trim())
    }

    fn facts(&self) -> capbox_testkit::Facts {
        capbox_testkit::Facts::new()
            .sample(capbox_core::Capability::User, Sample::new("1234").shown_by("id -u", "1234\n"))
    }

    /// A state folder of its own: what other trials do is not seen in it.
    fn fixture(&self) -> Result<Fixture> {
        let state = tempfile::tempdir().expect("a temporary folder");
        let path = state.path().to_owned();
        let sandboxes = path.join("sandboxes");
        let config = Config::new().with_state(&path);
        let client = move || Ok(Local::configured(config.clone())?.into_any());
        // A file where the sandboxes' folder should be: nobody can say which sandboxes there are.
        let fault = move || {
            fs::rename(&sandboxes, sandboxes.with_extension("away")).expect("the folder is there");
            fs::write(&sandboxes, "").expect("a file in its place");
        };
        Ok(Fixture::new(client, Folder(path)).with_fault(fault).with(state))
    }
}

fn main() {
    Suite::new(OnThisMachine).main();
}
