//! The whole controller in one process under paused time: on the API server in memory, with a scripted driver and an
//! attacher that only lets go.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use http::{Method, Request};
use podmon::arguments::Arguments;
use podmon::clock::{Clock, Moment};
use podmon::configuration::Configuration;
use podmon::controller::{Ended, Parts, serve};
use podmon::environment::Environment;
use podmon::names::{Names, Profile};
use podmon::settings::Settings;
use serde_json::{Value, json};
use testbed::embedded::api::{Kind, Server};
use testbed::scripted::{Call, Driver, Script};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::judge::Judge;
use super::recorder::{Fault, Recorder, What, to};

pub const POWERFLEX: &str = "csi-vxflexos.dellemc.com";

pub struct Bench {
    pub server: Server,
    pub driver: Driver,
    pub driver_name: String,
    pub names: Names,
    pub recorder: Recorder,
    /// Flags of the next start.
    pub flags: Vec<String>,
    settings: watch::Sender<Settings>,
    admin: kube::Client,
    podmon: Option<JoinHandle<Ended>>,
    attacher: JoinHandle<()>,
    /// Begins again with every start.
    pub hostname: String,
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.attacher.abort();
        if let Some(podmon) = &self.podmon {
            podmon.abort();
        }
        if !std::thread::panicking() {
            let verdicts = self.recorder.verdicts();
            assert!(
                verdicts.is_empty(),
                "the judge says:\n{}\n{}",
                verdicts.join("\n"),
                self.story()
            );
        }
    }
}

impl Bench {
    /// A cluster of nodes `a`, `b` and `c` that hold nothing, and the contract's default driver; podmon is not started.
    pub async fn new(flags: &[&str]) -> Self {
        let bench = Self::of(POWERFLEX, None, flags).await;
        for node in ["a", "b", "c"] {
            bench.node(node).await;
        }
        bench
    }

