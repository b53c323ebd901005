//! How Kubernetes learns at once that the volumes are free: without it the attach-detach controller notices at its own
//! tick, a minute by default. Only speed, never safety, depends on this.

use super::{Evacuation, IN_USE_TRIES, Rules};
use crate::clock::Moment;
use crate::cluster::node::Node;
use crate::cluster::pod::Pod;
use crate::controller::decide;
use crate::controller::step::Step;
use crate::journal::Journal;
use crate::taint::{self, Taint};

impl Evacuation {
    /// The taints that go with this journal; `None` where they are there.
    pub(super) fn taints(
        &self,
        node: &Node,
        journal: Option<&Journal>,
        rules: &Rules,
    ) -> Option<Vec<Taint>> {
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
        if self.in_use_forbidden || self.in_use_failures >= IN_USE_TRIES {
            return None;
        }
        let journal = self.journal.as_ref()?;
        let node = self.node_object()?;
        let fenced: Vec<String> = journal
            .volumes
            .iter()
            .filter(|(name, volume)| self.fences.stands(name, volume, now))
            .map(|(_, volume)| format!("kubernetes.io/csi/{}^{}", self.names.driver, volume.handle))
            .filter(|name| !self.forgotten.contains(name))
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
