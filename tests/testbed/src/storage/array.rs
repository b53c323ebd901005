//! The array: who may read and write which volume, decided without I/O and without a clock.
//!
//! Everything goes through one `&mut Array`, so the ledger's order is the order of the decisions. Whoever carries out
//! an accepted write must do so before it lets go of the array. Times are durations since any fixed moment.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::ledger::{Entry, Ledger, Operation, Record, Verdict};
use super::name::{Epoch, NodeId, VolumeId};
use super::trouble::{Call, Rule, Rules, Trouble};

mod terms;

pub use terms::{Access, Connectivity, Lie, Path, Policy, Refusal, StaleSessions, VolumeState};

#[derive(Debug)]
struct Volume {
    bytes: u64,
    granted: BTreeMap<NodeId, Epoch>,
    last_io: Option<Duration>,
}

#[derive(Debug, Default)]
struct Node {
    last_seen: Option<Duration>,
    path: Path,
    lie: Lie,
}

/// The array. See the module.
#[derive(Debug)]
pub struct Array {
    policy: Policy,
    stale: StaleSessions,
    silence: Duration,
    sample: Duration,
    volumes: BTreeMap<VolumeId, Volume>,
    nodes: BTreeMap<NodeId, Node>,
    /// Grants whose revocation was only pretended: the table has forgotten them, the data path has not.
    ghosts: BTreeSet<Access>,
    last_epoch: Epoch,
    ledger: Ledger,
    rules: Rules,
}

