//! The contract suite, held against a real engine.

mod support;

use std::process::Command;

use capbox_core::Capability;
use capbox_core::provider::{Error, ErrorKind, Result, Rows, Table};
use capbox_docker::Docker;
use capbox_testkit::proxy::{Proxy, Seen};
use capbox_testkit::{Facts, Fixture, Harness, Sample, Suite};

use support::Engine;

struct OnAnEngine(std::result::Result<Engine, String>);

impl Harness for OnAnEngine {
    fn rows(&self) -> &'static Rows {
        Docker::ROWS
    }

    fn version(&self) -> String {
        let ask = Command::new("docker").args(["version", "--format", "{{.Server.Version}}"]).output();
        let engine =
            ask.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned()).unwrap_or_default();
        format!("capbox-docker {}, Docker {engine}", env!("CARGO_PKG_VERSION"))
    }

    fn facts(&self) -> Facts {
        let Ok(engine) = &self.0 else { return Facts::new() };
        let file = |name: &str| engine.files.join(name);
        Facts::new()
            .sample(Capability::User, Sample::new("1234").shown_by("id -u", "1234\n"))
            .sample(
                Capability::ImageName,
                Sample::new("capbox-test/busybox").shown_by("readlink /bin/ls", "busybox\n"),
            )
            .sample(
                Capability::ImageArchive,
                Sample::from(file("archive.tar")).shown_by("readlink /bin/ls", "busybox\n"),
            )
            .sample(
                Capability::ImageContext,
                Sample::from(file("context")).shown_by("cat /built/greeting", "hello\n"),
            )
    }

    fn missing(&self) -> Option<String> {
        self.0.as_ref().err().cloned()
    }

    /// The engine through a proxy of its own, which sees what the trial sends; it is empty of containers.
    fn fixture(&self) -> Result<Fixture> {
        let failed = |what: String| Error::new(ErrorKind::Provider, what);
        let engine = self.0.as_ref().map_err(|missing| failed(missing.clone()))?;
        engine.wait_until_empty().map_err(failed)?;
        let proxy =
            Proxy::start(&engine.socket).map_err(|error| failed(format!("start a proxy: {error}")))?;
        let config = engine.config(proxy.uri());
        // Asked first, so that what this engine lacks is known and refused.
        let client = move || {
            let connect = Docker::connect(config.clone());
            let runtime = tokio::runtime::Handle::current();
            Ok(tokio::task::block_in_place(|| runtime.block_on(connect))?.into_any())
        };
        let fixture = Fixture::new(client, proxy.oracle())
            .with_requests(proxy.recorder(lasting))
            .with_fault(proxy.refusal());
        Ok(fixture.with(proxy))
    }
}

/// What a request asks to be made, without what is new each time: ids and times, all of which are long numbers, and the
/// order of labels. Questions make nothing, and how often they are asked is a matter of time, as is when what was before
/// is removed; files that are sent are no options.
fn lasting(seen: &Seen) -> Option<(String, String)> {
    if matches!(seen.method.as_str(), "GET" | "HEAD" | "DELETE") {
        return None;
    }
    let operation = without_numbers(&format!("{} {}?{}", seen.method, seen.path, seen.query));
    // A map of this crate is sorted by its keys.
    let content = serde_json::from_slice::<serde_json::Value>(&seen.content);
    let content = content.map(|content| content.to_string()).unwrap_or_default();
    Some((operation, without_numbers(&content)))
}

/// `text` with `#` for each run of twelve or more hexadecimal digits.
fn without_numbers(text: &str) -> String {
    let mut lasting = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(rest.len());
        lasting.push_str(if digits < 12 { &rest[..digits] } else { "#" });
        rest = &rest[digits..];
        let other = rest.find(|c: char| c.is_ascii_hexdigit()).unwrap_or(rest.len());
        lasting.push_str(&rest[..other]);
        rest = &rest[other..];
    }
    lasting
}

fn main() {
    Suite::new(OnAnEngine(Engine::find())).one_at_a_time().main();
}
