//! Giving way to timers.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// A future that, where it wakes itself to give way, gives way to timers too.
///
/// A runtime looks at its timers only after dozens of turns while there is work, and one turn of the interpreter
/// is milliseconds: a timeout would come late.
pub(crate) struct Fair<F> {
    future: F,
    relay: Arc<Relay>,
    waker: Waker,
}

#[derive(Default)]
struct Relay {
    polling: AtomicBool,
    /// It was woken while it was polled.
    again: AtomicBool,
    outer: Mutex<Option<Waker>>,
}

impl Wake for Relay {
    fn wake(self: Arc<Self>) {
        if self.polling.load(Ordering::Acquire) {
            self.again.store(true, Ordering::Release);
            // The turn may have ended in between; one wake too many does no harm.
            if self.polling.load(Ordering::Acquire) {
                return;
            }
        }
        let outer = self.outer.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(outer) = outer {
            outer.wake();
        }
    }
}

impl<F: Future + Unpin> Fair<F> {
    pub(crate) fn new(future: F) -> Self {
        let relay = Arc::new(Relay::default());
        Self { future, waker: relay.clone().into(), relay }
    }
}

impl<F: Future + Unpin> Future for Fair<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Self { future, relay, waker } = self.get_mut();
        *relay.outer.lock().unwrap_or_else(PoisonError::into_inner) = Some(context.waker().clone());
        relay.again.store(false, Ordering::Release);
        relay.polling.store(true, Ordering::Release);
        let polled = Pin::new(future).poll(&mut Context::from_waker(waker));
        relay.polling.store(false, Ordering::Release);
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
