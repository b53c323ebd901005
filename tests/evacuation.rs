//! Scenarios of one evacuation on a double of the API server and the array: each row of the protocol, each guard,
//! each history that broke an earlier draft.

#[path = "evacuation/bench.rs"]
#[allow(dead_code)]
mod bench;
#[path = "model/cluster.rs"]
#[allow(dead_code)]
mod cluster;
#[path = "evacuation/failover.rs"]
mod failover;
#[path = "model/perform.rs"]
#[allow(dead_code)]
mod perform;
