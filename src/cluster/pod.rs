//! A Pod, as far as podmon looks at it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use kube::core::ObjectMeta;
use serde::Deserialize;
use serde_json::Value;

use super::Protection;
use super::node::{Condition, is_true};
use super::view::view;
use crate::domain::{Incarnation, NodeName, PodKey, ResourceVersion};

/// Marks a static pod's mirror: the kubelet's own file, not the API, says that it runs.
const MIRROR: &str = "kubernetes.io/config.mirror";
const HOSTNAME: &str = "kubernetes.io/hostname";

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Pod {
    pub incarnation: Incarnation,
    pub version: ResourceVersion,
    pub node: Option<NodeName>,
    /// Carries the configured label.
    pub protected: bool,
    pub phase: Phase,
    /// The Ready condition is True.
    pub ready: bool,
    /// A container of it was started by the kubelet, as far as the API knows.
    pub started: bool,
    /// It has a deletion timestamp.
    pub terminating: bool,
    pub finalizers: Vec<String>,
    /// Its controlling owner.
    pub owner: Option<Owner>,
    pub mirror: bool,
    /// A regular container waits in CrashLoopBackOff.
    pub crash_looping: bool,
    pub volumes: Vec<Source>,
    /// Labels that its required affinity to pods on the same host selects; pods with equal ones move together.
    pub affinity: BTreeMap<String, String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
    Unknown,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Owner {
    pub kind: String,
    pub name: String,
}

/// Where a volume of the pod comes from.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Source {
    /// A PersistentVolumeClaim of the pod's namespace, by name.
    Claim(String),
    /// The claim that a generic ephemeral volume made; it belongs to this very pod.
    Ephemeral(String),
    /// A volume that Kubernetes attaches to nodes by code of its own, named in the pod itself.
    InTree(String),
}

impl Pod {
    /// It came to its end by itself; its volumes are no longer in use.
    pub fn finished(&self) -> bool {
        matches!(self.phase, Phase::Succeeded | Phase::Failed)
    }
}

