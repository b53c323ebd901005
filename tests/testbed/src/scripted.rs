//! A CSI driver that does as it is told, and writes down what it was asked: the double beside podmon wherever no data
//! is at stake.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tonic::{Request, Response, Status};

use crate::proto::csi::controller_server::{Controller, ControllerServer};
use crate::proto::csi::identity_server::{Identity, IdentityServer};
use crate::proto::csi::*;
use crate::proto::podmon::podmon_server::{Podmon, PodmonServer};
use crate::proto::podmon::*;

/// One call that the driver received, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Call {
    Unpublish { volume: String, node: String },
    Validate { volumes: Vec<String>, node: String },
}

/// What the driver is told to do. Everything may be changed while it runs.
#[derive(Clone, Debug)]
pub struct Script {
    /// The name by `GetPluginInfo`.
    pub name: String,
    /// `PUBLISH_UNPUBLISH_VOLUME` among the capabilities.
    pub fences: bool,
    /// `LIST_VOLUMES_PUBLISHED_NODES` among the capabilities.
    pub republishes: bool,
    /// How long each `ControllerUnpublishVolume` takes.
    pub slow: Duration,
    /// The answer to `ControllerUnpublishVolume`, by volume; OK for those not named.
    pub unpublish: BTreeMap<String, Status>,
    /// Volumes whose `ControllerUnpublishVolume` never answers.
    pub hang: Vec<String>,
    /// The answer of the extension: connected, I/O in progress; `Err` for a status.
    pub validate: Result<(bool, bool), Status>,
}

impl Script {
    /// A driver of this name that fences and has no extension.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            fences: true,
            republishes: false,
            slow: Duration::ZERO,
            unpublish: BTreeMap::new(),
            hang: Vec::new(),
            validate: Err(Status::unimplemented("no such extension")),
        }
    }
}

#[derive(Clone)]
pub struct Driver {
    script: Arc<Mutex<Script>>,
    calls: Arc<Mutex<Vec<Call>>>,
}

impl Driver {
    pub fn new(script: Script) -> Self {
        Self {
            script: Arc::new(Mutex::new(script)),
            calls: Arc::default(),
        }
    }

    /// Changes what the driver does from now on.
    pub fn direct(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.script.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// What it was asked so far.
    pub fn calls(&self) -> Vec<Call> {
        self.calls
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Serves on a unix socket until the task is dropped.
    pub fn serve(&self, socket: &Path) -> std::io::Result<tokio::task::JoinHandle<()>> {
        let listener = tokio::net::UnixListener::bind(socket)?;
        let incoming = tokio_stream::wrappers::UnixListenerStream::new(listener);
        let server = tonic::transport::Server::builder()
            .add_service(IdentityServer::new(self.clone()))
            .add_service(ControllerServer::new(self.clone()))
            .add_service(PodmonServer::new(self.clone()));
        Ok(tokio::spawn(async move {
            if let Err(error) = server.serve_with_incoming(incoming).await {
                eprintln!("scripted driver: {error}");
            }
        }))
    }

    fn script(&self) -> Script {
        self.script
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn note(&self, call: Call) {
        self.calls
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(call);
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Identity for Driver {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Answer<GetPluginInfoResponse> {
        let name = self.script().name;
        Ok(Response::new(GetPluginInfoResponse {
            name,
            vendor_version: "test".into(),
            ..Default::default()
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Answer<GetPluginCapabilitiesResponse> {
        Ok(Response::new(GetPluginCapabilitiesResponse::default()))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Answer<ProbeResponse> {
        Ok(Response::new(ProbeResponse { ready: Some(true) }))
    }
}

#[tonic::async_trait]
impl Controller for Driver {
    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Answer<ControllerGetCapabilitiesResponse> {
        use controller_service_capability::{Rpc, Type, rpc};
        let script = self.script();
        let offered = [
            (script.fences, rpc::Type::PublishUnpublishVolume),
            (script.republishes, rpc::Type::ListVolumesPublishedNodes),
        ];
        let capability = |kind: rpc::Type| ControllerServiceCapability {
            r#type: Some(Type::Rpc(Rpc {
                r#type: kind.into(),
            })),
        };
        let offered = offered.into_iter().filter(|(has, _)| *has);
        Ok(Response::new(ControllerGetCapabilitiesResponse {
            capabilities: offered.map(|(_, kind)| capability(kind)).collect(),
        }))
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<ControllerUnpublishVolumeRequest>,
    ) -> Answer<ControllerUnpublishVolumeResponse> {
        let request = request.into_inner();
        self.note(Call::Unpublish {
            volume: request.volume_id.clone(),
            node: request.node_id,
        });
        let script = self.script();
        if script.hang.contains(&request.volume_id) {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(script.slow).await;
        match script.unpublish.get(&request.volume_id) {
            Some(status) => Err(status.clone()),
            None => Ok(Response::new(ControllerUnpublishVolumeResponse {})),
        }
    }

    async fn create_volume(&self, _: Request<CreateVolumeRequest>) -> Answer<CreateVolumeResponse> {
        Err(Status::unimplemented("CreateVolume"))
    }

    async fn delete_volume(&self, _: Request<DeleteVolumeRequest>) -> Answer<DeleteVolumeResponse> {
        Err(Status::unimplemented("DeleteVolume"))
    }

    async fn controller_publish_volume(
        &self,
        _: Request<ControllerPublishVolumeRequest>,
    ) -> Answer<ControllerPublishVolumeResponse> {
        Err(Status::unimplemented("ControllerPublishVolume"))
    }

    async fn validate_volume_capabilities(
        &self,
        _: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Answer<ValidateVolumeCapabilitiesResponse> {
        Err(Status::unimplemented("ValidateVolumeCapabilities"))
    }

    async fn list_volumes(&self, _: Request<ListVolumesRequest>) -> Answer<ListVolumesResponse> {
        Err(Status::unimplemented("ListVolumes"))
    }

    async fn get_capacity(&self, _: Request<GetCapacityRequest>) -> Answer<GetCapacityResponse> {
        Err(Status::unimplemented("GetCapacity"))
    }

    async fn controller_get_volume(
        &self,
        _: Request<ControllerGetVolumeRequest>,
    ) -> Answer<ControllerGetVolumeResponse> {
        Err(Status::unimplemented("ControllerGetVolume"))
    }
}

#[tonic::async_trait]
impl Podmon for Driver {
    async fn validate_volume_host_connectivity(
        &self,
        request: Request<ValidateVolumeHostConnectivityRequest>,
    ) -> Answer<ValidateVolumeHostConnectivityResponse> {
        let request = request.into_inner();
        self.note(Call::Validate {
            volumes: request.volume_ids,
            node: request.node_id,
        });
        let (connected, ios_in_progress) = self.script().validate?;
        Ok(Response::new(ValidateVolumeHostConnectivityResponse {
            connected,
            ios_in_progress,
            messages: Vec::new(),
        }))
    }
}
