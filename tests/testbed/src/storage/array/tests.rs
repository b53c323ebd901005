//! The array's rules, one by one.

use std::time::Duration;

use super::*;
use crate::storage::trouble::Delay;

const NOW: Duration = Duration::from_secs(100);

fn volume(name: &str) -> VolumeId {
    VolumeId::new(name).unwrap()
}

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

fn array(policy: Policy) -> Array {
    let mut array = Array::new(policy);
    array.create(&volume("v"), 1 << 20).unwrap();
    array.seen(NOW, &node("a")).unwrap();
    array.seen(NOW, &node("b")).unwrap();
    array
}

fn granted(array: &mut Array, to: &str) -> Access {
    let epoch = array.grant(NOW, &volume("v"), &node(to)).unwrap();
    Access {
        volume: volume("v"),
        node: node(to),
        epoch,
    }
}

#[test]
fn only_a_granted_node_reads_and_writes() {
    let mut array = array(Policy::Permissive);
    let a = granted(&mut array, "a");
    assert_eq!(array.write(NOW, &a, 0, 4096), Ok(()));
    assert_eq!(array.read(NOW, &a, 0, 4096), Ok(()));
    assert_eq!(array.sync(NOW, &a), Ok(()));
    let b = Access {
        node: node("b"),
        ..a
    };
    let no = Err(Refusal::NoAccess(b.clone()));
    assert_eq!(array.write(NOW, &b, 0, 4096), no);
    assert_eq!(array.read(NOW, &b, 0, 4096), no);
    assert_eq!(array.sync(NOW, &b), no);
}

#[test]
fn a_revoke_takes_effect_at_once_and_a_new_grant_does_not_help_the_old_session() {
    let mut array = array(Policy::Permissive);
    let old = granted(&mut array, "a");
    array.revoke(NOW, &volume("v"), Some(&node("a")));
    assert!(array.write(NOW, &old, 0, 1).is_err());
    let new = granted(&mut array, "a");
    assert!(new.epoch > old.epoch);
    assert!(array.write(NOW, &old, 0, 1).is_err());
    assert!(array.write(NOW, &new, 0, 1).is_ok());
}

#[test]
fn revived_sessions_live_again_with_a_new_grant_only() {
    let mut array = array(Policy::Permissive).with_stale_sessions(StaleSessions::Revived);
    let old = granted(&mut array, "a");
    array.revoke(NOW, &volume("v"), Some(&node("a")));
    assert!(array.write(NOW, &old, 0, 1).is_err());
    granted(&mut array, "a");
    assert!(array.write(NOW, &old, 0, 1).is_ok());
}

#[test]
fn granting_again_keeps_the_grant() {
    let mut array = array(Policy::Permissive);
    assert_eq!(granted(&mut array, "a"), granted(&mut array, "a"));
}

#[test]
fn a_second_node_is_granted_or_refused_by_policy() {
    let mut permissive = array(Policy::Permissive);
    let a = granted(&mut permissive, "a");
    let b = granted(&mut permissive, "b");
    assert!(permissive.write(NOW, &a, 0, 1).is_ok());
    assert!(permissive.write(NOW, &b, 0, 1).is_ok());

    let mut exclusive = array(Policy::Exclusive);
    granted(&mut exclusive, "a");
    let held = Refusal::Held {
        volume: volume("v"),
        holder: node("a"),
    };
    assert_eq!(
        exclusive.grant(NOW, &volume("v"), &node("b")),
        Err(held.clone())
    );
    assert_eq!(exclusive.delete(&volume("v")), Err(held));
    exclusive.revoke(NOW, &volume("v"), None);
    granted(&mut exclusive, "b");
}

#[test]
fn revoking_without_a_node_revokes_all() {
    let mut array = array(Policy::Permissive);
    let (a, b) = (granted(&mut array, "a"), granted(&mut array, "b"));
    array.revoke(NOW, &volume("v"), None);
    assert!(array.write(NOW, &a, 0, 1).is_err());
    assert!(array.write(NOW, &b, 0, 1).is_err());
}

#[test]
fn a_pretended_revoke_leaves_the_session_alive() {
    let mut array = array(Policy::Exclusive);
    let a = granted(&mut array, "a");
    array.pretend_to_revoke(NOW, &volume("v"), Some(&node("a")));
    let b = granted(&mut array, "b");
    assert!(array.write(NOW, &a, 0, 1).is_ok());
    assert!(array.write(NOW, &b, 0, 1).is_ok());
}

#[test]
fn unknown_nodes_and_volumes_get_nothing_and_lose_nothing() {
    let mut array = array(Policy::Permissive);
    assert_eq!(
        array.grant(NOW, &volume("v"), &node("x")),
        Err(Refusal::UnknownNode(node("x")))
    );
    assert_eq!(
        array.grant(NOW, &volume("x"), &node("a")),
        Err(Refusal::UnknownVolume(volume("x")))
    );
    array.revoke(NOW, &volume("x"), Some(&node("x")));
    assert_eq!(array.delete(&volume("x")), Ok(()));
}

#[test]
fn creating_again_needs_the_same_size() {
    let mut array = array(Policy::Permissive);
    assert_eq!(array.create(&volume("v"), 1 << 20), Ok(()));
    let other = Refusal::Exists {
        volume: volume("v"),
        bytes: 1 << 20,
    };
    assert_eq!(array.create(&volume("v"), 1), Err(other));
}

