//! Arguments that several commands share.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use capbox::api::{AnyClient, AnySandbox, Progress};
use capbox::prelude::{Env, Mount, Network, Program, SandboxPath, Spec};
use capbox::spec::{
    self, Command, DEFAULT_MAX_OUTPUT, ExecOptions, Gpu, Image, Labels, PrivateNetwork, VolumeMount,
};
use capbox::{Capability, Error, ErrorKind, Registry, Result};
use clap::Args;

use crate::{failure, text};

/// Where sandboxes are, unless `--on` or `CAPBOX_ON` says otherwise.
const DEFAULT_ON: &str = "local";

/// For `create`, whose sandboxes are meant to stay for a while.
pub(crate) const CREATE_TTL: Duration = Duration::from_hours(1);

/// The provider.
#[derive(Args)]
pub(crate) struct On {
    /// The provider: an id such as `local`, or a URI with what it takes [env: `CAPBOX_ON`] [default: `local`]
    #[arg(long, value_name = "URI")]
    on: Option<String>,
}

impl On {
    /// A client of the provider. Nothing is sent.
    pub(crate) fn client(&self) -> Result<AnyClient> {
        let registry = Registry::builtin();
        match &self.on {
            Some(uri) => registry.client(uri),
            None => match std::env::var("CAPBOX_ON") {
                Ok(uri) if !uri.is_empty() => registry.client(&uri),
                _ => registry.client(DEFAULT_ON),
            },
        }
    }

    /// The sandbox called `id`.
    pub(crate) async fn connect(&self, id: &str) -> Result<AnySandbox> {
        let client = self.client()?;
        client.connect(id).await.map_err(|error| or_hint(error, ErrorKind::NotFound, || LISTED.to_owned()))
    }
}

/// What to do where a sandbox is not found.
pub(crate) const LISTED: &str = "`capbox ps` lists the sandboxes";

/// What to do where a process of the sandbox `id` is not found.
pub(crate) fn listed_in(id: &str) -> impl Fn(Error) -> Error {
    move |error| or_hint(error, ErrorKind::NotFound, || format!("`capbox ps {id}` lists its processes"))
}

fn or_hint(error: Error, kind: ErrorKind, hint: impl FnOnce() -> String) -> Error {
    if error.kind() == kind && error.hint().is_none() { error.with_hint(hint()) } else { error }
}

/// What a new sandbox is asked to be.
#[derive(Args)]
pub(crate) struct SpecArgs {
    /// The provider's own template, by id
    #[arg(long, value_name = "TEMPLATE")]
    template: Option<String>,
    /// How long the sandbox may live: `90s`, `5m`, `1.5h`
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) ttl: Option<Duration>,
    /// What may be reached: `deny` (the default), `open`, or `HOST[:PORT]` and `CIDR[:PORT]` joined by commas
    #[arg(long, value_name = "POLICY", value_parser = network)]
    net: Option<Network>,
    /// The most CPUs, may be a fraction; refused by providers that cannot limit them, as `capbox caps` tells
    #[arg(long, value_name = "N", value_parser = cpus, allow_hyphen_values = true)]
    cpus: Option<f64>,
    /// The most memory: `512M`, `2G`; refused by providers that cannot limit it
    #[arg(long, value_name = "SIZE", value_parser = size, allow_hyphen_values = true)]
    memory: Option<u64>,
    /// The most disk; refused by providers that cannot limit it
    #[arg(long, value_name = "SIZE", value_parser = size, allow_hyphen_values = true)]
    disk: Option<u64>,
    /// The most processes and threads at a time
    #[arg(long, value_name = "N", value_parser = count, allow_hyphen_values = true)]
    pids: Option<u32>,
    /// A folder of this machine, seen inside; writable unless `:ro`, but for what host tools trust
    #[arg(long, value_name = "SRC:DST[:ro]", value_parser = mount)]
    mount: Vec<Mount>,
    #[command(flatten)]
    image: ImageArgs,
    /// A port to expose, where the provider must know it from the start; may be repeated
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Vec<u16>,
    /// A volume, or one folder of it, seen inside; may be repeated
    #[arg(long, value_name = "VOLUME[/DIR]:DST[:ro]", value_parser = volume)]
    volume: Vec<VolumeMount>,
    /// A network of its own that sandboxes share by its name, reached by the others as HOST
    #[arg(long, value_name = "NETWORK[/HOST]", value_parser = private_network)]
    private_network: Option<PrivateNetwork>,
    /// GPUs: how many, and of which model where the provider has a choice
    #[arg(long, value_name = "[MODEL:]N", value_parser = gpu)]
    gpu: Option<Gpu>,
}

