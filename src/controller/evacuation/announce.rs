//! From evidence to announcement: which groups may be begun, and what is written on the Node.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Attempt, Evacuation, FRESH, IN_USE_TRIES, Rules};
use crate::clock::Moment;
use crate::cluster::NodePatch;
use crate::cluster::node::Node;
use crate::cluster::pod::{Phase, Pod};
use crate::controller::decide::{self, evidence};
use crate::controller::group::{self, Group, node_ids};
use crate::controller::refusal::Refusal;
use crate::controller::step::{Question, Sight, Step};
use crate::domain::{AttachmentUid, PodUid, VolumeName};
use crate::journal::{
    ArraySight, Cause, Entry, Found, Journal, Phase as JournalPhase, VERSION, Volume,
};
use crate::taint::{self, Taint};

/// How long an answer that speaks for a group may be acted on.
const ANSWER_HOLDS: Duration = Duration::from_secs(5);
/// When to ask again after a veto: the array's sample moves on.
const VETO_AGAIN: Duration = Duration::from_secs(2);
/// How long a pod that came to an evacuated node is left before it is removed: from the first to the last time.
const COMER_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// What the array said of one group.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Ask {
    pub(super) attempt: Attempt,
    pub(super) answer: Option<(Moment, Result<Sight, String>)>,
}

impl Evacuation {
    /// The groups that may have to be evacuated, none of them listed.
    pub(super) fn groups(&self, rules: &Rules) -> Vec<Group> {
        let Some(survey) = &self.survey else {
            return Vec::new();
        };
        let listed = self.listed();
        let mut groups = group::groups(survey, rules.array_lost, |uid| listed.contains(uid));
        if rules.ignore_volumeless {
            groups.retain(|group| !group.volumes.is_empty());
        }
        groups
    }

    /// Asks, refuses, and says so. What is left over is announced by [`Self::write_node`].
    pub(super) fn advance_groups(&mut self, rules: &Rules, now: Moment, steps: &mut Vec<Step>) {
        let groups = self.groups(rules);
        self.asks.retain(|id, ask| {
            ask.attempt.under_way || groups.iter().any(|group| group.id() == Some(id))
        });
        for group in groups {
            let refusal = match (self.cleared(&group, rules, now, Some(steps)), rules.hold) {
                (Err(refusal), _) => refusal,
                (Ok(()), hold) => hold.map(Refusal::Held),
            };
            if let Some(refusal) = refusal {
                for uid in &group.pods {
                    self.refuse(uid, group.cause, &refusal, steps);
                }
            }
        }
    }

    /// Whether nothing stands against the group now. `Err(None)`: not known yet. With `steps` it asks what is missing.
    fn cleared(
        &mut self,
        group: &Group,
        rules: &Rules,
        now: Moment,
        steps: Option<&mut Vec<Step>>,
    ) -> Result<(), Option<Refusal>> {
        if let Some(refusal) = &group.refusal {
            return Err(Some(refusal.clone()));
        }
        let Some(question) = self.question(group) else {
            // No volume of ours: there is nothing to ask the array about.
            return Ok(());
        };
        let ask = self.asks.entry(question.group.clone()).or_default();
        let verdict = match &ask.answer {
            Some((at, _)) if now - *at >= ANSWER_HOLDS => Err(None),
            Some((_, Ok(sight))) => Ok(*sight),
            Some((_, Err(error))) => Err(Some(Refusal::Unanswered(error.clone()))),
            None => Err(None),
        };
        let verdict = verdict.and_then(|sight| match sight {
            Sight::Unsupported => Ok(()),
            Sight::Seen { connected, io } => {
                let vetoed = (connected && !self.ignores_connection(group.cause)) || io;
                if vetoed {
                    Err(Some(Refusal::Veto))
                } else {
                    Ok(())
                }
            }
        });
        let verdict = match verdict {
            // The operator's word, as the contract defines it, against a veto and against no answer.
            Err(Some(_)) if rules.skip_array_validation && self.evicting() => Ok(()),
            verdict => verdict,
        };
        if verdict.is_err()
            && let (Some(steps), Some(ask)) = (steps, self.asks.get_mut(&question.group))
        {
            if ask.attempt.due(now) {
                ask.attempt.begin();
                steps.push(Step::Ask(question));
            } else if !ask.attempt.under_way {
                let again = ask.attempt.not_before;
                self.wake_at(again);
            }
        }
        verdict
    }

