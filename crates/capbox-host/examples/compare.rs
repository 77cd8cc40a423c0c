//! How fast it is, beside what else does the like: `cargo run --release --example compare [ROUNDS]`.
//!
//! Everything is run in turns, so that a busy machine disturbs all alike; compare the ratios, not the times. Needs
//! `bwrap` for the comparison of creation.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use capbox_host::{Config, ExecRequest, Guest, Host, Launch, Result};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let rounds = std::env::args().nth(1).and_then(|rounds| rounds.parse().ok()).unwrap_or(300);
    let host = Host::open(Config::default())?;
    exec(&host, rounds).await?;
    create(&host, rounds).await
}

async fn exec(host: &Host, rounds: usize) -> Result<()> {
    let guest = host.launch(Launch::default()).await?;
    let (mut inside, mut outside) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let start = Instant::now();
        assert_eq!(run_true(&guest).await?, Some(0));
        inside.push(start.elapsed());

        let start = Instant::now();
        let output = Command::new("/usr/bin/true").stdin(Stdio::null()).output();
        outside.push(start.elapsed());
        assert!(output.is_ok_and(|output| output.status.success()));
    }
    println!("exec in a living sandbox   {}", summary(&mut inside));
    println!("posix_spawn                {}", summary(&mut outside));
    println!("                           {:.2}x", ratio(&inside, &outside));
    guest.destroy().await
}

/// Runs a command to its end, and answers with its exit code.
async fn run_true(guest: &Guest) -> Result<Option<i32>> {
    let mut job = guest.exec(ExecRequest::new(["/usr/bin/true"])).await?;
    while job.next().await?.is_some() {}
    Ok(job.wait().await?.code)
}

async fn create(host: &Host, rounds: usize) -> Result<()> {
    let (mut made, mut used, mut ended, mut bwrap) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let start = Instant::now();
        let guest = host.launch(Launch::default()).await?;
        made.push(start.elapsed());
        run_true(&guest).await?;
        used.push(start.elapsed());
        let start = Instant::now();
        guest.destroy().await?;
        ended.push(start.elapsed());

        let start = Instant::now();
        let arguments = "--ro-bind / / --unshare-all --dev /dev --proc /proc true";
        let status = Command::new("bwrap").args(arguments.split(' ')).status();
        bwrap.push(start.elapsed());
        assert!(status.is_ok_and(|status| status.success()), "run bwrap");
    }
    println!("create                     {}", summary(&mut made));
    println!("create and first exec      {}", summary(&mut used));
    println!("destroy                    {}", summary(&mut ended));
    println!("bwrap                      {}", summary(&mut bwrap));
    println!("                           {:.2}x, {:.2}x", ratio(&made, &bwrap), ratio(&used, &bwrap));
    Ok(())
}

fn summary(times: &mut [Duration]) -> String {
    times.sort();
    let at = |part: usize| times[times.len() * part / 100].as_micros();
    format!("{:>6} us (p50) {:>6} us (p95)", at(50), at(95))
}

fn ratio(ours: &[Duration], theirs: &[Duration]) -> f64 {
    ours[ours.len() / 2].as_secs_f64() / theirs[theirs.len() / 2].as_secs_f64()
}
