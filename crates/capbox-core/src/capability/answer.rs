//! A row's answer is a type: [`Native`], [`Emulated`], [`No`] or [`NotYet`].
//!
//! The type is both the declaration and the way to the implementation, so the two cannot drift: `Native` only
//! compiles where the session (or the client, or the request) implements the row, and declaring a row
//! unsupported only compiles where it is not implemented.

use std::marker::PhantomData;
use std::sync::Arc;

use super::{Capability, Level};
use crate::api::{ClientCore, Core, Sandbox};
use crate::provider::Table;

/// The provider has it and the adapter implements it.
pub enum Native {}

/// Built from other rows by `E`; the note beside it says what is lost.
pub struct Emulated<E>(PhantomData<E>);

/// The provider lacks it; the note says why.
pub enum No {}

/// The provider may have it; this adapter does not yet. The note says what is missing.
pub enum NotYet {}

mod sealed {
    pub trait Answer {}
    impl Answer for super::Native {}
    impl<E> Answer for super::Emulated<E> {}
    impl Answer for super::No {}
    impl Answer for super::NotYet {}
}

/// Whether an answer is the provider's (`No` included) or only says that this adapter is not that far.
#[doc(hidden)]
pub trait Adapted {
    const ADAPTED: bool;
}
impl Adapted for Native {
    const ADAPTED: bool = true;
}
impl<E> Adapted for Emulated<E> {
    const ADAPTED: bool = true;
}
impl Adapted for No {
    const ADAPTED: bool = true;
}
impl Adapted for NotYet {
    const ADAPTED: bool = false;
}

/// A row of the table.
pub trait Row: 'static {
    /// The row's id.
    const ID: Capability;
}

/// A row that is called: on the client, on a sandbox or on a process.
pub trait Api: Row {
    /// The object-safe trait of the row.
    type Dyn: ?Sized + Send + Sync + 'static;
}

/// A row that is an argument, of create or of exec.
pub trait Opt: Row {
    /// The argument's type.
    type Value;
}

/// `Self` (a session, or a provider for client rows) implements row `C` for provider `P`.
#[doc(hidden)]
pub trait Implements<C: Api, P>: Send + Sync + 'static {
    fn bind(this: Arc<Self>, core: &Arc<Core>) -> Arc<C::Dyn>;
}

/// An emulation of row `C`, written against the public typed API, exactly as a user would write it.
///
/// Bounds on `P` state what it stands on (`P: HasRun + HasInput`), so a provider without the prerequisite, or
/// emulations that stand on each other in a circle, do not compile.
pub trait Emulate<C: Api, P: Table> {
    /// The row's implementation over `sandbox`.
    fn emulate(sandbox: Sandbox<P>) -> Arc<C::Dyn>;
}

/// A request body with a place for option `C`.
pub trait Accept<C: Opt> {
    /// Put the value into the request.
    fn accept(&mut self, value: C::Value);
}

/// An option honoured by translating it into what the body `B` already has.
pub trait EmulateOption<C: Opt, B> {
    /// Translate the value into the request.
    fn apply(body: &mut B, value: C::Value);
}

/// An answer to a row that is called on a sandbox.
pub trait Slot<C: Api, P: Table>: sealed::Answer {
    #[doc(hidden)]
    const LEVEL: Level;
    #[doc(hidden)]
    fn bind(session: &Arc<P::Session>, core: &Arc<Core>) -> Option<Arc<C::Dyn>>;
}

/// An answer other than unsupported, to a row that is called on a sandbox.
pub trait Filled<C: Api, P: Table>: Slot<C, P> {}

impl<C: Api, P: Table<Session: Implements<C, P>>> Slot<C, P> for Native {
    const LEVEL: Level = Level::Native;
    fn bind(session: &Arc<P::Session>, core: &Arc<Core>) -> Option<Arc<C::Dyn>> {
        Some(Implements::<C, P>::bind(session.clone(), core))
    }
}

impl<C: Api, P: Table, E: Emulate<C, P>> Slot<C, P> for Emulated<E> {
    const LEVEL: Level = Level::Emulated;
    fn bind(_: &Arc<P::Session>, core: &Arc<Core>) -> Option<Arc<C::Dyn>> {
        Some(E::emulate(Sandbox::beneath(core)))
    }
}

impl<C: Api, P: Table<Session: Implements<C, P>>> Filled<C, P> for Native {}
impl<C: Api, P: Table, E: Emulate<C, P>> Filled<C, P> for Emulated<E> {}

