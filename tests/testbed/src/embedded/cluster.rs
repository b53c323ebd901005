//! The embedded cluster: API server, control plane, array and machines, put together and driven by one clock.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use super::api::{Actor, Kind, Server};
use super::chance::Chance;
use super::control::Timing;
use super::control::attach_detach::AttachDetach;
use super::control::attacher::Attacher;
use super::control::node_lifecycle::NodeLifecycle;
use super::control::pod_gc::PodGarbage;
use super::control::scheduler::Scheduler;
use super::control::statefulset::StatefulSets;
use super::host::Host;
use super::object;
use crate::storage::array::{Array, Policy};
use crate::storage::door::Door;
use crate::storage::driver::NAME;
use crate::storage::driver::controller::ControllerService;
use crate::storage::name::{NodeId, VolumeId};

/// How often every part of the cluster gets its turn.
pub const TICK: Duration = Duration::from_millis(100);
const VOLUME_BYTES: u64 = 1 << 20;

/// What a cluster is made of.
#[derive(Clone, Debug)]
pub struct Shape {
    pub seed: u64,
    pub nodes: usize,
    pub timing: Timing,
    pub policy: Policy,
    /// LIST_VOLUMES_PUBLISHED_NODES.
    pub published_nodes: bool,
    /// The driver has the connectivity extension; without it Kubernetes' word stands alone.
    pub extension: bool,
    /// The time that the cluster's clock shows at first.
    pub start: jiff::Timestamp,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            seed: 1,
            nodes: 3,
            timing: Timing::FAST,
            policy: Policy::Permissive,
            published_nodes: false,
            extension: false,
            start: jiff::Timestamp::from_second(1_767_225_600)
                .unwrap_or(jiff::Timestamp::UNIX_EPOCH),
        }
    }
}

pub struct Cluster {
    pub server: Server,
    pub array: Arc<Mutex<Array>>,
    pub hosts: Vec<Host>,
    /// The operator: a client with all rights.
    pub operator: Actor,
    pub attacher: Attacher,
    pub attach_detach: AttachDetach,
    pub door: Door,
    published_nodes: bool,
    pub extension: bool,
    node_lifecycle: NodeLifecycle,
    statefulsets: StatefulSets,
    scheduler: Scheduler,
    garbage: PodGarbage,
    origin: tokio::time::Instant,
    due: tokio::time::Instant,
    settled: (u64, Duration),
}

