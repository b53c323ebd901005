//! A VolumeAttachment, as far as podmon looks at it.

use k8s_openapi::api::storage::v1 as storage;
use kube::core::ObjectMeta;
use serde::Deserialize;

use super::view::view;
use crate::domain::{AttachmentName, AttachmentUid, DriverName, NodeId, NodeName, VolumeName};

/// Where the external-attacher writes the node id that it published to.
const NODE_ID: &str = "csi.alpha.kubernetes.io/node-id";

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Attachment {
    pub name: AttachmentName,
    pub uid: AttachmentUid,
    pub driver: DriverName,
    pub volume: VolumeName,
    pub node: NodeName,
    /// The driver said that the volume is published.
    pub attached: bool,
    /// It has a deletion timestamp: from then on the attacher does not publish through it.
    pub deleting: bool,
    /// The node id that it was published to, as the attacher noted it.
    pub node_id: Option<NodeId>,
}

/// The wire form of [`Attachment`].
#[derive(Clone, Debug, Deserialize)]
pub struct AttachmentView {
    pub metadata: ObjectMeta,
    spec: Spec,
    #[serde(default)]
    status: Option<Status>,
}
view!(AttachmentView of storage::VolumeAttachment, ClusterResourceScope);

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    attacher: String,
    node_name: String,
    source: Source,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Source {
    #[serde(default)]
    persistent_volume_name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Status {
    #[serde(default)]
    attached: bool,
}

impl AttachmentView {
    /// `None` for an inline volume's attachment, which no PersistentVolume stands behind.
    pub fn observe(self) -> Option<Attachment> {
        let annotations = self.metadata.annotations.unwrap_or_default();
        let node_id = annotations.get(NODE_ID).filter(|id| !id.is_empty());
        Some(Attachment {
            name: self.metadata.name.unwrap_or_default().into(),
            uid: self.metadata.uid.unwrap_or_default().into(),
            driver: self.spec.attacher.into(),
            volume: self.spec.source.persistent_volume_name?.into(),
            node: self.spec.node_name.into(),
            attached: self.status.unwrap_or_default().attached,
            deleting: self.metadata.deletion_timestamp.is_some(),
            node_id: node_id.map(|id| id.as_str().into()),
        })
    }
}
