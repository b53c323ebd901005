//! What the real server does to an object on its way in: defaults, fields that a client may not set, validation.

use k8s_openapi::api::{apps, coordination, core, storage};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::failure::Failure;
use super::kind::{Kind, Resource};

/// The limit the real server puts on the sum of all annotation keys and values of an object, in bytes.
const ANNOTATION_LIMIT: usize = 256 * 1024;

/// Drops fields that the kind does not have and refuses values of the wrong type, as decoding in the real server does.
pub fn normalise(kind: Kind, value: Value) -> Result<Value, Failure> {
    let decoded = match kind {
        Kind::Namespace => through::<core::v1::Namespace>(value),
        Kind::Node => through::<core::v1::Node>(value),
        Kind::Pod => through::<core::v1::Pod>(value),
        Kind::PersistentVolume => through::<core::v1::PersistentVolume>(value),
        Kind::PersistentVolumeClaim => through::<core::v1::PersistentVolumeClaim>(value),
        Kind::Event => through::<core::v1::Event>(value),
        Kind::Lease => through::<coordination::v1::Lease>(value),
        Kind::StatefulSet => through::<apps::v1::StatefulSet>(value),
        Kind::StorageClass => through::<storage::v1::StorageClass>(value),
        Kind::CsiDriver => through::<storage::v1::CSIDriver>(value),
        Kind::CsiNode => through::<storage::v1::CSINode>(value),
        Kind::VolumeAttachment => through::<storage::v1::VolumeAttachment>(value),
    };
    let mut object = decoded.map_err(|error| {
        Failure::bad_request(format!(
            "{} in version \"v1\" cannot be handled as a {}: {error}",
            kind.facts().name,
            kind.facts().name
        ))
    })?;
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
        metadata.remove("selfLink");
    }
    prune(&mut object);
    for path in [
        "/metadata/labels",
        "/metadata/annotations",
        "/spec/nodeSelector",
    ] {
        if object
            .pointer(path)
            .and_then(Value::as_object)
            .is_some_and(Map::is_empty)
        {
            let (parent, field) = path.rsplit_once('/').unwrap_or_default();
            if let Some(Value::Object(parent)) = object.pointer_mut(parent) {
                parent.remove(field);
            }
        }
    }
    for path in ["/spec/taints", "/spec/tolerations"] {
        for item in object
            .pointer_mut(path)
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            if item["value"] == "" {
                item.as_object_mut().map(|item| item.remove("value"));
            }
        }
    }
    Ok(object)
}

fn through<T: DeserializeOwned + Serialize>(value: Value) -> serde_json::Result<Value> {
    serde_json::from_value::<T>(value).and_then(serde_json::to_value)
}

/// Null and empty lists are not stored.
fn prune(value: &mut Value) {
    match value {
        Value::Object(object) => {
            object.retain(|_, item| {
                prune(item);
                !item.is_null() && item.as_array().is_none_or(|list| !list.is_empty())
            });
        }
        Value::Array(items) => items.iter_mut().for_each(prune),
        _ => {}
    }
}

