//! What came of the steps, and what the watches show meanwhile.

use std::collections::BTreeSet;

use super::{Announced, Evacuation, LOOK_AGAIN};
use crate::clock::Moment;
use crate::cluster::Deleted;
use crate::cluster::attachment::Attachment;
use crate::cluster::event::{Report, Severity, Subject};
use crate::cluster::node::Node;
use crate::cluster::pod::Pod;
use crate::cluster::survey::Survey;
use crate::cluster::watch::Change;
use crate::controller::refusal::Refusal;
use crate::controller::step::{Outcome, Refused, Step, Unfenced};
use crate::controller::world::{Observation, same};
use crate::domain::{Incarnation, NodeId, PodUid, VolumeName};
use crate::journal::{Found, Journal};

impl Evacuation {
    /// Takes an outcome; reports that follow from it.
    pub fn record(&mut self, outcome: Outcome, by: &str, now: Moment) -> Vec<Step> {
        let mut reports = Vec::new();
        match outcome {
            Outcome::Survey(Ok(survey)) => {
                self.reads.succeeded();
                self.considered = false;
                self.node_read = survey.at;
                if self.outdated.is_some_and(|since| survey.at >= since) {
                    self.outdated = None;
                }
                self.surveyed = now;
                self.take_survey(survey, by, now);
            }
            Outcome::Survey(Err(error)) => {
                tracing::warn!(node = %self.node, %error, "The node could not be looked at; trying again");
                self.reads.failed_for_at_most(LOOK_AGAIN, now);
            }
            Outcome::Look { at, node: Ok(node) } => {
                self.reads.succeeded();
                self.take_node(node, at, by, now);
            }
            Outcome::Look {
                node: Err(error), ..
            } => {
                tracing::warn!(node = %self.node, %error, "The node could not be looked at; trying again");
                self.reads.failed_for_at_most(LOOK_AGAIN, now);
            }
            Outcome::Ask { group, answer } => self.record_answer(group, answer, now),
            Outcome::Patch { at, node } => self.record_patch(at, node, by, now),
            Outcome::ForgetInUse { at, node } => self.record_in_use(at, node, by, now),
            Outcome::Fence {
                evacuation,
                volume,
                node,
                started,
                result,
            } => {
                let late = self
                    .journal
                    .as_ref()
                    .is_none_or(|journal| journal.id != evacuation);
                reports.extend(self.record_fence(&volume, &node, started, result, late, now));
            }
            Outcome::DeletePod { pod, result } => {
                self.record_deletion(&pod, result, now, &mut reports)
            }
            Outcome::DeleteAttachment { uid, result } => {
                let attempt = self.detaching.entry(uid.clone()).or_default();
                match (result, &mut self.survey) {
                    (Ok(deleted), Some(survey)) => {
                        attempt.succeeded();
                        self.changed = now;
                        match (deleted, survey.attachments.get_mut(&uid)) {
                            (Deleted::Marked, Some(attachment)) => attachment.deleting = true,
                            (Deleted::Marked, None) => {}
                            (Deleted::Gone, _) => {
                                survey.attachments.remove(&uid);
                                self.detached.insert(uid);
                            }
                        }
                    }
                    (Ok(_), None) => attempt.succeeded(),
                    (Err(Refused::Conflict), _) => {
                        attempt.failed(now);
                        self.outdate(now);
                    }
                    (Err(error), _) => {
                        tracing::warn!(node = %self.node, attachment = %uid, ?error, "The attachment could not be deleted; trying again");
                        attempt.failed(now);
                    }
                }
            }
            Outcome::Reported => {}
        }
        reports
    }

