//! The records that a workload writes: numbered, signed by their writer, of one size, each in its own slot.

use std::fmt;

/// Bytes of a record. Divides a page, so that a slot of a block device is never torn between two.
pub const SIZE: usize = 256;

const NUMBER: usize = 20;
const SUM: usize = 16;
/// Number, blank, writer, blank, checksum, newline.
const WRITER: usize = SIZE - NUMBER - SUM - 3;

/// One record. Number n stands in slot n - 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// From 1.
    pub number: u64,
    /// Pod UID and host, without blanks.
    pub writer: String,
}

/// What is wrong with a slot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    #[error("never written")]
    Blank,
    #[error("torn or overwritten")]
    Garbled,
    #[error("holds record {0}")]
    Misplaced(u64),
    #[error("was written by {0}, which had already been succeeded")]
    Interleaved(String),
    #[error("stands behind a slot that was never written")]
    BehindGap,
}

impl Record {
    /// As it stands in its slot. A writer's name that is too long is cut.
    pub fn encode(&self) -> [u8; SIZE] {
        let mut writer = self.writer.replace(char::is_whitespace, "_");
        while writer.len() > WRITER {
            writer.pop();
        }
        let text = format!("{:0NUMBER$} {writer:<WRITER$} ", self.number);
        let sum = checksum(text.as_bytes());
        let mut slot = [b'\n'; SIZE];
        // A multi-byte name pads short by characters, so the rest stays newlines: still of one size, still summed.
        let body = text.as_bytes();
        let end = SIZE - SUM - 1;
        slot[..body.len().min(end)].copy_from_slice(&body[..body.len().min(end)]);
        slot[end..SIZE - 1].copy_from_slice(format!("{sum:016x}").as_bytes());
        slot
    }

    /// Reads a slot.
    pub fn decode(slot: &[u8]) -> Result<Self, Damage> {
        if slot.iter().all(|byte| *byte == 0) {
            return Err(Damage::Blank);
        }
        let end = SIZE - SUM - 1;
        let read = || {
            let body = std::str::from_utf8(slot.get(..end)?).ok()?;
            let sum = std::str::from_utf8(slot.get(end..SIZE - 1)?).ok()?;
            if u64::from_str_radix(sum, 16).ok()? != checksum(body.as_bytes()) {
                return None;
            }
            let mut words = body.split_ascii_whitespace();
            Some(Self {
                number: words.next()?.parse().ok()?,
                writer: words.next()?.to_owned(),
            })
        };
        read().ok_or(Damage::Garbled)
    }
}

/// FNV-1a: finds torn and mixed records, which is all that is asked.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// What a reader finds, slot after slot.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    /// Number of the last record, 0 when there is none.
    pub last: u64,
    /// Who wrote, in order.
    pub writers: Vec<String>,
    /// The first slot (from 0) that is not as it should be.
    pub damage: Option<(u64, Damage)>,
    next: u64,
    gap: bool,
    torn: Option<u64>,
}

impl Found {
    /// Takes the next slot.
    ///
    /// A garbled slot with nothing behind it is a write that was never acknowledged, and no damage.
    pub fn take(&mut self, slot: &[u8]) {
        let position = self.next;
        self.next += 1;
        match Record::decode(slot) {
            Err(Damage::Blank) => self.gap = true,
            Err(_) if self.torn.is_none() && !self.gap => self.torn = Some(position),
            Err(damage) => self.note(position, damage),
            Ok(record) => {
                if let Some(torn) = self.torn {
                    self.note(torn, Damage::Garbled);
                } else if self.gap {
                    self.note(position, Damage::BehindGap);
                } else if record.number != position + 1 {
                    self.note(position, Damage::Misplaced(record.number));
                }
                if self.writers.last() != Some(&record.writer) {
                    if self.writers.contains(&record.writer) {
                        self.note(position, Damage::Interleaved(record.writer.clone()));
                    }
                    self.writers.push(record.writer);
                }
                self.last = self.last.max(record.number);
            }
        }
    }

    /// Nothing behind this slot was written.
    pub fn is_at_end(&self) -> bool {
        self.gap
    }

    fn note(&mut self, position: u64, damage: Damage) {
        self.damage.get_or_insert((position, damage));
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "last={} ", self.last)?;
        match &self.damage {
            None => f.write_str("intact")?,
            Some((slot, damage)) => write!(f, "DAMAGED slot {slot} {damage}")?,
        }
        write!(f, " writers={}", self.writers.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(number: u64, writer: &str) -> [u8; SIZE] {
        let writer = writer.to_owned();
        Record { number, writer }.encode()
    }

    fn found(slots: &[[u8; SIZE]]) -> Found {
        let mut found = Found::default();
        slots.iter().for_each(|slot| found.take(slot));
        found
    }

    const BLANK: [u8; SIZE] = [0; SIZE];
    const TORN: [u8; SIZE] = [b'x'; SIZE];

    #[test]
    fn a_record_comes_back_as_it_was_written() {
        for writer in ["uid@host", &"long".repeat(100), "a b"] {
            let read = Record::decode(&slot(42, writer)).unwrap();
            assert_eq!(read.number, 42);
            assert!(writer.replace(' ', "_").starts_with(&read.writer));
        }
        let mut garbled = slot(42, "uid@host");
        garbled[25] ^= 1;
        assert_eq!(Record::decode(&garbled), Err(Damage::Garbled));
    }

    #[test]
    fn whole_records_of_one_writer_after_another_are_intact() {
        let found = found(&[slot(1, "a"), slot(2, "a"), slot(3, "b"), BLANK]);
        assert_eq!((found.last, &found.damage), (3, &None));
        assert_eq!(found.writers, ["a", "b"]);
        assert_eq!(found.to_string(), "last=3 intact writers=a,b");
    }

    #[test]
    fn a_torn_end_is_no_damage_but_a_torn_middle_is() {
        assert_eq!(found(&[slot(1, "a"), TORN]).damage, None);
        assert_eq!(found(&[slot(1, "a"), TORN, BLANK]).damage, None);
        let found = found(&[slot(1, "a"), TORN, slot(3, "a")]);
        assert_eq!(found.damage, Some((1, Damage::Garbled)));
    }

    #[test]
    fn what_two_writers_leave_behind_is_damage() {
        let interleaved = found(&[slot(1, "a"), slot(2, "b"), slot(3, "a")]);
        let damage = Damage::Interleaved("a".to_owned());
        assert_eq!(interleaved.damage, Some((2, damage)));
        let misplaced = found(&[slot(1, "a"), slot(5, "b")]);
        assert_eq!(misplaced.damage, Some((1, Damage::Misplaced(5))));
        let gap = found(&[slot(1, "a"), BLANK, slot(3, "a")]);
        assert_eq!(gap.damage, Some((2, Damage::BehindGap)));
    }
}
