//! A state and an action in a line or two, to read a counterexample by.

use podmon::clock::Moment;
use podmon::controller::step::Step;
use podmon::domain::NodeName;
use podmon::journal::Journal;

use crate::state::{A, Action, Fault, START, State};

/// What the model is at.
pub fn state(state: &State) -> String {
    let cluster = &state.cluster;
    let since = |moment: Moment| (moment - Moment::since_boot(START)).as_secs();
    let pods = cluster.pods.iter().map(|(uid, pod)| {
        let node = pod.node.as_ref().map_or("-", |node| node.as_str());
        let mark = |on, mark: &'static str| if on { mark } else { "" };
        format!(
            "{uid}@{node}{}{}",
            mark(pod.ready, " ready"),
            mark(pod.started, " started")
        )
    });
    let attachments = cluster.attachments.values().map(|a| {
        let mark = if a.deleting {
            " deleting"
        } else if a.attached {
            " attached"
        } else {
            ""
        };
        format!("{}{mark}", a.uid)
    });
    let access = cluster
        .access
        .iter()
        .map(|(volume, node)| format!("{volume}:{node}"));
    let node = cluster.nodes.get(&NodeName::from(A)).map(|node| {
        let taints = node.taints.iter().map(|taint| taint.key.as_str());
        format!(
            "{} ready {} {}",
            node.version,
            node.ready,
            taints.collect::<Vec<_>>().join(" ")
        )
    });
    let journal = cluster.journal(A).map(|found| journal(&found));
    let wake = state
        .evacuation
        .as_ref()
        .map(|evacuation| evacuation.wake().map(since));
    let running: Vec<&str> = state.running.keys().map(|uid| uid.as_str()).collect();
    format!(
        "t={} {} | {} | access {} | running {} | node {} | {} | wake {wake:?}{}",
        since(state.now),
        join(pods),
        join(attachments),
        join(access),
        running.join(", "),
        node.unwrap_or_else(|| "gone".into()),
        journal.unwrap_or_else(|| "no journal".into()),
        if state.deaf { " deaf" } else { "" },
    )
}

fn join(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(", ")
}

fn journal(journal: &Journal) -> String {
    let pods: Vec<&str> = journal.pods.keys().map(|uid| uid.as_str()).collect();
    let gone: Vec<&str> = journal.gone.iter().map(|uid| uid.as_str()).collect();
    format!(
        "journal {} by {} {:?} pods [{}] gone [{}]",
        journal.id,
        journal.by,
        journal.phase,
        pods.join(" "),
        gone.join(" ")
    )
}

/// What an action is about.
pub fn action(state: &State, action: &Action) -> String {
    let step = match action {
        Action::Perform(index)
        | Action::Fault(Fault::Failed | Fault::AnswerLost | Fault::GivenUp | Fault::Slow, index) => {
            state.pending.get(*index)
        }
        Action::Act(index) => state.late.get(*index).map(|late| &late.step),
        Action::Deliver(index) => state.held.get(*index).map(|(step, _)| step),
        _ => None,
    };
    let step = step.map(|step| match step {
        Step::Patch(patch) => match &patch.journal {
            Some(Some(written)) => format!("patch {}: {}", patch.version, journal(written)),
            Some(None) => format!("patch {}: no journal", patch.version),
            None => format!("patch {}", patch.version),
        },
        Step::Fence(fence) => format!("fence {} {}", fence.volume, fence.node),
        Step::DeletePod { pod, .. } => format!("delete pod {}", pod.uid),
        Step::DeleteAttachment { uid, .. } => format!("delete attachment {uid}"),
        Step::Survey => "survey".into(),
        Step::Look => "look".into(),
        Step::Ask(_) => "ask".into(),
        step => format!("{step:?}"),
    });
    format!("{action:?} {}", step.unwrap_or_default())
}
