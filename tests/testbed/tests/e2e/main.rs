//! Scenarios on a real cluster, one after another. Needs root; see `testbed::real::prerequisites` for the rest.

mod bench;
mod failover;
mod nodes;
mod requalification;

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};
use testbed::real::binaries::Tool;
use testbed::real::{Binaries, Error, isolation};
use tokio::runtime::Runtime;
use tokio::sync::Mutex;

use bench::Bench;

/// What every scenario is: an async function over the one cluster.
macro_rules! scenarios {
    ($($module:ident :: $name:ident),* $(,)?) => {
        vec![$((
            concat!(stringify!($module), "::", stringify!($name)),
            Box::new(|runtime: &Runtime, bench: &mut Bench| runtime.block_on($module::$name(bench))) as Scenario,
        )),*]
    };
}

type Scenario = Box<dyn FnOnce(&Runtime, &mut Bench) -> Result<(), Error> + Send>;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    if arguments.list {
        return libtest_mimic::run(&arguments, trials(None)).exit_code();
    }
    // They share one cluster, and faults of one would be noise to another.
    arguments.test_threads = Some(1);
    isolation::enter(&[Tool::Etcd, Tool::Kube, Tool::CsiAttacher], |binaries| {
        run(&arguments, binaries)
    })
}

fn run(arguments: &Arguments, binaries: Binaries) -> ExitCode {
    let started = Runtime::new()
        .map_err(|error| error.to_string())
        .and_then(|runtime| {
            let bench = runtime
                .block_on(Bench::start(binaries))
                .map_err(|error| error.to_string())?;
            Ok(Arc::new((runtime, Mutex::new(bench))))
        });
    match started {
        Ok(shared) => libtest_mimic::run(arguments, trials(Some(shared))).exit_code(),
        Err(error) => {
            eprintln!("the cluster did not start: {error}");
            ExitCode::FAILURE
        }
    }
}

fn trials(shared: Option<Arc<(Runtime, Mutex<Bench>)>>) -> Vec<Trial> {
    let scenarios: Vec<(&str, Scenario)> = scenarios![
        nodes::are_ready,
        nodes::run_a_pod,
        nodes::run_a_stateful_pod,
        nodes::lose_and_regain_the_network,
        nodes::freeze_and_thaw,
        nodes::lose_power_and_reboot,
        nodes::lose_the_kubelet,
        nodes::lose_the_runtime,
        nodes::refuse_what_an_identity_may_not,
        requalification::free_a_node_that_the_kubelet_has_cleaned,
        requalification::free_a_node_after_a_reboot,
        requalification::keep_a_node_whose_runtime_is_down,
        requalification::keep_a_node_over_a_restart_of_podmon,
        requalification::keep_a_node_while_its_journal_is_open,
        requalification::clear_away_what_no_kubelet_knows,
        requalification::clear_away_a_raw_block_volume,
        requalification::keep_a_node_whose_driver_hangs,
        failover::after_a_network_cut,
        failover::after_a_freeze,
        failover::after_a_power_loss_and_a_reboot,
        failover::never_while_the_array_sees_writes,
        failover::after_the_kubelet_died_under_a_driver_without_the_extension,
        failover::is_found_out_when_the_fence_does_nothing,
        failover::without_the_right_to_node_status,
    ];
    scenarios
        .into_iter()
        .map(|(name, scenario)| {
            let shared = shared.clone();
            Trial::test(name, move || {
                let (runtime, bench) = shared.as_deref().ok_or("no cluster")?;
                let mut bench = bench.blocking_lock();
                let outcome = scenario(runtime, &mut bench);
                let reset = runtime.block_on(bench.reset());
                outcome.and(reset).map_err(Failed::from)
            })
        })
        .collect()
}
