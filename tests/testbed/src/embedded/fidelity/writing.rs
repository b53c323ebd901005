//! Creating and replacing.

use serde_json::{Value, json};

use super::session::*;

pub async fn create_and_read_back(s: Session) -> Checked {
    let created = s
        .node(
            "a",
            json!({"metadata": {"labels": {"x": "1"}}, "status": {"volumesInUse": ["v"]}}),
        )
        .await?;
    let read = ok(s.get(&s.at(NODES, "a")).await?)?;
    equal("read back", &read, &created)?;
    equal(
        "status given at creation",
        &read["status"]["volumesInUse"],
        &json!(["v"]),
    )?;
    equal(
        "uid",
        read["metadata"]["uid"].as_str().map_or(0, str::len),
        36,
    )?;
    equal(
        "creationTimestamp",
        read["metadata"]["creationTimestamp"]
            .as_str()
            .map_or(0, str::len),
        20,
    )
}

pub async fn create_twice(s: Session) -> Checked {
    s.node("a", Value::Null).await?;
    let again = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": s.name("a")}});
    let text = format!("nodes \"{}\" already exists", s.name("a"));
    refused(s.post(NODES, &again).await?, 409, "AlreadyExists", &text)
}

pub async fn create_with_version(s: Session) -> Checked {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": s.name("a"), "resourceVersion": "5"}});
    refused(
        s.post(NODES, &node).await?,
        500,
        "",
        "resourceVersion should not be set on objects to be created",
    )
}

pub async fn create_another_kind(s: Session) -> Checked {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": s.name("a")}});
    refused(
        s.post(NODES, &pod).await?,
        400,
        "BadRequest",
        "cannot be handled as a Node",
    )
}

pub async fn create_in_no_namespace(s: Session) -> Checked {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": s.name("a")},
        "spec": {"containers": [{"name": "main", "image": "none"}]},
    });
    let answer = s.post("/api/v1/namespaces/no-such/pods", &pod).await?;
    refused(answer, 404, "NotFound", "namespaces \"no-such\" not found")?;
    pod["metadata"]["namespace"] = json!("kube-system");
    refused(
        s.post(PODS, &pod).await?,
        400,
        "BadRequest",
        "does not match the namespace sent on the request",
    )
}

pub async fn generated_names(s: Session) -> Checked {
    let generated = json!({"metadata": {"name": null, "generateName": s.name("g-")}});
    let (one, two) = (
        s.pod("x", generated.clone()).await?,
        s.pod("x", generated).await?,
    );
    for pod in [&one, &two] {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        equal("length", name.len(), s.name("g-").len() + 5)?;
    }
    equal(
        "two names alike",
        one["metadata"]["name"] == two["metadata"]["name"],
        false,
    )
}

pub async fn replace_stale(s: Session) -> Checked {
    let first = s.node("a", Value::Null).await?;
    let mut node = first.clone();
    node["metadata"]["labels"] = json!({"x": "1"});
    let second = ok(s.put(&s.at(NODES, "a"), &node).await?)?;
    equal("version grows", version(&second)? > version(&first)?, true)?;
    node["metadata"]["labels"] = json!({"x": "2"});
    let text = format!(
        "Operation cannot be fulfilled on nodes \"{}\": the object has been modified; please apply your changes to the latest version and try again",
        s.name("a")
    );
    refused(
        s.put(&s.at(NODES, "a"), &node).await?,
        409,
        "Conflict",
        &text,
    )
}

pub async fn replace_without_version(s: Session) -> Checked {
    s.node(
        "a",
        json!({"metadata": {"annotations": {"x": "1"}}, "status": {"volumesInUse": ["v"]}}),
    )
    .await?;
    let bare = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": s.name("a")}});
    let node = ok(s.put(&s.at(NODES, "a"), &bare).await?)?;
    equal(
        "annotations",
        &node["metadata"]["annotations"],
        &Value::Null,
    )?;
    equal("taints", &node["spec"]["taints"], &Value::Null)?;
    equal(
        "status stays",
        &node["status"]["volumesInUse"],
        &json!(["v"]),
    )
}

pub async fn replace_missing(s: Session) -> Checked {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": s.name("a")}});
    refused(
        s.put(&s.at(NODES, "a"), &node).await?,
        404,
        "NotFound",
        "not found",
    )
}

