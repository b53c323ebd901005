//! The kubelet, as the API and the storage see it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::{LocalPod, Mounted, State};
use crate::embedded::api::{Actor, Kind, seconds};
use crate::embedded::control::attach_detach::attachment_name;
use crate::embedded::object::*;
use crate::storage::array::Access;
use crate::storage::driver::{EPOCH, NAME};
use crate::storage::name::{Epoch, VolumeId};

/// `nodeStatusUpdateFrequency`
const STATUS: Duration = Duration::from_secs(10);

/// How long a container takes to start, to be killed, and how long an emptied pod directory stays.
const START: std::ops::Range<Duration> = Duration::from_millis(300)..Duration::from_millis(1500);
const KILL: std::ops::Range<Duration> = Duration::from_millis(100)..Duration::from_millis(2000);
const REMOVE: std::ops::Range<Duration> = Duration::from_secs(2)..Duration::from_secs(5);

pub(super) fn tick(state: &mut State, api: &Actor, now: Duration) {
    if state.network {
        register(state, api, now);
        renew_lease(state, api, now);
    }
    // Without the API server the kubelet goes on with what it knows.
    if let Some(bound) = state.network.then(|| bound(state, api)) {
        take_in(state, api, &bound);
        mount(state, api, &bound, now);
        start(state, now);
        clear_away(state, api, &bound, now);
        report_pods(state, api, &bound);
        report_node(state, api, now);
    } else {
        start(state, now);
    }
}

/// What the API binds to this node, by UID.
fn bound(state: &State, api: &Actor) -> BTreeMap<String, Arc<Value>> {
    let mine = api
        .list(Kind::Pod)
        .into_iter()
        .filter(|pod| node_of(pod) == state.name);
    mine.map(|pod| (uid(&pod).to_owned(), pod)).collect()
}

/// Done at the kubelet's start only: a Node that is deleted later does not come back by itself.
fn register(state: &mut State, api: &Actor, now: Duration) {
    if state.registered {
        return;
    }
    state.registered = true;
    state.next_lease = now;
    state.next_status = now;
    if api.get(Kind::Node, "", &state.name).is_none() {
        let ids = json!({NAME: state.id.as_str()}).to_string();
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": state.name, "labels": {"kubernetes.io/hostname": state.name},
                "annotations": {"csi.volume.kubernetes.io/nodeid": ids},
            },
        });
        let _ = api.create(Kind::Node, "", node);
    }
    if api.get(Kind::CsiNode, "", &state.name).is_none() {
        let csinode = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": state.name},
            "spec": {"drivers": [{"name": NAME, "nodeID": state.id.as_str(), "topologyKeys": []}]},
        });
        let _ = api.create(Kind::CsiNode, "", csinode);
    }
}

fn renew_lease(state: &mut State, api: &Actor, now: Duration) {
    if now < state.next_lease {
        return;
    }
    state.next_lease = now + state.timing.lease_renewal;
    let time = api
        .server()
        .now()
        .strftime("%Y-%m-%dT%H:%M:%S%.6fZ")
        .to_string();
    let spec = json!({"holderIdentity": state.name, "leaseDurationSeconds": 40, "renewTime": time});
    if api
        .get(Kind::Lease, "kube-node-lease", &state.name)
        .is_some()
    {
        let _ = api.patch(
            Kind::Lease,
            "kube-node-lease",
            &state.name,
            json!({"spec": spec}),
        );
    } else {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": state.name}, "spec": spec,
        });
        let _ = api.create(Kind::Lease, "kube-node-lease", lease);
    }
}

/// Makes a directory for each pod that is new here.
fn take_in(state: &mut State, api: &Actor, bound: &BTreeMap<String, Arc<Value>>) {
    for (uid, pod) in bound {
        if state.pods.contains_key(uid) || is_terminating(pod) || is_finished(pod) {
            continue;
        }
        let Some(volumes) = volumes_of(pod, api) else {
            continue;
        };
        let local = LocalPod {
            namespace: namespace(pod).to_owned(),
            name: name(pod).to_owned(),
            labels: pod["metadata"]["labels"].clone(),
            volumes,
            directory: true,
            published: BTreeMap::new(),
            targets: BTreeMap::new(),
            running: false,
            healthy: true,
            next_write: Duration::ZERO,
            start: None,
            kill: None,
            remove: None,
        };
        state.pulse += 1;
        state.pods.insert(uid.clone(), local);
    }
}

