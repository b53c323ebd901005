//! A plain failover: what is done, in which order, under which names.

use serde_json::json;
use testbed::embedded::api::Kind;

use super::bench::Bench;
use super::objects::{pod, volume};
use super::recorder::{Sent, What};

#[tokio::test(start_paused = true)]
async fn fences_then_pod_then_attachment_then_close() {
    let mut bench = Bench::new(&[]).await;
    bench.taint("a", "example.com/kept", "NoExecute", "x").await;
    let uid = pod("db-0", "a")
        .volume("pv1")
        .volume("pv2")
        .create(&bench)
        .await;
    pod("web-0", "b").volume("pv3").create(&bench).await;
    let attachments = ["pv1", "pv2"].map(|pv| {
        let object = bench
            .object(Kind::VolumeAttachment, "", &format!("csi-{pv}-a"))
            .unwrap();
        object["metadata"]["uid"].as_str().unwrap().to_owned()
    });
    bench.start();
    bench.harmless(60).await;
    bench.fail("a").await;
    bench.evacuated("a", &["db-0"]).await;

    let mut deeds = bench.steps();
    deeds[1..3].sort();
    deeds[4..6].sort();
    assert_eq!(
        deeds,
        [
            "list a",
            "fence h-pv1 id-a",
            "fence h-pv2 id-a",
            "delete pod db-0",
            "delete attachment csi-pv1-a",
            "delete attachment csi-pv2-a",
            "close a",
        ],
        "{}",
        bench.story()
    );
    assert!(bench.pod_exists("web-0") && bench.attachments("b") == 1);

    let requests: Vec<_> = bench
        .recorder
        .entries()
        .into_iter()
        .filter_map(|entry| match entry.what {
            What::Request(sent) if sent.mutates() => Some(sent),
            _ => None,
        })
        .collect();
    let one = |wanted: &dyn Fn(&Sent) -> bool| {
        let mut found = requests.iter().filter(|sent| wanted(sent));
        found.next_back().expect("such a request")
    };
    let announced = &requests[0];
    assert_eq!(announced.query, "&fieldManager=podmon");
    let taints = &announced.body["spec"]["taints"];
    assert_eq!(taints[0]["key"], "vxflexos.podmon.storage.dell.com");
    assert_eq!(taints[0]["effect"], "NoSchedule");
    assert!(taints[0].get("value").is_none());
    let added: jiff::Timestamp = taints[0]["timeAdded"].as_str().unwrap().parse().unwrap();
    assert!(bench.server.now().duration_since(added).as_secs() < 300);
    assert!(
        taints
            .as_array()
            .unwrap()
            .iter()
            .any(|t| t["key"] == "example.com/kept")
    );
    let key = "vxflexos.podmon.storage.dell.com/evacuation";
    let text = announced.body["metadata"]["annotations"][key]
        .as_str()
        .unwrap();
    let mut journal: serde_json::Value = serde_json::from_str(text).unwrap();
    let node = bench.object(Kind::Node, "", "a").unwrap();
    let id = journal["id"].take();
    assert!(id.as_str().is_some_and(|id| id.len() == 8));
    journal["since"]
        .take()
        .as_str()
        .unwrap()
        .parse::<jiff::Timestamp>()
        .unwrap();
    assert_eq!(
        journal,
        json!({"v": 1, "id": null, "by": "ctl-0/1", "phase": "open", "why": "NodeFailure",
            "node": node["metadata"]["uid"], "boot": "", "since": null,
            "pods": {&uid: {"n": "default/db-0", "v": ["pv1", "pv2"]}},
            "vols": {"pv1": {"h": "h-pv1", "i": ["id-a"], "va": attachments[0]},
                "pv2": {"h": "h-pv2", "i": ["id-a"], "va": attachments[1]}},
            "gone": []})
    );
    assert_eq!(
        one(&|sent| sent.path.ends_with("/status")).body["status"],
        json!({"volumesInUse": []})
    );
    let deleted = one(&|sent| sent.path.ends_with("/pods/db-0"));
    assert_eq!(deleted.body["preconditions"], json!({"uid": uid}));
    assert_eq!(deleted.body["gracePeriodSeconds"], 0);
    for (volume, uid) in ["pv1", "pv2"].iter().zip(&attachments) {
        let deleted = one(&|sent| sent.path.ends_with(&format!("/csi-{volume}-a")));
        assert_eq!(deleted.body["preconditions"], json!({"uid": uid}));
    }
    let closed = bench.journal("a");
    assert_eq!(closed["gone"], json!([uid]));
    assert_eq!(
        bench.events("db-0"),
        [(
            "NodeFailure".into(),
            format!("podmon cleaning pod [{uid} a] with force delete")
        )]
    );
    let event = &bench.server.read_all(Kind::Event)[0];
    assert_eq!(
        (&event["type"], &event["metadata"]["namespace"]),
        (&json!("Warning"), &json!("default"))
    );
    assert_eq!(
        (
            &event["involvedObject"]["kind"],
            &event["involvedObject"]["uid"]
        ),
        (&json!("Pod"), &json!(uid))
    );
}

