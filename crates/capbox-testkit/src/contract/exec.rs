//! `exec.run`, `exec.streaming`: what a command is, and what is left of it.

use std::time::{Duration, Instant};

use capbox_core::api::{Event, ExitStatus, OutputStream};
use capbox_core::capability::flags::OutputBytes;
use capbox_core::capability::{Capability, cap};
use capbox_core::error::{Admitted, ErrorKind};
use capbox_core::spec::{Mount, Mounts};

use super::{Ask, Case, Contract, cases};
use crate::bench::{Bench, PATIENCE, alive, follow, get, gone, mark, run, sh, starts, within};
use crate::check::{Check, Fault, fails};
use crate::{ensure, ensure_eq};

/// Soon: a call that ends after its command, whatever else is alive.
pub(super) const SOON: Duration = Duration::from_secs(10);

impl Contract for cap::Run {
    const ASK: Ask =
        Ask::Call(|sandbox| Box::pin(async { sandbox.exec("touch refused-run").await.map(drop) }));
    const CASES: &'static [Case] = cases![
        exit_codes_are_exact,
        output_is_exact,
        output_is_there_whole_at_the_end,
        b5_a_string_is_a_shell_text,
        b6_an_argv_stays_as_it_is,
        b8_a_base_environment_is_there,
        b153_the_host_environment_stays_outside,
        b10_many_lines_are_one_command,
        b3_input_is_closed,
        b13_killed_by_a_signal_is_not_exit_0,
        b14_each_signal_keeps_its_number,
        b1_a_background_child_holds_the_pipe,
        b2_only_one_descriptor_is_inherited,
        b45_bytes_that_are_not_text,
        b44_characters_stay_whole,
        b52_a_line_may_be_long,
        b53_output_is_bounded,
        b67_commands_are_isolated,
        b150_parallel_commands_get_their_own_output,
        b200_a_missing_program,
        cancelling_leaves_nothing,
        b203_a_sandbox_that_is_gone,
        b205_a_command_is_never_run_twice,
        b157_errors_show_no_secret,
    ];
}

async fn exit_codes_are_exact(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    for code in [0, 1, 2, 7, 42, 124, 125, 126, 127, 137, 255] {
        let output = run(&sandbox, &format!("exit {code}")).await?;
        ensure_eq!(output.status, ExitStatus::Exited(code), "the end of `exit {code}`");
    }
    let output = run(&sandbox, "false").await?;
    ensure_eq!(output.status.code(), Some(1), "the exit code of `false`, which is data and no error");
    Ok(())
}

async fn output_is_exact(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    for text in ["", "x", "no line feed at the end", "two\nlines\n", "\n\n", "  blanks  ", "tab\tand ☕\n"] {
        let output = sandbox.exec(["printf", "%s", text]).await?;
        ensure_eq!(output.stdout.text(), text, "what `printf` printed");
        ensure_eq!(output.stdout.total(), text.len() as u64, "the size of what `printf` printed");
        ensure!(!output.stdout.truncated(), "short output is marked as truncated");
        ensure_eq!(output.stderr.text(), "", "standard error of `printf`");
    }
    Ok(())
}

async fn output_is_there_whole_at_the_end(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    let lines = t.inside().large / 32;
    let line = "0123456789abcdef0123456789abcde";
    let output = run(&sandbox, &format!("yes {line} | head -n {lines}; printf end")).await?;
    let size = lines * 32 + 3;
    ensure_eq!(output.stdout.bytes().len(), size, "the size of large output");
    let expected = format!("{}end", format!("{line}\n").repeat(lines));
    ensure!(output.stdout.bytes() == expected.as_bytes(), "large output is altered");
    Ok(())
}

async fn b5_a_string_is_a_shell_text(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    ensure_eq!(sh(&sandbox, "echo a && echo b").await?, "a\nb\n", "`echo a && echo b`");
    ensure_eq!(
        sh(&sandbox, "X=7; echo \"$X\" | cat; echo $((X + 1))").await?,
        "7\n8\n",
        "variables and pipes"
    );
    Ok(())
}

