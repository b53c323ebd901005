//! The calls to the node service of the driver beside us.

use std::path::Path;
use std::time::Duration;

use tonic::{Code, Status};

use super::{Driver, DriverError, answered, timed};
use crate::domain::VolumeHandle;
use crate::proto::csi::node_client::NodeClient;
use crate::proto::csi::node_service_capability::{Type, rpc};
use crate::proto::csi::{
    NodeGetCapabilitiesRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
};

impl DriverError {
    /// The driver is still at an earlier call for this volume, ours or the kubelet's: wait, and ask again.
    pub fn is_in_progress(&self) -> bool {
        match self {
            Self::Refused { status, .. } => {
                // Dell drivers say so at the end of their text.
                status.code() == Code::Aborted || status.message().ends_with("pending")
            }
            Self::Deadline { .. } | Self::Empty { .. } => false,
        }
    }
}

impl Driver {
    /// Whether volumes are staged on a node before pods get them (`STAGE_UNSTAGE_VOLUME`).
    pub async fn stages(&self, within: Duration) -> Result<bool, DriverError> {
        let mut client = NodeClient::new(self.channel.clone());
        let request = timed(NodeGetCapabilitiesRequest {}, within);
        let call = client.node_get_capabilities(request);
        let answer = answered("NodeGetCapabilities", within, call).await?;
        let kinds = answer.capabilities.iter().filter_map(|c| c.r#type.as_ref());
        Ok(kinds
            .map(|Type::Rpc(rpc)| rpc.r#type())
            .any(|kind| kind == rpc::Type::StageUnstageVolume))
    }

    /// Takes a volume away from one pod's target path.
    pub async fn node_unpublish(
        &self,
        volume: &VolumeHandle,
        target: &Path,
        within: Duration,
    ) -> Result<(), DriverError> {
        let call = "NodeUnpublishVolume";
        let request = NodeUnpublishVolumeRequest {
            volume_id: named(call, volume)?,
            target_path: path(call, target)?,
        };
        let mut client = NodeClient::new(self.channel.clone());
        let answer = client.node_unpublish_volume(timed(request, within));
        answered(call, within, answer).await.map(drop)
    }

    /// Takes a volume away from the node, at one staging path.
    pub async fn node_unstage(
        &self,
        volume: &VolumeHandle,
        staging: &Path,
        within: Duration,
    ) -> Result<(), DriverError> {
        let call = "NodeUnstageVolume";
        let request = NodeUnstageVolumeRequest {
            volume_id: named(call, volume)?,
            staging_target_path: path(call, staging)?,
        };
        let mut client = NodeClient::new(self.channel.clone());
        let answer = client.node_unstage_volume(timed(request, within));
        answered(call, within, answer).await.map(drop)
    }
}

fn named(call: &'static str, volume: &VolumeHandle) -> Result<String, DriverError> {
    let what = "volume handle";
    match volume.as_str() {
        "" => Err(DriverError::Empty { call, what }),
        handle => Ok(handle.to_owned()),
    }
}

fn path(call: &'static str, path: &Path) -> Result<String, DriverError> {
    path.to_str().map(str::to_owned).ok_or_else(|| {
        let status = Status::invalid_argument(format!("{path:?} is not text"));
        DriverError::Refused { call, status }
    })
}
