//! For how long things have been as they are, by our own clock: what a single read cannot show.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::clock::Moment;
use crate::cluster::node::Node;
use crate::domain::{NodeUid, PodUid, VolumeHandle};
use crate::journal::{Found, Phase};
use crate::names::Names;

/// What the node was seen to be, since when. A process that has just started has seen nothing, and so waits longer.
#[derive(Debug, Default)]
pub struct History {
    seen: Option<Seen>,
    since: Moment,
    taint: Option<(Option<String>, Moment)>,
    /// Counts evacuations and their states, so that an answer can be told to belong to an earlier one.
    generation: u64,
    unstaged: BTreeSet<VolumeHandle>,
}

/// What makes the kubelet's time start again when it changes.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Seen {
    node: NodeUid,
    healthy: bool,
    tainted: bool,
    journal: Standing,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Standing {
    Absent,
    Journal(String, Phase, BTreeSet<PodUid>),
    Unreadable,
}

impl History {
    /// Takes in what the Node looks like now.
    pub fn observe(&mut self, node: &Node, names: &Names, now: Moment) {
        let journal = match node.read_journal() {
            Found::Absent => Standing::Absent,
            Found::Journal(journal) => Standing::Journal(journal.id, journal.phase, journal.gone),
            Found::Unreadable(_) => Standing::Unreadable,
        };
        let seen = Seen {
            node: node.uid.clone(),
            healthy: node.ready && !node.unreachable(),
            tainted: node.tainted(names),
            journal,
        };
        let before = self.seen.as_ref().map(|seen| &seen.journal);
        if before != Some(&seen.journal) {
            self.generation += 1;
            self.unstaged.clear();
        }
        if self.seen.as_ref() != Some(&seen) {
            self.since = now;
            self.seen = Some(seen);
        }
        let ours = node.taints.iter().find(|t| t.key == names.taint);
        match (ours, &self.taint) {
            (None, _) => self.taint = None,
            (Some(ours), Some((added, _))) if *added == ours.time_added => {}
            (Some(ours), _) => self.taint = Some((ours.time_added.clone(), now)),
        }
    }

    /// The API server could not be heard: what happened meanwhile is not known, so all waiting begins anew.
    pub fn interrupted(&mut self) {
        if let Some(seen) = &mut self.seen {
            seen.healthy = false;
        }
    }

    /// For how long the kubelet has been Ready, with this evacuation as it now stands.
    pub fn kubelet_had(&self, now: Moment) -> Duration {
        match &self.seen {
            Some(seen) if seen.healthy => now - self.since,
            _ => Duration::ZERO,
        }
    }

    /// For how long nothing about it has changed.
    pub fn unchanged_for(&self, now: Moment) -> Duration {
        now - self.since
    }

    /// For how long our taint has been on the node.
    pub fn tainted_for(&self, now: Moment) -> Duration {
        self.taint
            .as_ref()
            .map_or(Duration::ZERO, |(_, since)| now - *since)
    }

    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The driver said that the volume is unstaged; it counts for the evacuation for which it was asked.
    pub fn unstaged(&mut self, volume: VolumeHandle, generation: u64) {
        if generation == self.generation {
            self.unstaged.insert(volume);
        }
    }

    pub fn all_unstaged(&self) -> &BTreeSet<VolumeHandle> {
        &self.unstaged
    }
}
