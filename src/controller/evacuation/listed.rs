//! From announcement to release: what is done for the entries of the journal (the rows of protocol.md §3).

use super::{
    AFTER_ADOPTION, Evacuation, FENCE_GUARD, FENCE_STANDS, KEPT_TOO_LONG, Release, Rules, warning,
};
use crate::clock::Moment;
use crate::cluster::attachment::Attachment;
use crate::cluster::pod::Pod;
use crate::cluster::survey::Survey;
use crate::controller::refusal::Refusal;
use crate::controller::step::{Fence, Step};
use crate::domain::{PodUid, VolumeName};
use crate::journal::{Entry, Found, Journal, Volume};

/// One pass over the entries: what it goes by, and what it brings.
struct Pass<'a> {
    survey: &'a Survey,
    journal: &'a Journal,
    republishes: bool,
    /// Fenced volumes are about to be taken out of `status.volumesInUse`.
    in_use: bool,
    now: Moment,
    steps: &'a mut Vec<Step>,
    refusals: Vec<(PodUid, Refusal)>,
}

impl Evacuation {
    /// Fences, deletions and releases that may run now.
    pub(super) fn advance_listed(&mut self, rules: &Rules, now: Moment, steps: &mut Vec<Step>) {
        self.fences.wait(false);
        // Only what the API confirmed as ours to do; adoption comes first.
        let Some(journal) = self
            .journal
            .clone()
            .filter(|journal| journal.by == rules.by)
        else {
            return;
        };
        let vain = self.in_vain(&journal, rules);
        let writing = self.writes.under_way || self.writes.due(now);
        let in_use = writing && self.forget_in_use(now).is_some();
        let Some(survey) = self.survey.take() else {
            return;
        };
        let mut pass = Pass {
            survey: &survey,
            journal: &journal,
            republishes: rules.republishes,
            in_use,
            now,
            steps,
            refusals: Vec::new(),
        };
        // What is about to be taken back must not be fenced meanwhile.
        for (uid, entry) in journal.pods.iter().filter(|(uid, _)| !vain.contains(*uid)) {
            match survey.pods.get(uid) {
                Some(pod) => self.advance_bound(pod, entry, &mut pass),
                None => self.advance_absent(uid, entry, &mut pass),
            }
        }
        let refusals = pass.refusals;
        self.survey = Some(survey);
        for (uid, refusal) in refusals {
            self.refuse(&uid, journal.why, &refusal, steps);
        }
    }

    /// The pod is still bound here: fence every volume, then delete it.
    fn advance_bound(&mut self, pod: &Pod, entry: &Entry, pass: &mut Pass<'_>) {
        let uid = &pod.incarnation.uid;
        let (mut standing, mut error) = (true, None);
        self.mind_publishes(uid, entry, pass);
        let listed = self
            .announced
            .get(uid)
            .map_or(Moment::default(), |announced| announced.at);
        for name in &entry.volumes {
            let Some(volume) = pass.journal.volumes.get(name) else {
                continue;
            };
            let stands = self.fences.stands(name, volume, pass.now)
                && self.fences.stands_since(name, volume, listed);
            if !stands {
                standing = false;
                self.fence(name, volume, listed, pass);
                let failed = self.fences.error(name, volume).map(str::to_owned);
                error = error.or(failed);
            }
        }
        if let Some(error) = error {
            pass.refusals.push((uid.clone(), Refusal::NotFenced(error)));
        }
        // Learned after the pod's end, it would let the attach-detach controller act only at its next tick.
        if !standing || pass.in_use {
            return;
        }
        let leaving = self.leaving.entry(uid.clone()).or_default();
        if let Some(since) = leaving.kept_since {
            if pass.now - since >= KEPT_TOO_LONG {
                let refusal = Refusal::Kept(pod.finalizers.clone());
                pass.refusals.push((uid.clone(), refusal));
            } else {
                self.wake_at(since + KEPT_TOO_LONG);
            }
            return;
        }
        if !leaving.attempt.due(pass.now) {
            if !leaving.attempt.under_way {
                let at = leaving.attempt.not_before;
                self.wake_at(at);
            }
            return;
        }
        leaving.attempt.begin();
        if !std::mem::replace(&mut leaving.announced, true) {
            let (key, why) = (&pod.incarnation.key, pass.journal.why);
            tracing::info!(pod = %key, %uid, node = %self.node, cause = ?why, "Every volume fenced; deleting the pod");
            let text = format!(
                "podmon cleaning pod [{uid} {}] with force delete",
                self.node
            );
            pass.steps
                .push(warning(&pod.incarnation, format!("{why:?}"), text));
        }
        pass.steps.push(Step::DeletePod {
            pod: pod.incarnation.clone(),
            // Without volumes there is no fence that makes a recovered pod useless anyway.
            version: entry.volumes.is_empty().then(|| pod.version.clone()),
        });
    }

