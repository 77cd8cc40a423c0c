//! Emulations must not stand on each other in a circle.

use std::sync::Arc;

use capbox_core::capability::rows::{HasKillProcess, HasSignal};

include!("support/minimal.rs");

pub struct KillBySignal;

impl<P: Table + HasSignal> Emulate<cap::KillProcess, P> for KillBySignal {
    fn emulate(_: Sandbox<P>) -> Arc<dyn KillProcess> {
        unimplemented!()
    }
}

pub struct SignalByKill;

impl<P: Table + HasKillProcess> Emulate<cap::Signal, P> for SignalByKill {
    fn emulate(_: Sandbox<P>) -> Arc<dyn Signal> {
        unimplemented!()
    }
}

capbox_testkit::table_with! { P {
    KillProcess: Emulated<KillBySignal> = "by a signal";
    Signal: Emulated<SignalByKill> = "by a kill";
} }

fn main() {}