/// Fields a new object gets, or loses, whatever the client sent.
pub fn prepare_create(kind: Kind, object: &mut Value, now: &str) {
    match kind {
        Kind::Pod => {
            object["status"] = json!({"phase": "Pending", "qosClass": "BestEffort"});
            default_pod_spec(&mut object["spec"]);
            default(&mut object["spec"], "priority", json!(0));
            default(
                &mut object["spec"],
                "preemptionPolicy",
                json!("PreemptLowerPriority"),
            );
            tolerate_for_five_minutes(&mut object["spec"]);
        }
        Kind::Node => {
            // The admission plugin TaintNodesByCondition; the node lifecycle controller takes the taint off.
            let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
            match object["spec"]["taints"].as_array_mut() {
                Some(taints) => taints.push(taint),
                None => object["spec"]["taints"] = json!([taint]),
            }
        }
        Kind::PersistentVolume => {
            object["status"] = json!({"phase": "Pending", "lastPhaseTransitionTime": now});
            default(
                &mut object["spec"],
                "persistentVolumeReclaimPolicy",
                json!("Retain"),
            );
            default(&mut object["spec"], "volumeMode", json!("Filesystem"));
            add_finalizer(object, "kubernetes.io/pv-protection");
        }
        Kind::PersistentVolumeClaim => {
            object["status"] = json!({"phase": "Pending"});
            default(&mut object["spec"], "volumeMode", json!("Filesystem"));
            add_finalizer(object, "kubernetes.io/pvc-protection");
        }
        Kind::VolumeAttachment => object["status"] = json!({"attached": false}),
        Kind::StatefulSet => {
            object["status"] = json!({"replicas": 0, "availableReplicas": 0});
            let spec = &mut object["spec"];
            default(spec, "replicas", json!(1));
            default(spec, "podManagementPolicy", json!("OrderedReady"));
            default(spec, "revisionHistoryLimit", json!(10));
            default(
                spec,
                "updateStrategy",
                json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}),
            );
            default_pod_spec(&mut spec["template"]["spec"]);
        }
        Kind::Namespace => object["status"] = json!({"phase": "Active"}),
        Kind::CsiDriver => {
            default(&mut object["spec"], "attachRequired", json!(true));
            default(&mut object["spec"], "podInfoOnMount", json!(false));
        }
        Kind::Event | Kind::Lease | Kind::StorageClass | Kind::CsiNode => {}
    }
}

/// Fields an update cannot change because they belong to the other endpoint of the object.
pub fn prepare_update(kind: Kind, status: bool, old: &Value, new: &mut Value) {
    if status {
        restore(new, old, "spec");
        match kind {
            Kind::VolumeAttachment => restore(new, old, "metadata"),
            Kind::Pod => {
                let owners = old["metadata"].get("ownerReferences").cloned();
                put(&mut new["metadata"], "ownerReferences", owners);
            }
            _ => {}
        }
    } else if kind.facts().status {
        restore(new, old, "status");
    }
    if kind == Kind::Pod {
        default_pod_spec(&mut new["spec"]);
    }
}

fn restore(new: &mut Value, old: &Value, field: &str) {
    put(new, field, old.get(field).cloned());
}

fn put(object: &mut Value, field: &str, value: Option<Value>) {
    if let Some(object) = object.as_object_mut() {
        match value {
            Some(value) => object.insert(field.to_owned(), value),
            None => object.remove(field),
        };
    }
}

/// The members of a list that may be absent; plain indexing would put a null there.
fn items<'a>(object: &'a mut Value, field: &str) -> impl Iterator<Item = &'a mut Value> {
    object
        .get_mut(field)
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
}

fn default(object: &mut Value, field: &str, value: Value) {
    if object[field].is_null() {
        object[field] = value;
    }
}

fn add_finalizer(object: &mut Value, finalizer: &str) {
    let metadata = &mut object["metadata"];
    match metadata["finalizers"].as_array_mut() {
        Some(list) if list.iter().any(|item| item == finalizer) => {}
        Some(list) => list.push(json!(finalizer)),
        None => metadata["finalizers"] = json!([finalizer]),
    }
}

fn default_pod_spec(spec: &mut Value) {
    default(spec, "restartPolicy", json!("Always"));
    default(spec, "terminationGracePeriodSeconds", json!(30));
    default(spec, "dnsPolicy", json!("ClusterFirst"));
    default(spec, "schedulerName", json!("default-scheduler"));
    default(spec, "securityContext", json!({}));
    for list in ["containers", "initContainers"] {
        for container in items(spec, list) {
            default(container, "resources", json!({}));
            default(
                container,
                "terminationMessagePath",
                json!("/dev/termination-log"),
            );
            default(container, "terminationMessagePolicy", json!("File"));
            let image = container["image"].as_str().unwrap_or_default();
            let latest = !image.rsplit('/').next().unwrap_or_default().contains(':')
                || image.ends_with(":latest");
            let policy = if latest { "Always" } else { "IfNotPresent" };
            default(container, "imagePullPolicy", json!(policy));
        }
    }
}

