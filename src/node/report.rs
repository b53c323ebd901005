//! Tells people what keeps the node out of service: in the log at every change, in an event when it lasts.

use std::collections::BTreeMap;
use std::time::Duration;

use super::blocker::Blocker;
use crate::clock::Moment;
use crate::cluster::event::{Events, Report, Severity, Subject};
use crate::domain::{NodeName, NodeUid, VolumeHandle};

/// What passes within this time is not worth an event.
const LASTS: Duration = Duration::from_secs(20);
/// Blockers that one message names at most.
const NAMED: usize = 6;

/// What was told last.
#[derive(Debug, Default)]
pub struct Reporter {
    logged: String,
    logged_at: Moment,
    blocked_since: Option<Moment>,
    event: String,
}

impl Reporter {
    /// Takes in what is in the way now.
    pub fn blocked(
        &mut self,
        blockers: &[Blocker],
        problems: &BTreeMap<VolumeHandle, String>,
        now: Moment,
        node: (&NodeName, &NodeUid),
        events: &Events,
    ) {
        let text = message(blockers, problems);
        if text != self.logged {
            tracing::info!(node = %node.0, "The node stays tainted: {text}");
            self.logged.clone_from(&text);
            self.logged_at = now;
        }
        if blockers.iter().all(Blocker::passes) && problems.is_empty() {
            self.blocked_since = None;
            return;
        }
        let since = *self.blocked_since.get_or_insert(now);
        if now - since < LASTS || text == self.event {
            return;
        }
        let advice = blockers.iter().find(|blocker| !blocker.passes());
        let advice = advice.map_or("look at podmon's log", Blocker::advice);
        self.tell(
            node,
            events,
            Severity::Warning,
            "NodeNotRequalified",
            format!("podmon keeps its taint on the node: {text}. To do: {advice}"),
        );
        self.event = text;
    }

    /// For how long the same has been in the way.
    pub fn unchanged_for(&self, now: Moment) -> Duration {
        now - self.logged_at
    }

    /// Nothing is in the way any more.
    pub fn cleared(&mut self) {
        *self = Self::default();
    }

    /// One thing that was done.
    pub fn tell(
        &self,
        node: (&NodeName, &NodeUid),
        events: &Events,
        severity: Severity,
        reason: &str,
        message: String,
    ) {
        events.report(Report {
            subject: Subject::Node(node.0.clone(), node.1.clone()),
            severity,
            reason: reason.to_owned(),
            message,
        });
    }
}

fn message(blockers: &[Blocker], problems: &BTreeMap<VolumeHandle, String>) -> String {
    let named = blockers.iter().map(ToString::to_string);
    let failed = problems
        .iter()
        .map(|(volume, problem)| format!("clearing volume {volume} away failed: {problem}"));
    let all: Vec<_> = failed.chain(named).collect();
    let rest = all.len().saturating_sub(NAMED);
    let mut text = all[..all.len() - rest].join("; ");
    if rest > 0 {
        text.push_str(&format!("; and {rest} more"));
    }
    text
}
