//! Builds the guest program, which the library embeds.
//!
//! The program is one dependency-free `no_std` crate root, so a single call of the compiler that is already
//! building this crate is enough: no second `cargo`, no network, no extra target.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rustc-check-cfg=cfg(guest_program)");

    let out = PathBuf::from(var("OUT_DIR")).join("capbox-guest");
    let supported = var("CARGO_CFG_TARGET_OS") == "linux"
        && matches!(var("CARGO_CFG_TARGET_ARCH").as_str(), "x86_64" | "aarch64");
    if !supported {
        // The library still compiles elsewhere (the protocol is portable); there is just nothing to run.
        return;
    }

    let mut rustc = Command::new(var("RUSTC"));
    rustc
        .args(PROGRAM)
        .args(["--target", &var("TARGET")])
        .args(["-C", "opt-level=s", "-C", "panic=abort", "-C", "lto=fat", "-C", "codegen-units=1"])
        .args(["-C", "strip=symbols", "-C", "relocation-model=static", "-C", "overflow-checks=on"])
        .args(["-C", "link-arg=-nostdlib", "-C", "link-arg=-nostartfiles", "-C", "link-arg=-static"])
        .args(["-C", "link-arg=-Wl,--build-id=none,-z,noexecstack,-z,max-page-size=4096"])
        .args(["-D", "warnings"])
        .arg("-o")
        .arg(&out)
        .arg("src/program/main.rs");
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.arg(format!("-Clinker={linker}"));
    }
    let status = rustc.status().unwrap_or_else(|error| panic!("cannot run {rustc:?}: {error}"));
    assert!(status.success(), "building the guest program failed: {rustc:?}");

    println!("cargo::rustc-cfg=guest_program");
    lint();
}

/// Shows the program to clippy when that is who builds. It sees only what cargo compiles; and cargo keeps what the two build
/// apart, so that an ordinary build does without.
fn lint() {
    let wrapper = env::var_os("RUSTC_WORKSPACE_WRAPPER").map(PathBuf::from);
    let Some(clippy) = wrapper.filter(|path| path.file_stem().is_some_and(|name| name == "clippy-driver"))
    else {
        return;
    };
    let mut linting = Command::new(clippy);
    linting
        .arg(var("RUSTC"))
        .args(PROGRAM)
        .args(["--target", &var("TARGET"), "-C", "panic=abort", "-D", "warnings", "--emit", "metadata", "-o"])
        .arg(PathBuf::from(var("OUT_DIR")).join("capbox-guest.rmeta"))
        .arg("src/program/main.rs");
    let status = linting.status().unwrap_or_else(|error| panic!("cannot run {linting:?}: {error}"));
    assert!(status.success(), "the guest program has lints, see above");
}

const PROGRAM: [&str; 6] =
    ["--crate-name", "capbox_guest_program", "--crate-type", "bin", "--edition", "2024"];

fn var(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name} for build scripts"))
}
