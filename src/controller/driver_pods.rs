//! The driver's own node pods: a node on which none of them is ready takes no new pods, and that is all it means
//! (design.md, "Evidence").

use std::collections::{BTreeMap, BTreeSet};

use crate::cluster::NodePatch;
use crate::cluster::node::Node;
use crate::cluster::pod::Pod;
use crate::cluster::watch::Change;
use crate::domain::{NodeName, PodUid};
use crate::names::Names;
use crate::taint::{self, Taint};

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct DriverPods {
    pods: BTreeMap<PodUid, (NodeName, State)>,
    known: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum State {
    Ready,
    NotReady,
    /// An evicted or failed one says nothing of its successor.
    Finished,
}

impl DriverPods {
    /// Takes in a change; the nodes that it concerns.
    pub fn observe(&mut self, change: &Change<Pod>) -> BTreeSet<NodeName> {
        let mut touched = BTreeSet::new();
        match change {
            Change::All(pods) => {
                self.known = true;
                touched.extend(self.pods.values().map(|(node, _)| node.clone()));
                self.pods = pods.iter().filter_map(entry).collect();
                touched.extend(self.pods.values().map(|(node, _)| node.clone()));
            }
            Change::Applied(pod) => {
                if let Some((uid, (node, state))) = entry(pod) {
                    touched.insert(node.clone());
                    self.pods.insert(uid, (node, state));
                }
            }
            Change::Deleted(pod) => {
                touched.extend(self.pods.remove(&pod.incarnation.uid).map(|(node, _)| node));
            }
            Change::Stale(_) => {}
        }
        touched
    }

    /// The patch that makes the node's taint say what its driver pods say; `None` where it does.
    pub fn patch(&self, node: &Node, names: &Names, wall: &str) -> Option<NodePatch> {
        if !self.known {
            return None;
        }
        let here = self.pods.values().filter(|(name, _)| *name == node.name);
        let states: Vec<State> = here.map(|(_, state)| *state).collect();
        let offline = states.contains(&State::NotReady) && !states.contains(&State::Ready);
        let taints = if offline {
            let taint = Taint {
                key: names.offline_taint.clone(),
                value: None,
                effect: taint::NO_SCHEDULE.into(),
                time_added: Some(wall.to_owned()),
            };
            taint::with(&node.taints, taint)
        } else {
            // Also where none is left: without the taint's going its successor might never be scheduled.
            taint::without(&node.taints, &names.offline_taint, taint::NO_SCHEDULE)
        };
        Some(NodePatch {
            node: node.name.clone(),
            version: node.version.clone(),
            taints: Some(taints?),
            journal: None,
        })
    }
}

fn entry(pod: &Pod) -> Option<(PodUid, (NodeName, State))> {
    let state = match (pod.finished(), pod.ready) {
        (true, _) => State::Finished,
        (false, true) => State::Ready,
        (false, false) => State::NotReady,
    };
    Some((pod.incarnation.uid.clone(), (pod.node.clone()?, state)))
}
