//! `exec.pty` and `exec.pty-resize`.

use std::time::Duration;

use capbox_core::api::{AnySandbox, Event, ExitStatus, Process};
use capbox_core::capability::{Capability, cap};
use capbox_core::error::{Error, ErrorKind};
use capbox_core::spec::TerminalSize;

use super::exec::SOON;
use super::{Ask, Case, Contract, cases};
use crate::bench::{Bench, follow, get, gone, mark, starts, within};
use crate::check::{Check, Fault, fails};
use crate::{ensure, ensure_eq};

impl Contract for cap::Pty {
    const ASK: Ask = Ask::Call(|sandbox| {
        Box::pin(async {
            match sandbox.pty() {
                Some(pty) => pty.open("touch refused-pty").await.map(drop),
                None => Err(sandbox.require(Capability::Pty).err().map_or_else(
                    || Error::new(ErrorKind::Provider, "`pty` is `None` although the row is there"),
                    Error::from,
                )),
            }
        })
    });
    const CASES: &'static [Case] = cases![
        it_is_a_terminal,
        its_size_is_as_asked,
        what_is_typed_arrives,
        ctrl_c_interrupts,
        ctrl_d_ends_the_input,
        b14_ends_are_exact_in_a_terminal,
        b74_the_last_output_is_there,
        b75_the_end_is_told,
        b78_dropping_types_nothing,
        b79_dropping_ends_everything,
        b73_a_long_line_is_not_cut,
    ];
}

async fn open(sandbox: &AnySandbox, text: &str) -> Check<Process> {
    let pty = sandbox.pty().ok_or_else(|| Fault::ignored("needs `exec.pty`"))?;
    Ok(pty.open(text).await?)
}

/// What a terminal showed to the end, with its line ends made plain.
async fn shown(process: &mut Process) -> Check<(String, Option<ExitStatus>)> {
    let followed = within(Duration::from_secs(10), "the terminal", follow(process, 0)).await??;
    let text = String::from_utf8_lossy(&followed.bytes).replace("\r\n", "\n");
    Ok((text, followed.exit.map(|exit| exit.status)))
}

/// Read until the terminal has shown `wanted`; gives all that was shown.
async fn until(process: &mut Process, wanted: &str) -> Check<String> {
    let mut seen = String::new();
    while !seen.contains(wanted) {
        match within(SOON, &format!("`{wanted}` on the terminal, after {seen:?},"), process.next()).await?? {
            Some(Event::Output { bytes, .. }) => seen.push_str(&String::from_utf8_lossy(&bytes)),
            other => return Err(Fault::failed(format!("{other:?} comes before `{wanted}`, after {seen:?}"))),
        }
    }
    Ok(seen)
}

async fn it_is_a_terminal(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    let text = "test -t 0 && test -t 1 && test -t 2 && echo all; : < /dev/tty && echo controlling";
    let (text, status) = shown(&mut open(&sandbox, text).await?).await?;
    ensure_eq!(text, "all\ncontrolling\n", "whether the three streams are a controlling terminal");
    ensure_eq!(status, Some(ExitStatus::Exited(0)), "the end");
    Ok(())
}

async fn its_size_is_as_asked(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    let (text, _) = shown(&mut open(&sandbox, "stty size").await?).await?;
    ensure_eq!(text, "24 80\n", "the size where none was asked for");
    let pty = sandbox.pty().ok_or_else(|| Fault::ignored("needs `exec.pty`"))?;
    let mut process = pty.open("stty size").size(TerminalSize::new(7, 133)?).await?;
    ensure_eq!(shown(&mut process).await?.0, "7 133\n", "the size that was asked for");
    Ok(())
}

async fn what_is_typed_arrives(t: &Bench) -> Check {
    let mut process = open(&t.sandbox().await?, "read -r x; echo \"got:$x:\"").await?;
    process.write("a b ☕ $HOME\n".as_bytes()).await?;
    until(&mut process, "got:a b ☕ $HOME:").await?;
    Ok(())
}

async fn ctrl_c_interrupts(t: &Bench) -> Check {
    t.needs_processes()?;
    let mut process = open(&t.sandbox().await?, "echo ready; exec sleep 100").await?;
    until(&mut process, "ready").await?;
    process.write(b"\x03").await?;
    let followed = async {
        while let Some(event) = process.next().await? {
            if let Event::Exited(exit) = event {
                return Ok(Some(exit.status));
            }
        }
        Ok::<_, Error>(None)
    };
    let status = within(SOON, "the end by Ctrl-C", followed).await??;
    ensure_eq!(status.map(ExitStatus::shell_code), Some(130), "the end by Ctrl-C");
    Ok(())
}