/// Provider `Self` implements client row `C`.
#[doc(hidden)]
pub trait ImplementsClient<C: Api>: Sized {
    fn bind(this: &Arc<Self>, client: &Arc<ClientCore>) -> Arc<C::Dyn>;
}

/// An answer to a row that is called on the client. Such a row is native or not there.
pub trait ClientSlot<C: Api, P>: sealed::Answer {
    #[doc(hidden)]
    const LEVEL: Level;
    #[doc(hidden)]
    fn bind(provider: &Arc<P>, client: &Arc<ClientCore>) -> Option<Arc<C::Dyn>>;
}

/// An answer other than unsupported, to a row that is called on the client.
pub trait ClientFilled<C: Api, P>: ClientSlot<C, P> {}

impl<C: Api, P: ImplementsClient<C>> ClientSlot<C, P> for Native {
    const LEVEL: Level = Level::Native;
    fn bind(provider: &Arc<P>, client: &Arc<ClientCore>) -> Option<Arc<C::Dyn>> {
        Some(ImplementsClient::<C>::bind(provider, client))
    }
}

impl<C: Api, P: ImplementsClient<C>> ClientFilled<C, P> for Native {}

/// An answer to an option.
pub trait OptionSlot<C: Opt, B>: sealed::Answer {
    #[doc(hidden)]
    const LEVEL: Level;
    /// Put the value into the request; false where there is no place for it.
    #[doc(hidden)]
    fn set(body: &mut B, value: C::Value) -> bool;
}

/// An answer other than unsupported, to an option.
pub trait Honoured<C: Opt, B>: OptionSlot<C, B> {}

impl<C: Opt, B: Accept<C>> OptionSlot<C, B> for Native {
    const LEVEL: Level = Level::Native;
    fn set(body: &mut B, value: C::Value) -> bool {
        body.accept(value);
        true
    }
}

impl<C: Opt, B, E: EmulateOption<C, B>> OptionSlot<C, B> for Emulated<E> {
    const LEVEL: Level = Level::Emulated;
    fn set(body: &mut B, value: C::Value) -> bool {
        E::apply(body, value);
        true
    }
}

impl<C: Opt, B: Accept<C>> Honoured<C, B> for Native {}
impl<C: Opt, B, E: EmulateOption<C, B>> Honoured<C, B> for Emulated<E> {}

/// An answer to a row whose trait has not landed: nobody can implement it yet.
pub trait AbsentSlot: sealed::Answer {}

macro_rules! absent {
    ($($answer:ident)*) => { $(
        impl<C: Api, P: Table> Slot<C, P> for $answer {
            const LEVEL: Level = Level::Unsupported;
            fn bind(_: &Arc<P::Session>, _: &Arc<Core>) -> Option<Arc<C::Dyn>> {
                None
            }
        }
        impl<C: Api, P> ClientSlot<C, P> for $answer {
            const LEVEL: Level = Level::Unsupported;
            fn bind(_: &Arc<P>, _: &Arc<ClientCore>) -> Option<Arc<C::Dyn>> {
                None
            }
        }
        impl<C: Opt, B> OptionSlot<C, B> for $answer {
            const LEVEL: Level = Level::Unsupported;
            fn set(_: &mut B, _: C::Value) -> bool {
                false
            }
        }
        impl AbsentSlot for $answer {}
    )* };
}
absent! { No NotYet }

/// `Probe::<C, P>::IMPLEMENTS` is true if and only if the provider implements the row, whatever its table says:
/// an inherent constant is preferred to the trait's.
#[doc(hidden)]
pub struct Probe<C, P>(PhantomData<(C, P)>);

#[doc(hidden)]
pub struct ProbeClient<C, P>(PhantomData<(C, P)>);

#[doc(hidden)]
pub struct ProbeOption<C, B>(PhantomData<(C, B)>);

impl<C: Api, P: crate::provider::Backend<Session: Implements<C, P>>> Probe<C, P> {
    pub const IMPLEMENTS: bool = true;
}

impl<C: Api, P: ImplementsClient<C>> ProbeClient<C, P> {
    pub const IMPLEMENTS: bool = true;
}

impl<C: Opt, B: Accept<C>> ProbeOption<C, B> {
    pub const IMPLEMENTS: bool = true;
}

#[doc(hidden)]
pub trait Fallback {
    const IMPLEMENTS: bool = false;
}
impl<C, P> Fallback for Probe<C, P> {}
impl<C, P> Fallback for ProbeClient<C, P> {}
impl<C, B> Fallback for ProbeOption<C, B> {}
