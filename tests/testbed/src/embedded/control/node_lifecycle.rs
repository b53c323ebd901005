//! The node lifecycle controller: a lease that is not renewed makes the node Unknown, its pods not ready, and taints it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::Timing;
use crate::embedded::api::{Actor, Kind, seconds};
use crate::embedded::object::*;

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// Above this share of a zone nothing more is evicted, in a cluster of at most fifty nodes.
const DISRUPTED: f64 = 0.55;

pub struct NodeLifecycle {
    api: Actor,
    timing: Timing,
    due: Duration,
    /// What each node's lease said, and when it was first seen to say it.
    seen: BTreeMap<String, (String, Duration)>,
    next_eviction: Duration,
}

impl NodeLifecycle {
    pub fn new(api: Actor, timing: Timing) -> NodeLifecycle {
        NodeLifecycle {
            api,
            timing,
            due: Duration::ZERO,
            seen: BTreeMap::new(),
            next_eviction: Duration::ZERO,
        }
    }

    pub fn tick(&mut self, now: Duration) {
        self.taint_and_evict(now);
        if now < self.due {
            return;
        }
        self.due = now + self.timing.monitor_period;
        let nodes = self.api.list(Kind::Node);
        self.seen
            .retain(|node, _| nodes.iter().any(|other| name(other) == node));
        for node in &nodes {
            self.watch_lease(node, now);
        }
    }

    fn time(&self) -> String {
        seconds(self.api.server().now())
    }

    fn watch_lease(&mut self, node: &Value, now: Duration) {
        let lease = self.api.get(Kind::Lease, "kube-node-lease", name(node));
        let renewed = lease
            .as_deref()
            .map_or("", |lease| text(lease, "/spec/renewTime"))
            .to_owned();
        let seen = self
            .seen
            .entry(name(node).to_owned())
            .or_insert_with(|| (renewed.clone(), now));
        if seen.0 != renewed {
            *seen = (renewed, now);
        }
        let silent = now.saturating_sub(seen.1) > self.timing.monitor_grace;
        if silent && !matches!(condition(node, "Ready"), "Unknown") {
            let conditions =
                with_condition(node, "Ready", "Unknown", "NodeStatusUnknown", &self.time());
            let patch = json!({"metadata": {"resourceVersion": version(node)}, "status": {"conditions": conditions}});
            if self
                .api
                .patch_status(Kind::Node, "", name(node), patch)
                .is_ok()
            {
                self.pods_not_ready(name(node));
            }
        }
    }

    /// Done once, when the node's condition changes.
    fn pods_not_ready(&self, node: &str) {
        for pod in self.api.list(Kind::Pod) {
            if node_of(&pod) == node && condition(&pod, "Ready") == "True" {
                let conditions =
                    with_condition(&pod, "Ready", "False", "NodeNotReady", &self.time());
                let patch = json!({"status": {"conditions": conditions}});
                let _ = self
                    .api
                    .patch_status(Kind::Pod, namespace(&pod), name(&pod), patch);
            }
        }
    }

    fn taint_and_evict(&mut self, now: Duration) {
        let nodes = self.api.list(Kind::Node);
        let lost = nodes
            .iter()
            .filter(|node| condition(node, "Ready") != "True")
            .count();
        let disrupted =
            lost > 2 && lost as f64 / nodes.len() as f64 >= DISRUPTED || lost == nodes.len();
        for node in &nodes {
            let wanted = match condition(node, "Ready") {
                "True" => None,
                "Unknown" => Some(UNREACHABLE),
                _ => Some(NOT_READY),
            };
            let mut taints: Vec<Value> = items(node, "/spec/taints").cloned().collect();
            let before = taints.len();
            taints.retain(|taint| {
                let ours = taint["key"] == NOT_READY || taint["key"] == UNREACHABLE;
                !ours || wanted.is_some_and(|wanted| taint["key"] == wanted)
            });
            let mut changed = taints.len() != before;
            if let Some(key) = wanted {
                for effect in ["NoSchedule", "NoExecute"] {
                    if taints
                        .iter()
                        .any(|taint| taint["key"] == key && taint["effect"] == effect)
                    {
                        continue;
                    }
                    if effect == "NoExecute" {
                        if disrupted || now < self.next_eviction {
                            continue;
                        }
                        self.next_eviction = now + self.timing.eviction_interval;
                    }
                    taints.push(json!({"key": key, "effect": effect, "timeAdded": self.time()}));
                    changed = true;
                }
            }
            if changed {
                let patch = json!({"metadata": {"resourceVersion": version(node)}, "spec": {"taints": taints}});
                let _ = self.api.patch(Kind::Node, "", name(node), patch);
            }
        }
        for node in &nodes {
            self.evict(node);
        }
    }

    /// Deletes the pods that tolerate a NoExecute taint of the node no longer.
    fn evict(&self, node: &Value) {
        for taint in items(node, "/spec/taints").filter(|taint| taint["effect"] == "NoExecute") {
            let added: Option<jiff::Timestamp> = text(taint, "/timeAdded").parse().ok();
            let age = added.map_or(0, |added| {
                self.api.server().now().duration_since(added).as_secs()
            });
            for pod in self.api.list(Kind::Pod) {
                if node_of(&pod) != name(node) || is_terminating(&pod) {
                    continue;
                }
                let patience = match toleration(&pod, taint) {
                    Some(toleration) => toleration["tolerationSeconds"].as_i64(),
                    None => Some(0),
                };
                if patience.is_some_and(|patience| age >= patience) {
                    let _ = self.api.delete(
                        Kind::Pod,
                        namespace(&pod),
                        name(&pod),
                        None,
                        Some(uid(&pod)),
                    );
                }
            }
        }
    }
}
