//! Others write too, and the API server has its troubles: conflicts, rights, lost answers, finalizers, other hands.

use std::time::Duration;

use http::Method;
use serde_json::json;
use testbed::embedded::api::Kind;
use testbed::scripted::Call;

use super::bench::Bench;
use super::objects::pod;
use super::recorder::{Fault, Sent, What, to};

async fn failing(flags: &[&str]) -> Bench {
    let mut bench = Bench::new(flags).await;
    pod("db-0", "a").volume("pv1").create(&bench).await;
    bench.start();
    bench.pass(5).await;
    bench
}

/// S14: another taint between our read and our patch: 409, read again, nothing lost.
#[tokio::test(start_paused = true)]
async fn s14_a_conflict_is_decided_anew() {
    let bench = failing(&[]).await;
    bench.fail("a").await;
    let mut taints = bench.taints("a");
    taints.push(json!({"key": "example.com/kept", "effect": "NoExecute"}));
    bench.overtake("a", json!({"spec": {"taints": taints}}));
    bench.evacuated("a", &["db-0"]).await;
    assert!(bench.has_taint("a", "example.com/kept"));
    assert_eq!(
        bench
            .deeds()
            .iter()
            .filter(|deed| *deed == "list a")
            .count(),
        2
    );
}

/// A node that heals between our look and our announcement keeps its pods.
#[tokio::test(start_paused = true)]
async fn a_node_that_heals_before_the_announcement_is_left_alone() {
    let bench = failing(&[]).await;
    bench.overtake("a", json!({"spec": {"taints": null}}));
    bench.fail("a").await;
    bench.pass(120).await;
    assert_eq!(bench.deeds(), ["list a"]);
    assert!(bench.pod_exists("db-0") && bench.journal("a").is_null() && !bench.tainted("a"));
}

/// Existing charts grant no `nodes/status`: asked once, and the evacuation goes on without.
#[tokio::test(start_paused = true)]
async fn no_right_to_the_status_is_noted_once() {
    for flags in [&[][..], &["--outOfServiceRelease=true"][..]] {
        let bench = failing(flags).await;
        bench.recorder.fault(
            usize::MAX,
            Fault::Refuse(403),
            to(Method::PATCH, "/nodes/a/status"),
        );
        let key = "node.kubernetes.io/out-of-service";
        bench.fail("a").await;
        bench.evacuated("a", &["db-0"]).await;
        let deeds = bench.deeds();
        assert_eq!(
            deeds.iter().filter(|deed| *deed == "in-use a").count(),
            1,
            "{deeds:?}"
        );
        assert!(!bench.has_taint("a", key), "removed whatever happens");
        let set = bench
            .recorder
            .entries()
            .into_iter()
            .any(|entry| match entry.what {
                What::Request(sent) => {
                    sent.body["spec"]["taints"]
                        .as_array()
                        .is_some_and(|taints| {
                            taints
                                .iter()
                                .any(|taint| taint["key"] == key && taint["value"] == "podmon")
                        })
                }
                _ => false,
            });
        assert_eq!(set, !flags.is_empty(), "{}", bench.story());
    }
}

/// Not while a foreign pod terminates there: the garbage collector would force-delete it.
#[tokio::test(start_paused = true)]
async fn no_out_of_service_beside_a_foreign_terminating_pod() {
    let bench = failing(&["--outOfServiceRelease=true"]).await;
    pod("other-0", "a").unprotected().create(&bench).await;
    bench
        .send(
            Method::DELETE,
            "/api/v1/namespaces/default/pods/other-0",
            json!({}),
        )
        .await;
    bench.recorder.fault(
        usize::MAX,
        Fault::Refuse(403),
        to(Method::PATCH, "/nodes/a/status"),
    );
    bench.fail("a").await;
    bench.evacuated("a", &["db-0"]).await;
    let set = bench.recorder.entries().into_iter().any(|entry| {
        matches!(entry.what, What::Request(sent) if sent.body["spec"].to_string().contains("out-of-service"))
    });
    assert!(!set, "{}", bench.story());
}

