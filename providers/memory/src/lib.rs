#![doc = include_str!("../docs.md")]
#![allow(
    clippy::wildcard_imports,
    reason = "the interface for providers is one module, made to be imported whole"
)]

mod client;
mod commands;
mod config;
mod disk;
mod error;
mod files;
mod machine;
mod process;
mod session;
mod shell;
mod stack;
mod table;
mod turn;

pub use self::client::{Create, Exec, Memory, PROVIDER, Store};
pub use self::config::Config;
pub use self::machine::Machine;
pub use self::session::Session;
