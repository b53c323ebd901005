//! A failover as a timeline, and the ledger's verdict: `cargo demo`, `cargo demo -- --fault power`, `cargo demo -- --real`.

mod embedded;
mod real;
mod timeline;

use std::process::ExitCode;

use clap::{Parser, ValueEnum};

/// Shows how podmon moves a stateful pod off a failed node
#[derive(Parser)]
struct Arguments {
    /// On a real control plane and real nodes, instead of a cluster that lives in this process; needs root
    #[arg(long)]
    real: bool,
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

impl Failure {
    /// What is said of the node.
    fn meaning(self) -> &'static str {
        match self {
            Self::Network => "is cut off from the API server; its pods write on",
            Self::Freeze => "freezes",
            Self::Power => "loses power",
            Self::Kubelet => "loses its kubelet; its pods write on",
        }
    }
}

fn main() -> ExitCode {
    let Arguments { real, fault, seed } = Arguments::parse();
    if real {
        return real::show(fault);
    }
    if embedded::show(fault, seed) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
