//! The contract of every row of the shelf's table.

use capbox_core::api::Client;
use capbox_core::provider::v1::{Result, Rows, Table};
use capbox_testkit::oracle::Listed;
use capbox_testkit::{Facts, Fixture, Harness, Inside, Suite};
use external_provider::Shelf;

struct OfShelf;

impl Harness for OfShelf {
    fn rows(&self) -> &'static Rows {
        Shelf::ROWS
    }

    fn version(&self) -> String {
        format!("external-provider {}", env!("CARGO_PKG_VERSION"))
    }

    fn facts(&self) -> Facts {
        Facts::new().inside(Inside { bytes: true, ..Inside::INTERPRETER })
    }

    fn fixture(&self) -> Result<Fixture> {
        let store = Shelf::default();
        let client = move || Ok(Client::new(store.clone()).into_any());
        let sees = client()?;
        Ok(Fixture::new(client, Listed(sees)))
    }
}

fn main() {
    Suite::new(OfShelf).main();
}
