//! The driver makes itself known to the kubelet, without the usual registrar beside it.

use tonic::{Request, Response, Status};

use crate::proto::registration::registration_server::Registration;
use crate::proto::registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};

/// The registration service on a socket in the kubelet's `plugins_registry`.
#[derive(Debug, Clone)]
pub struct RegistrationService {
    /// The driver's CSI socket, as the kubelet sees it.
    pub endpoint: String,
}

#[tonic::async_trait]
impl Registration for RegistrationService {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: super::NAME.to_owned(),
            endpoint: self.endpoint.clone(),
            supported_versions: vec!["1.0.0".to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let told = request.into_inner();
        if !told.plugin_registered {
            eprintln!("the kubelet refused the driver: {}", told.error);
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
