//! Removing trees of any depth and size without endless recursion.
//!
//! A tree is followed down for a few folders only. What is deeper is moved up to the top and emptied in its turn, so
//! that no path and no stack grows with the depth.

use alloc::vec::Vec;
use core::ffi::CStr;

use crate::os::{self, Fd, resolve};
use crate::sys::{self, Errno, Result};

const DT_DIR: u8 = 4;
/// How far to follow a tree down at first.
const SHALLOW: u32 = 8;
/// How far to follow it down where folders cannot be moved: in the lowest layer, which is shallow.
const DEPTH: u32 = 32;
/// The most descriptors that outlive their folders.
const KEPT: usize = 16;

/// Removes all that is in a folder. What cannot be removed is left.
///
/// Answers with some of the removed folders, still open. Closing the last descriptor of one frees its blocks, and can
/// take longer than all the rest: some file systems wait for the device to discard them. So close them when nobody
/// waits.
pub(crate) fn contents(top: &Fd) -> Vec<Fd> {
    let mut removal = Removal { top, moved: 0, kept: Vec::new() };
    // Again for what was moved up meanwhile.
    while removal.pass(top, 0) {}
    removal.kept
}

struct Removal<'a> {
    top: &'a Fd,
    moved: u32,
    kept: Vec<Fd>,
}

impl Removal<'_> {
    /// Goes once over a folder; says whether anything was removed or moved.
    fn pass(&mut self, folder: &Fd, depth: u32) -> bool {
        let mut buffer = os::buffer(32 * 1024);
        let mut progress = false;
        let _ = os::lseek(folder.raw(), 0);
        while let Ok(len @ 1..) = os::getdents(folder.raw(), &mut buffer) {
            for (_, kind, name) in os::entries(&buffer[..len]) {
                if name != c"." && name != c".." {
                    progress |= self.remove_entry(folder, kind, name, depth).is_ok();
                }
            }
        }
        progress
    }

    fn remove_entry(&mut self, folder: &Fd, kind: u8, name: &CStr, depth: u32) -> Result<()> {
        if kind != DT_DIR {
            match os::unlinkat(folder.raw(), name, 0) {
                Err(Errno::ISDIR | Errno::PERM) => {} // the type was unknown
                other => return other,
            }
        }
        match os::unlinkat(folder.raw(), name, sys::AT_REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            other => return other,
        }
        if depth >= SHALLOW && self.hoist(folder, name).is_ok() {
            return Ok(());
        }
        let below = open(folder, name)?;
        // Again for what a pass did not see, as long as that helps.
        while depth < DEPTH && self.pass(&below, depth + 1) {
            match os::unlinkat(folder.raw(), name, sys::AT_REMOVEDIR) {
                Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                other => {
                    if self.kept.len() < KEPT {
                        self.kept.push(below);
                    }
                    return other;
                }
            }
        }
        os::unlinkat(folder.raw(), name, sys::AT_REMOVEDIR)
    }

    fn hoist(&mut self, folder: &Fd, name: &CStr) -> Result<()> {
        loop {
            self.moved += 1;
            let new = os::numbered(".removed-", self.moved, "");
            match os::renameat2(folder.raw(), name, self.top.raw(), &new, os::RENAME_NOREPLACE) {
                Err(Errno::EXIST) => {}
                other => return other,
            }
        }
    }
}

/// Opens a folder for emptying: never through a link, never into another mount.
pub(crate) fn open(folder: &Fd, name: &CStr) -> Result<Fd> {
    const NO_XDEV: u64 = 0x01;
    let flags = sys::O_RDONLY | sys::O_DIRECTORY | sys::O_NOFOLLOW;
    let resolve = resolve::NO_SYMLINKS | resolve::BENEATH | NO_XDEV;
    match os::openat2(folder.raw(), name, flags, 0, resolve) {
        Err(Errno::ACCES) => {
            // Its owner may remove it, whatever its mode says.
            os::fchmodat(folder.raw(), name, 0o700)?;
            os::openat2(folder.raw(), name, flags, 0, resolve)
        }
        other => other,
    }
}
