//! The options of exec.

use std::time::{Duration, Instant};

use capbox_core::api::{Event, ExitStatus};
use capbox_core::capability::flags::{OutputBytes, TimeoutKills};
use capbox_core::capability::{Capability, cap};
use capbox_core::error::ErrorKind;
use capbox_core::spec::{Env, Input, Stdin};

use super::exec::SOON;
use super::{Ask, Case, Contract, cases};
use crate::bench::{Bench, follow, get, gone, mark, sh, within};
use crate::check::{Check, Fault, fails};
use crate::{ensure, ensure_eq};

/// Ask by setting the option on either kind of command.
macro_rules! option {
    ($option:ident($value:expr)) => {
        Ask::Exec(|exec, _| Ok(exec.$option($value)), |spawn, _| Ok(spawn.$option($value)))
    };
}

/// Texts that quoting gets wrong.
pub(super) const ODD: &[&str] = &[
    "hello world",
    "$HOME",
    "`id`",
    "$(id)",
    "it's",
    "\"quoted\"",
    "a\\b\\\\",
    "100%",
    "two\nlines",
    "line feed at the end\n",
    "\n",
    "",
    "a=b=c",
    "☕",
    "-n",
    "*",
    "  blanks  ",
    "x\nexport EVIL=1",
];

impl Contract for cap::ExecCwd {
    const ASK: Ask = option!(cwd("/tmp"));
    const CASES: &'static [Case] =
        cases![a_command_starts_there, b199_a_folder_that_cannot_be_entered, b116_env_and_cwd_together];
}

async fn a_command_starts_there(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let sandbox = t.sandbox().await?;
    let home = sh(&sandbox, "pwd").await?.trim_end().trim_end_matches('/').to_owned(); // `/` is one, too
    for name in ["cwd", "my dir", "it's $HOME", "a\nb"] {
        sh(&sandbox, format!("mkdir -p {}", crate::bench::quoted(name))).await?;
        let output = sandbox.exec("printf %s \"$PWD\"; touch here").cwd(name).await?;
        ensure_eq!(output.stdout.text(), format!("{home}/{name}"), "the folder of a relative `cwd`");
        let absolute = format!("{home}/{name}");
        let output = sandbox.exec("pwd; test -e here").cwd(absolute.as_str()).await?;
        ensure_eq!(output.status, ExitStatus::Exited(0), "the end in `{absolute}`");
        ensure_eq!(output.stdout.text(), format!("{absolute}\n"), "the folder of an absolute `cwd`");
    }
    let again = sh(&sandbox, "pwd").await?;
    ensure_eq!(again.trim_end().trim_end_matches('/'), home, "the folder of a command without `cwd`");
    Ok(())
}

async fn b199_a_folder_that_cannot_be_entered(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let sandbox = t.sandbox().await?;
    sh(&sandbox, "echo > b199-file; mkdir -p b199-dir").await?;
    let mut wrong = vec!["/no/such/folder", "b199-file"];
    if t.inside().permissions && sh(&sandbox, "id -u").await?.trim() != "0" {
        sh(&sandbox, "chmod 000 b199-dir").await?;
        wrong.push("b199-dir");
    }
    for cwd in wrong {
        let error = fails(sandbox.exec("touch b199-ran").cwd(cwd).await, &[ErrorKind::BadWorkingDirectory])?;
        ensure!(error.to_string().contains(cwd), "the message does not name `{cwd}`: {error}");
    }
    ensure_eq!(get(&sandbox, "b199-ran").await?, None, "what the command did all the same");
    Ok(())
}

async fn b116_env_and_cwd_together(t: &Bench) -> Check {
    t.needs(&[Capability::Run, Capability::ExecEnv])?;
    let sandbox = t.sandbox().await?;
    sh(&sandbox, "mkdir -p 'my dir'").await?;
    let exec = sandbox.exec("printf '%s|%s' \"$A\" \"${PWD##*/}\"").env("A", "a$b`c'd\" e");
    let output = exec.cwd("my dir").await?;
    ensure_eq!(output.stdout.text(), "a$b`c'd\" e|my dir", "env and cwd together");
    Ok(())
}

impl Contract for cap::ExecEnv {
    const ASK: Ask = option!(envs(Env::from([("CAPBOX_CONTRACT", "1")])));
    const CASES: &'static [Case] = cases![
        b115_values_are_exact,
        b8_it_is_merged_over_the_base,
        b118_b120_no_name_injects,
        b119_odd_names_reach_an_argv,
        it_is_for_one_command_only,
        it_reaches_followed_commands_too,
    ];
}

async fn b115_values_are_exact(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let sandbox = t.sandbox().await?;
    for value in ODD {
        let output = sandbox.exec("printf %s \"$X\"").env("X", *value).await?;
        ensure_eq!(output.stdout.text(), *value, "the value of a variable");
    }
    Ok(())
}

