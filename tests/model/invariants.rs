//! What must hold in every state, and on every call that podmon makes.

use std::collections::BTreeSet;

use podmon::controller::step::{Outcome, Step};
use podmon::domain::{NodeName, PodUid, VolumeName};
use podmon::journal::Journal;

use crate::cluster::{Cluster, node_id};
use crate::state::{A, State};

/// What was broken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Violation {
    /// Two incarnations run, and the array lets both of them at one volume.
    TwoWriters,
    /// A pod was deleted, and a volume of it never fenced.
    ReleasedUnfenced,
    /// An attachment was deleted, and a listed pod that uses it was still there.
    AttachmentBeforePod,
    /// A fence hit a pod that nobody had announced.
    RightfulFenced,
    /// An attachment was deleted that a pod uses which nobody had announced, on a node that is not tainted.
    RightfulDetached,
    /// An incarnation was deleted that nobody had announced.
    RightfulDeleted,
    /// The journal is open and the node not tainted.
    OpenWithoutTaint,
    /// An entry was released while the node had, or could get, its access back.
    ReleasedWithAccess,
    /// Nothing happens any more, and something is not done.
    Stuck,
    /// It goes on and on.
    NeverSettles,
}

/// What has happened, as far as the invariants look back.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Ghost {
    /// Fenced while the pod was bound.
    fenced: BTreeSet<(PodUid, VolumeName)>,
    /// Announced at any time.
    listed: BTreeSet<PodUid>,
}

impl Ghost {
    /// Before podmon's call takes effect.
    pub fn before(&mut self, step: &Step, state: &State) -> Result<(), Violation> {
        let cluster = &state.cluster;
        let node = NodeName::from(A);
        match step {
            Step::Fence(fence) => {
                for uid in cluster.users_on(&fence.volume, &node) {
                    let listed =
                        cluster
                            .journal(A)
                            .filter(Journal::is_open)
                            .is_some_and(|journal| {
                                // What comes to the tainted node is announced next, and not started before.
                                journal.pods.contains_key(uid) || !cluster.pods[uid].started
                            });
                    if !listed && cluster.nodes.contains_key(&node) {
                        return Err(Violation::RightfulFenced);
                    }
                }
                Ok(())
            }
            Step::DeletePod { pod, .. } => {
                let Some(uses) = cluster.uses.get(&pod.uid) else {
                    return Ok(());
                };
                if !self.listed.contains(&pod.uid) {
                    return Err(Violation::RightfulDeleted);
                }
                let mut volumes = uses.ours.iter();
                // One that came to a volume without access was fenced with the one before.
                let fenced = volumes.all(|v| {
                    self.fenced.contains(&(pod.uid.clone(), v.clone()))
                        || (!cluster.pods[&pod.uid].started && !cluster.can_write(v.as_str(), A))
                });
                if fenced {
                    Ok(())
                } else {
                    Err(Violation::ReleasedUnfenced)
                }
            }
            Step::DeleteAttachment { uid, .. } => {
                let Some(attachment) = cluster.attachments.get(uid) else {
                    return Ok(());
                };
                let users = cluster.users_on(&attachment.volume, &attachment.node);
                // One that came meanwhile, and was never started, is fenced again before it goes itself.
                let started = |uid: &&PodUid| cluster.pods[*uid].started;
                if users
                    .iter()
                    .copied()
                    .filter(started)
                    .any(|uid| self.listed.contains(uid))
                {
                    return Err(Violation::AttachmentBeforePod);
                }
                let rightful = attachment.node != node || !cluster.tainted(A);
                if !users.is_empty() && rightful && cluster.nodes.contains_key(&node) {
                    return Err(Violation::RightfulDetached);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// After it took effect.
    pub fn after(&mut self, step: &Step, _outcome: &Outcome, cluster: &Cluster) {
        if let Step::Fence(fence) = step {
            let node = NodeName::from(A);
            let revoked = !cluster
                .access
                .contains(&(fence.handle.clone(), node_id(&node)));
            if revoked {
                let users = cluster.users_on(&fence.volume, &node);
                let users = users
                    .into_iter()
                    .map(|uid| (uid.clone(), fence.volume.clone()));
                self.fenced.extend(users);
            }
        }
    }

    /// After every change.
    pub fn look(&mut self, before: &Cluster, state: &State) -> Result<(), Violation> {
        let cluster = &state.cluster;
        let journal = cluster.journal(A);
        if let Some(journal) = &journal {
            self.listed.extend(journal.pods.keys().cloned());
            if journal.is_open() && !cluster.tainted(A) {
                return Err(Violation::OpenWithoutTaint);
            }
        }
        released(before, state)?;
        two_writers(state)
    }
}

/// An entry that left `pods` for `gone`: nothing gives the node its volumes back.
fn released(before: &Cluster, state: &State) -> Result<(), Violation> {
    let cluster = &state.cluster;
    let (Some(before), Some(after)) = (before.journal(A), cluster.journal(A)) else {
        return Ok(());
    };
    for (uid, entry) in &before.pods {
        if !after.gone.contains(uid) || before.gone.contains(uid) {
            continue;
        }
        for volume in &entry.volumes {
            let node = NodeName::from(A);
            let announced = cluster
                .users_on(volume, &node)
                .into_iter()
                .all(|uid| !after.pods.contains_key(uid));
            let users = cluster.users_on(volume, &node).len();
            let attached = !cluster.attachments_on(volume, &node).is_empty();
            if users == 0 && announced && (attached || cluster.can_write(volume.as_str(), A)) {
                return Err(Violation::ReleasedWithAccess);
            }
        }
    }
    Ok(())
}

fn two_writers(state: &State) -> Result<(), Violation> {
    let mut writing: BTreeSet<&VolumeName> = BTreeSet::new();
    for (node, volumes) in state.running.values() {
        for volume in volumes {
            let may = state.cluster.can_write(volume.as_str(), node.as_str());
            if may && !writing.insert(volume) {
                return Err(Violation::TwoWriters);
            }
        }
    }
    Ok(())
}

/// What must be reached when nothing is left to happen.
pub fn settled(state: &State) -> Result<(), Violation> {
    let cluster = &state.cluster;
    let open = cluster.journal(A).is_some_and(|journal| journal.is_open());
    let idle = cluster.pods.keys().any(|uid| {
        let writes = state.running.get(uid).is_some_and(|(node, volumes)| {
            volumes
                .iter()
                .all(|v| cluster.can_write(v.as_str(), node.as_str()))
        });
        let lost = cluster.pods[uid]
            .node
            .as_ref()
            .is_some_and(|node| node.as_str() == A)
            && !state.up;
        !writes || lost
    });
    let tainted = state.up && cluster.tainted(A);
    if open || idle || tainted {
        return Err(Violation::Stuck);
    }
    Ok(())
}
