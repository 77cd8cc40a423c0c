//! Running to the end, by following.

use std::sync::Arc;

use async_trait::async_trait;

use crate::api::{Output, Sandbox, erased};
use crate::capability::answer::Emulate;
use crate::capability::cap;
use crate::capability::rows::{ExecOptions, HasStreaming};
use crate::error::Result;
use crate::provider::Table;
use crate::spec::Command;

/// `exec.run` over `exec.streaming`: the events are collected to the end.
///
/// # Loss
///
/// "collected from a stream; a connection that breaks loses the output so far"
pub enum RunByStreaming {}

impl<P: Table + HasStreaming> Emulate<cap::Run, P> for RunByStreaming {
    fn emulate(sandbox: Sandbox<P>) -> Arc<dyn erased::Run> {
        Arc::new(Collecting(sandbox))
    }
}

struct Collecting<P>(Sandbox<P>);

#[async_trait]
impl<P: Table + HasStreaming> erased::Run for Collecting<P> {
    async fn run(&self, command: Command, options: ExecOptions) -> Result<Output> {
        let Command { program, max_output } = command;
        self.0.spawn(program).with_options(options).await?.output_within(max_output).await
    }
}
