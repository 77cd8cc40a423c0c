//! Images, made ready ahead of the first create.

use super::client::Client;
use crate::capability::rows::HasPrepareImage;
use crate::capability::{Capability, cap};
use crate::error::Result;
use crate::spec::Image;

impl<K> Client<K> {
    /// Pull, load or build `image`, or the configured one where none is given, and tell `progress` how it goes;
    /// gives what to create from. There is no time limit but that of the caller.
    pub async fn prepare_image(
        &self,
        image: impl Into<Option<Image>>,
        mut progress: impl FnMut(Progress) + Send,
    ) -> Result<Image>
    where
        K: HasPrepareImage,
    {
        let api = self.core().api::<cap::PrepareImage>()?;
        let call = api.prepare_image(image.into(), &mut progress);
        self.core().op(Capability::PrepareImage.as_str(), call).await
    }
}

/// How a pull, load or build goes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// What it is about: a layer, a step of the build; empty for the whole.
    pub part: String,
    /// What happens, in the provider's words; a line of the build's log.
    pub text: String,
    /// Bytes done.
    pub done: Option<u64>,
    /// Bytes in all.
    pub total: Option<u64>,
}

impl Progress {
    /// A line about the whole.
    pub fn new(text: impl Into<String>) -> Self {
        Self { part: String::new(), text: text.into(), done: None, total: None }
    }
}
