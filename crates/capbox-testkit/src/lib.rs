//! What proves a capability table.
//!
//! A provider's table is a list of promises; the **contract suite** holds the provider to each. It is generated
//! from the one list of rows, so a row without a contract does not compile. Per provider it yields one named trial
//! per row (`local::exec.run`), per observable flag (`local::flag.streams`) and for what every provider has
//! (`local::base.lease`). A row that is there must do what it promises, shown by an observed effect; a row that is
//! not there must be refused with the table's own reason, and an [oracle] must see that nothing happened.
//!
//! # The test of a provider
//!
//! `Cargo.toml` has `[[test]] name = "contract"` with `harness = false`, and `tests/contract.rs` is:
//!
//! ```ignore
//! use capbox_core::api::Client;
//! use capbox_core::provider::{Result, Rows, Table};
//! use capbox_testkit::{Fixture, Harness, Suite, oracle::Folder};
//!
//! struct Local;
//!
//! impl Harness for Local {
//!     fn rows(&self) -> &'static Rows {
//!         <capbox_local::Local as Table>::ROWS
//!     }
//!     fn version(&self) -> String {
//!         format!("capbox-local {}", env!("CARGO_PKG_VERSION"))
//!     }
//!     fn fixture(&self) -> Result<Fixture> {
//!         let state = tempfile::tempdir().expect("a temporary folder"); // an account of its own for each trial
//!         let path = state.path().to_owned();
//!         let client = { let path = path.clone(); move || Ok(Client::new(capbox_local::Local::at(&path)?).into_any()) };
//!         Ok(Fixture::new(client, Folder(path)).with(state))
//!     }
//! }
//!
//! fn main() {
//!     Suite::new(Local).main();
//! }
//! ```
//!
//! Everything else has a default: [`Facts`] says, as data, what is inside a sandbox and what is left out and why;
//! [`Fixture`] may add a [request recorder](oracle::Recorder), a fault and a virtual clock. The arguments are those
//! of any Rust test (`cargo test --test contract exec.run`). Evidence is written as JSON, see [`evidence`].
//!
//! Beside the suite: [`table_with!`] for tables in tests, [`architecture`], the guard of the workspace, and
//! [`bridge`], the drill that adds a row and shows that providers kept elsewhere still compile.

pub mod architecture;
pub mod bench;
pub mod bridge;
pub mod check;
mod contract;
pub mod evidence;
pub mod harness;
pub mod oracle;
#[cfg(unix)]
pub mod proxy;
mod suite;
mod table;

pub use self::contract::{Ask, Case, Contract};
pub use self::harness::{Facts, Fixture, Harness, Inside, Sample};
pub use self::oracle::{Oracle, Recorder, Traces};
pub use self::suite::Suite;

#[doc(hidden)]
pub use capbox_core as __core;
