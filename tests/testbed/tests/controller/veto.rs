//! What the array says before a group is announced.

use serde_json::json;
use tonic::Status;

use super::bench::Bench;
use super::objects::{UNREACHABLE, pod, volume};

const VETO: &str = "array connected or recent I/O";
const UNANSWERED: &str = "due to error while validating volume host connectivity";

/// A failed node `a` with pod `db-0` on volume `pv1`, and an array that answers so.
async fn answering(flags: &[&str], answer: Result<(bool, bool), Status>) -> Bench {
    let mut bench = Bench::new(flags).await;
    pod("db-0", "a").volume("pv1").create(&bench).await;
    bench.driver.direct(|script| {
        script.validate = answer;
        let connected = Ok((true, false));
        script.polls = ["id-a", "id-b", "id-c"]
            .map(|id| (id.to_owned(), connected.clone()))
            .into();
    });
    bench.fail("a").await;
    bench.start();
    bench
}

#[tokio::test(start_paused = true)]
async fn connected_is_a_veto_until_it_is_not() {
    let bench = answering(&[], Ok((true, false))).await;
    bench.refused("db-0", "NodeFailure", VETO).await;
    bench
        .driver
        .direct(|script| script.validate = Ok((false, false)));
    bench.evacuated("a", &["db-0"]).await;
}

/// L2: what was refused is asked again soon, without a new event of the pod.
#[tokio::test(start_paused = true)]
async fn l2_io_is_a_veto_until_it_stops() {
    let bench = answering(&[], Ok((false, true))).await;
    bench.refused("db-0", "NodeFailure", VETO).await;
    bench
        .driver
        .direct(|script| script.validate = Ok((false, false)));
    let start = tokio::time::Instant::now();
    bench
        .until("it goes", |bench| !bench.pod_exists("db-0"))
        .await;
    println!("evacuated {:?} after the I/O stopped", start.elapsed());
    bench.evacuated("a", &["db-0"]).await;
}