async fn b8_it_is_merged_over_the_base(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let text = "echo \"${PATH:+path} ${HOME:+home} $FOO\"";
    let output = t.sandbox().await?.exec(text).env("FOO", "1").await?;
    ensure_eq!(output.stdout.text(), "path home 1\n", "the base with one variable over it");
    let output = t.sandbox().await?.exec("echo $HOME").env("HOME", "/over").await?;
    ensure_eq!(output.stdout.text(), "/over\n", "a variable of the base, set again");
    Ok(())
}

async fn b118_b120_no_name_injects(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let sandbox = t.sandbox().await?;
    for name in ["", "A=B", "A\nB", "A\0B", "A;touch b118;B", "$(touch b118)"] {
        fails(sandbox.exec("true").env(name, "x").await, &[ErrorKind::InvalidArgument])?;
    }
    fails(sandbox.exec("true").env("A", "x\0y").await, &[ErrorKind::InvalidArgument])?;
    ensure_eq!(get(&sandbox, "b118").await?, None, "the file that a name made");
    Ok(())
}

async fn b119_odd_names_reach_an_argv(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    t.needs_processes()?;
    let sandbox = t.sandbox().await?;
    let output = sandbox.exec(["env"]).env("MY-KEY", "a b").env("1A", "x").await?;
    let text = output.stdout.text();
    for line in ["MY-KEY=a b", "1A=x"] {
        ensure!(text.lines().any(|l| l == line), "`{line}` is not in {}", crate::check::short(&text));
    }
    Ok(())
}

async fn it_is_for_one_command_only(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let sandbox = t.sandbox().await?;
    sandbox.exec("true").env("ONCE", "1").await?;
    ensure_eq!(sh(&sandbox, "echo \"[$ONCE]\"").await?, "[]\n", "the variable in the next command");
    Ok(())
}

async fn it_reaches_followed_commands_too(t: &Bench) -> Check {
    t.needs(&[Capability::Streaming])?;
    let output = t.sandbox().await?.spawn("printf %s \"$X\"").env("X", "a b").await?.output().await?;
    ensure_eq!(output.stdout.text(), "a b", "the variable in a followed command");
    Ok(())
}

impl Contract for cap::User {
    const ASK: Ask = Ask::Exec(
        |exec, t| Ok(exec.user(t.sample(Capability::User).map_or("nobody", |sample| &sample.value))),
        |spawn, t| Ok(spawn.user(t.sample(Capability::User).map_or("nobody", |sample| &sample.value))),
    );
    const CASES: &'static [Case] = cases![it_runs_as_that_user, an_unknown_user_is_an_error];
}

async fn it_runs_as_that_user(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let sample = t.sample(Capability::User)?;
    let sandbox = t.sandbox().await?;
    let output = sandbox.exec("id -un").user(sample.value.as_str()).await?;
    ensure_eq!(output.stdout.text().trim_end(), sample.value, "what `id -un` says");
    let own = sh(&sandbox, "id -un").await?;
    ensure!(own.trim_end() != sample.value, "the sample is the default user, which proves nothing");
    Ok(())
}

async fn an_unknown_user_is_an_error(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let sandbox = t.sandbox().await?;
    let call = sandbox.exec("touch user-ran").user("no-such-user").await;
    let Err(error) = call else {
        return Err(Fault::failed("a command of a user that is not there runs"));
    };
    let kinds = [ErrorKind::InvalidArgument, ErrorKind::NotFound];
    ensure!(kinds.contains(&error.kind()), "the kind of error is {} ({error})", error.kind());
    ensure_eq!(get(&sandbox, "user-ran").await?, None, "what the command did all the same");
    for user in ["", "a:b", "a\nb"] {
        fails(sandbox.exec("true").user(user).await, &[ErrorKind::InvalidArgument])?;
    }
    Ok(())
}

impl Contract for cap::Timeout {
    const ASK: Ask = option!(timeout(Duration::from_secs(30)));
    const CASES: &'static [Case] = cases![
        b19_it_fires_in_time,
        b20_output_so_far_is_there,
        b21_zero_is_refused_and_fractions_count,
        b28_a_child_that_ignores_the_polite_signal,
        b27_nothing_is_left,
        a_command_in_time_is_untouched,
        it_holds_for_followed_commands_too,
    ];
}

async fn b19_it_fires_in_time(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let (sandbox, begin) = (t.sandbox().await?, Instant::now());
    let exec = sandbox.exec("sh -c \"sleep 30; touch b19-late\" | sh").timeout(Duration::from_secs(1));
    let output = within(SOON, "a command with a timeout of 1 s", async { exec.await }).await??;
    ensure_eq!(output.status, ExitStatus::TimedOut, "the end");
    ensure!(begin.elapsed() >= Duration::from_millis(900), "it fires too early: {:?}", begin.elapsed());
    Ok(())
}

