//! What stands in the API server before podmon looks: nodes, pods, volumes, attachments.

use http::Method;
use serde_json::{Value, json};
use testbed::embedded::api::Kind;

use super::bench::Bench;

pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// A pod that is about to be created: protected, ready, of a StatefulSet, until told otherwise.
pub struct PodSpec {
    object: Value,
    volumes: Vec<Volume>,
    ready: bool,
    phase: &'static str,
    waiting: Option<&'static str>,
}

/// A volume, with its claim, and its attachment to the pod's node.
#[derive(Clone)]
pub struct Volume {
    pub name: String,
    pub mode: &'static str,
    pub driver: Option<String>,
    pub secret: bool,
    pub attachment: bool,
    pub attached: bool,
}

/// A ReadWriteOnce volume of the driver.
pub fn volume(name: &str) -> Volume {
    Volume {
        name: name.into(),
        mode: "ReadWriteOnce",
        driver: None,
        secret: false,
        attachment: true,
        attached: true,
    }
}

pub fn handle(volume: &str) -> String {
    format!("h-{volume}")
}

/// A pod on this node.
pub fn pod(name: &str, node: &str) -> PodSpec {
    let set = name.rsplit_once('-').map_or(name, |(set, _)| set);
    PodSpec {
        object: json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "annotations": {},
                "labels": {"podmon.dellemc.com/driver": "csi-vxflexos"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": set,
                    "uid": format!("set-{set}"), "controller": true}]},
            "spec": {"nodeName": node, "volumes": [],
                "containers": [{"name": "main", "image": "main:1"}]}}),
        volumes: Vec::new(),
        ready: true,
        phase: "Running",
        waiting: None,
    }
}

impl PodSpec {
    pub fn with(mut self, change: impl FnOnce(&mut Value)) -> Self {
        change(&mut self.object);
        self
    }

    pub fn volume(self, name: &str) -> Self {
        self.uses(volume(name))
    }

    pub fn uses(mut self, volume: Volume) -> Self {
        let source =
            json!({"name": volume.name, "persistentVolumeClaim": {"claimName": volume.name}});
        self.object["spec"]["volumes"]
            .as_array_mut()
            .unwrap()
            .push(source);
        self.volumes.push(volume);
        self
    }

    pub fn unprotected(self) -> Self {
        self.with(|object| object["metadata"]["labels"] = json!({"app": "other"}))
    }

    pub fn in_namespace(self, namespace: &str) -> Self {
        self.with(|object| object["metadata"]["namespace"] = json!(namespace))
    }

    pub fn owner(self, kind: &str, name: &str) -> Self {
        self.with(|object| {
            object["metadata"]["ownerReferences"][0]["kind"] = json!(kind);
            object["metadata"]["ownerReferences"][0]["name"] = json!(name);
        })
    }

    pub fn annotated(self, key: &str, value: &str) -> Self {
        self.with(|object| object["metadata"]["annotations"][key] = json!(value))
    }

    pub fn not_ready(mut self) -> Self {
        self.ready = false;
        self
    }

    pub fn phase(mut self, phase: &'static str) -> Self {
        self.phase = phase;
        self
    }

    /// Its container waits for this reason, and it is not ready.
    pub fn waiting(mut self, reason: &'static str) -> Self {
        self.waiting = Some(reason);
        self.not_ready()
    }

    /// Creates it, and what it uses; its UID.
    pub async fn create(self, bench: &Bench) -> String {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let metadata = &self.object["metadata"];
        let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
        let node = text(&self.object["spec"]["nodeName"]);
        for volume in &self.volumes {
            bench.volume(&namespace, volume).await;
            if volume.attachment {
                bench.attach(&volume.name, &node, volume.attached).await;
            }
        }
        if !self.volumes.is_empty() {
            bench.use_volumes(&node).await;
        }
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let created = bench.send(Method::POST, &path, self.object).await;
        bench
            .pod_status(&namespace, &name, self.phase, self.ready, self.waiting)
            .await;
        text(&created["metadata"]["uid"])
    }
}