#[tokio::test(start_paused = true)]
async fn every_profile_has_its_names() {
    for (driver, path, label, taint, journal) in [
        (
            "csi-vxflexos.dellemc.com",
            None,
            "csi-vxflexos",
            "vxflexos.podmon.storage.dell.com",
            "vxflexos.podmon.storage.dell.com/evacuation",
        ),
        (
            "csi-unity.dellemc.com",
            Some("csi-unity.dellemc.com"),
            "csi-unity",
            "unity.podmon.storage.dell.com",
            "unity.podmon.storage.dell.com/evacuation",
        ),
        (
            "csi-isilon.dellemc.com",
            Some("csi-isilon.dellemc.com"),
            "csi-isilon",
            "isilon.podmon.storage.dell.com",
            "isilon.podmon.storage.dell.com/evacuation",
        ),
        (
            "csi-powerstore.dellemc.com",
            Some("csi-powerstore.dellemc.com"),
            "csi-powerstore",
            "powerstore.podmon.storage.dell.com",
            "powerstore.podmon.storage.dell.com/evacuation",
        ),
        (
            "csi-powermax.dellemc.com",
            Some("csi-powermax.dellemc.com"),
            "csi-powermax",
            "powermax.podmon.storage.dell.com",
            "powermax.podmon.storage.dell.com/evacuation",
        ),
        (
            "RBD.csi.ceph.com",
            Some("RBD.csi.ceph.com"),
            "rbd",
            "rbd.csi.ceph.com/podmon",
            "rbd.csi.ceph.com/podmon-evacuation",
        ),
    ] {
        let flag = format!("--labelvalue={label}");
        let mut bench = Bench::of(driver, path, &[&flag]).await;
        bench.node("a").await;
        let protect = |object: &mut serde_json::Value| {
            object["metadata"]["labels"]["podmon.dellemc.com/driver"] = json!(label);
        };
        pod("db-0", "a")
            .volume("pv1")
            .with(protect)
            .create(&bench)
            .await;
        bench.start();
        bench.pass(5).await;
        bench.fail("a").await;
        bench.evacuated("a", &["db-0"]).await;
        assert!(bench.has_taint("a", taint), "{driver}");
        assert!(bench.annotation("a", journal).is_some(), "{driver}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_the_contracts() {
    let mut bench = Bench::new(&[]).await;
    bench.hostname = "host.example_".into();
    bench.start();
    bench.pass(60).await;
    let lease = bench.object(Kind::Lease, "driver", "podmon-1").unwrap();
    assert_eq!(lease["spec"]["holderIdentity"], "host-example-X");
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 15);
    let verbs: std::collections::BTreeSet<String> = bench
        .recorder
        .entries()
        .into_iter()
        .filter_map(|entry| match entry.what {
            What::Request(sent) if sent.path.contains("/leases") => Some(sent.verb),
            _ => None,
        })
        .collect();
    assert_eq!(verbs, ["GET", "POST", "PUT"].map(str::to_owned).into());
}

#[tokio::test(start_paused = true)]
async fn without_election_there_is_no_lease() {
    let mut bench = Bench::new(&["--leaderelection=false"]).await;
    pod("db-0", "a").volume("pv1").create(&bench).await;
    bench.start();
    bench.pass(5).await;
    bench.fail("a").await;
    bench.evacuated("a", &["db-0"]).await;
    assert!(bench.server.read_all(Kind::Lease).is_empty());
}

/// L1: the taint comes after the pod's last event.
#[tokio::test(start_paused = true)]
async fn l1_a_taint_that_comes_late_is_enough() {
    let mut bench = Bench::new(&[]).await;
    pod("db-0", "a")
        .volume("pv1")
        .not_ready()
        .create(&bench)
        .await;
    bench.start();
    bench.pass(30).await;
    bench.node_condition("a", "Unknown").await;
    bench.pass(30).await;
    bench.harmless(1).await;
    bench
        .taint("a", super::objects::UNREACHABLE, "NoSchedule", "")
        .await;
    bench.evacuated("a", &["db-0"]).await;
}

/// A volume without an attachment is fenced by the node's id all the same.
#[tokio::test(start_paused = true)]
async fn a_volume_without_attachment_is_fenced() {
    let mut bench = Bench::new(&[]).await;
    let mut bare = volume("pv1");
    bare.attachment = false;
    pod("db-0", "a").uses(bare).create(&bench).await;
    bench.start();
    bench.pass(5).await;
    bench.fail("a").await;
    bench.evacuated("a", &["db-0"]).await;
    assert!(bench.deeds().contains(&"fence h-pv1 id-a".to_owned()));
}

/// Every id that differs is fenced: the attachment's, CSINode's and the annotation's.
#[tokio::test(start_paused = true)]
async fn every_node_id_that_differs_is_fenced() {
    let mut bench = Bench::new(&[]).await;
    pod("db-0", "a").volume("pv1").create(&bench).await;
    let path = "/apis/storage.k8s.io/v1/volumeattachments/csi-pv1-a";
    let ids = json!({"csi.alpha.kubernetes.io/node-id": "published"});
    bench
        .patch(path, json!({"metadata": {"annotations": ids}}))
        .await;
    let ids = json!({&bench.driver_name: "annotated"}).to_string();
    let ids = json!({"csi.volume.kubernetes.io/nodeid": ids});
    bench
        .patch("/api/v1/nodes/a", json!({"metadata": {"annotations": ids}}))
        .await;
    bench.start();
    bench.pass(5).await;
    bench.fail("a").await;
    bench.evacuated("a", &["db-0"]).await;
    let mut fences: Vec<_> = bench
        .deeds()
        .into_iter()
        .filter(|deed| deed.starts_with("fence"))
        .collect();
    fences.sort();
    assert_eq!(
        fences,
        [
            "fence h-pv1 annotated",
            "fence h-pv1 id-a",
            "fence h-pv1 published"
        ]
    );
}

/// Pods that share a volume, or must be on one host, go together.
#[tokio::test(start_paused = true)]
async fn a_group_is_announced_in_one_patch() {
    let mut bench = Bench::new(&[]).await;
    let mut shared = volume("pv1");
    shared.mode = "ReadWriteMany";
    pod("db-0", "a").uses(shared.clone()).create(&bench).await;
    pod("db-1", "a").uses(shared).create(&bench).await;
    bench.start();
    bench.pass(5).await;
    bench.fail("a").await;
    bench.evacuated("a", &["db-0", "db-1"]).await;
    let deeds = bench.deeds();
    assert_eq!(
        deeds.iter().filter(|deed| *deed == "list a").count(),
        1,
        "{deeds:?}"
    );
    assert_eq!(
        deeds
            .iter()
            .filter(|deed| deed.starts_with("fence"))
            .count(),
        1,
        "{deeds:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn volumeless_pods_are_evacuated_unless_ignored() {
    for (flags, evacuated) in [
        (&[][..], true),
        (&["--ignoreVolumelessPods=true"][..], false),
    ] {
        let mut bench = Bench::new(flags).await;
        pod("db-0", "a").create(&bench).await;
        bench.start();
        bench.pass(5).await;
        bench.fail("a").await;
        if evacuated {
            bench.evacuated("a", &["db-0"]).await;
            assert_eq!(bench.deeds(), ["list a", "delete pod db-0", "close a"]);
        } else {
            bench.harmless(120).await;
            assert!(bench.said("db-0").is_empty());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_after_the_close_opens_again_under_a_new_id() {
    let mut bench = Bench::new(&[]).await;
    let first = pod("db-0", "a").volume("pv1").create(&bench).await;
    bench.start();
    bench.pass(5).await;
    bench.fail("a").await;
    bench.evacuated("a", &["db-0"]).await;
    let id = bench.journal("a")["id"].clone();
    let second = pod("web-0", "a")
        .volume("pv2")
        .not_ready()
        .create(&bench)
        .await;
    bench
        .until("it is evacuated too", |bench| !bench.pod_exists("web-0"))
        .await;
    bench.evacuated("a", &["web-0"]).await;
    let journal = bench.journal("a");
    assert_ne!(journal["id"], id);
    let mut gone = vec![first, second];
    gone.sort();
    assert_eq!(journal["gone"], json!(gone));
}
