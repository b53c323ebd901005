//! From evidence to a group that may be begun: what stands against it, and what the array says.

use std::time::Duration;

use super::{Attempt, Evacuation, Rules};
use crate::clock::Moment;
use crate::cluster::node::Node;
use crate::cluster::pod::{Phase, Pod};
use crate::controller::group::{self, Group, node_ids};
use crate::controller::refusal::{Hold, Refusal};
use crate::controller::step::{Question, Sight, Step};
use crate::domain::PodUid;
use crate::journal::{Cause, Found};
use crate::taint;

/// How long an answer that speaks for a group may be acted on.
const ANSWER_HOLDS: Duration = Duration::from_secs(5);
/// When to ask again after a veto, since the array's sample moves on: from the first to the last time.
const VETO_AGAIN: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(10));
/// How long a pod that came to an evacuated node is left before it is removed: from the first to the last time.
const COMER_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// What the array said of one group.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Ask {
    pub(super) attempt: Attempt,
    vetoes: u32,
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
            // Unresolved is not volumeless.
            groups.retain(|group| !group.volumes.is_empty() || group.refusal.is_some());
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
            // Where no group is begun the array is left in peace, but to find out.
            let asks = rules.hold.is_none_or(|hold| hold == Hold::DetectOnly);
            let verdict = match (&group.refusal, asks) {
                (None, false) => Ok(()),
                _ => self.cleared(&group, rules, now, Some(steps)),
            };
            let refusal = match verdict {
                Err(refusal) => refusal,
                Ok(()) => rules.hold.map(Refusal::Held),
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
        if self.is_too_large(group, rules) {
            return Err(Some(Refusal::TooLarge));
        }
        let Some(question) = self.question(group) else {
            return Err(Some(Refusal::NoNodeId));
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
        let published = group
            .volumes
            .iter()
            .flat_map(|volume| node_ids(survey, volume));
        let node = published.chain(group::own_ids(survey)).next()?;
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
                ask.vetoes += 1;
                let wait = VETO_AGAIN.0 * ask.vetoes;
                ask.attempt.not_before = now + wait.min(VETO_AGAIN.1);
            }
            Ok(_) => ask.attempt.succeeded(),
            Err(_) => ask.attempt.failed(now),
        }
        ask.answer = Some((now, answer));
    }

    /// The groups that may be announced now.
    pub(super) fn newcomers(&mut self, rules: &Rules, now: Moment) -> Vec<Group> {
        let mut newcomers = Vec::new();
        if rules.hold.is_none() {
            for group in self.groups(rules) {
                if let Some(again) = self.too_soon(&group, now) {
                    self.wake_at(again);
                } else if self.cleared(&group, rules, now, None).is_ok() {
                    newcomers.push(group);
                }
            }
        }
        newcomers.extend(self.struck());
        newcomers.extend(self.comers(now));
        newcomers
    }

    /// Protected pods here whose volume a late fence may have revoked: none is left running on it (design.md,
    /// invariant 5), whatever the node's health.
    pub(super) fn struck(&self) -> Vec<Group> {
        let Some(survey) = &self.survey else {
            return Vec::new();
        };
        let listed = self.listed();
        let hit = |pod: &&Pod| {
            let uid = &pod.incarnation.uid;
            let uses = survey.uses.get(uid);
            pod.protected
                && !pod.finished()
                && !listed.contains(uid)
                && uses.is_some_and(|uses| {
                    uses.problem.is_none() && uses.ours.iter().any(|v| self.struck.contains_key(v))
                })
        };
        let group = |pod: &Pod| Group {
            pods: [pod.incarnation.uid.clone()].into(),
            volumes: survey.uses[&pod.incarnation.uid].ours.clone(),
            cause: Cause::NodeFailure,
            refusal: None,
        };
        survey.pods.values().filter(hit).map(group).collect()
    }

    /// Protected pods that came to the evacuated node after all and want a volume that was fenced: they tolerate the
    /// taint, or name the node. Fenced and removed again, ever more slowly.
    fn comers(&mut self, now: Moment) -> Vec<Group> {
        let Some(survey) = &self.survey else {
            return Vec::new();
        };
        // A closed journal still says what was revoked here.
        let standing = survey.node.as_ref().map(Node::read_journal);
        let journal = match (&self.journal, standing) {
            (Some(journal), _) => journal.clone(),
            (None, Some(Found::Journal(journal))) => journal,
            _ => return Vec::new(),
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
            let group = Group {
                pods: [uid].into(),
                volumes,
                cause: journal.why,
                refusal: None,
            };
            match self.too_soon(&group, now) {
                Some(again) => self.wake_at(again),
                None => groups.push(group),
            }
        }
        groups
    }

    /// When a group of pods that only just came here may be removed, where their like was removed before.
    fn too_soon(&self, group: &Group, now: Moment) -> Option<Moment> {
        let survey = self.survey.as_ref()?;
        let pods = group.pods.iter().filter_map(|uid| survey.pods.get(uid));
        let came = pods.filter(|pod| pod.phase == Phase::Pending && !pod.started);
        let times = came.filter_map(|pod| self.comers.get(&pod.owner));
        let latest = times.map(|(_, not_before)| *not_before).max();
        latest.filter(|not_before| now < *not_before)
    }

    /// Notes that pods of a group were listed as comers, so that their successors wait longer each time.
    pub(super) fn came(&mut self, group: &Group, now: Moment) {
        let Some(survey) = &self.survey else { return };
        let pods = group.pods.iter().filter_map(|uid| survey.pods.get(uid));
        for pod in pods.filter(|pod| pod.phase == Phase::Pending && !pod.started) {
            let (count, not_before) = self.comers.entry(pod.owner.clone()).or_default();
            let wait = COMER_BACKOFF.0 * 2_u32.saturating_pow((*count).min(10));
            *count += 1;
            *not_before = now + wait.min(COMER_BACKOFF.1);
        }
    }
}