/// Every request fails for a while: refused, lost after it was served, or slow. The end is the same.
#[tokio::test(start_paused = true)]
async fn api_troubles_only_delay() {
    fn not_a_lease(sent: &Sent) -> bool {
        !sent.path.contains("/leases") && !sent.query.contains("watch=")
    }
    fn writes(sent: &Sent) -> bool {
        sent.mutates()
    }
    for round in 0..5 {
        println!("round {round}");
        let bench = failing(&[]).await;
        match round {
            0 => bench.recorder.fault(8, Fault::Refuse(500), not_a_lease),
            1 => bench.recorder.fault(6, Fault::Lose, writes),
            2 => bench
                .recorder
                .fault(20, Fault::Slow(Duration::from_secs(3)), not_a_lease),
            3 => bench.recorder.fault(3, Fault::Hang, not_a_lease),
            _ => bench.recorder.fault(8, Fault::Refuse(429), not_a_lease),
        }
        bench.fail("a").await;
        bench.evacuated("a", &["db-0"]).await;
    }
}

/// No watch works for a while.
#[tokio::test(start_paused = true)]
async fn broken_watches_are_made_again() {
    let bench = failing(&[]).await;
    bench.server.compact();
    bench.pass(300).await;
    bench.recorder.fault(40, Fault::Refuse(500), |sent: &Sent| {
        sent.verb == "GET" && !sent.path.contains("/leases")
    });
    bench.pass(300).await;
    bench.fail("a").await;
    bench.evacuated("a", &["db-0"]).await;
}

/// A finalizer keeps the pod: it is waited for, and named; its attachment stays meanwhile.
#[tokio::test(start_paused = true)]
async fn a_finalizer_is_waited_for() {
    let mut bench = Bench::new(&[]).await;
    let kept = |object: &mut serde_json::Value| {
        object["metadata"]["finalizers"] = json!(["example.com/keep"])
    };
    let uid = pod("db-0", "a")
        .volume("pv1")
        .with(kept)
        .create(&bench)
        .await;
    bench.start();
    bench.pass(5).await;
    bench.fail("a").await;
    bench.pass(200).await;
    assert!(bench.pod_exists("db-0"));
    assert_eq!(bench.attachments("a"), 1);
    assert_eq!(bench.journal("a")["phase"], "open");
    let text = format!(
        "podmon aborted pod cleanup [{uid} a] because finalizers keep the pod: example.com/keep; whoever set them must remove them"
    );
    assert_eq!(bench.said("db-0").last(), Some(&text));
    bench
        .patch(
            "/api/v1/namespaces/default/pods/db-0",
            json!({"metadata": {"finalizers": null}}),
        )
        .await;
    bench.evacuated("a", &["db-0"]).await;
}

/// The pod goes by other hands, at the announcement or while it is fenced.
#[tokio::test(start_paused = true)]
async fn a_pod_gone_by_other_hands_is_taken_to_the_end() {
    for slow in [1, 5] {
        let bench = failing(&[]).await;
        bench
            .driver
            .direct(|script| script.slow = Duration::from_secs(slow));
        bench.fail("a").await;
        bench
            .until("it is announced", |bench| bench.tainted("a"))
            .await;
        bench.delete("/api/v1/namespaces/default/pods/db-0").await;
        bench.evacuated("a", &["db-0"]).await;
    }
}

/// The pod goes, and another comes under its name on another node: that one is left alone.
#[tokio::test(start_paused = true)]
async fn s6_the_successor_elsewhere_is_never_touched() {
    let bench = failing(&[]).await;
    bench
        .driver
        .direct(|script| script.slow = Duration::from_secs(5));
    bench.fail("a").await;
    bench
        .until("it is announced", |bench| bench.tainted("a"))
        .await;
    bench.delete("/api/v1/namespaces/default/pods/db-0").await;
    let next = pod("db-0", "b").volume("pv1").create(&bench).await;
    bench
        .until("the journal closes", |bench| bench.closed("a"))
        .await;
    bench.rests().await;
    assert_eq!(
        bench.object(Kind::Pod, "default", "db-0").unwrap()["metadata"]["uid"],
        next.as_str()
    );
    assert_eq!(bench.attachments("b"), 1);
    assert!(
        bench
            .driver
            .calls()
            .iter()
            .all(|call| !matches!(call, Call::Unpublish { node, .. } if node == "id-b"))
    );
}

