//! The truth table: every combination through the real parsing, written as a tree that names only what matters.

use std::collections::BTreeMap;

use podmon::cluster::Protection;
use podmon::cluster::node::{Node, NodeView};
use podmon::cluster::pod::{Pod, PodView};
use podmon::controller::decide::{Reason, Verdict, judge};
use podmon::journal::Cause;
use serde_json::{Value, json};

use crate::cluster::names;

/// Every dimension and its values; the order is that of the tree.
const DIMENSIONS: [(&str, &[&str]); 11] = [
    ("label", &["ours", "another value", "none"]),
    ("namespace", &["app", "driver"]),
    (
        "phase",
        &["Pending", "Running", "Unknown", "Succeeded", "Failed"],
    ),
    ("node ready", &["True", "False", "Unknown", "absent"]),
    ("unreachable", &["no", "NoSchedule", "NoExecute"]),
    ("out-of-service", &["no", "operator", "podmon"]),
    ("array", &["seen", "lost"]),
    ("pod ready", &["True", "False", "absent"]),
    ("not-ready taint", &["no", "yes"]),
    ("our taint", &["no", "yes"]),
    ("offline taint", &["no", "yes"]),
];

type Row = [&'static str; DIMENSIONS.len()];

fn protection() -> Protection {
    Protection {
        key: "podmon.dellemc.com/driver".into(),
        value: "csi-example".into(),
        driver_namespace: Some("driver".into()),
        opt_out: "podmon.dellemc.com/ignore".into(),
    }
}

fn condition(status: &str) -> Value {
    match status {
        "absent" => json!([]),
        status => json!([{ "type": "Ready", "status": status }]),
    }
}

fn pod(row: &Row) -> Pod {
    let [label, namespace, phase, _, _, _, _, ready, ..] = *row;
    let labels = match label {
        "ours" => json!({ "podmon.dellemc.com/driver": "csi-example" }),
        "another value" => json!({ "podmon.dellemc.com/driver": "csi-other" }),
        _ => json!({}),
    };
    let view: PodView = serde_json::from_value(json!({
        "metadata": { "name": "db-0", "namespace": namespace, "uid": "u1", "labels": labels },
        "spec": { "nodeName": "a" },
        "status": { "phase": phase, "conditions": condition(ready) },
    }))
    .expect("a pod");
    view.observe(&protection())
}

fn node(row: &Row) -> Node {
    let [
        _,
        _,
        _,
        ready,
        unreachable,
        out_of_service,
        _,
        _,
        not_ready,
        ours,
        offline,
    ] = *row;
    let mut taints = Vec::new();
    let mut taint = |key: &str, effect: &str, value: Option<&str>| {
        taints.push(json!({ "key": key, "effect": effect, "value": value }));
    };
    if unreachable != "no" {
        taint("node.kubernetes.io/unreachable", unreachable, None);
    }
    match out_of_service {
        "operator" => taint(
            "node.kubernetes.io/out-of-service",
            "NoExecute",
            Some("nodeshutdown"),
        ),
        "podmon" => taint(
            "node.kubernetes.io/out-of-service",
            "NoSchedule",
            Some("podmon"),
        ),
        _ => {}
    }
    for (present, key) in [
        (not_ready, "node.kubernetes.io/not-ready".to_owned()),
        (ours, names().taint),
        (offline, names().offline_taint),
    ] {
        if present == "yes" {
            taint(&key, "NoSchedule", None);
        }
    }
    let view: NodeView = serde_json::from_value(json!({
        "metadata": { "name": "a", "uid": "n1" },
        "spec": { "taints": taints },
        "status": { "conditions": condition(ready) },
    }))
    .expect("a node");
    view.observe(&names())
}

fn verdict(row: &Row) -> Verdict {
    judge(&pod(row), &node(row), row[6] == "lost")
}

/// Every combination.
fn rows() -> Vec<(Row, Verdict)> {
    let mut rows = vec![[""; DIMENSIONS.len()]];
    for (at, (_, values)) in DIMENSIONS.iter().enumerate() {
        let extended = rows.iter().flat_map(|row| {
            values.iter().map(move |value| {
                let mut row = *row;
                row[at] = value;
                row
            })
        });
        rows = extended.collect();
    }
    // Parsing is the slow part, and needs only what concerns it.
    let (mut pods, mut nodes) = (BTreeMap::new(), BTreeMap::new());
    let judged = rows.into_iter().map(|row| {
        let of_pod = [row[0], row[1], row[2], row[7]];
        let of_node = [row[3], row[4], row[5], row[8], row[9], row[10]];
        let pod = pods.entry(of_pod).or_insert_with(|| pod(&row));
        let node = nodes.entry(of_node).or_insert_with(|| node(&row));
        (row, judge(pod, node, row[6] == "lost"))
    });
    judged.collect()
}

/// The rows as a tree: a dimension that makes no difference does not appear, values that mean the same stand together.
fn tree(rows: &[(Row, Verdict)], at: usize, indent: usize, text: &mut String) {
    let first = rows[0].1;
    if rows.iter().all(|(_, verdict)| *verdict == first) {
        text.push_str(&format!(" -> {first:?}"));
        return;
    }
    let (name, values) = DIMENSIONS[at];
    let mut branches: Vec<(Vec<&str>, Vec<(Row, Verdict)>)> = Vec::new();
    for value in values {
        let with: Vec<(Row, Verdict)> = rows
            .iter()
            .filter(|(row, _)| row[at] == *value)
            .copied()
            .collect();
        let verdicts =
            |rows: &[(Row, Verdict)]| rows.iter().map(|(_, verdict)| *verdict).collect::<Vec<_>>();
        match branches
            .iter_mut()
            .find(|(_, other)| verdicts(other) == verdicts(&with))
        {
            Some((same, _)) => same.push(value),
            None => branches.push((vec![value], with)),
        }
    }
    if branches.len() == 1 {
        return tree(&branches[0].1, at + 1, indent, text);
    }
    for (values, rows) in &branches {
        text.push_str(&format!(
            "\n{}{name}: {}",
            "    ".repeat(indent),
            values.join(" | ")
        ));
        tree(rows, at + 1, indent + 1, text);
    }
}

#[test]
fn truth_table() {
    let rows = rows();
    let mut text = format!("{} combinations", rows.len());
    tree(&rows, 0, 0, &mut text);
    insta::assert_snapshot!(text);
}

/// Row by row, without the tree: what must never be evacuated is not.
#[test]
fn never_without_label_and_evidence() {
    let mut evacuated = 0;
    for (row, verdict) in rows() {
        let [
            label,
            namespace,
            phase,
            node_ready,
            unreachable,
            out_of_service,
            array,
            pod_ready,
            ..,
        ] = row;
        let Verdict::Evacuate(cause) = verdict else {
            continue;
        };
        evacuated += 1;
        assert_eq!((label, namespace), ("ours", "app"), "{row:?}");
        assert!(!matches!(phase, "Succeeded" | "Failed"), "S23 {row:?}");
        assert!(pod_ready != "True" || array == "lost", "{row:?}");
        let lost = node_ready != "True" && unreachable != "no";
        assert!(
            lost || out_of_service == "operator" || array == "lost",
            "S9, S22 {row:?}"
        );
        match cause {
            Cause::NodeFailure => assert!(lost, "{row:?}"),
            Cause::OutOfService => assert_eq!(out_of_service, "operator", "{row:?}"),
            Cause::ArrayConnectivityLoss => assert_eq!(array, "lost", "{row:?}"),
            Cause::NodeRecreated => panic!("{row:?}"),
        }
    }
    assert!(evacuated > 0);
}

/// More that speaks against a node never saves a pod on it.
#[test]
fn more_evidence_never_saves_a_pod() {
    let rows: BTreeMap<Row, Verdict> = rows().into_iter().collect();
    let worse: [(usize, &[(&str, &str)]); 3] = [
        (4, &[("no", "NoSchedule"), ("NoSchedule", "NoExecute")]),
        (5, &[("no", "operator")]),
        (6, &[("seen", "lost")]),
    ];
    for (row, verdict) in &rows {
        for (at, steps) in worse {
            for (from, to) in steps.iter().filter(|(from, _)| *from == row[at]) {
                let mut more = *row;
                more[at] = to;
                let saved = matches!(verdict, Verdict::Evacuate(_))
                    && matches!(rows[&more], Verdict::Leave(_));
                assert!(!saved, "{} {from} -> {to} saves {row:?}", DIMENSIONS[at].0);
            }
        }
    }
}

#[test]
fn s22_the_own_taint_is_no_evidence() {
    let row = [
        "ours", "app", "Running", "True", "no", "no", "seen", "False", "no", "yes", "yes",
    ];
    assert_eq!(verdict(&row), Verdict::Leave(Reason::NodeHealthy));
}

#[test]
fn l15_not_ready_alone_is_no_evidence() {
    let row = [
        "ours", "app", "Running", "False", "no", "no", "seen", "False", "yes", "no", "no",
    ];
    assert_eq!(verdict(&row), Verdict::Leave(Reason::NodeHealthy));
}
