//! Lying providers: each is honest but for one lie, and the suite must catch exactly that.
//!
//! The base shows first that an honest provider passes: a suite that fails everybody catches nothing. It runs real
//! processes, found and killed by `/proc`, and so is for Linux.

#[cfg(target_os = "linux")]
mod base;
#[cfg(target_os = "linux")]
mod files;
#[cfg(target_os = "linux")]
mod jobs;
#[cfg(target_os = "linux")]
mod liar;
#[cfg(target_os = "linux")]
mod lies;

fn main() {
    #[cfg(target_os = "linux")]
    lies::main();
}
