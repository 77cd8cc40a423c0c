//! Packets with descriptors.

use alloc::vec::Vec;

use crate::os::{self, Fd};
use crate::proto;
use crate::sys::{self, Errno, Result, nr};

#[repr(C)]
struct IoVec {
    base: *mut u8,
    len: usize,
}

/// `struct msghdr` of 64-bit targets.
#[repr(C)]
struct Message {
    name: usize,
    name_len: u32,
    iov: *const IoVec,
    iov_len: usize,
    control: *mut u8,
    control_len: usize,
    flags: i32,
}

const CONTROL_HEADER: usize = 16;
const SOL_SOCKET: i32 = 1;
const SCM_RIGHTS: i32 = 1;
const MSG_CTRUNC: i32 = 8;
const MSG_TRUNC: i32 = 0x20;
const MSG_DONTWAIT: usize = 0x40;
const MSG_NOSIGNAL: usize = 0x4000;
const MSG_CMSG_CLOEXEC: usize = 0x4000_0000;

/// Room for the descriptors of one packet, aligned as the kernel wants it.
#[repr(C, align(8))]
struct Control([u8; CONTROL_HEADER + 4 * proto::MAX_FDS]);

/// Sends one packet without waiting. A peer that has gone is an error, not a signal.
pub(crate) fn send(socket: i32, bytes: &[u8], fds: &[i32]) -> Result<()> {
    let mut control = Control([0; CONTROL_HEADER + 4 * proto::MAX_FDS]);
    let len = CONTROL_HEADER + 4 * fds.len();
    control.0[..8].copy_from_slice(&len.to_ne_bytes());
    control.0[8..12].copy_from_slice(&SOL_SOCKET.to_ne_bytes());
    control.0[12..16].copy_from_slice(&SCM_RIGHTS.to_ne_bytes());
    for (slot, fd) in control.0[CONTROL_HEADER..].chunks_exact_mut(4).zip(fds) {
        slot.copy_from_slice(&fd.to_ne_bytes());
    }
    let iov = IoVec { base: bytes.as_ptr().cast_mut(), len: bytes.len() };
    let message = Message {
        name: 0,
        name_len: 0,
        iov: &raw const iov,
        iov_len: 1,
        control: control.0.as_mut_ptr(),
        control_len: if fds.is_empty() { 0 } else { len },
        flags: 0,
    };
    // SAFETY: all parts of the message live until the call returns; sending only reads them.
    unsafe { raw!(nr::SENDMSG, socket, &raw const message, MSG_NOSIGNAL | MSG_DONTWAIT) }.map(drop)
}

/// Sends a message of any size, in a memory file if it is large, and waits while the peer is behind.
pub(crate) fn send_message(socket: i32, message: &[u8], fds: &[i32]) -> Result<()> {
    let file;
    let (packet, mut all) = (proto::indirect(), fds.to_vec());
    let packet = if message.len() <= proto::MAX_PACKET {
        message
    } else {
        file = os::sealed(message)?;
        all.push(file.raw());
        &packet[..]
    };
    loop {
        match send(socket, packet, &all) {
            Err(Errno::AGAIN) => os::wait_for(&mut [os::Poll::new(socket, os::POLLOUT)], None),
            other => return other,
        }
    }
}

/// A received message: its bytes, unpacked if they came in a memory file, and its descriptors.
pub(crate) struct Packet {
    pub(crate) bytes: Vec<u8>,
    pub(crate) fds: Vec<Fd>,
}

