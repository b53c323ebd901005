//! Storage that truly fences, and the ledger that proves it: array, judge, data path, CSI driver.
//!
//! [`Array`](array::Array) decides who may write, without I/O and without a clock. The real cluster runs it as a
//! process behind a unix socket, the in-memory cluster calls it directly; the CSI controller is the same code on both.
//! What the array decided stands in its [ledger](ledger), from which the [judge](judge) tells whether a volume ever
//! had two writers.

pub mod array;
pub mod judge;
pub mod ledger;
pub mod name;
pub mod trouble;

pub use array::{Array, Path, Policy, Refusal, StaleSessions};
pub use judge::{Finding, Report, Violation, judge};
pub use ledger::{Operation, Record, Verdict};
pub use name::{Epoch, NodeId, VolumeId};
pub use trouble::{Call, Delay, Rule, Trouble};
