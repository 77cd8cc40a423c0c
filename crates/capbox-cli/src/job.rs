//! One command in a sandbox, with our own streams: what `run` and `exec` share.

use std::future::pending;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use capbox::api::{AnyClient, AnySandbox, Event, Exit, ExitStatus, Output, OutputStream, Process};
use capbox::prelude::{Capability, ErrorKind, Stdin};
use capbox::provider::Writer;
use capbox::spec::{Command, ExecOptions, Input};
use capbox::{Error, Result};
use tokio::io::AsyncWriteExt;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::CommandArgs;
use crate::failure::{self, Failure, OWN_FAILURE};
use crate::json;
use crate::streams::{self, CHUNK};
use crate::terminal::{self, RawMode};
use crate::text;

/// A command, and how its streams are joined to ours.
pub(crate) struct Job {
    command: Command,
    options: ExecOptions,
    stdin: OurStdin,
    output: OurOutput,
    /// Whether what we know of the end is told on stderr: a document tells it otherwise.
    told: bool,
}

/// What the command reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OurStdin {
    /// Nothing: our stdin is not even looked at.
    Unread,
    /// Our stdin, as it comes.
    Open,
    /// Our stdin, read to its end first: for providers that take input only whole.
    Whole,
}

/// What becomes of what the command prints.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OurOutput {
    /// It is printed as it comes.
    Streamed,
    /// It is printed at the end, bounded.
    Collected,
    /// It is printed at the end, bounded, in one document.
    Document,
    /// It is shown on a terminal.
    Terminal,
}

impl Job {
    /// The job that was asked for, or why `client` cannot do it. Nothing is sent.
    pub(crate) fn new(args: &CommandArgs, client: &AnyClient) -> Result<Self> {
        if args.tty && args.interactive && !io::stdin().is_terminal() {
            // Its end could not be told to every program: a terminal has no end of input but a key.
            return Err(Error::invalid_argument("-t", "our stdin is not a terminal")
                .with_hint("leave out `-t` to send it in as it is, or `-i` to send nothing in"));
        }
        let command = args.command();
        let mut options = args.options()?;
        let output = match (args.tty, args.json, args.max_output) {
            (true, ..) => OurOutput::Terminal,
            (_, true, _) => OurOutput::Document,
            (.., Some(_)) => OurOutput::Collected,
            _ if client.can(Capability::Streaming) => OurOutput::Streamed,
            _ => OurOutput::Collected,
        };
        let stdin = match args.interactive {
            false => OurStdin::Unread,
            true if output == OurOutput::Terminal => OurStdin::Open,
            true if client.can(Capability::Streaming) && client.can(Capability::Stdin) => OurStdin::Open,
            true => OurStdin::Whole,
        };
        match stdin {
            OurStdin::Open if output != OurOutput::Terminal => options.stdin = Some(Stdin::Open),
            OurStdin::Whole => client.require(Capability::Input)?,
            OurStdin::Open | OurStdin::Unread => {}
        }
        client.require(match output {
            OurOutput::Terminal => Capability::Pty,
            OurOutput::Streamed => Capability::Streaming,
            OurOutput::Collected | OurOutput::Document => Capability::Run,
        })?;
        options.check(&command, |capability| client.require(capability))?;
        Ok(Self { command, options, stdin, output, told: !args.json })
    }

    /// Run it to its end. Dropping the future kills it.
    pub(crate) async fn run(self, sandbox: &AnySandbox) -> Result<Done, Failure> {
        let (told, timeout) = (self.told, self.options.timeout);
        let exit = match self.output {
            OurOutput::Terminal => Box::pin(self.in_terminal(sandbox)).await?,
            OurOutput::Streamed => Box::pin(self.streamed(sandbox)).await?,
            OurOutput::Collected => {
                let output = Box::pin(self.collected(sandbox)).await?;
                print(&output).await?;
                Exit::new(output.status).with_background(output.background_remains)
            }
            OurOutput::Document => {
                let start = Instant::now();
                let output = Box::pin(self.collected(sandbox)).await?;
                document(sandbox, &output, start.elapsed())?;
                Exit::new(output.status).with_background(output.background_remains)
            }
        };
        Ok(Done { exit, told, timeout })
    }

