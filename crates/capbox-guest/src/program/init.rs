//! Process 1 of a container that something else has made.
//!
//! It builds nothing and confines nothing: that is the engine's part. It serves the requests of [`crate::serve`], on an
//! abstract socket of the container's network namespace, so that no file is made in the image. Until it is told what the
//! container is for ([`proto::Contain`]) it only waits, and not for long: a creator that died half-way leaves nothing.
//!
//! ```text
//! /.capbox/guest init [--boot-within MILLISECONDS] [--until MILLISECONDS-SINCE-1970]
//! ```
//!
//! Whenever the container is started (also again, after it was stopped), this program begins anew, with the same words
//! and nothing else: jobs, environment, ttl and labels are to be told again. `--boot-within` is the time for that.
//! A container that an engine may start by itself, with nobody there to tell it anything, is to be given `--until`: it
//! then waits until that time, if it is later.
//!
//! # Who may talk to it
//!
//! Code inside may be root, and reaches the socket. But whatever is started inside descends from this process, while
//! what the engine starts in the container ([`crate::relay`]) has its parent outside, which shows as 0. That is what a
//! client must have, and what nobody inside can: a process whose parent ends gets this one as its parent.
//!
//! The number of the client's process alone would prove nothing, since it may end and its number go to another. So it is
//! held by a descriptor, its parent looked at, and then it has to answer a greeting, for which the kernel vouches. If it
//! still lives after that, all three are one.

use alloc::vec::Vec;
use core::ffi::CStr;

use crate::os::{self, Fd};
use crate::proto::{self, Event, Request};
use crate::setup::{At, Container, Failure, Place, Sandbox};
use crate::sys::{self, AT_FDCWD, Errno, Result, nr};
use crate::users::{self, Account};
use crate::{keeper, serve, wire};

/// Time to be told what the container is for, unless said otherwise.
const BOOT_WITHIN: u64 = 120_000;

/// What the command line says.
struct Options {
    boot_within: u64,
    until: Option<u64>,
}

/// Answers with the exit code.
pub(crate) fn run(arguments: &[&CStr]) -> i32 {
    let Some(options) = parse(arguments) else {
        say(b"use `init [--boot-within MILLISECONDS] [--until MILLISECONDS-SINCE-1970]`\n");
        return 64;
    };
    let sandbox = match prepare() {
        Ok(sandbox) => sandbox,
        Err(failure) => {
            let mut text = Vec::from(*b"cannot ");
            text.extend_from_slice(failure.step.as_bytes());
            text.extend_from_slice(b": error ");
            text.extend_from_slice(os::decimal(failure.errno.0.unsigned_abs(), &mut [0; 10]));
            text.push(b'\n');
            say(&text);
            return 70;
        }
    };
    let left = options.until.map_or(0, |until| until.saturating_sub(os::wall_millis()));
    serve::contain(sandbox, options.boot_within.max(left));
    0
}

fn parse(mut arguments: &[&CStr]) -> Option<Options> {
    let mut options = Options { boot_within: BOOT_WITHIN, until: None };
    while let [name, value, rest @ ..] = arguments {
        let value = value.to_str().ok()?.parse().ok()?;
        match name.to_bytes() {
            b"--boot-within" => options.boot_within = value,
            b"--until" => options.until = Some(value),
            _ => return None,
        }
        arguments = rest;
    }
    arguments.is_empty().then_some(options)
}

/// Into the container's own log.
fn say(text: &[u8]) {
    let _ = os::write(2, b"capbox-guest: ");
    let _ = os::write(2, text);
}

