//! Rules switched off, one at a time, from outside: what podmon asks for, or is told, is falsified.

use podmon::clock::Moment;
use podmon::controller::step::{Outcome, Step, Unfenced};
use podmon::domain::NodeName;

use crate::cluster::{Cluster, node_id};
use crate::state::A;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Sabotage {
    Nothing,
    /// A fence says OK and does nothing.
    NoFence,
    /// A Node is patched whatever has become of it since it was read.
    NoVersion,
    /// The attachment goes before the pod.
    AttachmentFirst,
    /// The journal is written, the taint is not.
    NoTaint,
    /// A call that was given up is taken for one that was refused.
    GivenUpForgotten,
    /// A pod's volumes are not found, and so none has to be fenced.
    NothingFound,
    /// The node is known under another id than the one that the volume is published to.
    WrongId,
}

impl Sabotage {
    /// The step as it is carried out.
    pub fn step(self, step: &Step, cluster: &mut Cluster) -> Step {
        match (self, step) {
            (Self::NoVersion, Step::Patch(patch)) => {
                let mut patch = patch.clone();
                if let Some(node) = cluster.nodes.get(&patch.node) {
                    patch.version = node.version.clone();
                }
                Step::Patch(patch)
            }
            (Self::NoTaint, Step::Patch(patch)) => {
                let mut patch = patch.clone();
                patch.taints = None;
                Step::Patch(patch)
            }
            _ => step.clone(),
        }
    }

    /// What comes instead of the step's effect.
    pub fn instead(self, step: &Step, cluster: &Cluster, now: Moment) -> Option<Outcome> {
        match (self, step) {
            (Self::NoFence, Step::Fence(fence)) => Some(Outcome::Fence {
                evacuation: fence.evacuation.clone(),
                volume: fence.volume.clone(),
                node: fence.node.clone(),
                started: now,
                result: Ok(()),
            }),
            (Self::NothingFound, Step::Survey) => {
                let mut survey = cluster.survey(&A.into(), now);
                for uses in survey.uses.values_mut() {
                    uses.ours.clear();
                }
                Some(Outcome::Survey(Ok(survey)))
            }
            (Self::WrongId, Step::Survey) => {
                let mut survey = cluster.survey(&A.into(), now);
                for attachment in survey.attachments.values_mut() {
                    attachment.node_id = None;
                }
                survey.registered_id = Some(node_id(&NodeName::from("another")));
                Some(Outcome::Survey(Ok(survey)))
            }
            _ => None,
        }
    }

    /// What podmon is told.
    pub fn outcome(self, mut outcome: Outcome) -> Outcome {
        if self == Self::GivenUpForgotten
            && let Outcome::Fence { result, .. } = &mut outcome
            && let Err(Unfenced::GivenUp(text)) = result
        {
            *result = Err(Unfenced::Refused(std::mem::take(text)));
        }
        outcome
    }
}
