//! Runs simulations by their seeds: `cargo sim -- 1..1001`, `cargo sim -- --story 17`.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use testbed::embedded::sim::saboteur::Saboteur;
use testbed::embedded::sim::{Outcome, Plan, run};

/// Runs podmon on the embedded cluster through faults that seeds decide.
#[derive(Parser)]
struct Arguments {
    /// A seed, or a range of seeds such as 1..101 (without its end)
    #[arg(default_value = "1..101")]
    seeds: String,
    /// Minutes of faults in each simulation
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// Simulations at once; 0 for as many as there are processors
    #[arg(long, default_value_t = 0)]
    jobs: usize,
    /// Tell what happened
    #[arg(long)]
    story: bool,
    /// Break a rule of podmon's, by its name
    #[arg(long)]
    saboteur: Option<String>,
}

fn seeds(text: &str) -> Result<std::ops::Range<u64>, String> {
    let number = |text: &str| {
        text.parse::<u64>()
            .map_err(|error| format!("{text:?}: {error}"))
    };
    match text.split_once("..") {
        Some((first, end)) => Ok(number(first)?..number(end)?),
        None => number(text).map(|seed| seed..seed + 1),
    }
}

fn saboteur(name: &str) -> Result<Saboteur, String> {
    let found = Saboteur::ALL
        .into_iter()
        .find(|saboteur| format!("{saboteur:?}") == name);
    found.ok_or_else(|| format!("no saboteur {name:?}; there are {:?}", Saboteur::ALL))
}

fn main() -> std::process::ExitCode {
    let arguments = Arguments::parse();
    let plans = seeds(&arguments.seeds).and_then(|seeds| {
        let saboteur = arguments.saboteur.as_deref().map(saboteur).transpose()?;
        let storm = Duration::from_secs(arguments.minutes * 60);
        let plan = move |seed| Plan {
            storm,
            saboteur,
            ..Plan::hour(seed)
        };
        Ok(seeds.map(plan).collect::<Vec<_>>())
    });
    match plans {
        Ok(plans) if simulate(&plans, &arguments) => std::process::ExitCode::SUCCESS,
        Ok(_) => std::process::ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            std::process::ExitCode::from(2)
        }
    }
}

/// True if no rule was broken.
fn simulate(plans: &[Plan], arguments: &Arguments) -> bool {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = if arguments.jobs == 0 {
        cores
    } else {
        arguments.jobs
    };
    let (next, done, began) = (AtomicUsize::new(0), AtomicUsize::new(0), Instant::now());
    let outcomes = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(plan) = plans.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = run(plan);
                    let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                    report(&outcome, arguments);
                    eprint!(
                        "\r{done}/{} simulations, {:.0} s ",
                        plans.len(),
                        began.elapsed().as_secs_f64()
                    );
                    if let Ok(mut outcomes) = outcomes.lock() {
                        outcomes.push(outcome);
                    }
                }
            });
        }
    });
    eprintln!();
    let outcomes = outcomes.into_inner().unwrap_or_default();
    let broken = outcomes
        .iter()
        .filter(|outcome| !outcome.is_clean())
        .count();
    let hours: f64 = outcomes
        .iter()
        .map(|outcome| outcome.simulated.as_secs_f64() / 3600.0)
        .sum();
    let releases: u64 = outcomes.iter().map(|outcome| outcome.releases).sum();
    let refused: u64 = outcomes.iter().map(|outcome| outcome.refused).sum();
    let took = began.elapsed().as_secs_f64();
    println!(
        "{} simulations, {hours:.1} simulated hours in {took:.1} s ({:.2} s an hour and core); {releases} pods released, \
         {refused} requests of zombies refused; {broken} simulations broke a rule",
        outcomes.len(),
        took * jobs as f64 / hours.max(0.001),
    );
    broken == 0
}

fn report(outcome: &Outcome, arguments: &Arguments) {
    let seed = outcome.plan.seed;
    let mut text = String::new();
    if arguments.story {
        for line in &outcome.story {
            text += &format!("{line}\n");
        }
        text += &format!("seed {seed}: digest {}\n", outcome.digest);
    }
    for violation in &outcome.violations {
        text += &format!("seed {seed}: {violation}\n");
    }
    if !outcome.is_clean() {
        let sabotage = outcome
            .plan
            .saboteur
            .map_or_else(String::new, |saboteur| format!(" --saboteur {saboteur:?}"));
        let minutes = outcome.plan.storm.as_secs() / 60;
        text += &format!("to replay: cargo sim -- --story --minutes {minutes}{sabotage} {seed}\n");
    }
    if !text.is_empty() {
        print!("\n{text}");
    }
}
