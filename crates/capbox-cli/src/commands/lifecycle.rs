//! `capbox stop`, `start`, `pause`, `resume`: sandboxes that stay, while they do not run.

use capbox::api::AnySandbox;
use capbox::{Capability, Result};

use crate::args::On;
use crate::failure::{self, Failure, OWN_FAILURE, Outcome};

/// What is done to sandboxes.
#[derive(Clone, Copy)]
pub(crate) enum Change {
    Stop,
    Start,
    Pause,
    Resume,
}

/// Which sandboxes
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    on: On,
    /// The sandboxes
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
}

pub(crate) async fn run(change: Change, args: Args) -> Outcome {
    let client = args.on.client()?;
    client
        .require(match change {
            Change::Stop | Change::Start => Capability::Stop,
            Change::Pause | Change::Resume => Capability::Pause,
        })
        .map_err(capbox::Error::from)?;
    let mut failed = false;
    for id in &args.ids {
        let changed = async { change.of(&args.on.connect(id).await?).await };
        if let Err(error) = changed.await {
            failure::tell(&error);
            failed = true;
        }
    }
    if failed { Err(Failure::Told(OWN_FAILURE)) } else { Ok(0) }
}

impl Change {
    async fn of(self, sandbox: &AnySandbox) -> Result<()> {
        match self {
            Self::Stop => sandbox.stop().await,
            Self::Start => sandbox.start().await,
            Self::Pause => sandbox.pause().await,
            Self::Resume => sandbox.resume().await,
        }
    }
}