/// The admission plugin DefaultTolerationSeconds.
fn tolerate_for_five_minutes(spec: &mut Value) {
    for key in [
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    ] {
        let tolerated = spec["tolerations"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|toleration| {
                let effect = toleration["effect"].as_str().unwrap_or_default();
                let about = toleration["key"].as_str().unwrap_or_default();
                (about == key || about.is_empty()) && (effect == "NoExecute" || effect.is_empty())
            });
        if !tolerated {
            let toleration = json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300});
            match spec["tolerations"].as_array_mut() {
                Some(list) => list.push(toleration),
                None => spec["tolerations"] = json!([toleration]),
            }
        }
    }
}

/// The rules that podmon and the loops around it can run into; `old` is absent on create.
pub fn validate(resource: Resource, old: Option<&Value>, new: &Value) -> Result<(), Failure> {
    let name = new["metadata"]["name"].as_str().unwrap_or_default();
    let invalid =
        |field: &str, cause, why: &str| Err(Failure::invalid(resource, name, field, cause, why));
    let size: usize = new["metadata"]["annotations"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| key.len() + value.as_str().map_or(0, str::len))
        .sum();
    if size > ANNOTATION_LIMIT {
        let why = format!("Too long: may not be more than {ANNOTATION_LIMIT} bytes");
        return invalid("metadata.annotations", "FieldValueTooLong", &why);
    }
    if let Some(old) = old {
        let kept = &old["metadata"]["finalizers"];
        if !old["metadata"]["deletionTimestamp"].is_null() {
            let added = new["metadata"]["finalizers"]
                .as_array()
                .into_iter()
                .flatten();
            let added: Vec<String> = added
                .filter(|item| !kept.as_array().is_some_and(|kept| kept.contains(item)))
                .map(Value::to_string)
                .collect();
            if !added.is_empty() {
                let why = format!(
                    "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                    added.join(", ")
                );
                return invalid("metadata.finalizers", "FieldValueForbidden", &why);
            }
        }
    }
    match (resource.kind, old) {
        (Kind::Node, _) => validate_taints(resource, name, new),
        (Kind::Pod, Some(old)) => {
            if changeable(&old["spec"]) != changeable(&new["spec"]) || !keeps_tolerations(old, new)
            {
                return invalid("spec", "FieldValueForbidden", POD_FORBIDDEN);
            }
            Ok(())
        }
        (Kind::Pod, None)
            if new["spec"]["containers"]
                .as_array()
                .is_none_or(Vec::is_empty) =>
        {
            invalid("spec.containers", "FieldValueRequired", "Required value")
        }
        (Kind::VolumeAttachment, Some(old)) if old["spec"] != new["spec"] => invalid(
            "spec",
            "FieldValueInvalid",
            &format!("Invalid value: {}: field is immutable", new["spec"]),
        ),
        (Kind::CsiNode, Some(old)) => {
            for driver in new["spec"]["drivers"].as_array().into_iter().flatten() {
                let before = old["spec"]["drivers"].as_array().into_iter().flatten();
                let mut before = before.filter(|other| other["name"] == driver["name"]);
                if before.any(|other| other["nodeID"] != driver["nodeID"]) {
                    let why = format!("Invalid value: {driver}: field is immutable");
                    return invalid("spec.drivers", "FieldValueInvalid", &why);
                }
            }
            Ok(())
        }
        (Kind::PersistentVolume, Some(old)) if old["spec"]["csi"] != new["spec"]["csi"] => invalid(
            "spec.persistentvolumesource",
            "FieldValueForbidden",
            "Forbidden: spec.persistentvolumesource is immutable after creation",
        ),
        (Kind::Event, old) => validate_event(resource, name, old, new),
        _ => Ok(()),
    }
}

const POD_FORBIDDEN: &str = "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,\
    `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),\
    `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// A pod's spec without the fields that an update may change.
