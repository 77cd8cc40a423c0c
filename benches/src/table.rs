//! The gate: what asking costs.

use std::hint::black_box;
use std::time::{Duration, Instant};

use capbox::memory::Memory;
use capbox::prelude::*;

use crate::measure::{Bench, Outcome, at_most, in_turns};

const CALLS: u32 = 100_000;

pub(crate) fn benches() -> Vec<Bench> {
    vec![Bench::new("can", || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
        let sandbox =
            runtime.block_on(async { Memory::new().create().await }).map_err(|e| e.to_string())?.into_any();
        let ask = || {
            for capability in [Capability::FilesRead, Capability::Pty] {
                black_box(sandbox.can(black_box(capability)));
                black_box(sandbox.require(black_box(capability)).is_ok());
            }
        };
        let allocated = allocation_counter::measure(ask).count_total;
        if allocated != 0 {
            return Ok(Outcome::Beyond(format!("asking allocated {allocated} times; it must not allocate")));
        }
        let per_call = || {
            let start = Instant::now();
            for _ in 0..CALLS {
                ask();
            }
            Ok(start.elapsed() / CALLS / 4)
        };
        Ok(at_most(1.0, &in_turns(20, per_call, || Ok(Duration::from_nanos(20)))?))
    })]
}
