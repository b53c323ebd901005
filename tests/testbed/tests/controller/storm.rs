//! The storm guard: more nodes lost at once than can be believed.

use super::bench::Bench;
use super::objects::pod;

async fn cluster(flags: &[&str], nodes: usize) -> Bench {
    let mut bench = Bench::new(flags).await;
    for number in 0..nodes {
        let node = format!("n{number}");
        bench.node(&node).await;
        pod(&format!("db-{number}"), &node)
            .volume(&format!("pv{number}"))
            .create(&bench)
            .await;
    }
    bench.start();
    bench.pass(2).await;
    bench
}

#[tokio::test(start_paused = true)]
async fn one_of_two_and_a_third_of_nine_are_believed() {
    for (nodes, lost) in [(2, 1), (9, 3)] {
        let bench = cluster(&[], nodes).await;
        for number in 0..lost {
            bench.fail(&format!("n{number}")).await;
        }
        for number in 0..lost {
            let node = format!("n{number}");
            bench.until("it closes", |bench| bench.closed(&node)).await;
        }
        for number in 0..lost {
            bench
                .evacuated(&format!("n{number}"), &[&format!("db-{number}")])
                .await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn s15_all_at_once_is_not_believed() {
    let bench = cluster(&["--stormGuard=1"], 3).await;
    // The first is begun, and goes on; a second one makes a storm, and no new group is begun.
    bench.fail("n0").await;
    bench
        .until("it is announced", |bench| bench.tainted("n0"))
        .await;
    bench.fail("n1").await;
    bench.fail("n2").await;
    bench.evacuated("n0", &["db-0"]).await;
    bench.pass(300).await;
    assert!(bench.pod_exists("db-1") && bench.pod_exists("db-2"));
    assert!(bench.journal("n1").is_null() && bench.journal("n2").is_null());
    bench.heal("n0").await;
    bench.heal("n2").await;
    bench
        .pod_status("default", "db-2", "Running", true, None)
        .await;
    bench.evacuated("n1", &["db-1"]).await;
    assert!(bench.pod_exists("db-2"));
}

/// Nodes without protected pods say nothing about the picture.
#[tokio::test(start_paused = true)]
async fn empty_nodes_do_not_count() {
    let bench = cluster(&[], 2).await;
    for node in ["a", "b", "c"] {
        bench.fail(node).await;
    }
    bench.fail("n0").await;
    bench.evacuated("n0", &["db-0"]).await;
}

/// Nodes that fail one after the other, each evacuated before the next, are many all the same.
#[tokio::test(start_paused = true)]
async fn s15_one_after_the_other_is_not_believed_either() {
    let bench = cluster(&["--stormGuard=2"], 5).await;
    for number in 0..5 {
        bench.fail(&format!("n{number}")).await;
        bench.pass(60).await;
    }
    for number in 0..5 {
        let there = bench.pod_exists(&format!("db-{number}"));
        assert_eq!(there, number >= 2, "db-{number}");
    }
    bench.rests().await;
}