    /// A cluster without nodes, for this driver and this `--driverPath`.
    pub async fn of(driver_name: &str, driver_path: Option<&str>, flags: &[&str]) -> Self {
        let server = Server::new("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        let names = Names::new(
            Profile::choose(driver_path),
            driver_name.into(),
            driver_path,
        );
        let recorder = Recorder::new(server.clone(), Judge::new(names.clone()));
        let driver = Driver::new(Script::named(driver_name)).witnessed(recorder.witness());
        let admin = server.client("admin");
        let mut flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        flags.extend(driver_path.map(|path| format!("--driverPath={path}")));
        let arguments = arguments(&flags);
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "driver"}});
        let made = send(
            &admin,
            Method::POST,
            "/api/v1/namespaces",
            "application/json",
            namespace,
        );
        made.await.expect("the driver's namespace");
        Self {
            attacher: tokio::spawn(detach(server.clone(), admin.clone())),
            settings: watch::Sender::new(Settings::of_arguments(&arguments)),
            server,
            driver,
            driver_name: driver_name.to_owned(),
            names,
            recorder,
            flags,
            admin,
            podmon: None,
            hostname: "ctl-0".into(),
        }
    }

    /// Starts podmon, with a memory of nothing.
    pub fn start(&mut self) {
        self.podmon = Some(self.another(&self.hostname.clone()));
    }

    /// A podmon of its own, which the caller ends.
    pub fn another(&self, hostname: &str) -> JoinHandle<Ended> {
        let arguments = arguments(&self.flags);
        let variables = [("MY_POD_NAMESPACE", "driver"), ("POD_NAMESPACE", "driver")];
        let variables = variables.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let configuration = Configuration {
            settings: self.settings.subscribe(),
            environment: Environment::new(&variables.into(), None),
            arguments,
        };
        let origin = Instant::now();
        let server = self.server.clone();
        let ticks = AtomicU64::new(0);
        // No two readings of a real clock are the same.
        let boot = move || {
            let tick = Duration::from_nanos(ticks.fetch_add(1, Ordering::Relaxed));
            Moment::since_boot(Duration::from_secs(1000) + origin.elapsed() + tick)
        };
        let parts = Parts {
            client: self.recorder.client("podmon"),
            lease_client: self.recorder.client("podmon"),
            driver: podmon::csi::Driver::on(self.driver.channel()),
            names: self.names.clone(),
            clock: Clock::new(boot, move || server.now()),
            hostname: hostname.to_owned(),
        };
        tokio::spawn(serve(configuration, parts))
    }

    /// Kills podmon: whatever it was at is cut off.
    pub async fn stop(&mut self) {
        if let Some(podmon) = self.podmon.take() {
            podmon.abort();
            drop(podmon.await);
        }
    }

    /// Waits until podmon ends by itself, and says why.
    pub async fn ended(&mut self) -> String {
        let podmon = self.podmon.take().expect("podmon runs");
        let ended = tokio::time::timeout(Duration::from_secs(120), podmon).await;
        ended.expect("podmon ends").expect("no panic").to_string()
    }

    /// Changes the configuration file, as far as podmon can see.
    pub fn configure(&self, change: impl FnOnce(&mut Settings)) {
        self.settings.send_modify(change);
    }

    pub fn threshold(&self, threshold: u32) {
        let threshold = NonZeroU32::new(threshold).unwrap();
        self.configure(|settings| settings.connection_loss_threshold = threshold);
    }

    /// Somebody's request.
    pub async fn send(&self, method: Method, path: &str, body: Value) -> Value {
        let done = self
            .try_send(method.clone(), path, "application/json", body)
            .await;
        done.unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    pub async fn try_send(
        &self,
        method: Method,
        path: &str,
        kind: &str,
        body: Value,
    ) -> kube::Result<Value> {
        send(&self.admin, method, path, kind, body).await
    }

    /// Somebody's merge patch.
    pub async fn patch(&self, path: &str, body: Value) -> Value {
        let done = self
            .try_send(Method::PATCH, path, "application/merge-patch+json", body)
            .await;
        done.unwrap_or_else(|error| panic!("PATCH {path}: {error}"))
    }

    pub async fn delete(&self, path: &str) {
        self.send(Method::DELETE, path, json!({"gracePeriodSeconds": 0}))
            .await;
    }

    /// Somebody's merge patch of a Node, between podmon's read of it and its next patch.
    pub fn overtake(&self, node: &str, body: Value) {
        let (admin, path) = (self.admin.clone(), format!("/api/v1/nodes/{node}"));
        let wanted = to(Method::PATCH, &path);
        let other = move || {
            let (admin, path, body) = (admin.clone(), path.clone(), body.clone());
            async move {
                let done = send(
                    &admin,
                    Method::PATCH,
                    &path,
                    "application/merge-patch+json",
                    body,
                );
                done.await.expect("somebody's patch");
            }
            .boxed()
        };
        self.recorder
            .fault(1, Fault::After(Box::new(other)), wanted);
    }

    pub fn object(&self, kind: Kind, namespace: &str, name: &str) -> Option<Value> {
        self.server
            .read(kind, namespace, name)
            .map(|object| (*object).clone())
    }

    pub fn pod_exists(&self, name: &str) -> bool {
        self.server.read(Kind::Pod, "default", name).is_some()
    }

    pub fn attachments(&self, node: &str) -> usize {
        let all = self.server.read_all(Kind::VolumeAttachment);
        all.iter().filter(|a| a["spec"]["nodeName"] == node).count()
    }

    pub fn taints(&self, node: &str) -> Vec<Value> {
        let node = self.server.read(Kind::Node, "", node).expect("the node");
        node["spec"]["taints"]
            .as_array()
            .cloned()
            .unwrap_or_default()
    }

    pub fn tainted(&self, node: &str) -> bool {
        self.has_taint(node, &self.names.taint)
    }

    pub fn has_taint(&self, node: &str, key: &str) -> bool {
        self.taints(node).iter().any(|taint| taint["key"] == key)
    }

    pub fn annotation(&self, node: &str, key: &str) -> Option<String> {
        let node = self.server.read(Kind::Node, "", node)?;
        node["metadata"]["annotations"][key]
            .as_str()
            .map(str::to_owned)
    }

    /// The journal on a node; null if there is none.
    pub fn journal(&self, node: &str) -> Value {
        let text = self.annotation(node, &self.names.journal);
        text.map_or(Value::Null, |text| {
            serde_json::from_str(&text).unwrap_or(Value::String(text))
        })
    }

    pub fn closed(&self, node: &str) -> bool {
        self.journal(node)["phase"] == "closed"
    }

    /// Reason and text of podmon's events on an object.
    pub fn events(&self, about: &str) -> Vec<(String, String)> {
        let events = self.server.read_all(Kind::Event);
        let ours = events
            .iter()
            .filter(|event| event["involvedObject"]["name"] == about);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        ours.map(|event| {
            assert_eq!(event["source"]["component"], "podmon");
            (text(&event["reason"]), text(&event["message"]))
        })
        .collect()
    }

    /// The event texts on an object, without reasons.
    pub fn said(&self, about: &str) -> Vec<String> {
        self.events(about)
            .into_iter()
            .map(|(_, text)| text)
            .collect()
    }

    /// Every effect in order, each in short words.
    pub fn deeds(&self) -> Vec<String> {
        let entries = self.recorder.entries();
        entries
            .iter()
            .filter_map(|entry| self.deed(&entry.what))
            .collect()
    }

    /// The same without `status.volumesInUse`, which is for speed only and goes beside the others.
    pub fn steps(&self) -> Vec<String> {
        let deeds = self.deeds().into_iter();
        deeds.filter(|deed| !deed.starts_with("in-use")).collect()
    }

    fn deed(&self, what: &What) -> Option<String> {
        Some(match what {
            What::Asked(Call::Unpublish { volume, node }) => format!("fence {volume} {node}"),
            What::Request(sent) if sent.mutates() => {
                let name = sent.path.rsplit('/').next().unwrap_or_default();
                let verb = match (sent.verb.as_str(), sent.path.as_str()) {
                    ("PATCH", path) if path.ends_with("/status") => {
                        return Some(format!(
                            "in-use {}",
                            path.split('/').nth(4).unwrap_or_default()
                        ));
                    }
                    ("PATCH", _) => self.node_deed(&sent.body),
                    ("DELETE", path)
                        if path.contains("/pods/") && sent.body["gracePeriodSeconds"] == 0 =>
                    {
                        "delete pod"
                    }
                    ("DELETE", path) if path.contains("/pods/") => "delete gracefully pod",
                    ("DELETE", _) => "delete attachment",
                    (verb, _) => verb,
                };
                format!("{verb} {name}")
            }
            _ => return None,
        })
    }

    fn node_deed(&self, body: &Value) -> &'static str {
        match &body["metadata"]["annotations"][&self.names.journal] {
            Value::String(text) if text.contains("\"phase\":\"closed\"") => "close",
            Value::String(text) if text.contains("\"pods\":{}") => "list nothing",
            Value::String(_) => "list",
            _ if body["metadata"]["annotations"].is_object() => "withdraw",
            _ => "taint",
        }
    }

    /// Everything that was done, for people.
    pub fn story(&self) -> String {
        let lines = self.recorder.entries().into_iter().filter_map(|entry| {
            let at = entry.at.as_secs_f64();
            match &entry.what {
                What::Request(sent) if sent.verb == "GET" || sent.path.contains("leases") => None,
                What::Request(sent) => Some(format!(
                    "{at:>9.3} {} {}?{} {} -> {:?}",
                    sent.verb, sent.path, sent.query, sent.body, sent.status
                )),
                other => Some(format!("{at:>9.3} {other:?}")),
            }
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Lets time pass.
    pub async fn pass(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    /// Waits for a condition, ten minutes at most by the paused clock.
    pub async fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !condition(self) {
            let late = start.elapsed() > Duration::from_secs(600);
            assert!(!late, "never: {what}\n{}", self.story());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Nothing but events, leases and reads for so long, and nothing at all before.
    pub async fn harmless(&self, seconds: u64) {
        self.pass(seconds).await;
        let deeds = self.deeds();
        assert!(deeds.is_empty(), "{deeds:?}\n{}", self.story());
    }

    /// From now on nothing more is done for two minutes.
    pub async fn rests(&self) {
        let before = self.deeds().len();
        self.pass(120).await;
        let after = self.deeds();
        assert!(
            after.len() == before,
            "{:?}\n{}",
            &after[before..],
            self.story()
        );
    }

    /// The usual end: pods gone, nothing attached, journal closed, taint there, nothing moving.
    pub async fn evacuated(&self, node: &str, pods: &[&str]) {
        self.until("the journal closes", |bench| bench.closed(node))
            .await;
        for pod in pods {
            let there = self.server.read(Kind::Pod, "default", pod);
            let there = there.is_some_and(|pod| pod["spec"]["nodeName"] == node);
            assert!(!there, "pod {pod} is there still\n{}", self.story());
        }
        assert!(self.tainted(node), "the taint is the node's to lift");
        assert_eq!(self.journal(node)["pods"], json!({}));
        for uid in self.journal(node)["gone"].as_array().expect("a list") {
            let pods = self.server.read_all(Kind::Pod);
            assert!(pods.iter().all(|pod| pod["metadata"]["uid"] != *uid));
        }
        self.rests().await;
    }

    /// An evacuation was refused with this event and nothing else happened.
    pub async fn refused(&self, pod: &str, reason: &str, text: &str) {
        self.until("an event tells why", |bench| !bench.said(pod).is_empty())
            .await;
        self.harmless(180).await;
        let uid =
            self.object(Kind::Pod, "default", pod).expect("the pod")["metadata"]["uid"].clone();
        let uid = uid.as_str().unwrap();
        let text = format!("podmon aborted pod cleanup [{uid} a] {text}");
        assert_eq!(self.events(pod), [(reason.to_owned(), text)]);
    }
}

fn arguments(flags: &[String]) -> Arguments {
    let socket = "--csisock=unix:/run/csi.sock".to_owned();
    Arguments::parse(flags.iter().cloned().chain([socket])).expect("good flags")
}

pub async fn send(
    client: &kube::Client,
    method: Method,
    path: &str,
    kind: &str,
    body: Value,
) -> kube::Result<Value> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", kind)
        .body(body.to_string().into_bytes())
        .expect("a request");
    client.request::<Value>(request).await
}

/// The external-attacher, as far as it lets go: takes its finalizer off what is marked for deletion.
async fn detach(server: Server, client: kube::Client) {
    let (names, mut marked) = mpsc::unbounded_channel();
    server.observe(move |change| {
        let metadata = &change.after["metadata"];
        let going = !metadata["deletionTimestamp"].is_null() && !change.deleted;
        if change.kind == Kind::VolumeAttachment && going {
            drop(names.send(change.key.1.clone()));
        }
    });
    while let Some(name) = marked.recv().await {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let path = format!("/apis/storage.k8s.io/v1/volumeattachments/{name}");
        let body = json!({"metadata": {"finalizers": null}});
        // It may be gone by other hands.
        drop(
            send(
                &client,
                Method::PATCH,
                &path,
                "application/merge-patch+json",
                body,
            )
            .await,
        );
    }
}
