//! Tables for tests, in short.

/// A table that answers every row `No`, but for those that are given.
///
/// For tests of the table itself and for providers in tests; a real provider answers each row by hand. An answer
/// reads as in [`capbox_core::table!`], a filled row may go without a note.
///
/// ```ignore
/// capbox_testkit::table_with! { Example { Run: Native; Pty: NotYet = "not written"; } }
/// ```
#[macro_export]
macro_rules! table_with {
    ($P:ident { $($given:tt)* }) => {
        $crate::__table_with! { $P { $($given)* } }
    };
}

/// Names of rows as they come from the list; the rest is not needed here.
macro_rules! rows {
    ($( $kind:ident $Row:ident $name:ident; )*) => {
        picking! { ($) $($Row)* }
    };
}

/// One arm per row that finds the row among those that are given. `$d` is a dollar sign.
macro_rules! picking {
    (($d:tt) $($Row:ident)*) => {
        #[doc(hidden)]
        #[macro_export]
        macro_rules! __table_with {
            ($d P:ident $d given:tt) => {
                $crate::__core::__table! { $d P {
                    $( $Row: $crate::__answer!($Row $d given) = $crate::__note!($Row $d given); )*
                } {} }
            };
        }

        #[doc(hidden)]
        #[macro_export]
        macro_rules! __answer {
            $( ($Row { $Row: $d answer:ty $d(= $d note:literal)?; $d($d rest:tt)* }) => { $d answer }; )*
            ($d Row:ident { $d Other:ident: $d answer:ty $d(= $d note:literal)?; $d($d rest:tt)* }) => {
                $crate::__answer!($d Row { $d($d rest)* })
            };
            ($d Row:ident {}) => { $crate::__core::capability::answer::No };
        }

        #[doc(hidden)]
        #[macro_export]
        macro_rules! __note {
            $( ($Row { $Row: $d answer:ty $d(= $d note:literal)?; $d($d rest:tt)* }) => {
                concat!($d($d note)?)
            }; )*
            ($d Row:ident { $d Other:ident: $d answer:ty $d(= $d note:literal)?; $d($d rest:tt)* }) => {
                $crate::__note!($d Row { $d($d rest)* })
            };
            ($d Row:ident {}) => { "the example does without" };
        }
    };
}
capbox_core::for_each_row!(rows);
