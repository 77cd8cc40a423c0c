//! `-t`, with a terminal of our own.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::{Sandbox, capbox, ran, ran_with_stdin};

/// A terminal: we are who types and looks.
struct Terminal {
    /// Our side.
    screen: File,
    /// The side of the program, kept open so that nothing is lost when that ends.
    line: OwnedFd,
    shown: String,
}

impl Terminal {
    fn open(rows: u16, cols: u16) -> Self {
        let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("open a terminal");
        grantpt(&screen).expect("grant it");
        unlockpt(&screen).expect("unlock it");
        let name = ptsname(&screen, Vec::new()).expect("its name");
        let line = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty())
            .expect("open its other side");
        let terminal = Self { screen: screen.into(), line, shown: String::new() };
        terminal.resize(rows, cols);
        terminal
    }

    fn resize(&self, rows: u16, cols: u16) {
        let size = Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.line, size).expect("set its size");
    }

    /// Start the program on it.
    fn start(&self, args: &[&str]) -> Child {
        let line = || Stdio::from(self.line.try_clone().expect("clone"));
        capbox(args).stdin(line()).stdout(line()).stderr(line()).spawn().expect("start the program")
    }

    fn type_in(&mut self, text: &str) {
        self.screen.write_all(text.as_bytes()).expect("type");
    }

    /// Look until `text` is shown.
    fn wait_for(&mut self, text: &str) {
        let end = Instant::now() + Duration::from_secs(10);
        let mut buffer = [0; 4096];
        while !self.shown.contains(text) {
            assert!(Instant::now() < end, "`{text}` is not shown, but {:?}", self.shown);
            let poll = rustix::event::PollFd::new(&self.screen, rustix::event::PollFlags::IN);
            let wait = rustix::event::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            if rustix::event::poll(&mut [poll], Some(&wait)).expect("poll") > 0 {
                let read = self.screen.read(&mut buffer).expect("look");
                self.shown.push_str(&String::from_utf8_lossy(&buffer[..read]));
            }
        }
    }

    /// True where lines are edited and echoed by the terminal itself.
    fn is_cooked(&self) -> bool {
        tcgetattr(&self.line).expect("its mode").local_modes.contains(LocalModes::ICANON | LocalModes::ECHO)
    }
}

#[test]
fn a_shell_on_our_terminal() {
    let mut terminal = Terminal::open(33, 77);
    assert!(terminal.is_cooked());
    let mut child =
        terminal.start(&["run", "-it", "--", "stty size; tty; read line; echo got:$line; exit 9"]);
    terminal.wait_for("33 77");
    terminal.wait_for("/dev/pts/");
    assert!(!terminal.is_cooked());
    terminal.type_in("typed\r");
    terminal.wait_for("got:typed");
    assert_eq!(child.wait().expect("wait").code(), Some(9));
    assert!(terminal.is_cooked());
}

#[test]
fn the_size_follows() {
    let mut terminal = Terminal::open(24, 80);
    let mut child = terminal.start(&[
        "run",
        "-it",
        "--",
        "trap 'stty size' WINCH; echo up; while :; do sleep 0.05; done",
    ]);
    terminal.wait_for("up");
    terminal.resize(40, 100);
    kill_process(Pid::from_child(&child), Signal::WINCH).expect("send the signal");
    terminal.wait_for("40 100");
    kill_process(Pid::from_child(&child), Signal::TERM).expect("send the signal");
    assert_eq!(child.wait().expect("wait").code(), Some(143));
    assert!(terminal.is_cooked());
}

/// Ctrl-C goes to the command, not to us.
#[test]
fn what_is_typed_goes_in() {
    let mut terminal = Terminal::open(24, 80);
    let mut child = terminal.start(&[
        "run",
        "-it",
        "--",
        "trap 'echo interrupted; exit 4' INT; echo up; while :; do sleep 0.05; done",
    ]);
    terminal.wait_for("up");
    terminal.type_in("\x03");
    terminal.wait_for("interrupted");
    assert_eq!(child.wait().expect("wait").code(), Some(4));
}

/// B74: all that was printed is shown before the end.
#[test]
fn nothing_is_lost_at_the_end() {
    let sandbox = Sandbox::create();
    for _ in 0..30 {
        assert_eq!(ran(&["exec", "-t", sandbox.id(), "--", "printf ok"]).printed(), "ok");
    }
}

/// Without a terminal of ours there is one inside all the same, but nothing that could be typed there.
#[test]
fn a_terminal_without_ours() {
    assert_eq!(ran(&["run", "-t", "--", "stty size; exit 3"]).stdout, "24 80\r\n");
    let sandbox = Sandbox::create();
    for args in [&["run", "-it"][..], &["exec", "-it", sandbox.id()]] {
        // A shell would wait for ever: its terminal has no end of input but a key.
        let refused = ran_with_stdin(&[args, &["--", "bash"]].concat(), b"exit 5\n");
        assert_eq!((refused.code, refused.stdout.as_str()), (125, ""), "{args:?}");
        assert!(refused.stderr.contains("our stdin is not a terminal"), "{refused:?}");
    }
}

/// B14, B15: in a terminal too.
#[test]
fn exit_codes() {
    for (command, code) in [("exit 42", 42), ("kill -ABRT $$", 134), ("kill -9 $$", 137)] {
        assert_eq!(ran(&["run", "-t", "--", command]).code, code, "{command}");
    }
}

#[test]
fn messages_are_coloured_for_those_who_see_it() {
    let mut terminal = Terminal::open(24, 80);
    let mut child = terminal.start(&["rum"]);
    terminal.wait_for("\x1b[1;31merror:\x1b[0m there is no command `rum`");
    assert_eq!(child.wait().expect("wait").code(), Some(125));
}