/// The volumes of our driver that a pod uses; `None` while one of its claims is not bound.
fn volumes_of(pod: &Value, api: &Actor) -> Option<BTreeMap<String, VolumeId>> {
    let mut volumes = BTreeMap::new();
    for claim in claims_of(pod) {
        let claim = api.get(Kind::PersistentVolumeClaim, namespace(pod), claim)?;
        let volume = api.get(Kind::PersistentVolume, "", text(&claim, "/spec/volumeName"))?;
        if text(&volume, "/spec/csi/driver") == NAME {
            let handle = VolumeId::new(text(&volume, "/spec/csi/volumeHandle")).ok()?;
            volumes.insert(name(&volume).to_owned(), handle);
        }
    }
    Some(volumes)
}

/// Stages and publishes what the attach-detach controller has reported as attached.
fn mount(state: &mut State, api: &Actor, bound: &BTreeMap<String, Arc<Value>>, _now: Duration) {
    let Some(node) = api.get(Kind::Node, "", &state.name) else {
        return;
    };
    let listed = |pointer: &str| -> BTreeSet<String> {
        let names =
            items(&node, pointer).map(|item| item.as_str().unwrap_or_else(|| text(item, "/name")));
        names.map(str::to_owned).collect()
    };
    let (attached, in_use) = (
        listed("/status/volumesAttached"),
        listed("/status/volumesInUse"),
    );
    let State {
        name: host,
        id,
        pods,
        staged,
        ..
    } = state;
    for (uid, local) in pods.iter_mut() {
        let wanted = bound
            .get(uid)
            .is_some_and(|pod| !is_terminating(pod) && !is_finished(pod));
        if !wanted || local.kill.is_some() {
            continue;
        }
        for (volume, handle) in &local.volumes {
            let unique = unique_volume(NAME, handle.as_str());
            if local.published.contains_key(volume)
                || !attached.contains(&unique)
                || !in_use.contains(&unique)
            {
                continue;
            }
            // What is staged already is used as it is, whoever staged it.
            if !staged.contains_key(handle) {
                let attachment = attachment_name(handle.as_str(), NAME, host);
                let Some(attachment) = api.get(Kind::VolumeAttachment, "", &attachment) else {
                    continue;
                };
                let epoch = text(&attachment, &format!("/status/attachmentMetadata/{EPOCH}"));
                let Ok(epoch) = epoch.parse::<Epoch>() else {
                    continue;
                };
                let access = Access {
                    volume: handle.clone(),
                    node: id.clone(),
                    epoch,
                };
                let mounted = Mounted {
                    volume: volume.clone(),
                    handle: handle.clone(),
                    access,
                };
                staged.insert(handle.clone(), mounted);
            }
            local.targets.insert(volume.clone(), handle.clone());
            local
                .published
                .insert(volume.clone(), staged[handle].clone());
        }
    }
}

fn start(state: &mut State, now: Duration) {
    let State { pods, chance, .. } = state;
    for local in pods.values_mut() {
        let mounted = local
            .volumes
            .keys()
            .all(|volume| local.published.contains_key(volume));
        if local.running
            || !mounted
            || local.kill.is_some()
            || !local.directory
            || local.remove.is_some()
        {
            continue;
        }
        let at = *local.start.get_or_insert_with(|| now + chance.time(START));
        if now >= at {
            local.start = None;
            local.running = true;
            local.healthy = true;
        }
    }
}

