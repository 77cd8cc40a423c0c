//! The system call filter, for this process and all that it starts.
//!
//! A deny-list: programs inside should work, and namespaces, ids and missing capabilities are the first wall. What
//! is listed is what those do not cover, or where they alone have been broken before.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

#[cfg(target_arch = "x86_64")]
use crate::sys::nr_x86;
use crate::sys::{self, Errno, Result, nr};

const EPERM: u32 = 1;
const ENOSYS: u32 = 38;
const ENOPROTOOPT: u32 = 92;
const EPROTONOSUPPORT: u32 = 93;
const ESOCKTNOSUPPORT: u32 = 94;
const EAFNOSUPPORT: u32 = 97;

/// Refused outright.
const DENIED: &[usize] = &[
    // Mounts and roots: the tree is finished when the filter is installed.
    nr::MOUNT,
    nr::UMOUNT2,
    nr::PIVOT_ROOT,
    nr::CHROOT,
    nr::OPEN_TREE,
    nr::OPEN_TREE_ATTR,
    nr::MOVE_MOUNT,
    nr::FSOPEN,
    nr::FSCONFIG,
    nr::FSMOUNT,
    nr::FSPICK,
    nr::MOUNT_SETATTR,
    nr::STATMOUNT,
    nr::LISTMOUNT,
    // Files by handle would go around every mount.
    nr::NAME_TO_HANDLE_AT,
    nr::OPEN_BY_HANDLE_AT,
    // Keyrings belong to the host's user, not to the namespace.
    nr::ADD_KEY,
    nr::REQUEST_KEY,
    nr::KEYCTL,
    // Large, often broken parts of the kernel that ordinary programs do without.
    nr::BPF,
    nr::PERF_EVENT_OPEN,
    nr::USERFAULTFD,
    nr::FANOTIFY_INIT,
    nr::LOOKUP_DCOOKIE,
    nr::NFSSERVCTL,
    // Other processes' descriptors and pages; NUMA placement.
    nr::SETNS,
    nr::KCMP,
    nr::PIDFD_GETFD,
    nr::MOVE_PAGES,
    nr::MIGRATE_PAGES,
    nr::MBIND,
    nr::SET_MEMPOLICY,
    nr::SET_MEMPOLICY_HOME_NODE,
    nr::PROCESS_MRELEASE,
    nr::REMAP_FILE_PAGES, // emulated since Linux 4.0, and wrongly more than once
    // The machine itself.
    nr::KEXEC_LOAD,
    nr::KEXEC_FILE_LOAD,
    nr::INIT_MODULE,
    nr::FINIT_MODULE,
    nr::DELETE_MODULE,
    nr::REBOOT,
    nr::SWAPON,
    nr::SWAPOFF,
    nr::ACCT,
    nr::QUOTACTL,
    nr::QUOTACTL_FD,
    nr::SYSLOG,
    nr::VHANGUP,
    nr::SETTIMEOFDAY,
    nr::CLOCK_SETTIME,
    nr::CLOCK_ADJTIME,
    nr::ADJTIMEX,
    #[cfg(target_arch = "x86_64")]
    nr_x86::IOPL,
    #[cfg(target_arch = "x86_64")]
    nr_x86::IOPERM,
    #[cfg(target_arch = "x86_64")]
    nr_x86::USELIB,
    #[cfg(target_arch = "x86_64")]
    nr_x86::MODIFY_LDT,
    #[cfg(target_arch = "x86_64")]
    nr_x86::SYSFS,
];

/// Answered as if the kernel did not have them, so that libraries fall back to what can be checked.
const ABSENT: &[usize] = &[
    nr::CLONE3, // its flags are in memory, where a filter cannot look
    nr::IO_URING_SETUP,
    nr::IO_URING_ENTER,
    nr::IO_URING_REGISTER,
    nr::PROCESS_MADVISE, // other processes' pages; allocators ask for it and go on without
];

