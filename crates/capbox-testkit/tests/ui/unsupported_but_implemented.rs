//! What is implemented must not be declared unsupported: a call, and an option.

include!("support/minimal.rs");

#[async_trait]
impl KillProcess for Session {
    async fn kill(&self, _: &ProcessId) -> Result<Killed> {
        Ok(Killed::Stopped)
    }
}

impl Accept<cap::Gpu> for Create {
    fn accept(&mut self, _: Gpu) {}
}

capbox_testkit::table_with! { P {
    KillProcess: No = "it cannot";
    Gpu: NotYet = "not written";
} }

fn main() {}
