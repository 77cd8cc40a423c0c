//! Turns: each time that a runtime polls the interpreter.
//!
//! The interpreter gives way now and then, but not always: a turn may keep the thread for as long as it likes.
//! Here timers get their chance between turns, and a turn that takes too long is ended.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// How long one turn may take. That is long, since a machine may be busy.
const LONGEST: Duration = Duration::from_secs(10);
/// How often turns are looked at.
const LOOK: Duration = Duration::from_millis(250);

/// What ends a command that would harm the process.
#[derive(Debug, Default)]
pub(crate) struct Fuse {
    blown: OnceLock<&'static str>,
    cancel: OnceLock<Arc<AtomicBool>>,
}

impl Fuse {
    /// End the command by setting `cancel`.
    pub(crate) fn ends(&self, cancel: Arc<AtomicBool>) {
        self.cancel.get_or_init(|| cancel);
    }

    /// End it now.
    pub(crate) fn blow(&self, why: &'static str) {
        self.blown.get_or_init(|| why);
        if let Some(cancel) = self.cancel.get() {
            cancel.store(true, Ordering::Relaxed);
        }
    }

    /// Why it was ended, if it was.
    pub(crate) fn blown(&self) -> Option<&'static str> {
        self.blown.get().copied()
    }
}

/// A future whose turns are watched. Where it wakes itself to give way, it gives way to timers too.
///
/// A runtime looks at its timers only after dozens of turns while there is work, and one turn of the interpreter
/// is milliseconds: a timeout would come late.
pub(crate) struct Turns<F> {
    future: F,
    watched: Arc<Watched>,
    relay: Arc<Relay>,
    waker: Waker,
}

impl<F: Future + Unpin> Turns<F> {
    pub(crate) fn new(future: F, fuse: Arc<Fuse>) -> Self {
        let watched = Arc::new(Watched { fuse, began: Mutex::default() });
        watch(&watched);
        let relay = Arc::new(Relay::default());
        Self { future, watched, waker: relay.clone().into(), relay }
    }
}

impl<F: Future + Unpin> Future for Turns<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Self { future, watched, relay, waker } = self.get_mut();
        *lock(&watched.began) = Some(Instant::now());
        *lock(&relay.outer) = Some(context.waker().clone());
        relay.again.store(false, Ordering::Release);
        relay.polling.store(true, Ordering::Release);
        let polled = Pin::new(future).poll(&mut Context::from_waker(waker));
        relay.polling.store(false, Ordering::Release);
        *lock(&watched.began) = None;
        if polled.is_pending() && relay.again.load(Ordering::Acquire) {
            // Its first poll asks to be woken when the runtime has looked at its timers.
            let asked = std::pin::pin!(tokio::task::yield_now()).poll(context);
            if asked.is_ready() {
                context.waker().wake_by_ref();
            }
        }
        polled
    }
}

/// Passes wakes on, but for those that come during the turn itself.
#[derive(Default)]
struct Relay {
    polling: AtomicBool,
    again: AtomicBool,
    outer: Mutex<Option<Waker>>,
}

impl Wake for Relay {
    fn wake(self: Arc<Self>) {
        if self.polling.load(Ordering::Acquire) {
            self.again.store(true, Ordering::Release);
            // If the turn has ended in between, nobody looks at that any more.
            if self.polling.load(Ordering::Acquire) {
                return;
            }
        }
        let outer = lock(&self.outer).clone();
        if let Some(outer) = outer {
            outer.wake();
        }
    }
}

struct Watched {
    fuse: Arc<Fuse>,
    /// When the turn began that goes on now.
    began: Mutex<Option<Instant>>,
}

/// All that runs. One thread looks at them, and ends when there are none.
static WATCHED: Mutex<Vec<Weak<Watched>>> = Mutex::new(Vec::new());

fn watch(watched: &Arc<Watched>) {
    let mut all = lock(&WATCHED);
    all.push(Arc::downgrade(watched));
    if all.len() == 1 && std::thread::Builder::new().name("capbox-memory".into()).spawn(look).is_err() {
        // Without a thread turns are not watched; the next command tries again.
        all.clear();
    }
}

fn look() {
    loop {
        std::thread::sleep(LOOK);
        let mut all = lock(&WATCHED);
        all.retain(|watched| {
            let Some(watched) = watched.upgrade() else { return false };
            if lock(&watched.began).is_some_and(|began| began.elapsed() > LONGEST) {
                watched.fuse.blow("this takes too long at a time");
            }
            true
        });
        if all.is_empty() {
            return;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
