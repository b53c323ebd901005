//! The patches by which a node changes its own Node object, each computed from one read of it.

use std::collections::BTreeSet;

use crate::cluster::NodePatch;
use crate::cluster::node::Node;
use crate::domain::{BootId, PodUid};
use crate::journal::{Cause, Journal, Phase, VERSION};
use crate::names::Names;
use crate::taint::{self, Taint};

use super::requalify::Verdict;

/// The patch that a verdict asks for, if any. `wall` is the time to show to people.
pub fn of(
    verdict: &Verdict,
    node: &Node,
    names: &Names,
    boot: Option<&BootId>,
    wall: &str,
) -> Option<NodePatch> {
    let patch = NodePatch {
        node: node.name.clone(),
        version: node.version.clone(),
        taints: None,
        journal: None,
    };
    let tainted = || {
        taint::with(
            &node.taints,
            Taint {
                key: names.taint.clone(),
                value: None,
                effect: taint::NO_SCHEDULE.to_owned(),
                time_added: Some(wall.to_owned()),
            },
        )
    };
    match verdict {
        Verdict::Nothing | Verdict::Wait(_) | Verdict::Clean(..) => None,
        Verdict::Lift => Some(NodePatch {
            taints: taint::without(&node.taints, &names.taint, taint::NO_SCHEDULE),
            journal: node.journal.is_some().then_some(None),
            ..patch
        }),
        Verdict::RemoveJournal => Some(NodePatch {
            journal: Some(None),
            ..patch
        }),
        Verdict::PutTaintBack(_) => Some(NodePatch {
            taints: tainted(),
            ..patch
        }),
        Verdict::TaintRecreated(unclean, _) => Some(NodePatch {
            taints: tainted(),
            journal: Some(Some(recreated(node, unclean, boot, wall))),
            ..patch
        }),
    }
}

/// The journal of a node that finds itself registered anew: there was nobody to evacuate it, and what is left of the
/// old Node's pods has to go.
fn recreated(
    node: &Node,
    unclean: &BTreeSet<PodUid>,
    boot: Option<&BootId>,
    wall: &str,
) -> Journal {
    Journal {
        version: VERSION,
        id: format!("node-{}", node.version),
        by: format!("node/{}", node.name),
        phase: Phase::Closed,
        why: Cause::NodeRecreated,
        node: node.uid.clone(),
        boot: boot.map(ToString::to_string).unwrap_or_default(),
        since: wall.to_owned(),
        array: None,
        pods: Default::default(),
        volumes: Default::default(),
        gone: unclean.clone(),
    }
}
