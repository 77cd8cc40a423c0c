//! The configuration of the local provider, and the keys of its URI.

use std::path::PathBuf;

use capbox_core::provider::{Result, Uri};

/// How to make a client of the local provider.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Config {
    /// Where sandboxes keep their files. By default `$CAPBOX_STATE_DIR`; else for root `/var/lib/capbox`, and for
    /// others `$XDG_STATE_HOME/capbox` or `~/.local/state/capbox`.
    pub state: Option<PathBuf>,
}

impl Config {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// With this state folder.
    #[must_use]
    pub fn with_state(mut self, folder: impl Into<PathBuf>) -> Self {
        self.state = Some(folder.into());
        self
    }

    /// From `local://?state=FOLDER`.
    pub(crate) fn from_uri(mut uri: Uri) -> Result<Self> {
        uri.no_target()?;
        let state = uri.take("state").map(PathBuf::from);
        uri.finish()?;
        Ok(Self { state })
    }
}