/// Namespaces that nobody inside may make. A cgroup namespace is what this program marks jobs with, and takes a
/// capability that only this program has.
const NAMESPACES: u32 = (sys::CLONE_NEWNS
    | sys::CLONE_NEWUTS
    | sys::CLONE_NEWIPC
    | sys::CLONE_NEWUSER
    | sys::CLONE_NEWPID
    | sys::CLONE_NEWNET) as u32;

const TIOCSTI: u32 = 0x5412; // types into the terminal of whoever reads it
const TIOCLINUX: u32 = 0x541c; // pastes into it
const TIOCSETD: u32 = 0x5423; // loads line disciplines

const TCP: u32 = 6; // a level of socket options
const TCP_ULP: u32 = 31; // gives a connection to the kernel's TLS

/// Execution domains: the usual one, the same without randomized addresses (debuggers), and the question which it is.
const PERSONALITIES: [u32; 3] = [0, 0x0004_0000, 0xffff_ffff];

const UNIX: u32 = 1;
const INET: [u32; 2] = [2, 10];
const NETLINK: u32 = 16;
/// Streams, datagrams, and what takes a capability anyway: the other kinds are SCTP's and DCCP's.
const INET_KINDS: [u32; 3] = [1, 2, 3];
/// The kind's own protocol, ICMP, TCP, UDP, and ICMP of IPv6. Not MPTCP, UDP-Lite and the like: much code, little used.
const INET_PROTOCOLS: [u32; 5] = [0, 1, 6, 17, 58];
/// Routes and addresses, and the list of sockets. The others configure the machine, or tell of its devices.
const NETLINK_PROTOCOLS: [u32; 2] = [0, 4];

/// The set-user-id and set-group-id bits.
const SET_ID: u32 = 0o6000;

/// `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    k: u32,
}

const LOAD: u16 = 0x20; // a word of `struct seccomp_data`
const EQUAL: u16 = 0x15;
const GREATER_OR_EQUAL: u16 = 0x35;
const ANY_BIT: u16 = 0x45;
const AND: u16 = 0x54;
const RETURN: u16 = 0x06;

const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
/// The low half of an argument, on a little-endian machine.
const fn argument(index: u32) -> u32 {
    16 + 8 * index
}

const ALLOW: u32 = 0x7fff_0000;
const KILL: u32 = 0x8000_0000;
const fn errno(number: u32) -> u32 {
    0x0005_0000 | number
}

#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 0xc000_00b7;

struct Program(Vec<Instruction>);

impl Program {
    fn start() -> Self {
        let mut program = Self(Vec::with_capacity(256));
        program.push(LOAD, 0, 0, ARCHITECTURE);
        program.end_unless(EQUAL, NATIVE, KILL);
        program.push(LOAD, 0, 0, NUMBER);
        program
    }

    fn finish(mut self) -> Self {
        self.push(RETURN, 0, 0, ALLOW);
        self
    }

    fn push(&mut self, code: u16, if_true: u8, if_false: u8, k: u32) {
        self.0.push(Instruction { code, if_true, if_false, k });
    }

    /// Ends here with `answer` if the comparison holds.
    fn end_if(&mut self, comparison: u16, k: u32, answer: u32) {
        self.push(comparison, 0, 1, k);
        self.push(RETURN, 0, 0, answer);
    }

    /// Ends here with `answer` unless the comparison holds.
    fn end_unless(&mut self, comparison: u16, k: u32, answer: u32) {
        self.push(comparison, 1, 0, k);
        self.push(RETURN, 0, 0, answer);
    }

    /// Ends with the answer for the call's number, or allows it.
    ///
    /// By halves: the kernel tries a new filter with every number there is, which for a long list takes a while.
    fn search(&mut self, answers: &[(usize, u32)]) {
        const FEW: usize = 4;
        if answers.len() <= FEW {
            for &(number, answer) in answers {
                self.end_if(EQUAL, number as u32, answer);
            }
            self.push(RETURN, 0, 0, ALLOW);
            return;
        }
        let (lower, upper) = answers.split_at(answers.len() / 2);
        let jump = self.0.len();
        self.push(GREATER_OR_EQUAL, 0, 0, upper[0].0 as u32);
        self.search(lower);
        self.0[jump].if_true = (self.0.len() - jump - 1) as u8;
        self.search(upper);
    }

