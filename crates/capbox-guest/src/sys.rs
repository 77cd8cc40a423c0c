//! Raw Linux system calls, for code that runs without libc or between `clone` and `exec`.
//!
//! Only what both sides need is here. Calls return the kernel's own answer as a [`Result`]; nothing allocates,
//! nothing touches thread-local state.

#![allow(missing_docs)] // names and numbers are the kernel's

use core::arch::asm;
#[cfg(target_arch = "x86_64")]
use core::arch::naked_asm;

/// An error number of the kernel, such as `ENOENT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

pub type Result<T> = core::result::Result<T, Errno>;

impl Errno {
    pub const PERM: Self = Self(1);
    pub const NOENT: Self = Self(2);
    pub const SRCH: Self = Self(3);
    pub const INTR: Self = Self(4);
    pub const NXIO: Self = Self(6);
    pub const NOEXEC: Self = Self(8);
    pub const BADF: Self = Self(9);
    pub const AGAIN: Self = Self(11);
    pub const ACCES: Self = Self(13);
    pub const BUSY: Self = Self(16);
    pub const EXIST: Self = Self(17);
    pub const XDEV: Self = Self(18);
    pub const NOTDIR: Self = Self(20);
    pub const ISDIR: Self = Self(21);
    pub const INVAL: Self = Self(22);
    pub const NOTTY: Self = Self(25);
    pub const NOSPC: Self = Self(28);
    pub const PIPE: Self = Self(32);
    pub const NAMETOOLONG: Self = Self(36);
    pub const NOSYS: Self = Self(38);
    pub const NOTEMPTY: Self = Self(39);
    pub const LOOP: Self = Self(40);
    pub const PROTO: Self = Self(71);
    pub const MSGSIZE: Self = Self(90);
    pub const AFNOSUPPORT: Self = Self(97);
    pub const CONNREFUSED: Self = Self(111);
}

/// One system call.
///
/// # Safety
/// As for the call itself: pointers among the arguments must be valid for what the kernel does with them.
#[inline(always)]
#[allow(clippy::inline_always)] // a call here must stay a bare instruction: the callers run on borrowed stacks
pub unsafe fn syscall(number: usize, args: [usize; 6]) -> Result<usize> {
    let answer: isize;
    // SAFETY: the kernel's calling convention; it keeps all registers but those named here.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => answer,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            out("rcx") _, out("r11") _, options(nostack));
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") args[0] as isize => answer,
            in("x1") args[1], in("x2") args[2], in("x3") args[3], in("x4") args[4], in("x5") args[5],
            options(nostack));
    }
    if (-4095..0).contains(&answer) { Err(Errno(-answer as i32)) } else { Ok(answer as usize) }
}

/// `syscall!(NUMBER, arguments…)`: the arguments are cast to `usize`.
#[macro_export]
#[doc(hidden)]
macro_rules! raw {
    ($nr:expr $(, $arg:expr)* $(,)?) => {{
        let all = [$($arg as usize,)* 0, 0, 0, 0, 0, 0];
        let args = [all[0], all[1], all[2], all[3], all[4], all[5]];
        $crate::sys::syscall($nr, args)
    }};
}

/// Starts a child that shares this memory, on a stack of its own, in `entry(argument)`.
///
/// `flags` are those of `clone(2)`, the exit signal included. With `CLONE_PIDFD` the descriptor of the child is
/// stored at `pidfd`.
///
/// # Safety
/// `stack_top` must be the 16-byte aligned end of memory that nothing else uses until the child is gone or has
/// executed another program; with `CLONE_VM`, what `entry` touches must stay valid for as long.
pub unsafe fn clone_onto(
    flags: usize,
    stack_top: *mut u8,
    pidfd: *mut i32,
    entry: unsafe extern "C" fn(*mut u8) -> !,
    argument: *mut u8,
) -> Result<i32> {
    // SAFETY: the caller's promise is that of the assembly below.
    let answer = unsafe { clone_raw(flags, stack_top, pidfd, entry, argument) };
    if (-4095..0).contains(&answer) { Err(Errno(-answer as i32)) } else { Ok(answer as i32) }
}

