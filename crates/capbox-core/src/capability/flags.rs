//! Flags: behaviour that callers observe rather than ask for.

use std::fmt;
use std::time::Duration;

/// A closed set of words with one text form each, used in output and in `capbox plan`.
macro_rules! words {
    ($( $(#[$doc:meta])* $name:ident { $( $(#[$vdoc:meta])* $variant:ident = $text:literal ),* $(,)? } )*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum $name { $( $(#[$vdoc])* $variant, )* }

        impl $name {
            /// Every value.
            pub const ALL: &'static [Self] = &[$( Self::$variant, )*];

            const WORDS: &'static [&'static str] = &[$( $text, )*];

            /// The word used in every output.
            pub const fn as_str(self) -> &'static str {
                match self { $( Self::$variant => $text, )* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, String> {
                Self::ALL.iter().copied().find(|v| v.as_str() == text).ok_or_else(|| {
                    format!("`{text}` is none of `{}`", Self::WORDS.join("`, `"))
                })
            }
        }
    )* };
}

words! {
    /// How a URL leads to a port of a sandbox.
    PreviewModel {
        /// A host name per port.
        Subdomain = "subdomain",
        /// Only ports that were declared at create.
        DeclaredPorts = "declared-ports",
        /// Any port, by a wildcard name.
        WildcardDns = "wildcard-dns",
        /// The sandbox has an address.
        Ip = "ip",
        /// A tunnel to this machine.
        Tunnel = "tunnel",
        /// A path prefix.
        Path = "path",
        /// A request header.
        Header = "header",
        /// There is none.
        None = "none",
    }
    /// Whether standard output and standard error arrive apart.
    Streams {
        /// Two streams.
        Separate = "separate",
        /// One stream.
        Merged = "merged",
    }
    /// What becomes of output bytes that are not UTF-8.
    OutputBytes {
        /// Bytes arrive exactly.
        Exact = "exact",
        /// Some are replaced or dropped on the way.
        Lossy = "lossy",
    }
    /// How much of a background process's output is kept for replay.
    OutputRetention {
        /// Nothing.
        None = "none",
        /// The newest part.
        Bounded = "bounded",
        /// Everything.
        Full = "full",
    }
    /// What a background process outlives.
    BackgroundSurvives {
        /// The request that started it.
        Request = "request",
        /// The connection.
        Connection = "connection",
        /// The client.
        Client = "client",
    }
    /// How far the kill of a process reaches.
    KillReaches {
        /// The direct process.
        Process = "process",
        /// Its process group.
        Group = "group",
        /// Everything that it started.
        Tree = "tree",
    }
    /// How far a command's timeout reaches.
    TimeoutKills {
        /// Nothing: only the wait ends.
        Nothing = "nothing",
        /// The direct process.
        Process = "process",
        /// Its process group.
        Group = "group",
        /// Everything that the command started.
        Tree = "tree",
    }
    /// Where the provider tells that memory ran out.
    OomEvidence {
        /// Nowhere.
        None = "none",
        /// For the sandbox.
        Sandbox = "sandbox",
        /// For the process.
        Process = "process",
    }
    /// Which time a sandbox's life counts.
    LifetimeClock {
        /// Only while it runs.
        Running = "running",
        /// Always.
        Wall = "wall",
    }
    /// How a sandbox's life can be changed.
    LifetimeChange {
        /// Not at all.
        None = "none",
        /// Only to be longer.
        ExtendOnly = "extend-only",
        /// To be longer or shorter.
        Both = "both",
    }
    /// When a resize takes effect.
    ResizeApplies {
        /// At once.
        Live = "live",
        /// At the next start.
        AtRestart = "at-restart",
    }
    /// What taking a snapshot does to the sandbox.
    SnapshotSource {
        /// It keeps running.
        KeepsRunning = "keeps-running",
        /// It is paused for a while.
        Pauses = "pauses",
        /// It stops.
        Stops = "stops",
    }
    /// From what a fork is made.
    ForkSource {
        /// From the living sandbox.
        Live = "live",
        /// From its last snapshot.
        LastSnapshot = "last-snapshot",
    }
    /// How a repeated create is recognised.
    CreateDedup {
        /// By an idempotency key.
        Key = "key",
        /// By the name.
        Name = "name",
        /// Not at all.
        None = "none",
    }
    /// When a port must be declared.
    PortsDeclared {
        /// At create.
        Create = "create",
        /// At any time.
        Live = "live",
    }
    /// Where an allowed host name can be reached.
    EgressNames {
        /// On any port.
        AnyPort = "any-port",
        /// By HTTP and TLS only.
        HttpOnly = "http-only",
    }
    /// What the provider itself lets a sandbox reach if nothing is said; capbox always says.
    DefaultEgress {
        /// Nothing.
        Deny = "deny",
        /// Everything.
        Open = "open",
        /// Not known.
        Unknown = "unknown",
    }
    /// Who can use a preview URL if nothing is said.
    DefaultPreview {
        /// Everybody who knows it.
        Public = "public",
        /// Only the holder of a token.
        Private = "private",
        /// There are no previews.
        None = "none",
    }
    /// The boundary around a sandbox, weakest first. `unknown` satisfies no requirement.
    Isolation {
        /// Not known.
        Unknown = "unknown",
        /// The calling process itself.
        Process = "process",
        /// Namespaces and filters over one shared kernel.
        Container = "container",
        /// A kernel in user space.
        Gvisor = "gvisor",
        /// A virtual machine.
        Microvm = "microvm",
    }
}

/// A length of time that a provider states, or why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Span {
    /// This long.
    Of(Duration),
    /// There is no limit.
    NoLimit,
    /// The provider promises nothing.
    NoPromise,
    /// Not known.
    Unknown,
}

