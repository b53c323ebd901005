//! Which pods are to be evacuated, and why not the others. Pure: the same answer for the cached picture, which says
//! where to look, and for the one just read, by which a group is announced.

use crate::cluster::node::Node;
use crate::cluster::pod::{Phase, Pod};
use crate::domain::{NodeName, PodUid};
use crate::journal::{Cause, Found};
use crate::taint::{self, Taint};

use super::world::World;

/// The value with which podmon itself sets the out-of-service taint; with it the taint is no operator's word.
pub const OWN_OUT_OF_SERVICE: &str = "podmon";

/// What is to become of one protected pod.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    Leave(Reason),
    Evacuate(Cause),
}

/// Why a pod is left where it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Reason {
    /// It does not carry the label.
    Unprotected,
    /// It succeeded or failed by itself; its result must not be lost.
    Finished,
    /// No evidence says that its node failed. Our own taint is none.
    NodeHealthy,
    /// The node failed, and the pod is ready all the same.
    Ready,
}

/// Set by podmon for the seconds of a release: no evidence, and podmon's to remove.
pub fn is_own_out_of_service(t: &Taint) -> bool {
    t.key == taint::OUT_OF_SERVICE && t.value.as_deref() == Some(OWN_OUT_OF_SERVICE)
}

/// Why the node counts as failed now. `array_lost`: the array answered *disconnected* as often as the threshold asks.
pub fn evidence(node: &Node, array_lost: bool) -> Option<Cause> {
    let out_of_service = |t: &&Taint| t.key == taint::OUT_OF_SERVICE && !is_own_out_of_service(t);
    if !node.ready && node.unreachable() {
        Some(Cause::NodeFailure)
    } else if node.taints.iter().any(|t| out_of_service(&t)) {
        Some(Cause::OutOfService)
    } else if array_lost {
        Some(Cause::ArrayConnectivityLoss)
    } else {
        None
    }
}

/// The verdict on one pod that is bound to this node.
pub fn judge(pod: &Pod, node: &Node, array_lost: bool) -> Verdict {
    if !pod.protected {
        return Verdict::Leave(Reason::Unprotected);
    }
    if pod.finished() {
        return Verdict::Leave(Reason::Finished);
    }
    match evidence(node, array_lost) {
        None => Verdict::Leave(Reason::NodeHealthy),
        // A pod whose array is lost does no work, whatever its probe says.
        Some(_) if pod.ready && array_lost => Verdict::Evacuate(Cause::ArrayConnectivityLoss),
        Some(_) if pod.ready => Verdict::Leave(Reason::Ready),
        Some(cause) => Verdict::Evacuate(cause),
    }
}

/// The verdicts on the protected pods of a node, by the cached picture.
pub fn decide(world: &World, name: &NodeName, array_lost: bool) -> Vec<(PodUid, Verdict)> {
    let Some(node) = world.node(name) else {
        return Vec::new();
    };
    let pods = world.pods_on(name);
    pods.map(|pod| (pod.incarnation.uid.clone(), judge(pod, node, array_lost)))
        .collect()
}

/// Whether there is work for an evacuation on this node, by the cached picture: something to evacuate, or something
/// begun.
pub fn concerns(world: &World, name: &NodeName, array_lost: bool) -> bool {
    let begun = world
        .node(name)
        .is_some_and(|node| match node.read_journal() {
            Found::Absent => false,
            Found::Journal(journal) => {
                let came = |pod: &Pod| pod.phase == Phase::Pending && !pod.started;
                journal.is_open()
                    || node.taints.iter().any(is_own_out_of_service)
                    || world.pods_on(name).any(came)
            }
            Found::Unreadable(_) => true,
        });
    begun
        || decide(world, name, array_lost)
            .iter()
            .any(|(_, verdict)| matches!(verdict, Verdict::Evacuate(_)))
}
