//! Who is who in a container: `/etc/passwd` and `/etc/group`.
//!
//! They belong to the image, and where code may write them, to the code. What they are asked for is which user a name
//! stands for, and never whether somebody may have that user.

use alloc::vec::Vec;

use crate::job::User;
use crate::os::{self, Fd, resolve};
use crate::proto::GUEST_ID;
use crate::sys::{self, Errno, Result};

/// No larger file is read.
const LARGEST: usize = 1 << 20;
/// A user is in no more groups beside the first.
const MOST_GROUPS: usize = 64;

/// What is known of a user.
#[derive(Clone, Default)]
pub(crate) struct Account {
    pub(crate) user: User,
    /// The groups that it is in beside its first.
    pub(crate) groups: Vec<u32>,
    pub(crate) home: Vec<u8>,
    pub(crate) name: Vec<u8>,
}

/// The user that an image or a command names: a name or number, with a group if it has a colon. Empty is root.
pub(crate) fn find(root: &Fd, text: &[u8]) -> Result<Account> {
    let (user, group) = match text.iter().position(|byte| *byte == b':') {
        Some(colon) => (&text[..colon], Some(&text[colon + 1..])),
        None => (text, None),
    };
    let user = if user.is_empty() { b"0" } else { user };
    let (passwd, groups) = (read(root, c"etc/passwd"), read(root, c"etc/group"));
    let known = lines(&passwd).find(|line| line.first() == Some(&user) || matches_number(line, user));
    let mut account = match (&known, number(user)) {
        (Some(line), _) => Account {
            user: User {
                uid: line.get(2).and_then(|id| number(id)).ok_or(Errno::NOENT)?,
                gid: line.get(3).and_then(|id| number(id)).ok_or(Errno::NOENT)?,
            },
            groups: Vec::new(),
            home: line.get(5).map(|home| home.to_vec()).unwrap_or_default(),
            name: line[0].to_vec(),
        },
        // A number that has no name is a user all the same, in root's group as with the engines.
        (None, Some(uid)) => Account { user: User { uid, gid: 0 }, ..Account::default() },
        (None, None) => return Err(Errno::NOENT),
    };
    if let Some(group) = group {
        account.user.gid = number(group)
            .or_else(|| {
                let line = lines(&groups).find(|line| line.first() == Some(&group))?;
                number(line.get(2)?)
            })
            .ok_or(Errno::NOENT)?;
    } else if !account.name.is_empty() {
        account.groups = lines(&groups)
            .filter(|line| {
                line.get(3).is_some_and(|members| {
                    members.split(|byte| *byte == b',').any(|member| member == &account.name[..])
                })
            })
            .filter_map(|line| number(line.get(2)?))
            .take(MOST_GROUPS)
            .collect();
    }
    if account.home.is_empty() {
        account.home = b"/".to_vec();
    }
    if account.user.uid.max(account.user.gid) >= GUEST_ID {
        return Err(Errno::PERM);
    }
    Ok(account)
}

fn lines(file: &[u8]) -> impl Iterator<Item = Vec<&[u8]>> {
    file.split(|byte| *byte == b'\n')
        .map(|line| line.split(|byte| *byte == b':').collect::<Vec<_>>())
        .filter(|line| line.len() >= 4)
}

fn matches_number(line: &[&[u8]], user: &[u8]) -> bool {
    number(user).is_some() && line.get(2).and_then(|id| number(id)) == number(user)
}

fn number(text: &[u8]) -> Option<u32> {
    core::str::from_utf8(text).ok()?.parse().ok()
}

/// The content of a regular file; nothing, where there is no such file.
fn read(root: &Fd, path: &core::ffi::CStr) -> Vec<u8> {
    let open = || -> Result<Vec<u8>> {
        let how = resolve::IN_ROOT | resolve::NO_MAGICLINKS;
        let file = os::openat2(root.raw(), path, sys::O_RDONLY | sys::O_NONBLOCK | sys::O_NOCTTY, 0, how)?;
        let stat = os::statx(file.raw(), c"", sys::AT_EMPTY_PATH)?;
        if stat.format() != os::S_IFREG || stat.size as usize > LARGEST {
            return Err(Errno::INVAL);
        }
        let mut content = os::buffer(stat.size as usize);
        let mut at = 0;
        while at < content.len() {
            match os::pread(file.raw(), &mut content[at..], at)? {
                0 => break,
                len => at += len,
            }
        }
        content.truncate(at);
        Ok(content)
    };
    open().unwrap_or_default()
}
