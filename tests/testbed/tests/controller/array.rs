//! Array connectivity by polling: the road of `ArrayConnectivityLoss`.

use std::time::Duration;

use serde_json::Value;
use testbed::scripted::Call;
use tonic::Status;

use super::bench::Bench;
use super::objects::pod;
use super::recorder::What;

type Answer = Result<(bool, bool), Status>;

const LOST: Answer = Ok((false, false));
const SEEN: Answer = Ok((true, false));

/// Nodes `a`, `b` and `c` with a ready pod each, all of them seen by the array.
async fn connected(flags: &[&str]) -> Bench {
    let mut bench = Bench::new(flags).await;
    for node in ["a", "b", "c"] {
        pod(&format!("db-{node}"), node)
            .volume(&format!("pv-{node}"))
            .create(&bench)
            .await;
    }
    bench.driver.direct(|script| script.validate = SEEN);
    bench.start();
    bench.pass(2).await;
    bench
}

/// What the array says of a node from now on, and of the volumes there.
fn says(bench: &Bench, node: &str, answer: Answer) {
    bench.driver.direct(|script| {
        script.polls.insert(format!("id-{node}"), answer);
    });
}

fn polls(bench: &Bench, node: &str) -> usize {
    let calls = bench.driver.calls().into_iter();
    calls
        .filter(|call| matches!(call, Call::Validate { volumes, node: id } if volumes.is_empty() && *id == format!("id-{node}")))
        .count()
}

#[tokio::test(start_paused = true)]
async fn lost_threshold_times_in_a_row_evacuates_ready_pods() {
    let bench = connected(&[]).await;
    bench.harmless(60).await;
    bench.driver.direct(|script| script.validate = LOST);
    for node in ["b", "c"] {
        says(&bench, node, SEEN);
    }
    let before = polls(&bench, "a");
    bench
        .until("it is announced", |bench| !bench.deeds().is_empty())
        .await;
    assert_eq!(polls(&bench, "a") - before, 3, "{}", bench.story());
    bench
        .until("it goes", |bench| !bench.pod_exists("db-a"))
        .await;
    let journal = bench.journal("a");
    assert_eq!(journal["why"], "ArrayConnectivityLoss");
    let (reason, text) = bench.events("db-a").pop().unwrap();
    assert_eq!(reason, "ArrayConnectivityLoss");
    assert!(
        text.starts_with("podmon cleaning pod [") && text.ends_with(" a] with force delete"),
        "{text}"
    );

    // S19: not before the array sees the node again is the journal closed.
    bench
        .until("nothing is attached", |bench| bench.attachments("a") == 0)
        .await;
    bench.pass(300).await;
    assert_eq!(
        (&bench.journal("a")["phase"], &bench.journal("a")["array"]),
        (&"open".into(), &"lost".into())
    );
    assert!(bench.tainted("a"));
    let before = polls(&bench, "a");
    says(&bench, "a", SEEN);
    bench
        .until("the journal closes", |bench| bench.closed("a"))
        .await;
    assert_eq!(polls(&bench, "a") - before, 3);
    assert_eq!(bench.journal("a")["array"], "seen");
    bench.evacuated("a", &["db-a"]).await;
    for node in ["b", "c"] {
        assert!(bench.pod_exists(&format!("db-{node}")));
    }
}

/// csm#1766: an error breaks the row, and is no loss however long it lasts.
#[tokio::test(start_paused = true)]
async fn s8_csm1766_errors_are_no_loss_and_break_the_row() {
    let bench = connected(&[]).await;
    let error = || Err(Status::internal("there is no corresponding SDC"));
    bench.driver.direct(|script| script.validate = error());
    bench.harmless(600).await;
    // No veto stands in the way of a loss wrongly believed.
    for node in ["a", "b", "c"] {
        says(&bench, node, SEEN);
    }
    bench.driver.direct(|script| script.validate = LOST);
    for _ in 0..5 {
        for answer in [LOST, LOST, error()] {
            let before = polls(&bench, "a");
            says(&bench, "a", answer);
            bench
                .until("it is polled", |bench| polls(bench, "a") > before)
                .await;
        }
    }
    bench.harmless(1).await;
}

