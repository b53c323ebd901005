//! The journal of an evacuation: one annotation on the Node, by which the two halves shake hands (protocol.md §1).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::domain::{AttachmentUid, NodeId, NodeUid, PodKey, PodUid, VolumeHandle, VolumeName};

/// The format that this podmon writes.
pub const VERSION: u32 = 1;
/// Pods that are announced at once at most; further groups wait until these are released.
pub const MAX_PODS: usize = 64;
/// Size of the annotation at most, in bytes; the API allows 256 KiB for all annotations of a Node together.
pub const MAX_BYTES: usize = 32 * 1024;

/// One evacuation of one node, as it stands on its Node object.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Journal {
    #[serde(rename = "v")]
    pub version: u32,
    /// Names this evacuation; a closed journal that is opened again gets a new one.
    pub id: String,
    /// The leader at work and its term.
    pub by: String,
    pub phase: Phase,
    pub why: Cause,
    /// The Node object it was written for.
    pub node: NodeUid,
    /// For people only: the boot id and the wall-clock time at the announcement.
    #[serde(default)]
    pub boot: String,
    #[serde(default)]
    pub since: String,
    /// Only after array loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array: Option<ArraySight>,
    /// Listed: a fence may have been sent.
    #[serde(default)]
    pub pods: BTreeMap<PodUid, Entry>,
    #[serde(rename = "vols", default)]
    pub volumes: BTreeMap<VolumeName, Volume>,
    /// Released: the node still looks for their zombies.
    #[serde(default)]
    pub gone: BTreeSet<PodUid>,
}

/// A listed incarnation and its volumes of ours.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Entry {
    #[serde(rename = "n")]
    pub key: PodKey,
    #[serde(rename = "v", default)]
    pub volumes: BTreeSet<VolumeName>,
}

/// What fencing and releasing a volume needs; written down because its objects may be gone by then.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Volume {
    #[serde(rename = "h")]
    pub handle: VolumeHandle,
    /// Every node id the volume may be published to; the attachment's own comes first.
    #[serde(rename = "i")]
    pub node_ids: Vec<NodeId>,
    /// UID of its attachment to this node; empty if there was none.
    #[serde(rename = "va", default = "no_attachment")]
    pub attachment: AttachmentUid,
}

fn no_attachment() -> AttachmentUid {
    AttachmentUid::from("")
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The controller is at work.
    Open,
    /// The node may requalify.
    Closed,
}

/// Why the node was evacuated; the first two are also the reasons of the contract's events.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Cause {
    NodeFailure,
    ArrayConnectivityLoss,
    OutOfService,
    NodeRecreated,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ArraySight {
    /// The array does not see the node.
    Lost,
    /// It saw it in as many polls in a row as the threshold asks for.
    Seen,
}

/// What stands under the journal's key on a Node.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Found {
    /// Nothing: beside our taint, an older podmon's evacuation.
    Absent,
    Journal(Journal),
    /// Blocks the node; the controller replaces it by fresh evidence only (protocol.md §3).
    Unreadable(Defect),
}

/// Why a journal cannot be used.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Defect {
    #[error("not a journal: {0}")]
    Malformed(String),
    #[error("format {found}, this podmon knows format {VERSION}")]
    Newer { found: u32 },
    #[error("written for another Node object ({found})")]
    Foreign { found: NodeUid },
}

#[derive(Deserialize)]
struct Version {
    #[serde(rename = "v")]
    version: u32,
}

impl Journal {
    /// Reads the annotation's value as found on the Node with this UID.
    pub fn read(annotation: Option<&str>, node: &NodeUid) -> Found {
        let Some(text) = annotation else {
            return Found::Absent;
        };
        let malformed =
            |error: serde_json::Error| Found::Unreadable(Defect::Malformed(error.to_string()));
        match serde_json::from_str::<Version>(text) {
            Ok(Version { version: VERSION }) => {}
            Ok(Version { version }) => {
                return Found::Unreadable(Defect::Newer { found: version });
            }
            Err(error) => return malformed(error),
        }
        match serde_json::from_str::<Journal>(text) {
            Ok(journal) if journal.node != *node => Found::Unreadable(Defect::Foreign {
                found: journal.node,
            }),
            Ok(journal) => match journal.unresolved() {
                Some(volume) => Found::Unreadable(Defect::Malformed(format!(
                    "volume {volume} of a listed pod is not described"
                ))),
                None => Found::Journal(journal),
            },
            Err(error) => malformed(error),
        }
    }

    /// A volume that an entry names and `vols` does not describe: it could never be fenced.
    fn unresolved(&self) -> Option<&VolumeName> {
        let mut named = self.pods.values().flat_map(|entry| &entry.volumes);
        named.find(|volume| !self.volumes.contains_key(*volume))
    }

    /// The annotation's value.
    pub fn write(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    pub fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Whether this incarnation is listed or released here.
    pub fn mentions(&self, uid: &PodUid) -> bool {
        self.pods.contains_key(uid) || self.gone.contains(uid)
    }

    /// Whether it fits the limits of protocol.md §1.
    pub fn fits(&self) -> bool {
        self.pods.len() <= MAX_PODS && self.write().len() <= MAX_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = r#"{"v":1,"id":"9f3c01d2","by":"ctl-0/17","phase":"open","why":"NodeFailure","node":"n1","boot":"b","since":"2026-01-01T00:00:00Z","array":"lost",
        "pods":{"u1":{"n":"db/db-0","v":["pv1"]}},"vols":{"pv1":{"h":"vol1","i":["id1"],"va":"a1"}},"gone":["u0"]}"#;

    fn read(text: &str) -> Found {
        Journal::read(Some(text), &"n1".into())
    }

    #[test]
    fn reads_what_it_writes() {
        let Found::Journal(journal) = read(EXAMPLE) else {
            panic!("unreadable")
        };
        assert!(
            journal.is_open() && journal.mentions(&"u0".into()) && journal.mentions(&"u1".into())
        );
        assert_eq!(journal.array, Some(ArraySight::Lost));
        assert_eq!(read(&journal.write()), Found::Journal(journal));
    }

    #[test]
    fn absent_is_not_unreadable() {
        assert_eq!(Journal::read(None, &"n1".into()), Found::Absent);
        assert!(matches!(read(""), Found::Unreadable(Defect::Malformed(_))));
    }

    #[test]
    fn another_version_node_or_shape_is_unreadable() {
        let newer = EXAMPLE.replace(r#""v":1,"#, r#""v":2,"#);
        assert_eq!(read(&newer), Found::Unreadable(Defect::Newer { found: 2 }));
        let foreign = Journal::read(Some(EXAMPLE), &"n2".into());
        assert_eq!(
            foreign,
            Found::Unreadable(Defect::Foreign { found: "n1".into() })
        );
        for broken in [
            EXAMPLE.replace("\"open\"", "\"half\""),
            EXAMPLE.replace("\"pv1\":{", "\"pv2\":{"),
            EXAMPLE.replace("db/db-0", "db-0"),
        ] {
            assert!(
                matches!(read(&broken), Found::Unreadable(Defect::Malformed(_))),
                "{broken}"
            );
        }
    }
}
