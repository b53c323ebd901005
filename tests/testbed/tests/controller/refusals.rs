//! What is not evacuated, and what is said about it: nothing but events leaves podmon.

use http::Method;
use serde_json::{Value, json};
use tonic::Status;

use super::bench::Bench;
use super::objects::{PodSpec, UNREACHABLE, pod, volume};
use super::recorder::{Fault, to};

/// A bench whose node `a` has failed with this pod on it.
async fn failed(flags: &[&str], pod: PodSpec) -> Bench {
    let mut bench = Bench::new(flags).await;
    pod.create(&bench).await;
    bench.fail("a").await;
    bench.start();
    bench
}

/// A bench on which nothing happened and nothing was said of the pod.
async fn silent(bench: &Bench, pod: &str) {
    bench.harmless(180).await;
    assert_eq!(bench.said(pod), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_ready_pod_on_a_failed_node_stays() {
    let mut bench = Bench::new(&[]).await;
    pod("db-0", "a").volume("pv1").create(&bench).await;
    bench.fail("a").await;
    bench
        .pod_status("default", "db-0", "Running", true, None)
        .await;
    bench.start();
    silent(&bench, "db-0").await;
}

/// S22: neither our own taint nor a pod that is not ready is evidence.
#[tokio::test(start_paused = true)]
async fn s22_own_taints_on_a_ready_node_are_no_evidence() {
    let mut bench = Bench::new(&[]).await;
    pod("db-0", "a")
        .volume("pv1")
        .not_ready()
        .create(&bench)
        .await;
    bench
        .taint("a", &bench.names.taint.clone(), "NoSchedule", "")
        .await;
    bench.start();
    silent(&bench, "db-0").await;
}

/// S9: the driver's pod is down; that is no evidence against the node.
#[tokio::test(start_paused = true)]
async fn s9_an_offline_driver_is_no_evidence() {
    let mut bench = Bench::new(&[]).await;
    pod("db-0", "a")
        .volume("pv1")
        .not_ready()
        .create(&bench)
        .await;
    let label = json!({"driver.dellemc.com": "dell-storage"});
    let driver = pod("node-x", "a").in_namespace("driver").not_ready();
    let driver = driver.with(|object| object["metadata"]["labels"] = label);
    driver.create(&bench).await;
    bench.start();
    bench
        .until("it is offline", |bench| {
            bench.has_taint("a", "offline.vxflexos.storage.dell.com")
        })
        .await;
    bench.pass(180).await;
    assert_eq!(bench.deeds(), ["taint a"]);
    assert_eq!(bench.said("db-0"), [""; 0]);
}

/// Not Ready alone, or unreachable alone, is a node in between.
#[tokio::test(start_paused = true)]
async fn one_sign_of_two_is_not_enough() {
    for ready in ["Unknown", "False"] {
        let mut bench = Bench::new(&[]).await;
        pod("db-0", "a")
            .volume("pv1")
            .not_ready()
            .create(&bench)
            .await;
        bench.node_condition("a", ready).await;
        bench
            .taint("a", "node.kubernetes.io/not-ready", "NoExecute", "")
            .await;
        bench.start();
        silent(&bench, "db-0").await;
    }
    let mut bench = Bench::new(&[]).await;
    pod("db-0", "a")
        .volume("pv1")
        .not_ready()
        .create(&bench)
        .await;
    bench.taint("a", UNREACHABLE, "NoExecute", "").await;
    bench.start();
    silent(&bench, "db-0").await;
}

#[tokio::test(start_paused = true)]
async fn s23_finished_pods_are_left_alone() {
    for phase in ["Succeeded", "Failed"] {
        let bench = failed(
            &[],
            pod("job-0", "a").volume("pv1").phase(phase).not_ready(),
        )
        .await;
        silent(&bench, "job-0").await;
    }
}

#[tokio::test(start_paused = true)]
async fn unprotected_pods_are_left_alone() {
    let bench = failed(&[], pod("db-0", "a").volume("pv1").unprotected()).await;
    silent(&bench, "db-0").await;
    let other = |object: &mut Value| {
        object["metadata"]["labels"]["podmon.dellemc.com/driver"] = json!("csi-unity")
    };
    let bench = failed(&[], pod("db-0", "a").volume("pv1").with(other)).await;
    silent(&bench, "db-0").await;
}

#[tokio::test(start_paused = true)]
async fn s17_pods_in_the_drivers_namespace_are_its_own() {
    let bench = failed(&[], pod("db-0", "a").volume("pv1").in_namespace("driver")).await;
    silent(&bench, "db-0").await;
    assert!(!bench.has_taint("a", "offline.vxflexos.storage.dell.com"));
}

#[tokio::test(start_paused = true)]
async fn an_opted_out_pod_is_left_alone() {
    let key = "vxflexos.podmon.storage.dell.com/opt-out";
    let bench = failed(&[], pod("db-0", "a").volume("pv1").annotated(key, "true")).await;
    silent(&bench, "db-0").await;
}

#[tokio::test(start_paused = true)]
async fn s11_a_volume_of_another_driver_is_refused() {
    let mut foreign = volume("pv2");
    foreign.driver = Some("csi-unity.dellemc.com".into());
    let bench = failed(&[], pod("db-0", "a").volume("pv1").uses(foreign)).await;
    let text = "because of pod default/db-0: volume pv2 belongs to driver csi-unity.dellemc.com, which this podmon cannot fence; protect only pods whose attachable volumes are of one driver";
    bench.refused("db-0", "NodeFailure", text).await;
}

#[tokio::test(start_paused = true)]
async fn s11_an_in_tree_volume_is_refused() {
    let in_tree = |object: &mut Value| {
        object["spec"]["volumes"] =
            json!([{"name": "old", "rbd": {"image": "i", "monitors": ["m"]}}]);
    };
    let bench = failed(&[], pod("db-0", "a").with(in_tree)).await;
    let text = "because of pod default/db-0: volume default/db-0 is attached by Kubernetes itself (rbd), which this podmon cannot fence; protect only pods whose attachable volumes are of one driver";
    bench.refused("db-0", "NodeFailure", text).await;
}

#[tokio::test(start_paused = true)]
async fn s12_an_unprotected_sharer_is_refused() {
    let mut bench = Bench::new(&[]).await;
    pod("db-0", "a").volume("pv1").create(&bench).await;
    pod("side-0", "a")
        .volume("pv1")
        .unprotected()
        .create(&bench)
        .await;
    bench.fail("a").await;
    bench.start();
    let text = "because pod default/side-0, which is not protected, uses volume pv1 on the node too; give it the label as well";
    bench.refused("db-0", "NodeFailure", text).await;
}

#[tokio::test(start_paused = true)]
async fn a_daemonsets_pod_is_refused() {
    let bench = failed(
        &[],
        pod("agent-x", "a")
            .volume("pv1")
            .owner("DaemonSet", "agent"),
    )
    .await;
    let text = "because pod default/agent-x belongs to a DaemonSet and would come back to the same node; remove its label";
    bench.refused("agent-x", "NodeFailure", text).await;
}

#[tokio::test(start_paused = true)]
async fn a_mirror_pod_is_refused() {
    let bench = failed(
        &[],
        pod("static-a", "a").annotated("kubernetes.io/config.mirror", "x"),
    )
    .await;
    let text = "because pod default/static-a is a static pod of the kubelet and would come back to the same node; remove its label";
    bench.refused("static-a", "NodeFailure", text).await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_gone_is_refused() {
    let mut bench = Bench::new(&[]).await;
    let claim = |object: &mut Value| {
        object["spec"]["volumes"] =
            json!([{"name": "data", "persistentVolumeClaim": {"claimName": "pvc9"}}]);
    };
    pod("db-0", "a").with(claim).create(&bench).await;
    bench.fail("a").await;
    bench.start();
    let text = "because of pod default/db-0: persistentvolumeclaim default/pvc9 cannot be found";
    bench.refused("db-0", "NodeFailure", text).await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_gone_is_refused() {
    let mut bench = Bench::new(&[]).await;
    pod("db-0", "a").volume("pv1").create(&bench).await;
    let path = "/api/v1/persistentvolumes/pv1";
    bench
        .patch(path, json!({"metadata": {"finalizers": null}}))
        .await;
    bench.delete(path).await;
    bench.fail("a").await;
    bench.start();
    let text = "because of pod default/db-0: persistentvolume pv1 cannot be found";
    bench.refused("db-0", "NodeFailure", text).await;
}

/// S18: a claim that cannot be read is not a pod without volumes.
#[tokio::test(start_paused = true)]
async fn s18_an_api_error_is_not_an_answer() {
    let mut bench = Bench::new(&["--ignoreVolumelessPods=true"]).await;
    pod("db-0", "a").volume("pv1").create(&bench).await;
    bench.fail("a").await;
    bench.recorder.fault(
        usize::MAX,
        Fault::Refuse(500),
        to(Method::GET, "/persistentvolumeclaims/pv1"),
    );
    bench.start();
    silent(&bench, "db-0").await;
    bench.recorder.heal();
    bench.evacuated("a", &["db-0"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_cannot_be_read_is_refused() {
    let mut bench = Bench::new(&[]).await;
    let mut locked = volume("pv1");
    locked.secret = true;
    pod("db-0", "a").uses(locked).create(&bench).await;
    bench.fail("a").await;
    bench.recorder.fault(
        usize::MAX,
        Fault::Refuse(403),
        to(Method::GET, "/secrets/login"),
    );
    bench.start();
    let text = "because of pod default/db-0: the secret storage/login that volume pv1 needs for its fence cannot be read; grant podmon get on it";
    bench.refused("db-0", "NodeFailure", text).await;
    bench.recorder.heal();
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "login", "namespace": "storage"}, "data": {"user": "YQ=="}});
    bench.recorder.fault(
        usize::MAX,
        Fault::Answer(secret),
        to(Method::GET, "/secrets/login"),
    );
    bench.evacuated("a", &["db-0"]).await;
}

#[tokio::test(start_paused = true)]
async fn without_any_node_id_it_is_refused() {
    let mut bench = Bench::new(&[]).await;
    let mut bare = volume("pv1");
    bare.attachment = false;
    pod("db-0", "a").uses(bare).create(&bench).await;
    bench.delete("/apis/storage.k8s.io/v1/csinodes/a").await;
    let none = json!({"metadata": {"annotations": {"csi.volume.kubernetes.io/nodeid": null}}});
    bench.patch("/api/v1/nodes/a", none).await;
    bench.fail("a").await;
    bench.start();
    bench
        .refused("db-0", "NodeFailure", "due to missing CSI annotations")
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_fence_that_fails_releases_nothing() {
    let mut bench = Bench::new(&[]).await;
    let uid = pod("db-0", "a").volume("pv1").create(&bench).await;
    bench.driver.direct(|script| {
        script
            .unpublish
            .insert("h-pv1".into(), Status::internal("busy"));
    });
    bench.fail("a").await;
    bench.start();
    bench.pass(180).await;
    assert!(bench.pod_exists("db-0") && bench.attachments("a") == 1);
    assert!(!bench.deeds().iter().any(|deed| deed.starts_with("delete")));
    let text = format!("podmon aborted pod cleanup [{uid} a] couldn't fence volumes");
    assert_eq!(bench.events("db-0"), [("NodeFailure".into(), text)]);
    let fences = bench
        .deeds()
        .iter()
        .filter(|deed| deed.starts_with("fence"))
        .count();
    assert!(
        (4..40).contains(&fences),
        "it is tried again with backoff: {fences} times"
    );
    bench.driver.direct(|script| script.unpublish.clear());
    bench.evacuated("a", &["db-0"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_paused_node_waits_until_it_is_not() {
    let mut bench = Bench::new(&[]).await;
    pod("db-0", "a").volume("pv1").create(&bench).await;
    let key = "vxflexos.podmon.storage.dell.com/pause";
    bench
        .patch(
            "/api/v1/nodes/a",
            json!({"metadata": {"annotations": {key: "true"}}}),
        )
        .await;
    bench.fail("a").await;
    bench.start();
    bench
        .refused("db-0", "NodeFailure", "because podmon is paused")
        .await;
    bench
        .patch(
            "/api/v1/nodes/a",
            json!({"metadata": {"annotations": {key: null}}}),
        )
        .await;
    bench.evacuated("a", &["db-0"]).await;
}

#[tokio::test(start_paused = true)]
async fn pause_and_detect_only_do_nothing() {
    for (flag, text) in [
        ("--pause=true", "because podmon is paused"),
        ("--detectOnly=true", "because podmon only detects"),
    ] {
        let bench = failed(&[flag], pod("db-0", "a").volume("pv1")).await;
        bench.refused("db-0", "NodeFailure", text).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_cannot_fence_protects_nothing() {
    let mut bench = Bench::new(&[]).await;
    pod("db-0", "a").volume("pv1").create(&bench).await;
    bench.driver.direct(|script| script.fences = false);
    bench.fail("a").await;
    bench.start();
    let text = "because the driver cannot revoke a node's access to a volume";
    bench.refused("db-0", "NodeFailure", text).await;
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_is_not_attached_protects_nothing() {
    let mut bench = Bench::new(&[]).await;
    pod("db-0", "a").volume("pv1").create(&bench).await;
    csi_driver(&bench, false).await;
    bench.fail("a").await;
    bench.start();
    let text = "because the driver cannot revoke a node's access to a volume";
    bench.refused("db-0", "NodeFailure", text).await;
}

/// Existing charts may not read CSIDriver: then the capability alone decides.
#[tokio::test(start_paused = true)]
async fn a_csidriver_that_may_not_be_read_counts_as_attached() {
    let mut bench = Bench::new(&[]).await;
    pod("db-0", "a").volume("pv1").create(&bench).await;
    csi_driver(&bench, false).await;
    let path = format!("/csidrivers/{}", bench.driver_name);
    bench
        .recorder
        .fault(usize::MAX, Fault::Refuse(403), to(Method::GET, &path));
    bench.fail("a").await;
    bench.start();
    bench.evacuated("a", &["db-0"]).await;
}

async fn csi_driver(bench: &Bench, attach: bool) {
    let object = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
        "metadata": {"name": bench.driver_name}, "spec": {"attachRequired": attach}});
    bench
        .send(Method::POST, "/apis/storage.k8s.io/v1/csidrivers", object)
        .await;
}

/// One member that must stay holds its whole group.
#[tokio::test(start_paused = true)]
async fn a_ready_member_holds_its_group() {
    let mut bench = Bench::new(&[]).await;
    let mut shared = volume("pv1");
    shared.mode = "ReadWriteMany";
    pod("db-0", "a").uses(shared.clone()).create(&bench).await;
    pod("db-1", "a").uses(shared).create(&bench).await;
    bench.fail("a").await;
    bench
        .pod_status("default", "db-1", "Running", true, None)
        .await;
    bench.start();
    silent(&bench, "db-0").await;
    bench
        .pod_status("default", "db-1", "Running", false, None)
        .await;
    bench.evacuated("a", &["db-0", "db-1"]).await;
}

#[tokio::test(start_paused = true)]
async fn required_host_affinity_makes_a_group() {
    let mut bench = Bench::new(&[]).await;
    let affine = |object: &mut Value| {
        let term = json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "x"}}});
        object["spec"]["affinity"] =
            json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
    };
    pod("db-0", "a")
        .volume("pv1")
        .with(affine)
        .create(&bench)
        .await;
    pod("web-0", "a")
        .volume("pv2")
        .with(affine)
        .owner("DaemonSet", "web")
        .create(&bench)
        .await;
    pod("free-0", "a").volume("pv3").create(&bench).await;
    bench.fail("a").await;
    bench.start();
    bench.evacuated("a", &["free-0"]).await;
    assert!(bench.pod_exists("db-0") && bench.pod_exists("web-0"));
    assert!(bench.said("db-0")[0].ends_with(
        "belongs to a DaemonSet and would come back to the same node; remove its label"
    ));
}
