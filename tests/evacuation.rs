//! Scenarios of one evacuation on a double of the API server and the array: each row of the protocol, each guard,
//! each history that broke an earlier draft.

#[path = "evacuation/bench.rs"]
mod bench;
#[path = "model/cluster.rs"]
#[allow(dead_code)]
mod cluster;
#[path = "evacuation/failover.rs"]
mod failover;
#[path = "evacuation/guards.rs"]
mod guards;
#[path = "evacuation/histories.rs"]
mod histories;
#[path = "evacuation/holes.rs"]
mod holes;
#[path = "model/perform.rs"]
mod perform;
#[path = "evacuation/rows.rs"]
mod rows;