/// The wire form of [`Pod`].
#[derive(Clone, Debug, Deserialize)]
pub struct PodView {
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}
view!(PodView of core::Pod, NamespaceResourceScope);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(default)]
    node_name: Option<String>,
    #[serde(default)]
    volumes: Option<Vec<BTreeMap<String, Value>>>,
    #[serde(default)]
    affinity: Option<Affinity>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Affinity {
    #[serde(default)]
    pod_affinity: Option<PodAffinity>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodAffinity {
    #[serde(default)]
    required_during_scheduling_ignored_during_execution: Option<Vec<Term>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Term {
    #[serde(default)]
    topology_key: String,
    #[serde(default)]
    label_selector: Option<Selector>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Selector {
    #[serde(default)]
    match_labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    match_expressions: Option<Vec<Expression>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Expression {
    #[serde(default)]
    key: String,
    #[serde(default)]
    operator: String,
    #[serde(default)]
    values: Option<Vec<String>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    #[serde(default)]
    phase: String,
    #[serde(default)]
    conditions: Option<Vec<Condition>>,
    #[serde(default)]
    init_container_statuses: Option<Vec<ContainerStatus>>,
    #[serde(default)]
    container_statuses: Option<Vec<ContainerStatus>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerStatus {
    #[serde(default, rename = "containerID")]
    container_id: Option<String>,
    #[serde(default)]
    state: Option<ContainerState>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct ContainerState {
    #[serde(default)]
    waiting: Option<Waiting>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Waiting {
    #[serde(default)]
    reason: Option<String>,
}

impl Affinity {
    /// What required affinity to pods on the same host selects: equality labels, and `In` with its last value.
    fn host_labels(self) -> BTreeMap<String, String> {
        let terms = self
            .pod_affinity
            .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution)
            .unwrap_or_default();
        let mut labels = BTreeMap::new();
        let on_host = terms
            .into_iter()
            .filter(|term| term.topology_key == HOSTNAME);
        for selector in on_host.filter_map(|term| term.label_selector) {
            labels.extend(selector.match_labels.unwrap_or_default());
            for expression in selector.match_expressions.unwrap_or_default() {
                if expression.operator == "In" {
                    let values = expression.values.unwrap_or_default();
                    labels.extend(
                        values
                            .into_iter()
                            .map(|value| (expression.key.clone(), value)),
                    );
                }
            }
        }
        labels
    }
}

/// Volume sources of a pod or PersistentVolume that Kubernetes attaches to a node without a CSI driver being named.
pub(super) const IN_TREE_ATTACHABLE: [&str; 8] = [
    "awsElasticBlockStore",
    "azureDisk",
    "cinder",
    "fc",
    "gcePersistentDisk",
    "iscsi",
    "rbd",
    "vsphereVolume",
];

fn source(pod: &str, volume: &BTreeMap<String, Value>) -> Option<Source> {
    if let Some(claim) = volume.get("persistentVolumeClaim") {
        let name = claim
            .get("claimName")
            .and_then(Value::as_str)
            .unwrap_or_default();
        return Some(Source::Claim(name.to_owned()));
    }
    if volume.contains_key("ephemeral") {
        let name = volume
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or_default();
        return Some(Source::Ephemeral(format!("{pod}-{name}")));
    }
    let in_tree = IN_TREE_ATTACHABLE
        .iter()
        .find(|kind| volume.contains_key(**kind));
    in_tree.map(|kind| Source::InTree((*kind).to_owned()))
}

impl PodView {
    /// The parts that matter, with the label that protects.
    pub fn observe(self, protection: &Protection) -> Pod {
        let metadata = self.metadata;
        let key = PodKey {
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
        };
        let labels = metadata.labels.unwrap_or_default();
        let annotations = metadata.annotations.unwrap_or_default();
        let owners = metadata.owner_references.unwrap_or_default();
        let containers = self.status.container_statuses.unwrap_or_default();
        let inits = self.status.init_container_statuses.unwrap_or_default();
        let started = |status: &ContainerStatus| {
            status
                .container_id
                .as_deref()
                .is_some_and(|id| !id.is_empty())
        };
        let crash_looping = |status: &ContainerStatus| {
            let waiting = status
                .state
                .as_ref()
                .and_then(|state| state.waiting.as_ref());
            waiting.is_some_and(|w| w.reason.as_deref() == Some("CrashLoopBackOff"))
        };
        let volumes = self.spec.volumes.unwrap_or_default();
        Pod {
            version: metadata.resource_version.unwrap_or_default().into(),
            node: self
                .spec
                .node_name
                .filter(|name| !name.is_empty())
                .map(NodeName::from),
            protected: protection.covers(&key.namespace, &labels, &annotations),
            phase: match self.status.phase.as_str() {
                "Pending" | "" => Phase::Pending,
                "Running" => Phase::Running,
                "Succeeded" => Phase::Succeeded,
                "Failed" => Phase::Failed,
                _ => Phase::Unknown,
            },
            ready: is_true(
                self.status.conditions.as_deref().unwrap_or_default(),
                "Ready",
            ),
            started: inits.iter().chain(&containers).any(started),
            terminating: metadata.deletion_timestamp.is_some(),
            finalizers: metadata.finalizers.unwrap_or_default(),
            owner: owners
                .into_iter()
                .find(|owner| owner.controller == Some(true))
                .map(|owner| Owner {
                    kind: owner.kind,
                    name: owner.name,
                }),
            mirror: annotations.contains_key(MIRROR),
            crash_looping: containers.iter().any(crash_looping),
            volumes: volumes
                .iter()
                .filter_map(|volume| source(&key.name, volume))
                .collect(),
            affinity: self
                .spec
                .affinity
                .map(Affinity::host_labels)
                .unwrap_or_default(),
            incarnation: Incarnation {
                key,
                uid: metadata.uid.unwrap_or_default().into(),
            },
        }
    }
}
