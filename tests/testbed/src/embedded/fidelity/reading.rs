//! Reading and listing.

use serde_json::{Value, json};

use super::session::*;

fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().into_iter().flatten();
    items
        .filter_map(|item| item["metadata"]["name"].as_str())
        .collect()
}

/// Three nodes with a label of this check's own.
async fn three(s: &Session) -> Checked {
    for (suffix, tier) in [("a", "front"), ("b", "back"), ("c", "back")] {
        s.node(
            suffix,
            json!({"metadata": {"labels": {"check": s.name("x"), "tier": tier}}}),
        )
        .await?;
    }
    Ok(())
}

fn mine(s: &Session, more: &str) -> String {
    format!("{NODES}?labelSelector=check%3D{}{more}", s.name("x"))
}

pub async fn read_missing(s: Session) -> Checked {
    let text = format!("nodes \"{}\" not found", s.name("a"));
    refused(s.get(&s.at(NODES, "a")).await?, 404, "NotFound", &text)?;
    let text = format!(
        "volumeattachments.storage.k8s.io \"{}\" not found",
        s.name("a")
    );
    refused(
        s.get(&s.at(ATTACHMENTS, "a")).await?,
        404,
        "NotFound",
        &text,
    )
}

pub async fn unknown_resource(s: Session) -> Checked {
    let answer = s.get("/api/v1/no-such-things").await?;
    refused(
        answer,
        404,
        "NotFound",
        "the server could not find the requested resource",
    )
}

pub async fn list_by_label(s: Session) -> Checked {
    three(&s).await?;
    for (more, wanted) in [
        ("", vec!["a", "b", "c"]),
        (",tier%3Dback", vec!["b", "c"]),
        (",tier%21%3Dback", vec!["a"]),
        (",tier%20in%20(front,other)", vec!["a"]),
        (",tier%20notin%20(front)", vec!["b", "c"]),
        (",%21tier", vec![]),
        (",tier", vec!["a", "b", "c"]),
    ] {
        let list = ok(s.get(&mine(&s, more)).await?)?;
        let wanted: Vec<String> = wanted.into_iter().map(|suffix| s.name(suffix)).collect();
        equal(more, names(&list).join(" "), wanted.join(" "))?;
        equal("kind", &list["kind"], &json!("NodeList"))?;
    }
    Ok(())
}

pub async fn list_by_field(s: Session) -> Checked {
    s.pod("a", json!({"spec": {"nodeName": s.name("one")}}))
        .await?;
    s.pod("b", json!({"spec": {"nodeName": s.name("two")}}))
        .await?;
    let on_one = format!(
        "/api/v1/pods?fieldSelector=spec.nodeName%3D{}",
        s.name("one")
    );
    equal(
        "by node",
        names(&ok(s.get(&on_one).await?)?).join(" "),
        s.name("a"),
    )?;
    let other = format!("{on_one},status.phase%21%3DPending");
    equal("by phase", names(&ok(s.get(&other).await?)?).len(), 0)?;
    let by_name = format!("/api/v1/pods?fieldSelector=metadata.name%3D{}", s.name("b"));
    equal(
        "by name",
        names(&ok(s.get(&by_name).await?)?).join(" "),
        s.name("b"),
    )
}

pub async fn field_not_supported(s: Session) -> Checked {
    let answer = s.get("/api/v1/nodes?fieldSelector=spec.no%3D1").await?;
    refused(
        answer,
        400,
        "BadRequest",
        "field label not supported: spec.no",
    )
}

pub async fn bad_label_selector(s: Session) -> Checked {
    refused(
        s.get("/api/v1/nodes?labelSelector=a%20in").await?,
        400,
        "BadRequest",
        "unable to parse requirement",
    )
}

pub async fn list_in_pages(s: Session) -> Checked {
    three(&s).await?;
    let first = ok(s.get(&mine(&s, "&limit=2")).await?)?;
    equal("first page", names(&first).len(), 2)?;
    let token = first["metadata"]["continue"].as_str().unwrap_or_default();
    equal("a token", token.is_empty(), false)?;
    let second = ok(s
        .get(&mine(&s, &format!("&limit=2&continue={token}")))
        .await?)?;
    equal("second page", names(&second).join(" "), s.name("c"))?;
    equal("the end", &second["metadata"]["continue"], &Value::Null)?;
    equal(
        "one version",
        &second["metadata"]["resourceVersion"],
        &first["metadata"]["resourceVersion"],
    )
}

pub async fn page_is_a_snapshot(s: Session) -> Checked {
    three(&s).await?;
    let first = ok(s.get(&mine(&s, "&limit=1")).await?)?;
    let token = first["metadata"]["continue"].as_str().unwrap_or_default();
    ok(s.delete(&s.at(NODES, "b"), json!({})).await?)?;
    ok(s.patch(
        &s.at(NODES, "c"),
        MERGE,
        json!({"metadata": {"labels": {"tier": "new"}}}),
    )
    .await?)?;
    let rest = ok(s.get(&mine(&s, &format!("&continue={token}"))).await?)?;
    equal(
        "as it was",
        names(&rest).join(" "),
        format!("{} {}", s.name("b"), s.name("c")),
    )?;
    equal(
        "as it was",
        &rest["items"][1]["metadata"]["labels"]["tier"],
        &json!("back"),
    )
}

pub async fn bad_continue(s: Session) -> Checked {
    let answer = s.get(&format!("{NODES}?limit=1&continue=abc")).await?;
    refused(answer, 400, "BadRequest", "continue key is not valid")
}

pub async fn list_at_version(s: Session) -> Checked {
    let node = s
        .node("a", json!({"metadata": {"labels": {"check": s.name("x")}}}))
        .await?;
    s.node("b", json!({"metadata": {"labels": {"check": s.name("x")}}}))
        .await?;
    let exact = format!(
        "&resourceVersion={}&resourceVersionMatch=Exact",
        version(&node)?
    );
    let list = ok(s.get(&mine(&s, &exact)).await?)?;
    equal("then", names(&list).join(" "), s.name("a"))?;
    let any = ok(s
        .get(&mine(&s, &format!("&resourceVersion={}", version(&node)?)))
        .await?)?;
    equal(
        "not older than",
        names(&any).contains(&s.name("a").as_str()),
        true,
    )
}

pub async fn list_is_ordered(s: Session) -> Checked {
    for suffix in ["b", "c", "a"] {
        s.node(
            suffix,
            json!({"metadata": {"labels": {"check": s.name("x")}}}),
        )
        .await?;
    }
    let list = ok(s.get(&mine(&s, "")).await?)?;
    let wanted = ["a", "b", "c"].map(|suffix| s.name(suffix)).join(" ");
    equal("order", names(&list).join(" "), wanted)?;
    equal(
        "items carry no kind",
        &list["items"][0]["kind"],
        &Value::Null,
    )
}
