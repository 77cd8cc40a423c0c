//! What a provider's test says about its provider: the one thing to write per provider.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use capbox_core::api::AnyClient;
use capbox_core::capability::{Capability, Rows};
use capbox_core::error::Result;
use capbox_core::spec::Spec;

use crate::oracle::{BoxFuture, Oracle, Recorder};

/// How the suite reaches a provider. See the [crate's documentation](crate) for an example.
pub trait Harness: Send + Sync + 'static {
    /// The table to prove: `<Local as Table>::ROWS`.
    fn rows(&self) -> &'static Rows;

    /// What the evidence is about: the provider's version, and that of the engine or service behind it.
    fn version(&self) -> String;

    /// What is to be known of its sandboxes.
    fn facts(&self) -> Facts {
        Facts::new()
    }

    /// Why nothing can be tried here, where what is behind the provider is not there: every trial is left out then.
    fn missing(&self) -> Option<String> {
        None
    }

    /// An account of its own for one trial: nothing of other trials is seen in it. Called in a tokio runtime.
    fn fixture(&self) -> Result<Fixture>;
}

/// Makes a client of the fixture's account.
pub type MakeClient = Box<dyn Fn() -> Result<AnyClient> + Send + Sync>;

/// One trial's own account.
pub struct Fixture {
    pub(crate) client: MakeClient,
    pub(crate) oracle: Box<dyn Oracle>,
    pub(crate) requests: Option<Recorder>,
    pub(crate) fault: Option<Box<dyn Fn() + Send + Sync>>,
    pub(crate) clock: Option<Box<dyn Fn(Duration) -> BoxFuture<'static, ()> + Send + Sync>>,
    pub(crate) keep: Vec<Box<dyn std::any::Any + Send + Sync>>,
}

impl fmt::Debug for Fixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fixture").field("requests", &self.requests).finish_non_exhaustive()
    }
}

impl Fixture {
    /// `client` makes a new client of the same account each time; `oracle` sees all that they cause.
    pub fn new(
        client: impl Fn() -> Result<AnyClient> + Send + Sync + 'static,
        oracle: impl Oracle + 'static,
    ) -> Self {
        Self {
            client: Box::new(client),
            oracle: Box::new(oracle),
            requests: None,
            fault: None,
            clock: None,
            keep: Vec::new(),
        }
    }

    /// Requests are recorded: each declared option must change what is recorded for a create or an exec.
    #[must_use]
    pub fn with_requests(mut self, requests: Recorder) -> Self {
        self.requests = Some(requests);
        self
    }

    /// `fault` makes the provider unreachable for the clients of this fixture.
    #[must_use]
    pub fn with_fault(mut self, fault: impl Fn() + Send + Sync + 'static) -> Self {
        self.fault = Some(Box::new(fault));
        self
    }

    /// Time is virtual: `pass` moves it forward.
    #[must_use]
    pub fn with_clock(
        mut self,
        pass: impl Fn(Duration) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Self {
        self.clock = Some(Box::new(pass));
        self
    }

    /// Keep something, such as a temporary folder, until the trial is over.
    #[must_use]
    pub fn with(mut self, thing: impl std::any::Any + Send + Sync) -> Self {
        self.keep.push(Box::new(thing));
        self
    }
}

/// What a provider's sandboxes are like, as data: what the suite cannot ask for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Facts {
    /// What every sandbox of the suite is asked to be.
    pub spec: Spec,
    /// What is in a sandbox.
    pub inside: Inside,
    /// Trials, or cases as `ROW/CASE`, that are left out, each with its reason. Shown as ignored.
    pub left_out: &'static [(&'static str, &'static str)],
    /// How long a trial may take.
    pub trial_timeout: Duration,
    /// An address of this machine that a sandbox with open egress reaches; found by itself where unset.
    pub outside: Option<IpAddr>,
    /// A host name that resolves to `outside`, in the sandbox's own resolver.
    pub outside_name: Option<&'static str>,
    /// For options whose values only the provider knows: a good value each.
    pub samples: Vec<(Capability, Sample)>,
}

/// A good value of an option, and how it shows inside.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The value: an image, a template, a region, a user, …
    pub value: String,
    /// A shell text that shows its effect, and what that prints. Without one, the recorded request must change.
    pub shows: Option<(String, String)>,
}

impl Sample {
    /// A value; its effect is only seen in the request.
    pub fn new(value: impl Into<String>) -> Self {
        Self { value: value.into(), shows: None }
    }

    /// `command` prints exactly `output` where the option has its effect.
    #[must_use]
    pub fn shown_by(mut self, command: impl Into<String>, output: impl Into<String>) -> Self {
        self.shows = Some((command.into(), output.into()));
        self
    }
}

impl From<PathBuf> for Sample {
    fn from(path: PathBuf) -> Self {
        Self::new(path.to_string_lossy())
    }
}

/// What is in a sandbox: one of the two, with what differs (`Inside { bytes: true, ..Inside::INTERPRETER }`).
#[derive(Clone, Copy, Debug)]
pub struct Inside {
    /// Commands are real processes: listed in `/proc`, signalled by `kill`, able to go on in the background.
    pub processes: bool,
    /// There are named pipes and devices, and `mkfifo`.
    pub devices: bool,
    /// There are file permissions that hold.
    pub permissions: bool,
    /// Commands are bytes in, bytes out; else output is text.
    pub bytes: bool,
    /// How much a test of large data moves, in bytes.
    pub large: usize,
    /// Some program can open connections: a shell with `/dev/tcp`, `python3`, `nc`, `curl` or `wget`.
    pub connects: bool,
}

impl Inside {
    /// A real Linux with the usual tools.
    pub const LINUX: Self = Self {
        processes: true,
        devices: true,
        permissions: true,
        bytes: true,
        large: 4 << 20,
        connects: true,
    };

    /// An interpreter of shell texts over a file system in memory.
    pub const INTERPRETER: Self = Self {
        processes: false,
        devices: false,
        permissions: false,
        bytes: false,
        large: 256 << 10,
        connects: false,
    };
}

impl Default for Facts {
    fn default() -> Self {
        Self {
            spec: Spec::new(),
            inside: Inside::LINUX,
            left_out: &[],
            trial_timeout: Duration::from_mins(2),
            outside: None,
            outside_name: None,
            samples: Vec::new(),
        }
    }
}

impl Facts {
    /// Sandboxes with a real Linux inside.
    pub fn new() -> Self {
        Self::default()
    }

    /// With this inside.
    #[must_use]
    pub fn inside(mut self, inside: Inside) -> Self {
        self.inside = inside;
        self
    }

    /// Every sandbox of the suite is asked to be this.
    #[must_use]
    pub fn spec(mut self, spec: Spec) -> Self {
        self.spec = spec;
        self
    }

    /// Leave out trials, or cases as `ROW/CASE`, each with its reason.
    #[must_use]
    pub fn left_out(mut self, left_out: &'static [(&'static str, &'static str)]) -> Self {
        self.left_out = left_out;
        self
    }

    /// A good value of an option that only the provider knows.
    #[must_use]
    pub fn sample(mut self, capability: Capability, sample: Sample) -> Self {
        self.samples.push((capability, sample));
        self
    }
}