    async fn streamed(self, sandbox: &AnySandbox) -> Result<Exit, Failure> {
        let stdin = self.stdin;
        let mut process = self.spawn(sandbox).await?;
        match process.take_stdin() {
            Some(writer) if stdin == OurStdin::Open => {
                let typed = send_stdin(writer);
                beside(typed, follow(&mut process)).await
            }
            _ => follow(&mut process).await,
        }
    }

    async fn collected(self, sandbox: &AnySandbox) -> Result<Output, Failure> {
        let max_output = self.command.max_output;
        if self.stdin == OurStdin::Open {
            let mut process = self.spawn(sandbox).await?;
            let writer = process.take_stdin();
            let sent = async {
                match writer {
                    Some(writer) => send_stdin(writer).await,
                    None => Ok(()),
                }
            };
            let output = async { Ok(process.output_within(max_output).await?) };
            return beside(sent, output).await;
        }
        let Self { command, options, .. } = self.with_whole_stdin().await?;
        Ok(sandbox.exec(command.program).options(options).max_output(max_output).await?)
    }

    async fn spawn(self, sandbox: &AnySandbox) -> Result<Process, Failure> {
        let Self { command, options, .. } = self.with_whole_stdin().await?;
        Ok(sandbox.spawn(command.program).options(options).await?)
    }

    async fn with_whole_stdin(mut self) -> Result<Self, Failure> {
        if self.stdin == OurStdin::Whole {
            self.options.input = Some(Input::from(streams::stdin().read_to_end().await?));
        }
        Ok(self)
    }

    /// A terminal inside, shown on ours.
    async fn in_terminal(self, sandbox: &AnySandbox) -> Result<Exit, Failure> {
        let Self { command, options, stdin, .. } = self;
        sandbox.require(Capability::Pty).map_err(Error::from)?;
        let pty = sandbox.pty().expect("required above");
        let mut process = pty.open(command.program).options(options).size(terminal::size()).await?;
        if stdin == OurStdin::Unread {
            return follow_terminal(sandbox, &mut process).await;
        }
        let _raw = RawMode::enter()?;
        let writer = process.take_stdin();
        let typed = async {
            match writer {
                Some(writer) => type_stdin(writer).await,
                None => Ok(()),
            }
        };
        beside(typed, follow_terminal(sandbox, &mut process)).await
    }
}

/// The end of a job.
pub(crate) struct Done {
    exit: Exit,
    told: bool,
    timeout: Option<Duration>,
}

impl Done {
    /// Say on stderr what the exit code alone does not tell, and give the exit code.
    pub(crate) fn conclude(self, background: &str) -> u8 {
        let Self { exit, told, timeout } = self;
        if told {
            if exit.background_remains {
                failure::note(background);
            }
            match timeout {
                Some(limit) if exit.status == ExitStatus::TimedOut => failure::note(format_args!(
                    "the command timed out after {} and was killed",
                    text::exactly(limit)
                )),
                _ => explain(exit.status),
            }
        }
        code(exit.status)
    }
}

/// The exit code for a status, as a shell would show it.
pub(crate) fn code(status: ExitStatus) -> u8 {
    // A code that does not fit is cut to eight bits, as the system itself does.
    u8::try_from(status.shell_code() & 0xff).unwrap_or(OWN_FAILURE)
}

/// Say how a command ended, where it did not end by itself.
pub(crate) fn explain(status: ExitStatus) {
    match status {
        ExitStatus::Exited(_) | ExitStatus::Signaled(_) => {}
        ExitStatus::TimedOut | ExitStatus::OutOfMemory | ExitStatus::Killed => {
            failure::note(format_args!("the command {status}"));
        }
        ExitStatus::SandboxGone => {
            failure::tell(&Error::new(ErrorKind::SandboxGone, "the sandbox ended while the command ran"));
        }
        _ => failure::error_line(format_args!("the command {status}")),
    }
}