    /// Takes in what a watch shows of this node.
    pub fn observe(&mut self, observation: &Observation, now: Moment) {
        match observation {
            // Perhaps it only lost its label, and with it the watch: the API says.
            Observation::Pod(Change::Deleted(pod)) if pod.node.as_ref() == Some(&self.node) => {
                self.outdate(now);
            }
            Observation::Pod(Change::Deleted(_)) => {}
            Observation::Pod(Change::Applied(pod)) => {
                let here = pod.node.as_ref() == Some(&self.node);
                let known = self
                    .survey
                    .as_ref()
                    .and_then(|s| s.pods.get(&pod.incarnation.uid));
                if here && known.is_none_or(|known| differs(known, pod)) {
                    self.outdate(now);
                }
            }
            Observation::Attachment(Change::Applied(attachment)) => {
                self.take_attachment(attachment, now)
            }
            Observation::Attachment(Change::Deleted(attachment)) => {
                if attachment.node == self.node {
                    self.detached.insert(attachment.uid.clone());
                }
                let survey = self.survey.as_mut();
                if survey.is_some_and(|s| s.attachments.remove(&attachment.uid).is_some()) {
                    self.changed = now;
                }
            }
            Observation::Node(Change::Applied(node)) if node.name == self.node => {
                if !self.node_object().is_some_and(|known| same(known, node)) {
                    self.outdate(now);
                }
            }
            Observation::Node(Change::Deleted(node)) if node.name == self.node => self.outdate(now),
            Observation::Node(Change::Applied(_) | Change::Deleted(_)) => {}
            Observation::DriverPod(_) => {}
            // What was missed meanwhile is not known.
            Observation::Pod(Change::All(_))
            | Observation::Node(Change::All(_))
            | Observation::Attachment(Change::All(_)) => self.outdate(now),
            Observation::Pod(Change::Stale(_))
            | Observation::Node(Change::Stale(_))
            | Observation::Attachment(Change::Stale(_)) => {}
        }
    }

    fn take_survey(&mut self, mut survey: Survey, by: &str, now: Moment) {
        let at = survey.at;
        let left = |uid: &PodUid| self.departed.get(uid).is_some_and(|moment| at < *moment);
        survey.pods.retain(|uid, _| !left(uid));
        survey.uses.retain(|uid, _| !left(uid));
        survey
            .attachments
            .retain(|uid, _| !self.detached.contains(uid));
        self.survey = Some(survey);
        self.take_journal(by, now);
        if self.struck().is_empty() {
            // Nobody was on it: what comes later finds it published anew.
            self.struck.retain(|_, since| *since > at);
        }
    }

    fn take_node(&mut self, node: Option<Node>, at: Moment, by: &str, now: Moment) {
        let Some(survey) = &mut self.survey else {
            return;
        };
        let unchanged = match (&survey.node, &node) {
            (Some(before), Some(node)) => same(before, node),
            (before, node) => before.is_none() && node.is_none(),
        };
        survey.node = node;
        self.node_read = at;
        if !unchanged {
            // What was read of the pods may be older than that.
            self.outdate(now);
        }
        self.take_journal(by, now);
    }

    /// Goes by the journal that stands on the Node; by memory only where somebody took it away.
    fn take_journal(&mut self, by: &str, now: Moment) {
        let Some(survey) = &self.survey else { return };
        let Some(node) = &survey.node else { return };
        match node.read_journal() {
            Found::Journal(journal) if journal.is_open() => {
                if journal.by != by && self.journal.as_ref().is_some_and(|known| known.by == by) {
                    tracing::warn!(node = %self.node, by = %journal.by, "Another podmon took over the evacuation");
                }
                if self
                    .journal
                    .as_ref()
                    .is_some_and(|known| known.id != journal.id)
                {
                    self.clear();
                }
                let ours = journal.by == by;
                if ours
                    && journal
                        .pods
                        .keys()
                        .any(|uid| !self.announced.contains_key(uid))
                {
                    self.adopted.get_or_insert(now);
                }
                self.journal = Some(journal);
            }
            Found::Journal(_) => {
                if self.journal.take().is_some() {
                    self.clear();
                }
            }
            Found::Absent => {
                let bound = |journal: &Journal| {
                    journal.pods.keys().any(|uid| survey.pods.contains_key(uid))
                };
                let tainted = node.tainted(&self.names);
                // A Node object of another UID was never written to: there it goes on from memory.
                let by_hand =
                    |journal: &Journal| journal.node == node.uid && !tainted && !bound(journal);
                if self.journal.as_ref().is_some_and(by_hand) {
                    tracing::warn!(node = %self.node, "Taint and journal were taken away by hand: nothing more is done");
                    self.journal = None;
                    self.clear();
                }
            }
            Found::Unreadable(defect) => {
                tracing::warn!(node = %self.node, %defect, "The journal on the node cannot be read");
            }
        }
    }

