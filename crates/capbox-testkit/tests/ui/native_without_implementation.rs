//! `Native` is only for what the session implements.

include!("support/minimal.rs");

capbox_testkit::table_with! { P {
    KillProcess: Native;
} }

fn main() {}
