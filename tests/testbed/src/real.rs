//! A cluster of real components: etcd, the control plane, nodes with a kubelet and containerd, a fencing array.
//!
//! ```text
//! program ── isolation::enter ──▶ the same program again, in pid, network and mount namespaces of its own
//!                                   Cluster ─┬─ ControlPlane   etcd, apiserver, controller manager, scheduler
//!                                            ├─ Node 1         nested namespaces: containerd, kubelet, daemons
//!                                            └─ Node 2
//! ```
//! The namespaces are what cleans up: when the inner program ends, for whatever reason, the kernel ends every process, mount
//! and network link in them. Only cgroups outlive that; `isolation` removes them afterwards, or at the next start.

use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

pub mod binaries;
pub mod cgroup;
pub mod cluster;
pub mod control_plane;
pub mod fault;
pub mod identity;
pub mod image;
pub mod isolation;
pub mod node;
pub mod pki;
pub mod prerequisites;
pub mod process;
pub mod proxy;
pub mod rig;
pub mod wait;
pub mod workload;

pub use binaries::Binaries;
pub use cluster::{Cluster, Equipment};
pub use node::Node;
pub use rig::Rig;
pub use wait::wait_until;
pub use workload::Workload;

/// Why the cluster could not be brought into a wanted state.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine lacks something; `remedy` is the command or step that brings it.
    #[error("missing: {what}. Remedy: {remedy}")]
    Missing { what: String, remedy: String },
    /// A file, directory or process could not be handled.
    #[error("{what}: {source}")]
    Io {
        what: String,
        source: std::io::Error,
    },
    /// A command ended badly.
    #[error("`{command}` ended with {status}: {output}")]
    Command {
        command: String,
        status: ExitStatus,
        output: String,
    },
    /// A process that should run on has ended.
    #[error("{name} ended with {status}; its log is {log}")]
    Ended {
        name: String,
        status: ExitStatus,
        log: PathBuf,
    },
    /// A condition did not come true in time.
    #[error("not within {deadline:?}: {what}; last seen: {last}")]
    Deadline {
        what: String,
        deadline: Duration,
        last: String,
    },
    /// The API server refused or did not answer.
    #[error("{what}: {source}")]
    Api {
        what: String,
        source: Box<kube::Error>,
    },
    /// A kubeconfig of ours is not usable.
    #[error("kubeconfig {path}: {why}")]
    Kubeconfig { path: PathBuf, why: String },
    /// A certificate could not be made.
    #[error("certificate of {name}: {source}")]
    Certificate { name: String, source: rcgen::Error },
    /// A call that does not fit the present state, such as a fault on a node that is powered off.
    #[error("{0}")]
    State(String),
}

/// `Result` with this module's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Turns a library's error into ours, with its subject.
pub(crate) trait Context<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Context<T> for std::io::Result<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Io {
            what: what(),
            source,
        })
    }
}

impl<T> Context<T> for rustix::io::Result<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|errno| Error::Io {
            what: what(),
            source: errno.into(),
        })
    }
}

impl<T> Context<T> for kube::Result<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Api {
            what: what(),
            source: Box::new(source),
        })
    }
}
