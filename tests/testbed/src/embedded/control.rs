//! The control plane's loops, as far as the fate of a pod with volumes depends on them.
//!
//! Each is a value with a `tick`, called again and again with the time since the cluster began: no loop waits, so the order
//! of everything that happens is the order of the calls.

pub mod attach_detach;
pub mod attacher;
pub mod node_lifecycle;
pub mod pod_gc;
pub mod scheduler;
pub mod statefulset;

use std::time::Duration;

/// The constants of a control plane. Sources: kube-controller-manager's flags and their defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How often a kubelet renews its lease.
    pub lease_renewal: Duration,
    /// `--node-monitor-period`
    pub monitor_period: Duration,
    /// `--node-monitor-grace-period`
    pub monitor_grace: Duration,
    /// `1 / --node-eviction-rate`: the time between two nodes that get the NoExecute taint.
    pub eviction_interval: Duration,
    /// `--attach-detach-reconcile-sync-period`
    pub attachment_check: Duration,
    /// How long the attach-detach controller waits for a node that says that it uses a volume.
    pub forced_detach: Duration,
    /// The pod garbage collector's period.
    pub garbage: Duration,
    /// The external-attacher's `--reconcile-sync`.
    pub republish: Duration,
}

impl Timing {
    /// What a cluster has that nobody tuned.
    pub const STOCK: Timing = Timing {
        lease_renewal: Duration::from_secs(10),
        monitor_period: Duration::from_secs(5),
        monitor_grace: Duration::from_secs(50),
        eviction_interval: Duration::from_secs(10),
        attachment_check: Duration::from_secs(60),
        forced_detach: Duration::from_secs(360),
        garbage: Duration::from_secs(20),
        republish: Duration::from_secs(60),
    };

    /// A cluster that notices the loss of a node within seconds; what cannot be tuned stays as it is.
    pub const FAST: Timing = Timing {
        lease_renewal: Duration::from_secs(1),
        monitor_period: Duration::from_millis(500),
        monitor_grace: Duration::from_secs(3),
        ..Timing::STOCK
    };
}
