//! The event loop: requests, jobs and their ends, output, time.
//!
//! Everything is driven from here, in small steps: no request, no job and no number of either may keep the loop
//! from its other work.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use crate::files::{self, Served};
use crate::init::{self, Newcomer, Presented};
use crate::job::{self, Starter, Starting, Stdio, User};
use crate::keeper::{self, Report};
use crate::log::{At, Log};
use crate::os::{self, EPOLLIN, EPOLLOUT, EPOLLRDHUP, Fd, Ready, Watch};
use crate::proto::{
    self, Boot, Bytes, CODE_ID, Cause, Contain, Event, Exec, Exit, Malformed, Refusal, Request, Stage, Stream,
};
use crate::setup::{Place, Sandbox};
use crate::sys::{self, Errno};
use crate::tree::{self, Kill, Marker, Step};
use crate::{users, wire};

const DEFAULT_RETAIN: u64 = 1 << 20;
/// What all logs together keep.
const RETAIN_IN_ALL: usize = 16 << 20;
/// Jobs that have ended and are remembered.
const REMEMBERED: usize = 256;
/// Connections, channels and followers at a time.
const SOURCES: usize = 1024;
/// Ended processes that are reaped in one turn.
const REAPED_IN_A_TURN: usize = 64;
/// Bytes of output in one packet.
const PACKET: usize = 32 * 1024;
/// Packets that a follower gets in one turn.
const PACKETS_IN_A_TURN: usize = 8;
/// How much of a command's words a listing shows.
const SHOWN_WORDS: usize = 16;
const SHOWN_BYTES: usize = 128;
const SHOWN_PIDS: usize = 1024;
const JOBS_IN_A_PACKET: usize = 6;

const NANOS_PER_MILLI: u64 = 1_000_000;

const SIGKILL: i32 = 9;
const SIGTERM: usize = 15;

type Key = u64;

/// What a ready descriptor is for. Descriptors of jobs are kept with the job.
enum Source {
    Listener,
    Signals(Fd),
    /// A client that is not trusted yet (containers only).
    Newcomer(Newcomer),
    Control(Fd),
    Files(Fd),
    Reply(Key),
    Starting(Key),
    /// What the keeper of a job that runs has to say (containers only).
    Keeper(Key),
    Output(Key, Stream),
    Follower(Key),
}

struct Job {
    id: Bytes,
    argv: Vec<Bytes>,
    started: u64,
    began: u64,
    background: bool,
    /// Its first process; in a container, its keeper. 0 once that has been reaped.
    pid: i32,
    /// The process that leads the group of the job's first process: itself.
    leader: i32,
    /// Until it is known whether it runs.
    starting: Option<Start>,
    /// Where a keeper reports.
    reports: Option<(u64, Fd)>,
    /// 0 while it is not known, and once no process of the job is left.
    marker: Marker,
    /// Keeps the marker's number from being given to another job's namespace while it is looked for.
    pin: Option<Fd>,
    deadline: Option<u64>,
    exit: Option<Exit>,
    /// The client of a foreground job.
    reply: Option<(u64, Fd)>,
    log: Log,
    output: Vec<(u64, Stream, Fd)>,
    /// What a client writes to: a pipe, or the terminal (which is also read from).
    input: Option<Fd>,
    terminal: bool,
    followers: Vec<Follower>,
    killing: Option<Killing>,
}

impl Job {
    /// No process of it is left to be found by its mark.
    fn unmark(&mut self) {
        self.marker = 0;
        self.pin = None;
    }

    /// Whether its processes can be told from others'.
    fn is_marked(&self) -> bool {
        self.starting.is_none() || self.marker != 0
    }
}

/// A command on its way, and who wants to hear of it.
struct Start {
    starting: Starting,
    token: u64,
    /// The client of a background job; a foreground job has its own for longer.
    reply: Option<Fd>,
    /// What the client gets.
    pass: Vec<Fd>,
}

struct Killing {
    kill: Kill,
    due: u64,
    cause: Cause,
    gone: bool,
    waiting: Vec<Fd>,
}

impl Killing {
    fn new(kill: Kill, cause: Cause) -> Self {
        Self { kill, due: 0, cause, gone: false, waiting: Vec::new() }
    }
}

struct Follower {
    token: u64,
    socket: Fd,
    position: u64,
}

struct Server {
    boot: Boot,
    sandbox: Sandbox,
    starter: Starter,
    /// The network namespace that clients must come from: that of the creator, if there is one.
    network: Option<u64>,
    epoll: Fd,
    sources: BTreeMap<u64, Source>,
    last_token: u64,
    /// The connection whose end is the end of a sandbox that is owned.
    owner: Option<u64>,
    /// Whether it is known what the sandbox is for.
    booted: bool,
    jobs: BTreeMap<Key, Job>,
    ended: VecDeque<Key>,
    /// Children that work for a file channel, by number.
    helpers: BTreeMap<i32, u64>,
    last_key: Key,
    deadline: Option<u64>,
    unreaped: bool,
    /// Whoever ended the sandbox is told here when nothing is left of it.
    farewell: Option<Fd>,
    /// It was stopped from outside, rather than that it has ended.
    stopped: bool,
    packet: Vec<u8>,
    chunk: Vec<u8>,
}

/// Serves until the sandbox ends.
pub(crate) fn run(boot: Boot, sandbox: Sandbox, owner: Fd) {
    let deadline = deadline(boot.ttl);
    serve(boot, sandbox, Some(owner), deadline);
}

/// Serves a container until it ends, or for so many milliseconds if nobody tells it what it is for.
pub(crate) fn contain(sandbox: Sandbox, boot_within: u64) {
    serve(Boot { several_ids: true, ..Boot::default() }, sandbox, None, deadline(boot_within.max(1)));
}

