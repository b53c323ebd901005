//! The judge: tells from a ledger whether a volume ever had two writers, and what else a person wants to know.
//!
//! It keeps an access table of its own, built from what the array *answered*. So an array that answers a revoke with OK
//! and goes on taking writes is found out, and so is every order of grants that left an old writer beside a new one.
//! Only the ledger's order counts; times are handed through for people.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use super::ledger::{Operation, Record, Verdict};
use super::name::{Epoch, NodeId, VolumeId};

/// How the promise was broken.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Violation {
    /// The node wrote by a grant although another node had already written by a newer one.
    TwoWriters { successor: NodeId, epoch: Epoch },
    /// The node wrote by a grant while another node held a newer one, and so might have written.
    BesideSuccessor { successor: NodeId, epoch: Epoch },
    /// The node wrote after its access was revoked.
    AfterRevoke,
    /// The node wrote by an older grant than the one it holds: a session that outlived its fence.
    StaleEpoch { held: Epoch },
    /// The node wrote by a grant that the ledger does not show.
    NeverGranted,
    /// A record is missing, so the rest proves nothing.
    Gap,
}

/// One way in which one grant of one volume broke the promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub violation: Violation,
    pub volume: VolumeId,
    pub node: NodeId,
    pub epoch: Epoch,
    /// Sequence number of the first offending record.
    pub first: u64,
    /// Sequence number of the last one.
    pub last: u64,
    /// How many there are.
    pub records: u64,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (node, volume, epoch) = (&self.node, &self.volume, self.epoch);
        write!(f, "{volume}: {node} (grant {epoch}) ")?;
        match &self.violation {
            Violation::TwoWriters { successor, epoch } => {
                write!(f, "wrote after {successor} had written by grant {epoch}")
            }
            Violation::BesideSuccessor { successor, epoch } => {
                write!(f, "wrote while {successor} held grant {epoch}")
            }
            Violation::AfterRevoke => f.write_str("wrote after its access was revoked"),
            Violation::StaleEpoch { held } => {
                write!(f, "wrote by an old grant beside grant {held}")
            }
            Violation::NeverGranted => f.write_str("wrote without a grant"),
            Violation::Gap => f.write_str("comes after a missing record"),
        }?;
        let (first, last, records) = (self.first, self.last, self.records);
        write!(f, ", {records} records, #{first} to #{last}")
    }
}

/// Where a record stands: its sequence number, and the array's time for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub sequence: u64,
    pub at: Duration,
}

/// What happened by one grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenure {
    pub node: NodeId,
    pub epoch: Epoch,
    pub granted: Place,
    pub first_accepted: Option<Place>,
    pub last_accepted: Option<Place>,
    /// The last revoke that was answered OK.
    pub revoked: Option<Place>,
    /// Writes and flushes that were carried out.
    pub accepted: u64,
    /// Reads, writes and flushes that were refused: what a zombie tried.
    pub refused: u64,
    /// Those of them that came while the node held a newer grant. An array that revives old sessions would have let
    /// them through, so a node that was requalified properly has none.
    pub refused_beside_own_successor: u64,
}

/// What the ledger shows, beside the violations.
#[derive(Debug, Clone, Default)]
pub struct Report {
    pub findings: Vec<Finding>,
    /// Grants in order, by volume.
    pub tenures: BTreeMap<VolumeId, Vec<Tenure>>,
}

impl Report {
    /// The promise was kept.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    /// The part of the report that concerns some volumes.
    ///
    /// A ledger is judged from its beginning, or the judge does not know who held what; so this is how a part of it is
    /// looked at.
    pub fn only(mut self, concerns: impl Fn(&VolumeId) -> bool) -> Self {
        self.findings
            .retain(|f| f.violation == Violation::Gap || concerns(&f.volume));
        self.tenures.retain(|volume, _| concerns(volume));
        self
    }

    /// How often one node followed another, with both grants.
    pub fn handovers(&self) -> impl Iterator<Item = (&VolumeId, &Tenure, &Tenure)> {
        self.tenures.iter().flat_map(|(volume, tenures)| {
            tenures
                .windows(2)
                .filter(|pair| pair[0].node != pair[1].node)
                .map(move |pair| (volume, &pair[0], &pair[1]))
        })
    }

    /// Requests that were refused, over all volumes: without any, the fence was not needed.
    pub fn refused(&self) -> u64 {
        self.all().map(|tenure| tenure.refused).sum()
    }

    /// Writes and flushes that were carried out, over all volumes.
    pub fn accepted(&self) -> u64 {
        self.all().map(|tenure| tenure.accepted).sum()
    }

    fn all(&self) -> impl Iterator<Item = &Tenure> {
        self.tenures.values().flatten()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (volume, old, new) in self.handovers() {
            let from = old.revoked.unwrap_or(new.granted);
            let since = |place: Option<Place>| match place {
                Some(place) => format!("{:+.3} s", place.at.as_secs_f64() - from.at.as_secs_f64()),
                None => "never".to_owned(),
            };
            writeln!(
                f,
                "{volume}: {} ({} accepted, last {}) revoked {}, then refused {} times; {} granted {}, first write {}",
                old.node,
                old.accepted,
                since(old.last_accepted),
                if old.revoked.is_some() {
                    "at 0"
                } else {
                    "NEVER"
                },
                old.refused,
                new.node,
                since(Some(new.granted)),
                since(new.first_accepted),
            )?;
        }
        for finding in &self.findings {
            writeln!(f, "VIOLATION {finding}")?;
        }
        if self.is_clean() {
            writeln!(
                f,
                "no volume had two writers ({} writes accepted, {} requests refused)",
                self.accepted(),
                self.refused()
            )?;
        }
        Ok(())
    }
}

