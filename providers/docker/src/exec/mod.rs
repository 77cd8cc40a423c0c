//! Running code in a container, by the guest, which is process 1 inside ([`guest`]).
//!
//! That begins with a connection that the engine gives up to the bytes of a process ([`hijack`]), where what the process
//! prints comes in frames ([`frames`]).

mod frames;
pub(crate) mod guest;
pub(crate) mod hijack;
mod request;

pub use self::request::Exec;