fn prepare() -> core::result::Result<Sandbox, Failure> {
    // SAFETY: takes no pointers.
    if unsafe { raw!(nr::GETPID) } != Ok(1) {
        return Err(Errno::INVAL).at("be anything but process 1");
    }
    let _ = os::prctl(sys::PR_SET_NAME, c"capbox-guest".as_ptr() as usize, 0);
    // SAFETY: no groups, no pointers.
    unsafe {
        let _ = raw!(nr::UMASK, 0);
        raw!(nr::SETGROUPS, 0, 0).at("leave the groups")?;
        // The program's file has a group of its own (see `relay`), which is of no use here.
        raw!(nr::SETRESGID, 0, 0, 0).at("take root's group")?;
    }
    os::prctl(sys::PR_SET_DUMPABLE, 0, 0).at("hide from ptrace")?;
    let rights = sys::permitted().at("look at the capabilities")?;
    sys::capset(rights, rights, 0).at("set the capabilities")?;
    os::chdir(c"/").at("enter the root")?;
    let folder = sys::O_RDONLY | sys::O_DIRECTORY;
    let root = os::openat(AT_FDCWD, c"/", sys::O_PATH | sys::O_DIRECTORY, 0).at("open the root")?;
    let proc = os::openat(AT_FDCWD, c"/proc", folder, 0).at("open /proc")?;
    let devpts = os::openat(AT_FDCWD, c"/dev/pts", sys::O_PATH | sys::O_DIRECTORY, 0).at("open /dev/pts")?;
    let listener = listen(&proc)?;
    // Nothing is written from here on, and jobs without an input get this program's own.
    let null = os::openat(AT_FDCWD, c"/dev/null", sys::O_RDWR, 0).at("open /dev/null")?;
    for target in 0..3 {
        os::duplicate_onto(null.raw(), target, 0).at("open /dev/null")?;
    }
    let [soft, hard] = os::limit(os::RLIMIT_NOFILE).at("limit descriptors")?;
    os::set_limit(os::RLIMIT_NOFILE, [hard; 2]).at("limit descriptors")?;
    let account = users::find(&root, b"").unwrap_or_else(|_| Account::default());
    let place = Place::Container(Container { rights, account });
    Ok(Sandbox { place, folder: None, listener, proc, root, devpts, descriptors: [soft, hard] })
}

/// The name of the socket: that of the pid namespace, so that containers that share a network do not meet.
pub(crate) fn socket_name(proc: &Fd) -> Result<Vec<u8>> {
    let mut name = Vec::from(*b"capbox-");
    name.extend_from_slice(os::readlinkat(proc.raw(), c"self/ns/pid", &mut [0; 64])?);
    Ok(name)
}

fn listen(proc: &Fd) -> core::result::Result<Fd, Failure> {
    const STEP: &str = "make the control socket";
    let listener = os::socket(os::AF_UNIX, os::SOCK_SEQPACKET).at(STEP)?;
    os::bind_abstract(listener.raw(), &socket_name(proc).at(STEP)?).at(STEP)?;
    os::listen(listener.raw()).at(STEP)?;
    os::set_nonblocking(listener.raw()).at(STEP)?;
    Ok(listener)
}

/// A client whose process has its parent outside, and which has yet to prove that it is still that process.
pub(crate) struct Newcomer {
    pub(crate) socket: Fd,
    pid: u32,
    process: Fd,
}

/// Greets a client. Nothing, if it is not to be trusted.
pub(crate) fn greet(socket: Fd, proc: &Fd) -> Option<Newcomer> {
    let [pid, ..] = os::peer(socket.raw()).ok()?;
    // 0 is outside altogether: some other process of a network that is shared.
    if pid == 0 {
        return None;
    }
    let process = os::pidfd_open(pid).ok()?;
    if keeper::parent(proc, pid) != Some(0) {
        return None;
    }
    os::note_senders(socket.raw(), true).ok()?;
    wire::send(socket.raw(), &Event::Version { version: proto::VERSION }.encode(), &[]).ok()?;
    Some(Newcomer { socket, pid, process })
}

/// What a newcomer's answer shows.
pub(crate) enum Presented {
    /// It is the one that was greeted.
    Trusted(Fd),
    /// There is no answer yet.
    NotYet(Newcomer),
    /// It is not, or has gone.
    Refused,
}

impl Newcomer {
    pub(crate) fn present(self) -> Presented {
        match wire::receive_noted(self.socket.raw()) {
            Ok((sender, packet)) => {
                let same = sender == Some(self.pid)
                    && matches!(Request::decode(&packet), Ok(Request::Present))
                    && os::pidfd_signal(&self.process, 0).is_ok()
                    && os::note_senders(self.socket.raw(), false).is_ok();
                if same { Presented::Trusted(self.socket) } else { Presented::Refused }
            }
            Err(Errno::AGAIN | Errno::INTR) => Presented::NotYet(self),
            Err(_) => Presented::Refused,
        }
    }
}