/// Judges a ledger whose volumes belong to one node at a time.
pub fn judge(records: &[Record]) -> Report {
    judge_with_shared(records, &BTreeSet::new())
}

/// Judges a ledger in which some volumes may be written by several nodes at once (RWX).
pub fn judge_with_shared(records: &[Record], shared: &BTreeSet<VolumeId>) -> Report {
    let mut judge = Judge::default();
    let mut previous: Option<u64> = None;
    for record in records {
        if previous.is_some_and(|previous| record.sequence != previous + 1) {
            judge.find(Violation::Gap, record);
        }
        previous = Some(record.sequence);
        judge.take(record, shared.contains(&record.volume));
    }
    judge.report
}

#[derive(Default)]
struct Judge {
    report: Report,
    /// Who has access, by what the array answered.
    held: BTreeMap<VolumeId, BTreeMap<NodeId, Epoch>>,
    /// The newest grant by which each node has written.
    written: BTreeMap<VolumeId, BTreeMap<NodeId, Epoch>>,
}

impl Judge {
    fn take(&mut self, record: &Record, shared: bool) {
        match (record.operation, record.verdict) {
            (Operation::Grant, Verdict::Accepted) => self.granted(record),
            (Operation::Revoke, Verdict::Accepted) => self.revoked(record),
            (Operation::Grant | Operation::Revoke, Verdict::Refused) => {}
            (_, Verdict::Refused) => self.refused(record),
            (_, Verdict::Accepted) if record.is_accepted_write() => self.wrote(record, shared),
            (_, Verdict::Accepted) => {}
        }
    }

    fn granted(&mut self, record: &Record) {
        let held = self.held.entry(record.volume.clone()).or_default();
        held.insert(record.node.clone(), record.epoch);
        let tenures = self
            .report
            .tenures
            .entry(record.volume.clone())
            .or_default();
        if tenures.iter().any(|t| t.epoch == record.epoch) {
            return;
        }
        tenures.push(Tenure {
            node: record.node.clone(),
            epoch: record.epoch,
            granted: place(record),
            first_accepted: None,
            last_accepted: None,
            revoked: None,
            accepted: 0,
            refused: 0,
            refused_beside_own_successor: 0,
        });
    }

    fn revoked(&mut self, record: &Record) {
        let held = self.held.entry(record.volume.clone()).or_default();
        held.remove(&record.node);
        if let Some(tenure) = self.tenure(record) {
            tenure.revoked = Some(place(record));
        }
    }

    fn refused(&mut self, record: &Record) {
        let held = self.holds(record);
        if let Some(tenure) = self.tenure(record) {
            tenure.refused += 1;
            tenure.refused_beside_own_successor += u64::from(held > Some(record.epoch));
        }
    }

    fn wrote(&mut self, record: &Record, shared: bool) {
        let held = self.holds(record);
        match held {
            Some(held) if held == record.epoch => {}
            Some(held) if held > record.epoch => self.find(Violation::StaleEpoch { held }, record),
            None if self.tenure(record).is_some() => self.find(Violation::AfterRevoke, record),
            _ => self.find(Violation::NeverGranted, record),
        }
        if !shared {
            for (successor, epoch) in newer(&self.written, record) {
                self.find(Violation::TwoWriters { successor, epoch }, record);
            }
            for (successor, epoch) in newer(&self.held, record) {
                self.find(Violation::BesideSuccessor { successor, epoch }, record);
            }
        }
        let written = self.written.entry(record.volume.clone()).or_default();
        let newest = written.entry(record.node.clone()).or_default();
        *newest = record.epoch.max(*newest);
        if let Some(tenure) = self.tenure(record) {
            tenure.accepted += 1;
            tenure.first_accepted.get_or_insert(place(record));
            tenure.last_accepted = Some(place(record));
        }
    }

    fn holds(&self, record: &Record) -> Option<Epoch> {
        self.held.get(&record.volume)?.get(&record.node).copied()
    }

    fn tenure(&mut self, record: &Record) -> Option<&mut Tenure> {
        let tenures = self.report.tenures.get_mut(&record.volume)?;
        tenures
            .iter_mut()
            .find(|t| t.epoch == record.epoch && t.node == record.node)
    }

    /// A zombie writes hundreds of times: one finding for each way and grant.
    fn find(&mut self, violation: Violation, record: &Record) {
        let same = |f: &&mut Finding| {
            f.violation == violation
                && (&f.volume, &f.node, f.epoch) == (&record.volume, &record.node, record.epoch)
        };
        match self.report.findings.iter_mut().find(same) {
            Some(finding) => {
                finding.last = record.sequence;
                finding.records += 1;
            }
            None => self.report.findings.push(Finding {
                violation,
                volume: record.volume.clone(),
                node: record.node.clone(),
                epoch: record.epoch,
                first: record.sequence,
                last: record.sequence,
                records: 1,
            }),
        }
    }
}

/// Grants of other nodes in this table that are newer than the one of the record.
fn newer(
    table: &BTreeMap<VolumeId, BTreeMap<NodeId, Epoch>>,
    record: &Record,
) -> Vec<(NodeId, Epoch)> {
    table
        .get(&record.volume)
        .into_iter()
        .flatten()
        .filter(|(node, epoch)| **node != record.node && **epoch > record.epoch)
        .map(|(node, epoch)| (node.clone(), *epoch))
        .collect()
}

fn place(record: &Record) -> Place {
    Place {
        sequence: record.sequence,
        at: record.at,
    }
}

#[cfg(test)]
mod tests;
