//! The guest program: process 1 of a sandbox, its builder, its supervisor and its end.
//!
//! It has no libc and no threads. It starts with the rights to build the sandbox, builds it ([`setup`]), gives
//! nearly all rights up, and then serves requests from one event loop ([`serve`]) until the sandbox ends.
//!
//! What runs inside is hostile. It shares a kernel with this program, and under an unprivileged creator even its
//! user id, so nothing here may wait for it, believe it, or do for it what it could not do itself.

#![no_std]
#![no_main]

extern crate alloc;

#[path = "../sys.rs"]
#[allow(dead_code)]
#[macro_use]
mod sys;
#[path = "../proto.rs"]
#[allow(dead_code)] // half of the protocol is for the other side
mod proto;

mod files;
mod job;
mod log;
mod os;
mod remove;
mod runtime;
mod seccomp;
mod serve;
mod setup;
mod tree;
mod wire;

/// The descriptor that the creator leaves for the guest: the owner's connection.
const OWNER: i32 = 3;

fn main() {
    os::reset_signals();
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