    fn question(&self, group: &Group) -> Option<Question> {
        let survey = self.survey.as_ref()?;
        let node = group
            .volumes
            .iter()
            .find_map(|volume| node_ids(survey, volume).into_iter().next())?;
        let (mut exclusive, mut shared) = (Vec::new(), Vec::new());
        for volume in group
            .volumes
            .iter()
            .filter_map(|name| survey.volumes.get(name))
        {
            let kind = if volume.many_writers {
                &mut shared
            } else {
                &mut exclusive
            };
            kind.push(volume.handle.clone());
        }
        Some(Question {
            group: group.id()?.clone(),
            node,
            exclusive,
            shared,
        })
    }

    /// Our own taint, and an operator's out-of-service, lift the veto by connection; never that by I/O.
    fn ignores_connection(&self, cause: Cause) -> bool {
        cause == Cause::OutOfService
            || self
                .node_object()
                .is_some_and(|node| node.tainted(&self.names))
    }

    /// Kubernetes is evicting from the node: the contract's condition for skipping the array's answer.
    fn evicting(&self) -> bool {
        self.node_object()
            .is_some_and(|node| taint::has(&node.taints, taint::UNREACHABLE, "NoExecute"))
    }

    pub(super) fn record_answer(
        &mut self,
        group: PodUid,
        answer: Result<Sight, String>,
        now: Moment,
    ) {
        let Some(ask) = self.asks.get_mut(&group) else {
            return;
        };
        ask.attempt.under_way = false;
        match &answer {
            Ok(
                Sight::Seen {
                    connected: true, ..
                }
                | Sight::Seen { io: true, .. },
            ) => {
                ask.attempt.succeeded();
                ask.attempt.not_before = now + VETO_AGAIN;
            }
            Ok(_) => ask.attempt.succeeded(),
            Err(_) => ask.attempt.failed(now),
        }
        ask.answer = Some((now, answer));
    }

