//! The connectivity extension: what the array saw of a node and of I/O on volumes.

use std::time::Duration;

use tonic::{Request, Response, Status};

use crate::proto::podmon::podmon_server::Podmon;
use crate::proto::podmon::{
    ValidateVolumeHostConnectivityRequest, ValidateVolumeHostConnectivityResponse,
};
use crate::storage::door::Door;
use crate::storage::request::{Answer, Request as ArrayRequest};
use crate::storage::trouble::Call;

/// The extension service. A driver without the extension is one that does not serve it.
#[derive(Debug, Clone)]
pub struct ConnectivityService {
    pub door: Door,
}

#[tonic::async_trait]
impl Podmon for ConnectivityService {
    /// Neither node nor volume: the call is only asked whether it exists.
    async fn validate_volume_host_connectivity(
        &self,
        request: Request<ValidateVolumeHostConnectivityRequest>,
    ) -> Result<Response<ValidateVolumeHostConnectivityResponse>, Status> {
        let asked = request.into_inner();
        if asked.node_id.is_empty() && asked.volume_ids.is_empty() {
            return Ok(Response::new(Default::default()));
        }
        let node = super::node_id(&asked.node_id)?;
        let volumes = asked.volume_ids.iter().map(|id| super::volume_id(id));
        let volumes = volumes.collect::<Result<Vec<_>, _>>()?;
        let seconds = u64::try_from(asked.io_sample_time_seconds).unwrap_or(0);
        let request = ArrayRequest::Connectivity {
            node: node.clone(),
            volumes: volumes.clone(),
            sample: (seconds > 0).then_some(Duration::from_secs(seconds)),
        };
        let door = self.door.clone();
        let act = move |_| async move {
            match door.ask(request).await.map_err(super::status)? {
                Answer::Connectivity(said) => {
                    Ok(Response::new(ValidateVolumeHostConnectivityResponse {
                        connected: said.connected,
                        ios_in_progress: said.io_in_progress,
                        messages: vec![format!("{said:?}")],
                    }))
                }
                other => Err(super::nonsense(&other)),
            }
        };
        super::carry_out(&self.door, Call::Connectivity, volumes, Some(node), act).await
    }
}
