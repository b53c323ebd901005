//! What stands on the Node is what podmon goes by: taken away, unreadable, newer, foreign.

use std::time::Duration;

use serde_json::{Value, json};
use testbed::embedded::api::Kind;

use super::bench::Bench;
use super::objects::pod;

async fn announced() -> Bench {
    let mut bench = Bench::new(&[]).await;
    pod("db-0", "a").volume("pv1").create(&bench).await;
    bench.start();
    bench.pass(5).await;
    bench
        .driver
        .direct(|script| script.slow = Duration::from_secs(5));
    bench.fail("a").await;
    bench
        .until("it is announced", |bench| bench.tainted("a"))
        .await;
    bench
}

async fn annotate(bench: &Bench, journal: Value) {
    let key = bench.names.journal.clone();
    bench
        .patch(
            "/api/v1/nodes/a",
            json!({"metadata": {"annotations": {key: journal}}}),
        )
        .await;
}

#[tokio::test(start_paused = true)]
async fn taken_away_by_hand_it_is_put_back() {
    let bench = announced().await;
    annotate(&bench, Value::Null).await;
    bench.evacuated("a", &["db-0"]).await;
}

/// A Go podmon on the node lifts the taint by rules of its own.
#[tokio::test(start_paused = true)]
async fn a_taint_that_is_missing_is_put_back() {
    let bench = announced().await;
    bench.untaint("a", &bench.names.taint.clone()).await;
    bench.evacuated("a", &["db-0"]).await;
}

/// Both taken away while the pod is there still: its fence may have been sent.
#[tokio::test(start_paused = true)]
async fn both_taken_away_the_fenced_pod_is_evacuated_all_the_same() {
    let bench = announced().await;
    bench
        .until("it is fenced", |bench| !bench.driver.calls().is_empty())
        .await;
    bench.untaint("a", &bench.names.taint.clone()).await;
    annotate(&bench, Value::Null).await;
    bench.evacuated("a", &["db-0"]).await;
}

/// Unreadable, newer or of another Node: decided by fresh evidence, and written anew.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_gives_way_to_fresh_evidence() {
    for text in [
        "{",
        r#"{"v":2,"phase":"open"}"#,
        r#"{"v":1,"id":"x","by":"y/1","phase":"open","why":"NodeFailure","node":"other"}"#,
    ] {
        for failed in [true, false] {
            let mut bench = Bench::new(&[]).await;
            pod("db-0", "a").volume("pv1").create(&bench).await;
            annotate(&bench, json!(text)).await;
            bench
                .taint("a", &bench.names.taint.clone(), "NoSchedule", "")
                .await;
            if failed {
                bench.fail("a").await;
            }
            bench.start();
            bench.until("it is closed", |bench| bench.closed("a")).await;
            bench.rests().await;
            assert_eq!(bench.pod_exists("db-0"), !failed, "{text}");
            let node = bench.object(Kind::Node, "", "a").unwrap();
            assert_eq!(bench.journal("a")["node"], node["metadata"]["uid"]);
        }
    }
}

/// Our closed journal, and the taint, are the node's to remove.
#[tokio::test(start_paused = true)]
async fn a_closed_journal_is_left_alone() {
    let mut bench = Bench::new(&[]).await;
    pod("db-0", "a").volume("pv1").create(&bench).await;
    let uid = bench.object(Kind::Node, "", "a").unwrap()["metadata"]["uid"].clone();
    let journal = json!({"v": 1, "id": "x", "by": "old/1", "phase": "closed", "why": "NodeFailure", "node": uid, "gone": ["g"]});
    annotate(&bench, json!(journal.to_string())).await;
    bench
        .taint("a", &bench.names.taint.clone(), "NoSchedule", "")
        .await;
    bench.start();
    bench.harmless(300).await;
}

/// An older podmon's taint without journal is the node's too.
#[tokio::test(start_paused = true)]
async fn an_older_podmons_taint_is_left_alone() {
    let mut bench = Bench::new(&[]).await;
    pod("db-0", "a").volume("pv1").create(&bench).await;
    bench
        .taint("a", &bench.names.taint.clone(), "NoSchedule", "")
        .await;
    bench.start();
    bench.harmless(300).await;
}

/// A node that was evacuated is free again when it has requalified, and can fail again.
#[tokio::test(start_paused = true)]
async fn a_second_outage_is_like_the_first() {
    let mut bench = Bench::new(&[]).await;
    bench.start();
    for round in 0..3 {
        let name = format!("db-{round}");
        pod(&name, "a").volume("pv1").create(&bench).await;
        bench.pass(5).await;
        bench.fail("a").await;
        bench.evacuated("a", &[&name]).await;
        bench.heal("a").await;
        // What the node does.
        bench.untaint("a", &bench.names.taint.clone()).await;
        annotate(&bench, Value::Null).await;
        bench.rests().await;
    }
}
