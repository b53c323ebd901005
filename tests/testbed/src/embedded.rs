//! A whole cluster in one process: no root, no sockets, no wall clock; a seed decides everything that chance decides elsewhere.

pub mod api;
pub mod fidelity;
