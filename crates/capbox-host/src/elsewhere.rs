//! What there is on other operating systems: a clear answer.

use std::path::PathBuf;

use crate::{Error, Result};

/// How to open the host.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Config {
    /// Where sandboxes keep their files.
    pub state_dir: Option<PathBuf>,
}

/// This machine, which cannot run sandboxes.
#[derive(Debug)]
pub enum Host {}

impl Host {
    /// Always answers that this operating system is not supported.
    pub fn open(_config: Config) -> Result<Self> {
        Err(Error::Unsupported {
            what: "local sandboxes on this operating system".into(),
            hint: "use Linux, or another provider".into(),
        })
    }
}
