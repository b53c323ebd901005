//! The invariants of design.md, as code on the history of the API and on the array.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;

use super::history::History;
use crate::embedded::api::{Change, Key, Kind};
use crate::embedded::daemon::{self, PROTECTED};
use crate::embedded::host::Host;
use crate::embedded::object::*;
use crate::storage::array::Array;
use crate::storage::driver::NAME;
use crate::storage::ledger::{Operation, Verdict};

/// A fence that is older than this when its pod is released does not stand any more (protocol.md §3: 15 s, and the request's
/// own time).
const STANDS: Duration = Duration::from_secs(30);

/// A node that the array has heard of within this time is not lost to it.
const SILENCE: Duration = Duration::from_secs(5);

/// Which rule was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// The ledger shows two writers, or a writer without access.
    OneWriter,
    /// Released before its volumes were fenced, a moment ago.
    FenceBeforeRelease,
    /// Released from a node without our taint.
    TaintBeforeRelease,
    /// Fenced or released without an entry in the journal.
    AnnounceFirst,
    /// Announced on a node that had not failed.
    Evidence,
    /// An attachment deleted while its pod was still bound.
    PodBeforeAttachment,
    /// A pod deleted that is not protected, or has finished.
    OnlyProtected,
    /// The taint lifted while something of an evacuated pod was left, or the journal was open.
    TaintLast,
    /// A taint of somebody else changed.
    OthersTaints,
    /// A fence without a node: that of all nodes.
    NeverAllNodes,
    /// Something did not come to rest.
    AlwaysMoving,
    /// podmon panicked.
    NoPanic,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    pub at: Duration,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} at {:.3} s: {}",
            self.rule,
            self.at.as_secs_f64(),
            self.what
        )
    }
}

/// Watches everything; clones are the same judge.
#[derive(Clone)]
pub struct Judge(Arc<Mutex<Inner>>);

struct Inner {
    history: History,
    array: Arc<Mutex<Array>>,
    hosts: Vec<Host>,
    /// The API's objects, as the changes tell them.
    objects: BTreeMap<(Kind, Key), Arc<Value>>,
    violations: Vec<Violation>,
    releases: u64,
}

impl Judge {
    pub fn new(history: &History, array: Arc<Mutex<Array>>, hosts: Vec<Host>) -> Judge {
        Judge(Arc::new(Mutex::new(Inner {
            history: history.clone(),
            array,
            hosts,
            objects: BTreeMap::new(),
            violations: Vec::new(),
            releases: 0,
        })))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn find(&self, rule: Rule, at: Duration, what: String) {
        self.inner().find(rule, at, what);
    }

    pub fn violations(&self) -> Vec<Violation> {
        self.inner().violations.clone()
    }

    pub fn releases(&self) -> u64 {
        self.inner().releases
    }

    /// Judges a change. It is called under the store's lock, so it goes by its own copy of the objects.
    pub fn change(&self, at: Duration, change: &Change) {
        let mut inner = self.inner();
        if change.actor.starts_with("podmon") {
            match change.kind {
                Kind::Pod if change.deleted => inner.released(at, change),
                Kind::Node if !change.deleted => inner.node_written(at, change),
                Kind::VolumeAttachment => inner.attachment_deleted(at, change),
                _ => {}
            }
        }
        let key = (change.kind, change.key.clone());
        if change.deleted {
            inner.objects.remove(&key);
        } else {
            inner.objects.insert(key, change.after.clone());
        }
    }

    /// Judges a fence of podmon's as it arrives at the driver.
    pub fn fenced(&self, at: Duration, volume: &str, node_id: &str) {
        let mut inner = self.inner();
        if node_id.is_empty() {
            inner.find(
                Rule::NeverAllNodes,
                at,
                format!("{volume} was fenced from all nodes"),
            );
            return;
        }
        let Some(name) = inner.node_of_id(node_id) else {
            return;
        };
        let Some(node) = inner.node(&name) else {
            return;
        };
        let listed = journal(&node).is_some_and(|journal| {
            let volumes = journal["vols"].as_object().into_iter().flatten();
            let mut handles = volumes.map(|(_, volume)| volume["h"].as_str().unwrap_or_default());
            handles.any(|handle| handle == volume)
        });
        if !listed {
            inner.find(
                Rule::AnnounceFirst,
                at,
                format!("{volume} was fenced from {name}, whose journal does not list it"),
            );
        }
    }
}

/// The journal on a node, if there is one.
fn journal(node: &Value) -> Option<Value> {
    let text = node["metadata"]["annotations"][daemon::journal()].as_str()?;
    serde_json::from_str(text).ok()
}

fn listed(node: &Value) -> BTreeSet<String> {
    let Some(journal) = journal(node) else {
        return BTreeSet::new();
    };
    let pods = journal["pods"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(uid, _)| uid.clone());
    let gone = journal["gone"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str);
    pods.chain(gone.map(str::to_owned)).collect()
}

impl Inner {
    fn find(&mut self, rule: Rule, at: Duration, what: String) {
        self.history.tell(at, &format!("!! {rule:?}: {what}"));
        self.violations.push(Violation { rule, at, what });
    }

