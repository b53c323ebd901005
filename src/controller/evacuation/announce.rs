//! What is written on the Node: the journal of what may have been fenced, and the taints that go with it.

use std::collections::BTreeSet;

use super::{Evacuation, Rules};
use crate::clock::Moment;
use crate::cluster::NodePatch;
use crate::cluster::node::Node;
use crate::controller::decide::evidence;
use crate::controller::group::{Group, node_ids};
use crate::controller::step::Step;
use crate::domain::{AttachmentUid, PodUid, VolumeHandle};
use crate::journal::{ArraySight, Cause, Entry, Found, Journal, MAX_BYTES, Phase, VERSION, Volume};
use crate::taint;

/// So many pods and volumes fit into any journal, whatever their names: it need not be tried.
const ALWAYS_FITS: usize = 16;

impl Evacuation {
    /// The patch that is due, if any: taint and journal together, computed from the Node as last read.
    pub(super) fn write_node(&mut self, rules: &Rules, now: Moment) -> Option<Step> {
        let Some(node) = self.node_object().cloned() else {
            return self.forget(now);
        };
        let found = node.read_journal();
        if let Found::Journal(theirs) = &found
            && theirs.is_open()
            && theirs.by != rules.by
        {
            // Before anything else, so that whoever wrote it can no longer cancel or close.
            let adopted = Journal {
                by: rules.by.clone(),
                ..theirs.clone()
            };
            return Some(self.patch(&node, Some(adopted), rules));
        }
        let before = self.current(&node, &found);
        let journal = match self.draft(before.clone(), &node, rules, now) {
            Ok(journal) => journal,
            Err(first) => return Some(*first),
        };
        let unchanged = journal == before && self.taints(&node, journal.as_ref(), rules).is_none();
        match (&found, unchanged) {
            // Nothing fresh speaks against the node: the unreadable journal gives way to a closed one of ours.
            (Found::Unreadable(_), true) if journal.is_none() && self.groups(rules).is_empty() => {
                let mut closed = self.blank(&node, rules, Cause::NodeFailure);
                closed.phase = Phase::Closed;
                Some(self.patch(&node, Some(closed), rules))
            }
            (Found::Absent, _) if journal.is_some() && self.journal.is_some() => {
                // Taken away by hand while something is listed: put back.
                Some(self.patch(&node, journal, rules))
            }
            (_, true) => None,
            (_, false) => Some(self.patch(&node, journal, rules)),
        }
    }

    /// There is no Node to write to: what is finished is forgotten; or the read that must come before that.
    fn forget(&mut self, now: Moment) -> Option<Step> {
        let mut journal = self.journal.clone()?;
        let (finished, needs_survey) = self.finished(&journal, now);
        if needs_survey {
            return Some(Step::Survey);
        }
        for uid in finished {
            journal.pods.remove(&uid);
            journal.gone.insert(uid);
        }
        let listed = self.listed().len();
        self.journal = (!journal.pods.is_empty()).then_some(journal);
        self.tell_progress(listed);
        None
    }