    /// The patch that is due, if any: taint and journal together, computed from the Node as last read.
    pub(super) fn write_node(&mut self, rules: &Rules, now: Moment) -> Option<Step> {
        let node = self.node_object()?.clone();
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
        let mut journal = self.current(&node, &found);
        let before = journal.clone();
        let fresh = self
            .survey
            .as_ref()
            .is_some_and(|survey| now - survey.at < FRESH);
        if let Some(open) = journal.as_mut().filter(|journal| journal.is_open()) {
            let vain = self.in_vain(open, rules);
            if !vain.is_empty() && !fresh {
                return Some(Step::Survey);
            }
            open.pods.retain(|uid, _| !vain.contains(uid));
            if !vain.is_empty() && open.pods.is_empty() && open.gone.is_empty() {
                return Some(self.withdraw(&node));
            }
        }
        let newcomers = self.newcomers(rules, now);
        let fresh = self
            .survey
            .as_ref()
            .is_some_and(|survey| now - survey.at < FRESH);
        if !newcomers.is_empty() && !fresh {
            // What was read before the array was asked is too old to announce by.
            return Some(Step::Survey);
        }
        for group in &newcomers {
            let mut next = self.listed_with(journal.clone(), group, &node, rules);
            if next.fits() {
                journal = Some(next);
                continue;
            }
            if journal
                .as_ref()
                .is_none_or(|journal| journal.pods.is_empty())
            {
                next.pods.clear();
                self.said_too_large(group);
            }
        }
        if let Some(open) = journal.as_mut().filter(|journal| journal.is_open()) {
            let (finished, needs_survey) = self.finished(open, now);
            if needs_survey {
                return Some(Step::Survey);
            }
            for uid in finished {
                open.pods.remove(&uid);
                open.gone.insert(uid);
            }
            let named: Vec<_> = open
                .pods
                .values()
                .flat_map(|entry| entry.volumes.clone())
                .collect();
            open.volumes.retain(|volume, _| named.contains(volume));
            if rules.array_seen && open.array == Some(ArraySight::Lost) {
                open.array = Some(ArraySight::Seen);
            }
            if open.pods.is_empty() && open.array != Some(ArraySight::Lost) {
                open.phase = JournalPhase::Closed;
            }
        }
        let untainted =
            journal.as_ref().is_some_and(Journal::is_open) && !node.tainted(&self.names);
        let unchanged = journal == before && !untainted;
        match (&found, unchanged) {
            // Nothing fresh speaks against the node: the unreadable journal gives way to a closed one of ours.
            (Found::Unreadable(_), true) if journal.is_none() && self.groups(rules).is_empty() => {
                let mut closed = self.blank(&node, rules, Cause::NodeFailure);
                closed.phase = JournalPhase::Closed;
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

    /// What was listed in vain: the node has healed, and no fence for it ever left this process. Whoever took over
    /// from another cannot know that, and goes forward.
    pub(super) fn in_vain(&self, open: &Journal, rules: &Rules) -> BTreeSet<PodUid> {
        let node = self.survey.as_ref().and_then(|survey| survey.node.as_ref());
        let healthy = node.is_some_and(|node| evidence(node, rules.array_lost).is_none());
        if !healthy || self.adopted.is_some() || open.by != rules.by {
            return BTreeSet::new();
        }
        let begun = |uid: &PodUid, entry: &Entry| {
            self.leaving.contains_key(uid) || entry.volumes.iter().any(|v| self.fences.sent(v))
        };
        // Members of a group share volumes, so that one fence keeps all of them listed.
        let entries = open.pods.iter().filter(|(uid, entry)| begun(uid, entry));
        let kept: BTreeSet<&VolumeName> = entries.flat_map(|(_, entry)| &entry.volumes).collect();
        let vain = open.pods.iter().filter(|(uid, entry)| {
            !begun(uid, entry) && !entry.volumes.iter().any(|volume| kept.contains(volume))
        });
        vain.map(|(uid, _)| uid.clone()).collect()
    }

    /// Nothing is listed any more and nothing was released: the journal goes, and the taint if it came with it.
    fn withdraw(&self, node: &Node) -> Step {
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

    /// The groups that may be announced now.
    fn newcomers(&mut self, rules: &Rules, now: Moment) -> Vec<Group> {
        let mut newcomers = Vec::new();
        if rules.hold.is_none() {
            for group in self.groups(rules) {
                if self.cleared(&group, rules, now, None).is_ok() {
                    newcomers.push(group);
                }
            }
        }
        newcomers.extend(self.comers(now));
        newcomers
    }

    /// Protected pods that came to the evacuated node after all and want a volume that was fenced: they tolerate the
    /// taint, or name the node. Fenced and removed again, ever more slowly.
    fn comers(&mut self, now: Moment) -> Vec<Group> {
        let Some(survey) = &self.survey else {
            return Vec::new();
        };
        let Some(journal) = self.journal.clone() else {
            return Vec::new();
        };
        let listed = self.listed();
        let came = |pod: &&Pod| {
            let uid = &pod.incarnation.uid;
            let uses = survey.uses.get(uid);
            pod.protected
                && pod.phase == Phase::Pending
                && !pod.started
                && !listed.contains(uid)
                && !journal.gone.contains(uid)
                && uses.is_some_and(|uses| {
                    uses.problem.is_none()
                        && uses.ours.iter().any(|v| journal.volumes.contains_key(v))
                })
        };
        let pods: Vec<Pod> = survey.pods.values().filter(came).cloned().collect();
        let mut groups = Vec::new();
        for pod in pods {
            let uid = pod.incarnation.uid.clone();
            let volumes = self
                .survey
                .as_ref()
                .and_then(|survey| survey.uses.get(&uid));
            let volumes = volumes.map(|uses| uses.ours.clone()).unwrap_or_default();
            let (count, not_before) = self.comers.entry(pod.owner.clone()).or_insert((0, now));
            if now < *not_before {
                let at = *not_before;
                self.wake_at(at);
                continue;
            }
            let wait = COMER_BACKOFF.0 * 2_u32.saturating_pow((*count).min(10));
            *count += 1;
            *not_before = now + wait.min(COMER_BACKOFF.1);
            groups.push(Group {
                pods: [uid].into(),
                volumes,
                cause: journal.why,
                refusal: None,
            });
        }
        groups
    }

    fn said_too_large(&mut self, group: &Group) {
        for uid in &group.pods {
            if self.said.insert(uid.clone(), Refusal::TooLarge) != Some(Refusal::TooLarge) {
                tracing::warn!(pod = %uid, node = %self.node, "Not evacuated: {}", Refusal::TooLarge);
            }
        }
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
            phase: JournalPhase::Open,
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
            journal: Some(journal),
        })
    }

    /// The taints that go with this journal; `None` where they are there.
    fn taints(&self, node: &Node, journal: Option<&Journal>, rules: &Rules) -> Option<Vec<Taint>> {
        let taint = |key: &str, value: Option<&str>| Taint {
            key: key.to_owned(),
            value: value.map(str::to_owned),
            effect: taint::NO_SCHEDULE.into(),
            time_added: Some(rules.wall.clone()),
        };
        let open = journal.filter(|journal| journal.is_open());
        let ours = open.and_then(|_| taint::with(&node.taints, taint(&self.names.taint, None)));
        let before = ours.as_ref().unwrap_or(&node.taints);
        let wanted = open.is_some_and(|open| self.wants_out_of_service(open, rules));
        let set = before.iter().any(decide::is_own_out_of_service);
        let released = match (wanted, set) {
            (true, false) => {
                let value = Some(decide::OWN_OUT_OF_SERVICE);
                taint::with(before, taint(taint::OUT_OF_SERVICE, value))
            }
            (false, true) => {
                let foreign = before
                    .iter()
                    .filter(|taint| !decide::is_own_out_of_service(taint));
                Some(foreign.cloned().collect())
            }
            _ => None,
        };
        released.or(ours)
    }

    /// Whether our out-of-service taint would make the attach-detach controller let go now: pods are gone, attachments
    /// left, the better way forbidden, and nothing of others terminates here that it would force-delete as well.
    fn wants_out_of_service(&self, open: &Journal, rules: &Rules) -> bool {
        let Some(survey) = &self.survey else {
            return false;
        };
        let foreign = |pod: &Pod| pod.terminating && !open.pods.contains_key(&pod.incarnation.uid);
        rules.out_of_service_release
            && self.in_use_forbidden
            && !survey.pods.values().any(foreign)
            && open.pods.iter().any(|(uid, entry)| {
                let mut volumes = entry.volumes.iter();
                !survey.pods.contains_key(uid)
                    && volumes.any(|name| survey.attachments_of(name).next().is_some())
            })
    }

    /// The patch of `status.volumesInUse` that is due: the fenced volumes go, all others stay.
    pub(super) fn forget_in_use(&self, now: Moment) -> Option<Step> {
        if self.in_use_forbidden || self.in_use_tries >= IN_USE_TRIES {
            return None;
        }
        let journal = self.journal.as_ref()?;
        let node = self.node_object()?;
        let fenced: Vec<String> = journal
            .volumes
            .iter()
            .filter(|(name, volume)| self.fences.stands(name, volume, now))
            .map(|(_, volume)| format!("kubernetes.io/csi/{}^{}", self.names.driver, volume.handle))
            .collect();
        let stay: Vec<String> = node
            .volumes_in_use
            .iter()
            .filter(|name| !fenced.contains(name))
            .cloned()
            .collect();
        (stay.len() < node.volumes_in_use.len()).then(|| Step::ForgetInUse {
            version: node.version.clone(),
            volumes: stay,
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
