//! Deleting: preconditions, grace, finalizers.

use serde_json::{Value, json};

use super::session::*;

async fn gone(s: &Session, path: &str) -> Checked {
    refused(s.get(path).await?, 404, "NotFound", "not found")
}

/// A pod that has a node, so that its deletion is graceful.
async fn placed(s: &Session, extra: Value) -> Result<Value, String> {
    let mut place = json!({"spec": {"nodeName": "nowhere"}});
    if !extra.is_null() {
        json_patch::merge(&mut place, &extra);
    }
    s.pod("a", place).await
}

pub async fn delete_missing(s: Session) -> Checked {
    refused(
        s.delete(&s.at(NODES, "a"), json!({})).await?,
        404,
        "NotFound",
        "not found",
    )
}

pub async fn delete_node(s: Session) -> Checked {
    let node = s.node("a", Value::Null).await?;
    let status = ok(s.delete(&s.at(NODES, "a"), json!({})).await?)?;
    equal("kind", &status["kind"], &json!("Status"))?;
    equal("uid", &status["details"]["uid"], &node["metadata"]["uid"])?;
    gone(&s, &s.at(NODES, "a")).await
}

pub async fn delete_other_uid(s: Session) -> Checked {
    placed(&s, Value::Null).await?;
    s.attachment("v", Value::Null).await?;
    for (path, grace) in [(s.at(PODS, "a"), Some(0)), (s.at(ATTACHMENTS, "v"), None)] {
        let options = json!({"gracePeriodSeconds": grace, "preconditions": {"uid": "other"}});
        let text = "the UID in the precondition (other) does not match the UID in record (";
        refused(s.delete(&path, options).await?, 409, "Conflict", text)?;
        ok(s.get(&path).await?)?;
    }
    Ok(())
}

pub async fn delete_other_version(s: Session) -> Checked {
    let pod = placed(&s, Value::Null).await?;
    let path = s.at(PODS, "a");
    ok(
        s.patch(&path, MERGE, json!({"metadata": {"labels": {"x": "1"}}}))
            .await?,
    )?;
    let preconditions = json!({"resourceVersion": pod["metadata"]["resourceVersion"]});
    let options = json!({"gracePeriodSeconds": 0, "preconditions": preconditions});
    let text = "does not match the ResourceVersion in record (";
    refused(s.delete(&path, options).await?, 409, "Conflict", text)?;
    ok(s.get(&path).await?).map(|_| ())
}

pub async fn delete_right_uid(s: Session) -> Checked {
    let attachment = s.attachment("a", Value::Null).await?;
    let options = json!({"preconditions": {"uid": attachment["metadata"]["uid"]}});
    let last = ok(s.delete(&s.at(ATTACHMENTS, "a"), options).await?)?;
    equal(
        "answers with the object",
        &last["kind"],
        &json!("VolumeAttachment"),
    )?;
    gone(&s, &s.at(ATTACHMENTS, "a")).await
}

