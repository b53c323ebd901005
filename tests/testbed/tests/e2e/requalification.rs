//! Node mode on real nodes, without a controller: the scenario evacuates by hand, as podmon's controller would, and then
//! looks at what must be true before the node is free again. The mount table and the runtime are the judges.

use std::time::Instant;

use k8s_openapi::api::core::v1::{Node as NodeObject, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use rustix::process::Signal;
use serde_json::{Value, json};
use testbed::real::rig::{DRIVER_NODE, JOURNAL, PODMON, TAINT};
use testbed::real::workload::{Running, Workload};
use testbed::real::{Error, Node, wait_until};
use testbed::storage::NodeId;

use crate::bench::{Bench, NAMESPACE, PATIENCE, Result, api, expect};

/// A network cut: the pod runs on as a zombie, its successor runs elsewhere, the node comes back.
pub async fn free_a_node_that_the_kubelet_has_cleaned(bench: &mut Bench) -> Result {
    let (workload, zombie) = deploy(bench, "cleaned").await?;
    let node = bench.rig.cluster.node(&zombie.node);
    node.cut_network()?;
    node.wait_lost().await?;
    evacuate(bench, &workload, &zombie, "closed").await?;
    let successor = workload.wait_running(Some(&zombie)).await?;
    expect(successor.node != zombie.node, "the successor is elsewhere")?;
    expect(tainted(bench, node).await?, "the lost node is tainted")?;
    let mended = Instant::now();
    node.mend_network()?;
    free(bench, node, &zombie, &workload, mended).await?;
    workload.remove().await
}

pub async fn free_a_node_after_a_reboot(bench: &mut Bench) -> Result {
    let (workload, zombie) = deploy(bench, "rebooted").await?;
    let node = bench.rig.cluster.node(&zombie.node);
    node.power_off()?;
    node.wait_lost().await?;
    evacuate(bench, &workload, &zombie, "closed").await?;
    workload.wait_running(Some(&zombie)).await?;
    let booted = Instant::now();
    node.power_on().await?;
    free(bench, node, &zombie, &workload, booted).await?;
    workload.remove().await
}

/// The runtime is down when the node comes back: what runs is unknown, and that is not nothing.
pub async fn keep_a_node_whose_runtime_is_down(bench: &mut Bench) -> Result {
    let (workload, zombie) = deploy(bench, "runtime").await?;
    let node = bench.rig.cluster.node(&zombie.node);
    node.cut_network()?;
    node.wait_lost().await?;
    evacuate(bench, &workload, &zombie, "closed").await?;
    workload.wait_running(Some(&zombie)).await?;
    node.stop_containerd()?;
    node.mend_network()?;
    stays_tainted(bench, node, 15).await?;
    node.start_containerd().await?;
    free(bench, node, &zombie, &workload, Instant::now()).await?;
    workload.remove().await
}

/// podmon is killed and started again while the zombie runs; nothing of what it knew matters.
pub async fn keep_a_node_over_a_restart_of_podmon(bench: &mut Bench) -> Result {
    let (workload, zombie) = deploy(bench, "restarted").await?;
    let node = bench.rig.cluster.node(&zombie.node);
    node.cut_network()?;
    node.wait_lost().await?;
    evacuate(bench, &workload, &zombie, "closed").await?;
    workload.wait_running(Some(&zombie)).await?;
    node.kill(PODMON)?;
    // The zombie lives while the kubelet is stopped; podmon alone hears of the API again.
    node.stop_kubelet()?;
    node.mend_network()?;
    node.start_daemon(PODMON)?;
    stays_tainted(bench, node, 10).await?;
    node.start_kubelet()?;
    free(bench, node, &zombie, &workload, Instant::now()).await?;
    workload.remove().await
}

/// The controller has not finished: the node waits, however clean it is.
pub async fn keep_a_node_while_its_journal_is_open(bench: &mut Bench) -> Result {
    let (workload, zombie) = deploy(bench, "open").await?;
    let node = bench.rig.cluster.node(&zombie.node);
    node.cut_network()?;
    node.wait_lost().await?;
    evacuate(bench, &workload, &zombie, "open").await?;
    workload.wait_running(Some(&zombie)).await?;
    node.mend_network()?;
    node.wait_ready().await?;
    stays_tainted(bench, node, 15).await?;
    mark(bench, &workload, &zombie, "closed").await?;
    free(bench, node, &zombie, &workload, Instant::now()).await?;
    workload.remove().await
}

/// A pod directory with a mounted volume, a staged volume and a sub-path of a pod that no kubelet knows of: podmon clears
/// them away itself, by the driver and by plain unmounts.
pub async fn clear_away_what_no_kubelet_knows(bench: &mut Bench) -> Result {
    let node = bench.rig.cluster.node("node1");
    let uid = "00000000-dead-4bad-8000-000000000001";
    let kubelet = "/var/lib/kubelet";
    let volume = format!("{kubelet}/pods/{uid}/volumes/kubernetes.io~csi/lost-pv");
    let sub_path = format!("{kubelet}/pods/{uid}/volume-subpaths/lost-pv/main/0");
    let driver = testbed::storage::driver::NAME;
    let hash = podmon::node::layout::hash(&"lost-volume".into());
    let staging = format!("{kubelet}/plugins/kubernetes.io/csi/{driver}/{hash}");
    let note = json!({"driverName": driver, "volumeHandle": "lost-volume"});
    let script = format!(
        "set -e; mkdir -p {volume}/mount {staging}/globalmount {sub_path} /run/lost
         echo '{note}' > {volume}/vol_data.json; echo '{note}' > {staging}/vol_data.json
         mount --bind /run/lost {staging}/globalmount
         mount --bind /var/log {volume}/mount; mount --bind /var/log {sub_path}"
    );
    node.output("sh", &["-c", &script])?;
    let journal = json!({"v": 1, "id": "by-hand", "by": "scenario/1", "phase": "closed",
        "why": "NodeFailure", "node": node_uid(bench, node).await?, "pods": {},
        "vols": {"lost-pv": {"h": "lost-volume", "i": ["node1"], "va": ""}}, "gone": [uid]});
    let started = Instant::now();
    patch(bench, node, &journal).await?;
    untainted(bench, node).await?;
    println!(
        "    cleared away and freed after {:.1} s",
        started.elapsed().as_secs_f64()
    );
    let mounts = node.output("cat", &["/proc/self/mountinfo"])?;
    expect(!mounts.contains(uid), "nothing of the pod is mounted")?;
    expect(!mounts.contains(&hash), "nothing is staged")?;
    node.output("rm", &["-r", &format!("{kubelet}/pods/{uid}"), &staging])
        .map(drop)
}

/// A raw block volume that is left of such a pod: bind mounts of a device, and the loop device by which the kubelet holds
/// it.
pub async fn clear_away_a_raw_block_volume(bench: &mut Bench) -> Result {
    let node = bench.rig.cluster.node("node1");
    let uid = "00000000-dead-4bad-8000-000000000002";
    let kubelet = "/var/lib/kubelet";
    let block = format!("{kubelet}/plugins/kubernetes.io/csi/volumeDevices");
    let link = format!("{kubelet}/pods/{uid}/volumeDevices/kubernetes.io~csi");
    let driver = testbed::storage::driver::NAME;
    let note = json!({"driverName": driver, "volumeHandle": "lost-raw"});
    let script = format!(
        "set -e; truncate -s 16M /run/lost-raw; device=$(losetup --find --show /run/lost-raw)
         mkdir -p {link} {block}/lost-raw/dev {block}/lost-raw/data {block}/publish/lost-raw {block}/staging/lost-raw
         echo '{note}' > {block}/lost-raw/data/vol_data.json
         ln -s $device {link}/lost-raw
         for path in {block}/publish/lost-raw/{uid} {block}/lost-raw/dev/{uid}; do
           touch $path; mount --bind $device $path; done
         losetup --find --show {block}/lost-raw/dev/{uid}; echo $device"
    );
    let devices = node.output("sh", &["-c", &script])?;
    let mut devices = devices.lines().map(str::to_owned);
    let (held, device) = (devices.next(), devices.next());
    let (Some(held), Some(device)) = (held, device) else {
        return Err(Error::State("two loop devices".into()));
    };
    let journal = json!({"v": 1, "id": "by-hand-raw", "by": "scenario/1", "phase": "closed",
        "why": "NodeFailure", "node": node_uid(bench, node).await?, "pods": {},
        "vols": {"lost-raw": {"h": "lost-raw", "i": ["node1"], "va": ""}}, "gone": [uid]});
    let started = Instant::now();
    patch(bench, node, &journal).await?;
    let freed = untainted(bench, node).await;
    let left = node.output("losetup", &["--list", "--noheadings", "--output", "NAME"])?;
    let mounts = node.output("cat", &["/proc/self/mountinfo"])?;
    let clean = format!(
        "losetup --detach {device}; rm -rf {kubelet}/pods/{uid} {block}/lost-raw {block}/publish/lost-raw {block}/staging/lost-raw"
    );
    node.output("sh", &["-c", &clean])?;
    freed?;
    println!(
        "    cleared away and freed after {:.1} s",
        started.elapsed().as_secs_f64()
    );
    expect(
        !left.lines().any(|name| name.trim() == held),
        "the kubelet's loop device is free",
    )?;
    expect(
        left.lines().any(|name| name.trim() == device),
        "and only that one",
    )?;
    expect(!mounts.contains(uid), "nothing of the pod is mounted")
}

/// The driver on the node hangs, and with it every call and every file system of its volumes: the taint stays, podmon
/// lives, and when the driver goes on the node is free.
pub async fn keep_a_node_whose_driver_hangs(bench: &mut Bench) -> Result {
    let (workload, zombie) = deploy(bench, "hung").await?;
    let node = bench.rig.cluster.node(&zombie.node);
    node.cut_network()?;
    node.wait_lost().await?;
    evacuate(bench, &workload, &zombie, "closed").await?;
    workload.wait_running(Some(&zombie)).await?;
    node.signal(DRIVER_NODE, Signal::STOP)?;
    node.mend_network()?;
    node.wait_ready().await?;
    let kept = stays_tainted(bench, node, 45).await;
    node.signal(DRIVER_NODE, Signal::CONT)?;
    kept?;
    expect(node.is_running(PODMON), "podmon lives")?;
    free(bench, node, &zombie, &workload, Instant::now()).await?;
    workload.remove().await
}

async fn deploy(bench: &Bench, name: &str) -> Result<(Workload, Running)> {
    let workload = Workload::deploy(&bench.rig, NAMESPACE, name).await?;
    let running = workload.wait_running(None).await?;
    Ok((workload, running))
}

/// Fences, taints, deletes the pod and its attachments: what the controller leaves when it is done.
async fn evacuate(bench: &Bench, workload: &Workload, pod: &Running, phase: &str) -> Result {
    let node: NodeId = pod
        .node
        .parse()
        .map_err(|error| Error::State(format!("{}: {error}", pod.node)))?;
    for volume in [&workload.filesystem, &workload.block] {
        let revoked = bench.rig.array.revoke(volume, &node);
        revoked.map_err(testbed::real::rig::array_error)?;
    }
    mark(bench, workload, pod, phase).await?;
    let in_use = json!({"status": {"volumesInUse": null}});
    let nodes = Api::<NodeObject>::all(bench.rig.cluster.admin());
    let params = PatchParams::default();
    api(nodes
        .patch_status(&pod.node, &params, &Patch::Merge(in_use))
        .await)?;
    let at_once = DeleteParams::default().grace_period(0);
    let pods = Api::<Pod>::namespaced(bench.rig.cluster.admin(), NAMESPACE);
    api(pods.delete(&workload.pod_name(), &at_once).await)?;
    let attachments = Api::<VolumeAttachment>::all(bench.rig.cluster.admin());
    for attachment in workload.attachments().await? {
        if attachment.spec.node_name == pod.node {
            let name = attachment.metadata.name.unwrap_or_default();
            api(attachments.delete(&name, &DeleteParams::default()).await)?;
        }
    }
    Ok(())
}

/// Taint and journal on the pod's node.
async fn mark(bench: &Bench, workload: &Workload, pod: &Running, phase: &str) -> Result {
    let node = bench.rig.cluster.node(&pod.node);
    let volume = |id: &str| json!({"h": id, "i": [pod.node], "va": ""});
    let (filesystem, block) = (workload.filesystem.as_str(), workload.block.as_str());
    let journal = json!({"v": 1, "id": format!("by-hand-{phase}"), "by": "scenario/1", "phase": phase,
        "why": "NodeFailure", "node": node_uid(bench, node).await?, "pods": {},
        "vols": {filesystem: volume(filesystem), block: volume(block)}, "gone": [pod.uid]});
    patch(bench, node, &journal).await
}

async fn node_uid(bench: &Bench, node: &Node) -> Result<String> {
    let nodes = Api::<NodeObject>::all(bench.rig.cluster.admin());
    Ok(api(nodes.get(node.name()).await)?
        .metadata
        .uid
        .unwrap_or_default())
}

async fn patch(bench: &Bench, node: &Node, journal: &Value) -> Result {
    let nodes = Api::<NodeObject>::all(bench.rig.cluster.admin());
    let mut taints = taints(bench, node).await?;
    taints.retain(|taint| taint["key"] != TAINT);
    taints.push(json!({"key": TAINT, "effect": "NoSchedule"}));
    let patch = json!({
        "metadata": {"annotations": {JOURNAL: journal.to_string()}},
        "spec": {"taints": taints},
    });
    let params = PatchParams::default();
    api(nodes
        .patch(node.name(), &params, &Patch::Merge(patch))
        .await)
    .map(drop)
}

async fn taints(bench: &Bench, node: &Node) -> Result<Vec<Value>> {
    let nodes = Api::<NodeObject>::all(bench.rig.cluster.admin());
    let object = api(nodes.get(node.name()).await)?;
    let taints = object.spec.and_then(|spec| spec.taints).unwrap_or_default();
    let as_json = taints.into_iter().map(|taint| json!(taint));
    Ok(as_json.collect())
}

async fn tainted(bench: &Bench, node: &Node) -> Result<bool> {
    let taints = taints(bench, node).await?;
    Ok(taints.iter().any(|taint| taint["key"] == TAINT))
}

async fn stays_tainted(bench: &Bench, node: &Node, seconds: u64) -> Result {
    for _ in 0..seconds * 4 {
        expect(tainted(bench, node).await?, "the taint stays")?;
        tokio::time::sleep(std::time::Duration::from_millis(250)).await;
    }
    Ok(())
}

async fn untainted(bench: &Bench, node: &Node) -> Result {
    wait_until("the taint goes", PATIENCE, async || {
        Ok(!tainted(bench, node).await?)
    })
    .await?;
    let nodes = Api::<NodeObject>::all(bench.rig.cluster.admin());
    let annotations = api(nodes.get(node.name()).await)?.metadata.annotations;
    let journal = annotations.unwrap_or_default().contains_key(JOURNAL);
    expect(!journal, "the journal goes with the taint")
}

/// Waits for the end of the taint; at that moment nothing of the zombie may be left.
async fn free(
    bench: &Bench,
    node: &Node,
    zombie: &Running,
    workload: &Workload,
    since: Instant,
) -> Result {
    let kubelet_done = async {
        let directory = format!("/var/lib/kubelet/pods/{}/volumes", zombie.uid);
        let _ = wait_until("the pod's volumes are gone", PATIENCE, async || {
            Ok(node.output("test", &["-e", &directory]).is_err())
        })
        .await;
        since.elapsed()
    };
    let freed = async {
        let freed = untainted(bench, node).await;
        (freed, since.elapsed())
    };
    let (kubelet, (freed, took)) = futures::join!(kubelet_done, freed);
    freed?;
    println!(
        "    kubelet done after {:.1} s, taint gone after {:.1} s",
        kubelet.as_secs_f64(),
        took.as_secs_f64()
    );
    let tasks = node.output("ctr", &["--namespace", "k8s.io", "tasks", "list"])?;
    let containers = node.output(
        "ctr",
        &["--namespace", "k8s.io", "containers", "list", "--quiet"],
    )?;
    for container in containers.lines() {
        let about = node.output(
            "ctr",
            &["--namespace", "k8s.io", "containers", "info", container],
        )?;
        let runs = tasks
            .lines()
            .any(|line| line.starts_with(container) && line.contains("RUNNING"));
        expect(!(runs && about.contains(&zombie.uid)), "no zombie runs")?;
    }
    let mounts = node.output("cat", &["/proc/self/mountinfo"])?;
    expect(
        !mounts.contains(&zombie.uid),
        "nothing of the zombie is mounted",
    )?;
    for volume in [&workload.filesystem, &workload.block] {
        let hash = podmon::node::layout::hash(&volume.as_str().into());
        expect(
            !mounts.contains(&hash) && !mounts.contains(&format!("/{volume}/")),
            "none of its volumes is staged",
        )?;
    }
    Ok(())
}
