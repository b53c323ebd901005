//! CSI Controller: volumes come and go, nodes get and lose access.

use std::collections::HashMap;

use tonic::{Request, Response, Status};

use crate::proto::csi::controller_server::Controller;
use crate::proto::csi::controller_service_capability::rpc::Type as Rpc;
use crate::proto::csi::controller_service_capability::{Rpc as RpcCapability, Type};
use crate::proto::csi::list_volumes_response::{Entry, VolumeStatus};
use crate::proto::csi::validate_volume_capabilities_response::Confirmed;
use crate::proto::csi::volume_capability::{AccessType, access_mode::Mode};
use crate::proto::csi::{
    CapacityRange, ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse,
    ControllerGetVolumeRequest, ControllerGetVolumeResponse, ControllerPublishVolumeRequest,
    ControllerPublishVolumeResponse, ControllerServiceCapability, ControllerUnpublishVolumeRequest,
    ControllerUnpublishVolumeResponse, CreateVolumeRequest, CreateVolumeResponse,
    DeleteVolumeRequest, DeleteVolumeResponse, GetCapacityRequest, GetCapacityResponse,
    ListVolumesRequest, ListVolumesResponse, ValidateVolumeCapabilitiesRequest,
    ValidateVolumeCapabilitiesResponse, Volume, VolumeCapability,
};
use crate::storage::array::{Refusal, VolumeState};
use crate::storage::door::Door;
use crate::storage::name::{Epoch, NodeId, VolumeId};
use crate::storage::request::{Answer, Request as ArrayRequest};
use crate::storage::trouble::Call;

const DEFAULT_BYTES: u64 = 64 << 20;
/// The array's volumes are sparse files, so this is only a number to answer with.
const CAPACITY: u64 = 1 << 40;

/// The Controller service.
#[derive(Debug, Clone)]
pub struct ControllerService {
    pub door: Door,
    /// Tells in ListVolumes which nodes have access, upon which an attacher re-publishes what it finds missing.
    pub published_nodes: bool,
}

impl ControllerService {
    async fn volumes(&self) -> Result<Vec<VolumeState>, Status> {
        match self.door.ask(ArrayRequest::Volumes).await {
            Ok(Answer::Volumes(volumes)) => Ok(volumes),
            Ok(other) => Err(super::nonsense(&other)),
            Err(refusal) => Err(super::status(refusal)),
        }
    }

    async fn existing(&self, id: &str) -> Result<VolumeState, Status> {
        let id = super::volume_id(id)?;
        let found = self.volumes().await?.into_iter().find(|v| v.volume == id);
        found.ok_or_else(|| Status::not_found(Refusal::UnknownVolume(id).to_string()))
    }
}

