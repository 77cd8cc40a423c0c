//! Beside process 1 of a container: carries its protocol over one stream. See [`crate::stream`].
//!
//! ```text
//! /.capbox/guest relay
//! ```
//!
//! The engine starts it as root, with pipes for standard input and output. It connects to process 1 like any client, and
//! translates: requests and answers go through as they are, while what comes as a descriptor (the pipes and terminal of a
//! command, an opened file) stays here and is read and written for the client.
//!
//! # Who may meddle with it
//!
//! Process 1 trusts it for having been started from outside, so it must not be taken over by code that is root inside:
//! not even in the moment between the execution of this program and its first instruction. That is why its file must
//! have the set-group-id bit and a group that it is not started with: the kernel then hides it from ptrace from the very
//! beginning. Where that has not worked (a file system mounted `nosuid`, a container with `no-new-privileges`), it refuses
//! to work. Hiding by a program that cannot be read does not: engines start programs with the right to read all.
//!
//! It keeps one capability, without which it could not look at what is in a folder that process 1 has opened for it as
//! the code's user.
//!
//! # Waiting
//!
//! It waits for its client only with its output, since the client must always read. What goes to a command or from it
//! waits by itself: nothing is read for which the client has no room, and the client sends nothing for which there is none
//! here.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::init;
use crate::os::{self, EPOLLIN, EPOLLOUT, EPOLLRDHUP, Fd, Ready, Watch};
use crate::proto::{
    self, Answer, Bytes, Entry, Event, FileReply, FileRequest, Malformed, Request, Work, open,
};
use crate::stream::{HEADER, Header, INPUT_WINDOW, Kind, MAX_CHANNELS, MAX_DATA, PREAMBLE, WINDOW};
use crate::sys::{self, AT_FDCWD, Errno, Result};
use crate::watch::{Watched, Watcher};
use crate::{files, wire};

/// Output that is collected before it is sent.
const BATCH: usize = 256 * 1024;
/// Bytes that are read ahead of the client.
const INPUT: usize = 256 * 1024;
/// Reads of one stream in one turn.
const READS_IN_A_TURN: usize = 4;
const LARGE_PIPE: usize = 1 << 20;
/// Time for output that is on its way when a command has ended and left processes behind.
const GRACE: u64 = 50_000_000;
/// The same when it left none. The pipes then end by themselves, unless a process that is hidden holds them.
const LONG_GRACE: u64 = 2_000_000_000;
/// How long process 1 may take to listen.
const CONNECT_WITHIN: u64 = 10_000_000_000;
/// The longest line that a terminal takes while it edits lines; the kernel cuts what is longer.
const LONGEST_LINE: usize = 4095;

const INPUT_TOKEN: u64 = u64::MAX;
const CONTROL_TOKEN: u64 = u64::MAX - 1;

/// What a descriptor of a channel is for: the low bits of its token.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    Reply = 0,
    Output = 1,
    Errors = 2,
    Input = 3,
}

const ROLES: [Role; 4] = [Role::Reply, Role::Output, Role::Errors, Role::Input];

fn token(channel: u32, role: Role) -> u64 {
    u64::from(channel) << 2 | role as u64
}

/// The client has gone, or process 1 has, or one of them makes no sense.
struct End;
type Turn = core::result::Result<(), End>;

/// Answers with the exit code.
pub(crate) fn run() -> i32 {
    const SIGPIPE: u32 = 13;
    let hidden = os::is_hidden();
    // A command that reads no more is no reason to end.
    os::set_signal_mask(1 << (SIGPIPE - 1));
    let Ok(mut relay) = Relay::new() else { return 70 };
    let connected =
        if hidden { relay.connect() } else { Err(("hide from ptrace from the beginning", Errno::PERM)) };
    relay.out.extend_from_slice(&PREAMBLE);
    if let Err((step, errno)) = connected {
        let event = Event::BootFailed { step: step.into(), errno: errno.0 };
        relay.frame(Kind::Broken, 0, &event.encode());
        let _ = relay.flush();
        return 70;
    }
    let _ = relay.serve();
    relay.close_all();
    0
}

struct Relay {
    epoll: Fd,
    proc: Fd,
    control: Option<Fd>,
    channels: BTreeMap<u32, Channel>,
    /// The newest channel.
    last: u32,
    greeted: bool,
    /// What has been read from the client and not been understood yet.
    input: Vec<u8>,
    filled: usize,
    /// What is on its way to the client.
    out: Vec<u8>,
    packet: Vec<u8>,
}

struct Channel {
    /// Bytes that the client still has room for.
    credit: i64,
    /// Bytes that the client may still send.
    room: usize,
    /// Whether nothing is read from its descriptors, for want of credit.
    paused: bool,
    task: Task,
}

enum Task {
    /// A request to process 1, with the descriptors that belong to it.
    Call(Call),
    /// Something about files.
    Files(Files),
    /// A folder that is watched.
    Watch(Watcher),
}

#[derive(Default)]
struct Call {
    reply: Option<Fd>,
    output: Option<Fd>,
    errors: Option<Fd>,
    input: Input,
    /// A terminal's master is `output`, and `input` a duplicate of it.
    terminal: bool,
    /// How the command ended, while its output is still coming.
    exit: Option<Vec<u8>>,
    /// When that is waited for no longer.
    due: Option<u64>,
}

