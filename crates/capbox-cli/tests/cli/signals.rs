//! Signals that end `capbox`.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::{Sandbox, capbox, eventually, is_running, json};

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("send the signal");
}

/// Start a command that prints a line and then sleeps; wait for the line.
fn started(args: &[&str]) -> Child {
    let mut child = capbox(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start");
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
    stdout.read_line(&mut line).expect("read its stdout");
    child.stdout = Some(stdout.into_inner());
    assert!(line == "up\n", "`{line}`, and {:?}", child.wait_with_output());
    child
}

/// B146: what we started ends with us.
#[test]
fn the_sandbox_ends_with_run() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let child = started(&["run", "--", "echo up; setsid sleep 304.5 & sleep 304.5"]);
        assert!(is_running("304.5"));
        send(&child, signal);
        let out = child.wait_with_output().expect("wait");
        assert_eq!((out.status.code(), String::from_utf8_lossy(&out.stderr).as_ref()), (Some(code), ""));
        assert!(!is_running("304.5"), "{signal:?}");
    }
}

/// B146: also where there is no time to clean up.
#[test]
fn the_sandbox_ends_with_a_killed_run() {
    let mut child = started(&["run", "--", "echo up; sleep 305.5"]);
    send(&child, Signal::KILL);
    assert_eq!(child.wait().expect("wait").signal(), Some(9));
    eventually("the sandbox of a killed run is gone", || !is_running("305.5"));
}

#[test]
fn the_command_ends_with_exec() {
    let sandbox = Sandbox::create();
    let child = started(&["exec", sandbox.id(), "--", "echo up; sleep 306.5"]);
    send(&child, Signal::INT);
    let out = child.wait_with_output().expect("wait");
    assert_eq!((out.status.code(), String::from_utf8_lossy(&out.stderr).as_ref()), (Some(130), ""));
    eventually("the command is gone", || !is_running("306.5"));
    assert_eq!(sandbox.exec(&["echo still there"]), "still there\n");
}

/// A signal that our parent made us ignore stays ignored, as under `nohup`.
#[test]
fn ignored_signals_stay_ignored() {
    let program = env!("CARGO_BIN_EXE_capbox");
    let script = format!("trap '' HUP; exec {program} run -- 'echo up; sleep 1; echo over'");
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script]).env("CAPBOX_STATE_DIR", crate::STATE).stdin(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).spawn().expect("start");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert_eq!(lines.next().expect("a line").expect("read"), "up");
    send(&child, Signal::HUP);
    assert_eq!(lines.next().expect("a line").expect("read"), "over");
    assert!(child.wait().expect("wait").success());
}

/// Nobody reads, and still the signal is seen.
#[test]
fn a_blocked_stdout_does_not_hold_up_a_signal() {
    let child = started(&["run", "--", "echo up; while :; do echo 307.5; done"]);
    std::thread::sleep(std::time::Duration::from_millis(300));
    send(&child, Signal::INT);
    let mut child = child;
    let kept_open = child.stdout.take();
    assert_eq!(child.wait().expect("wait").code(), Some(130));
    drop(kept_open);
    assert!(!is_running("307.5"));
}

#[test]
fn attach_can_be_left() {
    let sandbox = Sandbox::create();
    let process =
        crate::ran(&["exec", "-d", sandbox.id(), "--", "while :; do echo up; sleep 0.1; done"]).printed();
    let process = process.trim();
    let child = started(&["attach", sandbox.id(), process]);
    send(&child, Signal::INT);
    assert_eq!(child.wait_with_output().expect("wait").status.signal(), Some(2));
    assert_eq!(json(&["ps", "--json", sandbox.id()])["processes"][0]["state"], "running");
}
