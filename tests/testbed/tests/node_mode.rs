//! The whole of node mode in one process under paused time: against the API server in memory, a host on a temporary
//! directory and a driver of ours. Holes of the Go podmon by number (S1, …).

#[path = "node_mode/bench.rs"]
mod bench;
#[path = "node_mode/driver.rs"]
mod driver;
#[path = "node_mode/host.rs"]
mod host;

use std::sync::atomic::Ordering;
use std::time::Duration;

use bench::{Bench, JOURNAL, TAINT};
use serde_json::{Value, json};

#[tokio::test(start_paused = true)]
async fn lifts_as_soon_as_the_kubelet_has_cleaned() {
    let bench = Bench::new("kubelet-cleans").await;
    bench.host.run("old", "db-0");
    bench.host.mount("old", "pv1");
    bench.evacuated("closed", &["pv1"]).await;
    bench.stays_tainted(10).await;
    bench.host.kubelet_cleans("old", &["pv1"]);
    let took = bench.lifted().await;
    println!("lifted {took:?} after the kubelet's cleaning");
    assert!(bench.driver.calls().is_empty() && bench.host.steps().is_empty());
}

#[tokio::test(start_paused = true)]
async fn waits_for_the_controller() {
    let bench = Bench::new("controller").await;
    bench.evacuated("open", &["pv1"]).await;
    bench.stays_tainted(300).await;
    bench.evacuated("closed", &["pv1"]).await;
    bench.lifted().await;
}

#[tokio::test(start_paused = true)]
async fn waits_for_the_node_to_be_ready() {
    let bench = Bench::new("ready").await;
    bench.ready(false).await;
    bench.evacuated("closed", &["pv1"]).await;
    bench.stays_tainted(300).await;
    bench.ready(true).await;
    let took = bench.lifted().await;
    println!("lifted {took:?} after the node's return");
}

#[tokio::test(start_paused = true)]
async fn clears_away_what_the_kubelet_leaves() {
    let bench = Bench::new("leftovers").await;
    bench.host.mount("old", "pv1");
    bench.host.mount("old", "pv2");
    bench.evacuated("closed", &["pv1", "pv2"]).await;
    let took = bench.lifted().await;
    println!("cleared away and lifted after {took:?}");
    assert!(took >= Duration::from_secs(20), "the kubelet goes first");
    let calls = bench.driver.calls();
    for volume in ["pv1", "pv2"] {
        let at = |call: &str| {
            let wanted = format!("{call} handle-{volume}");
            calls.iter().position(|found| *found == wanted)
        };
        assert!(
            at("unpublish").is_some() && at("unpublish") < at("unstage"),
            "{calls:?}"
        );
        assert!(!bench.host.mounted(&bench.host.target("old", volume)));
        assert!(!bench.host.mounted(&bench.host.staging(volume)));
    }
}

#[tokio::test(start_paused = true)]
async fn clears_away_a_raw_block_volume() {
    use podmon::node::clear::Step;
    let bench = Bench::new("block").await;
    bench.host.attach("old", "pv1");
    bench.evacuated("closed", &["pv1"]).await;
    bench.lifted().await;
    let steps = bench.host.steps();
    let at = |wanted: &Step| steps.iter().position(|step| step == wanted);
    let mapped = bench.host.layout().block().join("pv1/dev/old");
    let freed = at(&Step::FreeLoop("/dev/loop5".into()));
    assert!(
        freed.is_some() && freed < at(&Step::Unmount(mapped)),
        "{steps:?}"
    );
    let calls = bench.driver.calls();
    assert_eq!(calls, ["unpublish handle-pv1", "unstage handle-pv1"]);
}

/// L10: no loop device, or only other volumes', is nothing to stumble over.
#[tokio::test(start_paused = true)]
async fn l10_loop_devices_of_others_are_left_alone() {
    let bench = Bench::new("l10").await;
    let sys = bench.host.base().join("sys/block/loop9/loop");
    std::fs::create_dir_all(&sys).unwrap();
    std::fs::write(sys.join("backing_file"), "/images/pv1-and-more\n").unwrap();
    bench.host.mount("old", "pv1");
    bench.evacuated("closed", &["pv1"]).await;
    bench.lifted().await;
    assert!(sys.exists());
}

#[tokio::test(start_paused = true)]
async fn s1_runtime_down_blocks() {
    let bench = Bench::new("s1").await;
    bench.host.mount("old", "pv1");
    bench.host.runtime_down(true);
    bench.evacuated("closed", &["pv1"]).await;
    bench.stays_tainted(300).await;
    assert!(
        bench.driver.calls().is_empty(),
        "nothing is cleaned under what may run"
    );
    let told = bench.events().await;
    assert!(
        told.iter()
            .any(|(reason, text)| reason == "NodeNotRequalified"
                && text.contains("what runs here is unknown")),
        "{told:?}"
    );
    bench.host.runtime_down(false);
    bench.lifted().await;
}

