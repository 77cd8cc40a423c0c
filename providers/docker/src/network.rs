//! What a container is connected to, and its ports.
//!
//! | policy | network |
//! |---|---|
//! | deny | none |
//! | open | `capbox-open`: a bridge on which containers do not reach each other |
//! | deny, private network | `capbox-private-NAME`: an internal bridge, with no way out |
//! | open, private network | both |

use std::collections::HashMap;

use bollard::Docker as Api;
use bollard::models::{
    EndpointSettings, NetworkConnectRequest, NetworkCreateRequest, NetworkDisconnectRequest, PortBinding,
    PortMap,
};
use bollard::query_parameters::ListNetworksOptionsBuilder;
use capbox_core::provider::*;

use crate::error::{from_engine, is_absent, is_conflict};
use crate::labels::{self, OURS};
use crate::session::Session;

const OPEN: &str = "capbox-open";
const PRIVATE: &str = "capbox-private-";

/// What a container is connected to from its creation.
pub(crate) struct Plan {
    /// The network that create names.
    pub(crate) mode: String,
    /// The endpoint there, where it has a name.
    pub(crate) endpoint: Option<EndpointSettings>,
    /// The private network to connect before the start, where that is the second.
    pub(crate) second: Option<(String, EndpointSettings)>,
}

impl Plan {
    /// Makes the networks that are not there.
    pub(crate) async fn of(api: &Api, open: bool, member: Option<(&str, &str)>) -> Result<Self> {
        if open {
            open_network(api).await?;
        }
        let private = match member {
            None => None,
            Some((network, host)) => {
                let name = format!("{PRIVATE}{network}");
                let mut request = request(&name);
                request.internal = Some(true);
                // Without an address of the bridge there is no way to the engine's machine either.
                let unreachable = ("com.docker.network.bridge.inhibit_ipv4".to_owned(), "true".to_owned());
                request.options = Some(HashMap::from([unreachable]));
                create(api, request).await?;
                let alias =
                    EndpointSettings { aliases: Some(vec![host.to_owned()]), ..EndpointSettings::default() };
                Some((name, alias))
            }
        };
        Ok(match (open, private) {
            (true, second) => Self { mode: OPEN.to_owned(), endpoint: None, second },
            (false, Some((mode, endpoint))) => Self { mode, endpoint: Some(endpoint), second: None },
            (false, None) => Self { mode: "none".to_owned(), endpoint: None, second: None },
        })
    }

    /// Connect what create could not.
    pub(crate) async fn connect_second(&self, api: &Api, container: &str) -> Result<()> {
        match &self.second {
            None => Ok(()),
            Some((network, endpoint)) => connect(api, network, container, Some(endpoint.clone())).await,
        }
    }
}

fn request(name: &str) -> NetworkCreateRequest {
    NetworkCreateRequest {
        name: name.to_owned(),
        driver: Some("bridge".to_owned()),
        labels: Some(HashMap::from([(OURS.to_owned(), "network".to_owned())])),
        ..NetworkCreateRequest::default()
    }
}

async fn open_network(api: &Api) -> Result<()> {
    let mut request = request(OPEN);
    let apart = ("com.docker.network.bridge.enable_icc".to_owned(), "false".to_owned());
    request.options = Some(HashMap::from([apart]));
    create(api, request).await
}

/// Make the network, unless one of that name is there.
async fn create(api: &Api, request: NetworkCreateRequest) -> Result<()> {
    let name = request.name.clone();
    let what = || format!("the network `{name}`");
    match api.inspect_network(&name, None).await {
        Ok(network) if network.labels.as_ref().is_some_and(|labels| labels.contains_key(OURS)) => {
            return Ok(());
        }
        Ok(_) => {
            let message = format!("{} is there, and it is not capbox's", what());
            return Err(Error::new(ErrorKind::Conflict, message)
                .with_hint(format!("remove it: `docker network rm {name}`")));
        }
        Err(error) if is_absent(&error) => {}
        Err(error) => return Err(from_engine(error, &what())),
    }
    match api.create_network(request).await {
        Ok(_) => Ok(()),
        // Another client was faster.
        Err(error) if is_conflict(&error) => Ok(()),
        Err(error) => Err(from_engine(error, &what())),
    }
}

async fn connect(
    api: &Api,
    network: &str,
    container: &str,
    endpoint: Option<EndpointSettings>,
) -> Result<()> {
    let request = NetworkConnectRequest { container: container.to_owned(), endpoint_config: endpoint };
    let call = api.connect_network(network, request).await;
    call.map_err(|error| from_engine(error, &format!("the network `{network}`")))
}

