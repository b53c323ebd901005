//! The driver's controller side as podmon reaches it: each fence is judged, and saboteurs have their way with it.

use std::time::Duration;

use tonic::{Request, Response, Status};

use super::history::History;
use super::judge::Judge;
use super::saboteur::Saboteur;
use crate::embedded::cluster::Cluster;
use crate::proto::csi::controller_server::{Controller, ControllerServer};
use crate::proto::csi::identity_server::IdentityServer;
use crate::proto::csi::*;
use crate::proto::podmon::podmon_server::PodmonServer;
use crate::storage::driver::connectivity::ConnectivityService;
use crate::storage::driver::controller::ControllerService;
use crate::storage::driver::identity::IdentityService;

/// How late the fence of [`Saboteur::ReleaseBeforeFence`] is.
const LATE: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub struct WatchedDriver {
    service: ControllerService,
    judge: Judge,
    history: History,
    saboteur: Option<Saboteur>,
    actor: String,
    origin: tokio::time::Instant,
}

impl WatchedDriver {
    /// A channel to the driver for this process.
    pub fn channel(
        cluster: &Cluster,
        judge: &Judge,
        history: &History,
        saboteur: Option<Saboteur>,
        actor: &str,
    ) -> tonic::transport::Channel {
        let (door, extension) = (cluster.door.clone(), cluster.extension);
        let watched = WatchedDriver {
            service: cluster.controller_service(),
            judge: judge.clone(),
            history: history.clone(),
            saboteur,
            actor: actor.to_owned(),
            origin: tokio::time::Instant::now() - cluster.elapsed(),
        };
        let services = tonic::transport::Server::builder()
            .add_service(IdentityServer::new(IdentityService { door: door.clone() }))
            .add_optional_service(
                extension.then(|| PodmonServer::new(ConnectivityService { door })),
            )
            .add_service(ControllerServer::new(watched));
        crate::embedded::pipe::channel(services)
    }

    fn tell(&self, what: &str) {
        self.history
            .tell(self.origin.elapsed(), &format!("{}: {what}", self.actor));
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Controller for WatchedDriver {
    async fn controller_unpublish_volume(
        &self,
        request: Request<ControllerUnpublishVolumeRequest>,
    ) -> Answer<ControllerUnpublishVolumeResponse> {
        let asked = request.get_ref().clone();
        let call = format!("fence of {} from {}", asked.volume_id, asked.node_id);
        self.tell(&format!("{call} is sent"));
        self.judge
            .fenced(self.origin.elapsed(), &asked.volume_id, &asked.node_id);
        let answer = match self.saboteur {
            Some(Saboteur::SkipFence) => Ok(Response::new(Default::default())),
            Some(Saboteur::ReleaseBeforeFence) => {
                let service = self.service.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(LATE).await;
                    let _ = service.controller_unpublish_volume(request).await;
                });
                Ok(Response::new(Default::default()))
            }
            Some(Saboteur::FenceEverybody) => {
                let everybody = ControllerUnpublishVolumeRequest {
                    node_id: String::new(),
                    ..asked
                };
                self.judge
                    .fenced(self.origin.elapsed(), &everybody.volume_id, "");
                self.service
                    .controller_unpublish_volume(Request::new(everybody))
                    .await
            }
            _ => self.service.controller_unpublish_volume(request).await,
        };
        match &answer {
            Ok(_) => self.tell(&format!("{call} is done")),
            Err(status) => self.tell(&format!("{call} failed: {}", status.message())),
        }
        answer
    }

    async fn controller_get_capabilities(
        &self,
        request: Request<ControllerGetCapabilitiesRequest>,
    ) -> Answer<ControllerGetCapabilitiesResponse> {
        self.service.controller_get_capabilities(request).await
    }

    async fn controller_publish_volume(
        &self,
        _: Request<ControllerPublishVolumeRequest>,
    ) -> Answer<ControllerPublishVolumeResponse> {
        Err(Status::permission_denied("podmon never publishes"))
    }

    async fn create_volume(&self, _: Request<CreateVolumeRequest>) -> Answer<CreateVolumeResponse> {
        Err(Status::permission_denied("podmon never creates"))
    }

    async fn delete_volume(&self, _: Request<DeleteVolumeRequest>) -> Answer<DeleteVolumeResponse> {
        Err(Status::permission_denied("podmon never deletes"))
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Answer<ValidateVolumeCapabilitiesResponse> {
        self.service.validate_volume_capabilities(request).await
    }

    async fn list_volumes(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Answer<ListVolumesResponse> {
        self.service.list_volumes(request).await
    }

    async fn get_capacity(
        &self,
        request: Request<GetCapacityRequest>,
    ) -> Answer<GetCapacityResponse> {
        self.service.get_capacity(request).await
    }

    async fn controller_get_volume(
        &self,
        request: Request<ControllerGetVolumeRequest>,
    ) -> Answer<ControllerGetVolumeResponse> {
        self.service.controller_get_volume(request).await
    }
}
