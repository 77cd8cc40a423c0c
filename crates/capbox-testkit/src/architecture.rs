//! The guard of the architecture: reads the workspace's sources and says what breaks its rules.
//!
//! | rule | what it keeps |
//! |---|---|
//! | [`Rule::Identity`] | nothing outside a provider's folder branches on which provider it is |
//! | [`Rule::ProviderImport`] | a provider's crate is named by its own folder, the generated registry and tests only |
//! | [`Rule::Wildcard`] | a match over capabilities names every row, so that a new row is not forgotten |
//! | [`Rule::Unsafe`] | `unsafe` is for the host side, the guest and the bindings |
//! | [`Rule::Native`] | whoever reads of `native()` reads that it is outside semver |
//! | [`Rule::Direction`] | dependencies point one way |
//!
//! Tests, benches and examples may name providers: that is what they are for. An exception is said in the source, on
//! the line above: `// architecture: REASON`.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// A rule of the architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// A branch on a provider's identity.
    Identity,
    /// A provider's crate, named from elsewhere.
    ProviderImport,
    /// A wildcard in a match over capabilities.
    Wildcard,
    /// `unsafe` where it has no place.
    Unsafe,
    /// `native()` without the words *outside semver* near.
    Native,
    /// A dependency against the direction.
    Direction,
}

/// Something that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// The file, below the root of the workspace.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// The rule.
    pub rule: Rule,
    /// What is wrong, and what to do.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file.display(), self.line, self.message)
    }
}

/// Where crates stand: each may depend on those of a smaller number. `providers` stands for all of them.
const LAYERS: &[(&str, u32)] = &[
    ("capbox-core", 0),
    ("capbox-guest", 1),
    ("capbox-transport", 1),
    ("capbox-host", 2),
    ("providers", 3),
    ("capbox", 4),
    ("capbox-deploy", 5),
    ("capbox-server", 5),
    ("capbox-mcp", 5),
    ("capbox-cli", 6),
    ("bindings", 7),
    ("capbox-testkit", 1), // for tests: of everybody, as a development dependency
    ("xtask", 8),
];

/// The folders whose Rust sources are read, below the root.
const SOURCES: &[&str] = &["crates", "providers", "xtask", "bindings"];

/// Folders that are tests or the like: they may name providers.
const TEST_FOLDERS: &[&str] = &["tests", "benches", "examples", "fuzz"];

/// What the generator writes: it names every provider.
const REGISTRY: &str = "crates/capbox/src/builtin.rs";

/// These speak the kernel's words, which some ids are, and know no provider.
const BELOW: &[&str] = &["crates/capbox-host", "crates/capbox-guest"];

/// Wire names of the compatible servers are no provider's identity.
const WIRE_NAMES: &str = "crates/capbox-server/src/api";

/// Everything in the workspace at `root` that breaks a rule, by file and line.
pub fn check(root: &Path) -> io::Result<Vec<Violation>> {
    let providers = Providers::find(root)?;
    let mut violations = Vec::new();
    for folder in SOURCES {
        for file in files(&root.join(folder), "rs")? {
            let text = fs::read_to_string(&file)?;
            let below = file.strip_prefix(root).unwrap_or(&file).to_owned();
            violations.extend(check_source(&below, &text, &providers));
        }
        for file in files(&root.join(folder), "toml")? {
            if file.ends_with("Cargo.toml") {
                let below = file.strip_prefix(root).unwrap_or(&file).to_owned();
                violations.extend(check_manifest(&below, &fs::read_to_string(&file)?));
            }
        }
    }
    let documents = SOURCES.iter().chain(&["docs", "examples"]).map(|folder| files(&root.join(folder), "md"));
    let mut documents: Vec<PathBuf> = documents.collect::<io::Result<Vec<_>>>()?.concat();
    documents.extend(
        ["README.md", "CONTRIBUTING.md"].map(|name| root.join(name)).into_iter().filter(|p| p.exists()),
    );
    for file in documents {
        let below = file.strip_prefix(root).unwrap_or(&file).to_owned();
        violations.extend(check_native(&below, &fs::read_to_string(&file)?, |_| true));
    }
    violations.sort();
    Ok(violations)
}

