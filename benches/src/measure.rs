//! How a bench measures, and what it reports.

use std::time::{Duration, Instant};

/// A bench: a name and a way to run it.
pub(crate) struct Bench {
    pub(crate) name: &'static str,
    body: Box<dyn FnOnce() -> Result<Outcome, String>>,
}

/// What a bench found.
pub(crate) enum Outcome {
    /// The target is met, or missed by less than twice.
    Within(String),
    /// The target is missed by more than twice.
    Beyond(String),
    /// The peer is not there.
    Skipped(String),
}

impl Bench {
    pub(crate) fn new(name: &'static str, body: impl FnOnce() -> Result<Outcome, String> + 'static) -> Self {
        Self { name, body: Box::new(body) }
    }

    pub(crate) fn run(self) -> Result<Outcome, String> {
        (self.body)()
    }
}

/// The times of one side.
pub(crate) struct Times(Vec<Duration>);

impl Times {
    fn quantile(&self, part: f64) -> Duration {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
        let at = ((self.0.len() - 1) as f64 * part).round() as usize;
        self.0[at]
    }

    fn median(&self) -> Duration {
        self.quantile(0.5)
    }
}

/// Run both sides in turns, `rounds` times after a warm-up, each side first in half of the rounds.
pub(crate) fn in_turns(
    rounds: usize,
    mut ours: impl FnMut() -> Result<Duration, String>,
    mut peer: impl FnMut() -> Result<Duration, String>,
) -> Result<(Times, Times), String> {
    let (mut a, mut b) = (Vec::with_capacity(rounds), Vec::with_capacity(rounds));
    for round in 0..rounds + 3 {
        let (one, other) = if round % 2 == 0 {
            let one = ours()?;
            (one, peer()?)
        } else {
            let other = peer()?;
            (ours()?, other)
        };
        if round >= 3 {
            a.push(one);
            b.push(other);
        }
    }
    a.sort_unstable();
    b.sort_unstable();
    Ok((Times(a), Times(b)))
}

/// The time that `body` takes.
pub(crate) fn timed(body: impl FnOnce() -> Result<(), String>) -> Result<Duration, String> {
    let start = Instant::now();
    body()?;
    Ok(start.elapsed())
}

/// Judge by time: less is better, `target` is the greatest ratio to the peer.
pub(crate) fn at_most(target: f64, (ours, peer): &(Times, Times)) -> Outcome {
    let ratio = ours.median().as_secs_f64() / peer.median().as_secs_f64();
    judge(ratio <= target * 2.0, ours, peer, ratio, &format!("≤ {target}×"))
}

/// Judge by speed: more is better, `target` is the least ratio to the peer.
pub(crate) fn at_least(target: f64, (ours, peer): &(Times, Times)) -> Outcome {
    let ratio = peer.median().as_secs_f64() / ours.median().as_secs_f64();
    judge(ratio >= target / 2.0, ours, peer, ratio, &format!("≥ {target}×"))
}

fn judge(within: bool, ours: &Times, peer: &Times, ratio: f64, target: &str) -> Outcome {
    let side = |t: &Times| format!("{:.0?} / {:.0?}", t.median(), t.quantile(0.95));
    let line = format!("{:>24} {:>24} {ratio:>7.2}× {target:>8}", side(ours), side(peer));
    if within { Outcome::Within(line) } else { Outcome::Beyond(line) }
}
