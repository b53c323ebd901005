//! Every violation is found, and what is lawful is not.

use std::time::Duration;

use super::*;
use crate::storage::array::{Access, Array, Policy, StaleSessions};

const NOW: Duration = Duration::from_secs(1);

/// An array with one volume and two nodes, on which a test tells a story.
struct Story {
    array: Array,
    volume: VolumeId,
}

impl Story {
    fn on(array: Array) -> Self {
        let mut story = Self {
            array,
            volume: VolumeId::new("v").unwrap(),
        };
        story.array.create(&story.volume, 4096).unwrap();
        for name in ["a", "b"] {
            story.array.seen(NOW, &node(name)).unwrap();
        }
        story
    }

    fn permissive() -> Self {
        Self::on(Array::new(Policy::Permissive))
    }

    fn grant(&mut self, to: &str) -> Access {
        let epoch = self.array.grant(NOW, &self.volume, &node(to)).unwrap();
        Access {
            volume: self.volume.clone(),
            node: node(to),
            epoch,
        }
    }

    fn revoke(&mut self, from: &str) {
        self.array.revoke(NOW, &self.volume, Some(&node(from)));
    }

    fn pretend_to_revoke(&mut self, from: &str) {
        self.array
            .pretend_to_revoke(NOW, &self.volume, Some(&node(from)));
    }

    fn write(&mut self, by: &Access) -> bool {
        self.array.write(NOW, by, 0, 512).is_ok()
    }

    fn report(&self) -> Report {
        judge(self.array.records())
    }

    fn violations(&self) -> Vec<(String, Violation)> {
        let findings = self.report().findings.into_iter();
        findings
            .map(|f| (f.node.to_string(), f.violation))
            .collect()
    }
}

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

#[test]
fn a_fenced_handover_is_clean_and_its_facts_are_told() {
    let mut story = Story::permissive();
    let a = story.grant("a");
    assert!(story.write(&a));
    story.revoke("a");
    assert!(!story.write(&a));
    let b = story.grant("b");
    assert!(!story.write(&a));
    assert!(story.write(&b));

    let report = story.report();
    assert!(report.is_clean(), "{report}");
    assert_eq!((report.accepted(), report.refused()), (2, 2));
    let (_, old, new) = report.handovers().next().expect("a handover");
    assert_eq!(old.last_accepted.unwrap().sequence, 2);
    assert_eq!(old.revoked.unwrap().sequence, 3);
    assert_eq!(old.refused, 2);
    assert_eq!(new.granted.sequence, 5);
    assert_eq!(new.first_accepted.unwrap().sequence, 7);
}

#[test]
fn a_volume_may_return_to_its_old_node_by_a_new_grant() {
    let mut story = Story::permissive();
    for name in ["a", "b", "a"] {
        let access = story.grant(name);
        assert!(story.write(&access));
        story.revoke(name);
    }
    assert!(story.report().is_clean());
    assert_eq!(story.report().handovers().count(), 2);
}

#[test]
fn an_old_writer_beside_a_granted_successor_is_found() {
    let mut story = Story::permissive();
    let a = story.grant("a");
    let b = story.grant("b");
    assert!(
        story.report().is_clean(),
        "two grants alone are no violation"
    );
    assert!(story.write(&a));
    let successor = node("b");
    let beside = Violation::BesideSuccessor {
        successor: successor.clone(),
        epoch: b.epoch,
    };
    assert_eq!(story.violations(), [("a".to_owned(), beside.clone())]);

    assert!(story.write(&b));
    assert!(story.write(&a));
    let two = Violation::TwoWriters {
        successor,
        epoch: b.epoch,
    };
    assert_eq!(
        story.violations(),
        [("a".to_owned(), beside), ("a".to_owned(), two)]
    );
    assert_eq!(story.report().findings[0].records, 2);
}