impl Bench {
    /// A Ready node with the driver registered on it, as `id-…`.
    pub async fn node(&self, name: &str) {
        let ids = json!({&self.driver_name: format!("id-{name}")}).to_string();
        self.send(
            Method::POST,
            "/api/v1/nodes",
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name,
                "annotations": {"csi.volume.kubernetes.io/nodeid": ids}}}),
        )
        .await;
        self.patch(
            &format!("/api/v1/nodes/{name}"),
            json!({"spec": {"taints": null}}),
        )
        .await;
        if self.server.read(Kind::CsiNode, "", name).is_none() {
            let driver = json!({"name": self.driver_name, "nodeID": format!("id-{name}"), "topologyKeys": []});
            self.send(
                Method::POST,
                "/apis/storage.k8s.io/v1/csinodes",
                json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode",
                    "metadata": {"name": name}, "spec": {"drivers": [driver]}}),
            )
            .await;
        }
        self.node_condition(name, "True").await;
    }

    pub async fn node_condition(&self, name: &str, ready: &str) {
        let time = "2026-01-01T00:00:00Z";
        let condition = json!({"type": "Ready", "status": ready, "reason": "Kubelet", "message": "",
            "lastHeartbeatTime": time, "lastTransitionTime": time});
        self.patch(
            &format!("/api/v1/nodes/{name}/status"),
            json!({"status": {"conditions": [condition]}}),
        )
        .await;
    }

    /// Puts a taint on a node, beside those that it has.
    pub async fn taint(&self, node: &str, key: &str, effect: &str, value: &str) {
        let taint = json!({"key": key, "effect": effect, "value": value});
        self.retaint(node, |taints| taints.push(taint.clone()))
            .await;
    }

    /// Takes a taint off a node.
    pub async fn untaint(&self, node: &str, key: &str) {
        self.retaint(node, |taints| taints.retain(|taint| taint["key"] != key))
            .await;
    }

    /// Changes a node's taints, and loses none that somebody else sets meanwhile.
    async fn retaint(&self, node: &str, change: impl Fn(&mut Vec<Value>)) {
        let path = format!("/api/v1/nodes/{node}");
        loop {
            let object = self.server.read(Kind::Node, "", node).expect("the node");
            let mut taints = self.taints(node);
            change(&mut taints);
            let version = &object["metadata"]["resourceVersion"];
            let body =
                json!({"metadata": {"resourceVersion": version}, "spec": {"taints": taints}});
            let kind = "application/merge-patch+json";
            match self.try_send(Method::PATCH, &path, kind, body).await {
                Ok(_) => return,
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => panic!("PATCH {path}: {error}"),
            }
        }
    }

    /// What the node lifecycle controller does to a node whose kubelet is silent: pods first, taints behind.
    pub async fn fail(&self, node: &str) {
        self.node_condition(node, "Unknown").await;
        for pod in self.server.read_all(Kind::Pod) {
            if pod["spec"]["nodeName"] == node {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let metadata = &pod["metadata"];
                let phase = text(&pod["status"]["phase"]);
                if phase == "Running" {
                    self.pod_status(
                        &text(&metadata["namespace"]),
                        &text(&metadata["name"]),
                        "Running",
                        false,
                        None,
                    )
                    .await;
                }
            }
        }
        self.retaint(node, |taints| {
            for effect in ["NoSchedule", "NoExecute"] {
                taints.push(json!({"key": UNREACHABLE, "effect": effect}));
            }
        })
        .await;
    }

    /// The kubelet is back; its pods are as they were left.
    pub async fn heal(&self, node: &str) {
        self.node_condition(node, "True").await;
        self.untaint(node, UNREACHABLE).await;
    }

    pub async fn pod_status(
        &self,
        namespace: &str,
        name: &str,
        phase: &str,
        ready: bool,
        waiting: Option<&str>,
    ) {
        let status = if ready { "True" } else { "False" };
        let mut container = json!({"name": "main", "image": "main:1", "imageID": "", "ready": ready, "restartCount": 0});
        if phase != "Pending" {
            container["containerID"] = json!("containerd://c");
        }
        container["state"] = match waiting {
            Some(reason) => json!({"waiting": {"reason": reason}}),
            None => json!({"running": {}}),
        };
        let condition = json!({"type": "Ready", "status": status});
        self.patch(
            &format!("/api/v1/namespaces/{namespace}/pods/{name}/status"),
            json!({"status": {"phase": phase, "conditions": [condition], "containerStatuses": [container]}}),
        )
        .await;
    }

    /// Makes a volume and its claim, unless they are there.
    pub async fn volume(&self, namespace: &str, volume: &Volume) {
        let name = &volume.name;
        if self.server.read(Kind::PersistentVolume, "", name).is_some() {
            return;
        }
        let modes = json!([volume.mode]);
        let claim = self
            .send(
                Method::POST,
                &format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims"),
                json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
                    "spec": {"accessModes": modes, "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}}}),
            )
            .await;
        let driver = volume.driver.as_ref().unwrap_or(&self.driver_name);
        let mut csi = json!({"driver": driver, "volumeHandle": handle(name)});
        if volume.secret {
            csi["controllerPublishSecretRef"] = json!({"namespace": "storage", "name": "login"});
        }
        let claim = json!({"namespace": namespace, "name": name, "uid": claim["metadata"]["uid"]});
        self.send(
            Method::POST,
            "/api/v1/persistentvolumes",
            json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
                "spec": {"accessModes": modes, "capacity": {"storage": "1Gi"}, "csi": csi, "claimRef": claim}}),
        )
        .await;
    }

    /// Attaches a volume to a node, as controller and attacher do; the attachment's UID.
    pub async fn attach(&self, volume: &str, node: &str, attached: bool) -> String {
        let name = format!("csi-{volume}-{node}");
        if let Some(there) = self.server.read(Kind::VolumeAttachment, "", &name) {
            return there["metadata"]["uid"].as_str().unwrap().to_owned();
        }
        let object = self
            .server
            .read(Kind::PersistentVolume, "", volume)
            .unwrap();
        let driver = object["spec"]["csi"]["driver"].clone();
        let mut metadata = json!({"name": name, "finalizers": ["external-attacher/csi"]});
        if driver == self.driver_name.as_str() {
            metadata["annotations"] =
                json!({"csi.alpha.kubernetes.io/node-id": format!("id-{node}")});
        }
        let created = self
            .send(
                Method::POST,
                "/apis/storage.k8s.io/v1/volumeattachments",
                json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": metadata,
                    "spec": {"attacher": driver, "nodeName": node, "source": {"persistentVolumeName": volume}}}),
            )
            .await;
        if attached {
            let path = format!("/apis/storage.k8s.io/v1/volumeattachments/{name}/status");
            self.patch(&path, json!({"status": {"attached": true}}))
                .await;
        }
        created["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// Lists every attached volume of a node as in use there, as its kubelet does.
    pub async fn use_volumes(&self, node: &str) {
        let attachments = self.server.read_all(Kind::VolumeAttachment);
        let here = attachments.iter().filter(|a| a["spec"]["nodeName"] == node);
        let names: Vec<String> = here
            .map(|a| {
                let volume = a["spec"]["source"]["persistentVolumeName"]
                    .as_str()
                    .unwrap();
                let driver = a["spec"]["attacher"].as_str().unwrap();
                format!("kubernetes.io/csi/{driver}^{}", handle(volume))
            })
            .collect();
        let path = format!("/api/v1/nodes/{node}/status");
        self.patch(&path, json!({"status": {"volumesInUse": names}}))
            .await;
    }
}
