//! One node's evacuation: a state machine without I/O. It yields the steps that may run now and takes their outcomes.
//!
//! What is irreversible is decided by what was just read from the API server, never by memory of one's own deeds: the
//! journal on the Node says what may have been fenced, so a restart, or another leader, goes on from there
//! (protocol.md §3). Memory holds only answers of this term: which fences said OK and when, what was asked, what is
//! under way.

mod announce;
mod candidates;
mod fences;
mod listed;
mod record;
mod release;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::clock::Moment;
use crate::cluster::event::{Report, Severity, Subject};
use crate::cluster::node::Node;
use crate::cluster::pod::Owner;
use crate::cluster::survey::Survey;
use crate::domain::{AttachmentUid, Incarnation, NodeName, PodUid, VolumeName};
use crate::journal::{Cause, Found, Journal};
use crate::names::Names;

use self::candidates::Ask;
use self::fences::Fences;
use super::refusal::{Hold, Refusal};
use super::step::Step;

/// What an evacuation goes by besides what it reads: the same for every node, but for `array_lost`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Rules {
    /// Identity and term of the present leader.
    pub by: String,
    /// The attacher publishes again what it finds missing (`LIST_VOLUMES_PUBLISHED_NODES`).
    pub republishes: bool,
    pub ignore_volumeless: bool,
    pub skip_array_validation: bool,
    /// The array answered *disconnected* for this node as often as the threshold asks.
    pub array_lost: bool,
    /// The array answered *connected* as often in a row.
    pub array_seen: bool,
    /// No group is begun.
    pub hold: Option<Hold>,
    /// `--outOfServiceRelease`.
    pub out_of_service_release: bool,
    /// The wall clock, for timestamps that people read.
    pub wall: String,
}

/// How long a fence stands before it must be sent again: others publish too.
const FENCE_STANDS: Duration = Duration::from_secs(15);
/// How long after a change of leader an entry stays listed: the old leader's longest call (protocol.md §5, guard 4).
const AFTER_ADOPTION: Duration = Duration::from_secs(15);
/// How long after a call that was given up an entry stays listed (guard 3).
const AFTER_GIVING_UP: Duration = Duration::from_secs(60);
/// How old the picture may be by which a group is announced.
const FRESH: Duration = Duration::from_secs(2);
/// How old a picture gets before it is read again although nothing points to a change.
const STALE: Duration = Duration::from_secs(30);
/// Waiting time after a failure: doubled from the first to the last.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// The longest wait for another look at the node: the API server may be back any moment.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// When a pod that finalizers keep is worth an event.
const KEPT_TOO_LONG: Duration = Duration::from_secs(60);
/// How often `status.volumesInUse` is tried; it is only speed.
const IN_USE_TRIES: u32 = 3;
/// How long a fence waits that could not be sent, for want of a Node just read or of a claim.
const WITHHELD: Duration = Duration::from_millis(250);

/// Something that is tried until it succeeds.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Attempt {
    under_way: bool,
    failures: u32,
    not_before: Moment,
}

impl Attempt {
    fn due(&self, now: Moment) -> bool {
        !self.under_way && now >= self.not_before
    }

    fn begin(&mut self) {
        self.under_way = true;
    }

    fn succeeded(&mut self) {
        *self = Self::default();
    }

    fn failed(&mut self, now: Moment) {
        self.failed_for_at_most(BACKOFF.1, now);
    }

    fn failed_for_at_most(&mut self, most: Duration, now: Moment) {
        let wait = BACKOFF.0 * 2_u32.saturating_pow(self.failures.min(10));
        self.under_way = false;
        self.failures += 1;
        self.not_before = now + wait.min(most);
    }
}

/// A pod that was told to go.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Leaving {
    attempt: Attempt,
    announced: bool,
    /// When the API marked it, and finalizers kept it.
    kept_since: Option<Moment>,
}

/// What is known of the release of a volume whose pods are gone.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Release {
    /// When its attachment was first known to be deleted or absent: the attacher no longer publishes through it.
    marked: Option<Moment>,
    /// A publish may have undone the fence: it must be fenced once more after `marked`.
    again: bool,
}