async fn b6_an_argv_stays_as_it_is(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    let args = ["a b", "", "$HOME", "*", "it's", "\"q\"", "`id`", "\\n", "a\nb", "-n", ";"];
    let printf: Vec<&str> = ["printf", "%s|"].into_iter().chain(args).collect();
    let output = sandbox.exec(printf).await?;
    ensure_eq!(output.stdout.text(), format!("{}|", args.join("|")), "the arguments as `printf` got them");
    Ok(())
}

async fn b8_a_base_environment_is_there(t: &Bench) -> Check {
    let text = sh(&t.sandbox().await?, "echo \"${PATH:+path} ${HOME:+home}\"").await?;
    ensure_eq!(text, "path home\n", "`PATH` and `HOME` without any env given");
    Ok(())
}

async fn b153_the_host_environment_stays_outside(t: &Bench) -> Check {
    // Variables that every system sets by itself, to values that may well agree.
    const COMMON: &[&str] =
        &["PATH", "HOME", "PWD", "OLDPWD", "SHLVL", "SHELL", "USER", "LOGNAME", "TERM", "TZ", "_"];
    let text = sh(&t.sandbox().await?, "env").await?;
    let inherited: Vec<String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, value)| {
            !value.is_empty() && !COMMON.contains(&name.as_str()) && !name.starts_with('L')
        })
        .filter(|(name, value)| text.lines().any(|line| line == format!("{name}={value}")))
        .map(|(name, _)| name)
        .collect();
    ensure!(inherited.is_empty(), "inherited from the host: {inherited:?}");
    Ok(())
}

async fn b10_many_lines_are_one_command(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    let text = sh(&sandbox, "cat > b10 <<'E'\nhello $HOME\nE\ncat b10\n# a comment\necho next").await?;
    ensure_eq!(text, "hello $HOME\nnext\n", "a command of many lines");
    Ok(())
}

async fn b3_input_is_closed(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    let text = within(SOON, "`cat` without input", sh(&sandbox, "cat; echo end")).await??;
    ensure_eq!(text, "end\n", "what `cat` reads where nothing was given");
    Ok(())
}

async fn b13_killed_by_a_signal_is_not_exit_0(t: &Bench) -> Check {
    t.needs_processes()?;
    let output = run(&t.sandbox().await?, "kill -9 $$").await?;
    ensure_eq!(output.status.shell_code(), 137, "the end of a shell that killed itself ({})", output.status);
    Ok(())
}

async fn b14_each_signal_keeps_its_number(t: &Bench) -> Check {
    t.needs_processes()?;
    for (signal, number) in [("ABRT", 6), ("TERM", 15), ("SEGV", 11)] {
        let output = run(&t.sandbox().await?, &format!("sh -c 'kill -{signal} $$'")).await?;
        ensure_eq!(output.status.shell_code(), 128 + number, "the end by {signal} ({})", output.status);
    }
    Ok(())
}

async fn b1_a_background_child_holds_the_pipe(t: &Bench) -> Check {
    t.needs_processes()?;
    let (sandbox, mark) = (t.sandbox().await?, mark());
    let output = within(SOON, "the call", run(&sandbox, &format!("sleep {mark} & echo done"))).await??;
    ensure_eq!(output.status, ExitStatus::Exited(0), "the end of the direct process");
    ensure_eq!(output.stdout.text(), "done\n", "its output");
    let left = alive(&sandbox, &mark).await?;
    ensure_eq!(output.background_remains, !left.is_empty(), "whether background processes remain ({left:?})");
    Ok(())
}

async fn b2_only_one_descriptor_is_inherited(t: &Bench) -> Check {
    t.needs_processes()?;
    let sandbox = t.sandbox().await?;
    let redirections = ["</dev/null >/dev/null", "</dev/null 2>/dev/null", "3>&1 >/dev/null 2>&1"];
    for redirection in redirections {
        let text = format!("sleep {} {redirection} & echo done", mark());
        let output = within(SOON, "the call", run(&sandbox, &text)).await??;
        ensure_eq!(output.stdout.text(), "done\n", "the output with `{redirection}`");
    }
    Ok(())
}

async fn b45_bytes_that_are_not_text(t: &Bench) -> Check {
    t.needs_bytes()?;
    let output = run(&t.sandbox().await?, "printf 'ok\\377\\n'; exit 3").await?;
    ensure_eq!(output.status, ExitStatus::Exited(3), "the end");
    ensure_eq!(output.stdout.text(), "ok\u{FFFD}\n", "the text view");
    if t.flags().output_bytes == OutputBytes::Exact {
        ensure_eq!(output.stdout.bytes(), b"ok\xff\n", "the bytes");
    }
    Ok(())
}