    /// The journal as it should be now. `Err`: what has to be done before that can be said.
    fn draft(
        &mut self,
        mut journal: Option<Journal>,
        node: &Node,
        rules: &Rules,
        now: Moment,
    ) -> Result<Option<Journal>, Box<Step>> {
        let fresh = self.is_fresh(now);
        if let Some(open) = journal.as_mut().filter(|journal| journal.is_open()) {
            let vain = self.in_vain(open, rules);
            if !vain.is_empty() && !fresh {
                return Err(Box::new(Step::Survey));
            }
            open.pods.retain(|uid, _| !vain.contains(uid));
            if !vain.is_empty() && open.pods.is_empty() && open.gone.is_empty() {
                return Err(Box::new(self.withdraw(node)));
            }
            let (finished, outdated) = self.finished(open, now);
            if outdated {
                return Err(Box::new(Step::Survey));
            }
            open.pods.retain(|uid, _| !finished.contains(uid));
            open.gone.extend(finished);
            if open.write().len() > MAX_BYTES / 2 {
                // Those of released pods only tell who comes for them; they make way for others.
                let entries = open.pods.values();
                let named: BTreeSet<_> = entries.flat_map(|entry| entry.volumes.clone()).collect();
                open.volumes.retain(|volume, _| named.contains(volume));
            }
        }
        let newcomers = self.newcomers(rules, now);
        if !newcomers.is_empty() && !fresh {
            // What was read before the array was asked is too old to announce by.
            return Err(Box::new(Step::Survey));
        }
        self.announcing.clear();
        for group in newcomers.iter().take(self.batch) {
            let next = self.listed_with(journal.clone(), group, node, rules);
            // Otherwise it waits until entries are released.
            if next.fits() {
                journal = Some(next);
                for uid in &group.pods {
                    let id = group.id().unwrap_or(uid);
                    self.announcing.insert(uid.clone(), id.clone());
                }
                self.came(group, now);
            }
        }
        if let Some(open) = journal.as_mut().filter(|journal| journal.is_open()) {
            if rules.array_seen && open.array == Some(ArraySight::Lost) {
                open.array = Some(ArraySight::Seen);
            }
            if open.pods.is_empty() && open.array != Some(ArraySight::Lost) {
                open.phase = Phase::Closed;
            }
        }
        Ok(journal)
    }

    /// What was listed in vain: the node has healed, and no fence for it ever left this process. Whoever took over
    /// from another cannot know that, and goes forward.
    pub(super) fn in_vain(&self, open: &Journal, rules: &Rules) -> BTreeSet<PodUid> {
        let node = self.survey.as_ref().and_then(|survey| survey.node.as_ref());
        let healthy = node.is_some_and(|node| evidence(node, rules.array_lost).is_none());
        if !healthy || open.by != rules.by {
            return BTreeSet::new();
        }
        // A volume may stand behind several PersistentVolumes; a fence of one is a fence of all.
        let handles = |entry: &Entry| -> BTreeSet<&VolumeHandle> {
            let volumes = entry
                .volumes
                .iter()
                .filter_map(|name| open.volumes.get(name));
            volumes.map(|volume| &volume.handle).collect()
        };
        let sent = open
            .volumes
            .iter()
            .filter(|(name, _)| self.fences.sent(name));
        let mut struck: BTreeSet<&VolumeHandle> = sent.map(|(_, volume)| &volume.handle).collect();
        let mut kept: BTreeSet<&PodUid> = BTreeSet::new();
        // Until nothing more follows: one member's fence keeps its group, and the group's volumes keep others'.
        loop {
            let groups: BTreeSet<&PodUid> = kept
                .iter()
                .filter_map(|uid| self.announced.get(*uid))
                .map(|announced| &announced.group)
                .collect();
            let next = open.pods.iter().find(|(uid, entry)| {
                let group = self.announced.get(*uid).map(|announced| &announced.group);
                !kept.contains(uid)
                    && (self.must_go(uid, entry)
                        || group.is_some_and(|group| groups.contains(group))
                        || !handles(entry).is_disjoint(&struck))
            });
            let Some((uid, entry)) = next else { break };
            kept.insert(uid);
            struck.extend(handles(entry));
        }
        let vain = open.pods.keys().filter(|uid| !kept.contains(uid));
        vain.cloned().collect()
    }

    /// Whether an entry is beyond taking back by itself.
    fn must_go(&self, uid: &PodUid, entry: &Entry) -> bool {
        if entry.volumes.is_empty() {
            // Nothing was revoked: only a deletion that may still take effect counts.
            return self
                .leaving
                .get(uid)
                .is_some_and(|leaving| leaving.attempt.under_way || leaving.kept_since.is_some());
        }
        !self.announced.contains_key(uid) || self.leaving.contains_key(uid)
    }

