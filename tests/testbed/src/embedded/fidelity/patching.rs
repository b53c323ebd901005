//! The patch formats and the status subresource.

use serde_json::{Value, json};

use super::session::*;

pub async fn merge_patch(s: Session) -> Checked {
    let node = s
        .node(
            "a",
            json!({"metadata": {"annotations": {"x": "1", "y": "2"}}}),
        )
        .await?;
    let patch = json!({
        "metadata": {"resourceVersion": node["metadata"]["resourceVersion"], "annotations": {"x": null, "z": "3"}},
    });
    let patched = ok(s.patch(&s.at(NODES, "a"), MERGE, patch).await?)?;
    equal(
        "annotations",
        &patched["metadata"]["annotations"],
        &json!({"y": "2", "z": "3"}),
    )?;
    equal("version grows", version(&patched)? > version(&node)?, true)
}

pub async fn merge_patch_stale(s: Session) -> Checked {
    let node = s.node("a", Value::Null).await?;
    let path = s.at(NODES, "a");
    ok(
        s.patch(&path, MERGE, json!({"metadata": {"labels": {"x": "1"}}}))
            .await?,
    )?;
    let stale = json!({"metadata": {"resourceVersion": node["metadata"]["resourceVersion"], "labels": {"x": "2"}}});
    for format in [MERGE, STRATEGIC] {
        refused(
            s.patch(&path, format, stale.clone()).await?,
            409,
            "Conflict",
            "the object has been modified",
        )?;
    }
    let read = ok(s.get(&path).await?)?;
    equal("label", &read["metadata"]["labels"]["x"], &json!("1"))
}

pub async fn merge_patch_uid(s: Session) -> Checked {
    s.node("a", Value::Null).await?;
    let patch = json!({"metadata": {"uid": "other", "labels": {"x": "1"}}});
    let answer = s.patch(&s.at(NODES, "a"), MERGE, patch).await?;
    refused(
        answer,
        422,
        "Invalid",
        "metadata.uid: Invalid value: \"other\": field is immutable",
    )
}

pub async fn merge_patch_name(s: Session) -> Checked {
    s.node("a", Value::Null).await?;
    let answer = s
        .patch(
            &s.at(NODES, "a"),
            MERGE,
            json!({"metadata": {"name": "other"}}),
        )
        .await?;
    refused(
        answer,
        400,
        "BadRequest",
        "the name of the object (other) does not match the name on the URL",
    )
}

pub async fn merge_patch_missing(s: Session) -> Checked {
    let answer = s
        .patch(
            &s.at(NODES, "a"),
            MERGE,
            json!({"metadata": {"labels": {"x": "1"}}}),
        )
        .await?;
    refused(answer, 404, "NotFound", "not found")
}

pub async fn strategic_conditions(s: Session) -> Checked {
    let ready = json!({"type": "Ready", "status": "True", "reason": "KubeletReady"});
    s.node(
        "a",
        json!({"status": {"conditions": [ready, {"type": "DiskPressure", "status": "False"}]}}),
    )
    .await?;
    let patch = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
    let node = ok(s
        .patch(&format!("{}/status", s.at(NODES, "a")), STRATEGIC, patch)
        .await?)?;
    let conditions = node["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    equal("conditions", conditions.len(), 2)?;
    equal("status", &conditions[0]["status"], &json!("Unknown"))?;
    equal("reason", &conditions[0]["reason"], &json!("KubeletReady"))?;
    equal(
        "the other one",
        &conditions[1]["type"],
        &json!("DiskPressure"),
    )
}

pub async fn strategic_taints_whole(s: Session) -> Checked {
    s.node(
        "a",
        json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}),
    )
    .await?;
    let taints = json!([{"key": "b", "effect": "NoSchedule"}]);
    let node = ok(s
        .patch(
            &s.at(NODES, "a"),
            STRATEGIC,
            json!({"spec": {"taints": taints}}),
        )
        .await?)?;
    equal("taints", &node["spec"]["taints"], &taints)
}

pub async fn strategic_finalizers(s: Session) -> Checked {
    s.pod("a", json!({"metadata": {"finalizers": ["x.y/a"]}}))
        .await?;
    let path = s.at(PODS, "a");
    let pod = ok(s
        .patch(
            &path,
            STRATEGIC,
            json!({"metadata": {"finalizers": ["x.y/b"]}}),
        )
        .await?)?;
    equal(
        "added",
        &pod["metadata"]["finalizers"],
        &json!(["x.y/b", "x.y/a"]),
    )?;
    let patch = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["x.y/a"]}});
    let pod = ok(s.patch(&path, STRATEGIC, patch).await?)?;
    equal("removed", &pod["metadata"]["finalizers"], &json!(["x.y/b"]))
}

pub async fn json_patch(s: Session) -> Checked {
    let node = s.node("a", Value::Null).await?;
    let patch = json!([
        {"op": "test", "path": "/metadata/resourceVersion", "value": node["metadata"]["resourceVersion"]},
        {"op": "add", "path": "/spec/taints/-", "value": {"key": "k", "effect": "NoSchedule"}},
    ]);
    let node = ok(s.patch(&s.at(NODES, "a"), JSON_PATCH, patch).await?)?;
    equal(
        "taints",
        node["spec"]["taints"].as_array().map_or(0, Vec::len),
        2,
    )
}