impl Span {
    /// The length, where there is one.
    pub const fn length(self) -> Option<Duration> {
        match self {
            Self::Of(length) => Some(length),
            _ => None,
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Of(length) => write!(f, "{}s", length.as_secs_f64()),
            Self::NoLimit => f.write_str("no limit"),
            Self::NoPromise => f.write_str("no promise"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

/// How long sandboxes live at a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// Which time counts.
    pub clock: LifetimeClock,
    /// What `lifecycle.set-timeout` can do.
    pub change: LifetimeChange,
    /// The step to which it is rounded up.
    pub granularity: Duration,
    /// The provider's own default.
    pub default: Span,
    /// The longest.
    pub max: Span,
}

/// How long a provider keeps what does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptFor {
    /// A paused sandbox.
    pub paused: Span,
    /// A stopped sandbox.
    pub stopped: Span,
    /// A snapshot.
    pub snapshot: Span,
}

macro_rules! flags {
    ($( $(#[$doc:meta])* $name:ident: $ty:ty = $default:expr; )*) => {
        /// What callers of a provider observe. Start from [`Flags::DEFAULT`] and state what differs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Flags { $( $(#[$doc])* pub $name: $ty, )* }

        impl Flags {
            /// The most careful value of each flag: what a provider leaves out is not claimed.
            pub const DEFAULT: Self = Self { $( $name: $default, )* };

            $( $(#[$doc])*
               #[must_use]
               pub const fn $name(mut self, value: $ty) -> Self {
                   self.$name = value;
                   self
               } )*

            /// Every flag by name, with its value as text. A flag of several parts has an entry for each:
            /// `lifetime.max`.
            pub fn entries(&self) -> Vec<(&'static str, String)> {
                let mut entries = Vec::new();
                $( Shown::shown(&self.$name, stringify!($name), &mut entries); )*
                entries
            }

            /// The words that the flag `name` takes; none where its value is free text.
            pub fn words(name: &str) -> &'static [&'static str] {
                match name {
                    $( stringify!($name) => <$ty as Shown>::WORDS, )*
                    _ => &[],
                }
            }
        }
    };
}

flags! {
    /// The disk is the same after stop and start.
    preserves_disk_on_stop: bool = false;
    /// Exit codes come from the provider, rather than from a wrapper that the program could forge.
    exit_code_native: bool = false;
    /// What addresses of exposed ports look like.
    preview_model: PreviewModel = PreviewModel::None;
    /// Whether standard output and standard error arrive apart.
    streams: Streams = Streams::Merged;
    /// Whether output arrives byte for byte.
    output_bytes: OutputBytes = OutputBytes::Lossy;
    /// How much output of a background process is kept.
    output_retention: OutputRetention = OutputRetention::None;
    /// What a background process outlives.
    background_survives: BackgroundSurvives = BackgroundSurvives::Request;
    /// Standard input can be ended while the process goes on.
    stdin_eof: bool = false;
    /// How far the kill of a process reaches.
    kill_reaches: KillReaches = KillReaches::Process;
    /// How far a command's timeout reaches.
    timeout_kills: TimeoutKills = TimeoutKills::Nothing;
    /// Where the provider tells that memory ran out.
    oom_evidence: OomEvidence = OomEvidence::None;
    /// How long sandboxes live.
    lifetime: Lifetime = Lifetime {
        clock: LifetimeClock::Wall,
        change: LifetimeChange::None,
        granularity: Duration::from_secs(1),
        default: Span::Unknown,
        max: Span::Unknown,
    };
    /// How long what does not run is kept.
    kept_for: KeptFor = KeptFor { paused: Span::Unknown, stopped: Span::Unknown, snapshot: Span::Unknown };
    /// When a resize takes effect.
    resize_applies: ResizeApplies = ResizeApplies::AtRestart;
    /// What a snapshot does to its source.
    snapshot_source: SnapshotSource = SnapshotSource::Stops;
    /// What a snapshot with memory does to its source.
    memory_snapshot_source: SnapshotSource = SnapshotSource::Stops;
    /// What a fork copies.
    fork_source: ForkSource = ForkSource::LastSnapshot;
    /// What keeps a repeated create from making a second sandbox.
    create_dedup: CreateDedup = CreateDedup::None;
    /// A sandbox keeps its id through stop, pause and their opposites.
    id_stable: bool = false;
    /// When a port must be known.
    ports_declared: PortsDeclared = PortsDeclared::Create;
    /// What the provider itself lets a sandbox reach if nothing is said.
    default_egress: DefaultEgress = DefaultEgress::Unknown;
    /// Who can reach an exposed port if nothing is said.
    default_preview: DefaultPreview = DefaultPreview::None;
    /// Where an allowed host name can be reached.
    egress_names: EgressNames = EgressNames::HttpOnly;
    /// What separates a sandbox from the rest.
    isolation: Isolation = Isolation::Unknown;
    /// Where the claim of isolation comes from, with a date.
    isolation_source: &'static str = "";
    /// Sandboxes run on the machine of the caller.
    on_this_machine: bool = false;
}

/// A flag's value as text, or that of each part of it.
trait Shown {
    /// The words that it is one of; none where it is free text.
    const WORDS: &'static [&'static str];

    fn shown(&self, name: &'static str, entries: &mut Vec<(&'static str, String)>);
}

impl Shown for bool {
    const WORDS: &'static [&'static str] = &["true", "false"];

    fn shown(&self, name: &'static str, entries: &mut Vec<(&'static str, String)>) {
        entries.push((name, self.to_string()));
    }
}