/// What a client writes to.
#[derive(Default)]
struct Input {
    fd: Option<Fd>,
    /// What it cannot take yet.
    pending: Vec<u8>,
    /// Whether the client has said that there is no more.
    ended: bool,
    /// Whether nobody reads it any more.
    dead: bool,
    /// Whether it is a terminal, and bytes of its current line.
    terminal: bool,
    line: usize,
}

impl Input {
    /// Whether a terminal takes this without cutting a line. If so, it is counted.
    fn line_fits(&mut self, bytes: &[u8]) -> bool {
        let edits = self.fd.as_ref().is_some_and(os::edits_lines);
        let mut line = if edits { self.line } else { 0 };
        for part in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\r' | 4)) {
            line += part.len();
            if edits && line > LONGEST_LINE {
                return false;
            }
            if matches!(part.last(), Some(b'\n' | b'\r' | 4)) {
                line = 0;
            }
        }
        self.line = line;
        true
    }
}

struct Files {
    socket: Fd,
    /// Answers that are still to come.
    asked: u32,
    stage: Stage,
}

enum Stage {
    /// The answer is the client's.
    Pass,
    OpenRead {
        from: u64,
        most: u64,
    },
    Read {
        file: Fd,
        position: usize,
        left: u64,
    },
    OpenWrite(Write),
    Write(Write),
    /// It has been given its name, or not.
    Rename(Write),
    OpenList,
    List {
        folder: Fd,
    },
}

struct Write {
    path: Bytes,
    then: Option<Bytes>,
    input: Input,
}

impl Relay {
    fn new() -> Result<Self> {
        for fd in [0, 1] {
            os::set_nonblocking(fd)?;
        }
        // More at a time, where the stream is a pipe. F_SETPIPE_SZ.
        for fd in [0, 1] {
            let _ = os::set_pipe_size(fd, LARGE_PIPE);
        }
        Ok(Self {
            epoll: os::epoll_create()?,
            proc: os::openat(AT_FDCWD, c"/proc", sys::O_RDONLY | sys::O_DIRECTORY, 0)?,
            control: None,
            channels: BTreeMap::new(),
            last: 0,
            greeted: false,
            input: os::buffer(INPUT),
            filled: 0,
            out: Vec::with_capacity(BATCH + HEADER + MAX_DATA),
            packet: os::buffer(proto::MAX_PACKET),
        })
    }

    /// Gives up rights, and becomes a client of process 1.
    fn connect(&mut self) -> core::result::Result<(), (&'static str, Errno)> {
        let at = |step: &'static str| move |errno: Errno| (step, errno);
        let _ = os::prctl(sys::PR_SET_NAME, c"capbox-relay".as_ptr() as usize, 0);
        os::prctl(sys::PR_SET_DUMPABLE, 0, 0).map_err(at("hide from ptrace"))?;
        let kept = sys::permitted().map_err(at("look at the capabilities"))? & sys::cap::DAC_OVERRIDE;
        sys::capset(kept, kept, 0).map_err(at("drop capabilities"))?;
        let name = init::socket_name(&self.proc).map_err(at("name the control socket"))?;
        let give_up = os::monotonic() + CONNECT_WITHIN;
        let control = loop {
            let control =
                os::socket(os::AF_UNIX, os::SOCK_SEQPACKET).map_err(at("make the control socket"))?;
            match os::connect_abstract(control.raw(), &name) {
                Ok(()) => break control,
                // The container has only just been started.
                Err(errno @ Errno::CONNREFUSED) => {
                    if os::monotonic() > give_up {
                        return Err(("reach process 1", errno));
                    }
                    os::wait_for(&mut [], Some(2_000_000));
                }
                Err(errno) => return Err(("reach process 1", errno)),
            }
        };
        // Anybody inside could have made a socket of this name before.
        if os::peer(control.raw()).map_err(at("look at process 1"))?[0] != 1 {
            return Err(("reach process 1", Errno::PERM));
        }
        let greeting =
            wire::receive(control.raw(), &mut self.packet, true).map_err(at("hear of process 1"))?;
        let greeting = greeting.ok_or(("be trusted by process 1", Errno::PERM))?;
        match Event::decode(&greeting.bytes) {
            Ok(Event::Version { version: proto::VERSION }) => {}
            _ => return Err(("speak the version of process 1", Errno::PROTO)),
        }
        wire::send(control.raw(), &Request::Present.encode(), &[]).map_err(at("speak to process 1"))?;
        os::set_nonblocking(control.raw()).map_err(at("set up the control socket"))?;
        let watch = |fd, events, token| os::epoll_ctl(&self.epoll, Watch::Add, fd, events, token);
        watch(control.raw(), EPOLLRDHUP, CONTROL_TOKEN).map_err(at("watch process 1"))?;
        watch(0, EPOLLIN, INPUT_TOKEN).map_err(at("watch the client"))?;
        self.control = Some(control);
        Ok(())
    }

    fn serve(&mut self) -> Turn {
        let mut ready = [Ready::default(); 64];
        loop {
            self.flush()?;
            let count = os::epoll_wait(&self.epoll, &mut ready, self.next_timeout());
            for event in &ready[..count] {
                let token = event.token;
                match token {
                    INPUT_TOKEN => self.read_client()?,
                    CONTROL_TOKEN => return Err(End),
                    _ => self.handle((token >> 2) as u32, ROLES[(token & 3) as usize])?,
                }
                if self.out.len() >= BATCH {
                    self.flush()?;
                }
            }
            self.work()?;
            self.check_times()?;
        }
    }

