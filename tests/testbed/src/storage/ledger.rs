//! The ledger: what the array decided, in the order in which it decided.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::name::{Epoch, NodeId, VolumeId};

/// What was asked of the array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// Give a node access to a volume.
    Grant,
    /// Take it away.
    Revoke,
    /// Entered only when refused.
    Read,
    Write,
    /// A flush of earlier writes.
    Sync,
}

/// What the array answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Accepted,
    Refused,
}

/// One decision of the array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Position in the ledger, from 1 without a gap.
    pub sequence: u64,
    /// When, by the array's clock; for people, never for the judge. Microseconds in the file.
    #[serde(with = "micros")]
    pub at: Duration,
    pub operation: Operation,
    pub volume: VolumeId,
    pub node: NodeId,
    /// The grant that the request claimed, or that was given or taken. 0: there was none.
    pub epoch: Epoch,
    /// Bytes from the start of the volume; 0 where it has no meaning.
    pub offset: u64,
    /// Bytes; 0 where it has no meaning.
    pub length: u64,
    pub verdict: Verdict,
}

impl Record {
    /// The array let data of this node through.
    pub fn is_accepted_write(&self) -> bool {
        self.verdict == Verdict::Accepted
            && matches!(self.operation, Operation::Write | Operation::Sync)
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            sequence,
            at,
            operation,
            volume,
            node,
            epoch,
            offset,
            length,
            verdict,
        } = self;
        let operation = format!("{operation:?}").to_lowercase();
        write!(
            f,
            "#{sequence} {:.6} {operation} {volume} by {node} epoch {epoch} [{offset}+{length}] {}",
            at.as_secs_f64(),
            match verdict {
                Verdict::Accepted => "accepted",
                Verdict::Refused => "REFUSED",
            }
        )
    }
}

/// The records of an array, in order.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    records: Vec<Record>,
}

/// A decision before it has its place in the ledger.
#[derive(Debug, Clone)]
pub(super) struct Entry<'a> {
    pub operation: Operation,
    pub volume: &'a VolumeId,
    pub node: &'a NodeId,
    pub epoch: Epoch,
    pub offset: u64,
    pub length: u64,
    pub verdict: Verdict,
}

impl Ledger {
    pub(super) fn enter(&mut self, now: Duration, entry: Entry<'_>) {
        self.records.push(Record {
            sequence: self.records.len() as u64 + 1,
            at: now,
            operation: entry.operation,
            volume: entry.volume.clone(),
            node: entry.node.clone(),
            epoch: entry.epoch,
            offset: entry.offset,
            length: entry.length,
            verdict: entry.verdict,
        });
    }

    /// Everything decided so far.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// What was decided after the record of this sequence number (0: everything).
    pub fn after(&self, sequence: u64) -> &[Record] {
        let start = usize::try_from(sequence).unwrap_or(usize::MAX);
        self.records.get(start..).unwrap_or_default()
    }
}

/// Why a ledger file cannot be judged.
#[derive(Debug, thiserror::Error)]
pub enum UnreadableLedger {
    #[error("ledger {0} cannot be read")]
    File(std::path::PathBuf, #[source] std::io::Error),
    #[error("ledger {0}, line {1} is not a record")]
    Line(std::path::PathBuf, usize, #[source] serde_json::Error),
}

/// Reads the ledger file of an array process: one JSON record per line.
///
/// A last line without its newline is a record being written, and is left out.
pub fn read(path: &std::path::Path) -> Result<Vec<Record>, UnreadableLedger> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| UnreadableLedger::File(path.to_owned(), error))?;
    text.split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
        .enumerate()
        .map(|(number, line)| {
            serde_json::from_str(line)
                .map_err(|error| UnreadableLedger::Line(path.to_owned(), number + 1, error))
        })
        .collect()
}

mod micros {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(time: &Duration, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
        u64::deserialize(d).map(Duration::from_micros)
    }
}