pub async fn replace_another_uid(s: Session) -> Checked {
    s.node("a", Value::Null).await?;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": s.name("a"), "uid": "other"}});
    let answer = s.put(&s.at(NODES, "a"), &node).await?;
    refused(
        answer,
        409,
        "Conflict",
        "Precondition failed: UID in precondition: other, UID in object meta: ",
    )
}

pub async fn replace_another_name(s: Session) -> Checked {
    s.node("a", Value::Null).await?;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "other"}});
    refused(
        s.put(&s.at(NODES, "a"), &node).await?,
        400,
        "BadRequest",
        "the name of the object (other) does not match",
    )
}

fn lease(name: String, holder: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
        "spec": {
            "holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": 3,
            "renewTime": "2026-01-01T00:00:00.123456Z",
        },
    })
}

pub async fn lease_versions(s: Session) -> Checked {
    let created = ok(s.post(LEASES, &lease(s.name("a"), "one")).await?)?;
    equal(
        "renewTime",
        &created["spec"]["renewTime"],
        &json!("2026-01-01T00:00:00.123456Z"),
    )?;
    let path = s.at(LEASES, "a");
    let answer = s.put(&path, &lease(s.name("a"), "two")).await?;
    refused(
        answer,
        422,
        "Invalid",
        "metadata.resourceVersion: Invalid value: 0: must be specified for an update",
    )?;
    let mut next = created.clone();
    next["spec"]["holderIdentity"] = json!("two");
    ok(s.put(&path, &next).await?)?;
    next["spec"]["holderIdentity"] = json!("three");
    refused(
        s.put(&path, &next).await?,
        409,
        "Conflict",
        "leases.coordination.k8s.io",
    )
}

pub async fn new_lease_by_put(s: Session) -> Checked {
    let created = ok(s
        .put(&s.at(LEASES, "a"), &lease(s.name("a"), "one"))
        .await?)?;
    equal("holder", &created["spec"]["holderIdentity"], &json!("one"))
}

pub async fn no_change_no_version(s: Session) -> Checked {
    let node = s
        .node("a", json!({"metadata": {"labels": {"x": "1"}}}))
        .await?;
    let same = ok(s.put(&s.at(NODES, "a"), &node).await?)?;
    equal(
        "version after an equal PUT",
        version(&same)?,
        version(&node)?,
    )?;
    let same = ok(s
        .patch(
            &s.at(NODES, "a"),
            MERGE,
            json!({"metadata": {"labels": {"x": "1"}}}),
        )
        .await?)?;
    equal(
        "version after an equal patch",
        version(&same)?,
        version(&node)?,
    )
}

pub async fn taint_rules(s: Session) -> Checked {
    s.node("a", Value::Null).await?;
    let path = s.at(NODES, "a");
    let taints = |taints: Value| json!({"spec": {"taints": taints}});
    let twice = taints(
        json!([{"key": "k", "effect": "NoSchedule"}, {"key": "k", "value": "v", "effect": "NoSchedule"}]),
    );
    let text = "taints must be unique by key and effect pair";
    refused(s.patch(&path, MERGE, twice).await?, 422, "Invalid", text)?;
    let unknown = taints(json!([{"key": "k", "effect": "Bad"}]));
    refused(
        s.patch(&path, MERGE, unknown).await?,
        422,
        "Invalid",
        "metadata.taints[0].effect: Unsupported value: \"Bad\"",
    )?;
    let both = json!([{"key": "k", "effect": "NoSchedule"}, {"key": "k", "value": "v", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}]);
    let node = ok(s.patch(&path, MERGE, taints(both.clone())).await?)?;
    equal("two effects of one key", &node["spec"]["taints"], &both)
}

pub async fn annotation_limit(s: Session) -> Checked {
    let with = |length: usize| {
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": s.name("a"), "annotations": {"abcd": "x".repeat(length)}},
        })
    };
    let answer = s.post(NODES, &with(262_141)).await?;
    refused(
        answer,
        422,
        "Invalid",
        "metadata.annotations: Too long: may not be more than 262144 bytes",
    )?;
    ok(s.post(NODES, &with(262_140)).await?).map(|_| ())
}

