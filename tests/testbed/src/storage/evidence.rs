//! What the workloads said, held against each other: is every acknowledged record where its successor looked for it?

use std::collections::BTreeMap;

/// What one incarnation said of one target.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Run {
    /// The file or device.
    pub target: String,
    /// Pod UID and host.
    pub writer: String,
    /// The last record that it found, and the rest of its words about it; none: it never got that far.
    pub found: Option<(u64, String)>,
    /// Numbers of the records whose flush returned.
    pub acknowledged: Vec<u64>,
    /// How often a write or flush failed.
    pub failed: u64,
    /// It could not open or read its target.
    pub unusable: Option<String>,
}

/// How data was lost or mixed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Loss {
    #[error(
        "{target}: {successor} found {found} records, but {writer} had {acknowledged} acknowledged"
    )]
    Missing {
        target: String,
        writer: String,
        acknowledged: u64,
        successor: String,
        found: u64,
    },
    #[error("{target}: {reader} found damage: {what}")]
    Damaged {
        target: String,
        reader: String,
        what: String,
    },
    #[error("{target}: record {number} was acknowledged to {first} and to {second}")]
    AcknowledgedTwice {
        target: String,
        number: u64,
        first: String,
        second: String,
    },
    #[error("{target}: {writer} acknowledged {after} after {before}")]
    Skipped {
        target: String,
        writer: String,
        before: u64,
        after: u64,
    },
}

/// Reads a workload's output, plain or as a container runtime's log file has it. One run for each start of a target.
pub fn read(output: &str) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for line in output.lines() {
        let Some((target, event)) = without_log_prefix(line).split_once(' ') else {
            continue;
        };
        let (event, rest) = event.split_once(' ').unwrap_or((event, ""));
        if event == "start" {
            runs.push(Run {
                target: target.to_owned(),
                writer: rest.trim_start_matches("writer=").to_owned(),
                ..Run::default()
            });
            continue;
        }
        let Some(run) = runs.iter_mut().rfind(|run| run.target == target) else {
            continue;
        };
        let word = rest.split(' ').next().unwrap_or_default();
        match event {
            "found" => {
                let last = word.trim_start_matches("last=").parse();
                run.found = last.ok().map(|last| (last, rest.to_owned()));
            }
            "ack" => run.acknowledged.extend(word.parse::<u64>()),
            "fail" => run.failed += 1,
            "unusable" => run.unusable = Some(rest.to_owned()),
            _ => {}
        }
    }
    runs
}

/// The containers' log format puts a time, a stream and a tag before each line.
fn without_log_prefix(line: &str) -> &str {
    let mut parts = line.splitn(4, ' ');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(_), Some("stdout" | "stderr"), Some("F" | "P"), Some(rest)) => rest,
        _ => line,
    }
}

/// Holds the runs against each other. They come in the order in which the incarnations were started; what a zombie
/// said later belongs to its own run.
pub fn judge(runs: &[Run]) -> Vec<Loss> {
    let mut losses = Vec::new();
    let mut acknowledged: BTreeMap<(&str, u64), &str> = BTreeMap::new();
    for (position, run) in runs.iter().enumerate() {
        let (target, reader) = (&run.target, &run.writer);
        if let Some((found, words)) = &run.found {
            if words.contains("DAMAGED") {
                losses.push(Loss::Damaged {
                    target: target.clone(),
                    reader: reader.clone(),
                    what: words.clone(),
                });
            }
            let earlier = runs[..position].iter().filter(|r| r.target == *target);
            let best = earlier
                .filter_map(|r| Some((*r.acknowledged.iter().max()?, r)))
                .max_by_key(|(n, _)| *n);
            if let Some((last, writer)) = best
                && last > *found
            {
                losses.push(Loss::Missing {
                    target: target.clone(),
                    writer: writer.writer.clone(),
                    acknowledged: last,
                    successor: reader.clone(),
                    found: *found,
                });
            }
        }
        for pair in run
            .acknowledged
            .windows(2)
            .filter(|pair| pair[1] != pair[0] + 1)
        {
            losses.push(Loss::Skipped {
                target: target.clone(),
                writer: reader.clone(),
                before: pair[0],
                after: pair[1],
            });
        }
        for number in &run.acknowledged {
            if let Some(first) = acknowledged.insert((target, *number), reader) {
                losses.push(Loss::AcknowledgedTwice {
                    target: target.clone(),
                    number: *number,
                    first: first.to_owned(),
                    second: reader.clone(),
                });
            }
        }
    }
    losses
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "/data/log start writer=a@n1\n/data/log found last=0 intact writers=\n\
        /data/log ack 1\n/data/log ack 2\n/data/log fail 3 Input/output error (os error 5)\n";

    fn successor(found: &str, acknowledged: &[u64]) -> String {
        let mut text = format!("/data/log start writer=b@n2\n/data/log found {found}\n");
        for number in acknowledged {
            text.push_str(&format!("/data/log ack {number}\n"));
        }
        text
    }

    fn losses(second: &str) -> Vec<Loss> {
        judge(&read(&format!("{FIRST}{second}")))
    }

    #[test]
    fn a_run_is_read_from_plain_output_and_from_a_container_log() {
        let plain = read(FIRST);
        assert_eq!(plain.len(), 1);
        assert_eq!(plain[0].acknowledged, [1, 2]);
        assert_eq!(plain[0].failed, 1);
        assert_eq!(plain[0].found.as_ref().map(|(last, _)| *last), Some(0));
        let prefix = "2026-01-01T00:00:00.000000000Z stdout F ";
        let log: String = FIRST
            .lines()
            .map(|line| format!("{prefix}{line}\n"))
            .collect();
        assert_eq!(read(&log), plain);
    }

    #[test]
    fn a_successor_that_found_everything_is_well() {
        let text = successor("last=2 intact writers=a@n1", &[3, 4]);
        assert_eq!(losses(&text), []);
        // A write that reached the volume although its flush was not acknowledged.
        let text = successor("last=3 intact writers=a@n1", &[4]);
        assert_eq!(losses(&text), []);
    }

    #[test]
    fn a_missing_record_is_found() {
        let text = successor("last=1 intact writers=a@n1", &[]);
        assert!(matches!(
            losses(&text)[..],
            [Loss::Missing {
                acknowledged: 2,
                found: 1,
                ..
            }]
        ));
    }

    #[test]
    fn damage_is_found() {
        let text = successor(
            "last=2 DAMAGED slot 0 torn or overwritten writers=a@n1",
            &[],
        );
        assert!(matches!(losses(&text)[..], [Loss::Damaged { .. }]));
    }

    #[test]
    fn a_record_of_two_writers_is_found() {
        let text = successor("last=2 intact writers=a@n1", &[2, 3]);
        assert!(matches!(
            losses(&text)[..],
            [Loss::AcknowledgedTwice { number: 2, .. }]
        ));
    }

    #[test]
    fn a_skipped_number_is_found() {
        let text = successor("last=2 intact writers=a@n1", &[3, 5]);
        assert!(matches!(losses(&text)[..], [Loss::Skipped { .. }]));
    }
}