#[tokio::test(start_paused = true)]
async fn threshold_and_rate_follow_the_file() {
    let bench = connected(&["--arrayConnectivityConnectionLossThreshold=100"]).await;
    let rate = |bench: &Bench| {
        let entries = bench.recorder.entries().into_iter();
        let times: Vec<Duration> = entries
            .filter(|entry| matches!(&entry.what, What::Asked(Call::Validate { node, .. }) if node == "id-b"))
            .map(|entry| entry.at)
            .collect();
        times[times.len() - 1] - times[times.len() - 2]
    };
    bench.pass(60).await;
    assert_eq!(rate(&bench).as_secs(), 15);
    bench.configure(|settings| settings.poll_rate = Duration::from_secs(5));
    bench.pass(60).await;
    assert_eq!(rate(&bench).as_secs(), 5);
    bench.driver.direct(|script| script.validate = LOST);
    for node in ["b", "c"] {
        says(&bench, node, SEEN);
    }
    bench.harmless(60).await;
    bench.threshold(2);
    bench
        .until("it goes", |bench| !bench.pod_exists("db-a"))
        .await;
    says(&bench, "a", SEEN);
    bench.evacuated("a", &["db-a"]).await;
}

/// The volumes' own answer still counts: I/O is a veto, and so is a connection.
#[tokio::test(start_paused = true)]
async fn the_veto_holds_after_array_loss_too() {
    for answer in [(true, false), (false, true)] {
        let bench = connected(&[]).await;
        bench.driver.direct(|script| script.validate = Ok(answer));
        for node in ["b", "c"] {
            says(&bench, node, SEEN);
        }
        says(&bench, "a", LOST);
        bench
            .refused(
                "db-a",
                "ArrayConnectivityLoss",
                "array connected or recent I/O",
            )
            .await;
    }
}

/// skipArrayConnectionValidation never applies here: nothing evicts from the node.
#[tokio::test(start_paused = true)]
async fn skip_array_validation_does_not_apply_to_array_loss() {
    let bench = connected(&["--skipArrayConnectionValidation=true"]).await;
    for node in ["b", "c"] {
        says(&bench, node, SEEN);
    }
    says(&bench, "a", LOST);
    bench
        .refused(
            "db-a",
            "ArrayConnectivityLoss",
            "array connected or recent I/O",
        )
        .await;
}

/// S15: more nodes lost than can be believed, all at once: nobody is touched, and it is said once.
#[tokio::test(start_paused = true)]
async fn s15_a_storm_of_losses_evacuates_nobody() {
    let bench = connected(&[]).await;
    bench.driver.direct(|script| script.validate = LOST);
    bench.harmless(600).await;
    let told: Vec<Value> = bench
        .server
        .read_all(testbed::embedded::api::Kind::Event)
        .iter()
        .map(|event| event["reason"].clone())
        .collect();
    assert_eq!(told, ["StormGuard"]);
    // It goes on by itself when the picture clears.
    for node in ["b", "c"] {
        says(&bench, node, SEEN);
    }
    bench
        .until("it goes", |bench| !bench.pod_exists("db-a"))
        .await;
    says(&bench, "a", SEEN);
    bench.evacuated("a", &["db-a"]).await;
}

/// L13: the count belongs to the Node object.
#[tokio::test(start_paused = true)]
async fn l13_a_node_registered_anew_starts_afresh() {
    let bench = connected(&["--arrayConnectivityConnectionLossThreshold=4"]).await;
    bench.driver.direct(|script| script.validate = LOST);
    for node in ["b", "c"] {
        says(&bench, node, SEEN);
    }
    let before = polls(&bench, "a");
    bench
        .until("it is nearly lost", |bench| polls(bench, "a") == before + 3)
        .await;
    bench.delete("/api/v1/nodes/a").await;
    bench.node("a").await;
    bench.pass(2).await;
    let before = polls(&bench, "a");
    bench
        .until("it is polled again", |bench| {
            polls(bench, "a") >= before + 3
        })
        .await;
    bench.harmless(1).await;
    bench
        .until("it goes after the fourth", |bench| {
            !bench.pod_exists("db-a")
        })
        .await;
    says(&bench, "a", SEEN);
    bench.evacuated("a", &["db-a"]).await;
}

/// Nobody is asked about nodes without protected pods; one call a node and sweep (C4, C10, L16).
#[tokio::test(start_paused = true)]
async fn l16_one_call_per_node_and_sweep() {
    let mut bench = Bench::new(&[]).await;
    for number in 0..5 {
        pod(&format!("db-{number}"), "a")
            .volume(&format!("pv{number}"))
            .create(&bench)
            .await;
    }
    bench.driver.direct(|script| script.validate = SEEN);
    bench.start();
    bench.pass(3600).await;
    let asked = polls(&bench, "a");
    assert!((235..=245).contains(&asked), "{asked}");
    assert_eq!(polls(&bench, "b"), 0);
}