/// Receives one packet into `buffer`; `None` at the end of the connection.
pub(crate) fn receive(socket: i32, buffer: &mut [u8], wait: bool) -> Result<Option<Packet>> {
    let mut control = Control([0; CONTROL_HEADER + 4 * proto::MAX_FDS]);
    let iov = IoVec { base: buffer.as_mut_ptr(), len: buffer.len() };
    let mut message = Message {
        name: 0,
        name_len: 0,
        iov: &raw const iov,
        iov_len: 1,
        control: control.0.as_mut_ptr(),
        control_len: control.0.len(),
        flags: 0,
    };
    let flags = MSG_CMSG_CLOEXEC | if wait { 0 } else { MSG_DONTWAIT };
    let len = loop {
        // SAFETY: all parts of the message live until the call returns and are as long as they say.
        match unsafe { raw!(nr::RECVMSG, socket, &raw mut message, flags) } {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    let mut fds = take_fds(&control.0[..message.control_len]);
    if message.flags & (MSG_TRUNC | MSG_CTRUNC) != 0 {
        return Err(Errno::MSGSIZE);
    }
    if len == 0 {
        // No message is empty, so this is the end.
        return Ok(None);
    }
    let packet = &buffer[..len];
    if !proto::is_indirect(packet) {
        return Ok(Some(Packet { bytes: packet.to_vec(), fds }));
    }
    let file = fds.pop().ok_or(Errno::PROTO)?;
    Ok(Some(Packet { bytes: read_sealed(&file)?, fds }))
}

/// Receives one small packet, and who sent it as the kernel has noted it. See [`os::note_senders`].
pub(crate) fn receive_noted(socket: i32) -> Result<(Option<u32>, Vec<u8>)> {
    const SCM_CREDENTIALS: i32 = 2;
    let mut control = Control([0; CONTROL_HEADER + 4 * proto::MAX_FDS]);
    let mut buffer = [0; 64];
    let iov = IoVec { base: buffer.as_mut_ptr(), len: buffer.len() };
    let mut message = Message {
        name: 0,
        name_len: 0,
        iov: &raw const iov,
        iov_len: 1,
        control: control.0.as_mut_ptr(),
        control_len: control.0.len(),
        flags: 0,
    };
    // SAFETY: all parts of the message live until the call returns and are as long as they say.
    let len = unsafe { raw!(nr::RECVMSG, socket, &raw mut message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) }?;
    let control = &control.0[..message.control_len];
    drop(take_fds(control));
    if len == 0 {
        return Err(Errno::PIPE);
    }
    // The note is the first thing that comes along: `struct ucred` begins with the number of the process.
    let noted = control.get(8..12) == Some(&SOL_SOCKET.to_ne_bytes())
        && control.get(12..16) == Some(&SCM_CREDENTIALS.to_ne_bytes());
    let sender = control.get(16..20).and_then(|bytes| Some(u32::from_ne_bytes(bytes.try_into().ok()?)));
    Ok((sender.filter(|_| noted), buffer[..len].to_vec()))
}

fn take_fds(mut control: &[u8]) -> Vec<Fd> {
    let mut fds = Vec::new();
    while let Some(header) = control.first_chunk::<CONTROL_HEADER>() {
        let len = usize::from_ne_bytes(header[..8].try_into().unwrap_or_default());
        let rights = header[8..12] == SOL_SOCKET.to_ne_bytes() && header[12..16] == SCM_RIGHTS.to_ne_bytes();
        let Some(body) = control.get(CONTROL_HEADER..len) else { break };
        if rights {
            fds.extend(
                body.chunks_exact(4)
                    .map(|fd| Fd::inherited(i32::from_ne_bytes(fd.try_into().unwrap_or_default()))),
            );
        }
        control = control.get(len.next_multiple_of(8)..).unwrap_or_default();
    }
    fds
}

/// Reads a memory file. Its seals make sure that it is one and that it holds still.
fn read_sealed(file: &Fd) -> Result<Vec<u8>> {
    const F_GET_SEALS: usize = 1034;
    const SHRINK_GROW_WRITE: usize = 0x2 | 0x4 | 0x8;
    // SAFETY: takes no pointers.
    let seals = unsafe { raw!(nr::FCNTL, file.raw(), F_GET_SEALS) }?;
    let len = os::statx(file.raw(), c"", sys::AT_EMPTY_PATH)?.size as usize;
    if seals & SHRINK_GROW_WRITE != SHRINK_GROW_WRITE || len > proto::MAX_MESSAGE {
        return Err(Errno::PROTO);
    }
    let mut bytes = os::buffer(len);
    let mut at = 0;
    while at < len {
        match os::pread(file.raw(), &mut bytes[at..], at)? {
            0 => return Err(Errno::PROTO),
            read => at += read,
        }
    }
    Ok(bytes)
}
