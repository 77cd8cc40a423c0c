//! Starting a command.
//!
//! The child shares this process's memory until it executes its program: there is nothing to copy, and what went wrong
//! is simply there to be read. In return the child must not allocate, and touches nothing but its [`Plan`].
//!
//! This process does not wait for it. Between taking its user's id and executing, the child can be stopped by whatever
//! runs as that user; a supervisor that waited (`CLONE_VFORK`) would be stopped with it. Instead each child has a stack
//! of its own and the end of a pipe, which closes when it has executed its program, or ended.
//!
//! In a container a keeper stands in between, which may well wait ([`crate::keeper`]).

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cell::UnsafeCell;

use crate::keeper;
use crate::os::{self, Fd, Path};
use crate::proto::{Boot, Bytes, CODE_ID, Exec, GUEST_ID, Stage};
use crate::seccomp::Filter;
use crate::setup::{Place, Sandbox};
use crate::sys::{self, AT_FDCWD, Errno, Result, nr};
use crate::tree::{self, Marker};
use crate::users::{self, Account};

const STACK: usize = 16 * 1024;

/// A command that could not be started.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) stage: Stage,
    pub(crate) errno: Errno,
}

fn failed<T>(stage: Stage, errno: Errno) -> core::result::Result<T, Failure> {
    Err(Failure { stage, errno })
}

/// Standard input, output and error of a command.
pub(crate) struct Stdio {
    pub(crate) fds: [i32; 3],
    /// Whether they are a terminal, which the command then gets to control.
    pub(crate) terminal: bool,
}

/// A user inside.
#[derive(Clone, Copy, Default)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

pub(crate) const CODE: User = User { uid: CODE_ID, gid: CODE_ID };

/// What starts commands.
pub(crate) struct Starter {
    /// Stacks that are not in use.
    stacks: Vec<Vec<u8>>,
    second_filter: Option<Box<Filter>>,
}

/// A command that is being started. Must not be dropped before [`done`](Self::done) can be read from: until then the
/// child uses its memory.
pub(crate) struct Starting {
    /// Its first process; in a container, its keeper.
    pub(crate) pid: i32,
    /// At its end once the child has executed its program, or ended. In a container, where the keeper reports.
    pub(crate) done: Fd,
    /// What the child uses. A keeper has a copy.
    shared: Option<(Box<UnsafeCell<Plan>>, Vec<u8>)>,
}

/// All that the child needs, made beforehand.
pub(crate) struct Plan {
    programs: Vec<Path>,
    argv: Words,
    env: Words,
    cwd: Path,
    stdio: Stdio,
    user: Option<User>,
    /// The groups that the user is in beside its first, where such things are known.
    groups: Option<Vec<u32>>,
    /// Whether the rights that this program has are the user's, too.
    keeps_rights: bool,
    descriptors: [u64; 2],
    second_filter: Option<*const Filter>,
    /// Where to find the mark that the command got, if it got one.
    proc: Option<i32>,
    marker: [u8; 64],
    marker_len: usize,
    /// Why it could not become the program; nothing once that runs.
    failure: Option<(Stage, Errno)>,
}

/// Strings, and the array of pointers to them that `execve` wants.
struct Words {
    pointers: Vec<*const u8>,
    _strings: Vec<Path>,
}

impl Starter {
    pub(crate) fn new(boot: &Boot) -> Self {
        let second_filter = boot.deny_set_id.then(|| Box::new(Filter::no_set_id()));
        Self { stacks: Vec::new(), second_filter }
    }