    fn record_patch(&mut self, at: Moment, patched: Result<Node, Refused>, by: &str, now: Moment) {
        let withdrawn = std::mem::take(&mut self.withdrawing);
        match patched {
            Ok(node) => {
                self.writes.succeeded();
                self.batch = usize::MAX;
                if withdrawn {
                    self.journal = None;
                    self.clear();
                }
                let before = self.node_object().map(Node::read_journal);
                if let Some(Found::Journal(theirs)) = before
                    && theirs.is_open()
                    && theirs.by != by
                {
                    tracing::info!(node = %self.node, before = %theirs.by, id = %theirs.id, "Took over an evacuation");
                } else if let Found::Journal(journal) = node.read_journal() {
                    let known = self.listed();
                    // Under a pod that a late fence hit, access may be revoked already: no way back.
                    let hit = |volume: &VolumeName| self.struck.contains_key(volume);
                    let new = journal.pods.into_iter().filter(|(uid, entry)| {
                        !known.contains(uid) && !entry.volumes.iter().any(hit)
                    });
                    let new: Vec<_> = new.map(|(uid, _)| uid).collect();
                    for uid in new {
                        let group = self.announcing.get(&uid).unwrap_or(&uid).clone();
                        self.announced.insert(uid, Announced { group, at });
                    }
                }
                let untainted = self
                    .node_object()
                    .is_some_and(|before| !before.tainted(&self.names));
                self.tainted |= untainted && node.tainted(&self.names);
                let listed = self.listed().len();
                if let Some(survey) = &mut self.survey {
                    survey.node = Some(node);
                }
                self.node_read = at;
                self.take_journal(by, now);
                if let Some(journal) = &self.journal {
                    self.struck
                        .retain(|volume, _| !journal.volumes.contains_key(volume));
                }
                self.tell_progress(listed);
            }
            Err(refused) => {
                // It may have been written all the same: the Node says.
                self.outdate(now);
                match refused {
                    Refused::Conflict => self.writes.succeeded(),
                    Refused::TooLarge if self.batch > 1 => {
                        let groups: BTreeSet<_> = self.announcing.values().collect();
                        self.batch = (groups.len() / 2).max(1);
                        tracing::warn!(node = %self.node, groups = self.batch, "The announcement is too large for the API; trying fewer groups");
                        self.writes.succeeded();
                    }
                    refused => {
                        tracing::warn!(node = %self.node, ?refused, "The node could not be patched; trying again");
                        self.writes.failed(now);
                    }
                }
            }
        }
    }

    pub(super) fn tell_progress(&mut self, listed_before: usize) {
        match &self.journal {
            Some(journal) if journal.pods.len() > listed_before => {
                self.in_use_failures = 0;
                let pods: Vec<String> = journal
                    .pods
                    .values()
                    .map(|entry| entry.key.to_string())
                    .collect();
                tracing::info!(node = %self.node, id = %journal.id, cause = ?journal.why, pods = pods.join(" "), "Evacuation announced; node tainted");
            }
            None if listed_before > 0 => {
                tracing::info!(node = %self.node, "Evacuation finished; the node may requalify");
                self.clear();
            }
            _ => {}
        }
    }

    /// Nothing of one evacuation may speak for the next.
    fn clear(&mut self) {
        self.fences = Default::default();
        self.releases.clear();
        self.leaving.clear();
        self.detaching.clear();
        self.announced.clear();
        self.adopted = None;
        self.tainted = false;
        self.forgotten.clear();
        self.in_use_failures = 0;
    }

    fn record_in_use(&mut self, at: Moment, patched: Result<Node, Refused>, by: &str, now: Moment) {
        self.writes.succeeded();
        match patched {
            Ok(node) => {
                let Some(survey) = &mut self.survey else {
                    return;
                };
                if let Some(before) = &survey.node {
                    let gone = before
                        .volumes_in_use
                        .iter()
                        .filter(|v| !node.volumes_in_use.contains(v));
                    self.forgotten.extend(gone.cloned());
                }
                survey.node = Some(node);
                self.node_read = at;
                self.take_journal(by, now);
            }
            Err(Refused::Forbidden) => {
                self.in_use_forbidden = true;
                tracing::warn!(node = %self.node, "No right to patch nodes/status: other nodes get the volumes up to a minute later");
            }
            Err(_) => {
                self.in_use_failures += 1;
                self.outdate(now);
            }
        }
    }

