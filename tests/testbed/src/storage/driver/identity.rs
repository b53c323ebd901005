//! CSI Identity: the name, the capabilities, and whether the array answers.

use std::collections::HashMap;

use tonic::{Request, Response, Status};

use crate::proto::csi::identity_server::Identity;
use crate::proto::csi::plugin_capability::service::Type as ServiceType;
use crate::proto::csi::plugin_capability::{Service, Type};
use crate::proto::csi::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest,
    GetPluginInfoResponse, PluginCapability, ProbeRequest, ProbeResponse,
};
use crate::storage::door::Door;
use crate::storage::trouble::Call;

/// The Identity service.
#[derive(Debug, Clone)]
pub struct IdentityService {
    pub door: Door,
}

#[tonic::async_trait]
impl Identity for IdentityService {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: super::NAME.to_owned(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            manifest: HashMap::new(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let controller = Service {
            r#type: ServiceType::ControllerService.into(),
        };
        let capability = PluginCapability {
            r#type: Some(Type::Service(controller)),
        };
        Ok(Response::new(GetPluginCapabilitiesResponse {
            capabilities: vec![capability],
        }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        super::carry_out(&self.door, Call::Probe, Vec::new(), None, |_| async {
            Ok(Response::new(ProbeResponse { ready: Some(true) }))
        })
        .await
    }
}