#[tonic::async_trait]
impl Controller for ControllerService {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let asked = request.into_inner();
        if asked.volume_content_source.is_some() {
            return Err(Status::invalid_argument(
                "volumes are always empty at first",
            ));
        }
        check_capabilities(&asked.volume_capabilities)?;
        let volume = id_for(&asked.name)?;
        let range = asked.capacity_range.unwrap_or_default();
        let mut bytes = size_within(&range)?;
        let request = |bytes| ArrayRequest::Create {
            volume: volume.clone(),
            bytes,
        };
        match self.door.ask(request(bytes)).await {
            Ok(_) => {}
            Err(Refusal::Exists { bytes: old, .. }) if fits(&range, old) => bytes = old,
            Err(refusal) => return Err(super::status(refusal)),
        }
        Ok(Response::new(CreateVolumeResponse {
            volume: Some(described(&volume, bytes)),
        }))
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        let id = request.into_inner().volume_id;
        match super::volume_id(&id) {
            Ok(volume) => super::done(&self.door, ArrayRequest::Delete { volume }).await?,
            Err(status) if status.code() == tonic::Code::NotFound => {}
            Err(status) => return Err(status),
        }
        Ok(Response::new(Default::default()))
    }

    async fn controller_publish_volume(
        &self,
        request: Request<ControllerPublishVolumeRequest>,
    ) -> Result<Response<ControllerPublishVolumeResponse>, Status> {
        let asked = request.into_inner();
        let volume = super::volume_id(&asked.volume_id)?;
        let node = super::node_id(&asked.node_id)?;
        check_capability(asked.volume_capability.as_ref())?;
        let (door, volumes, to) = (self.door.clone(), vec![volume.clone()], node.clone());
        let act = move |really| async move {
            let epoch = if really {
                super::grant(&door, volume, node).await?
            } else {
                Epoch::default()
            };
            let publish_context = HashMap::from([(super::EPOCH.to_owned(), epoch.to_string())]);
            Ok(Response::new(ControllerPublishVolumeResponse {
                publish_context,
            }))
        };
        super::carry_out(&self.door, Call::ControllerPublish, volumes, Some(to), act).await
    }

    /// What does not exist has no access, so it counts as unpublished. Without a node: from all nodes.
    async fn controller_unpublish_volume(
        &self,
        request: Request<ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<ControllerUnpublishVolumeResponse>, Status> {
        let asked = request.into_inner();
        let node = match asked.node_id.as_str() {
            "" => None,
            id => match NodeId::new(id) {
                Ok(node) => Some(node),
                Err(_) => return Ok(Response::new(Default::default())),
            },
        };
        let volume = match super::volume_id(&asked.volume_id) {
            Ok(volume) => volume,
            Err(status) if status.code() == tonic::Code::NotFound => {
                return Ok(Response::new(Default::default()));
            }
            Err(status) => return Err(status),
        };
        let (door, volumes, from) = (self.door.clone(), vec![volume.clone()], node.clone());
        let act = move |really: bool| async move {
            let request = ArrayRequest::Revoke {
                volume,
                node,
                pretend: !really,
            };
            super::done(&door, request).await?;
            Ok(Response::new(Default::default()))
        };
        super::carry_out(&self.door, Call::ControllerUnpublish, volumes, from, act).await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        let asked = request.into_inner();
        if asked.volume_id.is_empty() || asked.volume_capabilities.is_empty() {
            let text = "volume_id or volume_capabilities is missing";
            return Err(Status::invalid_argument(text));
        }
        self.existing(&asked.volume_id).await?;
        let answer = match check_capabilities(&asked.volume_capabilities) {
            Ok(()) => ValidateVolumeCapabilitiesResponse {
                confirmed: Some(Confirmed {
                    volume_context: asked.volume_context,
                    volume_capabilities: asked.volume_capabilities,
                    parameters: asked.parameters,
                    mutable_parameters: asked.mutable_parameters,
                }),
                message: String::new(),
            },
            Err(why) => ValidateVolumeCapabilitiesResponse {
                confirmed: None,
                message: why.message().to_owned(),
            },
        };
        Ok(Response::new(answer))
    }

    /// Pages by name, so that volumes that come and go between two pages shift nothing.
    async fn list_volumes(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Result<Response<ListVolumesResponse>, Status> {
        let asked = request.into_inner();
        let after = match asked.starting_token.as_str() {
            "" => None,
            token => Some(token.strip_prefix("after:").ok_or_else(|| {
                Status::aborted(format!("{token:?} is no starting_token of this driver"))
            })?),
        };
        let after = after.map(str::to_owned);
        let most = match usize::try_from(asked.max_entries) {
            Ok(0) => usize::MAX,
            Ok(most) => most,
            Err(_) => return Err(Status::invalid_argument("max_entries is negative")),
        };
        let this = self.clone();
        let act = move |_| async move {
            let mut left = this.volumes().await?;
            left.retain(|v| after.as_deref().is_none_or(|last| v.volume.as_str() > last));
            let more = left.len() > most;
            left.truncate(most);
            let last = left.last().filter(|_| more);
            let next_token = last.map_or_else(String::new, |v| format!("after:{}", v.volume));
            let entry = |v: &VolumeState| Entry {
                volume: Some(described(&v.volume, v.bytes)),
                status: this.published_nodes.then(|| VolumeStatus {
                    published_node_ids: v.granted.keys().map(NodeId::to_string).collect(),
                }),
            };
            Ok(Response::new(ListVolumesResponse {
                entries: left.iter().map(entry).collect(),
                next_token,
            }))
        };
        super::carry_out(&self.door, Call::ListVolumes, Vec::new(), None, act).await
    }

    async fn get_capacity(
        &self,
        _: Request<GetCapacityRequest>,
    ) -> Result<Response<GetCapacityResponse>, Status> {
        let used: u64 = self.volumes().await?.iter().map(|v| v.bytes).sum();
        Ok(Response::new(GetCapacityResponse {
            available_capacity: signed(CAPACITY.saturating_sub(used)),
            ..GetCapacityResponse::default()
        }))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let mut calls = vec![
            Rpc::CreateDeleteVolume,
            Rpc::PublishUnpublishVolume,
            Rpc::ListVolumes,
            Rpc::GetCapacity,
        ];
        calls.extend(
            self.published_nodes
                .then_some(Rpc::ListVolumesPublishedNodes),
        );
        let capability = |call: Rpc| ControllerServiceCapability {
            r#type: Some(Type::Rpc(RpcCapability {
                r#type: call.into(),
            })),
        };
        Ok(Response::new(ControllerGetCapabilitiesResponse {
            capabilities: calls.into_iter().map(capability).collect(),
        }))
    }

    async fn controller_get_volume(
        &self,
        _: Request<ControllerGetVolumeRequest>,
    ) -> Result<Response<ControllerGetVolumeResponse>, Status> {
        Err(Status::unimplemented("no GET_VOLUME"))
    }
}