async fn b20_output_so_far_is_there(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let text = "printf partial; printf error >&2; sleep 30";
    let output = t.sandbox().await?.exec(text).timeout(Duration::from_millis(700)).await?;
    ensure_eq!(output.status, ExitStatus::TimedOut, "the end");
    let all = format!("{}{}", output.stdout.text(), output.stderr.text());
    ensure!(all.contains("partial") && all.contains("error"), "the output so far is lost: {all:?}");
    Ok(())
}

async fn b21_zero_is_refused_and_fractions_count(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let sandbox = t.sandbox().await?;
    let zero = sandbox.exec("touch b21").timeout(Duration::ZERO).await;
    fails(zero, &[ErrorKind::InvalidArgument])?;
    ensure_eq!(get(&sandbox, "b21").await?, None, "what the command did all the same");
    let begin = Instant::now();
    let output = sandbox.exec("sleep 30").timeout(Duration::from_millis(300)).await?;
    ensure_eq!(output.status, ExitStatus::TimedOut, "the end after 0.3 s");
    ensure!(begin.elapsed() < SOON, "a fraction of a second is not honoured: {:?}", begin.elapsed());
    Ok(())
}

async fn b28_a_child_that_ignores_the_polite_signal(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    t.needs_processes()?;
    let (sandbox, mark) = (t.sandbox().await?, mark());
    let text = format!("trap '' TERM INT HUP; while :; do sleep 0.1; done; echo {mark}");
    let exec = sandbox.exec(text.as_str()).timeout(Duration::from_millis(500));
    let output = within(Duration::from_secs(15), "the timeout", async { exec.await }).await??;
    ensure_eq!(output.status, ExitStatus::TimedOut, "the end");
    if t.flags().timeout_kills != TimeoutKills::Nothing {
        gone(&sandbox, &mark, Duration::from_secs(1)).await?;
    }
    Ok(())
}

async fn b27_nothing_is_left(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    t.needs_processes()?;
    let sandbox = t.sandbox().await?;
    let (child, group, session) = (mark(), mark(), mark());
    let text = format!("sleep {group} & setsid sleep {session} & sleep {child}");
    sandbox.exec(text.as_str()).timeout(Duration::from_millis(700)).await?;
    let kills = t.flags().timeout_kills;
    if kills >= TimeoutKills::Group {
        gone(&sandbox, &group, Duration::ZERO).await?;
        gone(&sandbox, &child, Duration::ZERO).await?;
    }
    if kills >= TimeoutKills::Tree {
        gone(&sandbox, &session, Duration::ZERO).await?;
    }
    Ok(())
}

async fn a_command_in_time_is_untouched(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let output = t.sandbox().await?.exec("echo ok; exit 5").timeout(Duration::from_secs(30)).await?;
    ensure_eq!(output.status, ExitStatus::Exited(5), "the end");
    ensure_eq!(output.stdout.text(), "ok\n", "the output");
    Ok(())
}

async fn it_holds_for_followed_commands_too(t: &Bench) -> Check {
    t.needs(&[Capability::Streaming])?;
    let sandbox = t.sandbox().await?;
    let mut process = sandbox.spawn("printf partial; sleep 30").timeout(Duration::from_millis(700)).await?;
    let followed = within(SOON, "the timeout", follow(&mut process, 0)).await??;
    ensure_eq!(followed.exit.map(|exit| exit.status), Some(ExitStatus::TimedOut), "the end");
    ensure_eq!(followed.stdout, b"partial", "the output so far");
    Ok(())
}

impl Contract for cap::Input {
    const ASK: Ask = option!(input("refused"));
    const CASES: &'static [Case] = cases![
        every_byte_arrives_then_the_end,
        b37_large_input_comes_back,
        b37_a_command_that_does_not_read,
        b38_large_input_is_counted,
        it_reaches_followed_commands,
    ];
}

async fn every_byte_arrives_then_the_end(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let sandbox = t.sandbox().await?;
    for text in ["", "x", "two\nlines", "'quotes' \"and\" $HOME `id` \\ ☕\n", "\n\n"] {
        let output = sandbox.exec("cat").input(text.to_owned()).await?;
        ensure_eq!(output.stdout.text(), text, "what `cat` read");
    }
    if t.inside().bytes {
        let all: Vec<u8> = (0..=255).collect();
        let output = sandbox.exec("od -An -v -tu1 | tr -s ' \\n' '\\n\\n'").input(all.clone()).await?;
        let read: Vec<u8> =
            output.stdout.text().lines().filter_map(|line| line.trim().parse().ok()).collect();
        ensure_eq!(read, all, "the 256 bytes that the command read");
    }
    Ok(())
}

