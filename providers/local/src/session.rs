//! A living sandbox.

use capbox_host::Guest;

/// A connection to the sandbox's guest.
///
/// That of the creator is the lease: when it closes, the guest ends the sandbox, unless it was detached.
#[derive(Debug)]
pub struct Session {
    pub(crate) guest: Guest,
    pub(crate) terminals: crate::process::Terminals,
    pub(crate) files: crate::files::Channel,
}

impl Session {
    pub(crate) fn new(guest: Guest) -> Self {
        Self { guest, terminals: crate::process::Terminals::default(), files: crate::files::Channel::new() }
    }
}
