//! The CSI driver beside us: each call that podmon makes, with its deadline.

pub mod node_service;

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use crate::domain::{DriverName, NodeId, VolumeHandle};
use crate::proto::csi::controller_client::ControllerClient;
use crate::proto::csi::controller_service_capability as controller_capability;
use crate::proto::csi::identity_client::IdentityClient;
use crate::proto::csi::{
    ControllerGetCapabilitiesRequest, ControllerUnpublishVolumeRequest, GetPluginInfoRequest,
    ProbeRequest,
};
use crate::proto::podmon::ValidateVolumeHostConnectivityRequest;
use crate::proto::podmon::podmon_client::PodmonClient;

/// The driver's socket, both services on it.
#[derive(Clone, Debug)]
pub struct Driver {
    channel: Channel,
}

/// A call to the driver that did not say OK. Unless [`DriverError::never_sent`], it may have taken effect, and may
/// still.
#[derive(thiserror::Error, Clone, Debug)]
pub enum DriverError {
    #[error("{call}: no answer within {within:?}")]
    Deadline {
        call: &'static str,
        within: Duration,
    },
    #[error("{call}: {} ({:?})", status.message(), status.code())]
    Refused { call: &'static str, status: Status },
    #[error("{call}: refused to send an empty {what}, which would mean all of them")]
    Empty {
        call: &'static str,
        what: &'static str,
    },
}

impl DriverError {
    /// The code of the driver's answer.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Refused { status, .. } => Some(status.code()),
            _ => None,
        }
    }

    /// The driver itself refused: the call is over, and did not take effect. Otherwise it may be at work still.
    pub fn is_answer(&self) -> bool {
        match self {
            Self::Refused { status, .. } => {
                let broken = [Code::DeadlineExceeded, Code::Cancelled, Code::Unavailable];
                status.source().is_none() && !broken.contains(&status.code())
            }
            Self::Deadline { .. } | Self::Empty { .. } => false,
        }
    }

    /// The call provably never left this process: no connection could be made.
    pub fn never_sent(&self) -> bool {
        match self {
            Self::Empty { .. } => true,
            Self::Deadline { .. } => false,
            Self::Refused { status, .. } => {
                let mut source = status.source();
                while let Some(error) = source {
                    if error.is::<tonic::ConnectError>() {
                        return true;
                    }
                    source = error.source();
                }
                false
            }
        }
    }
}

/// What the controller service says that it can do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Capabilities {
    /// `PUBLISH_UNPUBLISH_VOLUME`: the driver can fence.
    pub fences: bool,
    /// `LIST_VOLUMES_PUBLISHED_NODES`: the attacher publishes again what it finds missing.
    pub republishes: bool,
}

/// What the array sees of a node and its volumes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Connectivity {
    /// The driver has no such call: Kubernetes' signal stands alone.
    Unsupported,
    Seen {
        connected: bool,
        ios_in_progress: bool,
        messages: Vec<String>,
    },
}

impl Driver {
    /// A driver on a unix socket; the connection is made by the first call, and again whenever it is lost.
    pub fn at(socket: &Path) -> Result<Self, tonic::transport::Error> {
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?;
        Ok(Self::on(endpoint.connect_timeout(CONNECT).connect_lazy()))
    }

    /// A driver behind any channel.
    pub fn on(channel: Channel) -> Self {
        Self { channel }
    }

    /// The driver's own name.
    pub async fn name(&self, within: Duration) -> Result<DriverName, DriverError> {
        let mut client = IdentityClient::new(self.channel.clone());
        let request = timed(GetPluginInfoRequest {}, within);
        let call = "GetPluginInfo";
        let answer = answered(call, within, client.get_plugin_info(request)).await?;
        if answer.name.is_empty() {
            let status = Status::internal("the driver answered without a name");
            return Err(DriverError::Refused { call, status });
        }
        Ok(DriverName::from(answer.name))
    }

    /// Whether the driver says that it is ready; a driver that does not say is.
    pub async fn probe(&self, within: Duration) -> Result<bool, DriverError> {
        let mut client = IdentityClient::new(self.channel.clone());
        let request = timed(ProbeRequest {}, within);
        let answer = answered("Probe", within, client.probe(request)).await?;
        Ok(answer.ready.unwrap_or(true))
    }

