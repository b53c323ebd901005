//! CSI Node: volumes come onto the node and before the eyes of its pods.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tonic::{Request, Response, Status};

use super::staging::{Kind, Staging, StagingError};
use crate::proto::csi::node_server::Node;
use crate::proto::csi::node_service_capability::rpc::Type as Rpc;
use crate::proto::csi::node_service_capability::{Rpc as RpcCapability, Type};
use crate::proto::csi::volume_capability::AccessType;
use crate::proto::csi::{
    NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse, NodeGetInfoRequest,
    NodeGetInfoResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeServiceCapability,
    NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnpublishVolumeRequest,
    NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest, NodeUnstageVolumeResponse,
    VolumeCapability,
};
use crate::storage::door::Door;
use crate::storage::name::{Epoch, NodeId, VolumeId};
use crate::storage::trouble::Call;

/// The Node service.
#[derive(Debug, Clone)]
pub struct NodeService {
    door: Door,
    node: NodeId,
    staging: Arc<Staging>,
    busy: Arc<Mutex<HashSet<VolumeId>>>,
}

impl NodeService {
    /// The service of a node whose volumes are kept as `staging` says.
    pub fn new(door: Door, staging: Staging) -> Self {
        Self {
            door,
            node: staging.node.clone(),
            staging: Arc::new(staging),
            busy: Arc::default(),
        }
    }

    /// Works on a volume, one call at a time.
    async fn work<T: Default + Send + 'static>(
        &self,
        call: Call,
        volume: VolumeId,
        work: impl FnOnce(&Staging) -> Result<(), StagingError> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let turn = Turn::take(&self.busy, &volume)?;
        let staging = Arc::clone(&self.staging);
        let act = move |really: bool| async move {
            if really {
                let work = move || {
                    let _turn = turn;
                    work(&staging)
                };
                match tokio::task::spawn_blocking(work).await {
                    Ok(outcome) => outcome.map_err(|error| status(&error))?,
                    Err(error) => return Err(Status::internal(error.to_string())),
                }
            }
            Ok(Response::new(T::default()))
        };
        let node = Some(self.node.clone());
        let outcome = super::carry_out(&self.door, call, vec![volume.clone()], node, act).await;
        match &outcome {
            Ok(_) => eprintln!("{}: {call:?} {volume}", self.node),
            Err(why) => eprintln!("{}: {call:?} {volume}: {}", self.node, why.message()),
        }
        outcome
    }
}

/// The right to work on a volume.
struct Turn {
    busy: Arc<Mutex<HashSet<VolumeId>>>,
    volume: VolumeId,
}

impl Turn {
    fn take(busy: &Arc<Mutex<HashSet<VolumeId>>>, volume: &VolumeId) -> Result<Self, Status> {
        let mut volumes = busy.lock().unwrap_or_else(PoisonError::into_inner);
        if !volumes.insert(volume.clone()) {
            let text = format!("another call is at work on volume {volume}");
            return Err(Status::aborted(text));
        }
        Ok(Self {
            busy: Arc::clone(busy),
            volume: volume.clone(),
        })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut volumes = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        volumes.remove(&self.volume);
    }
}

fn status(error: &StagingError) -> Status {
    match error {
        StagingError::OldGrant { .. } | StagingError::NotStaged(..) | StagingError::InUse(..) => {
            Status::failed_precondition(error.to_string())
        }
        _ => Status::internal(error.to_string()),
    }
}

fn path(given: &str, what: &str) -> Result<PathBuf, Status> {
    match Path::new(given) {
        path if path.is_absolute() => Ok(path.to_owned()),
        _ => Err(Status::invalid_argument(format!(
            "{what} {given:?} is no absolute path"
        ))),
    }
}

fn kind(capability: Option<&VolumeCapability>) -> Result<(Kind, Vec<String>), Status> {
    super::controller::check_capability(capability)?;
    match capability.and_then(|c| c.access_type.as_ref()) {
        Some(AccessType::Mount(mount)) => Ok((Kind::FileSystem, mount.mount_flags.clone())),
        _ => Ok((Kind::Block, Vec::new())),
    }
}

#[tonic::async_trait]
impl Node for NodeService {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        let asked = request.into_inner();
        let volume = super::volume_id(&asked.volume_id)?;
        let target = path(&asked.staging_target_path, "staging_target_path")?;
        let (kind, options) = kind(asked.volume_capability.as_ref())?;
        let epoch = asked.publish_context.get(super::EPOCH);
        let epoch: Epoch = epoch
            .and_then(|epoch| epoch.parse().ok())
            .ok_or_else(|| Status::invalid_argument("the publish_context holds no grant"))?;
        let of = volume.clone();
        self.work(Call::NodeStage, volume, move |staging| {
            staging.stage(&of, epoch, kind, &target, &options)
        })
        .await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let asked = request.into_inner();
        let volume = super::volume_id(&asked.volume_id)?;
        let target = path(&asked.staging_target_path, "staging_target_path")?;
        let of = volume.clone();
        self.work(Call::NodeUnstage, volume, move |staging| {
            staging.unstage(&of, &target)
        })
        .await
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let asked = request.into_inner();
        let volume = super::volume_id(&asked.volume_id)?;
        let target = path(&asked.target_path, "target_path")?;
        let (kind, _) = kind(asked.volume_capability.as_ref())?;
        let staged = path(&asked.staging_target_path, "staging_target_path")?;
        let (of, read_only) = (volume.clone(), asked.readonly);
        self.work(Call::NodePublish, volume, move |staging| {
            staging.publish(&of, kind, &staged, &target, read_only)
        })
        .await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let asked = request.into_inner();
        let volume = super::volume_id(&asked.volume_id)?;
        let target = path(&asked.target_path, "target_path")?;
        self.work(Call::NodeUnpublish, volume, move |staging| {
            staging.unpublish(&target)
        })
        .await
    }

    async fn node_get_volume_stats(
        &self,
        _: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        Err(Status::unimplemented("no GET_VOLUME_STATS"))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let staging = NodeServiceCapability {
            r#type: Some(Type::Rpc(RpcCapability {
                r#type: Rpc::StageUnstageVolume.into(),
            })),
        };
        Ok(Response::new(NodeGetCapabilitiesResponse {
            capabilities: vec![staging],
        }))
    }

    async fn node_get_info(
        &self,
        _: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        Ok(Response::new(NodeGetInfoResponse {
            node_id: self.node.to_string(),
            ..NodeGetInfoResponse::default()
        }))
    }
}
