//! Kinds of sandbox beside the usual.

use std::time::{Duration, Instant};

use capbox_core::api::ProcessId;
use capbox_core::capability::{Capability, cap};
use capbox_core::error::ErrorKind;
use capbox_core::spec::{Container, Spec};

use super::ports::answers;
use super::{Ask, Case, Contract, cases};
use crate::bench::{Bench, follow, mark, within};
use crate::check::{Check, Fault, fails};
use crate::{ensure, ensure_eq};

impl Contract for cap::Container {
    const ASK: Ask = Ask::Create(|spec, _| Ok(spec.container(Container::new())));
    const CASES: &'static [Case] = cases![
        the_images_own_command_runs,
        its_output_is_that_of_main,
        it_ends_with_its_command,
        its_port_answers,
        port_zero_is_refused,
    ];
}

/// A container whose image has an entry point that runs its arguments by a shell: the sample's value is such an image.
fn shell(t: &Bench, text: &str) -> Check<Spec> {
    let sample = t.sample(Capability::Container)?;
    Ok(t.spec().image_name(sample.value.as_str()).container(Container::new().with_args([text])))
}

async fn the_images_own_command_runs(t: &Bench) -> Check {
    t.needs(&[Capability::Run])?;
    let text = mark();
    let sandbox = t.create(shell(t, &format!("echo {text} > /tmp/own; sleep 300"))?).await?;
    let begin = Instant::now();
    while !sandbox.exec("cat /tmp/own").await?.stdout.text().contains(&text) {
        ensure!(begin.elapsed() < Duration::from_secs(30), "the image's own command does not run");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

async fn its_output_is_that_of_main(t: &Bench) -> Check {
    t.needs(&[Capability::Replay])?;
    let text = mark();
    let sandbox = t.create(shell(t, &format!("echo out-{text}; echo err-{text} >&2; sleep 300"))?).await?;
    let begin = Instant::now();
    loop {
        let mut main = sandbox.process(ProcessId::from("main")).logs(0).await?;
        let seen = within(Duration::from_secs(10), "what `main` printed", follow(&mut main, 0)).await??;
        let all = String::from_utf8_lossy(&seen.bytes).into_owned();
        if all.contains(&format!("out-{text}\n")) && all.contains(&format!("err-{text}\n")) {
            return Ok(());
        }
        ensure!(begin.elapsed() < Duration::from_secs(30), "`main` printed {all:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn it_ends_with_its_command(t: &Bench) -> Check {
    t.needs(&[Capability::List])?;
    let sandbox = t.create(shell(t, "sleep 1; exit 3")?).await?;
    let begin = Instant::now();
    while t.client().list().await?.iter().any(|info| info.id == sandbox.id()) {
        ensure!(begin.elapsed() < Duration::from_secs(30), "its command has ended, and it is still listed");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

async fn its_port_answers(t: &Bench) -> Check {
    t.needs(&[Capability::ExposePort])?;
    let text = mark();
    let serve = format!(
        "mkdir /tmp/www; cd /tmp/www; printf %s {text} > index.html; \
         if command -v python3 >/dev/null; then exec python3 -m http.server 8731; else exec busybox httpd -f -p 8731; fi"
    );
    let mut spec = shell(t, &serve)?;
    spec.container = spec.container.map(|container| container.with_port(8731));
    let sandbox = t.create(spec).await?;
    let ports = sandbox.ports().ok_or_else(|| Fault::failed("a container with a port exposes none"))?;
    let preview = ports.expose(8731).await?;
    ensure_eq!(answers(&preview).await?, (200, text), "what the container's port answers");
    Ok(())
}

async fn port_zero_is_refused(t: &Bench) -> Check {
    let spec = t.spec().container(Container::new().with_port(0));
    fails(t.create(spec).await, &[ErrorKind::InvalidArgument])?;
    Ok(())
}