pub async fn delete_pod_both_preconditions(s: Session) -> Checked {
    let pod = placed(&s, Value::Null).await?;
    let meta = &pod["metadata"];
    let preconditions = json!({"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]});
    ok(s.delete(
        &s.at(PODS, "a"),
        json!({"gracePeriodSeconds": 0, "preconditions": preconditions}),
    )
    .await?)?;
    gone(&s, &s.at(PODS, "a")).await
}

pub async fn pod_graceful(s: Session) -> Checked {
    let pod = placed(&s, Value::Null).await?;
    let path = s.at(PODS, "a");
    let marked = ok(s.delete(&path, json!({})).await?)?;
    equal(
        "grace",
        &marked["metadata"]["deletionGracePeriodSeconds"],
        30,
    )?;
    equal("generation", &marked["metadata"]["generation"], 2)?;
    equal("version grows", version(&marked)? > version(&pod)?, true)?;
    let again = ok(s.delete(&path, json!({})).await?)?;
    equal("a second delete changes nothing", &again, &marked)?;
    ok(s.delete(&path, json!({"gracePeriodSeconds": 0})).await?)?;
    gone(&s, &path).await
}

pub async fn pod_shorter_grace(s: Session) -> Checked {
    placed(&s, Value::Null).await?;
    let path = s.at(PODS, "a");
    ok(s.delete(&path, json!({"gracePeriodSeconds": 20})).await?)?;
    let longer = ok(s.delete(&path, json!({"gracePeriodSeconds": 25})).await?)?;
    equal(
        "longer is ignored",
        &longer["metadata"]["deletionGracePeriodSeconds"],
        20,
    )?;
    let shorter = ok(s.delete(&path, json!({"gracePeriodSeconds": 10})).await?)?;
    equal(
        "shorter counts",
        &shorter["metadata"]["deletionGracePeriodSeconds"],
        10,
    )
}

pub async fn pod_forced(s: Session) -> Checked {
    placed(&s, Value::Null).await?;
    let last = ok(s
        .delete(&s.at(PODS, "a"), json!({"gracePeriodSeconds": 0}))
        .await?)?;
    equal("answers with the object", &last["kind"], &json!("Pod"))?;
    gone(&s, &s.at(PODS, "a")).await
}

pub async fn pod_unscheduled(s: Session) -> Checked {
    s.pod("a", Value::Null).await?;
    ok(s.delete(&s.at(PODS, "a"), json!({})).await?)?;
    gone(&s, &s.at(PODS, "a")).await
}

pub async fn pod_finished(s: Session) -> Checked {
    placed(&s, Value::Null).await?;
    let path = s.at(PODS, "a");
    ok(s.patch(
        &format!("{path}/status"),
        MERGE,
        json!({"status": {"phase": "Succeeded"}}),
    )
    .await?)?;
    ok(s.delete(&path, json!({})).await?)?;
    gone(&s, &path).await
}

pub async fn pod_finalizer(s: Session) -> Checked {
    placed(&s, json!({"metadata": {"finalizers": ["x.y/z"]}})).await?;
    let path = s.at(PODS, "a");
    let marked = ok(s.delete(&path, json!({"gracePeriodSeconds": 0})).await?)?;
    equal(
        "grace",
        &marked["metadata"]["deletionGracePeriodSeconds"],
        0,
    )?;
    ok(s.get(&path).await?)?;
    ok(
        s.patch(&path, MERGE, json!({"metadata": {"finalizers": null}}))
            .await?,
    )?;
    gone(&s, &path).await
}

pub async fn attachment_finalizer(s: Session) -> Checked {
    s.attachment(
        "a",
        json!({"metadata": {"finalizers": ["external-attacher/x"]}}),
    )
    .await?;
    let path = s.at(ATTACHMENTS, "a");
    let marked = ok(s.delete(&path, json!({})).await?)?;
    equal(
        "marked",
        marked["metadata"]["deletionTimestamp"].is_string(),
        true,
    )?;
    let again = ok(s.delete(&path, json!({})).await?)?;
    equal("a second delete changes nothing", &again, &marked)?;
    ok(
        s.patch(&path, MERGE, json!({"metadata": {"finalizers": null}}))
            .await?,
    )?;
    gone(&s, &path).await
}

pub async fn no_finalizer_after_delete(s: Session) -> Checked {
    placed(&s, Value::Null).await?;
    let path = s.at(PODS, "a");
    ok(s.delete(&path, json!({})).await?)?;
    let answer = s
        .patch(&path, MERGE, json!({"metadata": {"finalizers": ["x.y/z"]}}))
        .await?;
    refused(
        answer,
        422,
        "Invalid",
        "no new finalizers can be added if the object is being deleted",
    )
}

pub async fn delete_then_same_name(s: Session) -> Checked {
    let first = placed(&s, Value::Null).await?;
    ok(s.delete(&s.at(PODS, "a"), json!({"gracePeriodSeconds": 0}))
        .await?)?;
    let second = placed(&s, Value::Null).await?;
    equal(
        "same uid",
        first["metadata"]["uid"] == second["metadata"]["uid"],
        false,
    )?;
    let options =
        json!({"gracePeriodSeconds": 0, "preconditions": {"uid": first["metadata"]["uid"]}});
    refused(
        s.delete(&s.at(PODS, "a"), options).await?,
        409,
        "Conflict",
        "The object might have been deleted and then recreated",
    )
}
