#![doc = include_str!("../docs.md")]

mod client;
mod config;
mod create;
mod engine;
mod error;
mod exec;
mod files;
mod images;
mod labels;
mod lifecycle;
mod metrics;
mod network;
mod process;
mod program;
mod session;
mod snapshots;
mod table;
mod volumes;

pub use self::client::{Docker, PROVIDER};
pub use self::config::Config;
pub use self::exec::Exec;
pub use self::session::{Native, Session};