    pub(crate) fn start(
        &mut self,
        boot: &Boot,
        sandbox: &Sandbox,
        exec: &Exec,
        account: &Account,
        stdio: Stdio,
    ) -> core::result::Result<Starting, Failure> {
        let environment = environment(boot, exec, account)?;
        let argv = words(exec.argv.iter().map(|word| word.0.clone()))?;
        let program = exec.argv.first().filter(|program| !program.is_empty());
        let Some(program) = program else {
            return failed(Stage::Program, Errno::NOENT);
        };
        let programs = candidates(program, environment.get(&b"PATH"[..]).map(Vec::as_slice))?;
        let env = words(environment.into_iter().map(|(mut name, value)| {
            name.push(b'=');
            name.extend_from_slice(&value);
            name
        }))?;
        let cwd = if exec.cwd.is_empty() { &boot.cwd } else { &exec.cwd };
        let cwd = absolute(&boot.cwd, cwd).or_else(|errno| failed(Stage::Cwd, errno))?;
        let own = matches!(sandbox.place, Place::Own);
        let mut plan = Box::new(UnsafeCell::new(Plan {
            programs,
            argv,
            env,
            cwd,
            stdio,
            user: boot.several_ids.then_some(account.user),
            groups: (!own).then(|| account.groups.clone()),
            keeps_rights: !own && account.user.uid == 0,
            descriptors: sandbox.descriptors,
            second_filter: self.second_filter.as_deref().map(core::ptr::from_ref),
            proc: own.then_some(sandbox.proc.raw()),
            marker: [0; 64],
            marker_len: 0,
            failure: None,
        }));
        let mut stack = self.stacks.pop().unwrap_or_else(|| os::buffer(STACK));
        if !own {
            let started = keeper::start(plan.get_mut(), &mut stack);
            self.stacks.push(stack);
            return match started {
                Ok((pid, done)) => Ok(Starting { pid, done, shared: None }),
                Err(errno) => failed(Stage::Process, errno),
            };
        }
        let (done, theirs) = os::pipe().or_else(|errno| failed(Stage::Process, errno))?;
        let top = stack.as_mut_ptr_range().end;
        let top = top.wrapping_sub(top as usize % 16);
        let flags = sys::CLONE_VM | sys::CLONE_NEWCGROUP | sys::SIGCHLD;
        // SAFETY: stack and plan are the child's alone until it has executed its program or ended, which is when the
        // pipe ends and not before this value is done with.
        let pid = unsafe { sys::clone_onto(flags, top, core::ptr::null_mut(), child, plan.get().cast()) };
        drop(theirs);
        match pid {
            Ok(pid) => Ok(Starting { pid, done, shared: Some((plan, stack)) }),
            Err(errno) => failed(Stage::Process, errno),
        }
    }

    /// What became of a command whose pipe has ended: the mark of its processes, or why it could not be started.
    pub(crate) fn finish(&mut self, starting: Starting) -> core::result::Result<Marker, Failure> {
        let Some((plan, stack)) = starting.shared else { return Ok(0) };
        self.stacks.push(stack);
        // SAFETY: the child is done with it. It wrote through a pointer, hence the careful reading.
        let (failure, marker, len) = unsafe {
            let plan = plan.get();
            ((&raw const (*plan).failure).read_volatile(), (*plan).marker, (*plan).marker_len)
        };
        match failure {
            // The child has ended. It is reaped with all the others.
            Some((stage, errno)) => failed(stage, errno),
            None => Ok(marker.get(..len).and_then(tree::parse_marker).unwrap_or(0)),
        }
    }
}

/// The child's side. Runs on a borrowed stack in borrowed memory: no allocation, no panic, no return.
pub(crate) unsafe extern "C" fn child(plan: *mut u8) -> ! {
    // SAFETY: `start` passes its plan and leaves it to this process.
    #[allow(clippy::cast_ptr_alignment)]
    let plan = unsafe { &mut *plan.cast::<Plan>() };
    let (stage, errno) = become_program(plan);
    plan.failure = Some((stage, errno));
    sys::exit_group(127)
}

/// Why a child that is done with the plan could not become the program. It wrote through a pointer, hence the careful
/// reading.
pub(crate) fn failure(plan: &Plan) -> Option<(Stage, Errno)> {
    // SAFETY: a field of a live reference.
    unsafe { (&raw const plan.failure).read_volatile() }
}

/// The descriptors that the program gets as its first three.
pub(crate) fn stdio(plan: &mut Plan) -> &mut [i32; 3] {
    &mut plan.stdio.fds
}

fn become_program(plan: &mut Plan) -> (Stage, Errno) {
    match prepare(plan) {
        Ok(()) => execute(plan),
        Err(failure) => failure,
    }
}

