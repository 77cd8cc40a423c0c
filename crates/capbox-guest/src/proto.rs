//! The protocol between the guest and its clients, over `SOCK_SEQPACKET` sockets.
//!
//! A *control connection* only ever carries requests. Each request brings the socket for its own answers as its
//! first descriptor, so answers need no numbers and no sorting, and closing that socket is how a client says that
//! it no longer cares. What follows the first descriptor depends on the request.
//!
//! A message is a four-byte header (magic, version, kind) and its fields in order: integers little-endian, byte
//! strings and lists with a 32-bit count in front. A message longer than [`MAX_PACKET`] travels in a memory file,
//! announced by a packet with the kind [`INDIRECT`], as the last descriptor.
//!
//! The header and [`Event::Version`] stay as they are in every version, so that two that differ can say so.

use alloc::vec::Vec;

/// The version that this code speaks.
pub const VERSION: u16 = 1;
/// Messages up to this size travel in one packet.
pub const MAX_PACKET: usize = 60 * 1024;
/// No message is longer. Linux refuses larger argument lists anyway.
pub const MAX_MESSAGE: usize = 8 << 20;
/// No packet carries more descriptors.
pub const MAX_FDS: usize = 16;
/// The kind of a packet whose message is in the memory file that comes with it.
pub const INDIRECT: u8 = 0xff;

/// Flags of [`FileRequest::Open`].
pub mod open {
    /// To read.
    pub const READ: u32 = 1;
    /// To write.
    pub const WRITE: u32 = 2;
    /// Makes a file that is not there.
    pub const CREATE: u32 = 4;
    /// With `CREATE`: refuses a file that is there.
    pub const EXCLUSIVE: u32 = 8;
    /// Empties the file.
    pub const TRUNCATE: u32 = 16;
    /// Writes always at the end.
    pub const APPEND: u32 = 32;
    /// Refuses all but a folder.
    pub const DIRECTORY: u32 = 64;
    /// Refuses a link at the end of the path.
    pub const NO_FOLLOW: u32 = 128;
}

const MAGIC: u8 = 0xcb;
const HEADER: usize = 4;

/// The name of the control socket in a sandbox's folder.
pub const SOCKET: &str = "control";
/// The user that code runs as unless it asks for another.
pub const CODE_ID: u32 = 1000;
/// The user that the guest runs as where several are mapped. Code can never have this id.
pub const GUEST_ID: u32 = 65_535;

/// Why a message could not be understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// Shorter than its fields say, longer than they need, or a value out of range.
    Fields,
    /// Not a message at all.
    Header,
    /// A message of another version.
    Version(u16),
    /// A kind that this version does not have.
    Kind(u8),
}

/// Something that can be part of a message.
pub trait Wire: Sized {
    /// Appends the value.
    fn put(&self, out: &mut Vec<u8>);
    /// Takes the value off the front.
    fn take(input: &mut &[u8]) -> Result<Self, Malformed>;
}

macro_rules! integers {
    ($($ty:ty)*) => {$(
        impl Wire for $ty {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn take(input: &mut &[u8]) -> Result<Self, Malformed> {
                let (bytes, rest) = input.split_first_chunk().ok_or(Malformed::Fields)?;
                *input = rest;
                Ok(Self::from_le_bytes(*bytes))
            }
        }
    )*};
}
integers!(u16 u32 u64 i32 i64);

impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn take(input: &mut &[u8]) -> Result<Self, Malformed> {
        match input.split_off_first() {
            Some(0) => Ok(false),
            Some(1) => Ok(true),
            _ => Err(Malformed::Fields),
        }
    }
}

/// A byte string; not `Vec<u8>` through the generic list, which would copy byte by byte.
impl Wire for Bytes {
    fn put(&self, out: &mut Vec<u8>) {
        (self.0.len() as u32).put(out);
        out.extend_from_slice(&self.0);
    }
    fn take(input: &mut &[u8]) -> Result<Self, Malformed> {
        let len = u32::take(input)? as usize;
        let bytes = input.split_off(..len).ok_or(Malformed::Fields)?;
        Ok(Self(bytes.to_vec()))
    }
}

