//! An emulation stands on other rows, which must be there.

use capbox_core::emulate::Polling;

include!("support/minimal.rs");

capbox_testkit::table_with! { P {
    FilesWatch: Emulated<Polling> = "by looking again and again";
} }

fn main() {}
