//! The node side of the CSI driver on an embedded machine, as far as podmon calls it.

use std::path::Path;

use tonic::{Request, Response, Status};

use super::Host;
use super::sight::staging;
use crate::proto::csi::identity_server::IdentityServer;
use crate::proto::csi::node_server::{Node, NodeServer};
use crate::proto::csi::node_service_capability::{Rpc, Type, rpc};
use crate::proto::csi::*;
use crate::storage::door::Door;
use crate::storage::driver::identity::IdentityService;

impl Host {
    /// The driver's node side, as a sidecar on this machine reaches it.
    pub fn driver(&self, door: Door) -> tonic::transport::Channel {
        let services = tonic::transport::Server::builder()
            .add_service(IdentityServer::new(IdentityService { door }))
            .add_service(NodeServer::new(NodeService { host: self.clone() }));
        crate::embedded::pipe::channel(services)
    }
}

struct NodeService {
    host: Host,
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Node for NodeService {
    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Answer<NodeUnpublishVolumeResponse> {
        let path = request.into_inner().target_path;
        self.host
            .state()
            .unmount(Path::new(&path))
            .map_err(Status::internal)?;
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    /// Unmounts whatever the path says if it is this volume's staging path; another path holds nothing of it.
    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Answer<NodeUnstageVolumeResponse> {
        let request = request.into_inner();
        let mut state = self.host.state();
        let staged = state
            .staged
            .keys()
            .find(|handle| handle.as_str() == request.volume_id)
            .cloned();
        if let Some(handle) = staged
            && staging(&handle) == Path::new(&request.staging_target_path)
        {
            let path = staging(&handle);
            state.unmount(&path).map_err(Status::internal)?;
        }
        Ok(Response::new(NodeUnstageVolumeResponse {}))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Answer<NodeGetCapabilitiesResponse> {
        let stage = Rpc {
            r#type: rpc::Type::StageUnstageVolume.into(),
        };
        Ok(Response::new(NodeGetCapabilitiesResponse {
            capabilities: vec![NodeServiceCapability {
                r#type: Some(Type::Rpc(stage)),
            }],
        }))
    }

    async fn node_stage_volume(
        &self,
        _: Request<NodeStageVolumeRequest>,
    ) -> Answer<NodeStageVolumeResponse> {
        Err(Status::unimplemented(
            "the embedded kubelet stages by itself",
        ))
    }

    async fn node_publish_volume(
        &self,
        _: Request<NodePublishVolumeRequest>,
    ) -> Answer<NodePublishVolumeResponse> {
        Err(Status::unimplemented(
            "the embedded kubelet publishes by itself",
        ))
    }

    async fn node_get_volume_stats(
        &self,
        _: Request<NodeGetVolumeStatsRequest>,
    ) -> Answer<NodeGetVolumeStatsResponse> {
        Err(Status::unimplemented("NodeGetVolumeStats"))
    }

    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Answer<NodeGetInfoResponse> {
        Err(Status::unimplemented("NodeGetInfo"))
    }
}