fn prepare(plan: &mut Plan) -> core::result::Result<(), (Stage, Errno)> {
    let at = |stage: Stage| move |errno: Errno| (stage, errno);
    if let Some(proc) = plan.proc {
        plan.marker_len =
            os::readlinkat(proc, c"self/ns/cgroup", &mut plan.marker).map_err(at(Stage::Process))?.len();
    }
    // SAFETY: these take integers, and pointers to what the plan keeps alive.
    unsafe {
        raw!(nr::SETSID).map_err(at(Stage::Process))?;
        for (target, fd) in plan.stdio.fds.into_iter().enumerate() {
            // What is in its place already (`/dev/null`) stays open on exec.
            if fd as usize != target {
                raw!(nr::DUP3, fd, target, 0).map_err(at(Stage::Process))?;
            }
        }
        if plan.stdio.terminal {
            raw!(nr::IOCTL, 0, 0x540e, 0).map_err(at(Stage::Terminal))?; // TIOCSCTTY
        }
        // CLOSE_RANGE_CLOEXEC: not before, for one of them is the pipe whose end says that this memory is free.
        raw!(nr::CLOSE_RANGE, 3, u32::MAX, 4).map_err(at(Stage::Process))?;
        raw!(nr::UMASK, 0o022).map_err(at(Stage::Process))?;
        if let Some(groups) = &plan.groups {
            raw!(nr::SETGROUPS, groups.len(), groups.as_ptr()).map_err(at(Stage::User))?;
        }
        if let Some(User { uid, gid }) = plan.user {
            raw!(nr::SETRESGID, gid, gid, gid).map_err(at(Stage::User))?;
            raw!(nr::SETRESUID, uid, uid, uid).map_err(at(Stage::User))?;
        }
    }
    os::set_limit(os::RLIMIT_NOFILE, plan.descriptors).map_err(at(Stage::Process))?;
    // From here on with the rights of the code: it must be its own that lead to the folder and the program.
    if !plan.keeps_rights {
        sys::capset(0, 0, 0).map_err(at(Stage::User))?;
    }
    if let Some(filter) = plan.second_filter {
        // SAFETY: the starter has it for good.
        unsafe { &*filter }.install().map_err(at(Stage::Process))?;
    }
    os::chdir(&plan.cwd).map_err(at(Stage::Cwd))?;
    os::set_signal_mask(0);
    Ok(())
}

/// Tries each place a program may be at. Comes back only if none would do.
fn execute(plan: &Plan) -> (Stage, Errno) {
    let (argv, env) = (plan.argv.pointers.as_ptr(), plan.env.pointers.as_ptr());
    let mut failure = (Stage::Program, Errno::NOENT);
    for program in &plan.programs {
        // SAFETY: NUL-terminated strings in null-terminated arrays, which the plan keeps alive.
        let Err(errno) = (unsafe { raw!(nr::EXECVE, program.as_ptr(), argv, env) }) else {
            continue;
        };
        match errno {
            Errno::NOENT => {
                // SAFETY: the path ends with a NUL. F_OK.
                if unsafe { raw!(nr::FACCESSAT, AT_FDCWD, program.as_ptr(), 0) }.is_ok() {
                    return (Stage::Interpreter, errno);
                }
            }
            Errno::NOTDIR => {}
            // A later one may do; if none does, this is the better reason.
            Errno::ACCES => failure = (Stage::Program, errno),
            errno => return (Stage::Program, errno),
        }
    }
    failure
}

/// Where a program may be: at its path, or under each folder of `PATH`.
fn candidates(program: &[u8], path: Option<&[u8]>) -> core::result::Result<Vec<Path>, Failure> {
    let invalid = |errno| Failure { stage: Stage::Program, errno };
    if program.contains(&b'/') {
        return Ok(Vec::from([os::path(program).map_err(invalid)?]));
    }
    let folders = path.unwrap_or(b"/usr/local/bin:/usr/bin:/bin").split(|byte| *byte == b':');
    folders
        .map(|folder| {
            let mut path = Vec::from(if folder.is_empty() { b"." } else { folder });
            path.push(b'/');
            path.extend_from_slice(program);
            os::path(&path).map_err(invalid)
        })
        .collect()
}