async fn b44_characters_stay_whole(t: &Bench) -> Check {
    let count = t.inside().large / 16;
    let output = run(&t.sandbox().await?, &format!("yes ☕ | head -n {count} | tr -d '\\n'")).await?;
    ensure!(output.stdout.text() == "☕".repeat(count), "characters are cut: {:?}", output.stdout.total());
    Ok(())
}

async fn b52_a_line_may_be_long(t: &Bench) -> Check {
    let output = run(&t.sandbox().await?, "yes a | head -n 70000 | tr -d '\\n'").await?;
    ensure_eq!(output.stdout.bytes().len(), 70_000, "the length of a line");
    Ok(())
}

async fn b53_output_is_bounded(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    let text = "printf head; yes 123456789 | head -n 10000; printf tail";
    let output = sandbox.exec(text).max_output(1001).await?;
    let kept = output.stdout.bytes();
    ensure!(kept.len() <= 1001 && kept.len() > 900, "1001 bytes were asked for, {} are kept", kept.len());
    ensure!(output.stdout.truncated(), "it is not marked as truncated");
    ensure_eq!(output.stdout.total(), 100_008, "the true size");
    ensure!(kept.starts_with(b"head1234") && kept.ends_with(b"789\ntail"), "head and tail are not kept");
    Ok(())
}

async fn b67_commands_are_isolated(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    run(&sandbox, "set -e; cd /; X=leak; export X; umask 077; false").await?;
    ensure_eq!(sh(&sandbox, "false; echo \"next$X\"").await?, "next\n", "the next command");
    let (there, root) = (sh(&sandbox, "pwd").await?, "/\n");
    ensure!(there != root || t.inside().processes, "the folder of a command leaks into the next");
    run(&sandbox, "exit 3").await?;
    ensure_eq!(sh(&sandbox, "echo hi").await?, "hi\n", "the command after `exit`");
    Ok(())
}

async fn b150_parallel_commands_get_their_own_output(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    let started: Vec<_> = (0..20)
        .map(|i| {
            let sandbox = sandbox.clone();
            tokio::spawn(async move {
                let text = format!("sleep 0.0{}; echo {i}; echo {i} >&2; exit {i}", i % 7);
                sandbox.exec(text.as_str()).await
            })
        })
        .collect();
    for (i, call) in (0..).zip(started) {
        let output = call.await.map_err(Fault::failed)??;
        ensure!(output.stdout.text().starts_with(&format!("{i}\n")), "the output of command {i}: {output:?}");
        ensure_eq!(output.status, ExitStatus::Exited(i), "the exit code of command {i}");
    }
    Ok(())
}

async fn b200_a_missing_program(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    match sandbox.exec(["/no/such/program"]).await {
        Ok(output) => ensure_eq!(output.status.code(), Some(127), "the end of a program that is not there"),
        Err(error) => {
            ensure_eq!(error.kind(), ErrorKind::ProgramNotFound, "the kind of error ({error})");
            ensure!(!error.retryable(), "a missing program is to be tried again");
        }
    }
    let output = run(&sandbox, "/no/such/program").await?;
    ensure_eq!(output.status.code(), Some(127), "what the shell says of it");
    if t.inside().permissions {
        sh(&sandbox, "echo text > b200; chmod 644 b200").await?;
        match sandbox.exec(["./b200"]).await {
            Ok(output) => ensure_eq!(output.status.code(), Some(126), "the end of a file that is no program"),
            Err(error) => {
                ensure_eq!(error.kind(), ErrorKind::ProgramNotExecutable, "the kind of error ({error})");
            }
        }
    }
    Ok(())
}

async fn cancelling_leaves_nothing(t: &Bench) -> Check {
    let (sandbox, mark) = (t.sandbox().await?, mark());
    let text = format!("touch cancel-began; sleep 1; touch cancel-late; sleep {mark}");
    let call = sandbox.exec(text.as_str());
    tokio::select! {
        _ = async { call.await } => return Err(Fault::failed("the command ends at once")),
        began = began(t, "cancel-began") => began?,
    }
    if t.inside().processes {
        gone(&sandbox, &mark, SOON).await?;
        gone(&sandbox, "cancel-late", SOON).await?;
    }
    t.pass(Duration::from_millis(1500)).await;
    ensure_eq!(get(&sandbox, "cancel-late").await?, None, "what a cancelled command did later");
    Ok(())
}