impl Shown for &'static str {
    const WORDS: &'static [&'static str] = &[];

    fn shown(&self, name: &'static str, entries: &mut Vec<(&'static str, String)>) {
        entries.push((name, (*self).to_owned()));
    }
}

impl Shown for Lifetime {
    const WORDS: &'static [&'static str] = &[];

    fn shown(&self, _: &'static str, entries: &mut Vec<(&'static str, String)>) {
        let Self { clock, change, granularity, default, max } = self;
        entries.extend([
            ("lifetime.clock", clock.to_string()),
            ("lifetime.change", change.to_string()),
            ("lifetime.granularity", Span::Of(*granularity).to_string()),
            ("lifetime.default", default.to_string()),
            ("lifetime.max", max.to_string()),
        ]);
    }
}

impl Shown for KeptFor {
    const WORDS: &'static [&'static str] = &[];

    fn shown(&self, _: &'static str, entries: &mut Vec<(&'static str, String)>) {
        let Self { paused, stopped, snapshot } = self;
        entries.extend([
            ("kept_for.paused", paused.to_string()),
            ("kept_for.stopped", stopped.to_string()),
            ("kept_for.snapshot", snapshot.to_string()),
        ]);
    }
}

macro_rules! shown {
    ($($ty:ty)*) => { $( impl Shown for $ty {
        const WORDS: &'static [&'static str] = Self::WORDS;

        fn shown(&self, name: &'static str, entries: &mut Vec<(&'static str, String)>) {
            entries.push((name, self.to_string()));
        }
    } )* };
}
shown! {
    PreviewModel Streams OutputBytes OutputRetention BackgroundSurvives KillReaches TimeoutKills OomEvidence
    ResizeApplies SnapshotSource ForkSource CreateDedup PortsDeclared DefaultEgress DefaultPreview EgressNames
    Isolation
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_a_flag_has_an_entry() {
        let entries = Flags::DEFAULT.isolation(Isolation::Container).entries();
        let value = |name| entries.iter().find(|(flag, _)| *flag == name).map(|(_, value)| value.as_str());
        assert_eq!(value("isolation"), Some("container"));
        assert_eq!(value("lifetime.clock"), Some("wall"));
        assert_eq!(value("lifetime.granularity"), Some("1s"));
        assert_eq!(value("kept_for.snapshot"), Some("unknown"));
        let names: std::collections::BTreeSet<_> = entries.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), entries.len());
    }

    #[test]
    fn closed_sets_have_words() {
        assert_eq!(Flags::words("streams"), ["separate", "merged"]);
        assert_eq!(Flags::words("stdin_eof"), ["true", "false"]);
        assert!(Flags::words("isolation_source").is_empty());
        assert!(Flags::words("nope").is_empty());
    }
}
