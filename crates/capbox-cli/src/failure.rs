//! How a command ends: its exit code, or what went wrong and what to do about it.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use capbox::api::Signal;
use capbox::capability::{NotSupported, Refusal};
use capbox::error::Admitted;
use capbox::{Capability, Error, ErrorKind, Registry};
use clap::error::{ContextKind, ContextValue};

use crate::{args, habits, json, text};

/// The exit code of a failure of capbox itself.
pub(crate) const OWN_FAILURE: u8 = 125;

/// What a command leaves: the exit code of this program, or a failure.
pub(crate) type Outcome = Result<u8, Failure>;

/// Why a command did not come to its end.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something failed, and is told on stderr.
    Error(Error),
    /// Something failed, and is told already.
    Told(u8),
    /// A signal asked us to end.
    Signal(Signal),
    /// Nobody reads our output any more, which is nothing to complain about.
    OutputClosed,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::OutputClosed,
            _ => Self::Error(Error::new(ErrorKind::Provider, error.to_string())),
        }
    }
}

/// Tell a failure on stderr, and give the exit code.
pub(crate) fn exit_code(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(code) | Err(Failure::Told(code)) => code.into(),
        Err(Failure::Error(error)) => fail(&error),
        Err(Failure::Signal(signal)) => ended_by(signal.number()).into(),
        // As for a program that knows nothing of the matter, and is ended by SIGPIPE.
        Err(Failure::OutputClosed) => ended_by(13).into(),
    }
}

/// Tell an error on stderr, and where a document is asked for on stdout, and give the exit code.
fn fail(error: &Error) -> ExitCode {
    let code = code_of(error);
    if let Some(command) = habits::asks_for_json() {
        // Nobody may be left to read it.
        let _ = json::print_failure(&command, error, code);
    }
    tell(error);
    code.into()
}

/// The exit code for an error: as in a shell where the program could not be started.
pub(crate) fn code_of(error: &Error) -> u8 {
    match error.kind() {
        ErrorKind::ProgramNotFound => 127,
        ErrorKind::ProgramNotExecutable => 126,
        _ => OWN_FAILURE,
    }
}

fn ended_by(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(OWN_FAILURE)
}

/// Print an error: what failed and where, whether it may have been done, and what to do about it.
pub(crate) fn tell(error: &Error) {
    error_line(message_of(error));
    let unknown = matches!(error.kind(), ErrorKind::Timeout | ErrorKind::ConnectionLost)
        && error.admitted() == Admitted::Unknown;
    if unknown {
        note("it may have been done all the same");
    }
    if let Some(hint) = hint_of(error) {
        hint_line(hint);
    }
}

/// What failed, in the words of the command line: options by their names here, no rows, no stages.
pub(crate) fn message_of(error: &Error) -> String {
    let message = error.message();
    if let Some(refusal) = error.refusal() {
        let NotSupported { provider, capability, reason, refusal, .. } = refusal;
        return match (option_of(capability), refusal) {
            (Some(option), Refusal::ProviderLacks) => {
                format!("`{option}` is not supported by `{provider}`: {reason}")
            }
            (Some(option), Refusal::NotAdapted) => {
                format!("`{option}` cannot be used with `{provider}` yet: {reason}")
            }
            (Some(option), Refusal::Unavailable) => {
                format!("`{option}` cannot be used with `{provider}` here: {reason}")
            }
            (_, Refusal::Withheld) | (None, _) => message.to_owned(),
        };
    }
    match error.provider() {
        Some(provider) if error.kind() != ErrorKind::InvalidArgument => {
            format!("{message} (on `{provider}`)")
        }
        _ => message.to_owned(),
    }
}