/// What a sandbox starts from, in place of what the URI says.
#[derive(Args)]
#[group(multiple = false)]
pub(crate) struct ImageArgs {
    /// An image by name
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// An image in an archive on this machine
    #[arg(long, value_name = "FILE")]
    image_archive: Option<PathBuf>,
    /// An image to be built from a folder on this machine
    #[arg(long, value_name = "DIR")]
    image_context: Option<PathBuf>,
}

impl ImageArgs {
    fn image(&self) -> Option<Image> {
        let name = self.image.clone().map(Image::Name);
        let archive = || self.image_archive.clone().map(Image::Archive);
        let context = || self.image_context.clone().map(Image::Context);
        name.or_else(archive).or_else(context)
    }
}

impl SpecArgs {
    /// The spec. What the provider does not honour is refused by `create`.
    pub(crate) fn spec(&self) -> Spec {
        let mut spec = Spec::new();
        spec.template.clone_from(&self.template);
        spec.ttl = self.ttl;
        spec.cpu = self.cpus;
        spec.memory = self.memory;
        spec.disk = self.disk;
        spec.processes = self.pids;
        spec.mounts = (!self.mount.is_empty()).then(|| self.mount.clone().into());
        spec.volumes = (!self.volume.is_empty()).then(|| self.volume.clone().into());
        spec.ports = (!self.port.is_empty()).then(|| self.port.clone());
        spec.private_network.clone_from(&self.private_network);
        spec.gpu.clone_from(&self.gpu);
        if let Some(image) = self.image.image() {
            spec = spec.image(image);
        }
        match &self.net {
            Some(network) => spec.network(network.clone()),
            None => spec,
        }
    }

    /// The same, with its image made ready: pulling and building take longer than a create may, and have a log.
    pub(crate) async fn prepared(&self, client: &AnyClient) -> Result<Spec> {
        let spec = self.spec();
        // What the provider does not take is refused by create, in its own words.
        let sources = [Capability::ImageName, Capability::ImageArchive, Capability::ImageContext];
        let asked = spec.asked();
        let refused = asked.iter().any(|row| sources.contains(row) && !client.can(*row));
        if refused || !client.can(Capability::PrepareImage) || spec.template.is_some() {
            return Ok(spec);
        }
        let log = Log::new();
        let image = client.prepare_image(self.image.image(), |progress| log.tell(&progress)).await?;
        let mut spec = spec;
        (spec.image_archive, spec.image_context) = (None, None);
        Ok(spec.image(image))
    }
}

/// What to run, and how.
#[derive(Args)]
pub(crate) struct CommandArgs {
    /// End the command, and all that it started, after this long
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) timeout: Option<Duration>,
    /// Keep this much of each stream, its head and its tail, and print it at the end [default with `--json`: 16M]
    #[arg(long, value_name = "SIZE", value_parser = size, allow_hyphen_values = true, conflicts_with = "tty")]
    pub(crate) max_output: Option<u64>,
    /// Send stderr where stdout goes, in order
    #[arg(long)]
    merge: bool,
    /// A variable for the command; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<OsString>,
    /// The folder to start in
    #[arg(long, value_name = "DIR")]
    cwd: Option<OsString>,
    /// Run as this user of the sandbox
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Send our stdin in; without it the command's stdin is empty
    #[arg(short = 'i', long)]
    pub(crate) interactive: bool,
    /// Run in a terminal, which is ours where `-i` is given too
    #[arg(short = 't', long)]
    pub(crate) tty: bool,
    /// Print one JSON document instead of the command's output
    #[arg(long, conflicts_with = "tty")]
    pub(crate) json: bool,
    /// What to run: one word is a text for the shell, several are a program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl CommandArgs {
    /// The command.
    pub(crate) fn command(&self) -> Command {
        let program = match self.command.as_slice() {
            [text] => Program::Shell(text.clone()),
            argv => Program::Argv(argv.to_vec()),
        };
        let mut command = Command::new(if self.merge { merged(&program) } else { program });
        command.max_output =
            self.max_output.map_or(DEFAULT_MAX_OUTPUT, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        command
    }

    /// Its options, but for stdin.
    pub(crate) fn options(&self) -> Result<ExecOptions> {
        let mut options = ExecOptions::default();
        options.timeout = self.timeout;
        options.user.clone_from(&self.user);
        options.cwd = self.cwd.as_deref().map(sandbox_path);
        options.envs = env(&self.env)?;
        Ok(options)
    }
}

