//! Waiting for the end of a guest.
//!
//! The kernel closes what a killed process has open, its locks included, before it ends what else is in its namespaces.
//! So a connection that closes, or a lock that is free, says only that the guest is ending; its code may run a little
//! longer. The end of the guest's process comes after all of that.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;

use crate::socket;

/// How long to wait at most: a guest that lives may have closed a connection for other reasons.
const PATIENCE: Duration = Duration::from_secs(2);

/// A guest that has not ended yet.
fn process(guest: Pid) -> Option<OwnedFd> {
    pidfd_open(guest, PidfdFlags::empty()).ok()
}

/// Waits for the end of a guest that has closed a connection.
pub(crate) async fn ended(guest: Pid) {
    let Some(process) = process(guest) else { return };
    if let Ok(process) = socket::register(process, Interest::READABLE) {
        let _ = tokio::time::timeout(PATIENCE, process.readable()).await;
    }
}

/// The same where calls block. Says whether it has ended.
pub(crate) fn ended_blocking(guest: Pid) -> bool {
    let Some(process) = process(guest) else { return true };
    let patience = Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
    rustix::io::retry_on_intr(|| {
        poll(&mut [PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)], Some(&patience))
    }) != Ok(0)
}
