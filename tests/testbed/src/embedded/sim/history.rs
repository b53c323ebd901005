//! What happened, in order: a digest for machines, a story for people.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::embedded::api::{Change, Kind};
use crate::embedded::object::*;
use crate::storage::ledger::Record;

/// The record of one simulation; clones share it.
#[derive(Clone)]
pub struct History(Arc<Mutex<Inner>>);

struct Inner {
    digest: Sha256,
    story: Vec<String>,
}

/// Lines of a story at most; the first ones are kept, since what went wrong began there.
const LINES: usize = 20_000;

impl History {
    #[allow(clippy::new_without_default)]
    pub fn new() -> History {
        History(Arc::new(Mutex::new(Inner {
            digest: Sha256::new(),
            story: Vec::new(),
        })))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line to the story.
    pub fn tell(&self, at: Duration, line: &str) {
        let mut inner = self.inner();
        if inner.story.len() < LINES {
            inner.story.push(format!("{:9.3} {line}", at.as_secs_f64()));
        }
    }

    /// Takes a change of the API in.
    pub fn change(&self, at: Duration, change: &Change) {
        let mut inner = self.inner();
        inner.digest.update(change.version.to_le_bytes());
        inner.digest.update(at.as_micros().to_le_bytes());
        inner.digest.update(change.actor.as_bytes());
        let object = serde_json::to_vec(&*change.after).unwrap_or_default();
        inner.digest.update(object);
        drop(inner);
        if let Some(line) = line(change) {
            self.tell(at, &line);
        }
    }

    /// The digest so far, with the ledger.
    pub fn digest(&self, ledger: &[Record]) -> String {
        let mut digest = self.inner().digest.clone();
        for record in ledger {
            digest.update(record.to_string().as_bytes());
        }
        digest
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    pub fn story(&self) -> Vec<String> {
        self.inner().story.clone()
    }
}

/// A change in one line; leases and what only repeats itself are left out.
fn line(change: &Change) -> Option<String> {
    let object = &change.after;
    let what = match (&change.before, change.deleted) {
        (None, _) => "made",
        (_, true) => "removed",
        (Some(_), false) => "changed",
    };
    let detail = match change.kind {
        Kind::Lease if change.key.1 == "podmon-1" => {
            let holder = text(object, "/spec/holderIdentity");
            let before = change
                .before
                .as_deref()
                .map_or("", |before| text(before, "/spec/holderIdentity"));
            if holder == before {
                return None;
            }
            format!("held by {holder:?}")
        }
        Kind::Lease | Kind::Namespace => return None,
        Kind::Event => format!("{}: {}", text(object, "/reason"), text(object, "/message")),
        Kind::Node => {
            let taints: Vec<String> = items(object, "/spec/taints")
                .map(|taint| format!("{}:{}", text(taint, "/key"), text(taint, "/effect")))
                .collect();
            let journal = object["metadata"]["annotations"][crate::embedded::daemon::journal()]
                .as_str()
                .unwrap_or("none");
            format!(
                "Ready {}, taints [{}], journal {journal}",
                condition(object, "Ready"),
                taints.join(" ")
            )
        }
        Kind::Pod => format!(
            "{} on {:?}, {}, Ready {}{}",
            uid(object).get(..8).unwrap_or_default(),
            node_of(object),
            text(object, "/status/phase"),
            condition(object, "Ready"),
            if is_terminating(object) {
                ", terminating"
            } else {
                ""
            }
        ),
        Kind::VolumeAttachment => format!(
            "{} on {}, attached {}{}",
            text(object, "/spec/source/persistentVolumeName"),
            text(object, "/spec/nodeName"),
            object["status"]["attached"],
            if is_terminating(object) {
                ", terminating"
            } else {
                ""
            }
        ),
        _ => String::new(),
    };
    let name = if change.kind == Kind::VolumeAttachment {
        ""
    } else {
        change.key.1.as_str()
    };
    Some(format!(
        "{}: {what} {} {name} {detail}",
        change.actor,
        change.kind.facts().name
    ))
}