/// The same program with its stderr sent to its stdout, by the shell: the kernel then keeps the order.
fn merged(program: &Program) -> Program {
    let mut text = OsString::from("exec");
    for word in program.argv() {
        let quoted = word.as_bytes().split(|byte| *byte == b'\'').collect::<Vec<_>>().join(&b"'\\''"[..]);
        text.push(" '");
        text.push(OsStr::from_bytes(&quoted));
        text.push("'");
    }
    text.push(" 2>&1");
    Program::Shell(text)
}

/// Variables. A value may be a secret, so none is shown in an error.
pub(crate) fn env(pairs: &[OsString]) -> Result<Option<Env>> {
    let mut env = Env::new();
    for pair in pairs {
        let bytes = pair.as_bytes();
        let at = bytes.iter().position(|byte| *byte == b'=').ok_or_else(|| {
            Error::invalid_argument("--env", "there is no `=` in it").with_hint("write `--env NAME=VALUE`")
        })?;
        let name = std::str::from_utf8(&bytes[..at])
            .map_err(|_| Error::invalid_argument("--env", "the name is not UTF-8"))?;
        env.insert(name, OsString::from_vec(bytes[at + 1..].to_vec()));
    }
    Ok((!env.is_empty()).then_some(env))
}

/// How a pull or a build goes, on stderr: for people who wait.
struct Log {
    shown: bool,
}

impl Log {
    fn new() -> Self {
        Self { shown: std::io::stderr().is_terminal() }
    }

    fn tell(&self, progress: &Progress) {
        // Bytes that come in are no line of a log.
        if !self.shown || progress.done.is_some() || progress.text.is_empty() {
            return;
        }
        let Progress { part, text, .. } = progress;
        let line = if part.is_empty() { text.clone() } else { format!("{part}: {text}") };
        failure::note(text::in_a_line(&line));
    }
}

/// Labels, from `NAME=VALUE`.
pub(crate) fn labels(pairs: &[String]) -> Result<Option<Labels>> {
    let mut labels = Labels::default();
    for pair in pairs {
        let (name, value) = pair.split_once('=').ok_or_else(|| {
            Error::invalid_argument("--label", format!("there is no `=` in `{pair}`"))
                .with_hint("write `--label NAME=VALUE`")
        })?;
        labels.0.insert(name.to_owned(), value.to_owned());
    }
    Ok((!labels.0.is_empty()).then_some(labels))
}

/// Something in a sandbox: `ID:PATH`.
pub(crate) struct Place {
    /// The sandbox.
    pub(crate) id: String,
    /// The path inside.
    pub(crate) path: SandboxPath,
}

impl Place {
    /// Read `ID:PATH`; `None` where the text names no sandbox, as in `./a:b` or `a`.
    pub(crate) fn of(text: &OsStr) -> Option<Self> {
        let bytes = text.as_bytes();
        let colon = bytes.iter().position(|byte| *byte == b':')?;
        let id = std::str::from_utf8(&bytes[..colon]).ok()?;
        if id.is_empty() || id.contains('/') {
            return None;
        }
        Some(Self { id: id.to_owned(), path: SandboxPath::from_bytes(&bytes[colon + 1..]) })
    }

    /// Read `ID:PATH`, or say what is wrong.
    pub(crate) fn required(text: &OsStr) -> Result<Self> {
        Self::of(text).ok_or_else(|| {
            let shown = text.display();
            if !text.is_empty() && !text.as_bytes().iter().any(|byte| matches!(byte, b':' | b'/')) {
                let message = format!("`{shown}` has no `:`, so it names no path of a sandbox");
                return Error::invalid_argument("ID:PATH", message).with_hint(format!(
                    "write `{shown}:PATH`; `{shown}:` alone is the default folder of `{shown}`"
                ));
            }
            Error::invalid_argument("ID:PATH", format!("`{}` names no sandbox", text.display()))
                .with_hint("write the sandbox's id, `:` and a path inside, such as `ID:/tmp/note`")
        })
    }

