//! The example of the README.

use capbox::prelude::*;

#[tokio::main]
async fn main() -> capbox::Result<()> {
    let client = Client::from_uri("local://")?;
    let sandbox = client.create(Spec::new().ttl(mins(10)).network(Network::deny())).await?;
    // At run time what a provider may lack is an `Option`.
    if let Some(files) = sandbox.files() {
        files.write("main.py", "import os; print(os.environ['A'])").await?;
    }
    let out = sandbox.exec("python3 main.py").env("A", "1").timeout(secs(30)).await?;
    // A timeout, a signal, a non-zero exit are data, not errors.
    assert_eq!(out.status, ExitStatus::Exited(0));
    assert_eq!(out.stdout.text(), "1\n");
    sandbox.require(Capability::Pty)?; // or a refusal that says why

    // On a typed handle there is no `Option`: what the table lacks does not compile.
    let local = capbox::local::Local::new()?;
    let sandbox = local.create().await?;
    let mut process = sandbox.spawn("echo one; sleep 1; echo two").await?;
    while let Some(event) = process.next().await? {
        println!("{event:?}");
    }
    sandbox.destroy().await
}
