//! Crash loops: a protected pod in CrashLoopBackOff on a sound node is deleted, a few times (contract §1.18).

use std::collections::{BTreeMap, BTreeSet};

use crate::cluster::node::Node;
use crate::cluster::pod::{Owner, Pod};
use crate::domain::{Incarnation, PodUid};
use crate::names::Names;
use crate::taint;

/// Deletions at most, until the pod is seen ready.
const MOST: u32 = 5;

/// What a count belongs to: it survives the pod, or a crash loop would never end (holes.md, L14).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Counted {
    /// Its successor has the same name.
    Name(String, String),
    /// Its successors have other names.
    Owner(String, Owner),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct CrashLoops {
    counts: BTreeMap<Counted, u32>,
    /// Incarnations that were told to go, so that each is told once.
    told: BTreeSet<PodUid>,
}

/// A pod to delete, for the how-many-th time.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Restart {
    pub pod: Incarnation,
    pub retry: u32,
}

impl CrashLoops {
    /// Whether this pod, as just seen on this node, is to be deleted.
    pub fn judge(&mut self, pod: &Pod, node: &Node, names: &Names) -> Option<Restart> {
        let uid = &pod.incarnation.uid;
        let counted = counted(pod);
        if pod.ready {
            self.counts.remove(&counted);
            self.told.remove(uid);
            return None;
        }
        let sound = !node.unreachable()
            && !node.tainted(names)
            && !taint::has(&node.taints, &names.offline_taint, taint::NO_SCHEDULE);
        let due =
            pod.protected && pod.crash_looping && !pod.terminating && !pod.finished() && sound;
        if !due || self.told.contains(uid) {
            return None;
        }
        let count = self.counts.entry(counted).or_default();
        if *count >= MOST {
            return None;
        }
        let retry = *count;
        *count += 1;
        self.told.insert(uid.clone());
        Some(Restart {
            pod: pod.incarnation.clone(),
            retry,
        })
    }

    /// The pod is gone, or its deletion failed: it may be told again, and counts all the same.
    pub fn forget(&mut self, uid: &PodUid) {
        self.told.remove(uid);
    }
}

fn counted(pod: &Pod) -> Counted {
    let namespace = pod.incarnation.key.namespace.clone();
    match &pod.owner {
        Some(owner) if owner.kind != "StatefulSet" => Counted::Owner(namespace, owner.clone()),
        _ => Counted::Name(namespace, pod.incarnation.key.name.clone()),
    }
}
