//! The scheduler: the emptiest node whose taints the pod tolerates.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::embedded::api::{Actor, Kind};
use crate::embedded::object::*;

pub struct Scheduler {
    api: Actor,
}

impl Scheduler {
    pub fn new(api: Actor) -> Scheduler {
        Scheduler { api }
    }

    pub fn tick(&mut self) {
        let pods = self.api.list(Kind::Pod);
        let mut load: BTreeMap<String, u64> = BTreeMap::new();
        for pod in &pods {
            *load.entry(node_of(pod).to_owned()).or_default() += 1;
        }
        let nodes = self.api.list(Kind::Node);
        for pod in pods
            .iter()
            .filter(|pod| node_of(pod).is_empty() && !is_terminating(pod))
        {
            if text(pod, "/spec/schedulerName") != "default-scheduler" {
                continue;
            }
            let fits = nodes.iter().filter(|node| takes(node, pod));
            let best = fits.min_by_key(|node| {
                (
                    load.get(name(node)).copied().unwrap_or(0),
                    name(node).to_owned(),
                )
            });
            if let Some(node) = best
                && self.api.bind(namespace(pod), name(pod), name(node)).is_ok()
            {
                *load.entry(name(node).to_owned()).or_default() += 1;
            }
        }
    }
}

fn takes(node: &Value, pod: &Value) -> bool {
    let selected = at(&pod, "/spec/nodeSelector").and_then(Value::as_object);
    let selected = selected.is_none_or(|labels| {
        let mut labels = labels.iter();
        labels.all(|(key, value)| node["metadata"]["labels"][key] == *value)
    });
    let cordoned = at(&node, "/spec/unschedulable").and_then(Value::as_bool) == Some(true);
    let mut hard =
        items(node, "/spec/taints").filter(|taint| taint["effect"] != "PreferNoSchedule");
    selected && !cordoned && hard.all(|taint| tolerates(pod, taint))
}