    /// Nothing is listed any more and nothing was released: the journal goes, and the taint if it came with it.
    fn withdraw(&mut self, node: &Node) -> Step {
        self.withdrawing = true;
        tracing::info!(node = %self.node, "The node has healed before any fence was sent: nothing is evacuated");
        let taints = self
            .tainted
            .then(|| taint::without(&node.taints, &self.names.taint, taint::NO_SCHEDULE));
        Step::Patch(NodePatch {
            node: self.node.clone(),
            version: node.version.clone(),
            taints: taints.flatten(),
            journal: Some(None),
        })
    }

    /// The journal to go on from: what stands on the Node, or what stood there before somebody took it away.
    fn current(&self, node: &Node, found: &Found) -> Option<Journal> {
        match found {
            Found::Journal(journal) => Some(journal.clone()),
            Found::Absent | Found::Unreadable(_) => {
                let mut kept = self.journal.clone()?;
                kept.node = node.uid.clone();
                Some(kept)
            }
        }
    }

    /// Whether a journal of its own could not hold the group.
    pub(super) fn is_too_large(&self, group: &Group, rules: &Rules) -> bool {
        let node = self.node_object();
        group.pods.len() + group.volumes.len() > ALWAYS_FITS
            && node.is_some_and(|node| !self.listed_with(None, group, node, rules).fits())
    }

    /// The journal with this group listed; a closed one is opened again under a new id.
    fn listed_with(
        &self,
        journal: Option<Journal>,
        group: &Group,
        node: &Node,
        rules: &Rules,
    ) -> Journal {
        let mut journal = match journal {
            Some(journal) if journal.is_open() => journal,
            Some(closed) => Journal {
                gone: closed.gone,
                volumes: closed.volumes,
                ..self.blank(node, rules, group.cause)
            },
            None => self.blank(node, rules, group.cause),
        };
        let Some(survey) = &self.survey else {
            return journal;
        };
        if group.cause == Cause::ArrayConnectivityLoss {
            journal.array = Some(ArraySight::Lost);
        }
        for uid in &group.pods {
            let Some(pod) = survey.pods.get(uid) else {
                continue;
            };
            let volumes = survey
                .uses
                .get(uid)
                .map(|uses| uses.ours.clone())
                .unwrap_or_default();
            let key = pod.incarnation.key.clone();
            journal.pods.insert(uid.clone(), Entry { key, volumes });
        }
        for name in &group.volumes {
            let Some(volume) = survey.volumes.get(name) else {
                continue;
            };
            let attachment = survey.attachments_of(name).next().map(|a| a.uid.clone());
            journal.volumes.insert(
                name.clone(),
                Volume {
                    handle: volume.handle.clone(),
                    node_ids: node_ids(survey, name),
                    attachment: attachment.unwrap_or_else(|| AttachmentUid::from("")),
                },
            );
        }
        journal
    }

    fn blank(&self, node: &Node, rules: &Rules, why: Cause) -> Journal {
        Journal {
            version: VERSION,
            id: new_id(node, rules),
            by: rules.by.clone(),
            phase: Phase::Open,
            why,
            node: node.uid.clone(),
            boot: node.boot.to_string(),
            since: rules.wall.clone(),
            array: None,
            pods: Default::default(),
            volumes: Default::default(),
            gone: Default::default(),
        }
    }

    fn patch(&self, node: &Node, journal: Option<Journal>, rules: &Rules) -> Step {
        Step::Patch(NodePatch {
            node: self.node.clone(),
            version: node.version.clone(),
            taints: self.taints(node, journal.as_ref(), rules),
            // What is not ours to replace stays.
            journal: journal.map(Some),
        })
    }
}

/// Eight hexadecimal digits that differ from one evacuation to the next.
fn new_id(node: &Node, rules: &Rules) -> String {
    use sha2::{Digest, Sha256};
    let mut hash = Sha256::new();
    for part in [
        node.uid.as_str(),
        node.version.as_str(),
        &rules.by,
        &rules.wall,
    ] {
        hash.update(part);
        hash.update([0]);
    }
    let digest = hash.finalize();
    digest[..4]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
