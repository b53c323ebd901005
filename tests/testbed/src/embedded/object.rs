//! Reading the objects that the loops work on.

use serde_json::{Value, json};

/// What a JSON pointer leads to. Unlike serde_json's it does not copy the path, which the loops would feel.
pub fn at<'a>(object: &'a Value, pointer: &str) -> Option<&'a Value> {
    let steps = pointer.strip_prefix('/')?.split('/');
    steps
        .into_iter()
        .try_fold(object, |value, step| match step.contains('~') {
            true => value.get(step.replace("~1", "/").replace("~0", "~")),
            false => value.get(step),
        })
}

/// Text at a JSON pointer; empty when there is none.
pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    at(object, pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// The members of a list at a JSON pointer.
pub fn items<'a>(object: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    at(object, pointer)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

pub fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

pub fn namespace(object: &Value) -> &str {
    text(object, "/metadata/namespace")
}

pub fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid")
}

pub fn version(object: &Value) -> &str {
    text(object, "/metadata/resourceVersion")
}

pub fn is_terminating(object: &Value) -> bool {
    at(object, "/metadata/deletionTimestamp").is_some()
}

/// The pod's node; empty while it has none.
pub fn node_of(pod: &Value) -> &str {
    text(pod, "/spec/nodeName")
}

pub fn is_finished(pod: &Value) -> bool {
    matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
}

/// The status of a condition; empty when there is none of this type.
pub fn condition<'a>(object: &'a Value, kind: &str) -> &'a str {
    items(object, "/status/conditions")
        .find(|condition| condition["type"] == kind)
        .map_or("", |condition| text(condition, "/status"))
}

/// All conditions, with this one set; a change of status moves its transition time.
pub fn with_condition(object: &Value, kind: &str, status: &str, reason: &str, now: &str) -> Value {
    let mut conditions: Vec<Value> = items(object, "/status/conditions").cloned().collect();
    let mut fresh =
        json!({"type": kind, "status": status, "reason": reason, "lastTransitionTime": now});
    match conditions
        .iter_mut()
        .find(|condition| condition["type"] == kind)
    {
        Some(old) => {
            if old["status"] == status {
                fresh["lastTransitionTime"] = old["lastTransitionTime"].clone();
            }
            *old = fresh;
        }
        None => conditions.push(fresh),
    }
    Value::Array(conditions)
}

pub fn has_taint(node: &Value, key: &str, effect: &str) -> bool {
    items(node, "/spec/taints")
        .any(|taint| taint["key"] == key && (effect.is_empty() || taint["effect"] == effect))
}

/// Whether one of the pod's tolerations covers the taint, for however long.
pub fn tolerates(pod: &Value, taint: &Value) -> bool {
    toleration(pod, taint).is_some()
}

/// The toleration that covers the taint.
pub fn toleration<'a>(pod: &'a Value, taint: &Value) -> Option<&'a Value> {
    items(pod, "/spec/tolerations").find(|toleration| {
        let effect = text(toleration, "/effect");
        let key = text(toleration, "/key");
        let exists = text(toleration, "/operator") == "Exists";
        (effect.is_empty() || effect == text(taint, "/effect"))
            && (key.is_empty() && exists || key == text(taint, "/key"))
            && (exists || text(toleration, "/value") == text(taint, "/value"))
    })
}

/// The claims that the pod uses.
pub fn claims_of(pod: &Value) -> impl Iterator<Item = &str> {
    items(pod, "/spec/volumes")
        .filter_map(|volume| at(volume, "/persistentVolumeClaim/claimName")?.as_str())
}

/// The name under which kubelets and the attach-detach controller know a CSI volume.
pub fn unique_volume(driver: &str, handle: &str) -> String {
    format!("kubernetes.io/csi/{driver}^{handle}")
}
