//! The driver's own node pods, and the taint that says that none of them is ready.

use serde_json::json;

use super::bench::Bench;
use super::objects::{PodSpec, pod};
use super::recorder::What;

const OFFLINE: &str = "offline.vxflexos.storage.dell.com";

fn driver_pod(name: &str, node: &str) -> PodSpec {
    pod(name, node)
        .in_namespace("driver")
        .owner("DaemonSet", "node")
        .with(|object| {
            object["metadata"]["labels"] = json!({"driver.dellemc.com": "dell-storage"});
        })
}

async fn status(bench: &Bench, name: &str, ready: bool) {
    bench
        .pod_status("driver", name, "Running", ready, None)
        .await;
}

#[tokio::test(start_paused = true)]
async fn set_and_lifted() {
    let mut bench = Bench::new(&[]).await;
    driver_pod("node-x", "a").create(&bench).await;
    bench.taint("a", "example.com/kept", "NoExecute", "x").await;
    bench.start();
    bench.harmless(60).await;
    status(&bench, "node-x", false).await;
    bench
        .until("it is set", |bench| bench.has_taint("a", OFFLINE))
        .await;
    let taint = bench
        .taints("a")
        .into_iter()
        .find(|taint| taint["key"] == OFFLINE)
        .unwrap();
    assert_eq!(taint["effect"], "NoSchedule");
    status(&bench, "node-x", true).await;
    bench
        .until("it is lifted", |bench| !bench.has_taint("a", OFFLINE))
        .await;
    bench.rests().await;
    assert_eq!(bench.deeds(), ["taint a", "taint a"]);
    assert!(bench.has_taint("a", "example.com/kept"));
}

/// L8: where no driver pod is left the taint goes; its successor might never be scheduled.
#[tokio::test(start_paused = true)]
async fn l8_the_taint_goes_with_the_pod() {
    let mut bench = Bench::new(&[]).await;
    driver_pod("node-x", "a").not_ready().create(&bench).await;
    bench.start();
    bench
        .until("it is set", |bench| bench.has_taint("a", OFFLINE))
        .await;
    bench.delete("/api/v1/namespaces/driver/pods/node-x").await;
    bench
        .until("it is lifted", |bench| !bench.has_taint("a", OFFLINE))
        .await;
    bench.rests().await;
}

/// L8: also when nobody looked as the pod went.
#[tokio::test(start_paused = true)]
async fn l8_a_leftover_taint_goes_at_the_start() {
    let mut bench = Bench::new(&[]).await;
    bench.taint("a", OFFLINE, "NoSchedule", "").await;
    bench.start();
    bench
        .until("it is lifted", |bench| !bench.has_taint("a", OFFLINE))
        .await;
    bench.rests().await;
}

/// L9: an evicted pod beside its ready successor says nothing.
#[tokio::test(start_paused = true)]
async fn l9_a_failed_pod_beside_its_successor_says_nothing() {
    for first in ["node-a", "node-z"] {
        let mut bench = Bench::new(&[]).await;
        driver_pod(first, "a")
            .phase("Failed")
            .not_ready()
            .create(&bench)
            .await;
        driver_pod("node-m", "a").create(&bench).await;
        bench.start();
        bench.harmless(120).await;
    }
}

/// S16: the pods of another driver, in its own namespace, are none of ours.
#[tokio::test(start_paused = true)]
async fn s16_other_drivers_pods_are_not_ours() {
    let mut bench = Bench::new(&[]).await;
    driver_pod("other-x", "a")
        .in_namespace("default")
        .waiting("CrashLoopBackOff")
        .create(&bench)
        .await;
    bench.start();
    bench.harmless(120).await;
    bench.fail("a").await;
    bench.harmless(120).await;
}

/// S14: a taint that somebody sets between our read and our patch stays.
#[tokio::test(start_paused = true)]
async fn s14_a_foreign_taint_in_between_stays() {
    let mut bench = Bench::new(&[]).await;
    driver_pod("node-x", "a").create(&bench).await;
    bench.start();
    bench.pass(5).await;
    bench.overtake(
        "a",
        json!({"spec": {"taints": [{"key": "example.com/kept", "effect": "NoExecute"}]}}),
    );
    status(&bench, "node-x", false).await;
    bench
        .until("it is set", |bench| bench.has_taint("a", OFFLINE))
        .await;
    assert!(bench.has_taint("a", "example.com/kept"));
    let conflicts = bench
        .recorder
        .entries()
        .into_iter()
        .filter(|entry| matches!(&entry.what, What::Request(sent) if sent.status == Some(409)));
    assert_eq!(conflicts.count(), 1);
    bench.rests().await;
}

/// Standalone is the watch on protected pods alone.
#[tokio::test(start_paused = true)]
async fn standalone_leaves_driver_pods_and_arrays_alone() {
    let mut bench = Bench::new(&["--mode=standalone", "--leaderelection=false"]).await;
    driver_pod("node-x", "a").not_ready().create(&bench).await;
    pod("db-0", "b").volume("pv1").create(&bench).await;
    bench
        .driver
        .direct(|script| script.validate = Ok((false, false)));
    bench.start();
    bench.harmless(120).await;
    assert!(bench.driver.calls().is_empty());
    bench.fail("b").await;
    bench.evacuated("b", &["db-0"]).await;
}
