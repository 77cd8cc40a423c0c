//! The language of capbox: what can be asked for, how a provider answers, and what a caller gets.
//!
//! * [`capability`]: the table of rows, answers, flags and limits;
//! * [`spec`]: what callers ask for;
//! * [`api`]: clients, sandboxes, processes and files, typed (`Sandbox<P>`) and at run time (`AnySandbox`);
//! * [`emulate`]: rows built from other rows, each with its stated loss;
//! * [`provider`]: the interface for providers;
//! * [`error`]: the one error.
//!
//! There is no HTTP and no system call in here, and no provider is known by name.

#[macro_use]
pub mod capability;
pub mod api;
pub mod emulate;
pub mod error;
pub mod provider;
pub mod spec;

pub use self::capability::{Capability, cap};