#[test]
fn two_writers_are_found_even_when_the_successor_has_left_again() {
    let mut story = Story::permissive();
    let a = story.grant("a");
    let b = story.grant("b");
    story.write(&b);
    story.revoke("b");
    assert!(story.write(&a));
    let two = Violation::TwoWriters {
        successor: node("b"),
        epoch: b.epoch,
    };
    assert_eq!(story.violations(), [("a".to_owned(), two)]);
}

#[test]
fn a_fence_that_fences_nothing_is_found_before_there_is_a_successor() {
    let mut story = Story::permissive();
    let a = story.grant("a");
    story.write(&a);
    story.pretend_to_revoke("a");
    assert!(story.report().is_clean());
    assert!(story.write(&a));
    assert_eq!(
        story.violations(),
        [("a".to_owned(), Violation::AfterRevoke)]
    );
}

#[test]
fn a_fence_that_fences_nothing_gives_two_writers() {
    let mut story = Story::on(Array::new(Policy::Exclusive));
    let a = story.grant("a");
    story.pretend_to_revoke("a");
    let b = story.grant("b");
    story.write(&b);
    story.write(&a);
    let kinds = story.violations();
    assert!(
        kinds
            .iter()
            .any(|(n, v)| n == "a" && matches!(v, Violation::TwoWriters { .. })),
        "{kinds:?}"
    );
}

#[test]
fn a_session_that_outlived_its_fence_is_found() {
    let revive = Array::new(Policy::Permissive).with_stale_sessions(StaleSessions::Revived);
    let mut story = Story::on(revive);
    let old = story.grant("a");
    story.revoke("a");
    let new = story.grant("a");
    assert!(story.write(&old));
    let stale = Violation::StaleEpoch { held: new.epoch };
    assert_eq!(story.violations(), [("a".to_owned(), stale)]);
}

#[test]
fn a_zombie_beside_its_own_successor_is_counted_where_the_array_refused_it() {
    let mut story = Story::permissive();
    let old = story.grant("a");
    story.revoke("a");
    story.write(&old);
    story.grant("a");
    story.write(&old);
    let report = story.report();
    assert!(report.is_clean());
    let tenure = &report.tenures[&story.volume][0];
    assert_eq!(
        (tenure.refused, tenure.refused_beside_own_successor),
        (2, 1)
    );
}

#[test]
fn a_write_without_any_grant_is_found() {
    let mut story = Story::permissive();
    let a = story.grant("a");
    story.write(&a);
    let without_grant = &story.array.records()[1..];
    let report = judge(without_grant);
    assert_eq!(report.findings[0].violation, Violation::NeverGranted);
}

#[test]
fn a_missing_record_is_found() {
    let mut story = Story::permissive();
    let a = story.grant("a");
    for _ in 0..3 {
        story.write(&a);
    }
    let mut records = story.array.records().to_vec();
    records.remove(2);
    assert_eq!(judge(&records).findings[0].violation, Violation::Gap);
}

#[test]
fn a_shared_volume_may_have_two_writers_but_none_after_its_revoke() {
    let mut story = Story::permissive();
    let (a, b) = (story.grant("a"), story.grant("b"));
    story.write(&b);
    story.write(&a);
    let shared = BTreeSet::from([story.volume.clone()]);
    assert!(judge_with_shared(story.array.records(), &shared).is_clean());
    story.pretend_to_revoke("a");
    story.write(&a);
    let report = judge_with_shared(story.array.records(), &shared);
    assert_eq!(report.findings[0].violation, Violation::AfterRevoke);
}

#[test]
fn a_report_on_some_volumes_leaves_the_others_out() {
    let mut story = Story::permissive();
    let a = story.grant("a");
    story.pretend_to_revoke("a");
    story.write(&a);
    assert!(!story.report().only(|v| v.as_str() == "v").is_clean());
    let other = story.report().only(|v| v.as_str() == "w");
    assert!(other.is_clean());
    assert_eq!(other.accepted(), 0);
}