    /// Ends here with `answer` unless what is loaded is one of these.
    fn end_unless_any(&mut self, values: &[u32], answer: u32) {
        for (at, value) in values.iter().enumerate() {
            // Over the comparisons that are left, and the answer.
            self.push(EQUAL, (values.len() - at) as u8, 0, *value);
        }
        self.push(RETURN, 0, 0, answer);
    }

    /// The family of a new socket is loaded. `AF_VSOCK` leads to the hypervisor past the network namespace; `AF_PACKET`,
    /// `AF_ALG` and so on are for others.
    fn check_socket(&mut self) {
        self.end_if(EQUAL, UNIX, ALLOW);
        let netlink = self.0.len();
        self.push(EQUAL, 0, 0, NETLINK);
        self.push(LOAD, 0, 0, argument(2));
        self.end_unless_any(&NETLINK_PROTOCOLS, errno(EPROTONOSUPPORT));
        self.push(RETURN, 0, 0, ALLOW);
        self.0[netlink].if_false = (self.0.len() - netlink - 1) as u8;
        self.end_unless_any(&INET, errno(EAFNOSUPPORT));
        self.push(LOAD, 0, 0, argument(1));
        self.push(AND, 0, 0, 0xf); // the rest is flags
        self.end_unless_any(&INET_KINDS, errno(ESOCKTNOSUPPORT));
        self.push(LOAD, 0, 0, argument(2));
        self.end_unless_any(&INET_PROTOCOLS, errno(EPROTONOSUPPORT));
    }

    /// Runs `checks` on an argument of one system call, which is allowed if none of them ends it.
    fn for_call(&mut self, number: usize, index: u32, checks: impl FnOnce(&mut Self)) {
        let jump = self.0.len();
        self.push(EQUAL, 0, 0, number as u32);
        self.push(LOAD, 0, 0, argument(index));
        checks(self);
        self.push(RETURN, 0, 0, ALLOW);
        self.0[jump].if_false = (self.0.len() - jump - 1) as u8;
    }
}

/// A filter, ready to be installed: building one allocates, installing does not.
pub(crate) struct Filter(Program);

impl Filter {
    /// The filter for everything.
    pub(crate) fn general() -> Self {
        let mut program = Program::start();
        // The x32 numbers of x86-64: the same calls by other numbers.
        #[cfg(target_arch = "x86_64")]
        program.end_if(GREATER_OR_EQUAL, 0x4000_0000, errno(ENOSYS));
        for number in [nr::CLONE, nr::UNSHARE] {
            program.for_call(number, 0, |program| program.end_if(ANY_BIT, NAMESPACES, errno(EPERM)));
        }
        // Limits of others: only ids are compared, so even process 1 could be starved of descriptors.
        program.for_call(nr::PRLIMIT64, 0, |program| program.end_unless(EQUAL, 0, errno(EPERM)));
        program.for_call(nr::IOCTL, 1, |program| {
            for request in [TIOCSTI, TIOCLINUX, TIOCSETD] {
                program.end_if(EQUAL, request, errno(EPERM));
            }
        });
        program.for_call(nr::PERSONALITY, 0, |program| {
            program.end_unless_any(&PERSONALITIES, errno(EPERM));
        });
        program.for_call(nr::SETSOCKOPT, 1, |program| {
            program.end_unless(EQUAL, TCP, ALLOW);
            program.push(LOAD, 0, 0, argument(2));
            program.end_if(EQUAL, TCP_ULP, errno(ENOPROTOOPT));
        });
        for number in [nr::SOCKET, nr::SOCKETPAIR] {
            program.for_call(number, 0, Program::check_socket);
        }
        let denied = DENIED.iter().map(|&number| (number, errno(EPERM)));
        let absent = ABSENT.iter().map(|&number| (number, errno(ENOSYS)));
        let in_order: BTreeMap<usize, u32> = denied.chain(absent).collect();
        program.search(&in_order.into_iter().collect::<Vec<_>>());
        Self(program)
    }

