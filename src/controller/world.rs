//! What the controller has seen, from its watches: plain data, which may be old. It says where to look; nothing
//! irreversible is done by it.

use std::collections::{BTreeMap, BTreeSet};

use crate::cluster::attachment::Attachment;
use crate::cluster::node::Node;
use crate::cluster::pod::Pod;
use crate::cluster::watch::Change;
use crate::domain::{NodeName, PodUid};

/// A change that a watch or a poll brought.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Observation {
    Pod(Change<Pod>),
    Node(Change<Node>),
    Attachment(Change<Attachment>),
    /// A pod of the driver's own.
    DriverPod(Change<Pod>),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct World {
    /// Protected pods that are bound to a node.
    pods: BTreeMap<PodUid, Pod>,
    bound: BTreeMap<NodeName, BTreeSet<PodUid>>,
    nodes: BTreeMap<NodeName, Node>,
    pods_known: bool,
    nodes_known: bool,
}

impl World {
    /// Takes in a change; the nodes that it concerns.
    pub fn observe(&mut self, observation: &Observation) -> BTreeSet<NodeName> {
        match observation {
            Observation::Pod(change) => self.observe_pods(change),
            Observation::Node(change) => self.observe_nodes(change),
            Observation::Attachment(change) => match change {
                Change::Applied(a) | Change::Deleted(a) => BTreeSet::from([a.node.clone()]),
                Change::All(_) | Change::Stale(_) => BTreeSet::new(),
            },
            Observation::DriverPod(_) => BTreeSet::new(),
        }
    }

    /// Whether every watch has shown its whole picture once.
    pub fn complete(&self) -> bool {
        self.pods_known && self.nodes_known
    }

    pub fn node(&self, name: &NodeName) -> Option<&Node> {
        self.nodes.get(name)
    }

    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    /// A protected pod that is bound to a node.
    pub fn pod(&self, uid: &PodUid) -> Option<&Pod> {
        self.pods.get(uid)
    }

    /// The protected pods on a node.
    pub fn pods_on(&self, node: &NodeName) -> impl Iterator<Item = &Pod> {
        let uids = self.bound.get(node).into_iter().flatten();
        uids.filter_map(|uid| self.pods.get(uid))
    }

    fn observe_pods(&mut self, change: &Change<Pod>) -> BTreeSet<NodeName> {
        let mut touched = BTreeSet::new();
        match change {
            Change::All(pods) => {
                self.pods_known = true;
                let old = std::mem::take(&mut self.pods);
                self.bound.clear();
                for pod in pods {
                    let same = old.get(&pod.incarnation.uid) == Some(pod);
                    let node = self.insert(pod.clone());
                    touched.extend(node.filter(|_| !same));
                }
                let gone = old
                    .into_iter()
                    .filter(|(uid, _)| !self.pods.contains_key(uid));
                touched.extend(gone.filter_map(|(_, pod)| pod.node));
            }
            Change::Applied(pod) => {
                touched.extend(self.remove(&pod.incarnation.uid));
                touched.extend(self.insert(pod.clone()));
            }
            Change::Deleted(pod) => touched.extend(self.remove(&pod.incarnation.uid)),
            Change::Stale(_) => {}
        }
        touched
    }

    fn insert(&mut self, pod: Pod) -> Option<NodeName> {
        let node = pod.node.clone().filter(|_| pod.protected)?;
        let uid = pod.incarnation.uid.clone();
        self.bound
            .entry(node.clone())
            .or_default()
            .insert(uid.clone());
        self.pods.insert(uid, pod);
        Some(node)
    }

    fn remove(&mut self, uid: &PodUid) -> Option<NodeName> {
        let node = self.pods.remove(uid)?.node?;
        if let Some(uids) = self.bound.get_mut(&node) {
            uids.remove(uid);
            if uids.is_empty() {
                self.bound.remove(&node);
            }
        }
        Some(node)
    }

    fn observe_nodes(&mut self, change: &Change<Node>) -> BTreeSet<NodeName> {
        match change {
            Change::All(nodes) => {
                self.nodes_known = true;
                let new = nodes.iter().map(|node| (node.name.clone(), node.clone()));
                let old = std::mem::replace(&mut self.nodes, new.collect());
                let changed = self
                    .nodes
                    .iter()
                    .filter(|(name, node)| old.get(*name) != Some(*node));
                let gone = old.keys().filter(|name| !self.nodes.contains_key(*name));
                changed.map(|(name, _)| name).chain(gone).cloned().collect()
            }
            Change::Applied(node) => {
                let before = self.nodes.insert(node.name.clone(), node.clone());
                let changed = before.is_none_or(|before| !same(&before, node));
                changed.then(|| node.name.clone()).into_iter().collect()
            }
            Change::Deleted(node) => {
                self.nodes.remove(&node.name);
                BTreeSet::from([node.name.clone()])
            }
            Change::Stale(_) => BTreeSet::new(),
        }
    }
}

/// Whether nothing differs but the version: a heartbeat.
pub fn same(a: &Node, b: &Node) -> bool {
    let strip = |node: &Node| Node {
        version: "".into(),
        volumes_in_use: Vec::new(),
        ..node.clone()
    };
    strip(a) == strip(b)
}
