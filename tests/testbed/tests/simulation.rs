//! podmon, both halves, on the embedded cluster.

use std::collections::BTreeMap;
use std::time::Duration;

use testbed::embedded::chance::Chance;
use testbed::embedded::cluster::Shape;
use testbed::embedded::sim::history::History;
use testbed::embedded::sim::saboteur::Saboteur;
use testbed::embedded::sim::weather::{Fault, Forecast};
use testbed::embedded::sim::world::World;
use testbed::embedded::sim::{self, Outcome, Plan};

fn explain(outcome: &Outcome) -> String {
    let mut text = format!("seed {}\n", outcome.plan.seed);
    for line in outcome
        .story
        .iter()
        .filter(|line| !line.starts_with("    0."))
    {
        text += line;
        text.push('\n');
    }
    for violation in &outcome.violations {
        text += &format!("{violation}\n");
    }
    text
}

/// One fault on a machine that has a protected pod, and its end.
async fn failover(fault: impl Fn(usize) -> Fault) -> Outcome {
    let history = History::new();
    let shape = Shape::default();
    let mut world = World::new(&shape, None, &history, Chance::new(1)).await;
    let lost = world.cluster.place("db-0");
    let number = world
        .cluster
        .hosts
        .iter()
        .position(|host| host.name() == lost)
        .expect("a machine");
    let forecast = Forecast::only(
        fault(number),
        Duration::from_secs(5),
        Duration::from_secs(150),
    );
    world.weather(forecast, Duration::from_secs(120)).await;
    let place = world.cluster.place("db-0");
    let ready = world.cluster.is_ready("db-0");
    world.clear_up();
    world.come_to_rest(Duration::from_secs(300)).await;
    let outcome = world.conclude(Plan::short(1));
    assert!(
        ready && place != lost,
        "db-0 is not ready elsewhere:\n{}",
        explain(&outcome)
    );
    outcome
}

#[tokio::test(start_paused = true)]
async fn a_network_cut_moves_the_pods_and_the_node_comes_back() {
    let outcome = failover(Fault::CutNode).await;
    assert!(outcome.is_clean(), "{}", explain(&outcome));
    assert!(
        outcome.refused > 0,
        "the zombie was refused:\n{}",
        explain(&outcome)
    );
}

#[tokio::test(start_paused = true)]
async fn so_does_a_power_loss() {
    let outcome = failover(Fault::PowerOff).await;
    assert!(outcome.is_clean(), "{}", explain(&outcome));
}

#[tokio::test(start_paused = true)]
async fn so_does_a_freeze() {
    let outcome = failover(Fault::FreezeNode).await;
    assert!(outcome.is_clean(), "{}", explain(&outcome));
}

#[tokio::test(start_paused = true)]
async fn so_does_a_dead_kubelet() {
    let outcome = failover(Fault::StopKubelet).await;
    assert!(outcome.is_clean(), "{}", explain(&outcome));
}

#[test]
fn a_seed_gives_the_same_history_twice() {
    let (one, two) = (sim::run(&Plan::short(7)), sim::run(&Plan::short(7)));
    assert_eq!(one.story, two.story);
    assert_eq!(one.digest, two.digest);
}

/// The fixed seeds: whatever they find is a fault of podmon's or of the judge's, never of chance.
#[test]
fn fixed_seeds_break_no_rule() {
    let plans: Vec<Plan> = (1..=SEEDS).map(Plan::short).collect();
    let broken: Vec<String> = in_parallel(&plans)
        .into_iter()
        .filter(|outcome| !outcome.is_clean())
        .map(|outcome| {
            let seed = outcome.plan.seed;
            let violations: Vec<String> =
                outcome.violations.iter().map(ToString::to_string).collect();
            format!(
                "{}\nto replay: cargo sim -- --story --minutes 5 {seed}",
                violations.join("\n")
            )
        })
        .collect();
    assert!(broken.is_empty(), "{}", broken.join("\n\n"));
}

/// Each saboteur is caught within the fixed seeds; the table says by which rules.
#[test]
fn every_saboteur_is_caught() {
    let mut missed = Vec::new();
    for saboteur in Saboteur::ALL {
        let mut rules = BTreeMap::new();
        let mut seed = 1;
        while rules.is_empty() && seed <= SEEDS {
            let plans: Vec<Plan> = (seed..seed + 4)
                .map(|seed| Plan::short(seed).with(saboteur))
                .collect();
            for outcome in in_parallel(&plans) {
                for violation in &outcome.violations {
                    *rules.entry(format!("{:?}", violation.rule)).or_insert(0) += 1;
                }
            }
            seed += 4;
        }
        println!("{:20} {rules:?}", format!("{saboteur:?}"));
        if rules.is_empty() {
            missed.push(saboteur);
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

const SEEDS: u64 = 24;

/// Two at a time, in the order of the plans.
fn in_parallel(plans: &[Plan]) -> Vec<Outcome> {
    let half = plans.len().div_ceil(2);
    std::thread::scope(|scope| {
        let halves: Vec<_> = plans
            .chunks(half.max(1))
            .map(|plans| scope.spawn(|| plans.iter().map(sim::run).collect::<Vec<_>>()))
            .collect();
        halves
            .into_iter()
            .flat_map(|half| half.join().expect("a simulation"))
            .collect()
    })
}
