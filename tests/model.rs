//! Histories of one evacuation, with faults at every step: the real code as the transition function. Breadth first, so
//! that a run which is cut has seen every history up to the depth that it prints.
//!
//! By default as much as a minute allows; `PODMON_MODEL_DEEP=1` lifts the bounds (minutes to hours).

#[path = "model/cluster.rs"]
#[allow(dead_code)]
mod cluster;
#[path = "model/explore.rs"]
mod explore;
#[path = "model/invariants.rs"]
mod invariants;
#[path = "model/perform.rs"]
mod perform;
#[path = "model/picture.rs"]
mod picture;
#[path = "model/sabotage.rs"]
mod sabotage;
#[path = "model/state.rs"]
mod state;

use crate::cluster::Cluster;
use crate::explore::{Explored, explore};
use crate::invariants::Violation;
use crate::sabotage::Sabotage;
use crate::state::{A, Action, Fault, Setting, State};

const NOTHING: Setting = Setting {
    faults: 0,
    republishes: 0,
    tolerates: false,
    sabotage: Sabotage::Nothing,
    only: &[],
};

/// A pod with one volume, which ran on the failed node.
fn one_pod(cluster: &mut Cluster) {
    cluster.add_volume("pv1");
    cluster.run("db-0", A, &["pv1"]);
    lose(cluster);
}

/// A pod that was to start there: its volume is being published.
fn pending_pod(cluster: &mut Cluster) {
    cluster.add_volume("pv1");
    cluster.bind("db-0", A, &["pv1"]);
    cluster.attach(&"pv1".into(), &A.into());
    lose(cluster);
}

fn two_volumes(cluster: &mut Cluster) {
    cluster.add_volume("pv1");
    cluster.add_volume("pv2");
    cluster.run("db-0", A, &["pv1", "pv2"]);
    lose(cluster);
}

fn two_pods(cluster: &mut Cluster) {
    cluster.add_volume("pv1");
    cluster.add_volume("pv2");
    cluster.run("db-0", A, &["pv1"]);
    cluster.run("db-1", A, &["pv2"]);
    lose(cluster);
}

fn lose(cluster: &mut Cluster) {
    // Kubernetes lets go at its next tick; what waits for that is another test's.
    cluster.edit_node(A, |node| node.volumes_in_use.clear());
    cluster.lose_node(A);
}

fn deep() -> bool {
    std::env::var_os("PODMON_MODEL_DEEP").is_some()
}

/// States at most in the default run.
const BOUND: usize = 4_000;

fn run(
    name: &str,
    setting: &Setting,
    prepare: fn(&mut Cluster),
    bound: usize,
) -> (State, Explored) {
    let initial = State::new(setting, prepare);
    let started = std::time::Instant::now();
    let bound = if deep() { usize::MAX } else { bound };
    let found = explore(&initial, setting, bound);
    println!(
        "{name}, {} faults of {:?}: {} states, {} transitions, {} settled, depth {}, {:.1} s{}",
        setting.faults,
        setting.only,
        found.states,
        found.transitions,
        found.settled,
        found.depth,
        started.elapsed().as_secs_f32(),
        if found.cut {
            ", cut there: PODMON_MODEL_DEEP=1 goes on"
        } else {
            ""
        },
    );
    (initial, found)
}

fn holds(name: &str, setting: &Setting, prepare: fn(&mut Cluster)) {
    let (initial, found) = run(name, setting, prepare, BOUND);
    if let Some((violation, path)) = &found.violation {
        show(&initial, setting, path);
        panic!("{name}: {violation:?}");
    }
    assert!(
        found.cut || found.settled > 0,
        "{name}: nothing ever comes to an end"
    );
}

/// The counterexample, to read.
fn show(initial: &State, setting: &Setting, path: &[Action]) {
    let mut state = initial.clone();
    for (index, action) in path.iter().enumerate() {
        println!(
            "      {}\n{}",
            picture::state(&state),
            picture::action(&state, action)
        );
        if index > 40 {
            println!("… and {} more", path.len() - index);
            return;
        }
        if let Err(violation) = state.take(action, setting) {
            println!("  -> {violation:?}");
        }
    }
    println!("      {}", picture::state(&state));
}