    fn object(&self, kind: Kind, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.objects
            .get(&(kind, (namespace.to_owned(), name.to_owned())))
            .cloned()
    }

    fn node(&self, name: &str) -> Option<Arc<Value>> {
        self.object(Kind::Node, "", name)
    }

    /// The array has not heard of the node for a while.
    fn out_of_sight(&self, at: Duration, node: &str) -> bool {
        let host = self.hosts.iter().find(|host| host.name() == node);
        let id = host.map(|host| host.state().id.clone());
        let array = self.array.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = id.and_then(|id| array.last_seen(&id));
        seen.is_none_or(|seen| at.saturating_sub(seen) > SILENCE)
    }

    fn node_of_id(&self, id: &str) -> Option<String> {
        let host = self
            .hosts
            .iter()
            .find(|host| host.state().id.as_str() == id)?;
        Some(host.name())
    }

    /// The PersistentVolumes of our driver that a pod uses, with their handles.
    fn volumes(&self, pod: &Value) -> BTreeMap<String, String> {
        let mut volumes = BTreeMap::new();
        for claim in claims_of(pod) {
            let claim = self.object(Kind::PersistentVolumeClaim, namespace(pod), claim);
            let volume = claim.and_then(|claim| {
                self.object(Kind::PersistentVolume, "", text(&claim, "/spec/volumeName"))
            });
            if let Some(volume) = volume.filter(|volume| text(volume, "/spec/csi/driver") == NAME) {
                volumes.insert(
                    name(&volume).to_owned(),
                    text(&volume, "/spec/csi/volumeHandle").to_owned(),
                );
            }
        }
        volumes
    }

    fn released(&mut self, at: Duration, change: &Change) {
        self.releases += 1;
        let pod = change.after.clone();
        let who = format!(
            "{}/{} ({}) on {}",
            namespace(&pod),
            name(&pod),
            uid(&pod),
            node_of(&pod)
        );
        if pod["metadata"]["labels"][PROTECTED.0] != PROTECTED.1 || is_finished(&pod) {
            self.find(Rule::OnlyProtected, at, format!("{who} was deleted"));
        }
        let volumes = self.volumes(&pod);
        let id = self
            .hosts
            .iter()
            .find(|host| host.name() == node_of(&pod))
            .map(|host| host.state().id.clone());
        for handle in volumes.values() {
            let array = self.array.lock().unwrap_or_else(PoisonError::into_inner);
            let recent = array
                .records()
                .iter()
                .rev()
                .take_while(|record| at.saturating_sub(record.at) <= STANDS);
            let fenced = recent.into_iter().any(|record| {
                record.operation == Operation::Revoke
                    && record.verdict == Verdict::Accepted
                    && record.volume.as_str() == handle
                    && Some(&record.node) == id.as_ref()
            });
            drop(array);
            if !fenced {
                self.find(
                    Rule::FenceBeforeRelease,
                    at,
                    format!("{who} was released, {handle} was not fenced"),
                );
            }
        }
        if let Some(node) = self.node(node_of(&pod)).filter(|_| !volumes.is_empty()) {
            if !has_taint(&node, &daemon::taint(), "NoSchedule") {
                self.find(
                    Rule::TaintBeforeRelease,
                    at,
                    format!("{who} was released, the node has no taint"),
                );
            }
            if !listed(&node).contains(uid(&pod)) {
                self.find(
                    Rule::AnnounceFirst,
                    at,
                    format!("{who} was released, the journal does not list it"),
                );
            }
        }
    }

