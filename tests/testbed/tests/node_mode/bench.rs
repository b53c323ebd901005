//! Node mode on a Node of the embedded API server, a fake host and a fake driver.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Node, PersistentVolumeClaim, Pod};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use podmon::arguments::Arguments;
use podmon::clock::{Clock, Moment};
use podmon::configuration::Configuration;
use podmon::environment::Environment;
use podmon::names::{Names, Profile};
use podmon::node::detached::Detachments;
use podmon::node::identity::Store;
use podmon::node::{Parts, serve};
use podmon::settings::Settings;
use serde_json::{Value, json};
use testbed::embedded::api::Server;
use tokio::task::JoinHandle;

use super::driver::FakeDriver;
use super::host::{DRIVER, FakeHost};

pub const TAINT: &str = "csi.example.com/podmon";
pub const JOURNAL: &str = "csi.example.com/podmon-evacuation";
const NODE: &str = "node-a";

pub struct Bench {
    pub server: Server,
    pub host: FakeHost,
    pub driver: FakeDriver,
    admin: kube::Client,
    /// Requests of podmon, all of them and those that a hook sees.
    pub requests: Arc<AtomicU64>,
    podmon: Option<JoinHandle<()>>,
    before_patch: Arc<std::sync::Mutex<Option<Value>>>,
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Bench {
    /// A Ready node without a taint, and podmon on it.
    pub async fn new(test: &str) -> Self {
        let server = Server::new("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        let host = FakeHost::new(test);
        let mut bench = Self {
            admin: server.client("admin"),
            driver: FakeDriver::new(host.clone()),
            server,
            host,
            requests: Arc::default(),
            podmon: None,
            before_patch: Arc::default(),
        };
        bench.register().await;
        bench.start();
        bench
    }

    pub async fn register(&self) {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}});
        let node = serde_json::from_value(node).unwrap();
        self.nodes()
            .create(&PostParams::default(), &node)
            .await
            .unwrap();
        self.ready(true).await;
    }

    pub async fn unregister(&self) {
        self.nodes()
            .delete(NODE, &Default::default())
            .await
            .unwrap();
    }

    pub fn nodes(&self) -> Api<Node> {
        Api::all(self.admin.clone())
    }

    pub async fn ready(&self, ready: bool) {
        let status = if ready { "True" } else { "Unknown" };
        let time = "2026-01-01T00:00:00Z";
        let condition = json!({"type": "Ready", "status": status, "reason": "Kubelet",
            "message": "", "lastHeartbeatTime": time, "lastTransitionTime": time});
        let patch = json!({"status": {"conditions": [condition]}});
        let patch = Patch::Strategic(patch);
        let params = PatchParams::default();
        self.nodes()
            .patch_status(NODE, &params, &patch)
            .await
            .unwrap();
    }

    /// Starts podmon, with a memory of nothing.
    pub fn start(&mut self) {
        self.start_with(&[]);
    }

    /// The same, with further flags.
    pub fn start_with(&mut self, flags: &[&str]) {
        let usual = ["--mode=node", "--csisock=unix:/run/csi.sock"];
        let arguments = Arguments::parse(usual.iter().chain(flags)).unwrap();
        let variables = [("KUBE_NODE_NAME".to_owned(), NODE.to_owned())].into();
        let settings = Settings::of_arguments(&arguments);
        let configuration = Configuration {
            settings: tokio::sync::watch::channel(settings).1,
            environment: Environment::new(&variables, None),
            arguments,
        };
        let origin = tokio::time::Instant::now();
        let server = self.server.clone();
        let boot = move || Moment::since_boot(Duration::from_secs(1000) + origin.elapsed());
        let parts = Parts {
            client: self.counted(),
            driver: self.driver.client(),
            names: Names::new(Profile::Generic, DRIVER.into(), Some("example")),
            clock: Clock::new(boot, move || server.now()),
            layout: self.host.layout(),
            host: self.host.host(),
            detachments: Detachments::beside(&self.host.base().join("csi.sock")),
            store: Store::beside(&self.host.base().join("csi.sock")),
        };
        self.podmon = Some(tokio::spawn(async move {
            let ended = serve(configuration, parts).await;
            panic!("node mode ended: {ended}");
        }));
    }

    pub fn stop(&mut self) {
        if let Some(podmon) = self.podmon.take() {
            podmon.abort();
        }
    }

    /// A client that counts, and before podmon's next patch of the Node lets somebody else's go first.
    fn counted(&self) -> kube::Client {
        let (server, requests) = (self.server.clone(), self.requests.clone());
        let (before, admin) = (self.before_patch.clone(), self.nodes());
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (server, admin) = (server.clone(), admin.clone());
            requests.fetch_add(1, Ordering::Relaxed);
            let patching = *request.method() == http::Method::PATCH
                && request.uri().path().starts_with("/api/v1/nodes/");
            let other = patching.then(|| before.lock().unwrap().take()).flatten();
            async move {
                if let Some(other) = other {
                    let params = PatchParams::default();
                    admin
                        .patch(NODE, &params, &Patch::Merge(other))
                        .await
                        .unwrap();
                }
                let actor = Arc::from("podmon");
                Ok::<_, std::convert::Infallible>(server.serve(&actor, request).await)
            }
        });
        kube::Client::new(service, "default")
    }

    /// Somebody else's merge patch of the Node, between podmon's read and its patch.
    pub fn overtake(&self, patch: Value) {
        *self.before_patch.lock().unwrap() = Some(patch);
    }

    pub async fn node(&self) -> Node {
        self.nodes().get(NODE).await.unwrap()
    }

    pub async fn taints(&self) -> Vec<String> {
        let spec = self.node().await.spec.unwrap_or_default();
        let taints = spec.taints.unwrap_or_default();
        taints.into_iter().map(|taint| taint.key).collect()
    }

    pub async fn tainted(&self) -> bool {
        self.taints().await.iter().any(|key| key == TAINT)
    }

    pub async fn journal(&self) -> Option<String> {
        let annotations = self.node().await.metadata.annotations.unwrap_or_default();
        annotations.get(JOURNAL).cloned()
    }

    pub async fn patch_node(&self, patch: Value) {
        let params = PatchParams::default();
        self.nodes()
            .patch(NODE, &params, &Patch::Merge(patch))
            .await
            .unwrap();
    }

    /// What the controller leaves on the node: taint and journal, with pod `old` released and these volumes.
    pub async fn evacuated(&self, phase: &str, volumes: &[&str]) {
        let uid = self.node().await.metadata.uid.unwrap();
        let described: serde_json::Map<_, _> = volumes
            .iter()
            .map(|name| {
                let volume = json!({"h": format!("handle-{name}"), "i": ["id"], "va": ""});
                ((*name).to_owned(), volume)
            })
            .collect();
        let journal = json!({"v": 1, "id": format!("e-{phase}"), "by": "ctl-0/1", "phase": phase,
            "why": "NodeFailure", "node": uid, "pods": {}, "vols": described, "gone": ["old"]});
        self.patch_node(json!({
            "metadata": {"annotations": {JOURNAL: journal.to_string()}},
            "spec": {"taints": [{"key": TAINT, "effect": "NoSchedule"}]},
        }))
        .await;
    }

    /// A pod that is bound here and uses the volume, as the API has it.
    pub async fn bind(&self, name: &str, volume: &str) -> String {
        let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": volume, "namespace": "default"},
            "spec": {"accessModes": ["ReadWriteMany"], "volumeName": volume,
                "resources": {"requests": {"storage": "1Gi"}}}});
        let claims = Api::<PersistentVolumeClaim>::namespaced(self.admin.clone(), "default");
        let claim = serde_json::from_value(claim).unwrap();
        claims.create(&PostParams::default(), &claim).await.unwrap();
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"nodeName": NODE, "containers": [{"name": "main", "image": "main"}],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": volume}}]}});
        let pods = Api::<Pod>::namespaced(self.admin.clone(), "default");
        let pod = serde_json::from_value(pod).unwrap();
        let pod = pods.create(&PostParams::default(), &pod).await.unwrap();
        pod.metadata.uid.unwrap()
    }

    /// Reasons of the events on the node.
    pub async fn events(&self) -> Vec<(String, String)> {
        let api = Api::<Event>::all(self.admin.clone());
        let events = api.list(&ListParams::default()).await.unwrap();
        let told = events.items.into_iter().map(|event| {
            let reason = event.reason.unwrap_or_default();
            (reason, event.message.unwrap_or_default())
        });
        told.collect()
    }

    /// Waits for a condition, a day at most; returns how long it took by the paused clock.
    pub async fn until<F: Future<Output = bool>>(
        &self,
        what: &str,
        condition: impl Fn() -> F,
    ) -> Duration {
        let start = tokio::time::Instant::now();
        while !condition().await {
            assert!(start.elapsed() < Duration::from_secs(600), "never: {what}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        start.elapsed()
    }

    pub async fn lifted(&self) -> Duration {
        let took = self
            .until("the taint goes", || async { !self.tainted().await })
            .await;
        assert_eq!(self.journal().await, None, "taint and journal go together");
        took
    }

    /// The taint stays for this long, looked at all the time.
    pub async fn stays_tainted(&self, seconds: u64) {
        for _ in 0..seconds {
            assert!(self.tainted().await, "the taint was lifted");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}
