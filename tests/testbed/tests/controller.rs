//! The whole controller in one process under paused time, against the contract: what it asks of the API server and of
//! the driver, in which order, and what it says. Holes of the Go podmon by number (S1, …).

#[path = "controller/bench.rs"]
mod bench;
#[path = "controller/judge.rs"]
mod judge;
#[path = "controller/objects.rs"]
mod objects;
#[path = "controller/recorder.rs"]
mod recorder;

#[path = "controller/array.rs"]
mod array;
#[path = "controller/crash_loops.rs"]
mod crash_loops;
#[path = "controller/driver_pods.rs"]
mod driver_pods;
#[path = "controller/drivers.rs"]
mod drivers;
#[path = "controller/failover.rs"]
mod failover;
#[path = "controller/journals.rs"]
mod journals;
#[path = "controller/others.rs"]
mod others;
#[path = "controller/refusals.rs"]
mod refusals;
#[path = "controller/restart.rs"]
mod restart;
#[path = "controller/storm.rs"]
mod storm;
#[path = "controller/veto.rs"]
mod veto;
