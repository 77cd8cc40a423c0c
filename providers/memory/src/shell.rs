//! The interpreter: how a command becomes work for `bashkit`.

use std::ffi::OsStr;
use std::fmt::Display;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bashkit::hooks::{HookAction, Interceptor, ToolEvent};
use bashkit::{
    Bash, Builtin, BuiltinContext, ExecOptions, ExecResult, ExecutionBudgetExceeded, ExecutionLimits,
    LimitExceeded, SessionLimits, async_trait,
};
use bytes::Bytes;
use capbox_core::provider::{Env, Error, ExitStatus, OutputStream, Program, Result};
use tokio::sync::watch;

use crate::commands::{Head, Sleep, Yes};
use crate::disk::Disk;
use crate::process::Process;
use crate::stack::{self, OnStack};
use crate::turn::{Fuse, Turns};

/// The default folder, and `HOME`.
pub(crate) const HOME: &str = "/home/user";
const USER: &str = "user";
const HOST: &str = "capbox";
/// What every command gets, below the variables of the sandbox and its own.
const BASE_ENV: [(&str, &str); 4] =
    [("HOME", HOME), ("LANG", "C.UTF-8"), ("PATH", "/usr/local/bin:/usr/bin:/bin"), ("USER", USER)];

/// The most input that a command can get, in bytes: it is held whole.
pub(crate) const MAX_INPUT: usize = 64 << 20;

/// Runs the shell text `$2`, tells its exit code with the proof `$1`, and hands over what its jobs print.
///
/// Left to itself the interpreter tells nothing before every job has ended, and delivers what a job prints only
/// where somebody waits for that job.
const TEXT: &str =
    r#"{ sh -c "$2" sh; __capbox_returned "$1" $?; until wait -n; [ $? -eq 127 ]; do :; done; }"#;
/// The same for the argv after the proof `$1`.
const ARGV: &str = r#"{ "${@:2}"; __capbox_returned "$1" $?; until wait -n; [ $? -eq 127 ]; do :; done; }"#;
/// The builtin that tells that the command itself has ended.
const RETURNED: &str = "__capbox_returned";

/// What to do for one command.
pub(crate) struct Shell {
    bash: Bash,
    script: &'static str,
    words: Vec<String>,
    input: Bytes,
    shown: String,
    fuse: Arc<Fuse>,
    /// How long it may take.
    pub(crate) timeout: Option<Duration>,
    /// The exit code of the command itself, once it has ended; what it started may go on.
    pub(crate) code: watch::Receiver<Option<i32>>,
}

impl Shell {
    /// An interpreter for `program`, which starts in `cwd`, an absolute path, with exactly `env` over the base.
    pub(crate) fn new(
        program: &Program,
        cwd: &str,
        env: &Env,
        input: Bytes,
        timeout: Option<Duration>,
        disk: Disk,
    ) -> Result<Self> {
        if input.len() > MAX_INPUT {
            return Err(Error::invalid_argument(
                "input",
                format!("{} bytes are more than the {MAX_INPUT} that fit", input.len()),
            ));
        }
        let proof = format!("{:016x}", RandomState::new().hash_one(()));
        let (script, program_words) = match program {
            Program::Shell(text) => (TEXT, std::slice::from_ref(text)),
            Program::Argv(argv) => (ARGV, argv.as_slice()),
        };
        let mut words = vec![proof.clone()];
        for word in program_words {
            words.push(utf8("command", word)?.to_owned());
        }
        let (returned, code) = watch::channel(None);
        let fuse = Arc::new(Fuse::default());
        let mut builder = Bash::builder()
            .fs(Arc::new(disk))
            .before_tool(guard_depth(fuse.clone()))
            .rootfs(false)
            .username(USER)
            .hostname(HOST)
            .cwd(cwd)
            .limits(limits())
            .session_limits(SessionLimits::unlimited())
            .builtin("sleep", Box::new(Sleep))
            .command("yes", Yes)
            .command("head", Head)
            .builtin(RETURNED, Box::new(Returned { proof, returned }));
        for (name, value) in BASE_ENV {
            builder = builder.env(name, value);
        }
        for (name, value) in env.iter() {
            builder = builder.env(name, utf8("env", value)?);
        }
        let shown = program.to_string().chars().take(200).collect();
        let bash = builder.build();
        fuse.ends(bash.cancellation_token());
        Ok(Self { bash, script, words, input, shown, fuse, timeout, code })
    }

    /// The command, for people.
    pub(crate) fn command(&self) -> String {
        self.shown.clone()
    }

    /// Where to say that it has to end, which also reaches loops that do not give way.
    pub(crate) fn cancel(&self) -> Arc<AtomicBool> {
        self.bash.cancellation_token()
    }

