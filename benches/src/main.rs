//! Measures capbox against its peers, side by side in one run.
//!
//! Machines are shared and noisy, so every figure is a ratio of two things that ran in turns. A bench names its
//! peer and its target; a miss of more than twice the target fails the run.
//!
//! `cargo xtask bench [NAME…]` builds what is needed and runs this.

mod docker;
mod local;
mod measure;
mod program;
mod table;

use std::process::ExitCode;

use measure::{Bench, Outcome};

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let Some(capbox) = args.next() else {
        eprintln!("usage: capbox-bench PATH-OF-CAPBOX [NAME…]");
        return ExitCode::from(2);
    };
    let wanted: Vec<String> = args.collect();
    let benches: Vec<Bench> =
        [program::benches(&capbox), local::benches(), docker::benches(), table::benches()]
            .into_iter()
            .flatten()
            .collect();
    if let Some(unknown) = wanted.iter().find(|name| !benches.iter().any(|bench| bench.name == **name)) {
        let names: Vec<&str> = benches.iter().map(|bench| bench.name).collect();
        eprintln!("error: there is no bench `{unknown}`; there are `{}`", names.join("`, `"));
        return ExitCode::from(2);
    }

    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    println!(
        "{:<12} {:>24} {:>24} {:>8} {:>8}",
        "bench", "capbox p50 / p95", "peer p50 / p95", "ratio", "target"
    );
    for bench in benches.into_iter().filter(|b| wanted.is_empty() || wanted.iter().any(|name| name == b.name))
    {
        let name = bench.name;
        match bench.run() {
            Ok(Outcome::Within(line)) => {
                passed += 1;
                println!("{name:<12} {line}");
            }
            Ok(Outcome::Beyond(line)) => {
                failed += 1;
                println!("{name:<12} {line}  <- more than twice the target");
            }
            Ok(Outcome::Skipped(reason)) => {
                skipped += 1;
                println!("{name:<12} skipped: {reason}");
            }
            Err(message) => {
                failed += 1;
                println!("{name:<12} failed: {message}");
            }
        }
    }
    println!("\n{passed} passed, {failed} failed, {skipped} skipped");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
