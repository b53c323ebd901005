//! A failover as a timeline, and the ledger's verdict: `cargo demo`, `cargo demo -- --fault power`.

mod embedded;
mod timeline;

use std::process::ExitCode;

use clap::{Parser, ValueEnum};

/// Shows how podmon moves a stateful pod off a failed node, on a cluster that lives in this process.
#[derive(Parser)]
struct Arguments {
    /// What happens to the node
    #[arg(long, value_enum, default_value_t = Failure::Network)]
    fault: Failure,
    /// Decides everything that is left to chance
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What may happen to a node.
#[derive(Clone, Copy, ValueEnum)]
enum Failure {
    /// Cut off from the API server, while its pods write on
    Network,
    /// Stands still, and goes on as if nothing had happened
    Freeze,
    /// Loses power, and boots again
    Power,
    /// Its kubelet dies, while its pods write on
    Kubelet,
}

fn main() -> ExitCode {
    let Arguments { fault, seed } = Arguments::parse();
    if embedded::show(fault, seed) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