    /// The pod is gone: release its volumes, unless another pod here uses them.
    fn advance_absent(&mut self, uid: &PodUid, entry: &Entry, pass: &mut Pass<'_>) {
        self.mind_publishes(uid, entry, pass);
        for name in &entry.volumes {
            let Some(volume) = pass.journal.volumes.get(name) else {
                continue;
            };
            if let Some(user) = pass.survey.users_of(&volume.handle).next() {
                // One that is listed goes the same way; any other has to be moved by people.
                if !pass.journal.pods.contains_key(&user.incarnation.uid) {
                    let with = user.incarnation.key.clone();
                    let volume = name.clone();
                    let refusal = Refusal::Shared { volume, with };
                    pass.refusals.push((user.incarnation.uid.clone(), refusal));
                }
                continue;
            }
            let marked = pass
                .survey
                .attachments_of(name)
                .all(|attachment| attachment.deleting);
            let release = self.releases.entry(name.clone()).or_default();
            release.again |= pass.republishes;
            // One that turned up after the others were marked: its publish has to be undone as well.
            release.marked = marked.then(|| release.marked.unwrap_or(pass.now));
            let again = release.marked.filter(|_| release.again);
            // A call that was given up may act still: only a later one that says OK ends that.
            if let Some(since) = again.max(self.fences.unsettled(name)) {
                self.fence(name, volume, since, pass);
            }
            if marked {
                continue;
            }
            if self.fences.stands(name, volume, pass.now) {
                self.detach(name, pass);
            } else {
                self.fence(name, volume, Moment::default(), pass);
            }
        }
    }

    /// Notes which volumes a publish may be given back: a fence that stands says nothing of what comes after it.
    fn mind_publishes(&mut self, uid: &PodUid, entry: &Entry, pass: &Pass<'_>) {
        for name in &entry.volumes {
            let Some(volume) = pass.journal.volumes.get(name) else {
                continue;
            };
            // What another leader saw of them is not known.
            let inherited = !self.announced.contains_key(uid);
            // Another one than was announced, or one through which a publish may be under way.
            let mut attachments = pass.survey.attachments_of(name);
            let open = |a: &Attachment| inherited || a.uid != volume.attachment || !a.attached;
            if attachments.any(open) {
                self.releases.entry(name.clone()).or_default().again = true;
            }
        }
    }

    fn detach(&mut self, name: &VolumeName, pass: &mut Pass<'_>) {
        for attachment in pass.survey.attachments_of(name).filter(|a| !a.deleting) {
            let attempt = self.detaching.entry(attachment.uid.clone()).or_default();
            if attempt.due(pass.now) {
                attempt.begin();
                pass.steps.push(Step::DeleteAttachment {
                    name: attachment.name.clone(),
                    uid: attachment.uid.clone(),
                });
            } else if !attempt.under_way {
                let at = attempt.not_before;
                self.wake_at(at);
            }
        }
    }

    /// Fences the volume for every id that was not fenced since then, if the Node was read a moment ago.
    fn fence(&mut self, name: &VolumeName, volume: &Volume, since: Moment, pass: &mut Pass<'_>) {
        let standing =
            Moment::since_boot((pass.now - Moment::default()).saturating_sub(FENCE_STANDS));
        let (due, next) = self.fences.due(name, volume, since.max(standing), pass.now);
        if let Some(next) = next {
            self.wake_at(next);
        }
        if due.is_empty() {
            return;
        }
        if pass.now - self.node_read >= FENCE_GUARD || !guards(pass.survey, pass.journal) {
            self.fences.wait(true);
            return;
        }
        for node in due {
            self.fences.begin(name, &node);
            let known = pass.survey.volumes.get(name);
            pass.steps.push(Step::Fence(Fence {
                evacuation: pass.journal.id.clone(),
                volume: name.clone(),
                handle: volume.handle.clone(),
                secret: known.and_then(|volume| volume.secret.clone()),
                node,
                confirmed: self.node_read,
            }));
        }
    }

    /// The entries that are done with, and whether the API has to be read once more before that may be said.
    pub(super) fn finished(&mut self, journal: &Journal, now: Moment) -> (Vec<PodUid>, bool) {
        let Some(survey) = &self.survey else {
            return (Vec::new(), false);
        };
        let mut finished = Vec::new();
        let mut wake: Option<Moment> = None;
        for (uid, entry) in &journal.pods {
            let mut volumes = entry.volumes.iter();
            let released = |name: &VolumeName| {
                journal
                    .volumes
                    .get(name)
                    .is_none_or(|volume| self.released(name, volume, survey))
            };
            if survey.pods.contains_key(uid) || !volumes.all(released) {
                continue;
            }
            let quiet = entry
                .volumes
                .iter()
                .map(|name| self.fences.quiet_from(name));
            let Some(quiet) = quiet.collect::<Option<Vec<_>>>() else {
                continue;
            };
            let adopted = self.adopted.map(|adopted| adopted + AFTER_ADOPTION);
            match quiet
                .into_iter()
                .chain(adopted)
                .max()
                .filter(|from| now < *from)
            {
                Some(from) => wake = Some(wake.map_or(from, |wake| wake.min(from))),
                None => finished.push(uid.clone()),
            }
        }
        let outdated = !finished.is_empty() && survey.at < self.changed;
        if let Some(wake) = wake {
            self.wake_at(wake);
        }
        if outdated {
            (Vec::new(), true)
        } else {
            (finished, false)
        }
    }

    /// Whether nothing can give the node its access back any more.
    fn released(&self, name: &VolumeName, volume: &Volume, survey: &Survey) -> bool {
        let held = survey.attachments_of(name).next().is_some()
            || survey.users_of(&volume.handle).next().is_some();
        let fenced_again = match self.releases.get(name) {
            Some(Release {
                again: true,
                marked,
            }) => marked.is_some_and(|marked| self.fences.stands_since(name, volume, marked)),
            _ => true,
        };
        !held && fenced_again
    }
}

/// The Node as last read lets us fence: its journal is the one we go by, or there is no such Node (protocol.md §5,
/// guard 1).
fn guards(survey: &Survey, journal: &Journal) -> bool {
    survey
        .node
        .as_ref()
        .is_none_or(|node| match node.read_journal() {
            Found::Journal(found) => {
                found.is_open() && found.id == journal.id && found.by == journal.by
            }
            Found::Absent | Found::Unreadable(_) => false,
        })
}