/// Files below `folder` with this extension, without those of build output and of programs that must not compile.
fn files(folder: &Path, extension: &str) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if !matches!(name.as_str(), "target" | "ui" | "node_modules" | "dist") && !name.starts_with('.') {
                found.extend(files(&path, extension)?);
            }
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// The providers of a workspace.
#[derive(Clone, Debug, Default)]
pub struct Providers {
    /// Ids, variants included, and names of crates: what nobody else may branch on.
    names: BTreeSet<String>,
    /// Crates by the name that sources use, and their folder below the root.
    crates: Vec<(String, PathBuf)>,
}

impl Providers {
    /// The providers below `root`, by their folders and the ids in their sources.
    pub fn find(root: &Path) -> io::Result<Self> {
        let mut this = Self::default();
        for manifest in files(&root.join("providers"), "toml")? {
            if !manifest.ends_with("Cargo.toml") {
                continue;
            }
            let folder = manifest.parent().unwrap_or(root);
            let text = fs::read_to_string(&manifest)?;
            let package = package_name(&text).unwrap_or_default();
            let mut ids: BTreeSet<String> =
                folder.file_name().map(|n| n.to_string_lossy().into_owned()).into_iter().collect();
            for source in files(&folder.join("src"), "rs")? {
                ids.extend(declared_ids(&fs::read_to_string(source)?));
            }
            this.add(&package, folder.strip_prefix(root).unwrap_or(folder), ids);
        }
        Ok(this)
    }

    /// Add a provider.
    pub fn add(&mut self, package: &str, folder: &Path, ids: impl IntoIterator<Item = String>) {
        self.names.extend(ids);
        self.names.insert(package.to_owned());
        self.crates.push((package.replace('-', "_"), folder.to_owned()));
    }

    /// True where `text` is the identity of a provider: an id, a crate, or the scheme of an id's URIs.
    fn is_identity(&self, text: &str) -> bool {
        let id = text.split_once("://").map_or(text, |(scheme, _)| scheme);
        self.names.contains(id)
    }
}

/// The values of `const ID: &'static str`.
fn declared_ids(text: &str) -> Vec<String> {
    let after = text.split("const ID: &").skip(1);
    after.filter_map(|rest| rest.split('"').nth(1).map(str::to_owned)).collect()
}

fn package_name(manifest: &str) -> Option<String> {
    let manifest: toml::Table = manifest.parse().ok()?;
    Some(manifest.get("package")?.get("name")?.as_str()?.to_owned())
}

/// What breaks a rule in one Rust source; `file` is below the root.
pub fn check_source(file: &Path, text: &str, providers: &Providers) -> Vec<Violation> {
    let mut guard = Guard { file, providers, lines: text.lines().collect(), violations: Vec::new() };
    match syn::parse_file(text) {
        Ok(parsed) => guard.visit_file(&parsed),
        Err(error) => {
            guard.add(error.span().start().line, Rule::Identity, format!("cannot be read: {error}"));
        }
    }
    if !may_be_unsafe(file)
        && let Ok(tokens) = text.parse()
    {
        guard.find_unsafe(tokens);
    }
    let mut violations = guard.violations;
    violations.extend(check_native(file, text, |line| {
        let line = line.trim_start();
        line.starts_with("///") || line.starts_with("//!")
    }));
    violations
}

fn may_be_unsafe(file: &Path) -> bool {
    BELOW.iter().chain(&["bindings"]).any(|folder| file.starts_with(folder))
}

fn is_test(file: &Path) -> bool {
    file.components().any(|part| TEST_FOLDERS.iter().any(|folder| part.as_os_str() == *folder))
        || file.starts_with("crates/capbox-testkit")
        || file.file_name().is_some_and(|name| name == "build.rs")
}

struct Guard<'a> {
    file: &'a Path,
    providers: &'a Providers,
    lines: Vec<&'a str>,
    violations: Vec<Violation>,
}