    fn record_fence(
        &mut self,
        volume: &VolumeName,
        id: &NodeId,
        started: Moment,
        result: Result<(), Unfenced>,
        over: bool,
        now: Moment,
    ) -> Option<Step> {
        let listed = self
            .journal
            .as_ref()
            .and_then(|journal| journal.volumes.get(volume));
        let own = listed.is_none_or(|volume| volume.node_ids.first() == Some(id));
        match &result {
            Ok(()) => {
                tracing::info!(node = %self.node, %volume, node_id = %id, "Fenced");
            }
            Err(Unfenced::Withheld) => {}
            Err(error) => {
                tracing::warn!(node = %self.node, %volume, node_id = %id, ?error, "Not fenced; trying again");
            }
        }
        let late = over && !matches!(result, Err(Unfenced::Withheld | Unfenced::NeverSent(_)));
        if !over {
            self.fences.record(volume, id, started, now, result, own);
        }
        if late {
            self.struck.insert(volume.clone(), now);
            self.outdate(now);
        }
        let node = self.node_object()?;
        // protocol.md §5, guard 6.
        late.then(|| {
            tracing::error!(node = %self.node, %volume, "A fence came back after the evacuation was over: the volume may be revoked under a rightful pod");
            Step::Report(Report {
                subject: Subject::Node(node.name.clone(), node.uid.clone()),
                severity: Severity::Warning,
                reason: "LateFence".into(),
                message: format!("podmon revoked volume {volume} from the node after its evacuation was over; pods there that use it may see I/O errors"),
            })
        })
    }

    fn record_deletion(
        &mut self,
        pod: &Incarnation,
        result: Result<Deleted, Refused>,
        now: Moment,
        reports: &mut Vec<Step>,
    ) {
        let leaving = self.leaving.entry(pod.uid.clone()).or_default();
        match result {
            Ok(Deleted::Gone) => {
                tracing::info!(pod = %pod.key, uid = %pod.uid, node = %self.node, "Pod deleted");
                self.forget_pod(pod, now);
            }
            Ok(Deleted::Marked) => {
                leaving.attempt.succeeded();
                leaving.kept_since.get_or_insert(now);
            }
            Err(Refused::Conflict) => {
                leaving.attempt.failed(now);
                self.outdate(now);
            }
            Err(refused) => {
                leaving.attempt.failed(now);
                let text = match refused {
                    Refused::Failed(text) => text,
                    refused => format!("{refused:?}"),
                };
                let why = self.journal.as_ref().map(|journal| journal.why);
                if let Some(why) = why {
                    self.refuse(&pod.uid, why, &Refusal::NotDeleted(text), reports);
                }
            }
        }
    }

    fn forget_pod(&mut self, pod: &Incarnation, now: Moment) {
        self.departed.insert(pod.uid.clone(), now);
        self.leaving.remove(&pod.uid);
        self.said.remove(&pod.uid);
        if let Some(survey) = &mut self.survey {
            survey.uses.remove(&pod.uid);
            if survey.pods.remove(&pod.uid).is_some() {
                self.changed = now;
            }
        }
    }

    fn take_attachment(&mut self, attachment: &Attachment, now: Moment) {
        if attachment.node != self.node || self.detached.contains(&attachment.uid) {
            return;
        }
        let known = self
            .survey
            .as_mut()
            .and_then(|survey| survey.attachments.get_mut(&attachment.uid));
        let Some(known) = known else {
            // It belongs to a pod that the picture may not show, so it is none of ours to delete.
            self.outdate(now);
            return;
        };
        // What is deleted stays so, in whatever order this is heard of.
        let deleting = known.deleting || attachment.deleting;
        if known.deleting != deleting {
            self.changed = now;
        }
        *known = Attachment {
            deleting,
            ..attachment.clone()
        };
    }
}

/// Whether a pod differs in what an evacuation decides by.
fn differs(a: &Pod, b: &Pod) -> bool {
    (a.ready, a.started, a.terminating, a.phase, a.protected)
        != (b.ready, b.started, b.terminating, b.phase, b.protected)
}
