//! The drill of the provider interface: what happens to whom when capbox gets new rows.
//!
//! In a copy of the core two rows are added, as a later version would add them. Then a provider kept elsewhere must
//! still compile and answer both as not adapted; a provider of the workspace must not compile before it answers
//! them; and neither must the contract suite before the one that can be called has a contract.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

/// A row without a trait, and one that is called.
const LATER: &str = "        /// A drill.\n        v2 Drill drill Call \"meta.drill\";\n";
const CALL: &str = "        /// A drill that is called.\n        v2 DrillCall drill_call HasDrillCall: \
    spi::DrillCall, \"meta.drill-call\", \"`{Self}` does not support `meta.drill-call`\";\n";
const TRAIT: &str = "\n/// `meta.drill-call`.\n#[async_trait]\npub trait DrillCall: Send + Sync {\n    \
    /// Drill.\n    async fn drill(&self) -> Result<()>;\n}\n";

/// The program that says how the provider answers the new rows.
const ASKING: &str = r#"use capbox_core::Capability;
use capbox_core::provider::v1::Table;

fn main() {
    for row in [Capability::Drill, Capability::DrillCall] {
        let refusal = external_provider::Shelf::ROWS.declared(row).unwrap_err();
        println!("{}: {}", refusal.capability, refusal.refusal.as_str());
    }
}
"#;

/// What the drill showed.
#[derive(Clone, Debug)]
pub struct Shown {
    /// How the external provider answers the new rows.
    pub answers: String,
    /// What the compiler says to a provider of the workspace.
    pub in_workspace: String,
    /// What the compiler says to the contract suite.
    pub suite: String,
}

/// Run the drill on a copy of the workspace at `root`, which must hold `examples/external-provider`. Compiles in
/// a folder of its own below the target folder.
pub fn drill(root: &Path) -> io::Result<Shown> {
    let copy = tempfile::Builder::new().prefix("capbox-drill-").tempdir()?;
    let at = copy.path();
    for folder in ["crates/capbox-core", "crates/capbox-testkit", "examples/external-provider"] {
        copy_folder(&root.join(folder), &at.join(folder))?;
    }
    let members = "members = [\"crates/capbox-core\", \"crates/capbox-testkit\"]";
    let manifest = fs::read_to_string(root.join("Cargo.toml"))?;
    let line = manifest.lines().find(|line| line.starts_with("members = "));
    let line = line.ok_or_else(|| io::Error::other("the workspace names no members on one line"))?;
    fs::write(at.join("Cargo.toml"), manifest.replace(line, members))?;
    for lock in ["Cargo.lock", "rust-toolchain.toml"] {
        if root.join(lock).exists() {
            fs::copy(root.join(lock), at.join(lock))?;
        }
    }

    insert(&at.join("crates/capbox-core/src/capability/rows.rs"), "    later {\n", LATER)?;
    insert(&at.join("crates/capbox-core/src/capability/rows.rs"), "    call {\n", CALL)?;
    let provider = at.join("crates/capbox-core/src/provider.rs");
    fs::write(&provider, fs::read_to_string(&provider)? + TRAIT)?;

    let external = at.join("examples/external-provider");
    fs::create_dir_all(external.join("src/bin"))?;
    fs::write(external.join("src/bin/drill.rs"), ASKING)?;
    let answers = cargo(root, &external, &["run", "--quiet", "--bin", "drill"], true)?;

    let table = external.join("src/table.rs");
    let text = fs::read_to_string(&table)?;
    fs::write(&table, text.replace("v1::table!", "capbox_core::table!"))?;
    let in_workspace = cargo(root, &external, &["check", "--quiet", "--lib"], false)?;
    let suite = cargo(root, at, &["check", "--quiet", "-p", "capbox-testkit"], false)?;
    Ok(Shown { answers, in_workspace, suite })
}

/// Insert `line` after `mark`.
fn insert(file: &Path, mark: &str, line: &str) -> io::Result<()> {
    let text = fs::read_to_string(file)?;
    if !text.contains(mark) {
        return Err(io::Error::other(format!("`{}` has no section {mark:?}", file.display())));
    }
    fs::write(file, text.replacen(mark, &format!("{mark}{line}"), 1))
}

/// Run cargo; gives its standard output where it must succeed, else its standard error.
fn cargo(root: &Path, at: &Path, arguments: &[&str], succeeds: bool) -> io::Result<String> {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(arguments).current_dir(at).env("CARGO_TARGET_DIR", target.join("drill"));
    let output = command.output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let errors = text(&output.stderr);
    match (output.status.success(), succeeds) {
        (true, true) => Ok(text(&output.stdout)),
        (false, false) => Ok(errors),
        (true, false) => Err(io::Error::other(format!("`cargo {}` succeeds", arguments.join(" ")))),
        (false, true) => Err(io::Error::other(format!("`cargo {}` fails: {errors}", arguments.join(" ")))),
    }
}

fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_name() == "target" {
            continue;
        }
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
