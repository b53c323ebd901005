//! Whether the node may be used again (protocol.md §4): a pure function of what was read just now.

use std::collections::BTreeSet;
use std::time::Duration;

use super::blocker::Blocker;
use super::detached::Detached;
use super::inspect::{Findings, Job, inspect};
use super::layout::Layout;
use super::sight::{Seen, Sight};
use crate::cluster::node::Node;
use crate::cluster::pod::Pod;
use crate::cri::{Alive, Running};
use crate::domain::{PodUid, VolumeHandle};
use crate::journal::{ArraySight, Found};
use crate::names::Names;

/// How long the kubelet is left alone with what it has to clear away.
pub const KUBELET_FIRST: Duration = Duration::from_secs(20);
/// How long our taint must have stood when no journal says that the evacuation is finished.
pub const TAINT_SETTLES: Duration = Duration::from_secs(30);

/// Everything that the decision depends on. The Node was read before the rest.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    pub names: &'a Names,
    pub layout: &'a Layout,
    pub node: &'a Node,
    /// Its Node object is another than before in this same boot.
    pub recreated: bool,
    /// For how long we have seen our taint on the node.
    pub tainted_for: Duration,
    /// For how long the kubelet has been Ready and could go about this very evacuation.
    pub kubelet_had: Duration,
    /// Every pod bound to this node.
    pub pods: &'a Seen<Vec<Pod>>,
    pub running: &'a Seen<Running>,
    pub host: &'a Sight,
    /// File systems that were detached while they were busy, and may still be written to.
    pub detached: &'a Seen<Vec<Detached>>,
    /// The driver stages volumes; unknown counts as yes.
    pub stages: bool,
    /// Volumes that the driver has unstaged, by its own word, since this evacuation was closed.
    pub unstaged: &'a BTreeSet<VolumeHandle>,
}

/// What to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The node is no concern of ours.
    Nothing,
    /// Look again; these are in the way.
    Wait(Vec<Blocker>),
    /// Clear away what the kubelet left, then look again; these are in the way.
    Clean(Vec<Job>, Vec<Blocker>),
    /// Nothing is left: taint and journal go, in one patch with the version of the Node that was read.
    Lift,
    /// The taint was taken away and nothing is left: the journal goes too.
    RemoveJournal,
    /// The taint was taken away too early.
    PutTaintBack(Vec<Blocker>),
    /// The Node object is new and these incarnations of the old one are still here: taint, with a closed journal.
    TaintRecreated(BTreeSet<PodUid>, Vec<Blocker>),
}

impl Verdict {
    /// What is in the way.
    pub fn blockers(&self) -> &[Blocker] {
        match self {
            Self::Wait(blockers)
            | Self::Clean(_, blockers)
            | Self::PutTaintBack(blockers)
            | Self::TaintRecreated(_, blockers) => blockers,
            Self::Nothing | Self::Lift | Self::RemoveJournal => &[],
        }
    }
}

/// Decides by what was read.
pub fn requalify(situation: &Situation) -> Verdict {
    let found = situation.node.read_journal();
    match (situation.node.tainted(situation.names), &found) {
        (false, Found::Absent) if situation.recreated => recreated(situation),
        (false, Found::Absent) => Verdict::Nothing,
        (false, _) => match blockers(situation, &found) {
            (blockers, _) if blockers.is_empty() => Verdict::RemoveJournal,
            (blockers, _) => Verdict::PutTaintBack(blockers),
        },
        (true, _) => match blockers(situation, &found) {
            (blockers, _) if blockers.is_empty() => Verdict::Lift,
            (blockers, jobs) if jobs.is_empty() => Verdict::Wait(blockers),
            (blockers, jobs) => Verdict::Clean(jobs, blockers),
        },
    }
}

/// Everything that is in the way, and what podmon may do about it.
fn blockers(situation: &Situation, found: &Found) -> (Vec<Blocker>, Vec<Job>) {
    let mut blockers = standing(situation, found);
    let journal = match found {
        Found::Journal(journal) => Some(journal),
        Found::Absent | Found::Unreadable(_) => None,
    };
    let may_clean = may_clean(situation, found);
    let Findings {
        blockers: seen,
        jobs,
        ..
    } = inspect(situation, journal);
    blockers.extend(seen);
    (blockers, if may_clean { jobs } else { Vec::new() })
}

/// What the Node itself says against it.
fn standing(situation: &Situation, found: &Found) -> Vec<Blocker> {
    let node = situation.node;
    let mut blockers = Vec::new();
    if !node.ready {
        blockers.push(Blocker::NotReady);
    }
    if node.unreachable() {
        blockers.push(Blocker::Unreachable);
    }
    match found {
        Found::Journal(journal) => {
            if journal.is_open() {
                blockers.push(Blocker::JournalOpen);
            }
            if journal.array == Some(ArraySight::Lost) {
                blockers.push(Blocker::ArrayLost);
            }
        }
        Found::Unreadable(defect) => blockers.push(Blocker::JournalUnreadable(defect.clone())),
        Found::Absent => {
            if situation.tainted_for < TAINT_SETTLES {
                blockers.push(Blocker::TaintFresh);
            }
            let pods = situation.pods.as_deref().unwrap_or_default();
            let lost = pods
                .iter()
                .filter(|pod| pod.protected && !pod.ready && !pod.finished());
            blockers.extend(lost.map(|pod| Blocker::PodNotReady(pod.incarnation.clone())));
        }
    }
    blockers
}

/// The kubelet goes first; and where what was evacuated is not known for sure, nothing is touched.
fn may_clean(situation: &Situation, found: &Found) -> bool {
    let node = situation.node;
    let settled = match found {
        Found::Journal(_) => true,
        Found::Absent => situation.tainted_for >= TAINT_SETTLES,
        Found::Unreadable(_) => false,
    };
    settled && node.ready && !node.unreachable() && situation.kubelet_had >= KUBELET_FIRST
}

/// Containers that may be stopped by us if the operator allows it: of incarnations that the journal has released, and
/// that the kubelet has left running for all of its time.
pub fn zombies(situation: &Situation, verdict: &Verdict) -> Vec<Alive> {
    let found = situation.node.read_journal();
    let Found::Journal(journal) = &found else {
        return Vec::new();
    };
    if !may_clean(situation, &found) {
        return Vec::new();
    }
    let mut zombies = Vec::new();
    for blocker in verdict.blockers() {
        if let Blocker::Container { pod, container } = blocker
            && journal.gone.contains(&pod.uid)
        {
            zombies.push(container.clone());
        }
    }
    zombies
}

fn recreated(situation: &Situation) -> Verdict {
    let findings = inspect(situation, None);
    if situation.pods.is_err() {
        return Verdict::Wait(findings.blockers);
    }
    let mut blockers = findings.blockers;
    blockers.retain(|blocker| !matches!(blocker, Blocker::PodDirectory(_)));
    if blockers.is_empty() {
        Verdict::Nothing
    } else {
        Verdict::TaintRecreated(findings.unclean, blockers)
    }
}
