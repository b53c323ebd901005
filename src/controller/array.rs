//! What the array sees of the nodes, by polling it. Only *disconnected*, as often in a row as the threshold asks, is
//! loss; an error is unknown and counts as nothing (design.md, invariant 3).

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::Moment;
use crate::domain::{NodeId, NodeName, NodeUid};
use crate::journal::Found;

use super::step::Sight;
use super::world::World;

/// How often a driver without the extension is asked whether it has it by now.
const UNSUPPORTED_AGAIN: Duration = Duration::from_secs(60);

/// One question about one node, no volume named.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Poll {
    pub node: NodeName,
    pub uid: NodeUid,
    /// The driver's node id by the kubelet's annotation, if it has one.
    pub annotated_id: Option<NodeId>,
}

/// Answers in a row, by Node object: a node registered anew starts afresh.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Row {
    under_way: bool,
    disconnected: u32,
    connected: u32,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Arrays {
    rows: BTreeMap<NodeUid, Row>,
    next_sweep: Moment,
    unsupported: bool,
}

impl Arrays {
    /// The polls that are due: every node with protected pods, or whose array was lost and has not come back.
    pub fn due(&mut self, world: &World, rate: Duration, now: Moment) -> Vec<Poll> {
        if now < self.next_sweep || !world.complete() {
            return Vec::new();
        }
        self.next_sweep = now
            + if self.unsupported {
                rate.max(UNSUPPORTED_AGAIN)
            } else {
                rate
            };
        let watched = world.nodes().filter(|node| {
            let lost = match node.read_journal() {
                Found::Journal(journal) => journal.is_open() && journal.array.is_some(),
                Found::Absent | Found::Unreadable(_) => false,
            };
            lost || world.pods_on(&node.name).any(|pod| !pod.finished())
        });
        // One node is enough to learn that the driver has the call after all.
        let watched: Vec<_> = watched
            .take(if self.unsupported { 1 } else { usize::MAX })
            .collect();
        self.rows
            .retain(|uid, row| row.under_way || watched.iter().any(|node| node.uid == *uid));
        let mut polls = Vec::new();
        for node in watched {
            let row = self.rows.entry(node.uid.clone()).or_default();
            if !std::mem::replace(&mut row.under_way, true) {
                polls.push(Poll {
                    node: node.name.clone(),
                    uid: node.uid.clone(),
                    annotated_id: node.annotated_id.clone(),
                });
            }
        }
        polls
    }

    /// When the next sweep is due.
    pub fn wake(&self) -> Moment {
        self.next_sweep
    }

    /// Takes an answer; whether it changed what [`Self::lost`] or [`Self::seen`] say.
    pub fn record(&mut self, uid: &NodeUid, answer: Result<Sight, String>, threshold: u32) -> bool {
        let before = (self.lost(uid, threshold), self.seen(uid, threshold));
        let Some(row) = self.rows.get_mut(uid) else {
            return false;
        };
        row.under_way = false;
        let (disconnected, connected) = match answer {
            Ok(Sight::Seen {
                connected: true, ..
            }) => (0, row.connected.saturating_add(1)),
            Ok(Sight::Seen {
                connected: false, ..
            }) => (row.disconnected.saturating_add(1), 0),
            Ok(Sight::Unsupported) | Err(_) => (0, 0),
        };
        (row.disconnected, row.connected) = (disconnected, connected);
        match answer {
            Ok(Sight::Unsupported) => self.unsupported = true,
            Ok(Sight::Seen { .. }) => self.unsupported = false,
            Err(_) => {}
        }
        before != (self.lost(uid, threshold), self.seen(uid, threshold))
    }

    /// The array answered *disconnected* as often in a row as the threshold asks.
    pub fn lost(&self, uid: &NodeUid, threshold: u32) -> bool {
        self.rows
            .get(uid)
            .is_some_and(|row| row.disconnected >= threshold)
    }

    /// The array answered *connected* as often in a row as the threshold asks.
    pub fn seen(&self, uid: &NodeUid, threshold: u32) -> bool {
        self.rows
            .get(uid)
            .is_some_and(|row| row.connected >= threshold)
    }
}
