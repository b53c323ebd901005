//! Pods in a crash loop on a sound node: deleted with their own grace, five times at most.

use testbed::embedded::api::Kind;

use super::bench::Bench;
use super::objects::{PodSpec, pod};
use super::recorder::What;

const LOOP: &str = "CrashLoopBackOff";

/// The pod's owner makes it again whenever it is gone, as `next` says, so often.
async fn again(
    bench: &Bench,
    times: usize,
    next: impl Fn(usize) -> PodSpec,
) -> Vec<(String, String)> {
    let mut told = Vec::new();
    for number in 0..times {
        let pods = bench.server.read_all(Kind::Pod).len();
        assert_eq!(pods, 0, "{number}");
        let uid = next(number).create(bench).await;
        bench.pass(30).await;
        let pods = bench.server.read_all(Kind::Pod);
        if let Some(pod) = pods.first() {
            // Only asked to go: its kubelet takes it away.
            let name = pod["metadata"]["name"].as_str().unwrap();
            if !pod["metadata"]["deletionTimestamp"].is_null() {
                told.push((name.to_owned(), uid));
            }
            bench
                .delete(&format!("/api/v1/namespaces/default/pods/{name}"))
                .await;
        }
    }
    told
}

#[tokio::test(start_paused = true)]
async fn five_times_and_no_more() {
    let mut bench = Bench::new(&[]).await;
    bench.start();
    bench.pass(1).await;
    let told = again(&bench, 8, |_| pod("db-0", "a").volume("pv1").waiting(LOOP)).await;
    assert_eq!(told.len(), 5);
    let texts: Vec<String> = told
        .iter()
        .enumerate()
        .map(|(retry, (_, uid))| {
            format!("podmon cleaning pod [{uid} a retry: {retry}] with delete")
        })
        .collect();
    assert_eq!(bench.said("db-0"), texts);
    assert!(
        bench
            .events("db-0")
            .iter()
            .all(|(reason, _)| reason == LOOP)
    );
    for entry in bench.recorder.entries() {
        if let What::Request(sent) = entry.what
            && sent.verb == "DELETE"
        {
            assert!(
                sent.body["gracePeriodSeconds"].is_null(),
                "its own grace: {}",
                sent.body
            );
        }
    }
    // Ready once: from the start.
    pod("db-0", "a").volume("pv1").create(&bench).await;
    bench.pass(5).await;
    bench.delete("/api/v1/namespaces/default/pods/db-0").await;
    let told = again(&bench, 1, |_| pod("db-0", "a").volume("pv1").waiting(LOOP)).await;
    assert!(
        bench.said("db-0").last().unwrap().contains("retry: 0"),
        "{told:?}"
    );
}

/// L14: a Deployment's pods have other names each time, and count together.
#[tokio::test(start_paused = true)]
async fn l14_changing_names_count_together() {
    let mut bench = Bench::new(&[]).await;
    bench.start();
    bench.pass(1).await;
    let told = again(&bench, 8, |number| {
        let name = format!("web-{number}");
        pod(&name, "a")
            .volume("pv1")
            .owner("ReplicaSet", "web")
            .waiting(LOOP)
    })
    .await;
    assert_eq!(told.len(), 5);
}

#[tokio::test(start_paused = true)]
async fn one_deletion_a_pod() {
    let mut bench = Bench::new(&[]).await;
    pod("db-0", "a")
        .volume("pv1")
        .waiting(LOOP)
        .create(&bench)
        .await;
    bench.start();
    bench.pass(120).await;
    assert_eq!(bench.deeds(), ["delete gracefully pod db-0"]);
}

/// On a node that is tainted a crash loop is no news, and other reasons to wait are none.
#[tokio::test(start_paused = true)]
async fn only_crash_loops_on_sound_nodes() {
    for taint in [
        "node.kubernetes.io/unreachable",
        "vxflexos.podmon.storage.dell.com",
    ] {
        let mut bench = Bench::new(&[]).await;
        bench.taint("a", taint, "NoSchedule", "").await;
        pod("db-0", "a")
            .volume("pv1")
            .waiting(LOOP)
            .create(&bench)
            .await;
        bench.start();
        bench.harmless(120).await;
    }
    for spec in [
        pod("db-0", "a").volume("pv1").waiting("ContainerCreating"),
        pod("db-0", "a").volume("pv1").waiting(LOOP).unprotected(),
        pod("db-0", "a")
            .volume("pv1")
            .waiting(LOOP)
            .in_namespace("driver"),
    ] {
        let mut bench = Bench::new(&[]).await;
        spec.create(&bench).await;
        bench.start();
        bench.harmless(120).await;
    }
}

#[tokio::test(start_paused = true)]
async fn pause_and_detect_only_hold_it() {
    for flag in ["--pause=true", "--detectOnly=true"] {
        let mut bench = Bench::new(&[flag]).await;
        pod("db-0", "a")
            .volume("pv1")
            .waiting(LOOP)
            .create(&bench)
            .await;
        bench.start();
        bench.harmless(120).await;
    }
}
