//! What can be asked of an array, as values: the same on the wire and in one process.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::array::{Access, Array, Connectivity, Lie, Path, Refusal, VolumeState};
use super::ledger::Record;
use super::name::{Epoch, NodeId, VolumeId};
use super::trouble::{Call, Rule, Trouble};

/// One request to an array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    Create {
        volume: VolumeId,
        bytes: u64,
    },
    Delete {
        volume: VolumeId,
    },
    Volumes,
    Grant {
        volume: VolumeId,
        node: NodeId,
    },
    Revoke {
        volume: VolumeId,
        /// None: every node.
        node: Option<NodeId>,
        /// Only answer, do not fence.
        pretend: bool,
    },
    Connectivity {
        node: NodeId,
        volumes: Vec<VolumeId>,
        /// How far back I/O counts; none: the array's own sample.
        sample: Option<Duration>,
    },
    /// A sign of life.
    Seen {
        node: NodeId,
    },
    Read {
        by: Access,
        offset: u64,
        length: u64,
    },
    /// Its data travel beside it.
    Write {
        by: Access,
        offset: u64,
        length: u64,
    },
    Sync {
        by: Access,
    },
    SetPath {
        node: NodeId,
        path: Path,
    },
    SetLie {
        node: NodeId,
        lie: Lie,
    },
    AddRule(Rule),
    ClearRules,
    /// The trouble that a call of the driver is in.
    Trouble {
        call: Call,
        volumes: Vec<VolumeId>,
        node: Option<NodeId>,
    },
    /// The records after this sequence number.
    Ledger {
        after: u64,
    },
}

/// What an array answers when it does not refuse.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    Done,
    Granted(Epoch),
    Volumes(Vec<VolumeState>),
    Connectivity(Connectivity),
    Trouble(Option<Trouble>),
    Ledger(Vec<Record>),
}

impl Request {
    /// The node whose path to the array this request takes; the others come from beside the array.
    pub fn path_of(&self) -> Option<&NodeId> {
        match self {
            Self::Seen { node } => Some(node),
            Self::Read { by, .. } | Self::Write { by, .. } | Self::Sync { by } => Some(&by.node),
            _ => None,
        }
    }
}

impl Array {
    /// Decides one request.
    pub fn answer(&mut self, now: Duration, request: Request) -> Result<Answer, Refusal> {
        let done = |()| Answer::Done;
        match request {
            Request::Create { volume, bytes } => self.create(&volume, bytes).map(done),
            Request::Delete { volume } => self.delete(&volume).map(done),
            Request::Volumes => Ok(Answer::Volumes(self.volumes())),
            Request::Grant { volume, node } => self.grant(now, &volume, &node).map(Answer::Granted),
            Request::Revoke {
                volume,
                node,
                pretend,
            } => {
                if pretend {
                    self.pretend_to_revoke(now, &volume, node.as_ref());
                } else {
                    self.revoke(now, &volume, node.as_ref());
                }
                Ok(Answer::Done)
            }
            Request::Connectivity {
                node,
                volumes,
                sample,
            } => self
                .connectivity(now, &node, &volumes, sample)
                .map(Answer::Connectivity),
            Request::Seen { node } => self.seen(now, &node).map(done),
            Request::Read { by, offset, length } => self.read(now, &by, offset, length).map(done),
            Request::Write { by, offset, length } => self.write(now, &by, offset, length).map(done),
            Request::Sync { by } => self.sync(now, &by).map(done),
            Request::SetPath { node, path } => {
                self.set_path(&node, path);
                Ok(Answer::Done)
            }
            Request::SetLie { node, lie } => {
                self.set_lie(&node, lie);
                Ok(Answer::Done)
            }
            Request::AddRule(rule) => {
                self.add_rule(rule);
                Ok(Answer::Done)
            }
            Request::ClearRules => {
                self.clear_rules();
                Ok(Answer::Done)
            }
            Request::Trouble {
                call,
                volumes,
                node,
            } => Ok(Answer::Trouble(self.trouble(call, &volumes, node.as_ref()))),
            Request::Ledger { after } => Ok(Answer::Ledger(self.ledger().after(after).to_vec())),
        }
    }
}