#[test]
fn nothing_is_written_beyond_the_end() {
    let mut array = array(Policy::Permissive);
    let a = granted(&mut array, "a");
    assert!(array.write(NOW, &a, (1 << 20) - 1, 1).is_ok());
    assert!(array.write(NOW, &a, 1 << 20, 1).is_err());
    assert!(array.write(NOW, &a, u64::MAX, 1).is_err());
}

#[test]
fn a_cut_path_keeps_requests_out_of_array_and_ledger() {
    let mut array = array(Policy::Permissive);
    let a = granted(&mut array, "a");
    let before = array.records().len();
    array.set_path(&node("a"), Path::Stalled);
    assert!(matches!(
        array.write(NOW, &a, 0, 1),
        Err(Refusal::NoPath {
            path: Path::Stalled,
            ..
        })
    ));
    assert!(array.seen(NOW, &node("a")).is_err());
    assert_eq!(array.records().len(), before);
    array.set_path(&node("a"), Path::Up);
    assert!(array.write(NOW, &a, 0, 1).is_ok());
}

#[test]
fn connected_means_heard_a_moment_ago() {
    let mut array = array(Policy::Permissive);
    let asked = |array: &Array, at| array.connectivity(at, &node("a"), &[], None).unwrap();
    assert!(asked(&array, NOW + Duration::from_secs(2)).connected);
    assert!(!asked(&array, NOW + Duration::from_secs(3)).connected);
    array.set_path(&node("a"), Path::Failing);
    assert!(
        array
            .seen(NOW + Duration::from_secs(3), &node("a"))
            .is_err()
    );
    assert!(!asked(&array, NOW + Duration::from_secs(3)).connected);
    array.set_path(&node("a"), Path::Up);
    array
        .seen(NOW + Duration::from_secs(3), &node("a"))
        .unwrap();
    assert!(asked(&array, NOW + Duration::from_secs(3)).connected);
    assert!(array.connectivity(NOW, &node("x"), &[], None).is_err());
}

#[test]
fn io_in_progress_means_accepted_io_of_the_volume_within_the_sample() {
    let mut array = array(Policy::Permissive);
    array.create(&volume("w"), 1).unwrap();
    let a = granted(&mut array, "a");
    let asked = |array: &Array, name, after, sample| {
        let at = NOW + Duration::from_secs(after);
        let sample = Some(Duration::from_secs(sample));
        array
            .connectivity(at, &node("b"), &[volume(name)], sample)
            .unwrap()
            .io_in_progress
    };
    assert!(!asked(&array, "v", 0, 5));
    array.read(NOW, &a, 0, 1).unwrap();
    assert!(asked(&array, "v", 5, 5));
    assert!(!asked(&array, "v", 6, 5));
    assert!(!asked(&array, "w", 0, 5));
    array.revoke(NOW, &volume("v"), None);
    assert!(array.write(NOW + Duration::from_secs(6), &a, 0, 1).is_err());
    assert!(!asked(&array, "v", 6, 5), "refused I/O is none");
}

#[test]
fn a_lie_replaces_what_was_seen() {
    let mut array = array(Policy::Permissive);
    let lie = Lie {
        connected: Some(false),
        io_in_progress: Some(true),
    };
    array.set_lie(&node("a"), lie);
    let said = array.connectivity(NOW, &node("a"), &[], None).unwrap();
    assert_eq!((said.connected, said.io_in_progress), (false, true));
    array.set_lie(&node("a"), Lie::default());
    let said = array.connectivity(NOW, &node("a"), &[], None).unwrap();
    assert_eq!((said.connected, said.io_in_progress), (true, false));
}

#[test]
fn a_rule_meets_its_calls_its_number_of_times() {
    let mut array = array(Policy::Permissive);
    let rule = Rule::all(Call::ControllerUnpublish, Trouble::hang());
    array.add_rule(rule.times(1).on(&node("a")).of(&volume("v")));
    let mut ask = |call, on: &str| array.trouble(call, &[volume("v")], Some(&node(on)));
    assert_eq!(ask(Call::ControllerPublish, "a"), None);
    assert_eq!(ask(Call::ControllerUnpublish, "b"), None);
    let met = ask(Call::ControllerUnpublish, "a").unwrap();
    assert_eq!(met.before, Delay::Forever);
    assert_eq!(ask(Call::ControllerUnpublish, "a"), None);
}

#[test]
fn the_ledger_has_every_decision_in_order() {
    let mut array = array(Policy::Permissive);
    let a = granted(&mut array, "a");
    array.write(NOW, &a, 8, 16).unwrap();
    array.read(NOW, &a, 8, 16).unwrap();
    array.revoke(NOW, &volume("v"), Some(&node("a")));
    let _ = array.read(NOW, &a, 8, 16);
    let _ = array.sync(NOW, &a);
    let brief: Vec<_> = array
        .records()
        .iter()
        .map(|r| (r.sequence, r.operation, r.verdict))
        .collect();
    use {Operation::*, Verdict::*};
    assert_eq!(
        brief,
        [
            (1, Grant, Accepted),
            (2, Write, Accepted),
            (3, Revoke, Accepted),
            (4, Read, Refused),
            (5, Sync, Refused),
        ]
    );
    assert_eq!(array.ledger().after(3).len(), 2);
    assert_eq!(array.ledger().after(9).len(), 0);
    for record in array.records() {
        let line = serde_json::to_string(record).unwrap();
        assert_eq!(&serde_json::from_str::<Record>(&line).unwrap(), record);
    }
}
