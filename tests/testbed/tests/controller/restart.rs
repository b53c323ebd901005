//! Podmon dies at any effect, or loses the lead, and another goes on from what the API says.

use std::time::Duration;

use http::Method;
use serde_json::json;

use super::bench::Bench;
use super::objects::pod;
use super::recorder::{Crash, Fault, to};

/// Two pods with two volumes each on a node that fails.
async fn failing() -> Bench {
    let bench = Bench::new(&[]).await;
    pod("db-0", "a")
        .volume("pv1")
        .volume("pv2")
        .create(&bench)
        .await;
    pod("web-0", "a")
        .volume("pv3")
        .volume("pv4")
        .create(&bench)
        .await;
    bench.fail("a").await;
    bench
        .driver
        .direct(|script| script.slow = Duration::from_millis(100));
    bench
}

async fn ends_well(bench: &Bench) {
    bench.evacuated("a", &["db-0", "web-0"]).await;
    assert_eq!(bench.attachments("a"), 0);
    let deeds = bench.deeds();
    for volume in ["pv1", "pv2", "pv3", "pv4"] {
        let of = |what: &str| deeds.iter().position(|deed| deed.starts_with(what));
        let fence = of(&format!("fence h-{volume}"));
        let detach = of(&format!("delete attachment csi-{volume}"));
        assert!(fence.is_some() && fence < detach, "{deeds:?}");
    }
}

/// S13, S21: a crash before and after each effect; the same name starts again at once, or another takes the lead.
async fn crashes(same: bool, wait: u64) {
    let mut bench = failing().await;
    bench.start();
    ends_well(&bench).await;
    let effects = bench.recorder.effects();
    drop(bench);
    println!("{effects} effects without a crash");
    assert!(effects >= 13);
    for number in 0..effects {
        for crash in [Crash::Before(number), Crash::After(number)] {
            println!("{crash:?}");
            let mut bench = failing().await;
            bench.recorder.crash(crash);
            bench.start();
            let fell = tokio::time::timeout(Duration::from_secs(300), bench.recorder.fallen());
            fell.await
                .unwrap_or_else(|_| panic!("{crash:?} was not reached\n{}", bench.story()));
            bench.pass(1).await;
            bench.stop().await;
            bench.pass(wait).await;
            if !same {
                bench.hostname = "ctl-1".into();
            }
            bench.recorder.revive();
            bench.start();
            ends_well(&bench).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn s13_s21_a_crash_at_any_effect_and_a_start_at_once() {
    crashes(true, 0).await;
}

#[tokio::test(start_paused = true)]
async fn s13_s21_a_crash_at_any_effect_and_another_leader() {
    crashes(false, 0).await;
}

#[tokio::test(start_paused = true)]
async fn s13_s21_a_crash_at_any_effect_and_a_start_much_later() {
    crashes(true, 70).await;
}

/// Past the first fence there is no way back: a node that heals while podmon is down is evacuated to the end.
#[tokio::test(start_paused = true)]
async fn what_was_fenced_is_evacuated_though_the_node_has_healed() {
    let mut bench = Bench::new(&[]).await;
    pod("db-0", "a").volume("pv1").create(&bench).await;
    bench.fail("a").await;
    // After the announcement and the fence.
    bench.recorder.crash(Crash::After(1));
    bench.start();
    bench.recorder.fallen().await;
    bench.stop().await;
    bench.heal("a").await;
    bench
        .pod_status("default", "db-0", "Running", true, None)
        .await;
    bench.recorder.revive();
    bench.start();
    bench.evacuated("a", &["db-0"]).await;
}

/// Adoption comes before anything else.
#[tokio::test(start_paused = true)]
async fn a_successor_adopts_first() {
    let mut bench = Bench::new(&[]).await;
    pod("db-0", "a").volume("pv1").create(&bench).await;
    bench.fail("a").await;
    bench.recorder.crash(Crash::Before(1));
    bench.start();
    bench.recorder.fallen().await;
    bench.stop().await;
    let before = bench.deeds().len();
    let id = bench.journal("a")["id"].clone();
    assert_eq!(bench.journal("a")["by"], "ctl-0/1");
    bench.recorder.revive();
    bench.hostname = "ctl-1".into();
    bench.start();
    bench.evacuated("a", &["db-0"]).await;
    assert_eq!(
        bench.deeds()[before..before + 2],
        ["list a", "fence h-pv1 id-a"]
    );
    let journal = bench.journal("a");
    assert_eq!((&journal["id"], &journal["by"]), (&id, &json!("ctl-1/2")));
}

/// The lease is taken by another: podmon ends, and says why.
#[tokio::test(start_paused = true)]
async fn another_takes_the_lead() {
    let mut bench = Bench::new(&[]).await;
    bench.start();
    bench.pass(20).await;
    let path = "/apis/coordination.k8s.io/v1/namespaces/driver/leases/podmon-1";
    bench
        .patch(
            path,
            json!({"spec": {"holderIdentity": "other", "leaseTransitions": 7}}),
        )
        .await;
    assert_eq!(bench.ended().await, "stopped leading: other leads now");
}

/// The API server does not answer renewals: podmon ends before another may lead, and has no effect after that.
#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_renew_stops() {
    let mut bench = Bench::new(&[]).await;
    pod("db-0", "a").volume("pv1").create(&bench).await;
    bench.start();
    bench.pass(20).await;
    bench
        .recorder
        .fault(usize::MAX, Fault::Hang, to(Method::PUT, "/leases/podmon-1"));
    let start = tokio::time::Instant::now();
    bench.pass(12).await;
    bench.fail("a").await;
    let ended = bench.ended().await;
    assert!(
        ended.starts_with("stopped leading: not renewed for 10s"),
        "{ended}"
    );
    assert!(start.elapsed() < Duration::from_secs(20));
    assert!(bench.deeds().is_empty(), "{}", bench.story());
}

/// Two controllers at once: one leads, the other waits, and takes over when the first is gone.
#[tokio::test(start_paused = true)]
async fn a_standby_does_nothing_until_it_leads() {
    let mut bench = failing().await;
    bench.start();
    bench.pass(1).await;
    let standby = bench.another("ctl-1");
    ends_well(&bench).await;
    let journal = bench.journal("a");
    assert_eq!(journal["by"], "ctl-0/1");
    pod("late-0", "a")
        .volume("pv9")
        .not_ready()
        .create(&bench)
        .await;
    bench.stop().await;
    bench
        .until("the standby goes on", |bench| !bench.pod_exists("late-0"))
        .await;
    bench.evacuated("a", &["late-0"]).await;
    assert!(
        bench.journal("a")["by"]
            .as_str()
            .unwrap()
            .starts_with("ctl-1/")
    );
    standby.abort();
}