impl Array {
    /// An array without volumes that has heard of no node.
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            stale: StaleSessions::default(),
            silence: Duration::from_secs(2),
            sample: Duration::from_secs(2),
            volumes: BTreeMap::new(),
            nodes: BTreeMap::new(),
            ghosts: BTreeSet::new(),
            last_epoch: Epoch(0),
            ledger: Ledger::default(),
            rules: Rules::default(),
        }
    }

    /// Chooses what a new grant does to the sessions of an older one.
    pub fn with_stale_sessions(self, stale: StaleSessions) -> Self {
        Self { stale, ..self }
    }

    /// A node that was not heard for this long counts as disconnected.
    pub fn with_silence(self, silence: Duration) -> Self {
        Self { silence, ..self }
    }

    /// I/O within this time counts as in progress, when the caller does not name a time.
    pub fn with_sample(self, sample: Duration) -> Self {
        Self { sample, ..self }
    }

    /// Makes a volume; making it again with the same size does nothing.
    pub fn create(&mut self, volume: &VolumeId, bytes: u64) -> Result<(), Refusal> {
        match self.volumes.get(volume) {
            Some(old) if old.bytes != bytes => Err(Refusal::Exists {
                volume: volume.clone(),
                bytes: old.bytes,
            }),
            Some(_) => Ok(()),
            None => {
                let new = Volume {
                    bytes,
                    granted: BTreeMap::new(),
                    last_io: None,
                };
                self.volumes.insert(volume.clone(), new);
                Ok(())
            }
        }
    }

    /// Removes a volume that no node has access to; one that is not there is fine.
    pub fn delete(&mut self, volume: &VolumeId) -> Result<(), Refusal> {
        if let Some(holder) = self.holders(volume).next() {
            return Err(Refusal::Held {
                volume: volume.clone(),
                holder: holder.clone(),
            });
        }
        self.volumes.remove(volume);
        self.ghosts.retain(|ghost| ghost.volume != *volume);
        Ok(())
    }

    fn holders(&self, volume: &VolumeId) -> impl Iterator<Item = &NodeId> {
        self.volumes
            .get(volume)
            .into_iter()
            .flat_map(|v| v.granted.keys())
    }

    /// All volumes, by name.
    pub fn volumes(&self) -> Vec<VolumeState> {
        let state = |(volume, v): (&VolumeId, &Volume)| VolumeState {
            volume: volume.clone(),
            bytes: v.bytes,
            granted: v.granted.clone(),
        };
        self.volumes.iter().map(state).collect()
    }

    /// Gives a node access. A node that has it keeps the grant it has.
    pub fn grant(
        &mut self,
        now: Duration,
        volume: &VolumeId,
        node: &NodeId,
    ) -> Result<Epoch, Refusal> {
        let outcome = self.try_grant(volume, node);
        let (epoch, verdict) = match &outcome {
            Ok(epoch) => (*epoch, Verdict::Accepted),
            Err(_) => (Epoch(0), Verdict::Refused),
        };
        self.enter_access(now, Operation::Grant, volume, node, epoch, verdict);
        outcome
    }

    fn try_grant(&mut self, volume: &VolumeId, node: &NodeId) -> Result<Epoch, Refusal> {
        let state = self
            .volumes
            .get_mut(volume)
            .ok_or_else(|| Refusal::UnknownVolume(volume.clone()))?;
        if !self.nodes.contains_key(node) {
            return Err(Refusal::UnknownNode(node.clone()));
        }
        if let Some(&epoch) = state.granted.get(node) {
            return Ok(epoch);
        }
        if let (Policy::Exclusive, Some(holder)) = (self.policy, state.granted.keys().next()) {
            return Err(Refusal::Held {
                volume: volume.clone(),
                holder: holder.clone(),
            });
        }
        self.last_epoch.0 += 1;
        state.granted.insert(node.clone(), self.last_epoch);
        Ok(self.last_epoch)
    }

    /// Takes a node's access away, or that of every node when none is named. No access, no such volume or node: fine,
    /// and entered all the same when a node is named.
    pub fn revoke(&mut self, now: Duration, volume: &VolumeId, node: Option<&NodeId>) {
        self.forget_grants(now, volume, node);
    }

    /// Answers like [`revoke`](Self::revoke), and leaves the sessions as they are: the fence that fences nothing.
    pub fn pretend_to_revoke(&mut self, now: Duration, volume: &VolumeId, node: Option<&NodeId>) {
        let taken = self.forget_grants(now, volume, node);
        self.ghosts.extend(taken);
    }

    fn forget_grants(
        &mut self,
        now: Duration,
        volume: &VolumeId,
        node: Option<&NodeId>,
    ) -> Vec<Access> {
        let nodes: Vec<NodeId> = match node {
            Some(node) => vec![node.clone()],
            None => self.holders(volume).cloned().collect(),
        };
        let mut taken = Vec::new();
        for node in nodes {
            let epoch = self
                .volumes
                .get_mut(volume)
                .and_then(|v| v.granted.remove(&node));
            let shown = epoch.unwrap_or_default();
            self.enter_access(
                now,
                Operation::Revoke,
                volume,
                &node,
                shown,
                Verdict::Accepted,
            );
            taken.extend(epoch.map(|epoch| Access {
                volume: volume.clone(),
                node,
                epoch,
            }));
        }
        taken
    }

    /// Whether this read may be carried out.
    pub fn read(
        &mut self,
        now: Duration,
        by: &Access,
        offset: u64,
        length: u64,
    ) -> Result<(), Refusal> {
        self.decide(now, Operation::Read, by, offset, length)
    }

    /// Whether this write may be carried out; if so, it counts as written.
    pub fn write(
        &mut self,
        now: Duration,
        by: &Access,
        offset: u64,
        length: u64,
    ) -> Result<(), Refusal> {
        self.decide(now, Operation::Write, by, offset, length)
    }

    /// Whether this flush may be carried out.
    pub fn sync(&mut self, now: Duration, by: &Access) -> Result<(), Refusal> {
        self.decide(now, Operation::Sync, by, 0, 0)
    }

    fn decide(
        &mut self,
        now: Duration,
        operation: Operation,
        by: &Access,
        offset: u64,
        length: u64,
    ) -> Result<(), Refusal> {
        self.hear(now, &by.node)?;
        let outcome = self.permit(by, offset, length);
        let verdict = match outcome {
            Ok(()) => Verdict::Accepted,
            Err(_) => Verdict::Refused,
        };
        if verdict == Verdict::Accepted
            && let Some(volume) = self.volumes.get_mut(&by.volume)
        {
            volume.last_io = Some(now);
        }
        if operation != Operation::Read || verdict == Verdict::Refused {
            let entry = Entry {
                operation,
                volume: &by.volume,
                node: &by.node,
                epoch: by.epoch,
                offset,
                length,
                verdict,
            };
            self.ledger.enter(now, entry);
        }
        outcome
    }

    fn permit(&self, by: &Access, offset: u64, length: u64) -> Result<(), Refusal> {
        let volume = self
            .volumes
            .get(&by.volume)
            .ok_or_else(|| Refusal::UnknownVolume(by.volume.clone()))?;
        let granted = match (volume.granted.get(&by.node), self.stale) {
            (Some(epoch), StaleSessions::Refused) => by.epoch == *epoch,
            (Some(epoch), StaleSessions::Revived) => by.epoch <= *epoch,
            (None, _) => false,
        };
        if !granted && !self.ghosts.contains(by) {
            return Err(Refusal::NoAccess(by.clone()));
        }
        match offset.checked_add(length) {
            Some(end) if end <= volume.bytes => Ok(()),
            end => Err(Refusal::BeyondEnd {
                volume: by.volume.clone(),
                bytes: volume.bytes,
                asked: end.unwrap_or(u64::MAX),
            }),
        }
    }

    /// A sign of life of a node, by which the array also gets to know it.
    pub fn seen(&mut self, now: Duration, node: &NodeId) -> Result<(), Refusal> {
        self.nodes.entry(node.clone()).or_default();
        self.hear(now, node)
    }

    fn hear(&mut self, now: Duration, node: &NodeId) -> Result<(), Refusal> {
        let state = self
            .nodes
            .get_mut(node)
            .ok_or_else(|| Refusal::UnknownNode(node.clone()))?;
        if state.path != Path::Up {
            return Err(Refusal::NoPath {
                node: node.clone(),
                path: state.path,
            });
        }
        state.last_seen = Some(now);
        Ok(())
    }

    /// When the node was last heard.
    pub fn last_seen(&self, node: &NodeId) -> Option<Duration> {
        self.nodes.get(node)?.last_seen
    }

    /// What the array saw of a node and of these volumes; `sample`: how far back I/O counts (default 2 s).
    pub fn connectivity(
        &self,
        now: Duration,
        node: &NodeId,
        volumes: &[VolumeId],
        sample: Option<Duration>,
    ) -> Result<Connectivity, Refusal> {
        let state = self
            .nodes
            .get(node)
            .ok_or_else(|| Refusal::UnknownNode(node.clone()))?;
        let recent = |at: Option<Duration>, within| {
            at.is_some_and(|at: Duration| now.saturating_sub(at) <= within)
        };
        let mut io_in_progress = false;
        for volume in volumes {
            let volume = self
                .volumes
                .get(volume)
                .ok_or_else(|| Refusal::UnknownVolume(volume.clone()))?;
            io_in_progress |= recent(volume.last_io, sample.unwrap_or(self.sample));
        }
        let connected = recent(state.last_seen, self.silence);
        Ok(Connectivity {
            connected: state.lie.connected.unwrap_or(connected),
            io_in_progress: state.lie.io_in_progress.unwrap_or(io_in_progress),
        })
    }

    /// Cuts or mends the way between a node and the array.
    pub fn set_path(&mut self, node: &NodeId, path: Path) {
        self.nodes.entry(node.clone()).or_default().path = path;
    }

    /// Makes the array lie about a node; the default tells the truth again.
    pub fn set_lie(&mut self, node: &NodeId, lie: Lie) {
        self.nodes.entry(node.clone()).or_default().lie = lie;
    }

    /// Makes calls of the driver misbehave.
    pub fn add_rule(&mut self, rule: Rule) {
        self.rules.add(rule);
    }

    /// Every call behaves again.
    pub fn clear_rules(&mut self) {
        self.rules.clear();
    }

    /// The trouble that a call of the driver is in; uses up one time of its rule.
    pub fn trouble(
        &mut self,
        call: Call,
        volumes: &[VolumeId],
        node: Option<&NodeId>,
    ) -> Option<Trouble> {
        self.rules.take(call, volumes, node)
    }

    /// Everything decided so far.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Everything decided so far, for the judge.
    pub fn records(&self) -> &[Record] {
        self.ledger.records()
    }

    fn enter_access(
        &mut self,
        now: Duration,
        operation: Operation,
        volume: &VolumeId,
        node: &NodeId,
        epoch: Epoch,
        verdict: Verdict,
    ) {
        let entry = Entry {
            operation,
            volume,
            node,
            epoch,
            offset: 0,
            length: 0,
            verdict,
        };
        self.ledger.enter(now, entry);
    }
}

#[cfg(test)]
mod tests;