    fn attachment_deleted(&mut self, at: Duration, change: &Change) {
        let before = change.before.as_deref();
        if !change.deleted
            && !(is_terminating(&change.after)
                && before.is_some_and(|before| !is_terminating(before)))
        {
            return;
        }
        let (volume, node) = (
            text(&change.after, "/spec/source/persistentVolumeName"),
            text(&change.after, "/spec/nodeName"),
        );
        let pods: Vec<Arc<Value>> = self
            .objects
            .iter()
            .filter(|((kind, _), pod)| {
                *kind == Kind::Pod && node_of(pod) == node && !is_finished(pod)
            })
            .map(|(_, pod)| pod.clone())
            .collect();
        for pod in pods {
            if self.volumes(&pod).contains_key(volume) {
                let what = format!(
                    "the attachment of {volume} to {node} was deleted, {} is still bound there",
                    name(&pod)
                );
                self.find(Rule::PodBeforeAttachment, at, what);
            }
        }
    }

    fn node_written(&mut self, at: Duration, change: &Change) {
        let Some(before) = change.before.clone() else {
            return;
        };
        let (after, node) = (change.after.clone(), name(&change.after).to_owned());
        let ours = daemon::taint();
        let others = |node: &Value| -> Vec<Value> {
            let taints = items(node, "/spec/taints").cloned();
            taints
                .filter(|taint| !text(taint, "/key").starts_with(ours.as_str()))
                .collect()
        };
        if others(&before) != others(&after) {
            self.find(
                Rule::OthersTaints,
                at,
                format!("{} changed the taints of others on {node}", change.actor),
            );
        }
        let failed = condition(&before, "Ready") != "True"
            && has_taint(&before, "node.kubernetes.io/unreachable", "")
            || has_taint(&before, "node.kubernetes.io/out-of-service", "")
            || self.out_of_sight(at, &node);
        let fresh: Vec<String> = listed(&after)
            .difference(&listed(&before))
            .cloned()
            .collect();
        if journal(&before).is_none()
            && !fresh.is_empty()
            && !failed
            && change.actor.starts_with("podmon-ctl")
        {
            self.find(
                Rule::Evidence,
                at,
                format!(
                    "{} announced {fresh:?} on {node}, which had not failed",
                    change.actor
                ),
            );
        }
        if has_taint(&before, &ours, "NoSchedule") && !has_taint(&after, &ours, "NoSchedule") {
            self.lifted(at, &change.actor, &node, &before);
        }
    }

    fn lifted(&mut self, at: Duration, actor: &str, node: &str, before: &Value) {
        let open = journal(before).is_some_and(|journal| journal["phase"] == "open");
        if actor.starts_with("podmon-node") && open {
            self.find(
                Rule::TaintLast,
                at,
                format!("{actor} lifted the taint of {node} with an open journal"),
            );
        }
        let bound: BTreeSet<&str> = self
            .objects
            .iter()
            .filter(|((kind, _), pod)| *kind == Kind::Pod && node_of(pod) == node)
            .map(|(_, pod)| uid(pod))
            .collect();
        let mut left = Vec::new();
        for host in self.hosts.iter().filter(|host| host.name() == node) {
            for (uid, pod) in &host.state().pods {
                if !bound.contains(uid.as_str()) && (pod.running || !pod.published.is_empty()) {
                    left.push(format!("{} ({uid})", pod.name));
                }
            }
        }
        if !left.is_empty() {
            self.find(
                Rule::TaintLast,
                at,
                format!(
                    "{actor} lifted the taint of {node} over {}",
                    left.join(", ")
                ),
            );
        }
    }
}
