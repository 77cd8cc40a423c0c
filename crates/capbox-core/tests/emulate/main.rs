//! Emulations over real shells: `sh` as it is here, `bash`, and `busybox` with nothing but its own tools; with exact
//! output, and with merged streams that garble what is not text.
#![cfg(unix)]

#[macro_use]
mod providers;

/// Runs each of these tests, which take a place, on sandboxes of these providers, with all tools; with `bash` on the
/// first provider only.
macro_rules! everywhere {
    ([$First:ident $($Other:ident)*]: $($name:ident)*) => {
        everywhere! { @names [$First] [$First $($Other)*] $($name)* }
    };
    (@names $first:tt $all:tt $($name:ident)*) => { $( mod $name {
        everywhere! { @tools $name Bash bash $first }
        everywhere! { @tools $name Gnu gnu $all }
        everywhere! { @tools $name Busybox busybox $all }
    } )* };
    (@tools $name:ident $Tools:ident $tools:ident [$($Provider:ident)*]) => { mod $tools { $(
        #[tokio::test]
        #[allow(non_snake_case, reason = "named after the provider")]
        async fn $Provider() {
            if let Some(place) = crate::providers::$Provider::place(crate::providers::Tools::$Tools).await {
                super::super::$name(&place).await;
            }
        }
    )* } };
}

mod copies;
mod files;
mod forks;
mod liar;
mod looking;
mod wrap;