fn large(t: &Bench) -> Vec<u8> {
    "0123456789abcde\n".repeat(t.inside().large / 16).into_bytes()
}

async fn b37_large_input_comes_back(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let input = large(t);
    let output = t.sandbox().await?.exec("cat").input(input.clone()).await?;
    ensure_eq!(output.stdout.total(), input.len() as u64, "the size of what came back");
    if t.flags().output_bytes == OutputBytes::Exact {
        ensure!(output.stdout.bytes() == input, "what came back is altered");
    }
    Ok(())
}

async fn b37_a_command_that_does_not_read(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let sandbox = t.sandbox().await?;
    let exec = sandbox.exec("echo early; exit 6").input(large(t));
    let output = within(SOON, "a command that does not read", async { exec.await }).await??;
    ensure_eq!(output.status, ExitStatus::Exited(6), "the end");
    ensure_eq!(output.stdout.text(), "early\n", "the output");
    let exec = sandbox.exec("head -c 3").input(large(t));
    let output = within(SOON, "a command that reads a little", async { exec.await }).await??;
    ensure_eq!(output.stdout.text(), "012", "what it read");
    Ok(())
}

async fn b38_large_input_is_counted(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let input = large(t).repeat(4);
    let size = input.len();
    let output = t.sandbox().await?.exec("wc -c").input(input).await?;
    ensure_eq!(output.stdout.text().trim(), size.to_string(), "how much `wc` read");
    Ok(())
}

async fn it_reaches_followed_commands(t: &Bench) -> Check {
    t.needs(&[Capability::Streaming])?;
    let process = t.sandbox().await?.spawn("cat; echo end").input(Input::from("in\n")).await?;
    let output = within(SOON, "a followed `cat`", process.output()).await??;
    ensure_eq!(output.stdout.text(), "in\nend\n", "what a followed command read");
    Ok(())
}

impl Contract for cap::Stdin {
    const ASK: Ask = option!(stdin(Stdin::Open));
    const CASES: &'static [Case] = cases![
        it_is_written_while_it_runs,
        waiting_closes_it,
        writing_to_the_dead_is_an_error,
        it_excludes_input,
    ];
}

async fn it_is_written_while_it_runs(t: &Bench) -> Check {
    t.needs(&[Capability::Streaming])?;
    let sandbox = t.sandbox().await?;
    let text = "while read -r x; do echo \"got $x\"; done; echo end";
    let mut process = sandbox.spawn(text).stdin(Stdin::Open).await?;
    let mut position = 0;
    for word in ["one", "t w o", "$three"] {
        process.write(format!("{word}\n").as_bytes()).await?;
        let expected = format!("got {word}\n");
        let mut seen = Vec::new();
        while seen.len() < expected.len() {
            match within(SOON, "the answer to a line", process.next()).await?? {
                Some(Event::Output { bytes, .. }) => seen.extend_from_slice(&bytes),
                other => return Err(Fault::failed(format!("instead of output: {other:?}"))),
            }
        }
        position += seen.len() as u64;
        ensure_eq!(String::from_utf8_lossy(&seen), expected, "the answer to a line");
    }
    process.close_stdin().await?;
    let rest = within(SOON, "the end after the input's", follow(&mut process, position)).await??;
    ensure_eq!(rest.stdout, b"end\n", "what comes after the end of the input");
    Ok(())
}

async fn waiting_closes_it(t: &Bench) -> Check {
    t.needs(&[Capability::Streaming])?;
    let mut process = t.sandbox().await?.spawn("cat; exit 3").stdin(Stdin::Open).await?;
    let exit = within(SOON, "the end", process.wait()).await??;
    ensure_eq!(exit.status, ExitStatus::Exited(3), "the end");
    Ok(())
}

async fn writing_to_the_dead_is_an_error(t: &Bench) -> Check {
    t.needs(&[Capability::Streaming])?;
    t.needs_processes()?;
    let mut process = t.sandbox().await?.spawn("exec 0<&-; exit 0").stdin(Stdin::Open).await?;
    while !matches!(within(SOON, "the end", process.next()).await??, Some(Event::Exited(_)) | None) {}
    let written = async {
        let much = vec![b'x'; 1 << 16];
        for _ in 0..100 {
            process.write(&much).await?;
        }
        Ok(())
    };
    let written = within(SOON, "writing to a dead process", written).await?;
    fails(written, &[ErrorKind::Conflict, ErrorKind::NotFound, ErrorKind::ConnectionLost])?;
    Ok(())
}

async fn it_excludes_input(t: &Bench) -> Check {
    t.needs(&[Capability::Streaming, Capability::Input])?;
    let sandbox = t.sandbox().await?;
    let both = sandbox.spawn("cat").stdin(Stdin::Open).input("x").await;
    fails(both.map(drop), &[ErrorKind::InvalidArgument])?;
    Ok(())
}