async fn disconnect(api: &Api, network: &str, container: &str) -> Result<()> {
    let request = NetworkDisconnectRequest { container: container.to_owned(), force: Some(true) };
    let call = api.disconnect_network(network, request).await;
    call.map_err(|error| from_engine(error, &format!("the network `{network}`")))
}

/// Remove the private networks that nobody is in any more; the engine refuses the others.
pub(crate) async fn tidy(api: &Api) -> Result<()> {
    let filter = labels::filter([format!("{OURS}=network")]);
    let options = ListNetworksOptionsBuilder::new().filters(&filter).build();
    let networks = api.list_networks(Some(options)).await.map_err(|e| from_engine(e, "the networks"))?;
    for name in networks.into_iter().filter_map(|network| network.name) {
        if name.starts_with(PRIVATE) {
            forget(api, &name).await?;
        }
    }
    Ok(())
}

/// Remove the private network of that name, if nobody is in it any more.
pub(crate) async fn leave(api: &Api, network: &str) -> Result<()> {
    forget(api, &format!("{PRIVATE}{network}")).await
}

async fn forget(api: &Api, name: &str) -> Result<()> {
    use bollard::errors::Error::DockerResponseServerError;
    match api.remove_network(name).await {
        // 403: somebody is in it.
        Ok(()) | Err(DockerResponseServerError { status_code: 403 | 404 | 409, .. }) => Ok(()),
        Err(error) => Err(from_engine(error, &format!("the network `{name}`"))),
    }
}

#[async_trait]
impl EgressUpdate for Session {
    async fn set_network(&self, network: &Network) -> Result<()> {
        let api = self.engine.api().await?;
        let connected = self.inspect().await?.network_settings.and_then(|settings| settings.networks);
        let connected = connected.unwrap_or_default();
        let member = connected.keys().any(|name| name.starts_with(PRIVATE));
        if network.open && !connected.contains_key(OPEN) {
            open_network(api).await?;
            if connected.contains_key("none") {
                disconnect(api, "none", &self.container).await?;
            }
            connect(api, OPEN, &self.container, None).await?;
        } else if !network.open && connected.contains_key(OPEN) {
            disconnect(api, OPEN, &self.container).await?;
            if !member {
                connect(api, "none", &self.container, None).await?;
            }
        }
        Ok(())
    }
}

/// The key of a port in the engine's maps.
fn key(port: u16) -> String {
    format!("{port}/tcp")
}

/// Each of `ports` at a port of this machine's loopback that the engine chooses.
pub(crate) fn bindings(ports: &[u16]) -> PortMap {
    let loopback = PortBinding { host_ip: Some("127.0.0.1".to_owned()), host_port: Some(String::new()) };
    ports.iter().map(|port| (key(*port), Some(vec![loopback.clone()]))).collect()
}

pub(crate) fn exposed(ports: &[u16]) -> Vec<String> {
    ports.iter().map(|port| key(*port)).collect()
}

impl Session {
    /// Where `port` is reached. The engine chooses anew with each start.
    async fn binding(&self, port: u16) -> Result<TcpAddress> {
        let facts = self.inspect().await?;
        let running = facts.state.as_ref().and_then(|state| state.running) == Some(true);
        let ports = facts.network_settings.and_then(|settings| settings.ports).unwrap_or_default();
        let declared = facts.host_config.and_then(|host| host.port_bindings).unwrap_or_default();
        let bound = ports.get(&key(port)).and_then(Option::as_ref).and_then(|bindings| bindings.first());
        let address = bound.and_then(|bound| {
            let host =
                bound.host_ip.clone().filter(|ip| !ip.is_empty()).unwrap_or_else(|| "127.0.0.1".to_owned());
            Some(TcpAddress::new(host, bound.host_port.as_ref()?.parse().ok()?))
        });
        match address {
            Some(address) => Ok(address),
            None if !declared.contains_key(&key(port)) => {
                Err(Error::new(ErrorKind::NotFound, format!("port {port} of `{}` is not exposed", self.id))
                    .with_hint(
                        "an engine exposes ports at create only: name it there, by `ports` or `--port`",
                    ))
            }
            None if !running => Err(self.does_not_run()),
            None => Err(Error::new(
                ErrorKind::Conflict,
                format!("port {port} of `{}` was declared, and its network is gone", self.id),
            )),
        }
    }
}

#[async_trait]
impl ExposePort for Session {
    async fn expose(&self, port: u16) -> Result<Preview> {
        Ok(Preview::new(format!("http://{}", self.binding(port).await?)))
    }
}

#[async_trait]
impl ExposeTcp for Session {
    async fn expose_tcp(&self, port: u16) -> Result<TcpAddress> {
        self.binding(port).await
    }
}
