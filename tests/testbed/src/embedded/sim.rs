//! Simulation: podmon, whole, on the embedded cluster, through faults that a seed decides; judged all the while.

pub mod fence;
pub mod history;
pub mod judge;
pub mod saboteur;
pub mod weather;
pub mod world;

use std::time::Duration;

use history::History;
use judge::Violation;
use saboteur::Saboteur;
use weather::Forecast;
use world::World;

use super::chance::Chance;
use super::cluster::Shape;
use super::control::Timing;
use crate::storage::array::Policy;

/// One simulation, told by its seed alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub seed: u64,
    /// How long faults come and go.
    pub storm: Duration,
    /// How long everything may take to come to rest afterwards.
    pub calm: Duration,
    pub saboteur: Option<Saboteur>,
}

impl Plan {
    /// An hour of faults.
    pub fn hour(seed: u64) -> Plan {
        Plan {
            seed,
            storm: Duration::from_secs(3600),
            calm: Duration::from_secs(1800),
            saboteur: None,
        }
    }

    /// Five minutes of faults.
    pub fn short(seed: u64) -> Plan {
        Plan {
            storm: Duration::from_secs(300),
            ..Plan::hour(seed)
        }
    }

    pub fn with(self, saboteur: Saboteur) -> Plan {
        Plan {
            saboteur: Some(saboteur),
            ..self
        }
    }
}

/// What came of a simulation.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub plan: Plan,
    pub violations: Vec<Violation>,
    /// Digest of every change of the API and every record of the ledger, in order.
    pub digest: String,
    /// What happened, for people.
    pub story: Vec<String>,
    /// Pods that podmon released.
    pub releases: u64,
    /// Requests of zombies that the array refused.
    pub refused: u64,
    /// The time that was simulated.
    pub simulated: Duration,
}

impl Outcome {
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }
}

/// Runs one simulation on a thread and a runtime of its own, so that nothing of another can be felt.
pub fn run(plan: &Plan) -> Outcome {
    let plan = plan.clone();
    let seed = plan.seed;
    let thread = std::thread::Builder::new()
        .name(format!("seed-{seed}"))
        .stack_size(8 << 20)
        .spawn(move || {
            super::entropy::seed(plan.seed);
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .start_paused(true)
                .build()
                .unwrap_or_else(|error| panic!("a runtime for seed {seed}: {error}"));
            runtime.block_on(simulate(plan))
        })
        .unwrap_or_else(|error| panic!("a thread for seed {seed}: {error}"));
    match thread.join() {
        Ok(outcome) => outcome,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

async fn simulate(plan: Plan) -> Outcome {
    let mut chance = Chance::new(plan.seed);
    let shape = Shape {
        seed: chance.draw(),
        nodes: 3 + chance.below(3) as usize,
        timing: if chance.percent(70) {
            Timing::FAST
        } else {
            Timing::STOCK
        },
        policy: if chance.percent(80) {
            Policy::Permissive
        } else {
            Policy::Exclusive
        },
        published_nodes: chance.percent(30),
        extension: chance.percent(50),
        ..Shape::default()
    };
    let history = History::new();
    let mut world = World::new(&shape, plan.saboteur, &history, chance.fork(1)).await;
    let forecast = Forecast::new(&mut chance.fork(2), shape.nodes, plan.storm);
    world.weather(forecast, plan.storm).await;
    world.clear_up();
    world.come_to_rest(plan.calm).await;
    world.conclude(plan)
}
