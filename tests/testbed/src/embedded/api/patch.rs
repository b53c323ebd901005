//! The three patch formats.

use serde_json::{Map, Value};

use super::failure::Failure;
use super::kind::Kind;

/// How a patch body is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchFormat {
    Json,
    Merge,
    Strategic,
}

impl PatchFormat {
    pub fn from_content_type(content_type: &str) -> Result<PatchFormat, Failure> {
        match content_type.split(';').next().unwrap_or_default().trim() {
            "application/json-patch+json" => Ok(PatchFormat::Json),
            "application/merge-patch+json" => Ok(PatchFormat::Merge),
            "application/strategic-merge-patch+json" => Ok(PatchFormat::Strategic),
            "application/apply-patch+yaml" | "application/apply-patch+cbor" => {
                Err(Failure::not_implemented("server-side apply"))
            }
            _ => Err(Failure::unsupported_media_type()),
        }
    }

    pub fn apply(self, kind: Kind, object: &Value, body: &Value) -> Result<Value, Failure> {
        let mut patched = object.clone();
        match self {
            PatchFormat::Json => {
                let patch: json_patch::Patch =
                    serde_json::from_value(body.clone()).map_err(|error| {
                        Failure::bad_request(format!("error decoding patch: {error}"))
                    })?;
                json_patch::patch(&mut patched, &patch).map_err(|_| Failure::patch_rejected())?;
            }
            PatchFormat::Merge => {
                if !body.is_object() {
                    return Err(Failure::bad_request("error decoding patch: not an object"));
                }
                json_patch::merge(&mut patched, body);
            }
            PatchFormat::Strategic => {
                let (Some(object), Some(body)) = (patched.as_object_mut(), body.as_object()) else {
                    return Err(Failure::bad_request("error decoding patch: not an object"));
                };
                merge_object(kind, "", object, body)?;
            }
        }
        Ok(patched)
    }
}