/// The sandbox's environment, the user's, and on top the command's own.
fn environment(
    boot: &Boot,
    exec: &Exec,
    account: &Account,
) -> core::result::Result<BTreeMap<Vec<u8>, Vec<u8>>, Failure> {
    let mut environment = BTreeMap::new();
    let mut add = |name: &[u8], value: &[u8]| {
        if name.is_empty() || name.contains(&b'=') || name.contains(&0) || value.contains(&0) {
            return failed(Stage::Request, Errno::INVAL);
        }
        environment.insert(name.to_vec(), value.to_vec());
        Ok(())
    };
    if !account.home.is_empty() {
        // What an image says of itself goes before what its users are.
        add(b"HOME", &account.home)?;
    }
    for (name, value) in &boot.env {
        add(name, value)?;
    }
    if account.home.is_empty() && account.user.uid == 0 {
        for (name, value) in [("HOME", "/root"), ("USER", "root"), ("LOGNAME", "root")] {
            add(name.as_bytes(), value.as_bytes())?;
        }
    }
    for (name, value) in &exec.env {
        add(name, value)?;
    }
    Ok(environment)
}

fn words(words: impl Iterator<Item = Vec<u8>>) -> core::result::Result<Words, Failure> {
    let strings: Result<Vec<Path>> = words.map(|word| os::path(&word)).collect();
    let strings = strings.or_else(|errno| failed(Stage::Request, errno))?;
    let pointers = strings.iter().map(|string| string.as_ptr().cast()).chain([core::ptr::null()]).collect();
    Ok(Words { pointers, _strings: strings })
}

/// A path from the root: relative ones begin at `base`.
pub(crate) fn absolute(base: &[u8], path: &[u8]) -> Result<Path> {
    if path.first() == Some(&b'/') {
        return os::path(path);
    }
    let mut whole = base.to_vec();
    whole.push(b'/');
    whole.extend_from_slice(path);
    os::path(&whole)
}

/// The user that a command asks for: a name that every sandbox has, or `uid[:gid]`.
pub(crate) fn account(
    boot: &Boot,
    sandbox: &Sandbox,
    text: &Bytes,
) -> core::result::Result<Account, Failure> {
    match &sandbox.place {
        Place::Own => user(boot, text).map(|user| Account { user, ..Account::default() }),
        Place::Container(container) if text.is_empty() => Ok(container.account.clone()),
        Place::Container(_) => users::find(&sandbox.root, text).or_else(|errno| failed(Stage::User, errno)),
    }
}

fn user(boot: &Boot, text: &Bytes) -> core::result::Result<User, Failure> {
    let user = match &text.0[..] {
        b"" | b"user" => CODE,
        b"root" => User { uid: 0, gid: 0 },
        numbers => {
            let text = core::str::from_utf8(numbers).unwrap_or_default();
            let (uid, gid) = text.split_once(':').unwrap_or((text, text));
            match (uid.parse(), gid.parse()) {
                (Ok(uid), Ok(gid)) => User { uid, gid },
                _ => return failed(Stage::User, Errno::NOENT),
            }
        }
    };
    if boot.several_ids && user.uid.max(user.gid) < GUEST_ID || (user.uid, user.gid) == (CODE_ID, CODE_ID) {
        Ok(user)
    } else {
        failed(Stage::User, Errno::PERM)
    }
}

/// A new terminal that belongs to `user`: the master, and the terminal itself.
pub(crate) fn terminal(sandbox: &Sandbox, user: User, size: (u16, u16)) -> Result<(Fd, Fd)> {
    let flags = sys::O_RDWR | sys::O_NOCTTY;
    let master = os::with_file_ids(user, || os::openat(sandbox.devpts.raw(), c"ptmx", flags, 0))?;
    resize(&master, size)?;
    let unlock = 0i32;
    // SAFETY: TIOCSPTLCK reads an integer.
    unsafe { os::ioctl(master.raw(), 0x4004_5431, &raw const unlock as usize) }?;
    // SAFETY: TIOCGPTPEER takes flags and answers with a descriptor.
    let slave = unsafe { os::ioctl(master.raw(), 0x5441, flags | sys::O_CLOEXEC) }?;
    Ok((master, Fd::inherited(slave as i32)))
}

pub(crate) fn resize(master: &Fd, (rows, columns): (u16, u16)) -> Result<()> {
    let size = [rows, columns, 0, 0];
    // SAFETY: TIOCSWINSZ reads four 16-bit integers.
    unsafe { os::ioctl(master.raw(), 0x5414, size.as_ptr() as usize) }.map(drop)
}