const REJECTED: &str = "the server rejected our request due to an error in our request";

pub async fn json_patch_failed_test(s: Session) -> Checked {
    s.node("a", Value::Null).await?;
    let patch = json!([
        {"op": "add", "path": "/metadata/labels", "value": {"x": "1"}},
        {"op": "test", "path": "/metadata/name", "value": "other"},
    ]);
    refused(
        s.patch(&s.at(NODES, "a"), JSON_PATCH, patch).await?,
        422,
        "Invalid",
        REJECTED,
    )?;
    let node = ok(s.get(&s.at(NODES, "a")).await?)?;
    equal(
        "nothing was done",
        &node["metadata"]["labels"],
        &Value::Null,
    )
}

pub async fn json_patch_bad_path(s: Session) -> Checked {
    s.node("a", Value::Null).await?;
    let patch = json!([{"op": "remove", "path": "/metadata/labels/x"}]);
    refused(
        s.patch(&s.at(NODES, "a"), JSON_PATCH, patch).await?,
        422,
        "Invalid",
        REJECTED,
    )
}

pub async fn unknown_patch_type(s: Session) -> Checked {
    s.node("a", Value::Null).await?;
    let answer = s
        .patch(&s.at(NODES, "a"), "application/json", json!({}))
        .await?;
    refused(answer, 415, "UnsupportedMediaType", "")
}

pub async fn status_apart(s: Session) -> Checked {
    s.node("a", json!({"status": {"volumesInUse": ["one"]}}))
        .await?;
    let patch = json!({"spec": {"unschedulable": true}, "status": {"volumesInUse": ["two"]}});
    let node = ok(s.patch(&s.at(NODES, "a"), MERGE, patch).await?)?;
    equal(
        "status stays",
        &node["status"]["volumesInUse"],
        &json!(["one"]),
    )?;
    equal("spec changes", &node["spec"]["unschedulable"], true)
}

pub async fn spec_apart(s: Session) -> Checked {
    s.node("a", json!({"status": {"volumesInUse": ["one"]}}))
        .await?;
    let patch = json!({"spec": {"unschedulable": true}, "status": {"volumesInUse": ["two"]}});
    let node = ok(s
        .patch(&format!("{}/status", s.at(NODES, "a")), MERGE, patch)
        .await?)?;
    equal(
        "status changes",
        &node["status"]["volumesInUse"],
        &json!(["two"]),
    )?;
    equal("spec stays", &node["spec"]["unschedulable"], &Value::Null)
}

pub async fn status_patch_stale(s: Session) -> Checked {
    let node = s
        .node("a", json!({"status": {"volumesInUse": ["one"]}}))
        .await?;
    ok(s.patch(
        &s.at(NODES, "a"),
        MERGE,
        json!({"metadata": {"labels": {"x": "1"}}}),
    )
    .await?)?;
    let patch = json!({
        "metadata": {"resourceVersion": node["metadata"]["resourceVersion"]}, "status": {"volumesInUse": null},
    });
    let answer = s
        .patch(&format!("{}/status", s.at(NODES, "a")), MERGE, patch)
        .await?;
    refused(answer, 409, "Conflict", "the object has been modified")
}

pub async fn status_patch_takes_annotations(s: Session) -> Checked {
    s.node("a", Value::Null).await?;
    let patch = json!({"metadata": {"annotations": {"x": "1"}}});
    let node = ok(s
        .patch(&format!("{}/status", s.at(NODES, "a")), MERGE, patch)
        .await?)?;
    equal(
        "annotation",
        &node["metadata"]["annotations"]["x"],
        &json!("1"),
    )
}

pub async fn attachment_status_keeps_metadata(s: Session) -> Checked {
    let created = s
        .attachment("a", json!({"status": {"attached": true}}))
        .await?;
    equal(
        "attached at creation",
        &created["status"]["attached"],
        false,
    )?;
    let patch = json!({"metadata": {"annotations": {"x": "1"}}, "status": {"attached": true}});
    let patched = ok(s
        .patch(&format!("{}/status", s.at(ATTACHMENTS, "a")), MERGE, patch)
        .await?)?;
    equal("attached", &patched["status"]["attached"], true)?;
    equal(
        "annotations",
        &patched["metadata"]["annotations"],
        &Value::Null,
    )
}

pub async fn empty_lists_vanish(s: Session) -> Checked {
    s.node("a", json!({"metadata": {"annotations": {"x": "1"}}}))
        .await?;
    let patch = json!({"metadata": {"annotations": {"x": null}}, "spec": {"taints": []}});
    let node = ok(s.patch(&s.at(NODES, "a"), MERGE, patch).await?)?;
    equal("taints", &node["spec"]["taints"], &Value::Null)?;
    equal(
        "annotations",
        &node["metadata"]["annotations"],
        &Value::Null,
    )
}
