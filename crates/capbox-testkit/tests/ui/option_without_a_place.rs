//! A native option needs a place in the request.

include!("support/minimal.rs");

capbox_testkit::table_with! { P {
    Gpu: Native;
} }

fn main() {}
