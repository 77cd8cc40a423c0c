//! Ports of a sandbox, reached from outside.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use super::core::{Any, Core};
use crate::capability::rows::HasExposeTcp;
use crate::capability::{Capability, cap};
use crate::error::{Error, Result};

/// Ports: what `sandbox.ports()` gives.
pub struct Ports<K = Any> {
    core: Arc<Core>,
    kind: PhantomData<fn() -> K>,
}

impl<K> fmt::Debug for Ports<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ports").finish_non_exhaustive()
    }
}

impl<K> Ports<K> {
    pub(super) fn of(core: Arc<Core>) -> Self {
        Self { core, kind: PhantomData }
    }

    /// The address of an HTTP port, whether or not something listens there yet.
    pub async fn expose(&self, port: u16) -> Result<Preview> {
        let api = self.core.api::<cap::ExposePort>()?;
        self.core.request(Capability::ExposePort.as_str(), api.expose(some(port)?)).await
    }

    /// The address of a raw TCP port, whether or not something listens there yet.
    pub async fn expose_tcp(&self, port: u16) -> Result<TcpAddress>
    where
        K: HasExposeTcp,
    {
        let api = self.core.api::<cap::ExposeTcp>()?;
        self.core.request(Capability::ExposeTcp.as_str(), api.expose_tcp(some(port)?)).await
    }
}

fn some(port: u16) -> Result<u16> {
    if port == 0 { Err(Error::invalid_argument("port", "must be between 1 and 65535")) } else { Ok(port) }
}

/// Where an HTTP port is reached.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Preview {
    /// The address, such as `http://127.0.0.1:32768`.
    pub url: String,
    /// Headers to send with each request; they may hold a credential.
    pub headers: Vec<(String, String)>,
}

impl Preview {
    /// Reached at `url` without any header.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), headers: Vec::new() }
    }
}

impl fmt::Debug for Preview {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("Preview").field("url", &self.url).field("headers", &names).finish()
    }
}

/// Where a TCP port is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpAddress {
    /// A name or an address.
    pub host: String,
    /// The port there.
    pub port: u16,
}

impl TcpAddress {
    /// Reached at `host` and `port`.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self { host: host.into(), port }
    }
}

impl fmt::Display for TcpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}