/// S8: an error says nothing, whatever its text.
#[tokio::test(start_paused = true)]
async fn s8_an_error_is_a_veto() {
    for status in [
        Status::internal("there is no corresponding SDC"),
        Status::not_found("no such node"),
        Status::unavailable("the array's API is down"),
    ] {
        let bench = answering(&[], Err(status)).await;
        bench.refused("db-0", "NodeFailure", UNANSWERED).await;
        bench
            .driver
            .direct(|script| script.validate = Ok((false, false)));
        bench.evacuated("a", &["db-0"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn l4_an_extension_that_hangs_is_a_veto() {
    let mut bench = Bench::new(&[]).await;
    pod("db-0", "a").volume("pv1").create(&bench).await;
    bench.driver.direct(|script| script.hang_validate = true);
    bench.fail("a").await;
    bench.start();
    bench.refused("db-0", "NodeFailure", UNANSWERED).await;
    bench.driver.direct(|script| {
        script.hang_validate = false;
        script.validate = Ok((false, false));
        script.polls = [
            ("id-b".into(), Ok((true, false))),
            ("id-c".into(), Ok((true, false))),
        ]
        .into();
    });
    bench.evacuated("a", &["db-0"]).await;
}

/// S7: a driver that has the extension only later is asked all the same.
#[tokio::test(start_paused = true)]
async fn s7_the_extension_may_come_late() {
    let mut bench = Bench::new(&[]).await;
    pod("db-0", "a").volume("pv1").create(&bench).await;
    bench.start();
    bench.pass(120).await;
    bench
        .driver
        .direct(|script| script.validate = Ok((true, false)));
    bench.fail("a").await;
    bench.refused("db-0", "NodeFailure", VETO).await;
}

#[tokio::test(start_paused = true)]
async fn without_extension_kubernetes_word_stands() {
    let mut bench = Bench::new(&[]).await;
    pod("db-0", "a").volume("pv1").create(&bench).await;
    bench.fail("a").await;
    bench.start();
    bench.evacuated("a", &["db-0"]).await;
}

/// S10: only the RWX volume's own I/O is no veto.
#[tokio::test(start_paused = true)]
async fn s10_rwx_is_exempt_by_volume() {
    for (busy, evacuated) in [("h-many", true), ("h-one", false)] {
        let mut bench = Bench::new(&[]).await;
        let mut many = volume("many");
        many.mode = "ReadWriteMany";
        pod("db-0", "a")
            .uses(many)
            .volume("one")
            .create(&bench)
            .await;
        bench.driver.direct(|script| {
            script.validate = Ok((false, false));
            script.busy.insert(busy.into());
            script.polls = ["id-a", "id-b", "id-c"]
                .map(|id| (id.into(), Ok((true, false))))
                .into();
        });
        bench.fail("a").await;
        bench.start();
        if evacuated {
            bench.evacuated("a", &["db-0"]).await;
        } else {
            bench.refused("db-0", "NodeFailure", VETO).await;
        }
    }
}

/// The operator's flag works as the contract defines it: with `NoExecute` only.
#[tokio::test(start_paused = true)]
async fn skip_array_validation_needs_noexecute() {
    for answer in [Ok((true, true)), Err(Status::internal("down"))] {
        let skip = ["--skipArrayConnectionValidation=true"];
        let bench = answering(&skip, answer.clone()).await;
        bench.evacuated("a", &["db-0"]).await;

        let mut bench = Bench::new(&skip).await;
        pod("db-0", "a")
            .volume("pv1")
            .not_ready()
            .create(&bench)
            .await;
        bench.driver.direct(|script| {
            script.validate = answer;
            script.polls = [("id-a".into(), Ok((true, false)))].into();
        });
        bench.node_condition("a", "Unknown").await;
        bench.taint("a", UNREACHABLE, "NoSchedule", "").await;
        bench.start();
        bench
            .until("it is refused", |bench| !bench.said("db-0").is_empty())
            .await;
        bench.harmless(60).await;
        bench.taint("a", UNREACHABLE, "NoExecute", "").await;
        bench.evacuated("a", &["db-0"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn skip_array_validation_follows_the_file() {
    let bench = answering(&[], Ok((true, true))).await;
    bench.refused("db-0", "NodeFailure", VETO).await;
    bench.configure(|settings| settings.skip_array_connection_validation = true);
    bench.evacuated("a", &["db-0"]).await;
}

/// Our own taint lifts the veto by connection, and that only.
#[tokio::test(start_paused = true)]
async fn own_taint_lifts_the_connected_veto_only() {
    for (answer, evacuated) in [
        ((true, false), true),
        ((true, true), false),
        ((false, true), false),
    ] {
        let mut bench = Bench::new(&[]).await;
        pod("db-0", "a").volume("pv1").create(&bench).await;
        bench.driver.direct(|script| {
            script.validate = Ok(answer);
            script.polls = ["id-a", "id-b", "id-c"]
                .map(|id| (id.into(), Ok((true, false))))
                .into();
        });
        bench.fail("a").await;
        bench
            .taint("a", &bench.names.taint.clone(), "NoSchedule", "")
            .await;
        bench.start();
        if evacuated {
            bench.evacuated("a", &["db-0"]).await;
        } else {
            bench.refused("db-0", "NodeFailure", VETO).await;
        }
    }
}

/// An operator's out-of-service: evidence that lifts the veto by connection; its pods may be ready no more.
#[tokio::test(start_paused = true)]
async fn out_of_service_is_evidence_and_lifts_the_connected_veto_only() {
    for (io, evacuated) in [(false, true), (true, false)] {
        let mut bench = Bench::new(&[]).await;
        pod("db-0", "a")
            .volume("pv1")
            .not_ready()
            .create(&bench)
            .await;
        bench.driver.direct(|script| {
            script.validate = Ok((true, io));
            script.polls = ["id-a", "id-b", "id-c"]
                .map(|id| (id.into(), Ok((true, false))))
                .into();
        });
        bench
            .taint(
                "a",
                "node.kubernetes.io/out-of-service",
                "NoExecute",
                "nodeshutdown",
            )
            .await;
        bench.start();
        if evacuated {
            bench.evacuated("a", &["db-0"]).await;
            assert_eq!(bench.journal("a")["why"], "OutOfService");
            let taint = json!({"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute", "value": "nodeshutdown"});
            assert!(bench.taints("a").contains(&taint), "never fought over");
        } else {
            bench.refused("db-0", "OutOfService", VETO).await;
        }
    }
}
