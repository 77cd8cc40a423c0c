//! The contracts: one per row, generated from the list of rows, so that a row without one does not compile.
//!
//! A contract says how the row is asked for, which the negative half uses on providers without it, and what must
//! hold where it is filled: its cases. A case that covers a known trap carries its number in its name.

mod base;
mod client;
mod create;
mod exec;
mod files;
pub(crate) mod flags;
mod kind;
mod lifecycle;
mod metrics;
mod network;
mod options;
mod ports;
mod process;
mod snapshot;
mod terminal;
mod volumes;

use std::fmt;

use capbox_core::api::{AnyClient, AnySandbox, Exec, Spawn};
use capbox_core::capability::answer::Row;
use capbox_core::capability::{Capability, cap};
use capbox_core::error::Result;
use capbox_core::spec::Spec;

pub(crate) use self::base::BASE;
pub(crate) use self::flags::FLAGS;
use crate::bench::Bench;
use crate::check::Check;
use crate::oracle::BoxFuture;

/// What a row promises, as a proof.
#[diagnostic::on_unimplemented(
    message = "the row `{Self}` has no contract",
    label = "a row is only a promise with its proof",
    note = "write `impl Contract for {Self}` in `capbox-testkit/src/contract/`"
)]
pub trait Contract: Row {
    /// How the row is asked for.
    const ASK: Ask;
    /// What must hold where it is filled.
    const CASES: &'static [Case];
}

/// How a row is asked for, in the least way.
#[derive(Clone, Copy)]
pub enum Ask {
    /// By a call on a client.
    Client(for<'a> fn(&'a AnyClient) -> BoxFuture<'a, Result<()>>),
    /// By a call on a sandbox.
    Call(for<'a> fn(&'a AnySandbox) -> BoxFuture<'a, Result<()>>),
    /// By an option of create; `None` where only the harness knows a value and gives none.
    Create(fn(Spec, &Bench) -> Check<Spec>),
    /// By an option of a command, run to its end or followed.
    Exec(fn(Exec, &Bench) -> Check<Exec>, fn(Spawn, &Bench) -> Check<Spawn>),
}

impl fmt::Debug for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client(_) => "Client",
            Self::Call(_) => "Call",
            Self::Create(_) => "Create",
            Self::Exec(..) => "Exec",
        })
    }
}

/// One thing that must hold.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// The proof.
    pub(crate) run: for<'a> fn(&'a Bench) -> BoxFuture<'a, Check>,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// The cases that these functions prove, each called as its function is.
macro_rules! cases {
    ($($case:ident),* $(,)?) => {
        &[$( $crate::contract::Case { name: stringify!($case), run: |bench| Box::pin($case(bench)) } ),*]
    };
}
pub(crate) use cases;

/// A row with its contract; none where the row's trait has not landed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) capability: Capability,
    pub(crate) contract: Option<(Ask, &'static [Case])>,
}

impl Entry {
    const fn of<C: Contract>() -> Self {
        Self { capability: C::ID, contract: Some((C::ASK, C::CASES)) }
    }
}

macro_rules! entry {
    (later $Row:ident) => {
        Entry { capability: Capability::$Row, contract: None }
    };
    ($kind:ident $Row:ident) => {
        Entry::of::<cap::$Row>()
    };
}

macro_rules! entries {
    ($( $kind:ident $Row:ident $name:ident; )*) => {
        /// Every row, in the order of [`Capability::ALL`].
        pub(crate) const ENTRIES: &[Entry] = &[$( entry!($kind $Row) ),*];
    };
}
capbox_core::for_each_row!(entries);