impl Guard<'_> {
    fn add(&mut self, line: usize, rule: Rule, message: String) {
        let above = line.checked_sub(2).and_then(|above| self.lines.get(above));
        if above.is_some_and(|above| above.trim_start().starts_with("// architecture: ")) {
            return;
        }
        self.violations.push(Violation { file: self.file.to_owned(), line, rule, message });
    }

    /// True where this file may not know who the providers are.
    fn is_neutral(&self) -> bool {
        !is_test(self.file) && !self.file.starts_with(REGISTRY) && !self.file.starts_with(WIRE_NAMES)
    }

    /// A text that something is compared with.
    fn compared(&mut self, literal: &syn::Lit) {
        if let syn::Lit::Str(text) = literal {
            self.compared_text(&text.value(), text.span().start().line);
        }
    }

    fn compared_text(&mut self, text: &str, line: usize) {
        // A provider may know itself.
        let own = self.providers.crates.iter().any(|(_, folder)| self.file.starts_with(folder));
        let below = BELOW.iter().any(|folder| self.file.starts_with(folder));
        if self.is_neutral() && !own && !below && self.providers.is_identity(text) {
            let message =
                format!("branches on the provider `{text}`; ask for a capability or a flag instead");
            self.add(line, Rule::Identity, message);
        }
    }

    /// Texts in the tokens of a macro that compares: `matches!`.
    fn compared_tokens(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.compared_tokens(group.stream()),
                TokenTree::Literal(literal) => {
                    let line = literal.span().start().line;
                    if let syn::Lit::Str(text) = syn::Lit::new(literal) {
                        self.compared_text(&text.value(), line);
                    }
                }
                TokenTree::Ident(_) | TokenTree::Punct(_) => {}
            }
        }
    }

    fn find_unsafe(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.find_unsafe(group.stream()),
                TokenTree::Ident(ident) if ident == "unsafe" => {
                    let message = "`unsafe` is for `capbox-host`, `capbox-guest` and the bindings".to_owned();
                    self.add(ident.span().start().line, Rule::Unsafe, message);
                }
                TokenTree::Ident(_) | TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }

    fn named(&mut self, ident: &syn::Ident) {
        let Some((name, folder)) = self.providers.crates.iter().find(|(name, _)| ident == name) else {
            return;
        };
        if self.is_neutral() && !self.file.starts_with(folder) {
            let message = format!("names the provider's crate `{name}`; go through the registry");
            self.add(ident.span().start().line, Rule::ProviderImport, message);
        }
    }
}

/// Methods that compare their receiver with their argument.
const COMPARING: &[&str] =
    &["eq", "ne", "starts_with", "ends_with", "contains", "eq_ignore_ascii_case", "strip_prefix"];

