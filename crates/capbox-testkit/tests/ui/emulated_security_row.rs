//! A security control is native or it is not there.

include!("support/minimal.rs");

pub struct Pretend;

impl EmulateOption<cap::EgressControl, Create> for Pretend {
    fn apply(_: &mut Create, _: DenyEgress) {}
}

capbox_testkit::table_with! { P {
    EgressControl: Emulated<Pretend> = "by pretending";
} }

fn main() {}
