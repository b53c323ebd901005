//! Drivers that hang, are down, or answer oddly.

use std::time::Duration;

use tonic::Status;

use super::bench::Bench;
use super::objects::pod;

/// L3, L4: a volume that hangs delays its own group and no other.
#[tokio::test(start_paused = true)]
async fn l3_l4_a_hung_volume_delays_only_its_own_group() {
    let mut bench = Bench::new(&[]).await;
    for number in 0..4 {
        pod(&format!("db-{number}"), "a")
            .volume(&format!("pv{number}"))
            .create(&bench)
            .await;
    }
    pod("far-0", "b").volume("pv9").create(&bench).await;
    bench.start();
    bench.pass(5).await;
    bench
        .driver
        .direct(|script| script.hang.push("h-pv0".into()));
    let start = tokio::time::Instant::now();
    bench.fail("a").await;
    bench
        .until("the others go", |bench| {
            (1..4).all(|number| !bench.pod_exists(&format!("db-{number}")))
        })
        .await;
    println!("the others are gone after {:?}", start.elapsed());
    bench.pass(120).await;
    assert!(bench.pod_exists("db-0"));
    assert!(
        bench
            .said("db-0")
            .last()
            .unwrap()
            .ends_with("couldn't fence volumes")
    );
    bench.driver.direct(|script| script.hang.clear());
    let start = tokio::time::Instant::now();
    bench.evacuated("a", &["db-0"]).await;
    assert!(
        start.elapsed() > Duration::from_secs(60),
        "a call that was given up may act still"
    );
    assert!(bench.pod_exists("far-0"));
}

/// A driver that takes its time, within its deadline.
#[tokio::test(start_paused = true)]
async fn a_slow_driver_is_waited_for() {
    let mut bench = Bench::new(&[]).await;
    pod("db-0", "a")
        .volume("pv1")
        .volume("pv2")
        .create(&bench)
        .await;
    bench
        .driver
        .direct(|script| script.slow = Duration::from_secs(7));
    bench.fail("a").await;
    bench.start();
    bench.evacuated("a", &["db-0"]).await;
    let fences = bench
        .deeds()
        .iter()
        .filter(|deed| deed.starts_with("fence"))
        .count();
    assert_eq!(fences, 2, "{}", bench.story());
}

/// A driver that cannot be reached fences nothing; the node heals: taken back, taint and journal.
#[tokio::test(start_paused = true)]
async fn a_driver_that_is_down_and_a_node_that_heals_leave_nothing_behind() {
    let mut bench = Bench::new(&[]).await;
    pod("db-0", "a").volume("pv1").create(&bench).await;
    bench
        .driver
        .direct(|script| script.validate = Ok((true, false)));
    bench.start();
    bench.pass(5).await;
    bench.driver.down(true);
    bench.fail("a").await;
    bench.pass(60).await;
    bench.heal("a").await;
    bench
        .pod_status("default", "db-0", "Running", true, None)
        .await;
    bench.pass(60).await;
    bench.rests().await;
    assert!(bench.pod_exists("db-0") && bench.attachments("a") == 1);
    assert!(
        bench.journal("a").is_null() && !bench.tainted("a"),
        "{}",
        bench.story()
    );
}

/// It goes down just after the announcement: nothing left this process, so it is taken back as well.
#[tokio::test(start_paused = true)]
async fn never_sent_and_healed_is_taken_back() {
    let mut bench = Bench::new(&[]).await;
    pod("db-0", "a").volume("pv1").create(&bench).await;
    bench
        .driver
        .direct(|script| script.validate = Ok((false, false)));
    bench
        .driver
        .direct(|script| script.polls = [("id-a".into(), Ok((true, false)))].into());
    bench.start();
    bench.pass(5).await;
    let driver = bench.driver.clone();
    bench.server.observe(move |change| {
        if change.actor.as_ref() == "podmon" && change.key.1 == "a" {
            driver.down(true);
        }
    });
    bench.fail("a").await;
    bench
        .until("it is announced", |bench| bench.tainted("a"))
        .await;
    bench.pass(30).await;
    assert!(
        bench.deeds().iter().all(|deed| !deed.starts_with("fence")),
        "{}",
        bench.story()
    );
    bench.heal("a").await;
    bench
        .pod_status("default", "db-0", "Running", true, None)
        .await;
    bench
        .until("it is taken back", |bench| bench.journal("a").is_null())
        .await;
    assert!(!bench.tainted("a") && bench.pod_exists("db-0"));
    bench.driver.direct(|script| script.down = false);
    bench.rests().await;
    assert!(
        bench
            .driver
            .calls()
            .iter()
            .all(|call| !format!("{call:?}").contains("Unpublish"))
    );
}

/// And comes up again before the node heals: forward.
#[tokio::test(start_paused = true)]
async fn a_driver_that_comes_back_fences() {
    let mut bench = Bench::new(&[]).await;
    pod("db-0", "a").volume("pv1").create(&bench).await;
    bench.start();
    bench.pass(5).await;
    bench.driver.down(true);
    bench.fail("a").await;
    bench.pass(100).await;
    assert!(bench.pod_exists("db-0"));
    bench.driver.down(false);
    bench.evacuated("a", &["db-0"]).await;
}

/// A driver that does not know the volume under the id it was published to has not said OK.
#[tokio::test(start_paused = true)]
async fn not_found_for_the_nodes_own_id_is_no_fence() {
    let mut bench = Bench::new(&[]).await;
    pod("db-0", "a").volume("pv1").create(&bench).await;
    bench.driver.direct(|script| {
        script
            .unpublish
            .insert("h-pv1".into(), Status::not_found("no such node"));
    });
    bench.fail("a").await;
    bench.start();
    bench.pass(120).await;
    assert!(bench.pod_exists("db-0"));
    bench.driver.direct(|script| script.unpublish.clear());
    bench.evacuated("a", &["db-0"]).await;
}

/// Whether it can fence is asked until it says so.
#[tokio::test(start_paused = true)]
async fn a_driver_that_starts_late_is_waited_for() {
    let mut bench = Bench::new(&[]).await;
    pod("db-0", "a").volume("pv1").create(&bench).await;
    bench.driver.down(true);
    bench.fail("a").await;
    bench.start();
    bench.harmless(120).await;
    bench.driver.down(false);
    bench.evacuated("a", &["db-0"]).await;
}
