//! What keeps a node from being used again: one value for the log, the event and the metric.

use std::fmt;
use std::path::PathBuf;

use super::sight::Unseen;
use crate::cri::Alive;
use crate::domain::{Incarnation, PodKey, PodUid, VolumeName};
use crate::journal::Defect;

/// One reason why the taint stays.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Blocker {
    /// The Node's Ready condition is not True.
    NotReady,
    /// The Node carries the unreachable taint.
    Unreachable,
    /// The controller is still at work.
    JournalOpen,
    JournalUnreadable(Defect),
    /// The array does not see the node yet.
    ArrayLost,
    /// Evacuated by an older podmon a moment ago, which may still be at work.
    TaintFresh,
    /// The same, and this protected pod is still bound here and not Ready.
    PodNotReady(Incarnation),
    /// Evacuated, yet the API still binds it to this node.
    StillBound(Incarnation),
    PodsUnknown(Unseen),
    RuntimeUnknown(Unseen),
    /// Pods are Ready here, but the runtime that answers knows none.
    WrongRuntime,
    Sandbox(Zombie),
    Container {
        pod: Zombie,
        container: Alive,
    },
    /// In the kubelet's own time, anything of such a pod on the disk.
    PodDirectory(PodUid),
    VolumePresent {
        pod: PodUid,
        volume: VolumeName,
    },
    /// A volume of such a pod that may be ours: nothing tells whose it is.
    VolumeUnknown {
        pod: PodUid,
        volume: VolumeName,
    },
    Mounted {
        path: PathBuf,
    },
    Staged {
        volume: VolumeName,
        path: PathBuf,
    },
    BlockDevice {
        volume: VolumeName,
        path: PathBuf,
    },
    LoopDevice {
        volume: VolumeName,
        device: String,
    },
    /// Staging paths do not show here, and the driver has not yet said that the volume is unstaged.
    StagingUnseen {
        volume: VolumeName,
        unseen: Unseen,
    },
    /// Detached on the operator's word, and not provably closed.
    Detached {
        path: PathBuf,
        source: String,
    },
    Unseen(Unseen),
}

/// A pod that should not run here any more.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Zombie {
    pub uid: PodUid,
    pub key: Option<PodKey>,
}

impl fmt::Display for Zombie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.key {
            Some(key) => write!(f, "{key} ({})", self.uid),
            None => write!(f, "{}", self.uid),
        }
    }
}

