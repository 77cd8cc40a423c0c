//! The guest: the program that runs as process 1 of every local sandbox, and the protocol it speaks.
//!
//! * [`PROGRAM`] is the program itself, an ELF file without dependencies, ready to be put into a memory file and
//!   executed. It is empty where no guest can run (anything but Linux on x86-64 or `AArch64`).
//! * [`proto`] is the protocol, used by both sides. It needs nothing but `alloc`.
//! * [`stream`] is how the protocol travels over one stream of bytes, for containers.
//! * `client`, behind the feature of that name, is the other end of that stream.
//! * [`sys`] are the raw system calls both sides use between `clone` and `exec`, where no libc may be called.
//!
//! The program's source is in `src/program/`; `build.rs` compiles it with the compiler at hand.

#![no_std]

extern crate alloc;
#[cfg(feature = "client")]
extern crate std;

#[cfg(feature = "client")]
pub mod client;

pub mod proto;
pub mod stream;

/// A part of the program that can be tested without the rest.
#[cfg(test)]
#[path = "program/log.rs"]
mod log;

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#[macro_use]
pub mod sys;

#[cfg(all(test, target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#[allow(dead_code)] // what installs a filter
#[path = "program/seccomp.rs"]
mod seccomp;

/// The guest program, or nothing on a target that cannot run one.
#[cfg(guest_program)]
pub static PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/capbox-guest"));
/// The guest program, or nothing on a target that cannot run one.
#[cfg(not(guest_program))]
pub static PROGRAM: &[u8] = &[];
