//! The guest program: process 1 of a sandbox, its builder, its supervisor and its end.
//!
//! It has no libc and no threads. It starts with the rights to build the sandbox, builds it ([`setup`]), gives
//! nearly all rights up, and then serves requests from one event loop ([`serve`]) until the sandbox ends.
//!
//! In a container, which something else has built, it is process 1 as well (`init`), and serves the same requests
//! ([`init`]). There is no socket that leads in from outside, so a second one of its kind is started beside it
//! (`relay`), which carries them over one stream ([`relay`]).
//!
//! What runs inside is hostile. It shares a kernel with this program, and under an unprivileged creator even its
//! user id, so nothing here may wait for it, believe it, or do for it what it could not do itself.

#![no_std]
#![no_main]
// What the manifest says of the library. `build.rs` has clippy look at this program, too.
#![warn(clippy::pedantic)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]
#![allow(clippy::module_name_repetitions, clippy::must_use_candidate, clippy::struct_excessive_bools)]
#![allow(clippy::missing_errors_doc)]

extern crate alloc;

#[path = "../sys.rs"]
#[allow(dead_code)]
#[macro_use]
mod sys;
#[path = "../proto.rs"]
#[allow(dead_code)] // half of the protocol is for the other side
mod proto;
#[path = "../stream.rs"]
#[allow(dead_code)]
mod stream;

mod files;
mod init;
mod job;
mod keeper;
mod log;
mod os;
mod relay;
mod remove;
mod runtime;
mod seccomp;
mod serve;
mod setup;
mod tree;
mod users;
mod watch;
mod wire;

use core::ffi::CStr;

/// The descriptor that the creator leaves for the guest: the owner's connection.
const OWNER: i32 = 3;

/// Answers with the exit code.
fn main(arguments: &[&CStr]) -> i32 {
    os::reset_signals();
    match arguments.get(1).map(|word| word.to_bytes()) {
        None => build(),
        Some(b"init") => return init::run(&arguments[2..]),
        Some(b"relay") => return relay::run(),
        Some(_) => return 64,
    }
    0
}

/// Builds a sandbox and serves it.
fn build() {
    let owner = os::Fd::inherited(OWNER);
    // Else the creator has gone, or speaks another version and has been told.
    let Ok((boot, sources)) = setup::receive(&owner) else { return };
    match setup::build(&boot, sources) {
        Ok(sandbox) => serve::run(boot, sandbox, owner),
        Err(failure) => {
            let event = proto::Event::BootFailed { step: failure.step.into(), errno: failure.errno.0 };
            let _ = wire::send(owner.raw(), &event.encode(), &[]);
        }
    }
}