/// The error's own hint; for what is not supported also who supports it.
pub(crate) fn hint_of(error: &Error) -> Option<String> {
    let own = error.hint().map(str::to_owned).or_else(|| {
        (error.kind() == ErrorKind::SandboxGone)
            .then(|| "where its time was up, give it more with `--ttl`".to_owned())
    });
    let elsewhere = error.refusal().and_then(|refusal| {
        let mut others = Registry::builtin().alternatives(refusal.capability);
        others.retain(|id| *id != refusal.provider);
        let what = option_of(refusal.capability).unwrap_or(refusal.capability.as_str());
        (!others.is_empty()).then(|| format!("`{what}` is supported by `{}`", others.join("`, `")))
    });
    match (own, elsewhere) {
        (Some(hint), Some(elsewhere)) => Some(format!("{hint}; {elsewhere}")),
        (own, elsewhere) => own.or(elsewhere),
    }
}

/// The option by which a row is asked for here.
fn option_of(capability: Capability) -> Option<&'static str> {
    const OPTIONS: &[(Capability, &str)] = &[
        (Capability::Template, "--template"),
        (Capability::Ttl, "--ttl"),
        (Capability::EgressOpen, "--net open"),
        (Capability::EgressControl, "--net deny"),
        (Capability::EgressHost, "--net HOST"),
        (Capability::EgressCidr, "--net CIDR"),
        (Capability::EgressPort, "--net HOST:PORT"),
        (Capability::Cpu, "--cpus"),
        (Capability::Memory, "--memory"),
        (Capability::Disk, "--disk"),
        (Capability::Processes, "--pids"),
        (Capability::FilesMount, "--mount"),
        (Capability::ImageName, "--image"),
        (Capability::ImageArchive, "--image-archive"),
        (Capability::ImageContext, "--image-context"),
        (Capability::Ports, "--port"),
        (Capability::Gpu, "--gpu"),
        (Capability::Volumes, "--volume"),
        (Capability::VolumeSubPath, "--volume VOLUME/DIR"),
        (Capability::VolumeReadOnly, "--volume VOLUME:DST:ro"),
        (Capability::PrivateNetwork, "--private-network"),
        (Capability::FromSnapshot, "capbox snapshot restore"),
        (Capability::Stop, "capbox stop"),
        (Capability::Pause, "capbox pause"),
        (Capability::Snapshot, "capbox snapshot"),
        (Capability::Fork, "capbox fork"),
        (Capability::VolumesManage, "capbox volume"),
        (Capability::Metrics, "capbox metrics"),
        (Capability::ExposePort, "capbox port"),
        (Capability::Name, "--name"),
        (Capability::Labels, "--label"),
        (Capability::Env, "--env"),
        (Capability::ExecEnv, "--env"),
        (Capability::ExecCwd, "--cwd"),
        (Capability::User, "--user"),
        (Capability::Timeout, "--timeout"),
        (Capability::Input, "-i"),
        (Capability::Stdin, "-i"),
        (Capability::Pty, "-t"),
        (Capability::Background, "-d"),
        (Capability::Signal, "--signal"),
    ];
    OPTIONS.iter().find(|(of, _)| *of == capability).map(|(_, option)| *option)
}

/// A line on stderr that says what failed.
pub(crate) fn error_line(message: impl fmt::Display) {
    line("error", "31", message);
}

/// A line on stderr that says what to know.
pub(crate) fn note(message: impl fmt::Display) {
    line("note", "36", message);
}

fn hint_line(message: impl fmt::Display) {
    line("hint", "33", message);
}

/// The word is coloured for those who see colours; the text is the same for everybody.
fn line(word: &str, color: &str, message: impl fmt::Display) {
    let message = text::harmless(&message.to_string());
    let mut stderr = io::stderr().lock();
    let colored = stderr.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    // Nobody is left to tell where stderr is closed.
    let _ = if colored {
        writeln!(stderr, "\x1b[1;{color}m{word}:\x1b[0m {message}")
    } else {
        writeln!(stderr, "{word}: {message}")
    };
}

/// Answer a command line that was not understood; or that asked for help.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind as Usage;
    if matches!(error.kind(), Usage::DisplayHelp | Usage::DisplayVersion) {
        return exit_code(print_help(error).map(|()| 0).map_err(Failure::from));
    }
    if error.kind() == Usage::DisplayHelpOnMissingArgumentOrSubcommand {
        error_line("no command is given");
        hint_line("`--help` lists the commands");
        return OWN_FAILURE.into();
    }
    let (message, hint) = explained(error);
    let error = Error::new(ErrorKind::InvalidArgument, message);
    fail(&match hint {
        Some(hint) => error.with_hint(hint),
        None => error,
    })
}