    /// The same, where no path is the sandbox's default folder.
    pub(crate) fn or_default_folder(mut self) -> Self {
        if self.path.as_bytes().is_empty() {
            self.path = SandboxPath::from(".");
        }
        self
    }
}

/// A path inside a sandbox, byte for byte.
pub(crate) fn sandbox_path(path: &OsStr) -> SandboxPath {
    SandboxPath::from_bytes(path.as_bytes())
}

pub(crate) fn duration(text: &str) -> Result<Duration> {
    spec::parse_duration(text)
}

fn size(text: &str) -> Result<u64> {
    spec::parse_size(text)
}

fn network(text: &str) -> Result<Network> {
    text.parse()
}

fn volume(text: &str) -> Result<VolumeMount> {
    text.parse()
}

fn private_network(text: &str) -> Result<PrivateNetwork, String> {
    match text.split_once('/') {
        None if !text.is_empty() => Ok(PrivateNetwork::named(text)),
        Some((network, host)) if !network.is_empty() && !host.is_empty() => {
            Ok(PrivateNetwork::named(network).with_host(host))
        }
        _ => Err("write `NETWORK`, or `NETWORK/HOST`".to_owned()),
    }
}

fn gpu(text: &str) -> Result<Gpu, String> {
    let (model, number) = text.rsplit_once(':').unwrap_or(("", text));
    Ok(match number.parse() {
        Ok(0) => return Err(format!("`{text}` asks for no GPU")),
        Ok(count) => Gpu { model: model.to_owned(), count },
        Err(_) => Gpu { model: text.to_owned(), count: 1 },
    })
}

/// A mount, whose folder is looked for here already: the provider's message could not name the option.
fn mount(text: &str) -> Result<Mount> {
    let mut mount: Mount = text.parse()?;
    let wrong = |what: String| Error::invalid_argument("mount", what);
    let source = mount.source.display().to_string();
    mount.source =
        std::path::absolute(&mount.source).map_err(|error| wrong(format!("`{source}`: {error}")))?;
    match std::fs::metadata(&mount.source) {
        Ok(found) if !found.is_dir() => {
            Err(wrong(format!("`{source}` is not a folder, and only folders can be mounted"))
                .with_hint("mount the folder that it is in"))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(wrong(format!("there is no folder `{source}` on this machine")))
        }
        // What cannot be looked at may still be mounted.
        Ok(_) | Err(_) => Ok(mount),
    }
}

fn cpus(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if f64::is_finite(number) && number > 0.0 => Ok(number),
        _ => Err(format!("`{text}` is not a number greater than zero")),
    }
}

pub(crate) fn count(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("`{text}` is not a whole number greater than zero")),
    }
}

/// The message without the library's name for the argument: the command line has its own.
pub(crate) fn without_name(error: &Error) -> &str {
    error.message().split_once("`: ").map_or(error.message(), |(_, rest)| rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let place = |text: &str| Place::of(OsStr::new(text)).map(|place| (place.id, place.path.to_string()));
        assert_eq!(place("box:/a"), Some(("box".into(), "/a".into())));
        assert_eq!(place("box:a:b"), Some(("box".into(), "a:b".into())));
        assert_eq!(place("box:"), Some(("box".into(), String::new())));
        for local in ["a", "/a:b", "./a:b", "../a:b", ":a", ""] {
            assert_eq!(place(local), None, "{local}");
        }
    }

    #[test]
    fn env_splits_at_the_first_equals_sign() {
        let env = env(&["A=1=2".into(), "B=".into()]).unwrap().unwrap();
        assert_eq!(env.get("A"), Some(OsStr::new("1=2")));
        assert_eq!(env.get("B"), Some(OsStr::new("")));
    }

    #[test]
    fn env_errors_hide_what_was_given() {
        let error = env(&["hunter2".into()]).unwrap_err();
        assert!(!format!("{error:?}").contains("hunter2"));
    }

    #[test]
    fn merged_words_are_quoted() {
        let program = merged(&Program::from(["printf", "it's", "a b"]));
        assert_eq!(program, Program::from(r"exec 'printf' 'it'\''s' 'a b' 2>&1"));
    }
}
