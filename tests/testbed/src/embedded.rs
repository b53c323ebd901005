//! A whole cluster in one process: no root, no sockets, no wall clock; a seed decides everything that chance decides elsewhere.

pub mod api;
pub mod chance;
pub mod cluster;
pub mod control;
pub mod daemon;
pub mod entropy;
pub mod fidelity;
pub mod host;
pub mod network;
pub mod object;
pub mod pipe;
pub mod sim;
