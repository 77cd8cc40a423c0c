//! To be filled.
use capbox_core::provider::*;
#[derive(Debug)]
pub struct Exec(Command);
impl From<Command> for Exec {
    fn from(command: Command) -> Self {
        Self(command)
    }
}
