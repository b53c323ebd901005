//! The pod garbage collector: pods of nodes that are gone, and terminating pods of nodes that are out of service.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Timing;
use crate::embedded::api::{Actor, Kind};
use crate::embedded::object::*;

/// How long a node must be gone before its pods are.
const QUARANTINE: Duration = Duration::from_secs(40);

pub struct PodGarbage {
    api: Actor,
    timing: Timing,
    due: Duration,
    missing: BTreeMap<String, Duration>,
}

impl PodGarbage {
    pub fn new(api: Actor, timing: Timing) -> PodGarbage {
        PodGarbage {
            api,
            timing,
            due: timing.garbage,
            missing: BTreeMap::new(),
        }
    }

    pub fn tick(&mut self, now: Duration) {
        if now < self.due {
            return;
        }
        self.due = now + self.timing.garbage;
        let nodes = self.api.list(Kind::Node);
        let known = |node: &str| nodes.iter().find(|other| name(other) == node);
        self.missing.retain(|node, _| known(node).is_none());
        for pod in self.api.list(Kind::Pod) {
            let on = node_of(&pod);
            if on.is_empty() {
                continue;
            }
            let doomed = match known(on) {
                None => {
                    let since = *self.missing.entry(on.to_owned()).or_insert(now);
                    now.saturating_sub(since) >= QUARANTINE
                }
                Some(node) => {
                    is_terminating(&pod)
                        && condition(node, "Ready") != "True"
                        && has_taint(node, "node.kubernetes.io/out-of-service", "")
                }
            };
            if doomed {
                let _ = self.api.delete(
                    Kind::Pod,
                    namespace(&pod),
                    name(&pod),
                    Some(0),
                    Some(uid(&pod)),
                );
            }
        }
    }
}
