//! Groups: the pods of one node that are evacuated together or not at all, since a fence works per node and volume.

use std::collections::{BTreeMap, BTreeSet};

use crate::cluster::pod::Pod;
use crate::cluster::survey::{Problem, Survey};
use crate::domain::{NodeId, PodUid, VolumeHandle, VolumeName};
use crate::journal::Cause;

use super::decide::{Reason, Verdict, judge};
use super::refusal::Refusal;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Group {
    pub pods: BTreeSet<PodUid>,
    pub volumes: BTreeSet<VolumeName>,
    pub cause: Cause,
    /// What stands against it as a whole, before the array is asked.
    pub refusal: Option<Refusal>,
}

impl Group {
    /// Names the group as long as its members stay the same.
    pub fn id(&self) -> Option<&PodUid> {
        self.pods.first()
    }
}

/// The groups of protected pods on the surveyed node that evidence speaks against, none of them in `listed`.
pub fn groups(survey: &Survey, array_lost: bool, listed: impl Fn(&PodUid) -> bool) -> Vec<Group> {
    let Some(node) = &survey.node else {
        return Vec::new();
    };
    let mut verdicts = BTreeMap::new();
    for pod in survey.pods.values() {
        let uid = &pod.incarnation.uid;
        match judge(pod, node, array_lost) {
            Verdict::Leave(Reason::Unprotected | Reason::Finished) => {}
            _ if listed(uid) => {}
            verdict => {
                verdicts.insert(uid, (pod, verdict));
            }
        }
    }
    let mut joined: BTreeMap<Joint, Vec<&PodUid>> = BTreeMap::new();
    for (pod, _) in verdicts.values() {
        for joint in joints(survey, pod) {
            joined.entry(joint).or_default().push(&pod.incarnation.uid);
        }
    }
    let users = users(survey);
    let mut groups = Vec::new();
    let mut left: BTreeSet<&PodUid> = verdicts.keys().copied().collect();
    while let Some(first) = left.pop_first() {
        let mut members = BTreeSet::from([first]);
        let mut open = vec![first];
        while let Some(uid) = open.pop() {
            let joints = joints(survey, verdicts[uid].0);
            for other in joints.flat_map(|joint| joined.remove(&joint)).flatten() {
                if left.remove(other) {
                    members.insert(other);
                    open.push(other);
                }
            }
        }
        let causes = members.iter().filter_map(|uid| match verdicts[uid].1 {
            Verdict::Evacuate(cause) => Some(cause),
            Verdict::Leave(_) => None,
        });
        // Without any evidence against a member there is no group.
        let Some(cause) = causes.min() else { continue };
        let pods: Vec<&Pod> = members.iter().map(|uid| verdicts[uid].0).collect();
        let ready = pods.iter().zip(members.iter().map(|uid| &verdicts[uid].1));
        let ready = ready.filter(|(_, verdict)| matches!(verdict, Verdict::Leave(_)));
        let ready = ready
            .map(|(pod, _)| Refusal::MemberReady(pod.incarnation.key.clone()))
            .next();
        let refusal = pods
            .iter()
            .find_map(|pod| objection(survey, &users, pod))
            .or(ready);
        groups.push(Group {
            volumes: pods
                .iter()
                .flat_map(|pod| volumes(survey, pod))
                .cloned()
                .collect(),
            pods: members.into_iter().cloned().collect(),
            cause,
            refusal,
        });
    }
    groups
}

fn volumes<'a>(survey: &'a Survey, pod: &Pod) -> impl Iterator<Item = &'a VolumeName> {
    let uses = survey.uses.get(&pod.incarnation.uid);
    uses.into_iter().flat_map(|uses| &uses.ours)
}

/// What joins pods of a node into a group.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Joint<'a> {
    /// A volume of ours, by what the array calls it.
    Volume(&'a VolumeHandle),
    /// Required affinity to the same pods on the same host.
    Affinity(&'a BTreeMap<String, String>),
}

fn joints<'a>(survey: &'a Survey, pod: &'a Pod) -> impl Iterator<Item = Joint<'a>> {
    let handles = volumes(survey, pod).filter_map(|name| survey.volumes.get(name));
    let affinity = Some(&pod.affinity).filter(|labels| !labels.is_empty());
    let volumes = handles.map(|volume| Joint::Volume(&volume.handle));
    volumes.chain(affinity.map(Joint::Affinity))
}

/// Every pod here, finished ones apart, by the volumes of ours that it uses.
fn users(survey: &Survey) -> BTreeMap<&VolumeHandle, Vec<&Pod>> {
    let mut users: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for pod in survey.pods.values().filter(|pod| !pod.finished()) {
        for volume in volumes(survey, pod).filter_map(|name| survey.volumes.get(name)) {
            users.entry(&volume.handle).or_default().push(pod);
        }
    }
    users
}

/// What keeps this pod, and so its group, from being evacuated.
fn objection(
    survey: &Survey,
    users: &BTreeMap<&VolumeHandle, Vec<&Pod>>,
    pod: &Pod,
) -> Option<Refusal> {
    let key = || pod.incarnation.key.clone();
    if pod.mirror {
        return Some(Refusal::Mirror(key()));
    }
    if pod
        .owner
        .as_ref()
        .is_some_and(|owner| owner.kind == "DaemonSet")
    {
        return Some(Refusal::DaemonSet(key()));
    }
    let problem = survey
        .uses
        .get(&pod.incarnation.uid)
        .and_then(|uses| uses.problem.clone());
    if let Some(problem) = problem {
        return Some(Refusal::Volume(key(), problem));
    }
    for volume in volumes(survey, pod) {
        let users = survey
            .volumes
            .get(volume)
            .and_then(|volume| users.get(&volume.handle));
        let Some(users) = users else {
            return Some(Refusal::Volume(key(), Problem::NoVolume(volume.clone())));
        };
        if let Some(other) = users.iter().find(|user| !user.protected) {
            return Some(Refusal::Shared {
                volume: volume.clone(),
                with: other.incarnation.key.clone(),
            });
        }
        if node_ids(survey, volume).is_empty() {
            return Some(Refusal::NoNodeId);
        }
    }
    None
}

/// The node ids by which the driver knows the node, whatever is published to it.
pub fn own_ids(survey: &Survey) -> impl Iterator<Item = NodeId> {
    let node = survey.node.as_ref();
    let annotated = node.and_then(|node| node.annotated_id.clone());
    survey.registered_id.clone().into_iter().chain(annotated)
}

/// Every node id that the volume may be published to on this node, the attachment's own first.
pub fn node_ids(survey: &Survey, volume: &VolumeName) -> Vec<NodeId> {
    let published = survey
        .attachments_of(volume)
        .filter_map(|a| a.node_id.clone());
    let mut ids: Vec<NodeId> = Vec::new();
    for id in published.chain(own_ids(survey)) {
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    ids
}
