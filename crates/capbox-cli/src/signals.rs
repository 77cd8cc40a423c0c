//! The signals that ask this program to end.

use std::fs::File;
use std::io::{self, Read};
use std::task::Poll;

use capbox::api::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::failure::Failure;

/// Interrupt, terminate, hang-up, quit; caught, so that what was started can be ended first.
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Catch them from now on; but for those that our parent made us ignore, as `nohup` and `&` do.
    pub(crate) fn catch() -> io::Result<Self> {
        let ignored = ignored();
        let mut caught = Vec::new();
        for kind in
            [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup(), SignalKind::quit()]
        {
            let number = kind.as_raw_value();
            if ignored & (1 << (number - 1)) != 0 {
                continue;
            }
            if let Ok(signal) = Signal::new(number) {
                caught.push((signal, unix::signal(kind)?));
            }
        }
        Ok(Self(caught))
    }

    /// Do `work`, unless a signal comes first; then `work` is dropped, which ends what it started.
    pub(crate) async fn unless<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Failure> {
        let signal = std::future::poll_fn(|context| {
            for (signal, stream) in &mut self.0 {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        });
        tokio::select! {
            biased;
            signal = signal => Err(Failure::Signal(signal)),
            done = work => Ok(done),
        }
    }
}

/// The signals that we ignore, as a mask with signal 1 in bit 0; none where the system does not tell.
fn ignored() -> u64 {
    // In one read: each costs the kernel the whole text.
    let mut status = [0; 4096];
    let read = File::open("/proc/self/status").and_then(|mut file| file.read(&mut status)).unwrap_or(0);
    String::from_utf8_lossy(&status[..read])
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
