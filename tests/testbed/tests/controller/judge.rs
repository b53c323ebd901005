//! What must hold of everything that podmon does, whatever the test: preconditions, order, rights.

use std::collections::BTreeMap;
use std::time::Duration;

use podmon::names::Names;
use serde_json::Value;
use testbed::embedded::api::{Kind, Server};
use testbed::scripted::Call;

use super::recorder::{Sent, What};

/// How long before a release a fence may have been sent at most, the release's own way included.
const STANDS: Duration = Duration::from_secs(16);

#[derive(Default)]
pub struct Judge {
    names: Option<Names>,
    /// Start of the last fence that said OK, by handle and node id.
    fenced: BTreeMap<(String, String), Duration>,
    under_way: BTreeMap<(String, String), Duration>,
    taints: BTreeMap<String, Vec<Value>>,
    verdicts: Vec<String>,
}

impl Judge {
    pub fn new(names: Names) -> Self {
        Self {
            names: Some(names),
            ..Self::default()
        }
    }

    pub fn verdicts(&self) -> &[String] {
        &self.verdicts
    }

    fn accuse(&mut self, at: Duration, text: String) {
        self.verdicts
            .push(format!("{:>9.3} {text}", at.as_secs_f64()));
    }

    /// Looks at an effect just before it takes place.
    pub fn look(&mut self, server: &Server, at: Duration, what: &What) {
        match what {
            What::Request(sent) if sent.verb != "GET" => self.look_at_write(server, at, sent),
            What::Asked(Call::Unpublish { volume, node }) => {
                self.look_at_fence(server, at, volume, node);
            }
            What::Answered(Call::Unpublish { volume, node }, ok) => {
                let call = (volume.clone(), node.clone());
                let started = self.under_way.remove(&call);
                if let (true, Some(started)) = (ok, started) {
                    self.fenced.insert(call, started);
                }
            }
            _ => {}
        }
    }

    fn look_at_write(&mut self, server: &Server, at: Duration, sent: &Sent) {
        let parts: Vec<&str> = sent
            .path
            .split('/')
            .filter(|part| !part.is_empty())
            .collect();
        match (sent.verb.as_str(), parts.as_slice()) {
            ("POST" | "PATCH", [.., "events"] | [.., "events", _]) => {}
            ("POST", [.., "leases"]) | ("PUT", [.., "leases", "podmon-1"]) => {}
            ("PATCH", ["api", "v1", "nodes", node]) => self.look_at_node(server, at, node, sent),
            ("PATCH", ["api", "v1", "nodes", _, "status"]) => self.look_at_status(at, sent),
            ("DELETE", ["api", "v1", "namespaces", namespace, "pods", name]) => {
                self.look_at_pod(server, at, namespace, name, sent);
            }
            ("DELETE", ["apis", "storage.k8s.io", "v1", "volumeattachments", name]) => {
                self.look_at_attachment(server, at, name, sent);
            }
            _ => self.accuse(at, format!("no right to {} {}", sent.verb, sent.path)),
        }
    }

    fn versioned(&mut self, at: Duration, sent: &Sent) {
        if sent.body["metadata"]["resourceVersion"].as_str().is_none() {
            self.accuse(at, format!("a patch of {} without version", sent.path));
        }
        if !sent.query.contains("fieldManager=podmon") {
            self.accuse(at, format!("a patch of {} by {}", sent.path, sent.query));
        }
    }