    // To the client.

    fn frame(&mut self, kind: Kind, channel: u32, payload: &[u8]) {
        self.out.extend_from_slice(&Header { kind, len: payload.len(), channel }.encode());
        self.out.extend_from_slice(payload);
    }

    /// Something that counts against the channel's credit.
    fn send(&mut self, kind: Kind, number: u32, payload: &[u8]) {
        self.frame(kind, number, payload);
        self.spend(number, payload.len());
    }

    fn spend(&mut self, number: u32, len: usize) {
        let Some(channel) = self.channels.get_mut(&number) else { return };
        channel.credit -= len as i64;
        if channel.credit <= 0 && !channel.paused {
            channel.paused = true;
            for (_, fd) in channel.readable() {
                unwatch(&self.epoll, fd);
            }
        }
    }

    /// Writes all that is on its way. Only the client can keep this waiting, and must not.
    fn flush(&mut self) -> Turn {
        let mut written = 0;
        while written < self.out.len() {
            match os::write(1, &self.out[written..]) {
                Ok(len) => written += len,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    // A client that has gone closes its other end, too.
                    let mut ends = [os::Poll::new(1, os::POLLOUT), os::Poll::new(0, 0)];
                    os::wait_for(&mut ends, None);
                    if ends[1].ready() || ends[0].failed() {
                        return Err(End);
                    }
                }
                Err(_) => return Err(End),
            }
        }
        self.out.clear();
        Ok(())
    }

    // From the client.

    fn read_client(&mut self) -> Turn {
        if self.filled == self.input.len() {
            // A request that is larger than usual. Its header has said so, and has been checked.
            let more = self.input.len();
            self.input.resize(more * 2, 0);
        }
        match os::read(0, &mut self.input[self.filled..]) {
            Ok(len @ 1..) => self.filled += len,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            _ => return Err(End),
        }
        let input = core::mem::take(&mut self.input);
        let taken = self.take_frames(&input[..self.filled]);
        self.input = input;
        let taken = taken?;
        self.input.copy_within(taken..self.filled, 0);
        self.filled -= taken;
        if self.filled == 0 && self.input.len() > INPUT {
            self.input = os::buffer(INPUT);
        }
        Ok(())
    }

    /// Takes all whole frames. Answers with their length.
    fn take_frames(&mut self, input: &[u8]) -> core::result::Result<usize, End> {
        let mut at = 0;
        if !self.greeted {
            match input.first_chunk() {
                None => return Ok(0),
                Some(preamble) if *preamble == PREAMBLE => (self.greeted, at) = (true, PREAMBLE.len()),
                // It has been told this side's version.
                Some(_) => return Err(End),
            }
        }
        while let Some(header) = input[at..].first_chunk() {
            let header = Header::decode(*header).ok_or(End)?;
            let Some(payload) = input.get(at + HEADER..at + HEADER + header.len) else { break };
            at += HEADER + header.len;
            self.take_frame(header, payload)?;
        }
        Ok(at)
    }

    fn take_frame(&mut self, header: Header, payload: &[u8]) -> Turn {
        let number = header.channel;
        if header.kind == Kind::Request {
            if number <= self.last || self.channels.len() >= MAX_CHANNELS {
                return Err(End);
            }
            self.last = number;
            return self.open(number, payload);
        }
        let is_ours = matches!(header.kind, Kind::Data | Kind::End | Kind::Credit | Kind::Size | Kind::Close);
        if number > self.last || number == 0 || !is_ours {
            return Err(End);
        }
        // What has been closed here may not have been heard of there.
        let Some(channel) = self.channels.get_mut(&number) else { return Ok(()) };
        match header.kind {
            Kind::Data => {
                channel.room = channel.room.checked_sub(payload.len()).ok_or(End)?;
                self.write_input(number, payload);
            }
            Kind::End => {
                if let Some(input) = channel.input() {
                    input.ended = true;
                }
                self.write_input(number, &[]);
            }
            Kind::Credit => {
                let more = payload.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
                channel.credit = channel.credit.saturating_add(i64::from(more));
                if channel.credit > 0 && channel.paused {
                    channel.paused = false;
                    for (role, fd) in channel.readable() {
                        let events = if role == Role::Reply { EPOLLIN | EPOLLRDHUP } else { EPOLLIN };
                        let _ = os::epoll_ctl(&self.epoll, Watch::Add, fd, events, token(number, role));
                    }
                    self.tell_changes(number);
                }
            }
            Kind::Size => {
                if let Task::Call(Call { terminal: true, output: Some(master), .. }) = &channel.task
                    && let Some([a, b, c, d]) = payload.first_chunk()
                {
                    let size = (u16::from_le_bytes([*a, *b]), u16::from_le_bytes([*c, *d]));
                    let _ = crate::job::resize(master, size);
                }
            }
            _ => self.close(number),
        }
        Ok(())
    }

    /// Opens a channel for a request.
    fn open(&mut self, number: u32, message: &[u8]) -> Turn {
        let task = match proto::kind(message) {
            Some(0..=95) => self.call(number, message),
            Some(96..=127) => self.start_work(number, message),
            Some(_) => match FileRequest::decode(message) {
                // What it opens would stay here.
                Ok(FileRequest::Open { .. }) | Err(_) => Err(Errno::INVAL),
                Ok(request) => self.ask(number, &request, Stage::Pass),
            },
            None => return Err(End),
        };
        match task {
            Ok(task) => {
                let (credit, room) = (i64::from(WINDOW), INPUT_WINDOW as usize);
                self.channels.insert(number, Channel { credit, room, paused: false, task });
            }
            Err(errno) => {
                let is_call = proto::kind(message).is_some_and(|kind| kind < 96);
                let answer = match (is_call, errno) {
                    (_, Errno::PIPE) => return Err(End),
                    (true, Errno::INVAL) => Event::Refused { refusal: proto::Refusal::Invalid }.encode(),
                    (true, _) => Event::Refused { refusal: proto::Refusal::Busy }.encode(),
                    (false, _) => FileReply::Failed { errno: errno.0 }.encode(),
                };
                self.frame(Kind::Event, number, &answer);
                self.frame(Kind::Close, number, &[]);
            }
        }
        Ok(())
    }

    /// Passes a request on to process 1, with the descriptors that go with it.
    fn call(&mut self, number: u32, message: &[u8]) -> Result<Task> {
        let request = Request::decode(message).map_err(|_| Errno::INVAL)?;
        let (reply, theirs) = os::socket_pair()?;
        let mut call = Call::default();
        let mut pipes = Vec::new();
        match request {
            Request::Exec { exec } if !exec.background && exec.pty.is_none() => {
                if exec.stdin {
                    let (read, write) = os::pipe()?;
                    os::set_nonblocking(write.raw())?;
                    call.input.fd = Some(write);
                    pipes.push(read);
                }
                for slot in [&mut call.output, &mut call.errors] {
                    let (read, write) = os::pipe()?;
                    os::set_nonblocking(read.raw())?;
                    *slot = Some(read);
                    pipes.push(write);
                }
                for end in &pipes {
                    // The pipe is root's; `/dev/stdout` is to be opened all the same. Nobody can see it but who has it.
                    os::fchmod(end.raw(), 0o666)?;
                }
            }
            Request::Exec { exec } => call.terminal = exec.pty.is_some() && !exec.background,
            // These are between a relay and process 1.
            Request::Boot { .. } | Request::Present | Request::Files => return Err(Errno::INVAL),
            _ => {}
        }
        let fds: Vec<i32> = [&theirs].into_iter().chain(&pipes).map(Fd::raw).collect();
        let control = self.control.as_ref().ok_or(Errno::PIPE)?;
        wire::send_message(control.raw(), message, &fds)?;
        // What the command writes is not looked at before it is known to run.
        let events = EPOLLIN | EPOLLRDHUP;
        os::epoll_ctl(&self.epoll, Watch::Add, reply.raw(), events, token(number, Role::Reply))?;
        call.reply = Some(reply);
        Ok(Task::Call(call))
    }

    fn start_work(&mut self, number: u32, message: &[u8]) -> Result<Task> {
        match Work::decode(message).map_err(|_| Errno::INVAL)? {
            Work::Read { path, from, most } => {
                let request = FileRequest::Open { path, flags: open::READ, mode: 0 };
                self.ask(number, &request, Stage::OpenRead { from, most })
            }
            Work::Write { path, flags, mode, then } => {
                if flags & open::WRITE == 0 {
                    return Err(Errno::INVAL);
                }
                let request = FileRequest::Open { path: path.clone(), flags, mode };
                let write = Write { path, then, input: Input::default() };
                self.ask(number, &request, Stage::OpenWrite(write))
            }
            Work::List { path } => {
                let request = FileRequest::Open { path, flags: open::READ | open::DIRECTORY, mode: 0 };
                self.ask(number, &request, Stage::OpenList)
            }
            Work::Watch { path, recursive } => {
                let watcher = Watcher::new(self.file_channel()?, &path, recursive)?;
                let watch = |fd: &Fd, events, role| {
                    os::epoll_ctl(&self.epoll, Watch::Add, fd.raw(), events, token(number, role))
                };
                watch(&watcher.socket, EPOLLIN | EPOLLRDHUP, Role::Reply)?;
                watch(&watcher.inotify, EPOLLIN, Role::Output)?;
                Ok(Task::Watch(watcher))
            }
        }
    }

    /// A new file channel to process 1, which first answers that it is one.
    fn file_channel(&self) -> Result<Fd> {
        let (socket, theirs) = os::socket_pair()?;
        let control = self.control.as_ref().ok_or(Errno::PIPE)?;
        wire::send_message(control.raw(), &Request::Files.encode(), &[theirs.raw()])?;
        Ok(socket)
    }

    /// Makes a file channel to process 1 and sends the first request on it.
    fn ask(&self, number: u32, request: &FileRequest, stage: Stage) -> Result<Task> {
        let message = request.encode();
        if message.len() > proto::MAX_PACKET {
            return Err(Errno::NAMETOOLONG);
        }
        let socket = self.file_channel()?;
        wire::send(socket.raw(), &message, &[])?;
        let events = EPOLLIN | EPOLLRDHUP;
        os::epoll_ctl(&self.epoll, Watch::Add, socket.raw(), events, token(number, Role::Reply))?;
        Ok(Task::Files(Files { socket, asked: 1, stage }))
    }

    // Channels.

    fn handle(&mut self, number: u32, role: Role) -> Turn {
        // It may have been closed, or paused, in this very turn.
        let Some(channel) = self.channels.get(&number) else { return Ok(()) };
        if channel.paused && role != Role::Input {
            return Ok(());
        }
        match (&channel.task, role) {
            (_, Role::Input) => self.write_input(number, &[]),
            (Task::Call(_), Role::Reply) => self.read_reply(number),
            (Task::Files(_), Role::Reply) => self.read_files(number)?,
            (Task::Watch(_), Role::Reply) => self.read_opened(number),
            (Task::Watch(_), _) => self.read_changes(number),
            _ => {
                for _ in 0..READS_IN_A_TURN {
                    if !self.read_output(number, role) {
                        break;
                    }
                    if self.out.len() >= BATCH {
                        self.flush()?;
                    }
                }
            }
        }
        Ok(())
    }

    /// What process 1 has to say.
    fn read_reply(&mut self, number: u32) {
        loop {
            let Some(Channel { task: Task::Call(call), paused: false, .. }) = self.channels.get_mut(&number)
            else {
                return;
            };
            let Some(reply) = &call.reply else { return };
            match wire::receive(reply.raw(), &mut self.packet, false) {
                Ok(Some(packet)) => self.pass_event(number, packet),
                Err(Errno::AGAIN | Errno::INTR) => return,
                _ => {
                    unwatch(&self.epoll, reply.raw());
                    call.reply = None;
                    if call.exit.is_none() {
                        self.close(number);
                    }
                    return;
                }
            }
        }
    }

    fn pass_event(&mut self, number: u32, packet: wire::Packet) {
        let Some(Channel { task: Task::Call(call), .. }) = self.channels.get_mut(&number) else { return };
        let event = Event::decode(&packet.bytes);
        let mut fds = packet.fds;
        match (&event, fds.pop()) {
            (Ok(Event::Started { .. } | Event::Attached), fd) => {
                if let Some(fd) = fd.filter(|fd| os::set_nonblocking(fd.raw()).is_ok()) {
                    call.input.terminal = os::is_terminal(&fd);
                    if call.terminal {
                        call.input.fd = os::duplicate(fd.raw()).ok();
                        call.output = Some(fd);
                    } else {
                        call.input.fd = Some(fd);
                    }
                }
                for (fd, role) in [(&call.output, Role::Output), (&call.errors, Role::Errors)] {
                    if let Some(fd) = fd {
                        let _ =
                            os::epoll_ctl(&self.epoll, Watch::Add, fd.raw(), EPOLLIN, token(number, role));
                    }
                }
                self.send(Kind::Event, number, &packet.bytes);
                return self.write_input(number, &[]);
            }
            (Ok(Event::Exited { exit }), _) => {
                let grace = if exit.remaining == 0 { LONG_GRACE } else { GRACE };
                call.due = Some(os::monotonic() + grace);
                call.exit = Some(packet.bytes);
                // Usually all that there is.
                for role in [Role::Output, Role::Errors] {
                    while self.read_output(number, role) && self.out.len() < BATCH {}
                }
                self.finish_call(number, false);
                return;
            }
            _ => {}
        }
        self.send(Kind::Event, number, &packet.bytes);
    }

    /// Reads some of a command's output; says whether there may be more at once.
    fn read_output(&mut self, number: u32, role: Role) -> bool {
        let Some(channel) = self.channels.get_mut(&number) else { return false };
        let Task::Call(call) = &mut channel.task else { return false };
        let slot = if role == Role::Errors { &mut call.errors } else { &mut call.output };
        let Some(fd) = slot else { return false };
        if channel.paused {
            return false;
        }
        // Straight to where it is sent from.
        let start = self.out.len();
        self.out.resize(start + HEADER + MAX_DATA, 0);
        match os::read(fd.raw(), &mut self.out[start + HEADER..]) {
            Ok(len @ 1..) => {
                let kind = if role == Role::Errors { Kind::Errors } else { Kind::Data };
                self.out[start..start + HEADER]
                    .copy_from_slice(&Header { kind, len, channel: number }.encode());
                self.out.truncate(start + HEADER + len);
                if len == MAX_DATA {
                    // As much as a pipe holds: a larger one costs fewer wake-ups. Best effort, for there is a quota.
                    let _ = os::set_pipe_size(fd.raw(), LARGE_PIPE);
                }
                self.spend(number, len);
                len == MAX_DATA
            }
            Err(Errno::AGAIN | Errno::INTR) => {
                self.out.truncate(start);
                false
            }
            // The end; a terminal's is an error.
            _ => {
                self.out.truncate(start);
                unwatch(&self.epoll, fd.raw());
                *slot = None;
                self.finish_call(number, false);
                false
            }
        }
    }

    /// Tells the end of a command, once all of its output has been told; or `now`.
    fn finish_call(&mut self, number: u32, now: bool) {
        let Some(Channel { task: Task::Call(call), .. }) = self.channels.get_mut(&number) else { return };
        if !now && (call.output.is_some() || call.errors.is_some()) {
            return;
        }
        if let Some(exit) = call.exit.take() {
            self.send(Kind::Event, number, &exit);
            self.close(number);
        }
    }

    /// Writes to a command or a file what the client has sent: what waits already, then `more`.
    fn write_input(&mut self, number: u32, more: &[u8]) {
        let Some(channel) = self.channels.get_mut(&number) else { return };
        let is_file = matches!(channel.task, Task::Files(_));
        let Some(input) = channel.input() else {
            // Nobody reads it: it is as if somebody did, and did nothing with it.
            return self.grant(number, more.len());
        };
        if input.terminal && !input.line_fits(more) {
            self.frame(Kind::Refused, number, &[]);
            return self.grant(number, more.len());
        }
        let waiting = !input.pending.is_empty();
        let Some(fd) = &input.fd else {
            if input.dead {
                return self.grant(number, more.len());
            }
            // It has yet to come.
            input.pending.extend_from_slice(more);
            return;
        };
        let (mut taken, mut failure) = (0, None);
        let old = core::mem::take(&mut input.pending);
        for part in [&old[..], more] {
            let mut rest = part;
            while !rest.is_empty() && failure.is_none() {
                match os::write(fd.raw(), rest) {
                    Ok(len) => {
                        rest = &rest[len..];
                        taken += len;
                    }
                    Err(Errno::INTR) => {}
                    Err(errno) => failure = Some(errno),
                }
            }
            input.pending.extend_from_slice(rest);
        }
        let raw = fd.raw();
        match failure {
            Some(Errno::AGAIN) => {
                if !waiting {
                    let _ = os::epoll_ctl(&self.epoll, Watch::Add, raw, EPOLLOUT, token(number, Role::Input));
                }
            }
            Some(errno) => {
                if waiting {
                    unwatch(&self.epoll, raw);
                }
                if is_file {
                    return self.fail_file(number, errno);
                }
                // It reads no more, and may well go on.
                taken += input.pending.len();
                input.pending = Vec::new();
                input.fd = None;
                input.dead = true;
                self.frame(Kind::End, number, &[]);
            }
            None => {
                if waiting {
                    unwatch(&self.epoll, raw);
                }
                if input.ended {
                    self.end_input(number);
                }
            }
        }
        self.grant(number, taken);
    }

    /// Lets the client send so much more.
    fn grant(&mut self, number: u32, len: usize) {
        let Some(channel) = self.channels.get_mut(&number) else { return };
        channel.room += len;
        if len > 0 {
            self.frame(Kind::Credit, number, &(len as u32).to_le_bytes());
        }
    }

    /// All input has been written, and there is no more.
    fn end_input(&mut self, number: u32) {
        let Some(channel) = self.channels.get_mut(&number) else { return };
        match &mut channel.task {
            Task::Call(call) => {
                // Closing a terminal types nothing.
                call.input.fd = None;
                call.input.dead = true;
            }
            Task::Files(files) => {
                let Stage::Write(write) = core::mem::replace(&mut files.stage, Stage::Pass) else { return };
                if let Some(then) = write.then.clone() {
                    let request =
                        FileRequest::Rename { from: write.path.clone(), to: then, no_replace: false };
                    files.stage = Stage::Rename(write);
                    if files.ask(&request).is_err() {
                        self.close(number);
                    }
                } else {
                    self.frame(Kind::Event, number, &FileReply::Done.encode());
                    self.close(number);
                }
            }
            Task::Watch(_) => {}
        }
    }

    fn fail_file(&mut self, number: u32, errno: Errno) {
        self.send(Kind::Event, number, &FileReply::Failed { errno: errno.0 }.encode());
        self.close(number);
    }

    /// What process 1 has to say about files.
    fn read_files(&mut self, number: u32) -> Turn {
        loop {
            let Some(Channel { task: Task::Files(files), paused: false, .. }) =
                self.channels.get_mut(&number)
            else {
                return Ok(());
            };
            let packet = match wire::receive(files.socket.raw(), &mut self.packet, false) {
                Ok(Some(packet)) => packet,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                _ => {
                    self.close(number);
                    return Ok(());
                }
            };
            // First of all it says that this is a channel for files, or that there are too many.
            match Event::decode(&packet.bytes) {
                Ok(Event::Done) => continue,
                Ok(_) => {
                    self.fail_file(number, Errno::AGAIN);
                    return Ok(());
                }
                Err(_) => {}
            }
            files.asked = files.asked.saturating_sub(1);
            let reply = FileReply::decode(&packet.bytes);
            let fd = packet.fds.into_iter().next();
            let stage = core::mem::replace(&mut files.stage, Stage::Pass);
            match (stage, reply, fd) {
                (_, Err(Malformed::Version(_) | Malformed::Header), _) => return Err(End),
                (Stage::OpenRead { from, most }, Ok(FileReply::Done), Some(file)) => {
                    let Ok(stat) = os::statx(file.raw(), c"", sys::AT_EMPTY_PATH) else { return Err(End) };
                    if stat.format() == os::S_IFDIR {
                        self.fail_file(number, Errno::ISDIR);
                        return Ok(());
                    }
                    let left = stat.size.saturating_sub(from).min(most);
                    files.stage = Stage::Read { file, position: from as usize, left };
                    let opened = Answer::Opened { stat: files::stat_reply(&stat) };
                    self.send(Kind::Event, number, &opened.encode());
                }
                (Stage::OpenWrite(mut write), Ok(FileReply::Done), Some(file)) => {
                    let Ok(stat) = os::statx(file.raw(), c"", sys::AT_EMPTY_PATH) else { return Err(End) };
                    write.input.fd = Some(file);
                    files.stage = Stage::Write(write);
                    let opened = Answer::Opened { stat: files::stat_reply(&stat) };
                    self.send(Kind::Event, number, &opened.encode());
                    self.write_input(number, &[]);
                }
                (Stage::Rename(write), Ok(FileReply::Done), _) => {
                    // There is nothing to remove any more.
                    drop(write);
                    self.send(Kind::Event, number, &packet.bytes);
                    self.close(number);
                }
                (Stage::OpenList, Ok(FileReply::Done), Some(folder)) => files.stage = Stage::List { folder },
                (stage, _, _) => {
                    // What fails leaves a file of this side's making to be removed, if there is one.
                    if let Stage::Rename(_) = &stage {
                        files.stage = stage;
                    }
                    self.send(Kind::Event, number, &packet.bytes);
                    self.close(number);
                }
            }
        }
    }

    /// A folder that is to be watched has been opened, or not.
    fn read_opened(&mut self, number: u32) {
        let Some(Channel { task: Task::Watch(watcher), .. }) = self.channels.get_mut(&number) else { return };
        let packet = match wire::receive(watcher.socket.raw(), &mut self.packet, false) {
            Ok(Some(packet)) => packet,
            Err(Errno::AGAIN | Errno::INTR) => return,
            _ => return self.close(number),
        };
        if let Ok(event) = Event::decode(&packet.bytes) {
            if event != Event::Done {
                self.fail_file(number, Errno::AGAIN);
            }
            return;
        }
        let folder = match (FileReply::decode(&packet.bytes), packet.fds.into_iter().next()) {
            (Ok(FileReply::Done), Some(folder)) => Ok(folder),
            (Ok(FileReply::Failed { errno }), _) => Err(Errno(errno)),
            _ => Err(Errno::ACCES),
        };
        match watcher.take(folder) {
            Ok(Watched::Going) => {}
            Ok(Watched::All) => {
                if let Some(stat) = watcher.opened.take() {
                    self.send(Kind::Event, number, &Answer::Opened { stat }.encode());
                }
            }
            Err(errno) => return self.fail_file(number, errno),
        }
        self.tell_changes(number);
    }

    fn read_changes(&mut self, number: u32) {
        let Some(Channel { task: Task::Watch(watcher), .. }) = self.channels.get_mut(&number) else { return };
        let read = watcher.read();
        self.tell_changes(number);
        match read {
            Ok(true) => {}
            Ok(false) => {
                self.frame(Kind::End, number, &[]);
                self.close(number);
            }
            Err(errno) => self.fail_file(number, errno),
        }
    }

    /// Tells the changes that have been noticed, once it has been told that they would be.
    fn tell_changes(&mut self, number: u32) {
        loop {
            let Some(Channel { task: Task::Watch(watcher), paused: false, .. }) =
                self.channels.get_mut(&number)
            else {
                return;
            };
            if watcher.opened.is_some() {
                return;
            }
            let changes = watcher.changes();
            if changes.is_empty() {
                return;
            }
            self.send(Kind::Event, number, &Answer::Changes { changes }.encode());
        }
    }

    /// What can go on without waiting: reading files and folders.
    fn work(&mut self) -> Turn {
        let busy: Vec<u32> = self
            .channels
            .iter()
            .filter(|(_, channel)| channel.is_busy())
            .map(|(number, _)| *number)
            .collect();
        for number in busy {
            for _ in 0..READS_IN_A_TURN {
                if !self.read_file(number) {
                    break;
                }
            }
            if self.out.len() >= BATCH {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Reads some of a file or folder; says whether there is more to be read at once.
    fn read_file(&mut self, number: u32) -> bool {
        let Some(channel) = self.channels.get_mut(&number).filter(|channel| channel.is_busy()) else {
            return false;
        };
        let Task::Files(files) = &mut channel.task else { return false };
        match &mut files.stage {
            Stage::Read { file, position, left } => {
                let start = self.out.len();
                let want = (*left).min(MAX_DATA as u64) as usize;
                self.out.resize(start + HEADER + want, 0);
                match os::pread(file.raw(), &mut self.out[start + HEADER..], *position) {
                    Ok(len @ 1..) => {
                        *position += len;
                        *left -= len as u64;
                        self.out[start..start + HEADER]
                            .copy_from_slice(&Header { kind: Kind::Data, len, channel: number }.encode());
                        self.out.truncate(start + HEADER + len);
                        self.spend(number, len);
                        true
                    }
                    Err(Errno::INTR) => {
                        self.out.truncate(start);
                        true
                    }
                    Ok(_) => {
                        self.out.truncate(start);
                        self.frame(Kind::End, number, &[]);
                        self.close(number);
                        false
                    }
                    Err(errno) => {
                        self.out.truncate(start);
                        self.fail_file(number, errno);
                        false
                    }
                }
            }
            Stage::List { folder } => match entries(folder) {
                Ok(entries) if entries.is_empty() => {
                    self.frame(Kind::End, number, &[]);
                    self.close(number);
                    false
                }
                Ok(entries) => {
                    self.send(Kind::Event, number, &Answer::Entries { entries }.encode());
                    true
                }
                Err(errno) => {
                    self.fail_file(number, errno);
                    false
                }
            },
            _ => false,
        }
    }

    fn next_timeout(&self) -> Option<u64> {
        if self.channels.values().any(Channel::is_busy) {
            return Some(0);
        }
        let due = self.channels.values().filter(|channel| !channel.paused).filter_map(Channel::due).min()?;
        Some(due.saturating_sub(os::monotonic()))
    }

    fn check_times(&mut self) -> Turn {
        if self.channels.values().all(|channel| channel.due().is_none()) {
            return Ok(());
        }
        let now = os::monotonic();
        let due = |channel: &Channel| !channel.paused && channel.due().is_some_and(|due| due <= now);
        let numbers: Vec<u32> =
            self.channels.iter().filter(|(_, channel)| due(channel)).map(|(number, _)| *number).collect();
        for number in numbers {
            // What is there still belongs to it; what keeps coming does not.
            for role in [Role::Output, Role::Errors] {
                for _ in 0..LARGE_PIPE / MAX_DATA {
                    if !self.read_output(number, role) {
                        break;
                    }
                    self.flush()?;
                }
            }
            if self.channels.get(&number).is_some_and(|channel| !channel.paused) {
                self.finish_call(number, true);
            }
        }
        Ok(())
    }

    /// Closes a channel, from whichever side.
    fn close(&mut self, number: u32) {
        if let Some(channel) = self.channels.remove(&number) {
            self.give_up(channel);
            self.frame(Kind::Close, number, &[]);
        }
    }

    /// Gives up what a channel was for.
    fn give_up(&self, channel: Channel) {
        for (_, fd) in channel.readable() {
            unwatch(&self.epoll, fd);
        }
        match channel.task {
            Task::Call(call) => {
                if let Some(fd) = &call.input.fd
                    && !call.input.pending.is_empty()
                {
                    unwatch(&self.epoll, fd.raw());
                }
            }
            Task::Files(mut files) => {
                if let Stage::OpenWrite(write) | Stage::Write(write) | Stage::Rename(write) = &files.stage
                    && write.then.is_some()
                {
                    let request = FileRequest::Remove { path: write.path.clone(), directory: false };
                    files.undo(&request);
                }
            }
            Task::Watch(_) => {}
        }
    }

    fn close_all(&mut self) {
        while let Some((_, channel)) = self.channels.pop_first() {
            self.give_up(channel);
        }
    }
}

impl Channel {
    /// The descriptors that are read from, each with its role.
    fn readable(&self) -> impl Iterator<Item = (Role, i32)> {
        let (reply, output, errors) = match &self.task {
            Task::Call(call) => (call.reply.as_ref(), call.output.as_ref(), call.errors.as_ref()),
            Task::Files(files) => (Some(&files.socket), None, None),
            Task::Watch(watcher) => (Some(&watcher.socket), Some(&watcher.inotify), None),
        };
        [(Role::Reply, reply), (Role::Output, output), (Role::Errors, errors)]
            .into_iter()
            .filter_map(|(role, fd)| fd.map(|fd| (role, fd.raw())))
    }

    fn input(&mut self) -> Option<&mut Input> {
        match &mut self.task {
            Task::Call(call) => Some(&mut call.input),
            Task::Files(files) => match &mut files.stage {
                Stage::OpenWrite(write) | Stage::Write(write) => Some(&mut write.input),
                _ => None,
            },
            Task::Watch(_) => None,
        }
    }

    fn is_busy(&self) -> bool {
        !self.paused
            && matches!(&self.task, Task::Files(Files { stage: Stage::Read { .. } | Stage::List { .. }, .. }))
    }

    fn due(&self) -> Option<u64> {
        match &self.task {
            Task::Call(call) => call.due,
            Task::Files(_) | Task::Watch(_) => None,
        }
    }
}

impl Files {
    fn ask(&mut self, request: &FileRequest) -> Result<()> {
        self.asked += 1;
        wire::send(self.socket.raw(), &request.encode(), &[])
    }

    /// Sends a last request and waits for its answer: process 1 takes no more requests from who has gone.
    fn undo(&mut self, request: &FileRequest) {
        const LONGEST: u64 = 1_000_000_000;
        if self.ask(request).is_err() {
            return;
        }
        let mut buffer = os::buffer(proto::MAX_PACKET);
        let give_up = os::monotonic() + LONGEST;
        while self.asked > 0 && os::monotonic() < give_up {
            os::wait_for(&mut [os::Poll::new(self.socket.raw(), os::POLLIN)], Some(LONGEST));
            match wire::receive(self.socket.raw(), &mut buffer, false) {
                Ok(Some(packet)) if Event::decode(&packet.bytes).is_err() => self.asked -= 1,
                Ok(Some(_)) | Err(Errno::AGAIN | Errno::INTR) => {}
                _ => return,
            }
        }
    }
}

/// The next names in a folder; none at its end.
fn entries(folder: &Fd) -> Result<Vec<Entry>> {
    let mut buffer = [0; 8192];
    let mut found = Vec::new();
    while found.is_empty() {
        let len = os::getdents(folder.raw(), &mut buffer)?;
        if len == 0 {
            break;
        }
        for (_, _, name) in os::entries(&buffer[..len]) {
            if name == c"." || name == c".." {
                continue;
            }
            match os::statx(folder.raw(), name, sys::AT_SYMLINK_NOFOLLOW) {
                Ok(stat) => {
                    found.push(Entry { name: name.to_bytes().into(), stat: files::stat_reply(&stat) });
                }
                // Gone since.
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
    Ok(found)
}

fn unwatch(epoll: &Fd, fd: i32) {
    let _ = os::epoll_ctl(epoll, Watch::Remove, fd, 0, 0);
}