/// The attach-detach controller makes the attachment again: it is deleted by its own UID, and the volume fenced once more.
#[tokio::test(start_paused = true)]
async fn s21_an_attachment_made_again_is_deleted_too() {
    let bench = failing(&[]).await;
    let before = bench
        .object(Kind::VolumeAttachment, "", "csi-pv1-a")
        .unwrap()["metadata"]["uid"]
        .clone();
    bench
        .driver
        .direct(|script| script.slow = Duration::from_secs(3));
    bench.fail("a").await;
    bench
        .until("it is announced", |bench| bench.tainted("a"))
        .await;
    let path = "/apis/storage.k8s.io/v1/volumeattachments/csi-pv1-a";
    bench
        .patch(path, json!({"metadata": {"finalizers": null}}))
        .await;
    bench.delete(path).await;
    let again = bench.attach("pv1", "a", true).await;
    assert_ne!(before, again.as_str());
    bench.evacuated("a", &["db-0"]).await;
    let deeds = bench.deeds();
    let deleted = deeds
        .iter()
        .position(|deed| deed == "delete attachment csi-pv1-a")
        .unwrap();
    assert!(
        deeds[deleted..].contains(&"fence h-pv1 id-a".to_owned()),
        "{deeds:?}"
    );
}

/// A driver whose attacher publishes again what it finds missing is fenced again after the attachment is marked.
#[tokio::test(start_paused = true)]
async fn a_republishing_attacher_is_fenced_behind() {
    let mut bench = Bench::new(&[]).await;
    bench.driver.direct(|script| script.republishes = true);
    pod("db-0", "a").volume("pv1").create(&bench).await;
    bench.start();
    bench.pass(5).await;
    bench.fail("a").await;
    bench.evacuated("a", &["db-0"]).await;
    assert_eq!(
        bench.steps(),
        [
            "list a",
            "fence h-pv1 id-a",
            "delete pod db-0",
            "delete attachment csi-pv1-a",
            "fence h-pv1 id-a",
            "close a"
        ]
    );
}

/// The Node object goes in the middle: the rest is done from memory.
#[tokio::test(start_paused = true)]
async fn a_node_object_that_goes_is_finished_without() {
    let bench = failing(&[]).await;
    bench
        .driver
        .direct(|script| script.slow = Duration::from_secs(5));
    bench.fail("a").await;
    bench
        .until("it is fenced", |bench| !bench.driver.calls().is_empty())
        .await;
    bench.delete("/api/v1/nodes/a").await;
    bench
        .until("the pod goes", |bench| !bench.pod_exists("db-0"))
        .await;
    bench
        .until("nothing is attached", |bench| bench.attachments("a") == 0)
        .await;
    bench.rests().await;
}

/// The Node object goes and comes back with another UID while podmon is at it.
#[tokio::test(start_paused = true)]
async fn a_node_registered_anew_is_finished_too() {
    let bench = failing(&[]).await;
    bench
        .driver
        .direct(|script| script.slow = Duration::from_secs(5));
    bench.fail("a").await;
    bench
        .until("it is fenced", |bench| !bench.driver.calls().is_empty())
        .await;
    bench.delete("/api/v1/nodes/a").await;
    bench.node("a").await;
    bench
        .until("the pod goes", |bench| !bench.pod_exists("db-0"))
        .await;
    bench
        .until("nothing is attached", |bench| bench.attachments("a") == 0)
        .await;
    bench
        .until("no journal is open", |bench| {
            bench.journal("a")["phase"] != "open"
        })
        .await;
    bench.rests().await;
}

/// A protected pod that tolerates the taint turns up with a fenced volume: fenced, listed and deleted as well.
#[tokio::test(start_paused = true)]
async fn a_pod_that_tolerates_the_taint_is_sent_away() {
    let bench = failing(&[]).await;
    bench
        .driver
        .direct(|script| script.slow = Duration::from_secs(5));
    bench.fail("a").await;
    bench
        .until("it is fenced", |bench| !bench.driver.calls().is_empty())
        .await;
    bench.heal("a").await;
    pod("db-9", "a")
        .volume("pv1")
        .not_ready()
        .phase("Pending")
        .create(&bench)
        .await;
    bench.evacuated("a", &["db-0", "db-9"]).await;
}