fn changeable(spec: &Value) -> Value {
    let mut spec = spec.clone();
    if let Some(fields) = spec.as_object_mut() {
        fields.remove("activeDeadlineSeconds");
        fields.remove("tolerations");
    }
    for list in ["containers", "initContainers"] {
        for container in items(&mut spec, list) {
            container["image"] = Value::Null;
        }
    }
    spec
}

fn keeps_tolerations(old: &Value, new: &Value) -> bool {
    let new = new["spec"]["tolerations"].as_array();
    let mut old = old["spec"]["tolerations"].as_array().into_iter().flatten();
    old.all(|toleration| new.is_some_and(|new| new.contains(toleration)))
}

fn validate_taints(resource: Resource, name: &str, node: &Value) -> Result<(), Failure> {
    let taints: Vec<&Value> = node["spec"]["taints"]
        .as_array()
        .into_iter()
        .flatten()
        .collect();
    for (at, taint) in taints.iter().enumerate() {
        let field = format!("metadata.taints[{at}]");
        let effect = taint["effect"].as_str().unwrap_or_default();
        if effect.is_empty() {
            return Err(Failure::invalid(
                resource,
                name,
                &format!("{field}.effect"),
                "FieldValueRequired",
                "Required value",
            ));
        }
        if !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect) {
            let why = format!(
                "Unsupported value: \"{effect}\": supported values: \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\""
            );
            return Err(Failure::invalid(
                resource,
                name,
                &format!("{field}.effect"),
                "FieldValueNotSupported",
                &why,
            ));
        }
        if taints[..at]
            .iter()
            .any(|other| other["key"] == taint["key"] && other["effect"] == taint["effect"])
        {
            let why = format!(
                "Duplicate value: {{\"Key\":{},\"Value\":{},\"Effect\":{},\"TimeAdded\":{}}}: taints must be unique by key and effect pair",
                taint["key"],
                taint.get("value").unwrap_or(&json!("")),
                taint["effect"],
                taint.get("timeAdded").unwrap_or(&Value::Null)
            );
            return Err(Failure::invalid(
                resource,
                name,
                &field,
                "FieldValueDuplicate",
                &why,
            ));
        }
    }
    Ok(())
}

fn validate_event(
    resource: Resource,
    name: &str,
    old: Option<&Value>,
    event: &Value,
) -> Result<(), Failure> {
    let invalid =
        |field: &str, cause, why: &str| Err(Failure::invalid(resource, name, field, cause, why));
    let text = |field: &str| event[field].as_str().unwrap_or_default();
    let about = event["involvedObject"]["namespace"]
        .as_str()
        .unwrap_or_default();
    let namespace = event["metadata"]["namespace"].as_str().unwrap_or_default();
    if if about.is_empty() {
        namespace != "default"
    } else {
        about != namespace
    } {
        let why = format!("Invalid value: {about:?}: does not match event.namespace");
        return invalid("involvedObject.namespace", "FieldValueInvalid", &why);
    }
    if resource.group != super::kind::EVENTS_GROUP {
        return Ok(());
    }
    if event["eventTime"].is_null() {
        return invalid("eventTime", "FieldValueRequired", "Required value");
    }
    for field in [
        "reportingComponent",
        "reportingInstance",
        "action",
        "reason",
    ] {
        if text(field).is_empty() {
            let field = if field == "reportingComponent" {
                "reportingController"
            } else {
                field
            };
            return invalid(field, "FieldValueRequired", "Required value");
        }
    }
    for (field, limit) in [
        ("reportingInstance", 128),
        ("action", 128),
        ("reason", 128),
        ("message", 1024),
    ] {
        if text(field).len() > limit {
            let why = format!("Invalid value: \"\": can have at most {limit} characters");
            return invalid(field, "FieldValueInvalid", &why);
        }
    }
    for field in [
        "involvedObject",
        "reason",
        "message",
        "type",
        "action",
        "eventTime",
    ] {
        if let Some(old) = old
            && old[field] != event[field]
        {
            let why = format!("Invalid value: {}: field is immutable", event[field]);
            return invalid(field, "FieldValueInvalid", &why);
        }
    }
    Ok(())
}
