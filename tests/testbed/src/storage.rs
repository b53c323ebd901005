//! Storage that truly fences, and the ledger that proves it: array, judge, data path, CSI driver.
//!
//! [`Array`](array::Array) decides who may write, without I/O and without a clock. The real cluster runs it as a
//! process behind a unix socket, the in-memory cluster calls it directly; the CSI controller is the same code on both.
//! What the array decided stands in its [ledger](ledger), from which the [judge](judge) tells whether a volume ever
//! had two writers.

pub mod array;
pub mod client;
pub mod command;
pub mod disk;
pub mod door;
pub mod driver;
pub mod evidence;
pub mod hold;
pub mod judge;
pub mod ledger;
pub mod loops;
pub mod mounts;
pub mod name;
pub mod probe;
pub mod process;
pub mod record;
pub mod request;
pub mod sanity;
pub mod seclusion;
pub mod server;
pub mod trouble;
pub mod wire;

pub use array::{Access, Array, Connectivity, Lie, Path, Policy, Refusal, StaleSessions};
pub use client::{Client, ClientError};
pub use door::Door;
pub use judge::{Finding, Report, Violation, judge};
pub use ledger::{Operation, Record, Verdict};
pub use name::{Epoch, NodeId, VolumeId};
pub use trouble::{Call, Delay, Rule, Trouble};
