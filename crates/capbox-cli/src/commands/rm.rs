//! `capbox rm`: destroy sandboxes.

use capbox::{Error, ErrorKind};

use crate::args::{self, On};
use crate::failure::{self, Failure, OWN_FAILURE, Outcome};

/// Destroy sandboxes, with everything that runs in them
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    on: On,
    /// The sandboxes
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
}

pub(crate) async fn run(args: Args) -> Outcome {
    let client = args.on.client()?;
    let mut failed = false;
    for id in &args.ids {
        let destroyed = client.destroy(id).await.and_then(|was_there| {
            if was_there { Ok(()) } else { Err(no_sandbox(id).at(client.provider(), "destroy")) }
        });
        if let Err(error) = destroyed {
            failure::tell(&error);
            failed = true;
        }
    }
    if failed { Err(Failure::Told(OWN_FAILURE)) } else { Ok(0) }
}

fn no_sandbox(id: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no sandbox `{id}`")).with_hint(args::LISTED)
}