pub async fn pod_spec_is_fixed(s: Session) -> Checked {
    s.pod("a", Value::Null).await?;
    let path = s.at(PODS, "a");
    for change in [json!({"nodeName": "x"}), json!({"hostname": "x"})] {
        let answer = s.patch(&path, MERGE, json!({"spec": change})).await?;
        refused(
            answer,
            422,
            "Invalid",
            "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`",
        )?;
    }
    let image = json!({"spec": {"containers": [{"name": "main", "image": "other"}]}});
    let pod = ok(s.patch(&path, STRATEGIC, image).await?)?;
    equal(
        "image",
        &pod["spec"]["containers"][0]["image"],
        &json!("other"),
    )?;
    equal("generation", &pod["metadata"]["generation"], 2)
}

pub async fn attachment_spec_is_fixed(s: Session) -> Checked {
    s.attachment("a", Value::Null).await?;
    let answer = s
        .patch(
            &s.at(ATTACHMENTS, "a"),
            MERGE,
            json!({"spec": {"nodeName": "x"}}),
        )
        .await?;
    refused(answer, 422, "Invalid", "field is immutable")
}

pub async fn csinode_id_is_fixed(s: Session) -> Checked {
    let path = "/apis/storage.k8s.io/v1/csinodes";
    let csinode = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": s.name("a")},
        "spec": {"drivers": [{"name": "d", "nodeID": "one"}]},
    });
    ok(s.post(path, &csinode).await?)?;
    let other = json!({"spec": {"drivers": [{"name": "d", "nodeID": "two"}]}});
    refused(
        s.patch(&s.at(path, "a"), MERGE, other).await?,
        422,
        "Invalid",
        "spec.drivers: Invalid value",
    )?;
    ok(
        s.patch(&s.at(path, "a"), MERGE, json!({"spec": {"drivers": []}}))
            .await?,
    )?;
    let again = json!({"spec": {"drivers": [{"name": "d", "nodeID": "two"}]}});
    ok(s.patch(&s.at(path, "a"), MERGE, again).await?).map(|_| ())
}

pub async fn pod_defaults(s: Session) -> Checked {
    let pod = s.pod("a", json!({"status": {"phase": "Running"}})).await?;
    equal("phase", &pod["status"]["phase"], &json!("Pending"))?;
    equal("grace", &pod["spec"]["terminationGracePeriodSeconds"], 30)?;
    equal("restart", &pod["spec"]["restartPolicy"], &json!("Always"))?;
    equal("generation", &pod["metadata"]["generation"], 1)?;
    let tolerations = json!([
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
        {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
    ]);
    equal("tolerations", &pod["spec"]["tolerations"], &tolerations)
}

pub async fn volume_defaults(s: Session) -> Checked {
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": s.name("v")},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "d", "volumeHandle": "h"}, "claimRef": {"namespace": "default", "name": s.name("c")},
        },
        "status": {"phase": "Bound"},
    });
    let volume = ok(s.post("/api/v1/persistentvolumes", &volume).await?)?;
    equal(
        "volume phase",
        &volume["status"]["phase"],
        &json!("Pending"),
    )?;
    equal(
        "volume finalizers",
        &volume["metadata"]["finalizers"],
        &json!(["kubernetes.io/pv-protection"]),
    )?;
    equal(
        "reclaim policy",
        &volume["spec"]["persistentVolumeReclaimPolicy"],
        &json!("Retain"),
    )?;
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": s.name("c")},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "volumeName": s.name("v"), "storageClassName": "",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    let claim = ok(s
        .post("/api/v1/namespaces/default/persistentvolumeclaims", &claim)
        .await?)?;
    equal("claim phase", &claim["status"]["phase"], &json!("Pending"))?;
    equal(
        "claim finalizers",
        &claim["metadata"]["finalizers"],
        &json!(["kubernetes.io/pvc-protection"]),
    )
}

