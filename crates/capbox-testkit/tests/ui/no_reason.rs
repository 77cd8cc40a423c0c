//! Every answer but native says why.

include!("support/minimal.rs");

capbox_testkit::table_with! { P {
    Pty: No;
    Gpu: NotYet;
} }

fn main() {}