    pub async fn capabilities(&self, within: Duration) -> Result<Capabilities, DriverError> {
        use controller_capability::rpc::Type;
        let mut client = ControllerClient::new(self.channel.clone());
        let request = timed(ControllerGetCapabilitiesRequest {}, within);
        let call = client.controller_get_capabilities(request);
        let answer = answered("ControllerGetCapabilities", within, call).await?;
        let has = |wanted: Type| {
            let kinds = answer.capabilities.iter().filter_map(|c| c.r#type.as_ref());
            kinds
                .map(|controller_capability::Type::Rpc(rpc)| rpc.r#type())
                .any(|kind| kind == wanted)
        };
        Ok(Capabilities {
            fences: has(Type::PublishUnpublishVolume),
            republishes: has(Type::ListVolumesPublishedNodes),
        })
    }

    /// The fence: revokes the node's access to the volume (CSI `ControllerUnpublishVolume`). NOT_FOUND is an error
    /// here; what it means depends on which node id was asked (protocol.md §5).
    pub async fn unpublish(
        &self,
        volume: &VolumeHandle,
        node: &NodeId,
        secrets: &[(String, String)],
        within: Duration,
    ) -> Result<(), DriverError> {
        let call = "ControllerUnpublishVolume";
        if node.as_str().is_empty() {
            return Err(DriverError::Empty {
                call,
                what: "node id",
            });
        }
        if volume.as_str().is_empty() {
            return Err(DriverError::Empty {
                call,
                what: "volume handle",
            });
        }
        let mut client = ControllerClient::new(self.channel.clone());
        let request = ControllerUnpublishVolumeRequest {
            volume_id: volume.as_str().to_owned(),
            node_id: node.as_str().to_owned(),
            secrets: secrets.iter().cloned().collect(),
        };
        let request = timed(request, within);
        let answer = client.controller_unpublish_volume(request);
        answered(call, within, answer).await.map(drop)
    }

    /// What the array sees of the node, and whether it does I/O on any of these volumes. Never a default on failure:
    /// an error is unknown.
    pub async fn connectivity(
        &self,
        node: &NodeId,
        volumes: &[VolumeHandle],
        within: Duration,
    ) -> Result<Connectivity, DriverError> {
        let mut client = PodmonClient::new(self.channel.clone());
        let request = ValidateVolumeHostConnectivityRequest {
            volume_ids: volumes.iter().map(|v| v.as_str().to_owned()).collect(),
            node_id: node.as_str().to_owned(),
            ..Default::default()
        };
        let request = timed(request, within);
        let call = client.validate_volume_host_connectivity(request);
        match answered("ValidateVolumeHostConnectivity", within, call).await {
            Ok(answer) => Ok(Connectivity::Seen {
                connected: answer.connected,
                ios_in_progress: answer.ios_in_progress,
                messages: answer.messages,
            }),
            Err(error) if error.code() == Some(Code::Unimplemented) => {
                Ok(Connectivity::Unsupported)
            }
            Err(error) => Err(error),
        }
    }
}

/// How long one attempt to connect may take.
const CONNECT: Duration = Duration::from_secs(5);

/// A request that tells the driver how long we wait, so that it can stop as well.
fn timed<T>(message: T, within: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(within);
    request
}

async fn answered<T>(
    call: &'static str,
    within: Duration,
    answer: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, DriverError> {
    match tokio::time::timeout(within, answer).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(DriverError::Refused { call, status }),
        Err(_) => Err(DriverError::Deadline { call, within }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_refused_connection_never_sent_anything() {
        let driver = Driver::at(Path::new("/nowhere/csi.sock")).unwrap();
        let error = driver
            .unpublish(&"v".into(), &"n".into(), &[], Duration::from_secs(5))
            .await
            .unwrap_err();
        assert!(error.never_sent(), "{error:?}");
    }

    #[tokio::test]
    async fn an_empty_node_id_would_mean_all_nodes() {
        let driver = Driver::at(Path::new("/nowhere/csi.sock")).unwrap();
        let within = Duration::from_secs(5);
        let error = driver.unpublish(&"v".into(), &"".into(), &[], within).await;
        assert!(matches!(error, Err(DriverError::Empty { .. })));
    }
}