/// Print what a process prints, as it comes, to its end.
pub(crate) async fn follow(process: &mut Process) -> Result<Exit, Failure> {
    let (mut stdout, mut stderr) = (streams::stdout(), streams::stderr());
    let mut exit = Exit::new(ExitStatus::Unknown);
    while let Some(event) = process.next().await? {
        match event {
            Event::Output { stream: OutputStream::Stdout, bytes, .. } => stdout.write_all(&bytes).await?,
            Event::Output { stream: OutputStream::Stderr, bytes, .. } => stderr.write_all(&bytes).await?,
            Event::Gap { from, to } => {
                failure::note(format_args!("{} bytes of output are no longer kept", to.saturating_sub(from)));
            }
            Event::Exited(end) => exit = end,
            _ => {}
        }
    }
    Ok(exit)
}

/// The same for a terminal, whose size follows ours.
async fn follow_terminal(sandbox: &AnySandbox, process: &mut Process) -> Result<Exit, Failure> {
    let inner = sandbox.process(process.id());
    let can_resize = sandbox.can(Capability::PtyResize);
    let resizes = async {
        let mut changes = signal(SignalKind::window_change())?;
        while changes.recv().await.is_some() {
            if can_resize {
                match inner.resize(terminal::size()).await {
                    // It has just ended.
                    Err(error) if error.kind() == ErrorKind::Conflict => return Ok(()),
                    other => other?,
                }
            }
        }
        Ok(())
    };
    beside(resizes, follow(process)).await
}

/// Send our stdin, then its end.
pub(crate) async fn send_stdin(mut writer: Writer) -> Result<(), Failure> {
    let mut stdin = streams::stdin();
    let mut buffer = vec![0; CHUNK];
    loop {
        let read = stdin.read(&mut buffer).await?;
        let sent = if read == 0 { writer.shutdown().await } else { send(&mut writer, &buffer[..read]).await };
        match sent {
            // It does not read any more, which is its own business.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            other => other?,
        }
        if read == 0 {
            return Ok(());
        }
    }
}

/// Type what is typed on our terminal into that of the command. What ends input there is a key, which comes as it
/// was typed.
async fn type_stdin(mut writer: Writer) -> Result<(), Failure> {
    let mut stdin = streams::stdin();
    let mut buffer = vec![0; CHUNK];
    loop {
        let read = stdin.read(&mut buffer).await?;
        if read == 0 {
            // The writer stays: without it the terminal would hang up.
            pending::<()>().await;
        }
        match send(&mut writer, &buffer[..read]).await {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            other => other?,
        }
    }
}

async fn send(writer: &mut Writer, bytes: &[u8]) -> io::Result<()> {
    writer.write_all(bytes).await?;
    writer.flush().await
}

/// Do `main` to its end, and `side` beside it; a failure of either is one of both.
pub(crate) async fn beside<T>(
    side: impl Future<Output = Result<(), Failure>>,
    main: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let failed = async {
        match side.await {
            Ok(()) => pending().await,
            Err(failure) => failure,
        }
    };
    tokio::select! {
        biased;
        done = main => done,
        failure = failed => Err(failure),
    }
}

/// Print what was collected, and say what is left out.
async fn print(output: &Output) -> Result<(), Failure> {
    streams::stdout().write_all(output.stdout.bytes()).await?;
    streams::stderr().write_all(output.stderr.bytes()).await?;
    for (name, stream) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
        if let Some(cut_at) = stream.cut_at() {
            failure::note(format_args!(
                "{name} is cut: {} of {} bytes are shown, the tail begins after {cut_at}",
                stream.bytes().len(),
                stream.total(),
            ));
        }
    }
    Ok(())
}

fn document(sandbox: &AnySandbox, output: &Output, duration: Duration) -> io::Result<()> {
    let (cause, exited, signal) = json::status(output.status);
    json::print(&json::Ended {
        cause,
        exit_code: code(output.status),
        code: exited,
        signal,
        stdout: Some((&output.stdout).into()),
        stderr: Some((&output.stderr).into()),
        background_remains: output.background_remains,
        duration: Some(json::seconds(duration)),
        provider: Some(sandbox.client().provider()),
        sandbox: Some(sandbox.id()),
        error: None,
    })
}