/// The id under which a volume of this name is kept: the same for the same name, another for another.
fn id_for(name: &str) -> Result<VolumeId, Status> {
    if name.is_empty() {
        return Err(Status::invalid_argument("name is missing"));
    }
    let mut id = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' => id.push(char::from(byte)),
            b'.' if !id.is_empty() => id.push('.'),
            other => id.push_str(&format!("_{other:02x}")),
        }
    }
    VolumeId::new(&id).map_err(|error| Status::invalid_argument(error.to_string()))
}

fn size_within(range: &CapacityRange) -> Result<u64, Status> {
    let positive = |bytes: i64| {
        u64::try_from(bytes).map_err(|_| Status::invalid_argument("a negative capacity"))
    };
    let (least, most) = (
        positive(range.required_bytes)?,
        positive(range.limit_bytes)?,
    );
    let bytes = match (least, most) {
        (0, 0) => DEFAULT_BYTES,
        (0, most) => most.min(DEFAULT_BYTES),
        (least, _) => least,
    };
    if bytes > CAPACITY || !fits(range, bytes) {
        return Err(Status::out_of_range(format!("no volume of {range:?}")));
    }
    Ok(bytes)
}

fn fits(range: &CapacityRange, bytes: u64) -> bool {
    let bytes = signed(bytes);
    bytes >= range.required_bytes && (range.limit_bytes == 0 || bytes <= range.limit_bytes)
}

fn described(volume: &VolumeId, bytes: u64) -> Volume {
    Volume {
        capacity_bytes: signed(bytes),
        volume_id: volume.to_string(),
        ..Volume::default()
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn check_capabilities(capabilities: &[VolumeCapability]) -> Result<(), Status> {
    if capabilities.is_empty() {
        return Err(Status::invalid_argument("volume_capabilities is missing"));
    }
    capabilities
        .iter()
        .try_for_each(|capability| check_capability(Some(capability)))
}

/// Any access mode will do, since the array takes what it grants; a file system must be one that the node can make.
pub(super) fn check_capability(capability: Option<&VolumeCapability>) -> Result<(), Status> {
    let missing = |what| Err(Status::invalid_argument(format!("{what} is missing")));
    let Some(capability) = capability else {
        return missing("volume_capability");
    };
    let Some(kind) = &capability.access_type else {
        return missing("access_type");
    };
    let mode = capability.access_mode.as_ref().map(|mode| mode.mode());
    if matches!(mode, None | Some(Mode::Unknown)) {
        return missing("access_mode");
    }
    match kind {
        AccessType::Mount(mount) if !matches!(mount.fs_type.as_str(), "" | "ext4") => Err(
            Status::invalid_argument(format!("no file system {}", mount.fs_type)),
        ),
        _ => Ok(()),
    }
}
