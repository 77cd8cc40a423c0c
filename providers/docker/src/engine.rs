//! The engine: what both sides speak is settled when it is first asked for something.

use std::time::Duration;

use bollard::{ClientVersion, Docker as Api};
use capbox_core::provider::{Error, ErrorKind, Result};
use tokio::sync::OnceCell;

use crate::config::Config;
use crate::error::from_engine;
use crate::exec::hijack::Address;

/// The oldest Engine API that this provider is written for: that of Docker 20.10.
const OLDEST: ClientVersion = ClientVersion { major_version: 1, minor_version: 41 };
/// The API from which a folder of a volume can be mounted.
pub(crate) const SUB_PATH_SINCE: ClientVersion = ClientVersion { major_version: 1, minor_version: 45 };

/// A request may take as long as its caller lets it: pulls and builds take minutes.
const NO_LIMIT_OF_ITS_OWN: Duration = Duration::from_hours(24);

/// An engine by its address.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) raw: Api,
    /// For connections that are given up to the bytes of a process.
    pub(crate) address: Address,
    settled: OnceCell<()>,
}

impl Engine {
    /// Sends nothing.
    pub(crate) fn of(config: &Config) -> Result<Self> {
        let address = config.address()?;
        let raw = Api::connect_with_host(&address).map_err(|e| from_engine(e, "the engine"))?;
        let address = Address::parse(&address)?;
        Ok(Self { address, raw: raw.with_timeout(NO_LIMIT_OF_ITS_OWN), settled: OnceCell::new() })
    }

    /// The client, once it speaks a version that both know.
    pub(crate) async fn api(&self) -> Result<&Api> {
        let settle = async || {
            // All clones share the version.
            let api = self.raw.clone().negotiate_version().await;
            let version = api.map_err(|error| from_engine(error, "the engine"))?.client_version();
            if version < OLDEST {
                let message =
                    format!("the engine speaks API {version} only, and at least {OLDEST} is needed");
                return Err(
                    Error::new(ErrorKind::NotSupported, message).with_hint("use Docker 20.10 or later")
                );
            }
            Ok(())
        };
        self.settled.get_or_try_init(settle).await?;
        Ok(&self.raw)
    }
}
