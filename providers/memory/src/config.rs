//! The configuration of the memory provider, and the keys of its URI.

use capbox_core::provider::{Error, Result, Uri, parse_size};

/// How to make a client of the memory provider.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The size of each sandbox's disk in bytes, where its spec says nothing. By default 256 MiB.
    pub disk: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self { disk: 256 << 20 }
    }
}

impl Config {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// With disks of this size in bytes.
    #[must_use]
    pub fn with_disk(mut self, bytes: u64) -> Self {
        self.disk = bytes;
        self
    }

    /// From `memory://?disk=SIZE`.
    pub(crate) fn from_uri(mut uri: Uri) -> Result<Self> {
        uri.no_target()?;
        let disk = uri.take("disk");
        uri.finish()?;
        match disk {
            None => Ok(Self::new()),
            Some(size) => parse_size(&size).map(|bytes| Self::new().with_disk(bytes)).map_err(|error| {
                Error::invalid_argument("uri", format!("the key `disk`: {}", error.message()))
            }),
        }
    }
}