fn print_help(help: &clap::Error) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    write!(stdout, "{}", help.render())?;
    stdout.flush()
}

/// What is wrong with a command line, in our own voice: one line, and what to do where that does not say it.
fn explained(error: &clap::Error) -> (String, Option<String>) {
    use clap::error::ErrorKind as Usage;
    let context = |kind| error.get(kind).map(quoted).unwrap_or_default();
    let argument = error.get(ContextKind::InvalidArg).map(short_names).unwrap_or_default();
    let message = match error.kind() {
        Usage::UnknownArgument => format!("there is no argument {argument} here"),
        Usage::InvalidSubcommand => {
            format!("there is no command {}", context(ContextKind::InvalidSubcommand))
        }
        Usage::MissingRequiredArgument => format!("missing: {argument}"),
        Usage::MissingSubcommand => "a command is missing".to_owned(),
        Usage::ValueValidation => {
            let cause = std::error::Error::source(error);
            match own(error) {
                Some(own) => format!("{argument}: {}", args::without_name(own)),
                None => format!("{argument}: {}", cause.map(ToString::to_string).unwrap_or_default()),
            }
        }
        Usage::InvalidValue => match context(ContextKind::InvalidValue) {
            value if value == "``" => format!("{argument} has no value"),
            value => format!("{argument}: {value} is not one of its values"),
        },
        Usage::ArgumentConflict => {
            format!("{argument} cannot be used with {}", context(ContextKind::PriorArg))
        }
        Usage::NoEquals | Usage::TooManyValues | Usage::TooFewValues | Usage::WrongNumberOfValues => {
            format!("{argument} has the wrong number of values")
        }
        Usage::InvalidUtf8 => "an argument is not UTF-8".to_owned(),
        _ => error.to_string().lines().next().unwrap_or_default().replacen("error: ", "", 1),
    };
    let suggested =
        [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue]
            .into_iter()
            .find_map(|kind| error.get(kind));
    let valid = error.get(ContextKind::ValidValue).map(quoted).filter(|valid| !valid.is_empty());
    let habit = match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (Usage::UnknownArgument, Some(argument)) => habits::argument(&argument.to_string()),
        (Usage::InvalidSubcommand, _) => {
            error.get(ContextKind::InvalidSubcommand).and_then(|name| habits::command(&name.to_string()))
        }
        (Usage::ValueValidation, _) => {
            return (message, own(error).and_then(Error::hint).map(str::to_owned));
        }
        _ => None,
    };
    let hint = match (suggested, valid, error.get(ContextKind::Usage)) {
        _ if habit.is_some() => habit,
        (Some(similar), ..) => Some(format!("did you mean {}?", quoted(similar))),
        (None, Some(valid), _) => Some(format!("use one of {valid}")),
        (None, None, Some(usage)) => Some(usage.to_string().replacen("Usage: ", "usage: ", 1)),
        (None, None, None) => None,
    };
    (message, hint)
}

/// Our own error about the value of an argument.
fn own(error: &clap::Error) -> Option<&Error> {
    std::error::Error::source(error)?.downcast_ref()
}

/// A value in backticks; several of them joined.
fn quoted(value: &ContextValue) -> String {
    match value {
        ContextValue::Strings(all) => all.iter().map(|one| format!("`{one}`")).collect::<Vec<_>>().join(", "),
        one => format!("`{one}`"),
    }
}

/// Arguments in backticks, without the placeholders of their values.
fn short_names(value: &ContextValue) -> String {
    let short = |one: &str| match one.split_once(' ') {
        Some((name, _)) if name.starts_with('-') => format!("`{name}`"),
        _ => format!("`{}`", one.trim_start_matches('<').replace(">...", "").trim_end_matches('>')),
    };
    match value {
        ContextValue::Strings(all) => all.iter().map(|one| short(one)).collect::<Vec<_>>().join(", "),
        one => short(&one.to_string()),
    }
}