impl<'ast> Visit<'ast> for Guard<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let is_test = item.attrs.iter().any(|attribute| {
            attribute.path().is_ident("cfg")
                && attribute.meta.require_list().is_ok_and(|list| list.tokens.to_string() == "test")
        });
        if !is_test {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        if matches!(binary.op, syn::BinOp::Eq(_) | syn::BinOp::Ne(_)) {
            for side in [&*binary.left, &*binary.right] {
                if let syn::Expr::Lit(literal) = side {
                    self.compared(&literal.lit);
                }
            }
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_pat(&mut self, pattern: &'ast syn::Pat) {
        if let syn::Pat::Lit(literal) = pattern {
            self.compared(&literal.lit);
        }
        visit::visit_pat(self, pattern);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if COMPARING.iter().any(|name| call.method == name) {
            for argument in call.args.iter().chain([&*call.receiver]) {
                if let syn::Expr::Lit(literal) = argument {
                    self.compared(&literal.lit);
                }
            }
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        if item.path.segments.last().is_some_and(|segment| segment.ident == "matches") {
            self.compared_tokens(item.tokens.clone());
        }
        visit::visit_macro(self, item);
    }

    fn visit_expr_match(&mut self, item: &'ast syn::ExprMatch) {
        let over_capabilities = item.arms.iter().any(|arm| names_capability(&arm.pat));
        if over_capabilities && !self.file.starts_with("crates/capbox-core/src/capability") {
            for arm in item.arms.iter().filter(|arm| is_wildcard(&arm.pat)) {
                let line = arm.pat.span().start().line;
                let message = "matches capabilities with a wildcard, where a new row would be forgotten; \
                    use `for_each_row!`"
                    .to_owned();
                self.add(line, Rule::Wildcard, message);
            }
        }
        visit::visit_expr_match(self, item);
    }

    fn visit_path_segment(&mut self, segment: &'ast syn::PathSegment) {
        self.named(&segment.ident);
        visit::visit_path_segment(self, segment);
    }

    fn visit_use_path(&mut self, item: &'ast syn::UsePath) {
        self.named(&item.ident);
        visit::visit_use_path(self, item);
    }
}

/// True for `Capability::Row`, alone or among others.
fn names_capability(pattern: &syn::Pat) -> bool {
    match pattern {
        syn::Pat::Path(path) => {
            path.path.segments.len() > 1
                && path.path.segments.iter().rev().nth(1).is_some_and(|segment| segment.ident == "Capability")
        }
        syn::Pat::Or(or) => or.cases.iter().any(names_capability),
        syn::Pat::Tuple(tuple) => tuple.elems.iter().any(names_capability),
        syn::Pat::TupleStruct(tuple) => tuple.elems.iter().any(names_capability),
        syn::Pat::Paren(inner) => names_capability(&inner.pat),
        syn::Pat::Reference(inner) => names_capability(&inner.pat),
        _ => false,
    }
}

/// True for `_` and for a name, which both take whatever is left.
fn is_wildcard(pattern: &syn::Pat) -> bool {
    match pattern {
        syn::Pat::Wild(_) => true,
        syn::Pat::Ident(ident) => ident.subpat.is_none(),
        _ => false,
    }
}

/// How many lines away the words may stand.
const NEAR: usize = 3;

/// Mentions of `native()` without the words near, in the lines that are documentation.
fn check_native(file: &Path, text: &str, is_documentation: impl Fn(&str) -> bool) -> Vec<Violation> {
    let lines: Vec<&str> = text.lines().collect();
    let says = |line: &&str| line.to_lowercase().contains("outside semver");
    let mentions =
        |line: &str| is_documentation(line) && (line.contains("native()") || line.contains("native::<"));
    let silent = |at: usize| {
        let near = at.saturating_sub(NEAR)..lines.len().min(at + NEAR + 1);
        !lines[near].iter().any(says)
    };
    let found = lines.iter().enumerate().filter(|(at, line)| mentions(line) && silent(*at));
    found
        .map(|(at, _)| Violation {
            file: file.to_owned(),
            line: at + 1,
            rule: Rule::Native,
            message: "mentions `native()` and does not say near it that it is outside semver".to_owned(),
        })
        .collect()
}

/// Dependencies against the direction, in one manifest; `file` is below the root.
pub fn check_manifest(file: &Path, text: &str) -> Vec<Violation> {
    let violation = |name: &str, message: String| {
        let line = text.lines().position(|line| line.starts_with(name)).map_or(1, |at| at + 1);
        Violation { file: file.to_owned(), line, rule: Rule::Direction, message }
    };
    let manifest: toml::Table = match text.parse() {
        Ok(manifest) => manifest,
        Err(error) => return vec![violation("", format!("cannot be read: {error}"))],
    };
    let Some(package) = package_name(text) else { return Vec::new() };
    let Some(own) = layer(&package, file.starts_with("providers")) else {
        return vec![violation(
            "name",
            format!("`{package}` has no layer; give it one in `architecture.rs`"),
        )];
    };
    let mut violations = Vec::new();
    for name in dependencies(&manifest) {
        if !name.starts_with("capbox") {
            continue;
        }
        let wrong = match layer(&name, true) {
            None => Some(format!("`{name}` has no layer; give it one in `architecture.rs`")),
            Some(_) if name == "capbox-testkit" && package != "xtask" => {
                Some("`capbox-testkit` is for tests: a development dependency".to_owned())
            }
            Some(theirs) if theirs >= own => {
                Some(format!("`{package}` must not depend on `{name}`: dependencies point the other way"))
            }
            Some(_) => None,
        };
        violations.extend(wrong.map(|message| violation(&name, message)));
    }
    violations
}

/// Where a crate stands; any other `capbox-NAME` is a provider where that can be.
fn layer(package: &str, may_be_provider: bool) -> Option<u32> {
    let named = LAYERS.iter().find(|(name, _)| *name == package).map(|(_, layer)| *layer);
    named.or_else(|| {
        let providers = LAYERS.iter().find(|(name, _)| *name == "providers").map(|(_, layer)| *layer);
        providers.filter(|_| may_be_provider && package.starts_with("capbox-"))
    })
}

/// Names of what is needed to build, for any target; not of what tests need.
fn dependencies(manifest: &toml::Table) -> Vec<String> {
    let tables = |table: &toml::Table| {
        let kinds = ["dependencies", "build-dependencies"];
        let names = kinds.iter().filter_map(|kind| table.get(*kind)?.as_table()).flat_map(toml::Table::keys);
        names.cloned().collect::<Vec<_>>()
    };
    let mut names = tables(manifest);
    if let Some(targets) = manifest.get("target").and_then(toml::Value::as_table) {
        names.extend(targets.values().filter_map(toml::Value::as_table).flat_map(tables));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn providers() -> Providers {
        let mut providers = Providers::default();
        let ids = ["docker".to_owned(), "docker-vm".to_owned()];
        providers.add("capbox-docker", Path::new("providers/docker"), ids);
        providers
    }

    fn rules(file: &str, text: &str) -> Vec<Rule> {
        check_source(Path::new(file), text, &providers()).into_iter().map(|v| v.rule).collect()
    }

    #[test]
    fn branches_on_identity_are_found() {
        for branch in [
            r#"if id == "docker" {}"#,
            r#"if "docker-vm" != id {}"#,
            r#"match id { "docker" => {} _ => {} }"#,
            r#"if let Some("docker") = id {}"#,
            r#"if matches!(id, "e2b" | "docker") {}"#,
            r#"if uri.starts_with("docker://") {}"#,
            r#"if ["docker"].contains(&id) || "docker".eq(id) {}"#,
        ] {
            let text = format!("fn f() {{ {branch} }}");
            assert_eq!(rules("crates/capbox-cli/src/run.rs", &text), [Rule::Identity], "{branch}");
            assert_eq!(rules("providers/docker/src/uri.rs", &text), [], "its own folder: {branch}");
            assert_eq!(rules("crates/capbox-cli/tests/run.rs", &text), [], "a test: {branch}");
            assert_eq!(rules("crates/capbox/src/builtin.rs", &text), [], "the registry: {branch}");
            let unit_test = format!("#[cfg(test)] mod tests {{ {text} }}");
            assert_eq!(rules("crates/capbox-cli/src/run.rs", &unit_test), [], "a unit test: {branch}");
        }
        assert_eq!(rules("crates/capbox-cli/src/run.rs", r#"fn f() { open("docker://python"); }"#), []);
        let excused = "fn f() {\n    // architecture: the engine's own name\n    if id == \"docker\" {}\n}";
        assert_eq!(rules("crates/capbox-cli/src/run.rs", excused), []);
    }

    #[test]
    fn imports_of_providers_are_found() {
        for import in
            ["use capbox_docker::Docker;", "use {capbox_docker::Docker};", "fn f() { capbox_docker::new() }"]
        {
            assert_eq!(rules("crates/capbox-cli/src/run.rs", import), [Rule::ProviderImport], "{import}");
            assert_eq!(rules("providers/e2b/src/lib.rs", import), [Rule::ProviderImport], "{import}");
            assert_eq!(rules("crates/capbox/src/builtin.rs", import), []);
            assert_eq!(rules("providers/docker/src/lib.rs", import), []);
            assert_eq!(rules("crates/capbox/benches/exec.rs", import), []);
        }
    }

    #[test]
    fn wildcards_over_capabilities_are_found() {
        for arms in [
            "Capability::Pty => 1, _ => 2",
            "Capability::Pty | Capability::Run => 1, other => 2",
            "(Capability::Pty, true) => 1, _ => 2",
            "Some(cap::Capability::Pty) => 1, _ => 2",
        ] {
            let text = format!("fn f() {{ match x {{ {arms} }} }}");
            assert_eq!(rules("crates/capbox-cli/src/caps.rs", &text), [Rule::Wildcard], "{arms}");
            assert_eq!(rules("crates/capbox-core/src/capability/generate.rs", &text), [], "{arms}");
        }
        let other = "fn f() { match x { Level::Native => 1, _ => 2 } }";
        assert_eq!(rules("crates/capbox-cli/src/caps.rs", other), []);
    }

    #[test]
    fn unsafe_is_found() {
        for text in
            ["fn f() { unsafe { g() } }", "unsafe fn f() {}", "unsafe impl Send for S {}", "m! { unsafe {} }"]
        {
            assert_eq!(rules("crates/capbox-core/src/lib.rs", text), [Rule::Unsafe], "{text}");
            assert_eq!(rules("crates/capbox-host/src/lib.rs", text), [], "{text}");
        }
        assert_eq!(rules("crates/capbox-core/src/lib.rs", "//! Never unsafe.\n#![deny(unsafe_code)]"), []);
    }

    #[test]
    fn native_says_that_it_is_outside_semver() {
        let silent = "/// Use `sandbox.native()`.\nfn f() {}";
        assert_eq!(rules("crates/capbox/src/lib.rs", silent), [Rule::Native]);
        let said = "/// Use `sandbox.native()`,\n/// which is outside semver.\nfn f() {}";
        assert_eq!(rules("crates/capbox/src/lib.rs", said), []);
        assert_eq!(rules("crates/capbox/src/lib.rs", "fn f() { s.native(); }"), []);
    }

    #[test]
    fn dependencies_point_one_way() {
        let found = |file: &str, name: &str, depends: &str| {
            let text = format!("[package]\nname = \"{name}\"\n[dependencies]\n{depends}.workspace = true\n");
            check_manifest(Path::new(file), &text).len()
        };
        assert_eq!(found("crates/capbox-host/Cargo.toml", "capbox-host", "capbox-guest"), 0);
        assert_eq!(found("providers/docker/Cargo.toml", "capbox-docker", "capbox-core"), 0);
        assert_eq!(found("crates/capbox/Cargo.toml", "capbox", "capbox-docker"), 0);
        assert_eq!(found("crates/capbox-cli/Cargo.toml", "capbox-cli", "capbox"), 0);
        assert_eq!(found("crates/capbox-core/Cargo.toml", "capbox-core", "capbox-host"), 1);
        assert_eq!(found("crates/capbox-guest/Cargo.toml", "capbox-guest", "capbox-host"), 1);
        assert_eq!(found("providers/e2b/Cargo.toml", "capbox-e2b", "capbox-docker"), 1);
        assert_eq!(found("providers/e2b/Cargo.toml", "capbox-e2b", "capbox"), 1);
        assert_eq!(found("crates/capbox/Cargo.toml", "capbox", "capbox-cli"), 1);
        assert_eq!(found("crates/capbox/Cargo.toml", "capbox", "capbox-testkit"), 1);
        assert_eq!(found("crates/capbox-new/Cargo.toml", "capbox-new", "capbox-core"), 1);
        let target =
            "[package]\nname = \"capbox-core\"\n[target.'cfg(unix)'.dependencies]\ncapbox-host = \"1\"\n";
        assert_eq!(check_manifest(Path::new("crates/capbox-core/Cargo.toml"), target).len(), 1);
    }
}
