//! A CSI driver that does as it is told, and writes down what it was asked: the double beside podmon wherever no data
//! is at stake.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint};
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
    /// The answer of the extension about a node when no volume is named, where it differs from `validate`.
    pub polls: BTreeMap<String, Result<(bool, bool), Status>>,
    /// Volumes with I/O in progress, whatever `validate` says.
    pub busy: BTreeSet<String>,
    /// Whether the extension never answers.
    pub hang_validate: bool,
    /// Whether connections are refused, on [`Driver::channel`].
    pub down: bool,
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
            polls: BTreeMap::new(),
            busy: BTreeSet::new(),
            hang_validate: false,
            down: false,
        }
    }
}

/// Sees a call: when it comes in (`None`; the call waits for it), and whether it said OK when it is answered.
pub type Witness = Arc<dyn Fn(Call, Option<bool>) -> BoxFuture<'static, ()> + Send + Sync>;

#[derive(Clone)]
pub struct Driver {
    script: Arc<Mutex<Script>>,
    calls: Arc<Mutex<Vec<Call>>>,
    witness: Option<Witness>,
    connections: Arc<Mutex<tokio::task::JoinSet<()>>>,
}

impl Driver {
    pub fn new(script: Script) -> Self {
        Self {
            script: Arc::new(Mutex::new(script)),
            calls: Arc::default(),
            witness: None,
            connections: Arc::default(),
        }
    }

    /// Lets `witness` see every call.
    pub fn witnessed(self, witness: Witness) -> Self {
        Self {
            witness: Some(witness),
            ..self
        }
    }

    /// Refuses connections, and breaks those that there are; or takes them again.
    pub fn down(&self, down: bool) {
        self.direct(|script| script.down = down);
        if down {
            self.connections
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .abort_all();
        }
    }

    /// A channel to it that needs no socket.
    pub fn channel(&self) -> Channel {
        let driver = self.clone();
        let endpoint = Endpoint::from_static("http://driver");
        endpoint.connect_with_connector_lazy(tower::service_fn(move |_| {
            let connection = driver.connect();
            async move { connection.map(TokioIo::new) }
        }))
    }

    fn connect(&self) -> std::io::Result<tokio::io::DuplexStream> {
        if self.script().down {
            return Err(std::io::ErrorKind::ConnectionRefused.into());
        }
        let (ours, mut near) = tokio::io::duplex(64 * 1024);
        let (mut far, theirs) = tokio::io::duplex(64 * 1024);
        let incoming = futures::stream::iter([Ok::<_, std::io::Error>(theirs)]);
        tokio::spawn(self.router().serve_with_incoming(incoming));
        // Between the two, so that the connection can be cut.
        let cable = async move {
            drop(tokio::io::copy_bidirectional(&mut near, &mut far).await);
        };
        let mut connections = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        connections.spawn(cable);
        Ok(ours)
    }

    fn router(&self) -> tonic::transport::server::Router {
        tonic::transport::Server::builder()
            .add_service(IdentityServer::new(self.clone()))
            .add_service(ControllerServer::new(self.clone()))
            .add_service(PodmonServer::new(self.clone()))
    }

    async fn witness(&self, call: &Call, ok: Option<bool>) {
        if let Some(witness) = &self.witness {
            witness(call.clone(), ok).await;
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
        let server = self.router();
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
        let call = Call::Unpublish {
            volume: request.volume_id.clone(),
            node: request.node_id,
        };
        self.note(call.clone());
        self.witness(&call, None).await;
        let script = self.script();
        if script.hang.contains(&request.volume_id) {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(script.slow).await;
        let refused = script.unpublish.get(&request.volume_id);
        self.witness(&call, Some(refused.is_none())).await;
        match refused {
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
        let call = Call::Validate {
            volumes: request.volume_ids.clone(),
            node: request.node_id.clone(),
        };
        self.note(call.clone());
        self.witness(&call, None).await;
        let script = self.script();
        if script.hang_validate {
            std::future::pending::<()>().await;
        }
        let poll = script.polls.get(&request.node_id);
        let poll = poll.filter(|_| request.volume_ids.is_empty());
        let answer = poll.unwrap_or(&script.validate).clone();
        self.witness(&call, Some(answer.is_ok())).await;
        let (connected, io) = answer?;
        let busy = request.volume_ids.iter().any(|id| script.busy.contains(id));
        let ios_in_progress = io || busy;
        Ok(Response::new(ValidateVolumeHostConnectivityResponse {
            connected,
            ios_in_progress,
            messages: Vec::new(),
        }))
    }
}