impl Cluster {
    /// Machines are on, kubelets start; nothing has happened yet. Needs a tokio runtime.
    pub fn new(shape: &Shape) -> Cluster {
        let mut chance = Chance::new(shape.seed);
        let server = Server::new(shape.start, chance.draw());
        let origin = tokio::time::Instant::now();
        let mut array = Array::new(shape.policy);
        let ids: Vec<NodeId> = (1..=shape.nodes)
            .map(|i| node_id(&format!("id-node-{i}")))
            .collect();
        for id in &ids {
            array
                .seen(Duration::ZERO, id)
                .unwrap_or_else(|refusal| panic!("the array does not take {id}: {refusal}"));
        }
        let array = Arc::new(Mutex::new(array));
        let door = Door::Here {
            array: array.clone(),
            now: Arc::new(move || origin.elapsed()),
        };
        let hosts = ids.into_iter().enumerate().map(|(i, id)| {
            let name = format!("node-{}", i + 1);
            let api = server.actor(&format!("kubelet:{name}"));
            Host::new(
                &name,
                id,
                api,
                array.clone(),
                shape.timing,
                chance.fork(i as u64),
            )
        });
        let hosts: Vec<Host> = hosts.collect();
        let service = ControllerService {
            door: door.clone(),
            published_nodes: shape.published_nodes,
        };
        let operator = server.actor("operator");
        let driver = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": NAME}, "spec": {"attachRequired": true},
        });
        must(
            operator.create(Kind::CsiDriver, "", driver),
            "the CSIDriver",
        );
        Cluster {
            node_lifecycle: NodeLifecycle::new(server.actor("node-lifecycle"), shape.timing),
            statefulsets: StatefulSets::new(server.actor("statefulset")),
            scheduler: Scheduler::new(server.actor("scheduler")),
            garbage: PodGarbage::new(server.actor("pod-gc"), shape.timing),
            attach_detach: AttachDetach::new(server.actor("attach-detach"), shape.timing),
            attacher: Attacher::new(
                server.actor("attacher"),
                service,
                shape.timing,
                chance.fork(99),
            ),
            published_nodes: shape.published_nodes,
            extension: shape.extension,
            server,
            array,
            hosts,
            operator,
            door,
            origin,
            due: origin,
            settled: (0, Duration::ZERO),
        }
    }

    /// Since the cluster began.
    pub fn elapsed(&self) -> Duration {
        self.origin.elapsed()
    }

    /// A StatefulSet whose pods carry the label and have so many volumes each, with claims and volumes made beforehand.
    pub fn add_statefulset(
        &self,
        name: &str,
        replicas: usize,
        volumes: usize,
        label: Option<(&str, &str)>,
    ) {
        let mut labels = json!({"app": name});
        if let Some((key, value)) = label {
            labels[key] = json!(value);
        }
        let mut templates = Vec::new();
        for volume in 0..volumes {
            templates.push(json!({
                "metadata": {"name": format!("data{volume}")},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
            }));
            for ordinal in 0..replicas {
                self.add_volume(&format!("data{volume}-{name}-{ordinal}"));
            }
        }
        let set = json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name},
            "spec": {
                "replicas": replicas, "serviceName": name, "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": {"app": name}}, "volumeClaimTemplates": templates,
                "template": {"metadata": {"labels": labels}, "spec": {
                    "terminationGracePeriodSeconds": 10,
                    "containers": [{"name": "main", "image": "writer:1"}],
                }},
            },
        });
        must(
            self.operator.create(Kind::StatefulSet, "default", set),
            name,
        );
    }

    /// A claim of this name, and a volume of the array behind it.
    pub fn add_volume(&self, claim: &str) {
        let volume = format!("pv-{claim}");
        let handle = VolumeId::new(&format!("h-{claim}")).unwrap_or_else(|error| panic!("{error}"));
        self.array()
            .create(&handle, VOLUME_BYTES)
            .unwrap_or_else(|refusal| panic!("volume {handle}: {refusal}"));
        let made = self.operator.create(
            Kind::PersistentVolumeClaim,
            "default",
            json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": claim},
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "volumeName": volume, "storageClassName": "",
                    "resources": {"requests": {"storage": "1Mi"}},
                },
            }),
        );
        let made = must(made, claim);
        let claim_ref = json!({"kind": "PersistentVolumeClaim", "namespace": "default", "name": claim, "uid": object::uid(&made)});
        let made = self.operator.create(
            Kind::PersistentVolume,
            "",
            json!({
                "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume},
                "spec": {
                    "capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"], "claimRef": claim_ref,
                    "csi": {"driver": NAME, "volumeHandle": handle.as_str()},
                },
            }),
        );
        must(made, &volume);
        let bound = json!({"status": {"phase": "Bound"}});
        must(
            self.operator
                .patch_status(Kind::PersistentVolume, "", &volume, bound.clone()),
            &volume,
        );
        must(
            self.operator
                .patch_status(Kind::PersistentVolumeClaim, "default", claim, bound),
            claim,
        );
    }

    pub fn array(&self) -> std::sync::MutexGuard<'_, Array> {
        self.array.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The driver's Controller service.
    pub fn controller_service(&self) -> ControllerService {
        ControllerService {
            door: self.door.clone(),
            published_nodes: self.published_nodes,
        }
    }

    pub fn host(&self, name: &str) -> &Host {
        let found = self.hosts.iter().find(|host| host.name() == name);
        found.unwrap_or_else(|| panic!("there is no host {name}"))
    }

    /// Lets every part of the cluster have one turn.
    fn turn(&mut self) {
        let now = self.elapsed();
        for host in &self.hosts {
            host.tick(now);
        }
        // The controllers have work only after a change, or when one of their clocks may have run out.
        let changed = self.server.activity() != self.settled.0;
        if !changed && now < self.settled.1 {
            return;
        }
        self.settled = (self.server.activity(), now + Duration::from_millis(500));
        self.node_lifecycle.tick(now);
        self.garbage.tick(now);
        self.statefulsets.tick();
        self.scheduler.tick();
        self.attach_detach.tick(now);
        self.attacher.tick(now);
    }

    /// Goes on for this long.
    pub async fn run(&mut self, time: Duration) {
        let end = self.elapsed() + time;
        while self.elapsed() < end {
            self.step().await;
        }
    }

    /// Goes on for one tick.
    pub async fn step(&mut self) {
        self.turn();
        self.due += TICK;
        tokio::time::sleep_until(self.due).await;
    }

    /// Goes on until the condition holds; false if it does not within this time.
    pub async fn run_until(
        &mut self,
        within: Duration,
        mut holds: impl FnMut(&Cluster) -> bool,
    ) -> bool {
        let end = self.elapsed() + within;
        while !holds(self) {
            if self.elapsed() >= end {
                return false;
            }
            self.step().await;
        }
        true
    }

    /// A pod, if it is there.
    pub fn pod(&self, name: &str) -> Option<Arc<Value>> {
        self.server.read(Kind::Pod, "default", name)
    }

    /// The pod is Running and Ready.
    pub fn is_ready(&self, pod: &str) -> bool {
        self.pod(pod).is_some_and(|pod| {
            object::condition(&pod, "Ready") == "True" && !object::is_terminating(&pod)
        })
    }

    /// The node on which a pod is; empty if nowhere.
    pub fn place(&self, pod: &str) -> String {
        self.pod(pod)
            .map_or_else(String::new, |pod| object::node_of(&pod).to_owned())
    }
}

fn node_id(text: &str) -> NodeId {
    NodeId::new(text).unwrap_or_else(|error| panic!("{error}"))
}

fn must<T>(result: Result<T, super::api::Failure>, what: &str) -> T {
    result.unwrap_or_else(|failure| panic!("{what}: {failure}"))
}
