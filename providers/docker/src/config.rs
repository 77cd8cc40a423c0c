//! The configuration of the Docker provider, and the keys of its URI.

use std::env;

use capbox_core::provider::{Error, ErrorKind, Result, Uri};

/// Where an engine listens unless something else is said.
const SOCKET: &str = "unix:///var/run/docker.sock";

/// How to make a client of a Docker Engine.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Config {
    /// The image of sandboxes that name none.
    pub image: Option<String>,
    /// The engine: `unix://SOCKET`, or `tcp://` at a loopback address. By default `$DOCKER_HOST`; else
    /// `unix:///var/run/docker.sock`.
    pub host: Option<String>,
}

impl Config {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// With this image for sandboxes that name none.
    #[must_use]
    pub fn with_image(mut self, image: impl Into<String>) -> Self {
        self.image = Some(image.into());
        self
    }

    /// With the engine at this address.
    #[must_use]
    pub fn with_host(mut self, host: impl Into<String>) -> Self {
        self.host = Some(host.into());
        self
    }

    /// From `docker://IMAGE?host=ADDRESS`.
    pub(crate) fn from_uri(mut uri: Uri) -> Result<Self> {
        let image = Some(uri.target().to_owned()).filter(|image| !image.is_empty());
        let host = uri.take("host");
        uri.finish()?;
        Ok(Self { image, host })
    }

    /// The engine's address, refused where it is none that this provider can be true of.
    pub(crate) fn address(&self) -> Result<String> {
        let environment = || env::var("DOCKER_HOST").ok().filter(|host| !host.is_empty());
        let host = self.host.clone().or_else(environment).unwrap_or_else(|| SOCKET.to_owned());
        let wrong = |what: String, hint: &str| {
            Err(Error::new(ErrorKind::InvalidArgument, what).with_hint(hint.to_owned()))
        };
        if host.starts_with("unix://") {
            return Ok(host);
        }
        let Some(rest) = host.strip_prefix("tcp://") else {
            return wrong(
                format!("the engine's address `{host}` is neither `unix://SOCKET` nor `tcp://HOST:PORT`"),
                "set `DOCKER_HOST`, or the key `host` of the URI",
            );
        };
        let name = rest.rsplit_once(':').map_or(rest, |(name, _)| name).trim_matches(['[', ']']);
        let loopback = name == "localhost" || name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
        if loopback && env::var_os("DOCKER_TLS_VERIFY").is_none() {
            return Ok(host);
        }
        wrong(
            format!("the engine at `{host}` is on another machine or wants TLS, which is not in capbox yet"),
            "bring its socket here, such as by `ssh -L /tmp/docker.sock:/var/run/docker.sock HOST`, and set \
             `DOCKER_HOST=unix:///tmp/docker.sock`",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(uri: &str) -> Result<Config> {
        Config::from_uri(uri.parse()?)
    }

    #[test]
    fn uris() {
        let config = config("docker://ghcr.io/a/b:1?host=unix:///run/x.sock").unwrap();
        assert_eq!(config.image.as_deref(), Some("ghcr.io/a/b:1"));
        assert_eq!(config.address().unwrap(), "unix:///run/x.sock");
        assert_eq!(Config::from_uri("docker://".parse().unwrap()).unwrap().image, None);
        let unknown = Config::from_uri("docker://a?cpus=2".parse().unwrap()).unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn engines_elsewhere_are_refused() {
        let address = |host: &str| Config::new().with_host(host).address();
        assert!(address("tcp://127.0.0.1:2375").is_ok());
        assert!(address("tcp://[::1]:2375").is_ok());
        for host in ["tcp://10.0.0.1:2375", "ssh://a@b", "", "http://x", "tcp://evil.test:2375"] {
            assert!(address(host).is_err(), "{host}");
        }
    }
}