/// An entry that this term listed.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Announced {
    /// What names its group.
    group: PodUid,
    /// When the patch was sent that listed it: a fence from before says nothing of its own publish.
    at: Moment,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Evacuation {
    node: NodeName,
    names: Names,
    survey: Option<Survey>,
    /// When that survey was taken in: it took its time, and is acted on from here.
    surveyed: Moment,
    /// When the Node was last read, or an answered patch was sent.
    node_read: Moment,
    /// Since when something points to a change that the picture does not show.
    outdated: Option<Moment>,
    /// Reads of the node, and their retries; a read or a write is under way, never both.
    reads: Attempt,
    /// Writes of the Node object, and their retries.
    writes: Attempt,
    /// The survey at hand was considered for a write.
    considered: bool,
    /// The open journal of ours, as the API last confirmed it; kept while the Node object is gone.
    journal: Option<Journal>,
    /// The taint came with our announcement: it was not there before.
    tainted: bool,
    /// The patch under way takes the journal back.
    withdrawing: bool,
    /// Listed by an answered patch of this term: for all other entries a fence may have been sent by somebody else.
    announced: BTreeMap<PodUid, Announced>,
    /// Groups of the announcement that is under way: each member, and what names its group.
    announcing: BTreeMap<PodUid, PodUid>,
    /// Groups that one patch may announce: fewer after one was too large.
    batch: usize,
    /// When this term first saw entries of its journal that it did not announce.
    adopted: Option<Moment>,
    fences: Fences,
    asks: BTreeMap<PodUid, Ask>,
    leaving: BTreeMap<PodUid, Leaving>,
    detaching: BTreeMap<AttachmentUid, Attempt>,
    releases: BTreeMap<VolumeName, Release>,
    in_use_failures: u32,
    /// Taken out of `status.volumesInUse` already; a living kubelet may write them back.
    forgotten: BTreeSet<String>,
    in_use_forbidden: bool,
    /// When something that the closing of the journal depends on last changed.
    changed: Moment,
    /// Seen to be gone for good: a read that began before must not bring them back.
    departed: BTreeMap<PodUid, Moment>,
    detached: BTreeSet<AttachmentUid>,
    /// What was last said of each pod.
    said: BTreeMap<PodUid, Refusal>,
    /// Volumes that a late fence revoked under pods which may be rightful, and since when that is known.
    struck: BTreeMap<VolumeName, Moment>,
    /// Pods that came to the evacuated node, by owner: how many, and when the next may be removed.
    comers: BTreeMap<Option<Owner>, (u32, Moment)>,
    wake: Option<Moment>,
}

impl Evacuation {
    pub fn new(node: NodeName, names: Names, now: Moment) -> Self {
        Self {
            node,
            names,
            survey: None,
            surveyed: Moment::default(),
            node_read: Moment::default(),
            outdated: None,
            reads: Attempt::default(),
            writes: Attempt::default(),
            considered: false,
            journal: None,
            tainted: false,
            withdrawing: false,
            announced: BTreeMap::new(),
            announcing: BTreeMap::new(),
            batch: usize::MAX,
            adopted: None,
            fences: Fences::default(),
            asks: BTreeMap::new(),
            leaving: BTreeMap::new(),
            detaching: BTreeMap::new(),
            releases: BTreeMap::new(),
            in_use_failures: 0,
            forgotten: BTreeSet::new(),
            in_use_forbidden: false,
            changed: now,
            departed: BTreeMap::new(),
            detached: BTreeSet::new(),
            said: BTreeMap::new(),
            struck: BTreeMap::new(),
            comers: BTreeMap::new(),
            wake: None,
        }
    }

    pub fn node(&self) -> &NodeName {
        &self.node
    }

    /// The journal at work, for those who look on.
    pub fn journal(&self) -> Option<&Journal> {
        self.journal.as_ref()
    }

    /// When to ask for the next steps although no outcome came in.
    pub fn wake(&self) -> Option<Moment> {
        self.wake
    }

    /// Nothing is listed, nothing under way, and the picture shows nothing to evacuate.
    pub fn is_over(&self, rules: &Rules) -> bool {
        let Some(survey) = &self.survey else {
            return false;
        };
        let repaired = survey
            .node
            .as_ref()
            .is_none_or(|node| !matches!(node.read_journal(), Found::Unreadable(_)));
        self.journal.is_none()
            && repaired
            && self.outdated.is_none()
            && !self.reads.under_way
            && !self.writes.under_way
            && !self.fences.any_under_way()
            && self.asks.values().all(|ask| !ask.attempt.under_way)
            && self.groups(rules).is_empty()
            && self.struck().is_empty()
    }

    /// Something was seen that the picture may not show.
    pub fn outdate(&mut self, now: Moment) {
        self.outdated = Some(now);
    }