/// Wait until a command has made `file`.
pub(super) async fn began(t: &Bench, file: &str) -> Check {
    let (sandbox, begin) = (t.sandbox().await?, Instant::now());
    while get(&sandbox, file).await?.is_none() {
        ensure!(begin.elapsed() < PATIENCE, "`{file}` does not appear");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

async fn b203_a_sandbox_that_is_gone(t: &Bench) -> Check {
    let sandbox = t.create(t.spec()).await?;
    sandbox.destroy().await?;
    fails(sandbox.exec("true").await, &[ErrorKind::SandboxGone, ErrorKind::NotFound])?;
    Ok(())
}

/// The sandbox goes while a command runs: that is told, and nobody runs it again.
async fn b205_a_command_is_never_run_twice(t: &Bench) -> Check {
    t.needs_processes()?;
    let shared = tempfile::tempdir()?;
    let (spec, log) = if t.can(Capability::FilesMount) {
        let mount = Mount::read_write(shared.path(), "/shared");
        (t.spec().mounts(Mounts(vec![mount])), "/shared/log")
    } else {
        (t.spec(), "log")
    };
    let sandbox = t.create(spec).await?;
    let running = {
        let (sandbox, text) = (sandbox.clone(), format!("echo x >> {log}; sleep 1000"));
        tokio::spawn(async move { sandbox.exec(text.as_str()).await })
    };
    let begin = Instant::now();
    while get(&sandbox, log).await?.is_none() {
        ensure!(begin.elapsed() < PATIENCE, "the command does not begin");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let sent = t.requests().map(|requests| requests.requests().len());
    sandbox.destroy().await?;
    match running.await.map_err(Fault::failed)? {
        Ok(output) => {
            ensure_eq!(output.status, ExitStatus::SandboxGone, "the end of a command whose sandbox goes");
        }
        Err(error) => {
            ensure_eq!(error.kind(), ErrorKind::SandboxGone, "the kind of error ({error})");
            ensure!(error.admitted() != Admitted::No, "a command that ran is said not to have run ({error})");
            ensure!(!error.retryable(), "a command that may have run is to be tried again ({error})");
        }
    }
    if t.can(Capability::FilesMount) {
        ensure_eq!(std::fs::read_to_string(shared.path().join("log"))?, "x\n", "what the command did");
    }
    if let (Some(requests), Some(sent)) = (t.requests(), sent) {
        let later = requests.requests().split_off(sent);
        let again = later.iter().any(|request| request.body.contains("echo x >> log"));
        ensure!(!again, "the command is sent again: {later:?}");
    }
    Ok(())
}

async fn b157_errors_show_no_secret(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    let secret = "hunter2-secret";
    let exec = sandbox.exec(["/no/such/program"]);
    let exec = if t.can(Capability::ExecEnv) { exec.env("TOKEN", secret) } else { exec };
    let exec = if t.can(Capability::Input) { exec.input(secret) } else { exec };
    ensure!(!format!("{exec:?}").contains(secret), "`Debug` of a command shows a secret: {exec:?}");
    if let Err(error) = exec.await {
        ensure!(!format!("{error} {error:?}").contains(secret), "an error shows a secret: {error:?}");
    }
    Ok(())
}

impl Contract for cap::Streaming {
    const ASK: Ask =
        Ask::Call(|sandbox| Box::pin(async { sandbox.spawn("touch refused-spawn").await.map(drop) }));
    const CASES: &'static [Case] = cases![
        output_comes_while_it_runs,
        positions_and_end_are_exact,
        b54_a_slow_reader_loses_nothing,
        b14_signals_when_streamed,
        b1_a_background_child_holds_the_stream,
        dropping_kills_everything,
        waiting_gives_the_end,
    ];
}

async fn output_comes_while_it_runs(t: &Bench) -> Check {
    // The command goes on only once its first output has been seen here.
    let sandbox = t.sandbox().await?;
    let text = "echo one; while ! test -e stream-go; do sleep 0.05; done; echo two";
    let mut process = sandbox.spawn(text).await?;
    let first = within(SOON, "the first output", process.next()).await??;
    let Some(Event::Output { stream: OutputStream::Stdout, position: 0, bytes }) = first else {
        return Err(Fault::failed(format!("the first event is {first:?}")));
    };
    ensure_eq!(&bytes[..], b"one\n", "the first output");
    crate::bench::put(&sandbox, "stream-go", "").await?;
    let rest = within(SOON, "the rest", follow(&mut process, 4)).await??;
    ensure_eq!(rest.stdout, b"two\n", "the rest of the output");
    ensure_eq!(rest.exit.map(|exit| exit.status), Some(ExitStatus::Exited(0)), "the end");
    Ok(())
}

async fn positions_and_end_are_exact(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    let mut process = sandbox.spawn("echo out; echo err >&2; printf last; exit 9").await?;
    let followed = follow(&mut process, 0).await?;
    ensure_eq!(followed.exit.map(|exit| exit.status), Some(ExitStatus::Exited(9)), "the end");
    ensure_eq!(followed.bytes.len(), 12, "the size of the output");
    ensure_eq!(followed.skipped, 0, "bytes that are said to be lost");
    ensure!(process.next().await?.is_none(), "there is an event after the end");
    ensure_eq!(process.exit().map(|exit| exit.status), Some(ExitStatus::Exited(9)), "the end, asked again");
    Ok(())
}

async fn b54_a_slow_reader_loses_nothing(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    let size = t.inside().large;
    let text = format!("yes 0123456789abcde | head -n {}", size / 16);
    let mut process = sandbox.spawn(text.as_str()).await?;
    let mut all = Vec::new();
    while let Some(event) = process.next().await? {
        if let Event::Output { bytes, .. } = event {
            all.extend_from_slice(&bytes);
            if all.len() < size / 4 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
    ensure_eq!(all.len(), size, "the bytes that a slow reader gets");
    ensure!(all == "0123456789abcde\n".repeat(size / 16).as_bytes(), "the output is altered");
    Ok(())
}

async fn b14_signals_when_streamed(t: &Bench) -> Check {
    t.needs_processes()?;
    for (signal, number) in [("KILL", 9), ("ABRT", 6)] {
        let text = format!("kill -{signal} $$");
        let output = t.sandbox().await?.spawn(text.as_str()).await?.output().await?;
        ensure_eq!(output.status.shell_code(), 128 + number, "the end by {signal} ({})", output.status);
    }
    Ok(())
}

async fn b1_a_background_child_holds_the_stream(t: &Bench) -> Check {
    t.needs_processes()?;
    let sandbox = t.sandbox().await?;
    let text = format!("sleep {} & echo done", mark());
    let mut process = sandbox.spawn(text.as_str()).await?;
    let followed = within(SOON, "the stream", follow(&mut process, 0)).await??;
    ensure_eq!(followed.stdout, b"done\n", "its output");
    Ok(())
}

async fn dropping_kills_everything(t: &Bench) -> Check {
    let (sandbox, mark) = (t.sandbox().await?, mark());
    let text = format!("echo began; sleep 1; touch drop-late; sleep {mark}");
    let mut process = sandbox.spawn(text.as_str()).await?;
    within(SOON, "the first output", process.next()).await??;
    drop(process);
    if t.inside().processes {
        gone(&sandbox, "drop-late", SOON).await?;
        let text = format!("sleep {mark} & wait");
        let process = sandbox.spawn(text.as_str()).await?;
        starts(&sandbox, &mark).await?;
        drop(process);
        gone(&sandbox, &mark, SOON).await?;
    }
    t.pass(Duration::from_millis(1500)).await;
    ensure_eq!(get(&sandbox, "drop-late").await?, None, "what a dropped command did later");
    Ok(())
}

async fn waiting_gives_the_end(t: &Bench) -> Check {
    let mut process = t.sandbox().await?.spawn("echo unseen; exit 4").await?;
    let exit = within(SOON, "the end", process.wait()).await??;
    ensure_eq!(exit.status, ExitStatus::Exited(4), "the end");
    t.needs(&[Capability::Streaming])
}