    fn look_at_node(&mut self, server: &Server, at: Duration, node: &str, sent: &Sent) {
        self.versioned(at, sent);
        let Some(names) = self.names.clone() else {
            return;
        };
        let keys = |value: &Value| -> Vec<String> {
            value
                .as_object()
                .into_iter()
                .flatten()
                .map(|(key, _)| key.clone())
                .collect()
        };
        let annotations = keys(&sent.body["metadata"]["annotations"]);
        let spec = keys(&sent.body["spec"]);
        let foreign = annotations.iter().any(|key| *key != names.journal)
            || spec.iter().any(|key| key != "taints")
            || keys(&sent.body)
                .iter()
                .any(|key| key != "metadata" && key != "spec");
        if foreign {
            self.accuse(at, format!("a patch of foreign fields: {}", sent.body));
        }
        if let Some(object) = server.read(Kind::Node, "", node) {
            self.taints
                .insert(node.to_owned(), foreign_taints(&object, &names));
        }
        let journal = sent.body["metadata"]["annotations"][&names.journal].as_str();
        let journal: Value =
            journal.map_or(Value::Null, |text| serde_json::from_str(text).unwrap());
        let tainted = |taints: &Value| {
            let taints = taints.as_array().into_iter().flatten();
            let mut keys = taints.map(|taint| &taint["key"]);
            keys.any(|key| *key == names.taint.as_str())
        };
        if journal["phase"] == "open" {
            let there = server
                .read(Kind::Node, "", node)
                .is_some_and(|object| tainted(&object["spec"]["taints"]));
            let carried = match sent.body["spec"].get("taints") {
                Some(taints) => tainted(taints),
                None => there,
            };
            if !carried {
                self.accuse(
                    at,
                    "an open journal without the taint in the same patch".into(),
                );
            }
        }
        for uid in journal["gone"].as_array().into_iter().flatten() {
            let here = server
                .read_all(Kind::Pod)
                .into_iter()
                .any(|pod| pod["metadata"]["uid"] == *uid && pod["spec"]["nodeName"] == node);
            if here {
                self.accuse(at, format!("pod {uid} counts as gone and is not"));
            }
        }
    }

    fn look_at_status(&mut self, at: Duration, sent: &Sent) {
        self.versioned(at, sent);
        let status = sent.body["status"].as_object();
        if status.is_none_or(|status| status.keys().any(|key| key != "volumesInUse")) {
            self.accuse(at, format!("a patch of foreign status: {}", sent.body));
        }
    }

