//! `capbox create`: a sandbox that outlives this command.

use std::ffi::OsString;

use capbox::api::AnyClient;
use capbox::capability::derived::Derived;
use capbox::{Error, ErrorKind, Registry, Result};

use crate::args::{self, CREATE_TTL, On, SpecArgs};
use crate::failure::{self, Outcome};
use crate::signals::Signals;
use crate::text;

/// Create a sandbox that outlives this command, and print its id
///
/// It lives for one hour unless `--ttl` says otherwise, or until `capbox rm`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    on: On,
    #[command(flatten)]
    spec: SpecArgs,
    /// A unique name: a sandbox of that name which is there already is used
    #[arg(long)]
    name: Option<String>,
    /// A label to find it by; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    label: Vec<String>,
    /// A variable for every command; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<OsString>,
}

pub(crate) async fn run(args: Args) -> Outcome {
    let client = args.on.client()?;
    would_stay(&client)?;
    let mut signals = Signals::catch()?;
    let mut spec = signals.unless(args.spec.prepared(&client)).await??;
    spec.ttl.get_or_insert(CREATE_TTL);
    spec.name.clone_from(&args.name);
    spec.labels = args::labels(&args.label)?;
    spec.env = args::env(&args.env)?;

    let sandbox = signals.unless(client.create(spec).into_future()).await??;
    signals.unless(sandbox.detach()).await??;
    if !sandbox.is_new() {
        failure::note("it was there already, and is as it was created");
    }
    text::line(sandbox.id())?;
    Ok(0)
}

/// Refuse a provider whose sandboxes end with this program: what it would print is the id of nothing.
fn would_stay(client: &AnyClient) -> Result<()> {
    if !Derived::of(client.capabilities().declared()).ends_with_process {
        return Ok(());
    }
    let registry = Registry::builtin();
    let others: Vec<_> = registry
        .tables()
        .filter(|table| !Derived::of(table).ends_with_process)
        .map(|table| table.provider)
        .collect();
    let message = format!("a sandbox of `{}` would end with this command", client.provider());
    let hint = "`capbox run` does all in one command";
    Err(Error::new(ErrorKind::NotSupported, message).with_hint(if others.is_empty() {
        hint.to_owned()
    } else {
        format!("{hint}; sandboxes of `{}` stay", others.join("`, `"))
    }))
}
