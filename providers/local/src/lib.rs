#![doc = include_str!("../docs.md")]

#[cfg(target_os = "linux")]
mod client;
#[cfg(target_os = "linux")]
mod config;
#[cfg(target_os = "linux")]
mod error;
#[cfg(target_os = "linux")]
mod files;
#[cfg(target_os = "linux")]
mod process;
#[cfg(target_os = "linux")]
mod session;
#[cfg(target_os = "linux")]
mod table;

#[cfg(target_os = "linux")]
pub use self::client::{Local, PROVIDER};
#[cfg(target_os = "linux")]
pub use self::config::Config;
#[cfg(target_os = "linux")]
pub use self::session::Session;
