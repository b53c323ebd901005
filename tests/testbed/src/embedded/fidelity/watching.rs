//! Watches.

use serde_json::{Value, json};

use super::session::*;

fn story(events: &[Value]) -> String {
    let words: Vec<String> = events
        .iter()
        .map(|event| {
            let name = event["object"]["metadata"]["name"]
                .as_str()
                .unwrap_or_default();
            let suffix = name.rsplit('-').next().unwrap_or_default();
            format!("{} {suffix}", event["type"].as_str().unwrap_or_default())
        })
        .collect();
    words.join(", ")
}

fn watch(s: &Session, more: &str) -> String {
    format!(
        "{NODES}?watch=1&timeoutSeconds=1&labelSelector=check%3D{}{more}",
        s.name("x")
    )
}

async fn marked(s: &Session, suffix: &str) -> Result<Value, String> {
    s.node(
        suffix,
        json!({"metadata": {"labels": {"check": s.name("x")}}}),
    )
    .await
}

pub async fn watch_from_version(s: Session) -> Checked {
    let start = version(&marked(&s, "a").await?)?;
    marked(&s, "b").await?;
    let changed = ok(s
        .patch(
            &s.at(NODES, "b"),
            MERGE,
            json!({"spec": {"unschedulable": true}}),
        )
        .await?)?;
    ok(s.delete(&s.at(NODES, "b"), json!({})).await?)?;
    let events = s
        .watch(&watch(&s, &format!("&resourceVersion={start}")))
        .await?;
    equal("events", story(&events), "ADDED b, MODIFIED b, DELETED b")?;
    equal(
        "version",
        &events[1]["object"]["metadata"]["resourceVersion"],
        &changed["metadata"]["resourceVersion"],
    )?;
    equal(
        "the deletion has a version of its own",
        version(&events[2]["object"])? > version(&changed)?,
        true,
    )
}

pub async fn watch_now(s: Session) -> Checked {
    marked(&s, "a").await?;
    marked(&s, "b").await?;
    ok(s.patch(
        &s.at(NODES, "b"),
        MERGE,
        json!({"spec": {"unschedulable": true}}),
    )
    .await?)?;
    for version in ["", "&resourceVersion=0"] {
        let events = s.watch(&watch(&s, version)).await?;
        equal("events", story(&events), "ADDED a, ADDED b")?;
    }
    Ok(())
}

pub async fn watch_selector_edges(s: Session) -> Checked {
    let node = s.node("a", Value::Null).await?;
    let start = version(&node)?;
    let path = s.at(NODES, "a");
    let label = |value: Value| json!({"metadata": {"labels": {"check": value}}});
    ok(s.patch(&path, MERGE, label(json!(s.name("x")))).await?)?;
    let left = ok(s.patch(&path, MERGE, label(json!("other"))).await?)?;
    ok(s.patch(&path, MERGE, label(json!("third"))).await?)?;
    let events = s
        .watch(&watch(&s, &format!("&resourceVersion={start}")))
        .await?;
    equal("events", story(&events), "ADDED a, DELETED a")?;
    let last = &events[1]["object"]["metadata"];
    equal(
        "last matching state",
        &last["labels"]["check"],
        &json!(s.name("x")),
    )?;
    equal(
        "version of the change",
        &last["resourceVersion"],
        &left["metadata"]["resourceVersion"],
    )
}

pub async fn watch_deletion(s: Session) -> Checked {
    let node = marked(&s, "a").await?;
    ok(s.delete(&s.at(NODES, "a"), json!({})).await?)?;
    marked(&s, "a").await?;
    let events = s
        .watch(&watch(&s, &format!("&resourceVersion={}", version(&node)?)))
        .await?;
    equal("events", story(&events), "DELETED a, ADDED a")?;
    equal(
        "the old uid",
        &events[0]["object"]["metadata"]["uid"],
        &node["metadata"]["uid"],
    )
}

pub async fn watch_graceful_deletion(s: Session) -> Checked {
    let pod = s.pod("a", json!({"spec": {"nodeName": "nowhere"}})).await?;
    let path = s.at(PODS, "a");
    ok(s.delete(&path, json!({})).await?)?;
    ok(s.delete(&path, json!({"gracePeriodSeconds": 0})).await?)?;
    let from = version(&pod)?;
    let watch = format!(
        "{PODS}?watch=1&timeoutSeconds=1&resourceVersion={from}&fieldSelector=metadata.name%3D{}",
        s.name("a")
    );
    let events = s.watch(&watch).await?;
    equal(
        "events",
        story(&events),
        "MODIFIED a, MODIFIED a, DELETED a",
    )?;
    equal(
        "grace",
        &events[1]["object"]["metadata"]["deletionGracePeriodSeconds"],
        0,
    )
}

pub async fn watch_ends(s: Session) -> Checked {
    let node = marked(&s, "a").await?;
    let events = s
        .watch(&watch(&s, &format!("&resourceVersion={}", version(&node)?)))
        .await?;
    equal("events", story(&events), "")
}

pub async fn watch_initial_events(s: Session) -> Checked {
    marked(&s, "a").await?;
    let more = "&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan";
    let events = s.watch(&watch(&s, more)).await?;
    equal("first", story(&events[..1.min(events.len())]), "ADDED a")?;
    let mark = events.get(1).unwrap_or(&Value::Null);
    equal("then", &mark["type"], &json!("BOOKMARK"))?;
    let metadata = &mark["object"]["metadata"];
    equal(
        "the end of the list",
        &metadata["annotations"]["k8s.io/initial-events-end"],
        &json!("true"),
    )?;
    equal("kind", &mark["object"]["kind"], &json!("Node"))
}

pub async fn watch_initial_events_need_match(s: Session) -> Checked {
    let path = watch(&s, "&sendInitialEvents=true&allowWatchBookmarks=true");
    let text = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
    refused(s.get(&path).await?, 422, "Invalid", text)
}

pub async fn watch_bad_version(s: Session) -> Checked {
    refused(
        s.get(&watch(&s, "&resourceVersion=abc")).await?,
        500,
        "",
        "invalid syntax",
    )
}
