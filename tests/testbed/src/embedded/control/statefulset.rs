//! The StatefulSet controller: one pod per ordinal, the next incarnation only after the last one is gone from the API.

use serde_json::{Value, json};

use crate::embedded::api::{Actor, Kind};
use crate::embedded::object::*;

pub struct StatefulSets {
    api: Actor,
}

impl StatefulSets {
    pub fn new(api: Actor) -> StatefulSets {
        StatefulSets { api }
    }

    pub fn tick(&mut self) {
        for set in self.api.list(Kind::StatefulSet) {
            let replicas = set
                .pointer("/spec/replicas")
                .and_then(Value::as_u64)
                .unwrap_or(1);
            let ordered = text(&set, "/spec/podManagementPolicy") != "Parallel";
            for ordinal in 0..replicas {
                let pod_name = format!("{}-{ordinal}", name(&set));
                let ready = match self.api.get(Kind::Pod, namespace(&set), &pod_name) {
                    None => {
                        self.make(&set, &pod_name, ordinal);
                        false
                    }
                    Some(pod) => {
                        if is_finished(&pod) && !is_terminating(&pod) {
                            let _ = self.api.delete(
                                Kind::Pod,
                                namespace(&pod),
                                &pod_name,
                                None,
                                Some(uid(&pod)),
                            );
                        }
                        condition(&pod, "Ready") == "True"
                    }
                };
                if ordered && !ready {
                    break;
                }
            }
        }
    }

    fn make(&self, set: &Value, pod_name: &str, ordinal: u64) {
        let mut pod =
            json!({"apiVersion": "v1", "kind": "Pod", "spec": set["spec"]["template"]["spec"]});
        let mut metadata = set["spec"]["template"]["metadata"].clone();
        metadata["name"] = json!(pod_name);
        metadata["labels"]["statefulset.kubernetes.io/pod-name"] = json!(pod_name);
        metadata["labels"]["apps.kubernetes.io/pod-index"] = json!(ordinal.to_string());
        metadata["ownerReferences"] = json!([{
            "apiVersion": "apps/v1", "kind": "StatefulSet", "name": name(set), "uid": uid(set),
            "controller": true, "blockOwnerDeletion": true,
        }]);
        pod["metadata"] = metadata;
        let mut volumes: Vec<Value> = items(&pod, "/spec/volumes").cloned().collect();
        for template in items(set, "/spec/volumeClaimTemplates") {
            let claim = format!("{}-{pod_name}", name(template));
            volumes.push(
                json!({"name": name(template), "persistentVolumeClaim": {"claimName": claim}}),
            );
        }
        pod["spec"]["volumes"] = Value::Array(volumes);
        let _ = self.api.create(Kind::Pod, namespace(set), pod);
    }
}