impl Blocker {
    /// A word for metric labels.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::NotReady => "NotReady",
            Self::Unreachable => "Unreachable",
            Self::JournalOpen => "JournalOpen",
            Self::JournalUnreadable(_) => "JournalUnreadable",
            Self::ArrayLost => "ArrayLost",
            Self::TaintFresh => "TaintFresh",
            Self::PodNotReady(_) => "PodNotReady",
            Self::StillBound(_) => "StillBound",
            Self::PodsUnknown(_) => "PodsUnknown",
            Self::RuntimeUnknown(_) => "RuntimeUnknown",
            Self::WrongRuntime => "WrongRuntime",
            Self::Sandbox(_) => "Sandbox",
            Self::Container { .. } => "Container",
            Self::PodDirectory(_) => "PodDirectory",
            Self::VolumePresent { .. } => "VolumePresent",
            Self::VolumeUnknown { .. } => "VolumeUnknown",
            Self::Mounted { .. } => "Mounted",
            Self::Staged { .. } => "Staged",
            Self::BlockDevice { .. } => "BlockDevice",
            Self::LoopDevice { .. } => "LoopDevice",
            Self::StagingUnseen { .. } => "StagingUnseen",
            Self::Detached { .. } => "Detached",
            Self::Unseen(_) => "Unseen",
        }
    }

    /// It passes by itself in a healthy course of things: the kubelet, the controller or the array are at it.
    pub fn passes(&self) -> bool {
        matches!(
            self,
            Self::NotReady
                | Self::Unreachable
                | Self::JournalOpen
                | Self::TaintFresh
                | Self::PodDirectory(_)
        )
    }

    /// Only something on the host, or the runtime, can end it; the API need not be asked again until it has.
    pub fn is_local(&self) -> bool {
        matches!(
            self,
            Self::RuntimeUnknown(_)
                | Self::WrongRuntime
                | Self::Sandbox(_)
                | Self::Container { .. }
                | Self::PodDirectory(_)
                | Self::VolumePresent { .. }
                | Self::VolumeUnknown { .. }
                | Self::Mounted { .. }
                | Self::Staged { .. }
                | Self::BlockDevice { .. }
                | Self::LoopDevice { .. }
                | Self::StagingUnseen { .. }
                | Self::Detached { .. }
                | Self::Unseen(_)
        )
    }

    /// What an operator can do if it does not pass.
    pub fn advice(&self) -> &'static str {
        match self {
            Self::NotReady | Self::Unreachable => "look at the kubelet and the node's network",
            Self::JournalOpen => "look at podmon's controller: it has not finished the evacuation",
            Self::JournalUnreadable(_) => {
                "the controller replaces the annotation; by hand: remove it after a look at the node"
            }
            Self::ArrayLost => "restore the node's path to the array",
            Self::TaintFresh => "wait",
            Self::PodNotReady(_) | Self::StillBound(_) => {
                "look at the pod; delete it if it is lost"
            }
            Self::PodsUnknown(_) => "look at the API server and at podmon's rights",
            Self::RuntimeUnknown(_) | Self::WrongRuntime => {
                "start the container runtime, or make its socket visible to podmon"
            }
            Self::Sandbox(_) | Self::Container { .. } => "stop it with crictl, or reboot the node",
            Self::PodDirectory(_) => "wait for the kubelet",
            Self::VolumePresent { .. }
            | Self::Mounted { .. }
            | Self::Staged { .. }
            | Self::BlockDevice { .. }
            | Self::LoopDevice { .. } => "find out what keeps it busy, or reboot the node",
            Self::VolumeUnknown { .. } => "remove it after a look at it, or reboot the node",
            Self::Detached { .. } => "find out what holds it and end that, or reboot the node",
            Self::StagingUnseen { .. } => "look at the driver on this node",
            Self::Unseen(_) => "make it visible to podmon: see the volume mounts of its container",
        }
    }
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotReady => write!(f, "the node is not Ready"),
            Self::Unreachable => write!(f, "the node is tainted as unreachable"),
            Self::JournalOpen => write!(f, "the evacuation is not finished"),
            Self::JournalUnreadable(defect) => write!(f, "the journal is unusable: {defect}"),
            Self::ArrayLost => write!(f, "the array does not see the node"),
            Self::TaintFresh => write!(f, "an evacuation without a journal may be under way"),
            Self::PodNotReady(pod) => write!(f, "pod {pod} is not Ready and may be evacuated yet"),
            Self::StillBound(pod) => write!(f, "evacuated pod {pod} is still bound to the node"),
            Self::PodsUnknown(unseen) => write!(f, "the node's pods are unknown: {unseen}"),
            Self::RuntimeUnknown(unseen) => write!(f, "what runs here is unknown: {unseen}"),
            Self::WrongRuntime => {
                write!(
                    f,
                    "the container runtime knows none of the pods that run here"
                )
            }
            Self::Sandbox(pod) => write!(f, "the sandbox of pod {pod} is alive"),
            Self::Container { pod, container } => {
                write!(
                    f,
                    "container {} of pod {pod} is {}",
                    container.name, container.state
                )
            }
            Self::PodDirectory(pod) => write!(f, "the kubelet has not yet removed pod {pod}"),
            Self::VolumePresent { pod, volume } => {
                write!(f, "pod {pod} still has volume {volume}")
            }
            Self::VolumeUnknown { pod, volume } => {
                write!(
                    f,
                    "pod {pod} still has volume {volume}, of an unknown driver"
                )
            }
            Self::Mounted { path } => write!(f, "{} is mounted", path.display()),
            Self::Staged { volume, path } => {
                write!(f, "volume {volume} is staged at {}", path.display())
            }
            Self::BlockDevice { volume, path } => {
                write!(f, "block volume {volume} is in place at {}", path.display())
            }
            Self::LoopDevice { volume, device } => {
                write!(f, "/dev/{device} holds block volume {volume}")
            }
            Self::StagingUnseen { volume, unseen } => {
                write!(f, "whether volume {volume} is staged is unknown: {unseen}")
            }
            Self::Detached { path, source } => write!(
                f,
                "{source}, detached from {} while it was busy, may still be written to",
                path.display()
            ),
            Self::Unseen(unseen) => write!(f, "cannot see {unseen}"),
        }
    }
}
