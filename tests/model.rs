//! Every history of one evacuation, with faults at every step: the real code as the transition function.

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
use crate::explore::explore;
use crate::sabotage::Sabotage;
use crate::state::{A, Action, Setting, State};

fn setting(faults: u8) -> Setting {
    Setting {
        faults,
        republishes: 0,
        tolerates: false,
        sabotage: Sabotage::Nothing,
        only: Vec::new(),
    }
}

/// A pod with one volume on the failed node.
fn one_pod(cluster: &mut Cluster) {
    cluster.add_volume("pv1");
    cluster.run("db-0", A, &["pv1"]);
    cluster.edit_node(A, |node| node.volumes_in_use.clear());
    cluster.lose_node(A);
}

/// States at most; more with `PODMON_MODEL_STATES`.
fn bound() -> usize {
    std::env::var("PODMON_MODEL_STATES")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(100_000)
}

fn show(initial: &State, setting: &Setting, path: &[Action]) {
    let mut state = initial.clone();
    for (index, action) in path.iter().enumerate() {
        if index > 40 {
            println!("… and {} more", path.len() - index);
            return;
        }
        println!(
            "      {}\n{}",
            picture::state(&state),
            picture::action(&state, action)
        );
        if let Err(violation) = state.take(action, setting) {
            println!("  -> {violation:?}");
        }
    }
    println!("      {}", picture::state(&state));
}

fn holds(name: &str, setting: &Setting, prepare: fn(&mut Cluster)) {
    let initial = State::new(setting, prepare);
    let started = std::time::Instant::now();
    let found = explore(&initial, setting, bound());
    println!(
        "{name}: {} states, {} transitions, {} settled, depth {}, {:?}",
        found.states,
        found.transitions,
        found.settled,
        found.depth,
        started.elapsed()
    );
    if let Some((violation, path)) = &found.violation {
        show(&initial, setting, path);
        panic!("{name}: {violation:?}");
    }
}

#[test]
fn one_pod_one_volume() {
    holds("one pod, no fault", &setting(0), one_pod);
    holds("one pod, one fault", &setting(1), one_pod);
    holds("one pod, two faults", &setting(2), one_pod);
}