    /// The steps that may run now; each is under way until its outcome is recorded.
    pub fn next(&mut self, rules: &Rules, now: Moment) -> Vec<Step> {
        self.wake = None;
        let mut steps = Vec::new();
        self.advance_listed(rules, now, &mut steps);
        self.advance_groups(rules, now, &mut steps);
        if !self.reads.under_way
            && !self.writes.under_way
            && let Some(step) = self.access_node(rules, now)
        {
            steps.push(step);
        }
        steps
    }

    /// The next read or write of the Node object; one at a time, so that answers come in the order of events.
    fn access_node(&mut self, rules: &Rules, now: Moment) -> Option<Step> {
        let surveyed = self.survey.as_ref().map(|survey| survey.at);
        // First, since only now is it of use: before the attach-detach controller looks at the released volumes.
        if self.writes.due(now)
            && let Some(step) = self.forget_in_use(now)
        {
            return self.begin(step, now);
        }
        // A picture just taken is acted on once before the next, or a node in motion would only be looked at.
        if surveyed.is_some()
            && !std::mem::replace(&mut self.considered, true)
            && let Some(step) = self.write(rules, now)
        {
            return self.begin(step, now);
        }
        let stale = surveyed.is_none_or(|at| now - at >= STALE);
        if stale || self.outdated.is_some() {
            return self.begin(Step::Survey, now);
        }
        if let Some(at) = surveyed {
            self.wake_at(at + STALE);
        }
        if let Some(step) = self.write(rules, now) {
            return self.begin(step, now);
        }
        // Fences wait for a Node that was read a moment ago.
        if self.fences.waiting() && now - self.node_read >= FENCE_GUARD {
            return self.begin(Step::Look, now);
        }
        None
    }

    fn write(&mut self, rules: &Rules, now: Moment) -> Option<Step> {
        if !self.writes.due(now) {
            self.wake_at(self.writes.not_before);
            return None;
        }
        self.write_node(rules, now)
            .or_else(|| self.forget_in_use(now))
    }

    /// Marks a read or write as under way, unless it has to wait after a failure.
    fn begin(&mut self, step: Step, now: Moment) -> Option<Step> {
        let attempt = match step {
            Step::Survey | Step::Look => &mut self.reads,
            _ => &mut self.writes,
        };
        if attempt.due(now) {
            attempt.begin();
            return Some(step);
        }
        let again = attempt.not_before;
        self.wake_at(again);
        None
    }

    fn wake_at(&mut self, moment: Moment) {
        self.wake = Some(self.wake.map_or(moment, |wake| wake.min(moment)));
    }

    /// The Node as last read, if it is the object that the journal was written for.
    fn node_object(&self) -> Option<&Node> {
        self.survey.as_ref()?.node.as_ref()
    }

    fn pod(&self, uid: &PodUid) -> Option<&Incarnation> {
        let pod = self.survey.as_ref()?.pods.get(uid)?;
        Some(&pod.incarnation)
    }

    /// Tells once per change why a pod stays.
    fn refuse(&mut self, uid: &PodUid, cause: Cause, refusal: &Refusal, steps: &mut Vec<Step>) {
        if self
            .said
            .get(uid)
            .is_some_and(|said| said.says_the_same(refusal))
        {
            return;
        }
        let Some(pod) = self.pod(uid).cloned() else {
            return;
        };
        self.said.insert(uid.clone(), refusal.clone());
        tracing::warn!(pod = %pod.key, uid = %pod.uid, node = %self.node, reason = refusal.label(), detail = ?refusal, "Not evacuated: {refusal}");
        if !refusal.is_silent() {
            steps.push(warning(
                &pod,
                format!("{cause:?}"),
                refusal.event(&pod, &self.node),
            ));
        }
    }

    /// Whether the pods and the Node were just read: only then is anything announced by them. The Node's version in
    /// the patch covers the time since it was read.
    fn is_fresh(&self, now: Moment) -> bool {
        self.survey.is_some() && now - self.surveyed < FRESH
    }

    fn listed(&self) -> BTreeSet<PodUid> {
        let entries = self.journal.iter().flat_map(|journal| journal.pods.keys());
        entries.cloned().collect()
    }
}

/// A little earlier than the guard itself runs out, for the way to the wire.
const FENCE_GUARD: Duration = Duration::from_millis(1500);

fn warning(pod: &Incarnation, reason: String, message: String) -> Step {
    Step::Report(Report {
        subject: Subject::Pod(pod.clone()),
        severity: Severity::Warning,
        reason,
        message,
    })
}