fn serve(boot: Boot, sandbox: Sandbox, owner: Option<Fd>, deadline: Option<u64>) {
    let Ok(epoll) = os::epoll_create() else { return drop(sandbox.remove()) };
    let network = owner.as_ref().and_then(|owner| os::network(owner.raw()).ok());
    let starter = Starter::new(&boot);
    let mut server = Server {
        boot,
        sandbox,
        starter,
        network,
        epoll,
        sources: BTreeMap::new(),
        last_token: 0,
        owner: None,
        booted: owner.is_some(),
        jobs: BTreeMap::new(),
        ended: VecDeque::new(),
        helpers: BTreeMap::new(),
        last_key: 0,
        deadline,
        unreaped: false,
        farewell: None,
        stopped: false,
        packet: os::buffer(proto::MAX_PACKET),
        chunk: os::buffer(64 * 1024),
    };
    server.serve(owner);
    server.end()
}

fn deadline(millis: u64) -> Option<u64> {
    (millis > 0).then(|| os::monotonic().saturating_add(millis.saturating_mul(NANOS_PER_MILLI)))
}

/// The sandbox is to end.
struct End;
type Turn = Result<(), End>;

impl Server {
    fn serve(&mut self, owner: Option<Fd>) {
        let signals = 1 << (sys::SIGCHLD - 1) | 1 << (SIGTERM - 1);
        os::set_signal_mask(signals);
        let Ok(signals) = os::signalfd(signals) else { return };
        if self.add(signals.raw(), EPOLLIN, Source::Signals(signals)).is_err()
            || self.add(self.sandbox.listener.raw(), EPOLLIN, Source::Listener).is_err()
        {
            return;
        }
        if let Some(owner) = owner {
            if wire::send(owner.raw(), &Event::Ready.encode(), &[]).is_err() {
                return;
            }
            let Ok(token) = self.add(owner.raw(), EPOLLIN | EPOLLRDHUP, Source::Control(owner)) else {
                return;
            };
            self.owner = Some(token);
        }

        let mut ready = [Ready::default(); 32];
        loop {
            let count = os::epoll_wait(&self.epoll, &mut ready, self.next_timeout());
            for event in &ready[..count] {
                let (token, events) = (event.token, event.events);
                if self.handle(token, events).is_err() {
                    return;
                }
            }
            self.reap();
            if self.check_times().is_err() {
                return;
            }
        }
    }