pub async fn statefulset_generation(s: Session) -> Checked {
    let sets = "/apis/apps/v1/namespaces/default/statefulsets";
    let set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": s.name("a")},
        "spec": {
            "replicas": 0, "serviceName": "none", "selector": {"matchLabels": {"a": "1"}},
            "template": {"metadata": {"labels": {"a": "1"}}, "spec": {"containers": [{"name": "main", "image": "none"}]}},
        },
    });
    let set = ok(s.post(sets, &set).await?)?;
    equal("generation", &set["metadata"]["generation"], 1)?;
    let labelled = ok(s
        .patch(
            &s.at(sets, "a"),
            MERGE,
            json!({"metadata": {"labels": {"x": "1"}}}),
        )
        .await?)?;
    equal(
        "generation after a label",
        &labelled["metadata"]["generation"],
        1,
    )?;
    let grown = ok(s
        .patch(
            &s.at(sets, "a"),
            MERGE,
            json!({"spec": {"minReadySeconds": 1}}),
        )
        .await?)?;
    equal(
        "generation after a change of spec",
        &grown["metadata"]["generation"],
        2,
    )
}

pub async fn node_starts_tainted(s: Session) -> Checked {
    let node = s.node("a", Value::Null).await?;
    let taints = json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]);
    equal("taints", &node["spec"]["taints"], &taints)
}

pub async fn bind_once(s: Session) -> Checked {
    s.pod("a", Value::Null).await?;
    let binding = |node: &str| {
        json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": s.name("a")},
            "target": {"kind": "Node", "name": node},
        })
    };
    let path = format!("{}/binding", s.at(PODS, "a"));
    ok(s.post(&path, &binding("one")).await?)?;
    let text = format!("pod {} is already assigned to node \"one\"", s.name("a"));
    refused(
        s.post(&path, &binding("two")).await?,
        409,
        "Conflict",
        &text,
    )?;
    let pod = ok(s.get(&s.at(PODS, "a")).await?)?;
    equal("node", &pod["spec"]["nodeName"], &json!("one"))?;
    equal(
        "condition",
        &pod["status"]["conditions"][0]["type"],
        &json!("PodScheduled"),
    )
}

const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
const CORE_EVENTS: &str = "/api/v1/namespaces/default/events";

fn new_event(name: String) -> Value {
    json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": name},
        "eventTime": "2026-01-01T00:00:00.000001Z", "reportingController": "podmon", "reportingInstance": "podmon-0",
        "action": "Fence", "reason": "NodeFailure", "type": "Warning", "note": "hello",
        "regarding": {"kind": "Node", "name": "n"},
    })
}

pub async fn events_in_two_groups(s: Session) -> Checked {
    ok(s.post(EVENTS, &new_event(s.name("a"))).await?)?;
    let core = ok(s.get(&s.at(CORE_EVENTS, "a")).await?)?;
    for (field, wanted) in [
        ("message", json!("hello")),
        ("involvedObject", json!({"kind": "Node", "name": "n"})),
        ("reportingComponent", json!("podmon")),
        ("eventTime", json!("2026-01-01T00:00:00.000001Z")),
        ("apiVersion", json!("v1")),
    ] {
        equal(field, &core[field], &wanted)?;
    }
    let series = json!({"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000001Z"}});
    let event = ok(s.patch(&s.at(EVENTS, "a"), MERGE, series).await?)?;
    equal("series", &event["series"]["count"], 2)?;
    equal("note", &event["note"], &json!("hello"))
}

pub async fn event_namespace(s: Session) -> Checked {
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": s.name("a")},
        "reason": "R", "type": "Normal", "message": "m", "involvedObject": {"kind": "Node", "name": "n"},
    });
    let answer = s
        .post("/api/v1/namespaces/kube-system/events", &event)
        .await?;
    refused(
        answer,
        422,
        "Invalid",
        "involvedObject.namespace: Invalid value: \"\": does not match event.namespace",
    )?;
    ok(s.post(CORE_EVENTS, &event).await?).map(|_| ())
}

pub async fn event_rules(s: Session) -> Checked {
    let mut event = new_event(s.name("a"));
    event["note"] = json!("x".repeat(1025));
    refused(
        s.post(EVENTS, &event).await?,
        422,
        "Invalid",
        "can have at most 1024 characters",
    )?;
    let mut event = new_event(s.name("a"));
    event["eventTime"] = Value::Null;
    refused(
        s.post(EVENTS, &event).await?,
        422,
        "Invalid",
        "eventTime: Required value",
    )?;
    ok(s.post(EVENTS, &new_event(s.name("a"))).await?)?;
    refused(
        s.patch(&s.at(EVENTS, "a"), MERGE, json!({"note": "other"}))
            .await?,
        422,
        "Invalid",
        "field is immutable",
    )
}
