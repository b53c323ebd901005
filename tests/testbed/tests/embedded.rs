//! The embedded cluster without podmon: what Kubernetes does by itself, which podmon has to live with.

use std::time::Duration;

use testbed::embedded::cluster::{Cluster, Shape};
use testbed::embedded::control::Timing;
use testbed::embedded::host::Power;
use testbed::storage::judge::judge;

const PROTECTED: (&str, &str) = ("podmon.dellemc.com/driver", "csi-array");

async fn started(shape: &Shape) -> Cluster {
    let mut cluster = Cluster::new(shape);
    cluster.add_statefulset("db", 2, 1, Some(PROTECTED));
    let up = cluster
        .run_until(Duration::from_secs(60), |c| {
            c.is_ready("db-0") && c.is_ready("db-1")
        })
        .await;
    assert!(up, "the pods do not start");
    cluster
}

#[tokio::test(start_paused = true)]
async fn pods_start_and_write() {
    let mut cluster = started(&Shape::default()).await;
    cluster.run(Duration::from_secs(10)).await;
    let report = judge(cluster.array().records());
    assert!(report.is_clean(), "{report}");
    assert!(report.accepted() > 20, "{report}");
    assert_ne!(cluster.place("db-0"), cluster.place("db-1"));
}

/// Without podmon a pod of a lost node stays where it is: five minutes until its deletion, and then for good, since the dead
/// kubelet never confirms it.
#[tokio::test(start_paused = true)]
async fn without_podmon_nothing_moves() {
    let mut cluster = started(&Shape::default()).await;
    let lost = cluster.place("db-0");
    cluster.host(&lost).power_off();
    cluster.run(Duration::from_secs(900)).await;
    let pod = cluster.pod("db-0").expect("the pod is still there");
    assert_eq!(cluster.place("db-0"), lost);
    assert!(
        pod.pointer("/metadata/deletionTimestamp").is_some(),
        "evicted after five minutes"
    );
}

/// The reason for the order "pod first, attachment second": an attachment that goes while its pod is still bound comes back.
#[tokio::test(start_paused = true)]
async fn a_deleted_attachment_of_a_bound_pod_comes_back() {
    use testbed::embedded::api::Kind;
    let mut cluster = started(&Shape::default()).await;
    let lost = cluster.place("db-0");
    cluster.host(&lost).state().network = false;
    cluster.run(Duration::from_secs(10)).await;
    let attachment = cluster
        .server
        .read_all(Kind::VolumeAttachment)
        .into_iter()
        .find(|attachment| attachment["spec"]["nodeName"] == lost.as_str())
        .expect("an attachment");
    let name = attachment["metadata"]["name"]
        .as_str()
        .expect("a name")
        .to_owned();
    cluster
        .operator
        .delete(Kind::VolumeAttachment, "", &name, None, None)
        .expect("deleted");
    cluster.run(Duration::from_secs(5)).await;
    assert!(
        cluster
            .server
            .read(Kind::VolumeAttachment, "", &name)
            .is_none(),
        "not noticed before the check"
    );
    let back = cluster
        .run_until(Duration::from_secs(70), |c| {
            c.server.read(Kind::VolumeAttachment, "", &name).is_some()
        })
        .await;
    assert!(back, "made again at the check");
}

/// A forced deletion without a fence, on a permissive array: the harm that podmon is there to prevent, seen by the ledger.
#[tokio::test(start_paused = true)]
async fn the_ledger_sees_two_writers() {
    use testbed::embedded::api::Kind;
    let mut cluster = started(&Shape::default()).await;
    let lost = cluster.place("db-0");
    cluster.host(&lost).state().network = false;
    cluster.run(Duration::from_secs(20)).await;
    let delete = |cluster: &Cluster| {
        cluster
            .operator
            .delete(Kind::Pod, "default", "db-0", Some(0), None)
    };
    delete(&cluster).expect("deleted");
    // After six minutes the attach-detach controller forces the detach; a permissive array then has fenced. So the attachment
    // is taken away by hand as well, and the revocation is only pretended.
    use testbed::storage::trouble::{Call, Rule, Trouble};
    cluster
        .array()
        .add_rule(Rule::all(Call::ControllerUnpublish, Trouble::no_op()));
    let moved = cluster
        .run_until(Duration::from_secs(600), |c| {
            c.is_ready("db-0") && c.place("db-0") != lost
        })
        .await;
    assert!(moved, "the pod runs elsewhere");
    cluster.run(Duration::from_secs(5)).await;
    assert!(!judge(cluster.array().records()).is_clean());
}

#[tokio::test(start_paused = true)]
async fn a_returning_kubelet_clears_away() {
    use testbed::embedded::api::Kind;
    let mut cluster = started(&Shape {
        timing: Timing::STOCK,
        ..Shape::default()
    })
    .await;
    let lost = cluster.place("db-0");
    cluster.host(&lost).state().power = Power::Frozen;
    cluster.run(Duration::from_secs(70)).await;
    cluster
        .operator
        .delete(Kind::Pod, "default", "db-0", Some(0), None)
        .expect("deleted");
    cluster.run(Duration::from_secs(5)).await;
    assert_eq!(
        cluster.host(&lost).state().pods.len(),
        1,
        "a frozen kubelet clears nothing"
    );
    cluster.host(&lost).power_on();
    let cleared = cluster
        .run_until(Duration::from_secs(60), |c| {
            let host = c.host(&lost).state();
            host.pods.values().all(|pod| pod.name != "db-0") && host.staged.is_empty()
        })
        .await;
    assert!(cleared, "directory and mounts are gone");
}