    /// Ends all that runs, removes the sandbox's folder, and ends this process.
    fn end(self) -> ! {
        loop {
            let _ = os::kill(-1, 9);
            // SAFETY: nothing but the number is asked for.
            match unsafe { raw!(sys::nr::WAIT4, -1isize, 0, 0, 0) } {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        let _removed = self.sandbox.remove();
        if let Some(reply) = &self.farewell {
            answer(reply, &Event::Done);
        }
        // Whoever is connected hears of it now. The kernel closes the rest, but only after it has taken namespaces and
        // mounts apart, for which nobody need wait.
        drop((self.jobs, self.sources, self.sandbox.listener));
        drop(self.farewell);
        // By this an engine's list tells a container that was stopped, and may be started again, from one that is over.
        sys::exit_group(if self.stopped { 128 + SIGTERM as i32 } else { 0 })
    }

    /// Watches a source. One that cannot be is dropped: nobody would ever come back to it.
    fn add(&mut self, fd: i32, events: u32, source: Source) -> sys::Result<u64> {
        self.last_token += 1;
        os::epoll_ctl(&self.epoll, Watch::Add, fd, events, self.last_token)?;
        self.sources.insert(self.last_token, source);
        Ok(self.last_token)
    }

    /// Forgets a source. Its descriptor is still open, and closed by whoever has it.
    fn remove(&mut self, token: u64, fd: i32) {
        // Closing would be enough, were there no duplicates of descriptors: a client may hold one.
        let _ = os::epoll_ctl(&self.epoll, Watch::Remove, fd, 0, 0);
        self.sources.remove(&token);
    }

    fn handle(&mut self, token: u64, events: u32) -> Turn {
        // Taken out, and put back if it stays. It may have gone in this very turn.
        let Some(source) = self.sources.remove(&token) else { return Ok(()) };
        match source {
            Source::Control(fd) => {
                if self.requests(&fd, token)? {
                    self.sources.insert(token, Source::Control(fd));
                } else if self.boot.owned && self.owner == Some(token) {
                    return Err(End);
                }
            }
            Source::Newcomer(newcomer) => match newcomer.present() {
                Presented::Trusted(fd) => drop(self.sources.insert(token, Source::Control(fd))),
                Presented::NotYet(newcomer) => drop(self.sources.insert(token, Source::Newcomer(newcomer))),
                Presented::Refused => {}
            },
            Source::Listener => {
                self.accept();
                self.sources.insert(token, Source::Listener);
            }
            Source::Signals(fd) => {
                let mut info = [0; 128];
                // One is enough: any more make it ready again, and all that have ended are reaped below.
                let _ = os::read(fd.raw(), &mut info);
                if is_order_to_end(&info) {
                    self.stopped = true;
                    return Err(End);
                }
                self.unreaped = true;
                self.sources.insert(token, Source::Signals(fd));
            }
            Source::Files(fd) => {
                match files::serve(&self.boot, &self.sandbox, &fd, &mut self.packet) {
                    Served::Answered | Served::Idle => {}
                    Served::Helper(pid) => drop(self.helpers.insert(pid, token)),
                    Served::Gone => return Ok(()),
                }
                self.sources.insert(token, Source::Files(fd));
            }
            Source::Reply(key) => self.client_left(key),
            Source::Starting(key) => self.started(key),
            Source::Keeper(key) => {
                self.sources.insert(token, Source::Keeper(key));
                self.kept(key);
            }
            Source::Output(key, stream) => {
                self.sources.insert(token, Source::Output(key, stream));
                self.read_output(key, token);
                self.feed_followers(key);
            }
            Source::Follower(key) => {
                self.sources.insert(token, Source::Follower(key));
                if events & !EPOLLOUT == 0 {
                    self.feed_followers(key);
                } else {
                    self.remove_follower(key, token);
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self) {
        let Ok(client) = os::accept(self.sandbox.listener.raw()) else { return };
        if !self.is_own() {
            if self.sources.len() < SOURCES
                && let Some(newcomer) = init::greet(client, &self.sandbox.proc)
            {
                let _ = self.add(newcomer.socket.raw(), EPOLLIN | EPOLLRDHUP, Source::Newcomer(newcomer));
            }
            return;
        }
        // The folder's mode keeps other users of the host out, and with a single id mapped, the client must have that id.
        let user = self.boot.several_ids || os::peer(client.raw()).is_ok_and(|[_, uid, _]| uid == CODE_ID);
        // What runs in a sandbox, this or another, cannot make a socket in any network but its own. So whatever
        // is mounted where, and whoever's id the code has, it does not come from where the creator is.
        let network = os::network(client.raw()).is_ok_and(|network| self.network == Some(network));
        if !user || !network {
            return refuse(&client, Refusal::Stranger);
        }
        if self.sources.len() < SOURCES {
            // What cannot be watched is closed.
            let _ = self.add(client.raw(), EPOLLIN | EPOLLRDHUP, Source::Control(client));
        }
    }

    /// Serves one request of a control connection; says whether the connection is still there.
    fn requests(&mut self, connection: &Fd, token: u64) -> Result<bool, End> {
        let packet = match wire::receive(connection.raw(), &mut self.packet, false) {
            Ok(Some(packet)) => packet,
            Err(Errno::AGAIN | Errno::MSGSIZE | Errno::PROTO) => return Ok(true),
            Ok(None) | Err(_) => return Ok(false),
        };
        let mut fds = packet.fds.into_iter();
        // Without a socket to answer on, there is nobody to tell.
        let Some(reply) = fds.next() else { return Ok(true) };
        match Request::decode(&packet.bytes) {
            Ok(request) => self.request(request, reply, fds.collect(), token)?,
            Err(Malformed::Version(_)) => answer(&reply, &Event::Version { version: proto::VERSION }),
            Err(_) => refuse(&reply, Refusal::Invalid),
        }
        Ok(true)
    }

    fn request(&mut self, request: Request, reply: Fd, fds: Vec<Fd>, token: u64) -> Turn {
        match request {
            Request::Contain { contain } => self.learn(contain, &reply, token),
            Request::Destroy => {
                self.farewell = Some(reply);
                return Err(End);
            }
            _ if !self.booted => refuse(&reply, Refusal::Unbooted),
            Request::Boot { .. } | Request::Present => refuse(&reply, Refusal::Invalid),
            Request::Exec { exec } => self.exec(&exec, reply, fds),
            Request::Attach { job, after, input } => self.attach(&job, after, input, reply),
            Request::Kill { job } => self.kill(&job, reply),
            Request::Signal { job, signal } => self.signal(&job, signal, &reply),
            Request::CloseStdin { job } => self.close_stdin(&job, &reply),
            Request::Resize { job, size } => self.resize(&job, size, &reply),
            Request::Jobs => self.list(&reply),
            Request::Info => answer(&reply, &Event::Info { info: self.info() }),
            Request::Detach => {
                self.boot.owned = false;
                answer(&reply, &Event::Done);
            }
            Request::Ttl { ttl } => {
                self.deadline = deadline(ttl);
                answer(&reply, &Event::Done);
            }
            Request::Files => {
                if self.sources.len() >= SOURCES {
                    refuse(&reply, Refusal::Busy);
                    return Ok(());
                }
                answer(&reply, &Event::Done);
                // What cannot be watched is closed.
                let _ = self.add(reply.raw(), EPOLLIN | EPOLLRDHUP, Source::Files(reply));
            }
        }
        Ok(())
    }

    /// A container is told what it is for.
    fn learn(&mut self, contain: Contain, reply: &Fd, token: u64) {
        let Place::Container(container) = &mut self.sandbox.place else {
            return refuse(reply, Refusal::Invalid);
        };
        if self.booted || contain.cwd.first() != Some(&b'/') {
            return refuse(reply, Refusal::Invalid);
        }
        container.account = match users::find(&self.sandbox.root, &contain.user) {
            Ok(account) => account,
            Err(errno) => {
                let step = "find the default user".into();
                return answer(reply, &Event::BootFailed { step, errno: errno.0 });
            }
        };
        let Contain { id, env, cwd, user: _, labels, meta, version, hostname, ttl, owned, created } = contain;
        let life =
            Boot { id, hostname, env, cwd, labels, meta, version, ttl, owned, created, ..Boot::default() };
        // What is left out is for sandboxes that are built here.
        self.boot = Boot { several_ids: true, ..life };
        self.deadline = deadline(ttl);
        self.owner = Some(token);
        self.booted = true;
        answer(reply, &Event::Ready);
    }

    fn exec(&mut self, exec: &Exec, reply: Fd, fds: Vec<Fd>) {
        match self.start(exec, fds) {
            Ok((starting, streams)) => self.add_job(exec, reply, starting, streams),
            Err(failure) => {
                answer(&reply, &Event::Failed { stage: failure.stage, errno: failure.errno.0 });
            }
        }
    }

    fn start(&mut self, exec: &Exec, fds: Vec<Fd>) -> Result<(Starting, Streams), job::Failure> {
        let account = job::account(&self.boot, &self.sandbox, &exec.user)?;
        if self.sources.len() >= SOURCES {
            return Err(job::Failure { stage: Stage::Process, errno: Errno::AGAIN });
        }
        let mut streams = self.streams(exec, account.user, fds)?;
        let stdio = core::mem::take(&mut streams.stdio);
        let starting = self.starter.start(&self.boot, &self.sandbox, exec, &account, stdio)?;
        streams.theirs.clear();
        Ok((starting, streams))
    }

    fn add_job(&mut self, exec: &Exec, reply: Fd, starting: Starting, streams: Streams) {
        self.last_key += 1;
        let key = self.last_key;
        let Streams { output: streams, input, pass, .. } = streams;
        let mut watched = true;
        let mut add = |fd: i32, events, source| {
            let token = self.add(fd, events, source);
            watched &= token.is_ok();
            token.unwrap_or(0) // which no source has
        };
        let mut output = Vec::with_capacity(streams.len());
        for (stream, fd) in streams {
            output.push((add(fd.raw(), EPOLLIN, Source::Output(key, stream)), stream, fd));
        }
        // The client of a foreground job hears of its end, and leaving kills the job.
        let (reply, other) = if exec.background { (None, Some(reply)) } else { (Some(reply), None) };
        let reply = reply.map(|reply| (add(reply.raw(), EPOLLRDHUP, Source::Reply(key)), reply));
        let pid = starting.pid;
        let token = add(starting.done.raw(), EPOLLIN, Source::Starting(key));
        let retain = if exec.retain == 0 { DEFAULT_RETAIN } else { exec.retain };
        let job = Job {
            id: Bytes(new_id()),
            argv: shorten(&exec.argv),
            started: os::wall_millis(),
            began: os::monotonic(),
            background: exec.background,
            pid,
            leader: pid,
            starting: Some(Start { starting, token, reply: other, pass }),
            reports: None,
            // A keeper is one from the beginning.
            marker: if self.is_own() { 0 } else { pid as Marker },
            pin: self.sandbox.place.pin(&self.sandbox.proc, pid),
            deadline: deadline(exec.timeout),
            exit: None,
            reply,
            log: Log::new((retain as usize).min(RETAIN_IN_ALL)),
            output,
            input,
            terminal: exec.pty.is_some(),
            followers: Vec::new(),
            killing: None,
        };
        self.jobs.insert(key, job);
        if !watched {
            // Its end is noticed all the same: it is a child. Whoever asked hears that it was killed, if they can.
            self.start_kill(key, Cause::Killed);
        }
    }

    /// Whether the sandbox has been built here.
    fn is_own(&self) -> bool {
        matches!(self.sandbox.place, Place::Own)
    }

    /// A command's program has been executed, or could not be.
    fn started(&mut self, key: Key) {
        let own = self.is_own();
        let Some(job) = self.jobs.get_mut(&key) else { return };
        let Some(Start { starting, token, reply: other, pass }) = job.starting.take() else { return };
        self.sources.remove(&token);
        let _ = os::epoll_ctl(&self.epoll, Watch::Remove, starting.done.raw(), 0, 0);
        let outcome = if own { self.starter.finish(starting) } else { self.first_report(key, starting) };
        match outcome {
            Ok(marker) => {
                // Where a number is not pinned (the process had ended before it could be), it is used again after the
                // namespace's end. Who had it before has no process left.
                for other in self.jobs.values_mut().filter(|other| other.marker == marker) {
                    other.unmark();
                }
                let Some(job) = self.jobs.get_mut(&key) else { return };
                job.marker = marker;
                let event = Event::Started { job: job.id.clone() };
                if let Some(reply) = job.reply.as_ref().map(|(_, reply)| reply).or(other.as_ref()) {
                    let fds: Vec<i32> = pass.iter().map(Fd::raw).collect();
                    // A client that is gone already is noticed like one that leaves later.
                    let _ = wire::send(reply.raw(), &event.encode(), &fds);
                }
                if let Some(killing) = &mut job.killing
                    && own
                {
                    // Only now is known what else there may be.
                    killing.kill = self.sandbox.place.kill(marker);
                }
            }
            Err(failure) => {
                let event = Event::Failed { stage: failure.stage, errno: failure.errno.0 };
                let Some(job) = self.jobs.get_mut(&key) else { return };
                if let Some(reply) = job.reply.as_ref().map(|(_, reply)| reply).or(other.as_ref()) {
                    answer(reply, &event);
                }
                if let Some(job) = self.jobs.remove(&key) {
                    self.close(&job);
                }
            }
        }
    }

    /// What a keeper says first: whether the program runs.
    fn first_report(&mut self, key: Key, starting: Starting) -> Result<Marker, job::Failure> {
        let Starting { pid, done, .. } = starting;
        match Report::receive(&done) {
            Ok(Some(Report::Started(leader))) => {
                let token = self.add(done.raw(), EPOLLIN, Source::Keeper(key)).map_err(|errno| {
                    // What it has started is killed when it is reaped.
                    let _ = os::kill(pid, 9);
                    job::Failure { stage: Stage::Process, errno }
                })?;
                if let Some(job) = self.jobs.get_mut(&key) {
                    job.leader = leader;
                    job.reports = Some((token, done));
                }
                Ok(pid as Marker)
            }
            Ok(Some(Report::Failed(stage, errno))) => Err(job::Failure { stage, errno }),
            // It was killed from inside: by what it has started. The rest is found out when it is reaped.
            _ => Ok(pid as Marker),
        }
    }

    /// What a keeper says further: how the program ended.
    fn kept(&mut self, key: Key) {
        let Some(job) = self.jobs.get_mut(&key) else { return };
        let Some((token, reports)) = &job.reports else { return };
        let (token, fd) = (*token, reports.raw());
        match Report::receive(reports) {
            Ok(Some(Report::Ended { status, cpu_micros, max_rss_kib, alone })) => {
                let pid = job.leader;
                self.ended(key, &os::Waited { pid, status, cpu_micros, max_rss_kib }, Some(alone));
            }
            Ok(_) => {}
            Err(_) => {
                job.reports = None;
                self.remove(token, fd);
            }
        }
    }

    /// A keeper has ended: all of its job has, or the keeper was killed from inside.
    fn keeper_ended(&mut self, key: Key, waited: &os::Waited) {
        self.started(key);
        self.kept(key);
        let strays = (waited.status != 0).then(|| {
            let own = self.jobs.values().map(|job| &job.pid).chain(self.helpers.keys());
            let own: BTreeSet<u32> = own.map(|pid| *pid as u32).collect();
            keeper::Strays::kill(&self.sandbox.proc, &own, waited.pid as u32)
        });
        let Some(job) = self.jobs.get_mut(&key) else { return };
        (job.pid, job.leader) = (0, 0);
        job.unmark();
        if let Some((token, fd)) = job.reports.take() {
            self.remove(token, fd.raw());
        }
        let Some(job) = self.jobs.get_mut(&key) else { return };
        let lost = job.exit.is_none();
        match (strays, &mut job.killing) {
            (Some(strays), Some(killing)) => (killing.kill, killing.due) = (Kill::Strays(strays), 0),
            (Some(strays), None) => job.killing = Some(Killing::new(Kill::Strays(strays), Cause::Unknown)),
            (None, Some(killing)) => killing.gone = true,
            (None, None) if lost => {
                let killing = Killing::new(self.sandbox.place.kill(0), Cause::Unknown);
                job.killing = Some(Killing { gone: true, ..killing });
            }
            (None, None) => {}
        }
        if lost {
            // Nobody is left to tell how the program ended.
            let unknown = os::Waited { pid: 0, status: SIGKILL, cpu_micros: 0, max_rss_kib: 0 };
            self.ended(key, &unknown, Some(true));
        } else {
            self.finish_kill(key);
        }
    }

    /// Closes all that a job has.
    fn close(&mut self, job: &Job) {
        for (token, _, fd) in &job.output {
            self.remove(*token, fd.raw());
        }
        for follower in &job.followers {
            self.remove(follower.token, follower.socket.raw());
        }
        if let Some((token, reply)) = &job.reply {
            self.remove(*token, reply.raw());
        }
        if let Some((token, reports)) = &job.reports {
            self.remove(*token, reports.raw());
        }
        for reply in job.killing.iter().flat_map(|killing| &killing.waiting) {
            refuse(reply, Refusal::Ended);
        }
    }

    /// Makes or takes what the command reads and writes.
    fn streams(&mut self, exec: &Exec, user: User, fds: Vec<Fd>) -> Result<Streams, job::Failure> {
        let terminal = |errno| job::Failure { stage: Stage::Terminal, errno };
        let failed = |errno| job::Failure { stage: Stage::Request, errno };
        let mut streams = Streams::default();
        if let Some(size) = exec.pty {
            let (master, slave) = job::terminal(&self.sandbox, user, size).map_err(terminal)?;
            streams.stdio = Stdio { fds: [slave.raw(); 3], terminal: true };
            streams.theirs.push(slave);
            if exec.background {
                os::set_nonblocking(master.raw()).map_err(terminal)?;
                streams.input = Some(os::duplicate(master.raw()).map_err(terminal)?);
                streams.output.push((Stream::Stdout, master));
            } else {
                streams.pass.push(master);
            }
        } else if exec.background {
            if exec.stdin {
                let (read, write) = os::pipe().map_err(failed)?;
                streams.stdio.fds[0] = read.raw();
                streams.theirs.push(read);
                streams.input = Some(write);
            }
            for (at, stream) in [(1, Stream::Stdout), (2, Stream::Stderr)] {
                let (read, write) = os::pipe().map_err(failed)?;
                os::set_nonblocking(read.raw()).map_err(failed)?;
                streams.stdio.fds[at] = write.raw();
                streams.theirs.push(write);
                streams.output.push((stream, read));
            }
        } else {
            // Pipes only. A file could be opened anew through /proc/self/fd with other rights than it was passed
            // with, a folder leads to its neighbours, a socket to its peer.
            if fds.len() != 2 + usize::from(exec.stdin) {
                return Err(failed(Errno::INVAL));
            }
            for fd in &fds {
                if os::fs_type(fd.raw()) != Ok(os::PIPE_FS) {
                    return Err(failed(Errno::INVAL));
                }
            }
            for (at, fd) in (usize::from(!exec.stdin)..).zip(fds) {
                streams.stdio.fds[at] = fd.raw();
                streams.theirs.push(fd);
            }
        }
        Ok(streams)
    }

    fn find(&mut self, id: &Bytes) -> Option<(Key, &mut Job)> {
        self.jobs.iter_mut().find(|(_, job)| job.id == *id).map(|(key, job)| (*key, job))
    }

    fn attach(&mut self, id: &Bytes, after: u64, input: bool, reply: Fd) {
        let busy = self.sources.len() >= SOURCES;
        let Some((key, job)) = self.find(id) else { return refuse(&reply, Refusal::NotFound) };
        if !job.background {
            return refuse(&reply, Refusal::Unsupported);
        }
        if busy {
            return refuse(&reply, Refusal::Busy);
        }
        let attached = Event::Attached.encode();
        match (&job.input, input) {
            (_, false) => drop(wire::send(reply.raw(), &attached, &[])),
            (Some(fd), true) => drop(wire::send(reply.raw(), &attached, &[fd.raw()])),
            (None, true) if job.exit.is_some() => return refuse(&reply, Refusal::Ended),
            (None, true) => return refuse(&reply, Refusal::Unsupported),
        }
        // Closed if it cannot be watched.
        let Ok(token) = self.add(reply.raw(), EPOLLIN | EPOLLRDHUP, Source::Follower(key)) else { return };
        if let Some(job) = self.jobs.get_mut(&key) {
            job.followers.push(Follower { token, socket: reply, position: after });
        }
        self.feed_followers(key);
    }

    fn kill(&mut self, id: &Bytes, reply: Fd) {
        let own = self.is_own();
        let Some((key, job)) = self.find(id) else { return refuse(&reply, Refusal::NotFound) };
        if job.exit.is_some() && job.killing.is_none() {
            let marker = job.marker;
            // A keeper is there for as long as anything of its job is.
            if marker == 0 || own && self.sandbox.place.members(&self.sandbox.proc, marker).is_empty() {
                return refuse(&reply, Refusal::Ended);
            }
        }
        self.start_kill(key, Cause::Killed);
        if let Some(killing) = self.jobs.get_mut(&key).and_then(|job| job.killing.as_mut()) {
            killing.waiting.push(reply);
        }
    }

    fn start_kill(&mut self, key: Key, cause: Cause) {
        let Some(job) = self.jobs.get_mut(&key) else { return };
        job.deadline = None;
        let marker = job.marker;
        if !job.is_marked() {
            // Its first process has perhaps no mark yet. It is this process's child: the number is its own.
            let _ = os::kill(job.pid, 9);
        }
        job.killing.get_or_insert_with(|| Killing::new(self.sandbox.place.kill(marker), cause));
    }

    fn signal(&mut self, id: &Bytes, signal: i32, reply: &Fd) {
        let Some((_, job)) = self.find(id) else { return refuse(reply, Refusal::NotFound) };
        if job.exit.is_some() {
            return refuse(reply, Refusal::Ended);
        }
        // The job's first process leads its group, and is not reaped before its end has been noticed here: the
        // number is still its own.
        match (1..=64).contains(&signal).then(|| os::kill(-job.leader, signal)) {
            Some(Ok(())) => answer(reply, &Event::Done),
            Some(Err(Errno::SRCH)) => refuse(reply, Refusal::Ended),
            _ => refuse(reply, Refusal::Invalid),
        }
    }

    fn close_stdin(&mut self, id: &Bytes, reply: &Fd) {
        match self.find(id) {
            None => refuse(reply, Refusal::NotFound),
            Some((_, job)) if job.terminal => refuse(reply, Refusal::Unsupported),
            Some((_, job)) => {
                job.input = None;
                answer(reply, &Event::Done);
            }
        }
    }

    fn resize(&mut self, id: &Bytes, size: (u16, u16), reply: &Fd) {
        match self.find(id) {
            None => refuse(reply, Refusal::NotFound),
            Some((_, job)) if job.exit.is_some() => refuse(reply, Refusal::Ended),
            Some((_, Job { terminal: true, input: Some(master), .. })) => match job::resize(master, size) {
                Ok(()) => answer(reply, &Event::Done),
                Err(_) => refuse(reply, Refusal::Invalid),
            },
            Some(_) => refuse(reply, Refusal::Unsupported),
        }
    }

    fn list(&mut self, reply: &Fd) {
        let mut pids: BTreeMap<Marker, Vec<u32>> = BTreeMap::new();
        for (marker, pid) in self.sandbox.place.all(&self.sandbox.proc) {
            pids.entry(marker).or_default().push(pid);
        }
        let mut listed = Vec::with_capacity(self.jobs.len());
        for job in self.jobs.values_mut() {
            let mut pids = pids.get(&job.marker).cloned().unwrap_or_default();
            pids.truncate(SHOWN_PIDS);
            let exit = job.exit.clone().map(|exit| Exit { remaining: pids.len() as u32, ..exit });
            listed.push(proto::Job {
                id: job.id.clone(),
                argv: job.argv.clone(),
                started: job.started,
                background: job.background,
                exit,
                pids,
                pty: job.terminal,
                output: job.log.end(),
            });
        }
        let mut rest = listed;
        loop {
            let later = rest.split_off(rest.len().min(JOBS_IN_A_PACKET));
            let last = later.is_empty();
            answer(reply, &Event::Jobs { jobs: rest, last });
            if last {
                return;
            }
            rest = later;
        }
    }

    fn info(&self) -> proto::Info {
        let left = self.deadline.map_or(0, |at| at.saturating_sub(os::monotonic()) / NANOS_PER_MILLI);
        proto::Info {
            id: self.boot.id.clone(),
            created: self.boot.created,
            ttl_left: if self.deadline.is_some() { left.max(1) } else { 0 },
            owned: self.boot.owned,
            labels: self.boot.labels.clone(),
            meta: self.boot.meta.clone(),
            jobs: self.jobs.values().filter(|job| job.exit.is_none()).count() as u32,
            version: self.boot.version.clone(),
            several_ids: self.boot.several_ids,
            hostname: self.boot.hostname.clone(),
            cwd: self.boot.cwd.clone(),
        }
    }

    /// The client of a foreground job has gone: so does the job.
    fn client_left(&mut self, key: Key) {
        if let Some(job) = self.jobs.get_mut(&key) {
            job.reply = None;
            self.start_kill(key, Cause::Killed);
        }
    }

    /// Moves what a background job wrote into its log.
    fn read_output(&mut self, key: Key, token: u64) {
        let Some(job) = self.jobs.get_mut(&key) else { return };
        let Some(at) = job.output.iter().position(|(other, ..)| *other == token) else { return };
        let (_, stream, fd) = &job.output[at];
        match os::read(fd.raw(), &mut self.chunk) {
            Ok(len @ 1..) => job.log.push(*stream, &self.chunk[..len]),
            Err(Errno::AGAIN | Errno::INTR) => {}
            // The end; a terminal's is an error.
            Ok(0) | Err(_) => {
                let (token, _, fd) = job.output.swap_remove(at);
                self.remove(token, fd.raw());
            }
        }
        self.limit_logs();
    }

    fn limit_logs(&mut self) {
        loop {
            let kept: usize = self.jobs.values().map(|job| job.log.kept()).sum();
            if kept <= RETAIN_IN_ALL {
                return;
            }
            // What has ended goes before what runs, and the largest first.
            let job = self.jobs.values_mut().max_by_key(|job| {
                let kept = job.log.kept();
                (job.exit.is_some() && kept > 0, kept)
            });
            if let Some(job) = job {
                let kept = job.log.kept();
                job.log.keep(kept / 2);
            }
        }
    }

    fn feed_followers(&mut self, key: Key) {
        let Some(job) = self.jobs.get_mut(&key) else { return };
        let mut finished = Vec::new();
        for follower in &mut job.followers {
            match follower.feed(&job.log, job.exit.as_ref()) {
                Feed::Finished => finished.push(follower.token),
                Feed::Waits => follower.watch(&self.epoll, EPOLLIN | EPOLLRDHUP),
                Feed::HasMore => follower.watch(&self.epoll, EPOLLIN | EPOLLRDHUP | EPOLLOUT),
            }
        }
        for token in finished {
            self.remove_follower(key, token);
        }
    }

    fn remove_follower(&mut self, key: Key, token: u64) {
        let Some(job) = self.jobs.get_mut(&key) else { return };
        if let Some(at) = job.followers.iter().position(|follower| follower.token == token) {
            let follower = job.followers.swap_remove(at);
            self.remove(token, follower.socket.raw());
        }
    }

    /// Reaps some of what has ended.
    fn reap(&mut self) {
        if !self.unreaped {
            return;
        }
        for _ in 0..REAPED_IN_A_TURN {
            let Some(waited) = os::wait_any() else {
                self.unreaped = false;
                return;
            };
            if waited.stopped() {
                self.keep_going(waited.pid);
                continue;
            }
            if let Some(token) = self.helpers.remove(&waited.pid) {
                if let Some(Source::Files(channel)) = self.sources.get(&token) {
                    let _ = files::helper_ended(channel, waited.status);
                }
                continue;
            }
            let own = self.is_own();
            // A keeper stays for as long as anything of its job does.
            let running = |job: &Job| job.pid == waited.pid && (job.exit.is_none() || !own);
            match self.jobs.iter().find(|(_, job)| running(job)).map(|(key, _)| *key) {
                Some(key) if own => self.ended(key, &waited, None),
                Some(key) => self.keeper_ended(key, &waited),
                None => {}
            }
        }
    }

    /// A child was stopped. Those that work for this program are not the code's to stop; a job's processes are.
    fn keep_going(&self, pid: i32) {
        const SIGCONT: i32 = 18;
        let keepers = !self.is_own();
        let works = |job: &Job| keepers || job.starting.is_some() && job.killing.is_none();
        if self.helpers.contains_key(&pid) || self.jobs.values().any(|job| job.pid == pid && works(job)) {
            let _ = os::kill(pid, SIGCONT);
        }
    }

    /// A job's first process has ended. `alone` says whether nothing else of the job is left, if that is known.
    fn ended(&mut self, key: Key, waited: &os::Waited, alone: Option<bool>) {
        // It has been started, or has failed, before it ended, even if that was noticed only now.
        self.started(key);
        let Some(job) = self.jobs.get_mut(&key) else { return };
        job.deadline = None;
        // No process at all is the usual case, and quickly known.
        let alone = alone.unwrap_or_else(|| tree::alone(&self.sandbox.proc));
        let members = |marker| self.sandbox.place.members(&self.sandbox.proc, marker).len() as u32;
        // A keeper knows better than who only looks.
        let least = u32::from(!matches!(self.sandbox.place, Place::Own));
        let remaining = if alone { 0 } else { members(job.marker).max(least) };
        job.exit = Some(Exit {
            status: waited.status,
            cause: Cause::Own as u16,
            remaining,
            cpu: waited.cpu_micros,
            max_rss: waited.max_rss_kib,
            duration: (os::monotonic() - job.began) / 1000,
        });
        if job.killing.is_none() {
            if remaining == 0 {
                job.unmark();
            }
            self.finish(key);
        } else {
            self.finish_kill(key);
        }
    }

    /// Everything about a job's end is known: tells its client and its followers.
    fn finish(&mut self, key: Key) {
        self.drain_output(key);
        let Some(job) = self.jobs.get_mut(&key) else { return };
        let Some(exit) = job.exit.clone() else { return };
        if exit.remaining == 0 {
            job.input = None;
        }
        let remaining = exit.remaining;
        let mut left = false;
        if let Some((token, reply)) = job.reply.take() {
            left = wire::send(reply.raw(), &Event::Exited { exit }.encode(), &[]).is_err();
            self.remove(token, reply.raw());
        }
        self.feed_followers(key);
        self.ended.push_back(key);
        if left && remaining > 0 {
            // Its client went away before the end was noticed, perhaps causing it: by hanging up a terminal.
            self.start_kill(key, Cause::Killed);
        }
        self.forget();
    }

    /// Takes into the log what is in the pipes already.
    fn drain_output(&mut self, key: Key) {
        // A pipe holds no more than this, and what still writes must not keep this loop.
        const MOST: usize = 1 << 20;
        let Some(job) = self.jobs.get(&key) else { return };
        for token in job.output.iter().map(|(token, ..)| *token).collect::<Vec<_>>() {
            let limit = self.jobs.get(&key).map_or(0, |job| job.log.end()) + MOST as u64;
            loop {
                let before = self.jobs.get(&key).map_or(0, |job| job.log.end());
                self.read_output(key, token);
                let after = self.jobs.get(&key).map_or(0, |job| job.log.end());
                if after == before || after > limit {
                    break;
                }
            }
        }
    }

    /// Forgets the oldest jobs that have ended and left nothing behind.
    fn forget(&mut self) {
        let mut looked = 0;
        while self.ended.len() > REMEMBERED && looked < self.ended.len() {
            looked += 1;
            let Some(key) = self.ended.pop_front() else { return };
            let Some(job) = self.jobs.get(&key) else { continue };
            let members = |marker| self.sandbox.place.members(&self.sandbox.proc, marker);
            if job.pid != 0 && job.marker != 0 && !(self.is_own() && members(job.marker).is_empty()) {
                self.ended.push_back(key);
                continue;
            }
            if let Some(job) = self.jobs.remove(&key) {
                self.close(&job);
            }
        }
    }

    fn next_timeout(&self) -> Option<u64> {
        if self.unreaped {
            return Some(0);
        }
        let jobs = self.jobs.values().filter_map(|job| match &job.killing {
            Some(killing) => (!killing.gone && job.is_marked()).then_some(killing.due),
            None => job.deadline,
        });
        let next = jobs.chain(self.deadline).min()?;
        Some(next.saturating_sub(os::monotonic()))
    }

    fn check_times(&mut self) -> Turn {
        let now = os::monotonic();
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            return Err(End);
        }
        let due: Vec<Key> = self
            .jobs
            .iter()
            .filter(|(_, job)| {
                job.deadline.is_some_and(|at| at <= now)
                    || job.is_marked()
                        && job.killing.as_ref().is_some_and(|killing| !killing.gone && killing.due <= now)
            })
            .map(|(key, _)| *key)
            .collect();
        for key in due {
            self.start_kill(key, Cause::TimedOut);
            self.go_on_killing(key);
        }
        Ok(())
    }

    fn go_on_killing(&mut self, key: Key) {
        let Some(job) = self.jobs.get_mut(&key).filter(|job| job.is_marked()) else { return };
        let Some(killing) = job.killing.as_mut() else { return };
        match killing.kill.step(&self.sandbox.proc) {
            Step::Again => killing.due = 0,
            Step::Pause(nanos) => killing.due = os::monotonic() + nanos,
            Step::Gone => {
                killing.gone = true;
                // The last to end has been seen gone; if it was the job's first process, it is there to be reaped.
                self.unreaped = true;
                self.finish_kill(key);
            }
        }
    }

    /// Ends a kill once no process is left and the first one's status is known.
    fn finish_kill(&mut self, key: Key) {
        let Some(job) = self.jobs.get_mut(&key) else { return };
        if !job.killing.as_ref().is_some_and(|killing| killing.gone) {
            return;
        }
        let Some(exit) = &mut job.exit else { return };
        let Some(killing) = job.killing.take() else { return };
        let lingering = self.ended.contains(&key);
        if !lingering {
            exit.cause = killing.cause as u16;
        }
        exit.remaining = 0;
        job.unmark();
        if lingering {
            self.drain_output(key);
        } else {
            self.finish(key);
        }
        for reply in &killing.waiting {
            answer(reply, &Event::Done);
        }
    }
}

#[derive(Default)]
struct Streams {
    stdio: Stdio,
    /// What the command gets; closed here once it has started.
    theirs: Vec<Fd>,
    output: Vec<(Stream, Fd)>,
    input: Option<Fd>,
    /// What the client gets.
    pass: Vec<Fd>,
}

impl Default for Stdio {
    /// `/dev/null`, which is what this program has there itself.
    fn default() -> Self {
        Self { fds: [0, 1, 2], terminal: false }
    }
}

enum Feed {
    Waits,
    HasMore,
    Finished,
}

impl Follower {
    fn feed(&mut self, log: &Log, exit: Option<&Exit>) -> Feed {
        for _ in 0..PACKETS_IN_A_TURN {
            let (event, next) = match log.at(self.position, PACKET) {
                At::Data(stream, data) => {
                    let next = self.position + data.len() as u64;
                    (Event::Output { seq: self.position, stream, data: data.into() }, next)
                }
                At::Gap(to) => (Event::Gap { from: self.position, to }, to),
                At::End => match exit {
                    Some(exit) => {
                        let event = Event::Exited { exit: exit.clone() };
                        return match wire::send(self.socket.raw(), &event.encode(), &[]) {
                            Err(Errno::AGAIN) => Feed::HasMore,
                            _ => Feed::Finished,
                        };
                    }
                    None => return Feed::Waits,
                },
            };
            match wire::send(self.socket.raw(), &event.encode(), &[]) {
                Ok(()) => self.position = next,
                Err(Errno::AGAIN) => return Feed::HasMore,
                Err(_) => return Feed::Finished,
            }
        }
        Feed::HasMore
    }

    fn watch(&self, epoll: &Fd, events: u32) {
        let _ = os::epoll_ctl(epoll, Watch::Change, self.socket.raw(), events, self.token);
    }
}

/// Whether it is the signal by which an engine stops a container. The kernel vouches that it comes from outside: there
/// the sender has no number here, and it says so for `kill` alone.
fn is_order_to_end(info: &[u8; 128]) -> bool {
    let word = |at: usize| info[at..at + 4].try_into().map_or(u32::MAX, u32::from_ne_bytes);
    let (signal, code, sender) = (word(0), word(8), word(12));
    signal == SIGTERM as u32 && code == 0 && sender == 0
}

/// Answers without waiting; a client that does not read its answers loses them.
fn answer(reply: &Fd, event: &Event) {
    let _ = wire::send(reply.raw(), &event.encode(), &[]);
}

fn refuse(reply: &Fd, refusal: Refusal) {
    answer(reply, &Event::Refused { refusal });
}

fn new_id() -> Vec<u8> {
    let mut random = [0; 16];
    os::random(&mut random);
    let digits = b"abcdefghijklmnopqrstuvwxyz234567";
    random.iter().map(|byte| digits[usize::from(byte & 31)]).collect()
}

fn shorten(argv: &[Bytes]) -> Vec<Bytes> {
    argv.iter().take(SHOWN_WORDS).map(|word| word[..word.len().min(SHOWN_BYTES)].into()).collect()
}