#[test]
fn histories_without_and_with_one_fault() {
    for (name, prepare) in [
        ("one pod", one_pod as fn(&mut Cluster)),
        ("a pending pod", pending_pod),
        ("two volumes", two_volumes),
        ("two pods", two_pods),
    ] {
        holds(name, &NOTHING, prepare);
        let bounded = Setting {
            faults: 1,
            ..NOTHING
        };
        holds(name, &bounded, prepare);
    }
    let republishing = Setting {
        faults: 1,
        republishes: 2,
        ..NOTHING
    };
    holds("one pod, republished", &republishing, one_pod);
    let tolerating = Setting {
        faults: 1,
        tolerates: true,
        ..NOTHING
    };
    holds("one pod that tolerates the taint", &tolerating, one_pod);
}

/// Faults that have something to do with one another.
const TOGETHER: [&[Fault]; 7] = [
    &[Fault::GivenUp, Fault::Crash, Fault::Node],
    &[Fault::AnswerLost, Fault::Crash, Fault::Node],
    &[Fault::Failed, Fault::Sleep, Fault::Node],
    &[Fault::Slow, Fault::Node, Fault::Delete],
    &[Fault::Slow, Fault::Crash, Fault::Node],
    &[Fault::Deaf, Fault::Sleep, Fault::Delete],
    &[Fault::NodeDeleted, Fault::GivenUp, Fault::Crash],
];

#[test]
fn histories_with_three_faults() {
    for only in TOGETHER {
        holds(
            "one pod",
            &Setting {
                faults: 3,
                only,
                ..NOTHING
            },
            one_pod,
        );
    }
    if deep() {
        for faults in [2, 3] {
            let all = Setting { faults, ..NOTHING };
            holds("one pod", &all, one_pod);
            holds("a pending pod", &all, pending_pod);
        }
    }
}

/// With this rule off, some history breaks what must hold.
fn caught(sabotage: Sabotage, faults: u8, only: &'static [Fault], expected: &[Violation]) {
    let setting = Setting {
        faults,
        only,
        sabotage,
        ..NOTHING
    };
    let (_, found) = run(&format!("sabotage {sabotage:?}"), &setting, one_pod, 60_000);
    let Some((violation, path)) = found.violation else {
        panic!("{sabotage:?} was not caught");
    };
    println!("  caught: {violation:?} after {} steps", path.len());
    assert!(
        expected.contains(&violation),
        "{sabotage:?} led to {violation:?}"
    );
}

#[test]
fn a_fence_that_does_nothing_is_caught() {
    caught(Sabotage::NoFence, 0, &[], &[Violation::ReleasedUnfenced]);
}

#[test]
fn a_volume_that_is_not_found_is_caught() {
    caught(
        Sabotage::NothingFound,
        0,
        &[],
        &[Violation::ReleasedUnfenced],
    );
}

#[test]
fn a_wrong_node_id_is_caught() {
    caught(Sabotage::WrongId, 0, &[], &[Violation::ReleasedUnfenced]);
}

#[test]
fn an_attachment_before_its_pod_is_caught() {
    caught(
        Sabotage::AttachmentFirst,
        0,
        &[],
        &[Violation::AttachmentBeforePod],
    );
}

#[test]
fn a_journal_without_its_taint_is_caught() {
    caught(Sabotage::NoTaint, 0, &[], &[Violation::OpenWithoutTaint]);
}

#[test]
fn a_call_given_up_and_forgotten_is_caught() {
    let faults = &[Fault::GivenUp, Fault::Node];
    caught(
        Sabotage::GivenUpForgotten,
        2,
        faults,
        &[Violation::RightfulFenced],
    );
}

#[test]
fn a_patch_without_its_version_is_caught() {
    let faults = &[Fault::GivenUp, Fault::Slow, Fault::Node, Fault::Crash];
    caught(
        Sabotage::NoVersion,
        3,
        faults,
        &[
            Violation::OpenWithoutTaint,
            Violation::RightfulFenced,
            Violation::Stuck,
        ],
    );
}
