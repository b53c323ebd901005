//! The calls to the node service of the driver beside us.