/// How a list merges: by the value of one field of its members, as a set of plain values, or (the default) whole.
enum ListRule {
    By(&'static str),
    Set,
    Atomic,
}

/// The lists with a patch strategy in the kinds of this server.
fn list_rule(kind: Kind, path: &str) -> ListRule {
    match path {
        "metadata.finalizers" => return ListRule::Set,
        "metadata.ownerReferences" => return ListRule::By("uid"),
        _ => {}
    }
    let pod = match (kind, path) {
        (Kind::Pod, path) => path,
        (Kind::StatefulSet, path) => path.strip_prefix("spec.template.").unwrap_or(""),
        _ => "",
    };
    match pod {
        "spec.containers"
        | "spec.initContainers"
        | "spec.ephemeralContainers"
        | "spec.volumes"
        | "spec.imagePullSecrets" => return ListRule::By("name"),
        "spec.hostAliases" => return ListRule::By("ip"),
        "spec.topologySpreadConstraints" => return ListRule::By("topologyKey"),
        "spec.containers.env" | "spec.initContainers.env" => return ListRule::By("name"),
        "spec.containers.volumeMounts" | "spec.initContainers.volumeMounts" => {
            return ListRule::By("mountPath");
        }
        "spec.containers.volumeDevices" | "spec.initContainers.volumeDevices" => {
            return ListRule::By("devicePath");
        }
        "spec.containers.ports" | "spec.initContainers.ports" => {
            return ListRule::By("containerPort");
        }
        _ => {}
    }
    match (kind, path) {
        (
            Kind::Node
            | Kind::Pod
            | Kind::PersistentVolumeClaim
            | Kind::StatefulSet
            | Kind::Namespace,
            "status.conditions",
        ) => ListRule::By("type"),
        (Kind::Node, "status.addresses") => ListRule::By("type"),
        (Kind::Node, "spec.podCIDRs") => ListRule::Set,
        (Kind::Pod, "status.podIPs" | "status.hostIPs") => ListRule::By("ip"),
        (Kind::CsiNode, "spec.drivers") => ListRule::By("name"),
        _ => ListRule::Atomic,
    }
}

fn merge_object(
    kind: Kind,
    path: &str,
    object: &mut Map<String, Value>,
    patch: &Map<String, Value>,
) -> Result<(), Failure> {
    match patch.get("$patch").and_then(Value::as_str) {
        Some("replace") => {
            *object = patch.clone();
            object.remove("$patch");
            return Ok(());
        }
        Some("delete") => {
            object.clear();
            return Ok(());
        }
        Some("merge") | None => {}
        Some(other) => {
            return Err(Failure::bad_request(format!(
                "unknown patch directive: {other}"
            )));
        }
    }
    if let Some(kept) = patch.get("$retainKeys").and_then(Value::as_array) {
        object.retain(|key, _| kept.iter().any(|kept| kept == key));
    }
    for (key, value) in patch {
        if let Some(list) = key.strip_prefix("$deleteFromPrimitiveList/") {
            if let (Some(Value::Array(items)), Value::Array(gone)) = (object.get_mut(list), value) {
                items.retain(|item| !gone.contains(item));
            }
            continue;
        }
        // The order of a merged list is the order it had; the directive only asks for another one.
        if key.starts_with("$setElementOrder/") || key == "$patch" || key == "$retainKeys" {
            continue;
        }
        if key.starts_with('$') {
            return Err(Failure::not_implemented(&format!(
                "the patch directive {key}"
            )));
        }
        let below = if path.is_empty() {
            key.clone()
        } else {
            format!("{path}.{key}")
        };
        match value {
            Value::Null => {
                object.remove(key);
            }
            Value::Object(patch) => {
                let slot = object.entry(key.clone()).or_insert(Value::Null);
                if !slot.is_object() {
                    *slot = Value::Object(Map::new());
                }
                if let Some(object) = slot.as_object_mut() {
                    merge_object(kind, &below, object, patch)?;
                }
            }
            Value::Array(patch) => {
                let slot = object.entry(key.clone()).or_insert(Value::Null);
                merge_list(kind, &below, slot, patch)?;
            }
            plain => {
                object.insert(key.clone(), plain.clone());
            }
        }
    }
    Ok(())
}

fn merge_list(kind: Kind, path: &str, slot: &mut Value, patch: &[Value]) -> Result<(), Failure> {
    let replaces = patch
        .iter()
        .any(|item| item.get("$patch").and_then(Value::as_str) == Some("replace"));
    let rule = list_rule(kind, path);
    if replaces || matches!(rule, ListRule::Atomic) {
        let items = patch.iter().filter(|item| item.get("$patch").is_none());
        *slot = Value::Array(items.cloned().collect());
        return Ok(());
    }
    if !slot.is_array() {
        *slot = Value::Array(Vec::new());
    }
    let Some(items) = slot.as_array_mut() else {
        return Ok(());
    };
    match rule {
        ListRule::Atomic => {}
        ListRule::Set => {
            // The real server puts new members before the ones that were there, here as below.
            let fresh: Vec<Value> = patch
                .iter()
                .filter(|item| !items.contains(item))
                .cloned()
                .collect();
            items.splice(0..0, fresh);
        }
        ListRule::By(field) => {
            let mut fresh = Vec::new();
            for item in patch {
                let (Some(change), Some(id)) = (item.as_object(), item.get(field)) else {
                    return Err(Failure::bad_request(format!(
                        "map: {item} does not contain declared merge key: {field}"
                    )));
                };
                let found = items
                    .iter()
                    .position(|existing| existing.get(field) == Some(id));
                if change.get("$patch").and_then(Value::as_str) == Some("delete") {
                    if let Some(at) = found {
                        items.remove(at);
                    }
                    continue;
                }
                match found {
                    Some(at) => {
                        if let Some(existing) = items[at].as_object_mut() {
                            merge_object(kind, path, existing, change)?;
                        }
                    }
                    None => fresh.push(item.clone()),
                }
            }
            items.splice(0..0, fresh);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn strategic(kind: Kind, object: Value, body: Value) -> Value {
        PatchFormat::Strategic
            .apply(kind, &object, &body)
            .expect("patch")
    }

    #[test]
    fn conditions_merge_by_type_and_taints_are_replaced() {
        let node = json!({
            "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]},
            "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "x"}, {"type": "Disk", "status": "False"}]},
        });
        let patched = strategic(
            Kind::Node,
            node,
            json!({
                "spec": {"taints": [{"key": "b", "effect": "NoSchedule"}]},
                "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]},
            }),
        );
        assert_eq!(
            patched["spec"]["taints"],
            json!([{"key": "b", "effect": "NoSchedule"}])
        );
        assert_eq!(
            patched["status"]["conditions"],
            json!([{"type": "Ready", "status": "Unknown", "reason": "x"}, {"type": "Disk", "status": "False"}])
        );
    }

    #[test]
    fn directives() {
        let pod = json!({
            "metadata": {"finalizers": ["a", "b"], "labels": {"x": "1", "y": "2"}},
            "status": {"conditions": [{"type": "A"}, {"type": "B"}]},
        });
        let patched = strategic(
            Kind::Pod,
            pod,
            json!({
                "metadata": {"$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["c"], "labels": {"$patch": "replace", "z": "3"}},
                "status": {"conditions": [{"type": "A", "$patch": "delete"}]},
            }),
        );
        assert_eq!(patched["metadata"]["finalizers"], json!(["c", "b"]));
        assert_eq!(patched["metadata"]["labels"], json!({"z": "3"}));
        assert_eq!(patched["status"]["conditions"], json!([{"type": "B"}]));
    }
}
