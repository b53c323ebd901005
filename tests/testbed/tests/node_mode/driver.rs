//! A node service that unmounts on a [`FakeHost`], over a pipe in memory.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper_util::rt::TokioIo;
use testbed::proto::csi::node_server::{Node, NodeServer};
use testbed::proto::csi::node_service_capability::{Rpc, Type, rpc};
use testbed::proto::csi::*;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};

use super::host::FakeHost;

#[derive(Clone)]
pub struct FakeDriver {
    host: FakeHost,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    calls: Vec<String>,
    hang: BTreeSet<String>,
    aborted: BTreeSet<String>,
}

type Answer<T> = Result<Response<T>, Status>;

impl FakeDriver {
    pub fn new(host: FakeHost) -> Self {
        let state = Arc::default();
        Self { host, state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it was asked: `unpublish handle` and `unstage handle`.
    pub fn calls(&self) -> Vec<String> {
        self.state().calls.clone()
    }

    /// Calls for this handle never return.
    pub fn hang(&self, handle: &str) {
        self.state().hang.insert(handle.into());
    }

    /// Calls for this handle are answered with ABORTED.
    pub fn abort(&self, handle: &str, aborted: bool) {
        let mut state = self.state();
        if aborted {
            state.aborted.insert(handle.into());
        } else {
            state.aborted.remove(handle);
        }
    }

    /// A client of it.
    pub fn client(&self) -> podmon::csi::Driver {
        let driver = self.clone();
        let endpoint = Endpoint::from_static("http://driver");
        let channel = endpoint.connect_with_connector_lazy(tower::service_fn(move |_| {
            let (ours, theirs) = tokio::io::duplex(64 * 1024);
            let incoming = futures::stream::once(async { Ok::<_, std::io::Error>(theirs) });
            let server = Server::builder().add_service(NodeServer::new(driver.clone()));
            tokio::spawn(server.serve_with_incoming(incoming));
            async { Ok::<_, std::io::Error>(TokioIo::new(ours)) }
        }));
        podmon::csi::Driver::on(channel)
    }

    async fn serve(&self, call: &str, handle: &str, path: &str) -> Result<(), Status> {
        self.state().calls.push(format!("{call} {handle}"));
        if self.state().hang.contains(handle) {
            std::future::pending::<()>().await;
        }
        if self.state().aborted.contains(handle) {
            return Err(Status::aborted("an operation is in progress"));
        }
        self.host.unmount(&PathBuf::from(path));
        Ok(())
    }
}

#[tonic::async_trait]
impl Node for FakeDriver {
    async fn node_stage_volume(
        &self,
        _: Request<NodeStageVolumeRequest>,
    ) -> Answer<NodeStageVolumeResponse> {
        Err(Status::unimplemented("NodeStageVolume"))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Answer<NodeUnstageVolumeResponse> {
        let request = request.into_inner();
        self.serve("unstage", &request.volume_id, &request.staging_target_path)
            .await?;
        Ok(Response::new(NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        _: Request<NodePublishVolumeRequest>,
    ) -> Answer<NodePublishVolumeResponse> {
        Err(Status::unimplemented("NodePublishVolume"))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Answer<NodeUnpublishVolumeResponse> {
        let request = request.into_inner();
        self.serve("unpublish", &request.volume_id, &request.target_path)
            .await?;
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        _: Request<NodeGetVolumeStatsRequest>,
    ) -> Answer<NodeGetVolumeStatsResponse> {
        Err(Status::unimplemented("NodeGetVolumeStats"))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Answer<NodeGetCapabilitiesResponse> {
        let stage = Rpc {
            r#type: rpc::Type::StageUnstageVolume as i32,
        };
        let capability = NodeServiceCapability {
            r#type: Some(Type::Rpc(stage)),
        };
        Ok(Response::new(NodeGetCapabilitiesResponse {
            capabilities: vec![capability],
        }))
    }

    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Answer<NodeGetInfoResponse> {
        Err(Status::unimplemented("NodeGetInfo"))
    }
}
