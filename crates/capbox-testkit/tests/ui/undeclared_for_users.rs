//! What a provider does not have does not exist for its users: sub-APIs, options, rows of the client.

use capbox_core::capability::rows::HasPty;

include!("support/minimal.rs");

capbox_testkit::table_with! { P {
    Run: Native;
} }

#[async_trait]
impl Run<Exec> for Session {
    async fn run(&self, _: Exec) -> Result<Output> {
        Ok(Output::new(ExitStatus::Exited(0)))
    }
}

fn needs_terminals<K: HasPty>(_: &Sandbox<K>) {}

async fn user(sandbox: Sandbox<P>, client: Client<P>) {
    let _ = sandbox.pty();
    let _ = sandbox.exec("id").user("bob");
    let _ = client.create().gpu("T4");
    let _ = client.list().await;
    needs_terminals(&sandbox);
}

fn main() {}
