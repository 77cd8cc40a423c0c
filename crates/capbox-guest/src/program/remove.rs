//! Removing trees of any depth and size without recursion.
//!
//! Instead of following a tree down, each folder found in a folder is moved up to the top and emptied in its turn,
//! so that no path and no stack grows with the depth.

use core::ffi::CStr;

use crate::os::{self, Fd, resolve};
use crate::sys::{self, Errno, Result};

const DT_DIR: u8 = 4;
/// How far to follow a tree down where folders cannot be moved: in the lowest layer, which is shallow.
const DEPTH: u32 = 32;

/// Removes all that is in a folder. What cannot be removed is left.
pub(crate) fn contents(top: &Fd) {
    remove(top, top, &mut 0, DEPTH);
}

fn remove(top: &Fd, folder: &Fd, counter: &mut u32, depth: u32) {
    let mut buffer = os::buffer(32 * 1024);
    loop {
        let mut progress = false;
        let _ = os::lseek(folder.raw(), 0);
        while let Ok(len @ 1..) = os::getdents(folder.raw(), &mut buffer) {
            for (_, kind, name) in os::entries(&buffer[..len]) {
                if name != c"." && name != c".." {
                    progress |= remove_entry(top, folder, kind, name, counter, depth).is_ok();
                }
            }
        }
        if !progress {
            return;
        }
    }
}

fn remove_entry(top: &Fd, folder: &Fd, kind: u8, name: &CStr, counter: &mut u32, depth: u32) -> Result<()> {
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
    if folder.raw() != top.raw() && hoist(top, folder, name, counter).is_ok() {
        return Ok(());
    }
    let below = open(folder, name)?;
    if folder.raw() == top.raw() {
        remove(top, &below, counter, depth);
    } else if depth > 0 {
        remove(&below, &below, counter, depth - 1);
    }
    os::unlinkat(folder.raw(), name, sys::AT_REMOVEDIR)
}

fn hoist(top: &Fd, folder: &Fd, name: &CStr, counter: &mut u32) -> Result<()> {
    loop {
        *counter += 1;
        let new = os::numbered(".removed-", *counter, "");
        match os::renameat2(folder.raw(), name, top.raw(), &new, os::RENAME_NOREPLACE) {
            Err(Errno::EXIST) => {}
            other => return other,
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
