//! Events: what podmon tells people on the object that it concerns. Sent in the background; a lost event never holds
//! up or fails what it tells of.

use std::collections::BTreeMap;

use futures::stream::{FuturesUnordered, StreamExt};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::ObjectMeta;
use tokio::sync::mpsc;

use super::{Cluster, ClusterError, REQUEST};
use crate::clock::Clock;
use crate::domain::{Incarnation, NodeName, NodeUid};

/// The component that existing alerts and dashboards look for.
const COMPONENT: &str = "podmon";
/// Reports that wait to be sent at most; beyond that they are dropped and counted.
const QUEUE: usize = 4096;
/// Requests under way at once.
const PARALLEL: usize = 8;
/// Events that are remembered in order to count repetitions instead of writing them again.
const REMEMBERED: usize = 1024;
/// The API refuses longer messages.
const MAX_MESSAGE: usize = 1024;

/// What an event is about.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Subject {
    Pod(Incarnation),
    Node(NodeName, NodeUid),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    Normal,
    Warning,
}

/// One thing to tell.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Report {
    pub subject: Subject,
    pub severity: Severity,
    /// A short word in CamelCase, at most 128 characters.
    pub reason: String,
    pub message: String,
}

/// Where reports are handed in.
#[derive(Clone)]
pub struct Events {
    queue: mpsc::Sender<Report>,
}

impl Events {
    /// The queue, and the task that sends what is put in.
    pub fn new(cluster: Cluster, clock: Clock) -> (Self, impl Future<Output = ()>) {
        let (queue, reports) = mpsc::channel(QUEUE);
        (Self { queue }, send(cluster, clock, reports))
    }

    /// Hands in a report; never waits.
    pub fn report(&self, report: Report) {
        if let Err(error) = self.queue.try_send(report) {
            tracing::warn!(%error, "An event is dropped");
        }
    }
}

/// An event that stands in the API: the next of its kind only counts it.
struct Sent {
    namespace: String,
    name: String,
    count: u32,
    used: u64,
}

async fn send(cluster: Cluster, clock: Clock, mut reports: mpsc::Receiver<Report>) {
    let mut sent: BTreeMap<Report, Sent> = BTreeMap::new();
    let mut under_way = FuturesUnordered::new();
    // Told again before the first was written: counted then, not written beside it.
    let mut repeated: BTreeMap<Report, u32> = BTreeMap::new();
    let mut number = 0;
    loop {
        tokio::select! {
            report = reports.recv(), if under_way.len() < PARALLEL => {
                let Some(report) = report else { break };
                if let Some(times) = repeated.get_mut(&report) {
                    *times += 1;
                    continue;
                }
                repeated.insert(report.clone(), 0);
                number += 1;
                let before = sent.remove(&report);
                under_way.push(send_one(&cluster, &clock, before, report, 1, number));
            }
            Some((report, done)) = under_way.next() => {
                let times = repeated.remove(&report).unwrap_or(0);
                let written = remember(&mut sent, &report, done);
                if written && times > 0 {
                    repeated.insert(report.clone(), 0);
                    number += 1;
                    let before = sent.remove(&report);
                    under_way.push(send_one(&cluster, &clock, before, report, times, number));
                }
            }
        }
    }
    while under_way.next().await.is_some() {}
}

/// Whether it was written.
fn remember(
    sent: &mut BTreeMap<Report, Sent>,
    report: &Report,
    done: Result<Sent, ClusterError>,
) -> bool {
    let written = done.is_ok();
    match done {
        Ok(event) => drop(sent.insert(report.clone(), event)),
        // Existing charts grant no events on some nodes; the log has the same text.
        Err(error) if error.is_forbidden() => tracing::debug!(%error, "No right to write events"),
        Err(error) => tracing::warn!(%error, "An event is lost"),
    }
    if sent.len() > REMEMBERED {
        let oldest = sent.iter().min_by_key(|(_, event)| event.used);
        if let Some(report) = oldest.map(|(report, _)| report.clone()) {
            sent.remove(&report);
        }
    }
    written
}

async fn send_one(
    cluster: &Cluster,
    clock: &Clock,
    before: Option<Sent>,
    report: Report,
    times: u32,
    number: u64,
) -> (Report, Result<Sent, ClusterError>) {
    if let Some(mut event) = before {
        event.count += times;
        event.used = number;
        let last = clock.wall().to_string();
        let counted = cluster
            .count_event(&event.namespace, &event.name, event.count, &last, REQUEST)
            .await;
        match counted {
            Ok(()) => return (report, Ok(event)),
            // Events expire after an hour; then it is written anew.
            Err(error) if error.is_not_found() => {}
            Err(error) => return (report, Err(error)),
        }
    }
    let event = compose(&report, clock, number);
    let written = cluster.create_event(&event, REQUEST).await.map(|()| Sent {
        namespace: event.metadata.namespace.unwrap_or_default(),
        name: event.metadata.name.unwrap_or_default(),
        count: 1,
        used: number,
    });
    (report, written)
}

fn compose(report: &Report, clock: &Clock, number: u64) -> core::Event {
    let wall = clock.wall();
    let about = match &report.subject {
        Subject::Pod(pod) => core::ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            namespace: Some(pod.key.namespace.clone()),
            name: Some(pod.key.name.clone()),
            uid: Some(pod.uid.to_string()),
            ..Default::default()
        },
        Subject::Node(name, uid) => core::ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Node".into()),
            name: Some(name.to_string()),
            uid: Some(uid.to_string()),
            ..Default::default()
        },
    };
    // A cluster-scoped object's events live in `default`.
    let namespace = about.namespace.clone().unwrap_or_else(|| "default".into());
    let nanoseconds = wall.as_nanosecond().unsigned_abs() as u64 + number % 1000;
    let mut message = report.message.clone();
    if message.len() > MAX_MESSAGE {
        let end = (0..=MAX_MESSAGE - 3)
            .rev()
            .find(|at| message.is_char_boundary(*at));
        message.truncate(end.unwrap_or(0));
        message.push_str("...");
    }
    core::Event {
        metadata: ObjectMeta {
            name: Some(format!(
                "{}.{nanoseconds:016x}",
                about.name.as_deref().unwrap_or_default()
            )),
            namespace: Some(namespace),
            ..Default::default()
        },
        involved_object: about,
        type_: Some(
            match report.severity {
                Severity::Normal => "Normal",
                Severity::Warning => "Warning",
            }
            .into(),
        ),
        reason: Some(report.reason.clone()),
        message: Some(message),
        source: Some(core::EventSource {
            component: Some(COMPONENT.into()),
            host: None,
        }),
        reporting_component: Some(COMPONENT.into()),
        first_timestamp: Some(Time(wall)),
        last_timestamp: Some(Time(wall)),
        count: Some(1),
        ..Default::default()
    }
}