/// Owned bytes: argument, path, name, output.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub Vec<u8>);

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl From<&str> for Bytes {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl core::ops::Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        for item in self {
            item.put(out);
        }
    }
    fn take(input: &mut &[u8]) -> Result<Self, Malformed> {
        let len = u32::take(input)? as usize;
        // Each item takes at least one byte: a count beyond what is left is a lie, and must not reserve memory.
        if len > input.len() {
            return Err(Malformed::Fields);
        }
        let mut items = Self::new();
        for _ in 0..len {
            items.push(T::take(input)?);
        }
        Ok(items)
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn take(input: &mut &[u8]) -> Result<Self, Malformed> {
        if bool::take(input)? { T::take(input).map(Some) } else { Ok(None) }
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }
    fn take(input: &mut &[u8]) -> Result<Self, Malformed> {
        Ok((A::take(input)?, B::take(input)?))
    }
}

macro_rules! records {
    ($( $(#[$meta:meta])* pub struct $name:ident { $( $(#[$fmeta:meta])* pub $field:ident: $ty:ty, )* } )*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct $name { $( $(#[$fmeta])* pub $field: $ty, )* }

        impl Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $( self.$field.put(out); )*
            }
            fn take(input: &mut &[u8]) -> Result<Self, Malformed> {
                Ok(Self { $( $field: Wire::take(input)?, )* })
            }
        }
    )*};
}

macro_rules! choices {
    ($( $(#[$meta:meta])* pub enum $name:ident { $( $(#[$vmeta:meta])* $variant:ident = $value:literal, )* } )*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $( $(#[$vmeta])* $variant = $value, )* }

        impl Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                out.push(*self as u8);
            }
            fn take(input: &mut &[u8]) -> Result<Self, Malformed> {
                match input.split_off_first() {
                    $( Some($value) => Ok(Self::$variant), )*
                    _ => Err(Malformed::Fields),
                }
            }
        }
    )*};
}