/// The child comes back from the kernel on the new stack, where no Rust frame exists: hence a naked function.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn clone_raw(
    _flags: usize,
    _stack_top: *mut u8,
    _pidfd: *mut i32,
    _entry: unsafe extern "C" fn(*mut u8) -> !,
    _argument: *mut u8,
) -> isize {
    // rdi flags, rsi stack, rdx pidfd, rcx entry, r8 argument
    naked_asm!(
        "mov r9, rcx",    // `syscall` overwrites rcx; r8 and r9 survive it
        "xor r10d, r10d", // no child tid
        "push r12",
        "mov r12, r8", // the argument; r8 is the tls argument of the call
        "xor r8d, r8d",
        "mov eax, 56", // clone
        "syscall",
        "test rax, rax",
        "jnz 2f",
        "xor ebp, ebp",
        "mov rdi, r12",
        "call r9",
        "ud2",
        "2:",
        "pop r12",
        "ret",
    )
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn clone_raw(
    _flags: usize,
    _stack_top: *mut u8,
    _pidfd: *mut i32,
    _entry: unsafe extern "C" fn(*mut u8) -> !,
    _argument: *mut u8,
) -> isize {
    // x0 flags, x1 stack, x2 pidfd, x3 entry, x4 argument; the call takes x3 tls, x4 child tid
    core::arch::naked_asm!(
        "mov x9, x3",
        "mov x10, x4",
        "mov x3, xzr",
        "mov x4, xzr",
        "mov x8, #220", // clone
        "svc 0",
        "cbnz x0, 2f",
        "mov x29, xzr",
        "mov x0, x10",
        "blr x9",
        "brk #1",
        "2:",
        "ret",
    )
}

macro_rules! numbers {
    ($($name:ident $x86:literal $arm:literal;)*) => {
        /// System call numbers.
        pub mod nr {
            $(
                #[cfg(target_arch = "x86_64")]
                pub const $name: usize = $x86;
                #[cfg(target_arch = "aarch64")]
                pub const $name: usize = $arm;
            )*
        }
    };
}

// x86-64, then AArch64. From `io_uring_setup` on the numbers are the same everywhere.
numbers! {
    CONNECT 42 203; GETPID 39 172; GETUID 102 174; INOTIFY_INIT1 294 26; INOTIFY_ADD_WATCH 254 27; INOTIFY_RM_WATCH 255 28;
    READ 0 63; WRITE 1 64; CLOSE 3 57; FSTAT 5 80; LSEEK 8 62; MMAP 9 222; MUNMAP 11 215;
    RT_SIGACTION 13 134; RT_SIGPROCMASK 14 135; IOCTL 16 29; PREAD64 17 67; SOCKET 41 198; SENDMSG 46 211;
    RECVMSG 47 212; BIND 49 200; LISTEN 50 201; SOCKETPAIR 53 199; SETSOCKOPT 54 208; GETSOCKOPT 55 209;
    CLONE 56 220; EXIT 60 93; WAIT4 61 260; KILL 62 129; FCNTL 72 25; FLOCK 73 32; FTRUNCATE 77 46;
    CHDIR 80 49; FCHDIR 81 50; FCHMOD 91 52; FCHOWN 93 55; UMASK 95 166; SETGROUPS 116 159; SETRESUID 117 147;
    SETRESGID 119 149; SETFSUID 122 151; SETFSGID 123 152; CAPGET 125 90; CAPSET 126 91; SETSID 112 157;
    FSTATFS 138 44; PRCTL 157 167; PIVOT_ROOT 155 41; SETHOSTNAME 170 161; GETDENTS64 217 61;
    CLOCK_GETTIME 228 113; EXIT_GROUP 231 94; UMOUNT2 166 39; KEYCTL 250 219; OPENAT 257 56; MKDIRAT 258 34;
    MKNODAT 259 33; FCHOWNAT 260 54; NEWFSTATAT 262 79; UNLINKAT 263 35; SYMLINKAT 266 36; READLINKAT 267 78;
    FCHMODAT 268 53; FACCESSAT 269 48; UTIMENSAT 280 88; ACCEPT4 288 242; SIGNALFD4 289 74;
    PPOLL 271 73; EPOLL_CREATE1 291 20; EPOLL_CTL 233 21; DUP3 292 24; PIPE2 293 59; PRLIMIT64 302 261; RENAMEAT2 316 276;
    SECCOMP 317 277; GETRANDOM 318 278; MEMFD_CREATE 319 279; EXECVEAT 322 281; STATX 332 291; EXECVE 59 221;
    PIDFD_SEND_SIGNAL 424 424; OPEN_TREE 428 428; MOVE_MOUNT 429 429; FSOPEN 430 430; FSCONFIG 431 431;
    FSMOUNT 432 432; PIDFD_OPEN 434 434; CLONE3 435 435; CLOSE_RANGE 436 436; OPENAT2 437 437;
    EPOLL_PWAIT2 441 441; MOUNT_SETATTR 442 442;
    // Only refused, never called.
    PTRACE 101 117; SYSLOG 103 116; PERSONALITY 135 92; CHROOT 161 51; MOUNT 165 40; SWAPON 167 224;
    SWAPOFF 168 225; REBOOT 169 142; INIT_MODULE 175 105; DELETE_MODULE 176 106; QUOTACTL 179 60;
    ADD_KEY 248 217; REQUEST_KEY 249 218; UNSHARE 272 97; PERF_EVENT_OPEN 298 241; FANOTIFY_INIT 300 262;
    NAME_TO_HANDLE_AT 303 264; OPEN_BY_HANDLE_AT 304 265; SETNS 308 268; KCMP 312 272; FINIT_MODULE 313 273;
    KEXEC_LOAD 246 104; KEXEC_FILE_LOAD 320 294; BPF 321 280; USERFAULTFD 323 282; ACCT 163 89;
    PROCESS_VM_READV 310 270; PROCESS_VM_WRITEV 311 271; SETTIMEOFDAY 164 170; CLOCK_SETTIME 227 112;
    CLOCK_ADJTIME 305 266; ADJTIMEX 159 171; MBIND 237 235; MOVE_PAGES 279 239; MIGRATE_PAGES 256 238;
    LOOKUP_DCOOKIE 212 18; NFSSERVCTL 180 42; VHANGUP 153 58;
    IO_URING_SETUP 425 425; IO_URING_ENTER 426 426; IO_URING_REGISTER 427 427; FSPICK 433 433;
    PIDFD_GETFD 438 438; QUOTACTL_FD 443 443; STATMOUNT 457 457; LISTMOUNT 458 458;
    OPEN_TREE_ATTR 467 467; FCHMODAT2 452 452; SET_MEMPOLICY 238 237; SET_MEMPOLICY_HOME_NODE 450 450;
    PROCESS_MRELEASE 448 448; PROCESS_MADVISE 440 440; REMAP_FILE_PAGES 216 234;
}

#[cfg(target_arch = "x86_64")]
pub mod nr_x86 {
    //! Calls that only x86-64 still has.
    pub const OPEN: usize = 2;
    pub const CREAT: usize = 85;
    pub const CHMOD: usize = 90;
    pub const MKNOD: usize = 133;
    pub const USELIB: usize = 134;
    pub const SYSFS: usize = 139;
    pub const MODIFY_LDT: usize = 154;
    pub const IOPL: usize = 172;
    pub const IOPERM: usize = 173;
}

pub const AT_FDCWD: i32 = -100;
pub const AT_EMPTY_PATH: usize = 0x1000;
pub const AT_SYMLINK_NOFOLLOW: usize = 0x100;
pub const AT_REMOVEDIR: usize = 0x200;
pub const AT_RECURSIVE: usize = 0x8000;

pub const O_RDONLY: usize = 0;
pub const O_WRONLY: usize = 1;
pub const O_RDWR: usize = 2;
pub const O_CREAT: usize = 0o100;
pub const O_EXCL: usize = 0o200;
pub const O_NOCTTY: usize = 0o400;
pub const O_TRUNC: usize = 0o1000;
pub const O_APPEND: usize = 0o2000;
pub const O_NONBLOCK: usize = 0o4000;
pub const O_CLOEXEC: usize = 0o2_000_000;
pub const O_PATH: usize = 0o10_000_000;
#[cfg(target_arch = "x86_64")]
pub const O_DIRECTORY: usize = 0o200_000;
#[cfg(target_arch = "x86_64")]
pub const O_NOFOLLOW: usize = 0o400_000;
#[cfg(target_arch = "aarch64")]
pub const O_DIRECTORY: usize = 0o40_000;
#[cfg(target_arch = "aarch64")]
pub const O_NOFOLLOW: usize = 0o100_000;

pub const CLONE_VM: usize = 0x100;
pub const CLONE_FS: usize = 0x200;
pub const CLONE_FILES: usize = 0x400;
pub const CLONE_PIDFD: usize = 0x1000;
pub const CLONE_VFORK: usize = 0x4000;
pub const CLONE_NEWTIME: usize = 0x80;
pub const CLONE_NEWNS: usize = 0x0002_0000;
pub const CLONE_NEWCGROUP: usize = 0x0200_0000;
pub const CLONE_NEWUTS: usize = 0x0400_0000;
pub const CLONE_NEWIPC: usize = 0x0800_0000;
pub const CLONE_NEWUSER: usize = 0x1000_0000;
pub const CLONE_NEWPID: usize = 0x2000_0000;
pub const CLONE_NEWNET: usize = 0x4000_0000;

pub const SIGCHLD: usize = 17;
pub const SIG_BLOCK: usize = 0;
pub const SIG_SETMASK: usize = 2;

pub const PR_SET_DUMPABLE: usize = 4;
pub const PR_GET_DUMPABLE: usize = 3;
pub const PR_SET_NAME: usize = 15;
pub const PR_SET_CHILD_SUBREAPER: usize = 36;
pub const PR_CAPBSET_DROP: usize = 24;
pub const PR_SET_SECUREBITS: usize = 28;
pub const PR_SET_NO_NEW_PRIVS: usize = 38;
pub const PR_CAP_AMBIENT: usize = 47;
pub const PR_CAP_AMBIENT_RAISE: usize = 2;
pub const PR_CAP_AMBIENT_CLEAR_ALL: usize = 4;

/// Capability numbers, as bits of a 64-bit set.
pub mod cap {
    pub const CHOWN: u64 = 1 << 0;
    pub const DAC_OVERRIDE: u64 = 1 << 1;
    pub const DAC_READ_SEARCH: u64 = 1 << 2;
    pub const FOWNER: u64 = 1 << 3;
    pub const FSETID: u64 = 1 << 4;
    pub const KILL: u64 = 1 << 5;
    pub const SETGID: u64 = 1 << 6;
    pub const SETUID: u64 = 1 << 7;
    pub const SETPCAP: u64 = 1 << 8;
    pub const NET_ADMIN: u64 = 1 << 12;
    pub const SYS_PTRACE: u64 = 1 << 19;
    pub const SYS_ADMIN: u64 = 1 << 21;
    pub const SYS_RESOURCE: u64 = 1 << 24;
    pub const LAST: u32 = 40;

    /// What the guest needs while it builds the sandbox.
    pub const SETUP: u64 = CHOWN
        | DAC_OVERRIDE
        | DAC_READ_SEARCH
        | FOWNER
        | FSETID
        | KILL
        | SETGID
        | SETUID
        | SETPCAP
        | NET_ADMIN
        | SYS_PTRACE
        | SYS_ADMIN
        | SYS_RESOURCE;

    /// What it keeps to run jobs (a cgroup namespace for each), see, signal and own them, and to clean up.
    pub const SERVE: u64 =
        DAC_OVERRIDE | DAC_READ_SEARCH | FOWNER | KILL | SETGID | SETUID | SYS_PTRACE | SYS_ADMIN;
}

/// Sets this thread's capability sets.
#[inline]
pub fn capset(effective: u64, permitted: u64, inheritable: u64) -> Result<()> {
    let header: [u32; 2] = [0x2008_0522, 0]; // _LINUX_CAPABILITY_VERSION_3, this thread
    let data: [u32; 6] = [
        effective as u32,
        permitted as u32,
        inheritable as u32,
        (effective >> 32) as u32,
        (permitted >> 32) as u32,
        (inheritable >> 32) as u32,
    ];
    // SAFETY: both arrays have the layout and size that this version of the header promises.
    unsafe { raw!(nr::CAPSET, header.as_ptr(), data.as_ptr()) }.map(drop)
}

/// This process's permitted capabilities.
pub fn permitted() -> Result<u64> {
    let header: [u32; 2] = [0x2008_0522, 0];
    let mut data = [0u32; 6];
    // SAFETY: both arrays have the layout and size that this version of the header promises.
    unsafe { raw!(nr::CAPGET, header.as_ptr(), data.as_mut_ptr()) }?;
    Ok(u64::from(data[1]) | u64::from(data[4]) << 32)
}

/// Ends the process at once, without running anything else.
pub fn exit_group(code: i32) -> ! {
    loop {
        // SAFETY: takes no pointers and does not return.
        let _ = unsafe { raw!(nr::EXIT_GROUP, code) };
    }
}