#[tokio::test(start_paused = true)]
async fn s4_a_restart_frees_no_zombie() {
    let mut bench = Bench::new("s4").await;
    bench.host.run("old", "db-0");
    bench.host.mount("old", "pv1");
    bench.evacuated("closed", &["pv1"]).await;
    for _ in 0..5 {
        bench.stays_tainted(40).await;
        bench.stop();
        bench.start();
    }
    bench.stays_tainted(60).await;
    assert!(bench.driver.calls().is_empty());
    bench.host.kill("old");
    bench.lifted().await;
}

/// The boot id explains; it frees nothing.
#[tokio::test(start_paused = true)]
async fn s4_a_reboot_is_checked_like_anything_else() {
    let mut bench = Bench::new("s4-boot").await;
    bench.host.run("old", "db-0");
    bench.evacuated("closed", &["pv1"]).await;
    bench.stop();
    bench.host.reboot();
    bench.start();
    bench.stays_tainted(120).await;
    bench.host.kill("old");
    bench.lifted().await;
}

/// A volume that a pod bound here is about to use is not unstaged, although nothing of that pod is on the host yet.
#[tokio::test(start_paused = true)]
async fn s12_a_volume_of_a_pod_that_is_about_to_start_stays_staged() {
    let bench = Bench::new("s12").await;
    bench.host.mount("old", "pv1");
    bench.bind("next", "pv1").await;
    bench.evacuated("closed", &["pv1"]).await;
    bench.stays_tainted(120).await;
    assert!(bench.host.mounted(&bench.host.staging("pv1")));
    let calls = bench.driver.calls();
    assert!(
        !calls.contains(&"unstage handle-pv1".to_owned()),
        "{calls:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn s12_the_mount_of_another_pod_is_left_alone() {
    let bench = Bench::new("s12-shared").await;
    let other = bench.bind("other", "pv1").await;
    bench.host.run(&other, "other");
    bench.host.mount(&other, "pv1");
    bench.host.mount("old", "pv1");
    bench.evacuated("closed", &["pv1"]).await;
    bench.lifted().await;
    assert!(bench.host.mounted(&bench.host.target(&other, "pv1")));
    assert!(bench.host.mounted(&bench.host.staging("pv1")));
    assert!(!bench.host.mounted(&bench.host.target("old", "pv1")));
}

/// A taint that somebody else sets between our read and our patch is not lost.
#[tokio::test(start_paused = true)]
async fn s14_a_foreign_taint_in_between_stays() {
    let bench = Bench::new("s14").await;
    let ours = json!({"key": TAINT, "effect": "NoSchedule"});
    let foreign = json!({"key": "foreign", "value": "kept", "effect": "NoExecute"});
    bench.overtake(json!({"spec": {"taints": [ours, foreign]}}));
    bench.evacuated("closed", &["pv1"]).await;
    bench.lifted().await;
    assert_eq!(bench.taints().await, ["foreign"]);
}

/// History "host before node": an evacuation that begins between our look and our patch wins.
#[tokio::test(start_paused = true)]
async fn an_evacuation_that_begins_meanwhile_keeps_the_taint() {
    let bench = Bench::new("overtaken").await;
    let uid = bench.node().await.metadata.uid.unwrap();
    let open = json!({"v": 1, "id": "next", "by": "ctl-0/1", "phase": "open", "why": "NodeFailure",
        "node": uid, "pods": {}, "vols": {}, "gone": ["old"]});
    bench.overtake(json!({"metadata": {"annotations": {JOURNAL: open.to_string()}}}));
    bench.evacuated("closed", &["pv1"]).await;
    bench
        .until("podmon tried", || async {
            bench
                .journal()
                .await
                .is_some_and(|text| text.contains("next"))
        })
        .await;
    bench.stays_tainted(60).await;
}

#[tokio::test(start_paused = true)]
async fn l4_a_hung_driver_delays_no_other_volume() {
    let bench = Bench::new("l4").await;
    bench.host.mount("old", "pv1");
    bench.host.mount("old", "pv2");
    bench.driver.hang("handle-pv1");
    bench.evacuated("closed", &["pv1", "pv2"]).await;
    bench
        .until("pv2 is unstaged", || async {
            !bench.host.mounted(&bench.host.staging("pv2"))
        })
        .await;
    bench.stays_tainted(300).await;
    let told = bench.events().await;
    assert!(
        told.iter().any(|(_, text)| text
            .contains("clearing volume handle-pv1 away failed: NodeUnpublishVolume")),
        "{told:?}"
    );
    // The loop lives: what the kubelet clears away at last is noticed.
    bench.host.kubelet_cleans("old", &["pv1", "pv2"]);
    bench.lifted().await;
}

#[tokio::test(start_paused = true)]
async fn aborted_means_that_the_driver_is_at_it() {
    let bench = Bench::new("aborted").await;
    bench.host.mount("old", "pv1");
    bench.driver.abort("handle-pv1", true);
    bench.evacuated("closed", &["pv1"]).await;
    bench.stays_tainted(120).await;
    let told = bench.events().await;
    assert!(
        told.iter().all(|(_, text)| !text.contains("failed")),
        "{told:?}"
    );
    bench.driver.abort("handle-pv1", false);
    bench.lifted().await;
}

#[tokio::test(start_paused = true)]
async fn a_busy_mount_is_never_detached_lazily() {
    use podmon::node::clear::Step;
    let bench = Bench::new("busy").await;
    bench.host.mount("old", "pv1");
    // The driver says OK and does nothing.
    let target = bench.host.target("old", "pv1");
    let inner = target.join("inner");
    bench.host.mount_at(&inner);
    bench.host.busy(inner.clone());
    bench.evacuated("closed", &["pv1"]).await;
    bench.stays_tainted(120).await;
    let steps = bench.host.steps();
    assert!(steps.contains(&Step::Unmount(inner)), "{steps:?}");
    assert!(
        !steps
            .iter()
            .any(|step| matches!(step, Step::UnmountLazily(_)))
    );
}

#[tokio::test(start_paused = true)]
async fn with_the_flag_what_is_busy_is_detached_and_counts_until_its_device_is_closed() {
    use podmon::node::clear::Step;
    let mut bench = Bench::new("lazy").await;
    bench.stop();
    bench.start_with(&["--lazyUnmount=true"]);
    bench.host.mount("old", "pv1");
    let inner = bench.host.target("old", "pv1").join("inner");
    bench.host.mount_at(&inner);
    bench.host.busy(inner.clone());
    bench.evacuated("closed", &["pv1"]).await;
    bench.stays_tainted(120).await;
    assert!(bench.host.steps().contains(&Step::UnmountLazily(inner)));
    assert!(
        !bench.host.mounted(&bench.host.staging("pv1")),
        "all is unmounted"
    );
    // Also in the next life of the process.
    bench.stop();
    bench.start();
    bench.stays_tainted(120).await;
    bench.host.close_devices();
    bench.lifted().await;
}

#[tokio::test(start_paused = true)]
async fn with_the_flag_a_zombie_that_the_kubelet_leaves_is_stopped() {
    let mut bench = Bench::new("stop").await;
    bench.host.run("old", "db-0");
    bench.evacuated("closed", &["pv1"]).await;
    bench.stays_tainted(120).await;
    bench.stop();
    bench.start_with(&["--stopZombies=true"]);
    let took = bench.lifted().await;
    assert!(took >= Duration::from_secs(20), "the kubelet goes first");
}

#[tokio::test(start_paused = true)]
async fn l12_a_taint_taken_away_too_early_is_put_back() {
    let bench = Bench::new("l12").await;
    bench.host.run("old", "db-0");
    bench.evacuated("closed", &["pv1"]).await;
    bench.stays_tainted(30).await;
    bench
        .patch_node(json!({"spec": {"taints": Value::Null}}))
        .await;
    bench.until("the taint is back", || bench.tainted()).await;
    assert!(bench.journal().await.is_some());
    bench.host.kill("old");
    bench.lifted().await;
}

/// Both taken away: the operator vouches.
#[tokio::test(start_paused = true)]
async fn l12_taint_and_journal_taken_away_by_hand_stay_away() {
    let bench = Bench::new("l12-both").await;
    bench.host.run("old", "db-0");
    bench.evacuated("closed", &["pv1"]).await;
    bench.stays_tainted(30).await;
    bench
        .patch_node(json!({"metadata": {"annotations": {JOURNAL: Value::Null}}, "spec": {"taints": Value::Null}}))
        .await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(!bench.tainted().await);
}

#[tokio::test(start_paused = true)]
async fn an_older_podmons_evacuation_is_requalified_too() {
    let bench = Bench::new("older").await;
    bench.host.mount("old", "pv1");
    bench
        .patch_node(json!({"spec": {"taints": [{"key": TAINT, "effect": "NoSchedule"}]}}))
        .await;
    let took = bench.lifted().await;
    assert!(took >= Duration::from_secs(30));
    assert!(!bench.host.mounted(&bench.host.staging("pv1")));
}

/// The Node object goes and comes back under its name while its pods run on.
#[tokio::test(start_paused = true)]
async fn a_node_registered_anew_taints_itself() {
    let bench = Bench::new("recreated").await;
    bench.host.run("old", "db-0");
    let noted = bench.host.base().join("podmon-node.json");
    bench
        .until("the node is noted", || async { noted.exists() })
        .await;
    bench.unregister().await;
    bench.register().await;
    bench.until("it is tainted", || bench.tainted()).await;
    let journal = bench.journal().await.unwrap();
    assert!(
        journal.contains("NodeRecreated") && journal.contains("closed"),
        "{journal}"
    );
    bench.stays_tainted(60).await;
    bench.host.kill("old");
    bench.lifted().await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_node_asks_twice_a_minute_at_most() {
    let bench = Bench::new("idle").await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let before = bench.requests.load(Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let asked = bench.requests.load(Ordering::Relaxed) - before;
    println!("{asked} requests in an hour");
    assert!(asked <= 120, "{asked} requests in an hour");
    assert!(asked > 60, "the safety poll lives");
}
