//! What is said to an array and by it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::storage::name::{Epoch, NodeId, VolumeId};

/// What happens when a second node asks for a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Policy {
    /// It is granted, as by many real arrays; nothing but the caller's order keeps the nodes apart.
    #[default]
    Permissive,
    /// It is refused while another node has access.
    Exclusive,
}

/// What a new grant to a node means for the sessions that the node kept from a revoked one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum StaleSessions {
    /// They stay dead. The ledger shows their refused requests.
    #[default]
    Refused,
    /// They live again, as with a LUN that is mapped to the same host once more.
    Revived,
}

/// The way from a node to the array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Path {
    #[default]
    Up,
    /// Requests wait, and arrive when the path is back.
    Stalled,
    /// Requests fail at once, without reaching the array.
    Failing,
}

/// In whose name a request for data is made.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Access {
    pub volume: VolumeId,
    pub node: NodeId,
    pub epoch: Epoch,
}

/// What the array is told to say in place of the truth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Lie {
    pub connected: Option<bool>,
    pub io_in_progress: Option<bool>,
}

/// What the array tells of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connectivity {
    /// The node was heard a moment ago.
    pub connected: bool,
    /// One of the volumes asked for was read or written a moment ago, by whatever node.
    pub io_in_progress: bool,
}

/// A volume as the array lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeState {
    pub volume: VolumeId,
    pub bytes: u64,
    pub granted: BTreeMap<NodeId, Epoch>,
}

/// Why the array does not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Refusal {
    #[error("there is no volume {0}")]
    UnknownVolume(VolumeId),
    #[error("the array has never heard of node {0}")]
    UnknownNode(NodeId),
    #[error("volume {volume} exists with {bytes} bytes")]
    Exists { volume: VolumeId, bytes: u64 },
    #[error("volume {volume} is granted to node {holder}")]
    Held { volume: VolumeId, holder: NodeId },
    #[error("node {} has no access to volume {} by grant {}", .0.node, .0.volume, .0.epoch)]
    NoAccess(Access),
    #[error("volume {volume} has {bytes} bytes, not {asked}")]
    BeyondEnd {
        volume: VolumeId,
        bytes: u64,
        asked: u64,
    },
    #[error("node {node} has no path to the array ({path:?})")]
    NoPath { node: NodeId, path: Path },
    #[error("the array failed: {0}")]
    Broken(String),
}