/// Ends what the API does not bind here any more, or wants ended.
fn clear_away(state: &mut State, api: &Actor, bound: &BTreeMap<String, Arc<Value>>, now: Duration) {
    let State {
        pods,
        staged,
        chance,
        pulse,
        ..
    } = state;
    for (uid, local) in pods.iter_mut() {
        let pod = bound.get(uid);
        if pod.is_some_and(|pod| !is_terminating(pod) && !is_finished(pod)) {
            continue;
        }
        let at = *local.kill.get_or_insert_with(|| now + chance.time(KILL));
        if now < at {
            continue;
        }
        local.running = false;
        local.published.clear();
        local
            .remove
            .get_or_insert_with(|| now + chance.time(REMOVE));
    }
    let used: BTreeSet<VolumeId> = pods
        .values()
        .flat_map(|local| local.published.values().map(|m| m.handle.clone()))
        .collect();
    staged.retain(|handle, _| used.contains(handle));
    for (uid, local) in pods.iter() {
        if local.remove.is_some()
            && let Some(pod) = bound.get(uid).filter(|pod| is_terminating(pod))
        {
            let _ = api.delete(Kind::Pod, namespace(pod), name(pod), Some(0), Some(uid));
        }
    }
    let before = pods.len();
    pods.retain(|_, local| local.remove.is_none_or(|at| now < at));
    *pulse += (before - pods.len()) as u64;
}

fn report_pods(state: &State, api: &Actor, bound: &BTreeMap<String, Arc<Value>>) {
    let time = seconds(api.server().now());
    for (uid, local) in &state.pods {
        let Some(pod) = bound.get(uid).filter(|pod| !is_finished(pod)) else {
            continue;
        };
        let ready = if local.running && local.healthy {
            "True"
        } else {
            "False"
        };
        let phase = if local.running {
            "Running"
        } else {
            text(pod, "/status/phase")
        };
        if condition(pod, "Ready") == ready && text(pod, "/status/phase") == phase {
            continue;
        }
        let conditions = with_condition(pod, "Ready", ready, "", &time);
        let running = if local.running {
            json!({"running": {"startedAt": time}})
        } else {
            json!({"waiting": {}})
        };
        let containers: Vec<Value> = items(pod, "/spec/containers")
            .map(|container| {
                json!({
                    "name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0,
                    "ready": ready == "True", "state": running,
                })
            })
            .collect();
        let status =
            json!({"phase": phase, "conditions": conditions, "containerStatuses": containers});
        let _ = api.patch_status(
            Kind::Pod,
            namespace(pod),
            name(pod),
            json!({"status": status}),
        );
    }
}

fn report_node(state: &mut State, api: &Actor, now: Duration) {
    let Some(node) = api.get(Kind::Node, "", &state.name) else {
        return;
    };
    let mut in_use: BTreeSet<String> = state
        .staged
        .keys()
        .map(|handle| unique_volume(NAME, handle.as_str()))
        .collect();
    for local in state.pods.values().filter(|local| local.remove.is_none()) {
        in_use.extend(
            local
                .volumes
                .values()
                .map(|handle| unique_volume(NAME, handle.as_str())),
        );
    }
    let said: BTreeSet<String> = items(&node, "/status/volumesInUse")
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    // What is new is said at once, since the mount waits for it.
    let urgent = !in_use.is_subset(&said);
    if !urgent && now < state.next_status {
        return;
    }
    state.next_status = now + STATUS.min(state.timing.lease_renewal * 2);
    let boot = state.boot_id();
    if condition(&node, "Ready") == "True"
        && said == in_use
        && text(&node, "/status/nodeInfo/bootID") == boot
    {
        return;
    }
    let conditions = with_condition(
        &node,
        "Ready",
        "True",
        "KubeletReady",
        &seconds(api.server().now()),
    );
    let in_use: Vec<&String> = in_use.iter().collect();
    let info = json!({
        "bootID": boot, "machineID": state.name, "systemUUID": state.name, "kernelVersion": "embedded", "osImage": "embedded",
        "containerRuntimeVersion": "embedded", "kubeletVersion": "v1.36.2", "kubeProxyVersion": "", "operatingSystem": "linux",
        "architecture": "amd64",
    });
    let status = json!({"conditions": conditions, "volumesInUse": in_use, "nodeInfo": info});
    let _ = api.patch_status(Kind::Node, "", &state.name, json!({"status": status}));
}