    /// A second filter for jobs, which refuses to set the set-user-id bit. See [`crate::proto::Boot::deny_set_id`].
    pub(crate) fn no_set_id() -> Self {
        let mut program = Program::start();
        program.end_if(EQUAL, nr::OPENAT2 as u32, errno(ENOSYS)); // its mode is in memory
        for (number, index) in [
            (nr::FCHMOD, 1),
            (nr::FCHMODAT, 2),
            (nr::FCHMODAT2, 2),
            (nr::OPENAT, 3),
            (nr::MKNODAT, 2),
            #[cfg(target_arch = "x86_64")]
            (nr_x86::CHMOD, 1),
            #[cfg(target_arch = "x86_64")]
            (nr_x86::OPEN, 2),
            #[cfg(target_arch = "x86_64")]
            (nr_x86::CREAT, 1),
            #[cfg(target_arch = "x86_64")]
            (nr_x86::MKNOD, 1),
        ] {
            program.for_call(number, index, |program| program.end_if(ANY_BIT, SET_ID, errno(EPERM)));
        }
        Self(program.finish())
    }

    /// Installs the filter. It cannot be taken off again.
    pub(crate) fn install(&self) -> Result<()> {
        #[repr(C)]
        struct Described {
            len: u16,
            instructions: *const Instruction,
        }
        let len = u16::try_from(self.0.0.len()).map_err(|_| Errno::INVAL)?;
        let described = Described { len, instructions: self.0.0.as_ptr() };
        // SAFETY: SECCOMP_SET_MODE_FILTER reads the filter, whose instructions live until the call returns.
        unsafe { raw!(nr::SECCOMP, 1, 0, &raw const described) }.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a filter answers to a call whose arguments are all zero, and in how many steps.
    fn answer(filter: &Filter, architecture: u32, number: u32) -> (u32, usize) {
        let (mut at, mut loaded) = (0, 0);
        for steps in 1.. {
            let Instruction { code, if_true, if_false, k } = filter.0.0[at];
            let holds = match code {
                LOAD => {
                    loaded = match k {
                        NUMBER => number,
                        ARCHITECTURE => architecture,
                        _ => 0,
                    };
                    at += 1;
                    continue;
                }
                RETURN => return (k, steps),
                EQUAL => loaded == k,
                GREATER_OR_EQUAL => loaded >= k,
                ANY_BIT => loaded & k != 0,
                other => panic!("instruction {other:#x}"),
            };
            at += 1 + usize::from(if holds { if_true } else { if_false });
        }
        unreachable!()
    }

    #[test]
    fn every_call_gets_its_own_answer() {
        let filter = Filter::general();
        for number in 0..1024 {
            let expected = match number {
                number if DENIED.contains(&number) => errno(EPERM),
                number if ABSENT.contains(&number) => errno(ENOSYS),
                nr::SOCKET | nr::SOCKETPAIR => errno(EAFNOSUPPORT), // of family 0
                _ => ALLOW,
            };
            assert_eq!(answer(&filter, NATIVE, number as u32).0, expected, "call {number}");
        }
        assert_eq!(answer(&filter, NATIVE ^ 1, 0).0, KILL);
    }

    /// The kernel takes all these steps for all numbers whenever a filter is installed: with every sandbox.
    #[test]
    fn no_call_is_searched_for_long() {
        let filter = Filter::general();
        let longest = (0..1024).map(|number| answer(&filter, NATIVE, number).1).max();
        assert!(longest.is_some_and(|steps| steps <= 32), "{longest:?} steps");
    }
}