    fn look_at_pod(
        &mut self,
        server: &Server,
        at: Duration,
        namespace: &str,
        name: &str,
        sent: &Sent,
    ) {
        let uid = sent.body["preconditions"]["uid"]
            .as_str()
            .unwrap_or_default();
        if uid.is_empty() {
            self.accuse(at, format!("pod {name} deleted without UID"));
        }
        let Some(pod) = server.read(Kind::Pod, namespace, name) else {
            return;
        };
        if pod["metadata"]["uid"] != uid || sent.body["gracePeriodSeconds"] != 0 {
            return;
        }
        let node = pod["spec"]["nodeName"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let Some(names) = self.names.clone() else {
            return;
        };
        if let Some(object) = server.read(Kind::Node, "", &node) {
            let journal = journal(&object, &names);
            let listed = journal["phase"] == "open" && !journal["pods"][uid].is_null();
            let tainted = object["spec"]["taints"]
                .as_array()
                .is_some_and(|taints| taints.iter().any(|t| t["key"] == names.taint.as_str()));
            if !listed || !tainted {
                self.accuse(at, format!("pod {name} deleted, not announced: {journal}"));
            }
        }
        let volumes = volumes_of(server, &pod, names.driver.as_str());
        if volumes.is_empty() && sent.body["preconditions"]["resourceVersion"].is_null() {
            self.accuse(at, format!("volumeless pod {name} deleted without version"));
        }
        for (volume, handle) in volumes {
            for id in node_ids(server, &volume, &node) {
                let call = (handle.clone(), id);
                let stands = self.fenced.get(&call).is_some_and(|ok| at - *ok <= STANDS);
                if !stands {
                    self.accuse(at, format!("pod {name} deleted, {call:?} not fenced"));
                }
            }
        }
    }

    fn look_at_attachment(&mut self, server: &Server, at: Duration, name: &str, sent: &Sent) {
        let uid = sent.body["preconditions"]["uid"]
            .as_str()
            .unwrap_or_default();
        if uid.is_empty() {
            self.accuse(at, format!("attachment {name} deleted without UID"));
        }
        let Some(object) = server.read(Kind::VolumeAttachment, "", name) else {
            return;
        };
        let Some(names) = self.names.clone() else {
            return;
        };
        if object["metadata"]["uid"] != uid {
            return;
        }
        if object["spec"]["attacher"] != names.driver.as_str() {
            self.accuse(at, format!("foreign attachment {name} deleted"));
        }
        for pod in server.read_all(Kind::Pod) {
            let volumes = volumes_of(server, &pod, names.driver.as_str());
            let uses = volumes.iter().any(|(volume, _)| {
                object["spec"]["source"]["persistentVolumeName"] == volume.as_str()
            });
            let over = ["Succeeded", "Failed"]
                .iter()
                .any(|phase| pod["status"]["phase"] == *phase);
            if uses && !over && pod["spec"]["nodeName"] == object["spec"]["nodeName"] {
                let pod = &pod["metadata"]["name"];
                self.accuse(at, format!("attachment {name} deleted before pod {pod}"));
            }
        }
    }

    fn look_at_fence(&mut self, server: &Server, at: Duration, volume: &str, node: &str) {
        if node.is_empty() || volume.is_empty() {
            self.accuse(at, "a fence of everything".into());
        }
        let Some(names) = self.names.clone() else {
            return;
        };
        let call = (volume.to_owned(), node.to_owned());
        self.under_way.insert(call, at);
        let name = node.strip_prefix("id-").unwrap_or(node);
        let Some(object) = server.read(Kind::Node, "", name) else {
            return;
        };
        let journal = journal(&object, &names);
        let mut listed = journal["vols"].as_object().into_iter().flatten();
        if journal["phase"] != "open" || !listed.any(|(_, listed)| listed["h"] == volume) {
            self.accuse(at, format!("{volume} fenced from {node}, not announced"));
        }
    }

    /// Looks at a write when it was served.
    pub fn served(&mut self, server: &Server, sent: &Sent, status: u16) {
        let Some(node) = sent.path.strip_prefix("/api/v1/nodes/") else {
            return;
        };
        if sent.verb != "PATCH" || status != 200 {
            return;
        }
        let Some(names) = self.names.clone() else {
            return;
        };
        if let (Some(before), Some(object)) =
            (self.taints.get(node), server.read(Kind::Node, "", node))
        {
            let after = foreign_taints(&object, &names);
            if *before != after {
                let text = format!("   served foreign taints changed: {before:?} to {after:?}");
                self.verdicts.push(text);
            }
        }
    }
}

fn journal(node: &Value, names: &Names) -> Value {
    let text = node["metadata"]["annotations"][&names.journal].as_str();
    text.and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or(Value::Null)
}

fn foreign_taints(node: &Value, names: &Names) -> Vec<Value> {
    let taints = node["spec"]["taints"].as_array().into_iter().flatten();
    let ours = |taint: &Value| {
        taint["key"] == names.taint.as_str()
            || taint["key"] == names.offline_taint.as_str()
            || taint["value"] == "podmon"
    };
    taints.filter(|taint| !ours(taint)).cloned().collect()
}

/// Name and handle of each volume of the driver that a pod uses.
fn volumes_of(server: &Server, pod: &Value, driver: &str) -> Vec<(String, String)> {
    let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default();
    let sources = pod["spec"]["volumes"].as_array().into_iter().flatten();
    let claims = sources.filter_map(|source| source["persistentVolumeClaim"]["claimName"].as_str());
    let volumes = claims.filter_map(|claim| {
        let claim = server.read(Kind::PersistentVolumeClaim, namespace, claim)?;
        let name = claim["spec"]["volumeName"].as_str()?.to_owned();
        let volume = server.read(Kind::PersistentVolume, "", &name)?;
        let csi = &volume["spec"]["csi"];
        let handle = csi["volumeHandle"].as_str()?.to_owned();
        (csi["driver"] == driver).then_some((name, handle))
    });
    volumes.collect()
}

/// The node ids by the volume's attachments to this node.
fn node_ids(server: &Server, volume: &str, node: &str) -> Vec<String> {
    let attachments = server.read_all(Kind::VolumeAttachment);
    let here = attachments.iter().filter(|attachment| {
        let spec = &attachment["spec"];
        spec["nodeName"] == node && spec["source"]["persistentVolumeName"] == volume
    });
    let ids = here.filter_map(|attachment| {
        let annotations = &attachment["metadata"]["annotations"];
        annotations["csi.alpha.kubernetes.io/node-id"].as_str()
    });
    ids.map(str::to_owned).collect()
}