async fn ctrl_d_ends_the_input(t: &Bench) -> Check {
    let mut process = open(&t.sandbox().await?, "cat; echo end").await?;
    process.write(b"line\n\x04").await?;
    until(&mut process, "end").await?;
    Ok(())
}

async fn b14_ends_are_exact_in_a_terminal(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    let (_, status) = shown(&mut open(&sandbox, "exit 42").await?).await?;
    ensure_eq!(status, Some(ExitStatus::Exited(42)), "the end of `exit 42`");
    if t.inside().processes {
        let (_, status) = shown(&mut open(&sandbox, "kill -ABRT $$").await?).await?;
        ensure_eq!(status.map(ExitStatus::shell_code), Some(134), "the end by ABRT");
    }
    Ok(())
}

async fn b74_the_last_output_is_there(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    for turn in 0..20 {
        let (text, _) = shown(&mut open(&sandbox, "printf ok").await?).await?;
        ensure_eq!(text, "ok", "what turn {turn} printed just before its end");
    }
    Ok(())
}

async fn b75_the_end_is_told(t: &Bench) -> Check {
    t.needs_processes()?;
    let text = format!("setsid sleep {} & echo hi", mark());
    let mut process = open(&t.sandbox().await?, &text).await?;
    let (text, status) = shown(&mut process).await?;
    ensure_eq!(text, "hi\n", "the output");
    ensure_eq!(status, Some(ExitStatus::Exited(0)), "the end, while a child holds the terminal");
    Ok(())
}

async fn b78_dropping_types_nothing(t: &Bench) -> Check {
    let sandbox = t.sandbox().await?;
    let mut process = open(&sandbox, "echo ready; read -r x; touch \"$x\"").await?;
    until(&mut process, "ready").await?;
    process.write(b"b78").await?;
    until(&mut process, "b78").await?;
    drop(process);
    tokio::time::sleep(Duration::from_millis(500)).await;
    ensure_eq!(get(&sandbox, "b78").await?, None, "the file named by a line that was never entered");
    Ok(())
}

async fn b79_dropping_ends_everything(t: &Bench) -> Check {
    t.needs_processes()?;
    let (sandbox, a, b) = (t.sandbox().await?, mark(), mark());
    let text = format!("nohup sleep {a} >/dev/null 2>&1 & sleep {b}");
    let process = open(&sandbox, &text).await?;
    starts(&sandbox, &a).await?;
    starts(&sandbox, &b).await?;
    drop(process);
    gone(&sandbox, &a, SOON).await?;
    gone(&sandbox, &b, SOON).await
}

async fn b73_a_long_line_is_not_cut(t: &Bench) -> Check {
    let mut process =
        open(&t.sandbox().await?, "stty -echo; echo ready; read -r x; echo \"length ${#x}.\"").await?;
    until(&mut process, "ready").await?;
    let line = format!("{}\n", "x".repeat(5000));
    if let Err(error) = process.write(line.as_bytes()).await {
        ensure_eq!(error.kind(), ErrorKind::InvalidArgument, "the refusal of a long line ({error})");
    } else {
        let text = until(&mut process, ".").await?;
        ensure!(text.contains("length 5000."), "a line of 5000 characters arrives as {text:?}");
    }
    Ok(())
}

impl Contract for cap::PtyResize {
    const ASK: Ask = Ask::Call(|sandbox| {
        Box::pin(async { sandbox.process("p").resize(TerminalSize { rows: 30, cols: 100 }).await })
    });
    const CASES: &'static [Case] = cases![the_program_sees_the_new_size, b77_after_the_end_it_is_an_error];
}

async fn the_program_sees_the_new_size(t: &Bench) -> Check {
    t.needs(&[Capability::Pty])?;
    let text = "trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.05; done";
    let mut process = open(&t.sandbox().await?, text).await?;
    until(&mut process, "ready").await?;
    process.resize(TerminalSize::new(31, 101)?).await?;
    until(&mut process, "31 101").await?;
    Ok(())
}

async fn b77_after_the_end_it_is_an_error(t: &Bench) -> Check {
    t.needs(&[Capability::Pty])?;
    let sandbox = t.sandbox().await?;
    let mut process = open(&sandbox, "true").await?;
    process.wait().await?;
    fails(process.resize(TerminalSize::new(24, 80)?).await, &[ErrorKind::Conflict])?;
    fails(sandbox.process("nope").resize(TerminalSize::default()).await, &[ErrorKind::NotFound])?;
    Ok(())
}
