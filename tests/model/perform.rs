//! Carries a step out on the double, as `controller::perform` does on the real API server and driver.

use podmon::clock::Moment;
use podmon::controller::step::{GUARD, Outcome, Refused, Sight, Step, Unfenced};
use podmon::domain::NodeName;

use crate::cluster::Cluster;

/// What the driver says of connectivity; every driver here is asked the same way.
pub fn perform(
    cluster: &mut Cluster,
    node: &NodeName,
    step: &Step,
    sight: Sight,
    now: Moment,
) -> Outcome {
    match step {
        Step::Survey => Outcome::Survey(Ok(cluster.survey(node, now))),
        Step::Look => Outcome::Look {
            at: now,
            node: Ok(cluster.nodes.get(node).cloned()),
        },
        Step::Ask(question) => Outcome::Ask {
            group: question.group.clone(),
            answer: Ok(sight),
        },
        Step::Patch(patch) => Outcome::Patch {
            at: now,
            node: cluster.patch(patch),
        },
        Step::ForgetInUse { version, volumes } => Outcome::ForgetInUse {
            at: now,
            node: cluster.forget_in_use(node, version, volumes),
        },
        Step::Fence(fence) => Outcome::Fence {
            evacuation: fence.evacuation.clone(),
            volume: fence.volume.clone(),
            node: fence.node.clone(),
            started: now,
            result: if now - fence.confirmed > GUARD {
                Err(Unfenced::Withheld)
            } else {
                cluster.unpublish(&fence.handle, &fence.node);
                Ok(())
            },
        },
        Step::DeletePod { pod, version } => Outcome::DeletePod {
            pod: pod.clone(),
            result: cluster.delete_pod(pod, version.as_ref()),
        },
        Step::DeleteAttachment { uid, .. } => Outcome::DeleteAttachment {
            uid: uid.clone(),
            result: Ok(cluster.delete_attachment(uid)),
        },
        Step::Report(_) => Outcome::Reported,
    }
}

/// The answer to a step that was not carried out, or whose answer was lost.
pub fn unanswered(step: &Step, now: Moment) -> Outcome {
    let lost = || "no answer".to_owned();
    let refused = || Refused::Failed(lost());
    match step {
        Step::Survey => Outcome::Survey(Err(lost())),
        Step::Look => Outcome::Look {
            at: now,
            node: Err(lost()),
        },
        Step::Ask(question) => Outcome::Ask {
            group: question.group.clone(),
            answer: Err(lost()),
        },
        Step::Patch(_) => Outcome::Patch {
            at: now,
            node: Err(refused()),
        },
        Step::ForgetInUse { .. } => Outcome::ForgetInUse {
            at: now,
            node: Err(refused()),
        },
        Step::Fence(fence) => Outcome::Fence {
            evacuation: fence.evacuation.clone(),
            volume: fence.volume.clone(),
            node: fence.node.clone(),
            started: now,
            result: Err(Unfenced::GivenUp(lost())),
        },
        Step::DeletePod { pod, .. } => Outcome::DeletePod {
            pod: pod.clone(),
            result: Err(refused()),
        },
        Step::DeleteAttachment { uid, .. } => Outcome::DeleteAttachment {
            uid: uid.clone(),
            result: Err(refused()),
        },
        Step::Report(_) => Outcome::Reported,
    }
}
