//! What the one list of rows generates. Read [`rows`](super::rows) first; this file is its machinery.
//!
//! From each line come: the id, a marker type in `cap`, one associated type of [`Table`](crate::provider::Table)
//! to answer it, a `Has…` bound for users, a place in the vtable or in the spec, the lowering of options, and an
//! entry of `for_each_row!`.

/// See the module's documentation. The sections differ in what a row is:
///
/// * `client`: called on the client, through an object-safe trait that the provider implements;
/// * `call`: called on a sandbox, through an object-safe trait that the provider's session implements;
/// * `lowered`: called on a sandbox, through an object-safe trait for which this crate writes the adapter,
///   because the provider's own trait speaks of the provider's own types;
/// * `create`, `exec`: an option, with the type of its value;
/// * `later`: an id and an answer; the trait lands with the first implementation.
macro_rules! capabilities {
    (
        client { $( $(#[$kd:meta])* $kv:ident $K:ident $kfn:ident $KHas:ident: $KApi:path, $kid:literal, $kmsg:literal; )* }
        call { $( $(#[$ad:meta])* $av:ident $A:ident $afn:ident $AHas:ident: $AApi:path, $aid:literal, $amsg:literal; )* }
        lowered { $( $(#[$ld:meta])* $lv:ident $L:ident $lfn:ident $LHas:ident: $LApi:path, $lid:literal, $lmsg:literal; )* }
        create { $( $(#[$od:meta])* $ov:ident $O:ident $ofn:ident $OHas:ident: $OV:ty, $oid:literal, $omsg:literal; )* }
        exec { $( $(#[$xd:meta])* $xv:ident $X:ident $xfn:ident $XHas:ident: $XV:ty, $xid:literal, $xmsg:literal; )* }
        later { $( $(#[$zd:meta])* $zv:ident $Z:ident $zfn:ident $zkind:ident $zid:literal; )* }
    ) => {
        /// The id of a row. The text form is `group.name`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum Capability {
            $( $(#[$kd])* $K, )* $( $(#[$ad])* $A, )* $( $(#[$ld])* $L, )*
            $( $(#[$od])* $O, )* $( $(#[$xd])* $X, )* $( $(#[$zd])* $Z, )*
        }

        impl Capability {
            /// Every row.
            pub const ALL: &'static [Self] = &[
                $( Self::$K, )* $( Self::$A, )* $( Self::$L, )* $( Self::$O, )* $( Self::$X, )* $( Self::$Z, )*
            ];

            /// The id: `group.name`.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $( Self::$K => $kid, )* $( Self::$A => $aid, )* $( Self::$L => $lid, )*
                    $( Self::$O => $oid, )* $( Self::$X => $xid, )* $( Self::$Z => $zid, )*
                }
            }

            /// Where the row is asked for.
            pub const fn kind(self) -> $crate::capability::RowKind {
                use $crate::capability::RowKind;
                match self {
                    $( Self::$K => RowKind::Client, )*
                    $( Self::$A => RowKind::Call, )* $( Self::$L => RowKind::Call, )*
                    $( Self::$O => RowKind::CreateOption, )* $( Self::$X => RowKind::ExecOption, )*
                    $( Self::$Z => RowKind::$zkind, )*
                }
            }
        }

        /// One marker type per row, for bounds and implementations.
        pub mod cap {
            $( $(#[$kd])* pub enum $K {} )* $( $(#[$ad])* pub enum $A {} )* $( $(#[$ld])* pub enum $L {} )*
            $( $(#[$od])* pub enum $O {} )* $( $(#[$xd])* pub enum $X {} )* $( $(#[$zd])* pub enum $Z {} )*
        }

        $( impl Row for cap::$K { const ID: Capability = Capability::$K; }
           impl Api for cap::$K { type Dyn = dyn $KApi; } )*
        $( impl Row for cap::$A { const ID: Capability = Capability::$A; }
           impl Api for cap::$A { type Dyn = dyn $AApi; }
           impl<S: $AApi + 'static, P> Implements<cap::$A, P> for S {
               fn bind(this: Arc<Self>, _: &Arc<Core>) -> Arc<dyn $AApi> { this }
           } )*
        $( impl Row for cap::$L { const ID: Capability = Capability::$L; }
           impl Api for cap::$L { type Dyn = dyn $LApi; } )*
        $( impl Row for cap::$O { const ID: Capability = Capability::$O; }
           impl Opt for cap::$O { type Value = $OV; } )*
        $( impl Row for cap::$X { const ID: Capability = Capability::$X; }
           impl Opt for cap::$X { type Value = $XV; } )*
        $( impl Row for cap::$Z { const ID: Capability = Capability::$Z; } )*

        /// A provider's answers: one per row, no defaults. Written with [`table!`](crate::table).
        pub trait Table: Backend {
            $( $(#[$kd])* type $K: ClientSlot<cap::$K, Self>; )*
            $( $(#[$ad])* type $A: Slot<cap::$A, Self>; )*
            $( $(#[$ld])* type $L: Slot<cap::$L, Self>; )*
            $( $(#[$od])* type $O: OptionSlot<cap::$O, Self::Create>; )*
            $( $(#[$xd])* type $X: OptionSlot<cap::$X, Self::Exec>; )*
            $( $(#[$zd])* type $Z: AbsentSlot; )*
            /// The same answers as data.
            #[doc(hidden)]
            const ROWS: &'static Rows;
        }

        $( #[diagnostic::on_unimplemented(
               message = $kmsg, label = "not in this provider's capability table",
               note = "another provider has it; `capbox plan` tells which")]
           #[doc = concat!("Bound: the provider answers `", $kid, "`.")]
           pub trait $KHas {}
           #[diagnostic::do_not_recommend]
           impl<P: Table<$K: ClientFilled<cap::$K, P>>> $KHas for P {}
           impl $KHas for Any {} )*
        $( #[diagnostic::on_unimplemented(
               message = $amsg, label = "not in this provider's capability table",
               note = "another provider has it, or use `AnySandbox`, which asks at run time")]
           #[doc = concat!("Bound: the provider answers `", $aid, "`.")]
           pub trait $AHas {}
           #[diagnostic::do_not_recommend]
           impl<P: Table<$A: Filled<cap::$A, P>>> $AHas for P {}
           impl $AHas for Any {} )*
        $( #[diagnostic::on_unimplemented(
               message = $lmsg, label = "not in this provider's capability table",
               note = "another provider has it, or use `AnySandbox`, which asks at run time")]
           #[doc = concat!("Bound: the provider answers `", $lid, "`.")]
           pub trait $LHas {}
           #[diagnostic::do_not_recommend]
           impl<P: Table<$L: Filled<cap::$L, P>>> $LHas for P {}
           impl $LHas for Any {} )*
        $( #[diagnostic::on_unimplemented(
               message = $omsg, label = "this argument would be ignored, so it does not exist here")]
           #[doc = concat!("Bound: the provider honours the option `", $oid, "`.")]
           pub trait $OHas {}
           #[diagnostic::do_not_recommend]
           impl<P: Table<$O: Honoured<cap::$O, P::Create>>> $OHas for P {}
           impl $OHas for Any {} )*
        $( #[diagnostic::on_unimplemented(
               message = $xmsg, label = "this argument would be ignored, so it does not exist here")]
           #[doc = concat!("Bound: the provider honours the option `", $xid, "`.")]
           pub trait $XHas {}
           #[diagnostic::do_not_recommend]
           impl<P: Table<$X: Honoured<cap::$X, P::Exec>>> $XHas for P {}
           impl $XHas for Any {} )*

        impl<P: Table> Create<P> {
            $( $(#[$od])*
               pub fn $ofn(mut self, value: impl Into<$OV>) -> Self where P: $OHas {
                   self.spec.$ofn = Some(value.into());
                   self
               } )*
        }

        impl Spec {
            $( $(#[$od])*
               #[must_use]
               pub fn $ofn(mut self, value: impl Into<$OV>) -> Self {
                   self.$ofn = Some(value.into());
                   self
               } )*
        }

        /// What a sandbox is asked to be. Every field is an option row; an unset one is left to the provider.
        #[derive(Clone, Debug, Default)]
        #[non_exhaustive]
        pub struct Spec {
            $( $(#[$od])* pub $ofn: Option<$OV>, )*
            /// The weakest isolation that is good enough; checked against the provider's flag, never sent.
            pub require_isolation: Option<$crate::capability::flags::Isolation>,
        }

        impl Spec {
            /// The option rows that this spec asks for.
            pub fn asked(&self) -> Vec<Capability> {
                let mut asked = Vec::new();
                $( if self.$ofn.is_some() { asked.push(Capability::$O); } )*
                asked
            }

            /// The one lowering: every field is put into the request or refused.
            pub(crate) fn lower<P: Table>(self) -> Result<P::Create, NotSupported> {
                let Self { $( $ofn, )* require_isolation: _ } = self;
                let mut body = P::Create::default();
                $( if let Some(value) = $ofn
                    && !<P::$O as OptionSlot<cap::$O, P::Create>>::set(&mut body, value)
                {
                    P::ROWS.declared(Capability::$O)?;
                } )*
                Ok(body)
            }
        }

        /// Options of one exec. Every field is an option row; an unset one is left to the provider.
        #[derive(Clone, Debug, Default)]
        #[non_exhaustive]
        pub struct ExecOptions {
            $( $(#[$xd])* pub $xfn: Option<$XV>, )*
        }

        impl ExecOptions {
            /// The option rows that these options ask for, in order.
            pub(crate) fn asked(&self) -> impl Iterator<Item = Capability> + '_ {
                [ $( self.$xfn.is_some().then_some(Capability::$X), )* ].into_iter().flatten()
            }

            /// The one lowering: every field is put into the request or refused.
            pub(crate) fn lower<P: Table>(self, body: &mut P::Exec) -> Result<(), NotSupported> {
                let Self { $( $xfn, )* } = self;
                $( if let Some(value) = $xfn
                    && !<P::$X as OptionSlot<cap::$X, P::Exec>>::set(body, value)
                {
                    P::ROWS.declared(Capability::$X)?;
                } )*
                Ok(())
            }
        }

        /// Setters of exec options, shared by every way to start a command.
        macro_rules! exec_option_setters {
            () => { $( $(#[$xd])*
                pub fn $xfn(mut self, value: impl Into<$XV>) -> Self where K: $XHas {
                    self.options.$xfn = Some(value.into());
                    self
                } )* };
        }
        pub(crate) use exec_option_setters;

        /// The implementations of a provider's rows, erased.
        #[doc(hidden)]
        pub struct VTable {
            $( pub(crate) $kfn: fn(&Arc<ClientCore>) -> Option<Arc<dyn $KApi>>, )*
            $( pub(crate) $afn: fn(&Arc<Core>) -> Option<Arc<dyn $AApi>>, )*
            $( pub(crate) $lfn: fn(&Arc<Core>) -> Option<Arc<dyn $LApi>>, )*
            pub(crate) base: $crate::api::BaseVTable,
        }

        impl VTable {
            pub(crate) const fn of<P: Table>() -> Self {
                Self {
                    $( $kfn: |client| <P::$K as ClientSlot<cap::$K, P>>::bind(&client.provider::<P>(), client), )*
                    $( $afn: |core| <P::$A as Slot<cap::$A, P>>::bind(&core.session::<P>(), core), )*
                    $( $lfn: |core| <P::$L as Slot<cap::$L, P>>::bind(&core.session::<P>(), core), )*
                    base: $crate::api::BaseVTable::of::<P>(),
                }
            }
        }

        /// How a client row finds its entry in the vtable.
        pub(crate) trait ClientEntry: Api {
            fn entry(vt: &VTable, client: &Arc<ClientCore>) -> Option<Arc<Self::Dyn>>;
        }
        $( impl ClientEntry for cap::$K {
            fn entry(vt: &VTable, client: &Arc<ClientCore>) -> Option<Arc<Self::Dyn>> { (vt.$kfn)(client) }
        } )*

        /// How a sandbox row finds its entry in the vtable.
        pub(crate) trait Entry: Api {
            fn entry(vt: &VTable, core: &Arc<Core>) -> Option<Arc<Self::Dyn>>;
        }
        $( impl Entry for cap::$A {
            fn entry(vt: &VTable, core: &Arc<Core>) -> Option<Arc<Self::Dyn>> { (vt.$afn)(core) }
        } )*
        $( impl Entry for cap::$L {
            fn entry(vt: &VTable, core: &Arc<Core>) -> Option<Arc<Self::Dyn>> { (vt.$lfn)(core) }
        } )*

        #[doc(hidden)]
        pub const fn level_of<P: Table>(capability: Capability) -> Level {
            match capability {
                $( Capability::$K => <P::$K as ClientSlot<cap::$K, P>>::LEVEL, )*
                $( Capability::$A => <P::$A as Slot<cap::$A, P>>::LEVEL, )*
                $( Capability::$L => <P::$L as Slot<cap::$L, P>>::LEVEL, )*
                $( Capability::$O => <P::$O as OptionSlot<cap::$O, P::Create>>::LEVEL, )*
                $( Capability::$X => <P::$X as OptionSlot<cap::$X, P::Exec>>::LEVEL, )*
                $( Capability::$Z => Level::Unsupported, )*
            }
        }

        /// Calls `$m! { kind Row name; … }` with every row, so that what is generated elsewhere (the contract
        /// suite, front ends) is exhaustive by construction. Kinds: `client`, `call`, `create`, `exec`, `later`.
        #[macro_export]
        macro_rules! for_each_row {
            ($m:path) => { $m! {
                $( client $K $kfn; )* $( call $A $afn; )* $( call $L $lfn; )*
                $( create $O $ofn; )* $( exec $X $xfn; )* $( later $Z $zfn; )*
            } };
        }

        #[doc(hidden)]
        #[macro_export]
        macro_rules! __implements {
            $( ($P:ty, $K) => { $crate::capability::answer::ProbeClient::<$crate::cap::$K, $P>::IMPLEMENTS }; )*
            $( ($P:ty, $A) => { $crate::capability::answer::Probe::<$crate::cap::$A, $P>::IMPLEMENTS }; )*
            $( ($P:ty, $L) => { $crate::capability::answer::Probe::<$crate::cap::$L, $P>::IMPLEMENTS }; )*
            $( ($P:ty, $O) => { $crate::capability::answer::ProbeOption::<$crate::cap::$O, <$P as $crate::provider::Backend>::Create>::IMPLEMENTS }; )*
            $( ($P:ty, $X) => { $crate::capability::answer::ProbeOption::<$crate::cap::$X, <$P as $crate::provider::Backend>::Exec>::IMPLEMENTS }; )*
            $( ($P:ty, $Z) => { false }; )*
        }

        /// The answers to rows that `spi::v1` does not know.
        #[doc(hidden)]
        #[macro_export]
        macro_rules! __rows_after_v1 {
            () => {
                $( $crate::__after_v1! { $kv type $K = $crate::capability::answer::NotYet; } )*
                $( $crate::__after_v1! { $av type $A = $crate::capability::answer::NotYet; } )*
                $( $crate::__after_v1! { $lv type $L = $crate::capability::answer::NotYet; } )*
                $( $crate::__after_v1! { $ov type $O = $crate::capability::answer::NotYet; } )*
                $( $crate::__after_v1! { $xv type $X = $crate::capability::answer::NotYet; } )*
                $( $crate::__after_v1! { $zv type $Z = $crate::capability::answer::NotYet; } )*
            };
        }
    };
}

/// A provider's table: one line per row, in any order.
///
/// The answer is a type (`Native`, `Emulated<E>`, `No`, `NotYet`); the text says what is lost (emulated) or why
/// not (unsupported), and may say more about a native row. A missing row, `Native` without an implementation,
/// an unsupported row that is implemented, a missing reason and an emulated security row do not compile.
///
/// ```ignore
/// capbox_core::table! { Fly {
///     FilesRead: Emulated<FilesOverExec> = "reads with `cat`; slower, and needs a shell in the image";
///     Pty:       No                      = "the exec endpoint has no terminal";
///     Run:       Native;
///     // …
/// } }
/// ```
#[macro_export]
macro_rules! table {
    ( $P:ident { $( $(#[$attr:meta])* $Row:ident: $answer:ty $( = $note:literal )? ; )* } ) => {
        $crate::__table! { $P { $( $Row: $answer = concat!($($note)?); )* } {} }
    };
}

/// The same, for providers kept elsewhere: rows that are added after `spi::v1` are answered `NotYet`.
#[doc(hidden)]
#[macro_export]
macro_rules! __table_v1 {
    ( $P:ident { $( $(#[$attr:meta])* $Row:ident: $answer:ty $( = $note:literal )? ; )* } ) => {
        $crate::__table! { $P { $( $Row: $answer = concat!($($note)?); )* } { $crate::__rows_after_v1!{} } }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __table {
    ( $P:ident { $( $Row:ident: $answer:ty = $note:expr; )* } { $($rest:tt)* } ) => {
        impl $crate::provider::Table for $P {
            $( type $Row = $answer; )*
            $($rest)*
            const ROWS: &'static $crate::capability::Rows = {
                use $crate::capability::{Capability, Level, RowInfo, Rows};
                const fn note(capability: Capability) -> (&'static str, bool) {
                    match capability {
                        $( Capability::$Row => ($note, <$answer as $crate::capability::answer::Adapted>::ADAPTED), )*
                        #[allow(unreachable_patterns)]
                        _ => ("this provider is written for an older table, which does not have the row", false),
                    }
                }
                const COUNT: usize = Capability::ALL.len();
                const ROWS: [RowInfo; COUNT] = {
                    let mut rows = [RowInfo::new(Capability::ALL[0], Level::Native, "", true); COUNT];
                    let mut i = 0;
                    while i < COUNT {
                        let capability = Capability::ALL[i];
                        let (note, adapted) = note(capability);
                        rows[i] = RowInfo::new(
                            capability,
                            $crate::capability::rows::level_of::<$P>(capability),
                            note,
                            adapted,
                        );
                        i += 1;
                    }
                    rows
                };
                &Rows::new(
                    <$P as $crate::provider::Backend>::ID,
                    &ROWS,
                    <$P as $crate::provider::Backend>::FLAGS,
                    <$P as $crate::provider::Backend>::LIMITS,
                    <$P as $crate::provider::Backend>::CONSTRAINTS,
                )
            };
        }
        $( const _: () = {
            use $crate::capability::{Capability, Level, answer::*};
            #[allow(unused_imports)]
            use $crate::capability::answer::Fallback as _;
            let level = $crate::capability::rows::level_of::<$P>(Capability::$Row);
            let note: &str = $note;
            assert!(
                matches!(level, Level::Native) || !note.is_empty(),
                concat!("`", stringify!($P), "`: row `", stringify!($Row), "` is not native and gives no reason")
            );
            assert!(
                !matches!(level, Level::Unsupported) || !$crate::__implements!($P, $Row),
                concat!("`", stringify!($P), "`: row `", stringify!($Row), "` is declared unsupported, but is implemented")
            );
            assert!(
                !(matches!(level, Level::Emulated) && Capability::$Row.is_security()),
                concat!("`", stringify!($P), "`: row `", stringify!($Row), "` is a security control, which must not be emulated")
            );
        }; )*
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __after_v1 {
    (v1 $($row:tt)*) => {};
    ($later:ident $($row:tt)*) => { $($row)* };
}
