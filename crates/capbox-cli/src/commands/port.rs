//! `capbox port`: where a port of a sandbox is reached.

use std::collections::BTreeMap;

use capbox::{Capability, Error};
use serde::Serialize;

use crate::args::On;
use crate::failure::Outcome;
use crate::{json, text};

/// Print the address of a sandbox's port
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    on: On,
    /// Print `HOST:PORT` for raw TCP instead of a URL
    #[arg(long)]
    tcp: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// The sandbox
    id: String,
    /// The port inside
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
}

#[derive(Serialize)]
struct Document<'a> {
    port: u16,
    url: Option<&'a str>,
    headers: BTreeMap<&'a str, &'a str>,
    host: Option<&'a str>,
    host_port: Option<u16>,
}

pub(crate) async fn run(args: Args) -> Outcome {
    let sandbox = args.on.connect(&args.id).await?;
    sandbox.require(Capability::ExposePort).map_err(Error::from)?;
    let Some(ports) = sandbox.ports() else { return Ok(0) };
    if args.tcp {
        let address = ports.expose_tcp(args.port).await?;
        if args.json {
            let (host, host_port) = (Some(address.host.as_str()), Some(address.port));
            json::print(&Document { port: args.port, url: None, headers: BTreeMap::new(), host, host_port })?;
        } else {
            text::line(&address.to_string())?;
        }
        return Ok(0);
    }
    let preview = ports.expose(args.port).await?;
    let headers = || preview.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    if args.json {
        let (url, headers) = (Some(preview.url.as_str()), headers().collect());
        json::print(&Document { port: args.port, url, headers, host: None, host_port: None })?;
    } else {
        text::line(&preview.url)?;
        for (name, value) in headers() {
            text::line(&format!("{name}: {value}"))?;
        }
    }
    Ok(0)
}
