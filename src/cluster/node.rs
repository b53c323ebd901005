//! A Node, as far as podmon looks at it.

use k8s_openapi::api::core::v1 as core;
use kube::core::ObjectMeta;
use serde::Deserialize;

use super::view::view;
use crate::domain::{BootId, NodeId, NodeName, NodeUid, ResourceVersion};
use crate::journal::{Found, Journal};
use crate::names::Names;
use crate::taint::{self, Taint};

/// Where kubelets write the drivers' node ids: a JSON object from driver to id.
const NODE_IDS: &str = "csi.volume.kubernetes.io/nodeid";

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Node {
    pub name: NodeName,
    pub uid: NodeUid,
    pub version: ResourceVersion,
    /// The Ready condition is True.
    pub ready: bool,
    pub taints: Vec<Taint>,
    /// The operator wants no evacuation begun here.
    pub paused: bool,
    /// The journal's annotation, as it stands.
    pub journal: Option<String>,
    /// The driver's node id by the kubelet's annotation.
    pub annotated_id: Option<NodeId>,
    pub boot: BootId,
    /// `status.volumesInUse`, as it stands.
    pub volumes_in_use: Vec<String>,
}

impl Node {
    /// Tainted as lost by the node lifecycle controller, with either effect.
    pub fn unreachable(&self) -> bool {
        self.taints.iter().any(|t| t.key == taint::UNREACHABLE)
    }

    /// Carries the taint by which podmon keeps pods off.
    pub fn tainted(&self, names: &Names) -> bool {
        taint::has(&self.taints, &names.taint, taint::NO_SCHEDULE)
    }

    /// The journal that stands on it.
    pub fn read_journal(&self) -> Found {
        Journal::read(self.journal.as_deref(), &self.uid)
    }
}

/// The wire form of [`Node`].
#[derive(Clone, Debug, Deserialize)]
pub struct NodeView {
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}
view!(NodeView of core::Node, ClusterResourceScope);

#[derive(Clone, Debug, Default, Deserialize)]
struct Spec {
    #[serde(default)]
    taints: Option<Vec<Taint>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    #[serde(default)]
    conditions: Option<Vec<Condition>>,
    #[serde(default)]
    volumes_in_use: Option<Vec<String>>,
    #[serde(default)]
    node_info: NodeInfo,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Condition {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) status: String,
}

/// Whether the condition of this type is True; absent is not.
pub(super) fn is_true(conditions: &[Condition], kind: &str) -> bool {
    conditions
        .iter()
        .any(|c| c.kind == kind && c.status == "True")
}

#[derive(Clone, Debug, Default, Deserialize)]
struct NodeInfo {
    #[serde(default, rename = "bootID")]
    boot_id: String,
}

impl NodeView {
    /// The parts that matter for the driver of these names.
    pub fn observe(self, names: &Names) -> Node {
        let annotations = self.metadata.annotations.unwrap_or_default();
        let annotated_id = annotations
            .get(NODE_IDS)
            .and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok())
            .and_then(|ids| {
                // The contract's key is the driver path; kubelets write the driver's name.
                let by = |key: &str| ids.get(key)?.as_str().map(str::to_owned);
                by(&names.node_id_key).or_else(|| by(names.driver.as_str()))
            })
            .filter(|id| !id.is_empty())
            .map(NodeId::from);
        Node {
            name: self.metadata.name.unwrap_or_default().into(),
            uid: self.metadata.uid.unwrap_or_default().into(),
            version: self.metadata.resource_version.unwrap_or_default().into(),
            ready: is_true(
                self.status.conditions.as_deref().unwrap_or_default(),
                "Ready",
            ),
            taints: self.spec.taints.unwrap_or_default(),
            paused: annotations
                .get(&names.pause)
                .is_some_and(|value| value == "true"),
            journal: annotations.get(&names.journal).cloned(),
            annotated_id,
            boot: self.status.node_info.boot_id.into(),
            volumes_in_use: self.status.volumes_in_use.unwrap_or_default(),
        }
    }
}