macro_rules! messages {
    ($( $(#[$meta:meta])* pub enum $name:ident {
        $( $(#[$vmeta:meta])* $variant:ident $({ $( $(#[$fmeta:meta])* $field:ident: $ty:ty, )* })? = $kind:literal, )*
    } )*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $name { $( $(#[$vmeta])* $variant $({ $( $(#[$fmeta])* $field: $ty, )* })?, )* }

        impl $name {
            /// The whole message, header included.
            pub fn encode(&self) -> Vec<u8> {
                let mut out = Vec::with_capacity(128);
                out.push(MAGIC);
                VERSION.put(&mut out);
                match self {
                    $( Self::$variant $({ $( $field, )* })? => {
                        out.push($kind);
                        $( $( $field.put(&mut out); )* )?
                    } )*
                }
                out
            }

            /// Reads a whole message. Nothing may be left over.
            pub fn decode(message: &[u8]) -> Result<Self, Malformed> {
                let (kind, mut input) = header(message)?;
                let value = match kind {
                    $( $kind => Self::$variant $({ $( $field: Wire::take(&mut input)?, )* })?, )*
                    other => return Err(Malformed::Kind(other)),
                };
                if input.is_empty() { Ok(value) } else { Err(Malformed::Fields) }
            }
        }
    )*};
}

/// The packet that announces a message in a memory file.
pub fn indirect() -> [u8; HEADER] {
    let [low, high] = VERSION.to_le_bytes();
    [MAGIC, low, high, INDIRECT]
}

/// Whether the packet announces a message in a memory file.
pub fn is_indirect(packet: &[u8]) -> bool {
    packet == indirect()
}

fn header(message: &[u8]) -> Result<(u8, &[u8]), Malformed> {
    let ([magic, low, high, kind], rest) = message.split_first_chunk().ok_or(Malformed::Header)?;
    if *magic != MAGIC {
        return Err(Malformed::Header);
    }
    let version = u16::from_le_bytes([*low, *high]);
    // The kind that tells versions apart is understood in all of them.
    if version != VERSION && *kind != 0 {
        return Err(Malformed::Version(version));
    }
    Ok((*kind, rest))
}

records! {
    /// What the guest has to know to build a sandbox; the first message on the owner's connection.
    ///
    /// Descriptors: one for each of [`Boot::mounts`] that has no source path, in order.
    pub struct Boot {
        /// The folder that holds the folders of all sandboxes, as a path on the host.
        pub sandboxes: Bytes,
        /// The lowest layer of the root, as a path on the host.
        pub skeleton: Bytes,
        /// The sandbox's id, which is the name of its folder.
        pub id: Bytes,
        /// Whether ids 0 to 65535 are mapped, rather than [`CODE_ID`] alone.
        pub several_ids: bool,
        /// The host name inside.
        pub hostname: Bytes,
        /// The environment of every job, before what the job itself asks for.
        pub env: Vec<(Bytes, Bytes)>,
        /// Where jobs start and relative paths begin.
        pub cwd: Bytes,
        /// What the creator wants to find it by.
        pub labels: Vec<(Bytes, Bytes)>,
        /// Opaque to this protocol.
        pub meta: Bytes,
        /// The version of the guest program, for [`Info`].
        pub version: Bytes,
        /// Milliseconds until it ends by itself; 0 for never.
        pub ttl: u64,
        /// Whether it ends with the connection that created it.
        pub owned: bool,
        /// The largest number of processes and threads.
        pub processes: u64,
        /// When it was created: milliseconds since 1970.
        pub created: u64,
        /// Folders of the host that are seen read-only, at the same path.
        pub system: Vec<Bytes>,
        /// Folders of the host that the creator chose.
        pub mounts: Vec<Mount>,
        /// The size in bytes of writes kept in memory; 0 to keep them in the sandbox's folder.
        pub memory_upper: u64,
        /// The size in bytes of `/dev/shm`.
        pub shm: u64,
        /// Whether setting the set-user-id bit is refused, because files may belong to a user of the host.
        pub deny_set_id: bool,
    }

    /// What the guest has to know to supervise a container that something else has made. See [`Request::Contain`].
    pub struct Contain {
        /// The sandbox's id.
        pub id: Bytes,
        /// The environment of every job, before what the job itself asks for: the image's own, and the creator's.
        pub env: Vec<(Bytes, Bytes)>,
        /// Where jobs start and relative paths begin: the image's own, or the creator's. An absolute path.
        pub cwd: Bytes,
        /// The user that code runs as unless it asks for another, as an image writes it: a name or number, with a
        /// group if it has a colon. Empty for root.
        pub user: Bytes,
        /// What the creator wants to find it by.
        pub labels: Vec<(Bytes, Bytes)>,
        /// Opaque to this protocol.
        pub meta: Bytes,
        /// The version of the guest program, for [`Info`].
        pub version: Bytes,
        /// The host name inside, for [`Info`].
        pub hostname: Bytes,
        /// Milliseconds until it ends by itself; 0 for never.
        pub ttl: u64,
        /// Whether it ends with the connection that this comes on.
        pub owned: bool,
        /// When it was created: milliseconds since 1970.
        pub created: u64,
    }

    /// A name in a folder.
    pub struct Entry {
        /// The name, byte for byte.
        pub name: Bytes,
        /// What it names; links are not followed.
        pub stat: Stat,
    }

    /// A folder of the host that is seen inside.
    pub struct Mount {
        /// The absolute path inside.
        pub target: Bytes,
        /// The path on the host; empty if a descriptor is passed instead.
        pub source: Bytes,
        /// Device and inode that the source must have.
        pub identity: (u64, u64),
        /// Whether it cannot be written.
        pub read_only: bool,
        /// Paths in it that stay read-only if they exist.
        pub protect: Vec<Bytes>,
        /// Folders in it that are not shown.
        pub hide: Vec<Bytes>,
    }

    /// A command to run.
    ///
    /// Descriptors after the first, for a foreground job without a terminal: standard input if piped, standard
    /// output, standard error. They must be pipes.
    pub struct Exec {
        /// Program and arguments.
        pub argv: Vec<Bytes>,
        /// Laid over the sandbox's own environment.
        pub env: Vec<(Bytes, Bytes)>,
        /// Where to start; empty for the sandbox's default.
        pub cwd: Bytes,
        /// Empty for the default, else a name or `uid[:gid]`.
        pub user: Bytes,
        /// Milliseconds until its whole tree is killed; 0 for never.
        pub timeout: u64,
        /// Whether it outlives the reply socket and its output goes into a log.
        pub background: bool,
        /// Whether there is a standard input to write to.
        pub stdin: bool,
        /// Rows and columns, if it runs on a terminal of its own.
        pub pty: Option<(u16, u16)>,
        /// Bytes of output that the log of a background job keeps; 0 for the default.
        pub retain: u64,
    }

    /// How a job ended.
    pub struct Exit {
        /// As `wait(2)` gives it.
        pub status: i32,
        /// The bits of [`Cause`], as an integer so that the record has a default.
        pub cause: u16,
        /// Processes of the job that are still there.
        pub remaining: u32,
        /// Microseconds of processor time.
        pub cpu: u64,
        /// The largest resident set, in KiB.
        pub max_rss: u64,
        /// Microseconds from start to end.
        pub duration: u64,
    }

    /// A job, as listed.
    pub struct Job {
        /// Its id.
        pub id: Bytes,
        /// Program and arguments, shortened.
        pub argv: Vec<Bytes>,
        /// When it started: milliseconds since 1970.
        pub started: u64,
        /// Whether it was started in the background.
        pub background: bool,
        /// How it ended, if it did.
        pub exit: Option<Exit>,
        /// Its processes, by their numbers inside.
        pub pids: Vec<u32>,
        /// Whether it runs on a terminal.
        pub pty: bool,
        /// Bytes of output so far (background jobs).
        pub output: u64,
    }

    /// What a sandbox says about itself.
    pub struct Info {
        /// Its id.
        pub id: Bytes,
        /// When it was created: milliseconds since 1970.
        pub created: u64,
        /// Milliseconds until it ends by itself; 0 for never.
        pub ttl_left: u64,
        /// Whether it ends with its creator.
        pub owned: bool,
        /// What its creator wants to find it by.
        pub labels: Vec<(Bytes, Bytes)>,
        /// Opaque to this protocol.
        pub meta: Bytes,
        /// Jobs that have not ended.
        pub jobs: u32,
        /// The version of the guest program.
        pub version: Bytes,
        /// Whether ids 0 to 65535 are mapped.
        pub several_ids: bool,
        /// The host name inside.
        pub hostname: Bytes,
        /// Where jobs start.
        pub cwd: Bytes,
    }

    /// What `stat` tells of a file.
    pub struct Stat {
        /// Type and permission bits.
        pub mode: u32,
        /// Size in bytes.
        pub size: u64,
        /// Owner, as seen inside.
        pub uid: u32,
        /// Group, as seen inside.
        pub gid: u32,
        /// Seconds since 1970 of the last change of content.
        pub mtime: i64,
        /// Nanoseconds of the same.
        pub mtime_nanos: u32,
        /// Number of names.
        pub links: u32,
        /// Inode number.
        pub inode: u64,
    }
}

choices! {
    /// What made a job end.
    pub enum Cause {
        /// It ended by itself: by an exit or a signal, as the status says.
        Own = 0,
        /// Its timeout passed.
        TimedOut = 1,
        /// A client asked for it, or went away.
        Killed = 2,
        /// It used more memory than it may.
        OutOfMemory = 3,
        /// How it ended cannot be known: what watched over it was killed from inside. So was all of the job.
        Unknown = 4,
    }

    /// Where starting a command failed.
    pub enum Stage {
        /// The request itself.
        Request = 0,
        /// The folder to start in.
        Cwd = 1,
        /// The program.
        Program = 2,
        /// The interpreter that the program's first line names.
        Interpreter = 3,
        /// The user.
        User = 4,
        /// Creating the process: usually the limit on their number.
        Process = 5,
        /// The terminal.
        Terminal = 6,
    }

    /// A stream of output.
    pub enum Stream {
        /// Standard output, or a terminal.
        Stdout = 1,
        /// Standard error.
        Stderr = 2,
    }

    /// What a request about a job or a sandbox can be refused for.
    pub enum Refusal {
        /// No such job.
        NotFound = 0,
        /// The job has ended by itself before.
        Ended = 1,
        /// The request makes no sense.
        Invalid = 2,
        /// The job has no such thing.
        Unsupported = 3,
        /// Too many at once.
        Busy = 4,
        /// A container that has not been told yet what it is for. See [`Request::Contain`].
        Unbooted = 5,
        /// The client is not one that may ask for anything; said on the control connection itself.
        Stranger = 6,
    }
}

messages! {
    /// A request on a control connection. Its first descriptor is the socket for answers.
    pub enum Request {
        /// Builds the sandbox; the very first message, and only then. No reply socket: the answer comes on the
        /// owner's connection itself.
        Boot { /// What to build.
            boot: Boot, } = 1,
        /// Runs a command.
        Exec { /// Which.
            exec: Exec, } = 2,
        /// Replays and follows the output of a background job.
        Attach {
            /// The job.
            job: Bytes,
            /// The position to start at.
            after: u64,
            /// Whether to pass a descriptor to write its input to.
            input: bool,
        } = 3,
        /// Kills what there is of a job; answered when all of it is gone.
        Kill { /// The job.
            job: Bytes, } = 4,
        /// Sends a signal to the job's process group.
        Signal { /// The job.
            job: Bytes, /// The signal's number.
            signal: i32, } = 5,
        /// Closes the guest's end of a background job's input.
        CloseStdin { /// The job.
            job: Bytes, } = 6,
        /// Sets the size of a background job's terminal.
        Resize { /// The job.
            job: Bytes, /// Rows and columns.
            size: (u16, u16), } = 7,
        /// Lists jobs.
        Jobs = 8,
        /// Asks about the sandbox.
        Info = 9,
        /// Lets the sandbox live on without its creator.
        Detach = 10,
        /// Sets the time to live, counted from now.
        Ttl { /// Milliseconds; 0 for no end.
            ttl: u64, } = 11,
        /// Ends the sandbox and removes everything.
        Destroy = 12,
        /// Turns the reply socket into a channel for [`FileRequest`].
        Files = 13,
        /// Tells a container what it is for; the connection is then the owner's. Answered by [`Event::Ready`], or
        /// refused where it has been told before.
        Contain { /// What it is for.
            contain: Contain, } = 14,
        /// In a container, the answer to the [`Event::Version`] that greets a new connection: the kernel notes who
        /// sends it. Without descriptors.
        Present = 15,
    }

    /// An answer on a reply socket.
    pub enum Event {
        /// The other side speaks this version only. Understood by all versions.
        Version { /// That version.
            version: u16, } = 0,
        /// The sandbox is ready.
        Ready = 64,
        /// The sandbox could not be built.
        BootFailed { /// What was tried.
            step: Bytes, /// Why it failed.
            errno: i32, } = 65,
        /// The command runs. With a terminal in the foreground, its descriptor comes along.
        Started { /// The job's id.
            job: Bytes, } = 66,
        /// The command could not be started.
        Failed { /// Where.
            stage: Stage, /// Why.
            errno: i32, } = 67,
        /// The command ended.
        Exited { /// How.
            exit: Exit, } = 68,
        /// Output of a background job.
        Output { /// The position of its first byte in all of the job's output.
            seq: u64, /// Where it was written.
            stream: Stream, /// What was written.
            data: Bytes, } = 69,
        /// Output that is no longer there.
        Gap { /// The position of the first missing byte.
            from: u64, /// The position after the last.
            to: u64, } = 70,
        /// Attached. If input was asked for, its descriptor comes along.
        Attached = 71,
        /// Done.
        Done = 72,
        /// Refused.
        Refused { /// Why.
            refusal: Refusal, } = 73,
        /// Some of the jobs.
        Jobs { /// Those.
            jobs: Vec<Job>, /// Whether this was the last such message.
            last: bool, } = 74,
        /// About the sandbox.
        Info { /// What there is to say.
            info: Info, } = 75,
    }

    /// A request on a file channel, answered by one [`FileReply`] each, in order.
    ///
    /// Everything is done with the rights of the code's user and inside its root.
    pub enum FileRequest {
        /// Opens a file; the descriptor comes with the answer.
        Open {
            /// Which.
            path: Bytes,
            /// Bits of [`open`].
            flags: u32,
            /// Permission bits of a new file.
            mode: u32,
        } = 128,
        /// Asks for type, size and times.
        Stat { /// Which.
            path: Bytes, /// Whether to follow a link at its end.
            follow: bool, } = 129,
        /// Makes a folder.
        Mkdir { /// Which.
            path: Bytes, /// Its permission bits.
            mode: u32, /// Whether to make missing parents, and accept one that exists.
            parents: bool, } = 130,
        /// Gives a file another name.
        Rename { /// The old name.
            from: Bytes, /// The new name.
            to: Bytes, /// Whether to refuse when the new name exists.
            no_replace: bool, } = 131,
        /// Removes a name.
        Remove { /// Which.
            path: Bytes, /// Whether it is an (empty) folder.
            directory: bool, } = 132,
        /// Removes a folder and all that is in it.
        RemoveTree { /// Which.
            path: Bytes, } = 133,
        /// Makes a symbolic link.
        Symlink { /// What it says.
            target: Bytes, /// Where it is.
            path: Bytes, } = 134,
        /// Reads a symbolic link.
        Readlink { /// Which.
            path: Bytes, } = 135,
        /// Sets permission bits.
        Chmod { /// Of which.
            path: Bytes, /// The bits.
            mode: u32, } = 136,
        /// Sets the time of the last change, and of the last access.
        SetTimes { /// Of which.
            path: Bytes, /// Whether to follow a link at its end.
            follow: bool, /// Seconds since 1970.
            seconds: i64, /// And nanoseconds.
            nanos: u32, } = 137,
    }

    /// An answer on a file channel.
    pub enum FileReply {
        /// The other side speaks this version only. Understood by all versions.
        Version { /// That version.
            version: u16, } = 0,
        /// Done; with the descriptor, after `Open`.
        Done = 192,
        /// Not done.
        Failed { /// Why, as an error number.
            errno: i32, } = 193,
        /// Refused: it leads to something that is no file of the sandbox, such as `/proc`.
        Outside = 194,
        /// Refused: neither a regular file nor a folder.
        Special { /// Its type and permission bits.
            mode: u32, } = 195,
        /// The answer to `Stat`.
        Stat { /// What was found.
            stat: Stat, } = 196,
        /// The answer to `Readlink`.
        Link { /// What it says.
            target: Bytes, } = 197,
    }
}

messages! {
    /// What a relay does by itself, with descriptors that process 1 opens for it. See [`crate::stream`].
    ///
    /// Everything is done with the rights of the code's user and inside its root.
    pub enum Work {
        /// Reads a regular file: [`Answer::Opened`], the bytes as data, the end.
        Read { /// Which.
            path: Bytes, /// The position of the first byte.
            from: u64, /// The number of bytes at the most.
            most: u64, } = 96,
        /// Writes a regular file with the data that follows, up to the end of it: [`Answer::Opened`], [`FileReply::Done`].
        Write { /// Which.
            path: Bytes, /// Bits of [`open`], [`open::WRITE`] among them.
            flags: u32, /// Permission bits of a new file.
            mode: u32, /// What it is renamed to at the end. Without an end it is removed.
            then: Option<Bytes>, } = 97,
        /// Lists a folder: [`Answer::Entries`] as often as needed, the end.
        List { /// Which.
            path: Bytes, } = 98,
        /// Tells changes in a folder from now on: [`Answer::Opened`], then [`Answer::Changes`] for as long as it is there.
        Watch { /// Which.
            path: Bytes, /// Whether also in all that is below, folders made later included.
            recursive: bool, } = 99,
    }

    /// What a relay says by itself. What fails is answered as by process 1, with a [`FileReply`].
    pub enum Answer {
        /// It has been opened.
        Opened { /// What it is.
            stat: Stat, } = 224,
        /// Some of the names in a folder.
        Entries { /// Those, `.` and `..` left out, in no order.
            entries: Vec<Entry>, } = 225,
        /// Some changes.
        Changes { /// Those, in their order.
            changes: Vec<Change>, } = 226,
    }
}

records! {
    /// A change in a folder that is watched.
    pub struct Change {
        /// Of [`change`].
        pub kind: u16,
        /// Where: from the folder that is watched on; empty for that itself.
        pub path: Bytes,
        /// Whether it is a folder.
        pub directory: bool,
        /// Not 0 for the two halves of a rename, which have it in common.
        pub cookie: u32,
    }
}

/// Kinds of [`Change`].
pub mod change {
    /// A name has come: made, or moved here.
    pub const CREATED: u16 = 1;
    /// Content, mode or times have changed.
    pub const MODIFIED: u16 = 2;
    /// A name has gone: removed, or moved away.
    pub const REMOVED: u16 = 3;
    /// More has changed than could be told: look again at everything.
    pub const OVERFLOW: u16 = 4;
}

/// What kind a message is of, whichever enum it belongs to.
pub fn kind(message: &[u8]) -> Option<u8> {
    message.get(HEADER - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn exec() -> Request {
        Request::Exec {
            exec: Exec {
                argv: vec!["sh".into(), "-c".into(), b"\xff\0".as_slice().into()],
                env: vec![("A".into(), "1 2".into())],
                pty: Some((24, 80)),
                timeout: 5,
                ..Exec::default()
            },
        }
    }

    #[test]
    fn messages_survive_the_trip() {
        let message = exec();
        assert_eq!(Request::decode(&message.encode()), Ok(message));
        let event = Event::Output { seq: 7, stream: Stream::Stderr, data: "x".into() };
        assert_eq!(Event::decode(&event.encode()), Ok(event));
    }

    #[test]
    fn every_cut_is_noticed() {
        let whole = exec().encode();
        for len in 0..whole.len() {
            assert!(Request::decode(&whole[..len]).is_err(), "cut at {len}");
        }
        let mut longer = whole;
        longer.push(0);
        assert_eq!(Request::decode(&longer), Err(Malformed::Fields));
    }

    #[test]
    fn a_count_that_lies_reserves_nothing() {
        let mut message = Request::Jobs.encode();
        message[3] = 2;
        message.extend_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Request::decode(&message), Err(Malformed::Fields));
    }

    #[test]
    fn another_version_is_told_apart() {
        let mut message = Request::Info.encode();
        message[1] = 9;
        assert_eq!(Request::decode(&message), Err(Malformed::Version(9)));
        let mut answer = Event::Version { version: 9 }.encode();
        answer[1] = 9;
        assert_eq!(Event::decode(&answer), Ok(Event::Version { version: 9 }));
    }
}
