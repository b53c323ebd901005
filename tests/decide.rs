//! Which pods are evacuated, over everything that can be said of a pod and its node; and which of them together.

#[path = "model/cluster.rs"]
#[allow(dead_code)]
mod cluster;
#[path = "decide/groups.rs"]
mod groups;
#[path = "decide/observations.rs"]
mod observations;
#[path = "decide/table.rs"]
mod table;