    /// Run it, with its output to `process`; ends when all that it started has ended.
    pub(crate) async fn run(self, process: &Arc<Process>) -> ExitStatus {
        let Self { mut bash, script, words, input, fuse, code, .. } = self;
        let printer = |stream| {
            let process = process.clone();
            move |bytes| {
                let process = process.clone();
                async move {
                    process.print(stream, bytes).await;
                    Ok(())
                }
            }
        };
        let options = ExecOptions::new().arg0("sh").positional(words).stdin(Vec::from(input));
        let work = async move {
            bash.execute(script)
                .options(options)
                .stdout_fn(printer(OutputStream::Stdout))
                .stderr_fn(printer(OutputStream::Stderr))
                .await
        };
        let told = || *code.borrow();
        let error = match OnStack::new(work) {
            Err(error) => error.to_string(),
            Ok(work) => match Turns::new(work, fuse.clone()).await {
                // An `exit` as argv ends the script before it can tell.
                Ok(result) => return ExitStatus::Exited(told().unwrap_or(result.exit_code)),
                Err(bashkit::Error::ResourceLimit(limit)) if is_memory(&limit) => {
                    complain(process, &limit);
                    return told().map_or(ExitStatus::OutOfMemory, ExitStatus::Exited);
                }
                Err(error) => fuse.blown().map_or_else(|| error.to_string(), str::to_owned),
            },
        };
        complain(process, &error);
        ExitStatus::Exited(told().unwrap_or(1))
    }
}

/// What a shell would say of its own failure.
fn complain(process: &Process, why: &impl Display) {
    process.push(OutputStream::Stderr, format!("sh: {why}\n").into());
}

/// Ends a script before it can overflow the stack. It is asked before each command, `eval` and the like included.
fn guard_depth(fuse: Arc<Fuse>) -> Interceptor<ToolEvent> {
    Box::new(move |event| {
        if !stack::is_deep() {
            return HookAction::Continue(event);
        }
        fuse.blow(stack::TOO_DEEP);
        HookAction::Cancel(stack::TOO_DEEP.to_owned())
    })
}

fn is_memory(limit: &LimitExceeded) -> bool {
    matches!(
        limit,
        LimitExceeded::Memory(_) | LimitExceeded::ExecutionBudget(ExecutionBudgetExceeded::LiveBytes { .. })
    )
}

/// The interpreter takes text only.
fn utf8<'a>(argument: &str, text: &'a OsStr) -> Result<&'a str> {
    text.to_str().ok_or_else(|| {
        Error::invalid_argument(
            argument,
            "holds bytes that are not UTF-8, which the interpreter does not take",
        )
    })
}

/// So much that no honest test meets a limit, and so little that a hostile script ends within seconds.
fn limits() -> ExecutionLimits {
    ExecutionLimits::new()
        .max_ast_depth(40)
        .max_subst_depth(16)
        .max_subshell_depth(16)
        .max_commands(10_000_000)
        .max_loop_iterations(1_000_000)
        .max_total_loop_iterations(2_000_000)
        .max_work_units(1_000_000_000)
        .max_aggregate_input_bytes(1 << 30)
        .max_live_intermediate_bytes(512 << 20)
        .max_background_jobs(8)
        .max_input_bytes(16 << 20)
        .max_stdout_bytes(usize::MAX)
        .max_stderr_bytes(usize::MAX)
        // Time is kept outside, by a clock that tests can stop.
        .timeout(Duration::from_hours(100_000))
}

/// Tells that the command itself has ended. Only our own script has the proof, so a command cannot forge it.
struct Returned {
    proof: String,
    returned: watch::Sender<Option<i32>>,
}

#[async_trait]
impl Builtin for Returned {
    async fn execute(&self, context: BuiltinContext<'_>) -> bashkit::Result<ExecResult> {
        let [proof, code] = context.args else { return Ok(ExecResult::err("", 127)) };
        match code.parse() {
            Ok(code) if *proof == self.proof => {
                self.returned.send_replace(Some(code));
                Ok(ExecResult::ok(""))
            }
            _ => Ok(ExecResult::err("", 127)),
        }
    }
}

/// The names of all commands.
pub(crate) fn commands() -> Vec<String> {
    let mut names = Bash::builder().rootfs(false).build().builtin_names();
    names.extend(["sh", "bash"].map(str::to_owned));
    names.retain(|name| !matches!(name.as_str(), "." | ".." | "") && !name.contains('/'));
    names
}

/// What stands in for a command in `/usr/bin`: the interpreter knows its own by these lines.
pub(crate) fn stub(name: &str) -> Vec<u8> {
    format!("#!/bin/sh\n# bashkit builtin: {name}\nexec {name} \"$@\"\n").into_bytes()
}

/// Files that programs expect in `/etc`.
pub(crate) fn system_files() -> [(&'static str, String); 5] {
    [
        ("/etc/group", format!("{USER}:x:1000:\n")),
        ("/etc/hostname", format!("{HOST}\n")),
        ("/etc/hosts", format!("127.0.0.1\tlocalhost\n127.0.1.1\t{HOST}\n")),
        ("/etc/os-release", "NAME=capbox\nID=capbox\nPRETTY_NAME=\"capbox in memory\"\n".to_owned()),
        ("/etc/passwd", format!("{USER}:x:1000:1000::{HOME}:/bin/bash\n")),
    ]
}
