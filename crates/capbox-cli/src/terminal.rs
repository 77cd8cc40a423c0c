//! Our own terminal.

use std::io::{Stdin, stderr, stdin, stdout};
use std::sync::{Mutex, Once};

use capbox::spec::TerminalSize;
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};

/// The mode to go back to. In a place of its own, since a panic does not drop what is on the stack.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Our terminal in raw mode: what is typed arrives as it is, until this is dropped.
pub(crate) struct RawMode(Stdin);

impl RawMode {
    /// Enter raw mode, where our stdin is a terminal.
    pub(crate) fn enter() -> std::io::Result<Option<Self>> {
        let stdin = stdin();
        if !isatty(&stdin) {
            return Ok(None);
        }
        let before = tcgetattr(&stdin)?;
        let mut raw = before.clone();
        raw.make_raw();
        if let Ok(mut place) = BEFORE.lock() {
            *place = Some(before);
        }
        restore_on_panic();
        tcsetattr(&stdin, OptionalActions::Flush, &raw)?;
        Ok(Some(Self(stdin)))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        restore(&self.0);
    }
}

fn restore(stdin: &Stdin) {
    if let Ok(Some(before)) = BEFORE.lock().map(|mut place| place.take()) {
        // A terminal that is gone needs no mode.
        let _ = tcsetattr(stdin, OptionalActions::Now, &before);
    }
}

fn restore_on_panic() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let earlier = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore(&stdin());
            earlier(panic);
        }));
    });
}

/// The size of our terminal, where we have one; else the usual one.
pub(crate) fn size() -> TerminalSize {
    let sizes = [tcgetwinsize(stdin()), tcgetwinsize(stdout()), tcgetwinsize(stderr())];
    sizes
        .into_iter()
        .flatten()
        .find_map(|size| TerminalSize::new(u32::from(size.ws_row), u32::from(size.ws_col)).ok())
        .unwrap_or_default()
}
