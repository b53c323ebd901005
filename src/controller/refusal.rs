//! Why a group is not evacuated now: one value for log, event and metric alike.

use std::fmt;

use crate::cluster::survey::Problem;
use crate::domain::{Incarnation, NodeName, PodKey, VolumeName};
use crate::journal::MAX_BYTES;

/// Why no group is begun at all; what has begun goes on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Hold {
    /// By flag, or by the node's annotation.
    Paused,
    DetectOnly,
    /// More nodes look lost at once than can be believed.
    Storm,
    /// The driver cannot fence.
    Powerless,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Refusal {
    Held(Hold),
    /// A member is ready: whatever is wrong, it is not that pod's end.
    MemberReady(PodKey),
    /// It would come back to the same node at once.
    DaemonSet(PodKey),
    /// The kubelet would start it again from its own file.
    Mirror(PodKey),
    Volume(PodKey, Problem),
    /// After the fence Kubernetes would give the volume back to this node for the other pod.
    Shared {
        volume: VolumeName,
        with: PodKey,
    },
    /// Nothing says under which name the array knows the node.
    NoNodeId,
    /// It does not fit into a journal of its own.
    TooLarge,
    /// The array sees the node, or I/O on a volume.
    Veto,
    /// The driver could not be asked; unknown is never a reason to act.
    Unanswered(String),
    /// The driver could not revoke the node's access.
    NotFenced(String),
    /// The API server did not let the pod be deleted.
    NotDeleted(String),
    /// Finalizers keep the pod in the API.
    Kept(Vec<String>),
}

impl Refusal {
    /// The text of the event on a member of the group, brackets included (contract §1.12).
    pub fn event(&self, pod: &Incarnation, node: &NodeName) -> String {
        format!("podmon aborted pod cleanup [{} {node}] {self}", pod.uid)
    }

    /// Whether people would be told nothing new: texts of errors differ from one time to the next.
    pub fn says_the_same(&self, other: &Self) -> bool {
        let errors = matches!(
            self,
            Self::NotDeleted(_) | Self::NotFenced(_) | Self::Unanswered(_)
        );
        self.label() == other.label() && (errors || self == other)
    }

    /// The word for logs and metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Held(Hold::Paused) => "paused",
            Self::Held(Hold::DetectOnly) => "detect-only",
            Self::Held(Hold::Storm) => "storm-guard",
            Self::Held(Hold::Powerless) => "cannot-fence",
            Self::MemberReady(_) => "member-ready",
            Self::DaemonSet(_) => "daemonset",
            Self::Mirror(_) => "mirror",
            Self::Volume(_, Problem::ForeignDriver { .. } | Problem::InTree { .. }) => {
                "foreign-volume"
            }
            Self::Volume(_, Problem::Secret { .. }) => "secret",
            Self::Volume(..) => "unresolved-volume",
            Self::Shared { .. } => "shared-volume",
            Self::NoNodeId => "no-node-id",
            Self::TooLarge => "too-large",
            Self::Veto => "connected-or-io",
            Self::Unanswered(_) => "unanswered",
            Self::NotFenced(_) => "not-fenced",
            Self::NotDeleted(_) => "not-deleted",
            Self::Kept(_) => "finalizer",
        }
    }

    /// Whether no event on the pod is due: it passes by itself, or is told once for all pods.
    pub fn is_silent(&self) -> bool {
        matches!(self, Self::MemberReady(_) | Self::Held(Hold::Storm))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held(Hold::Paused) => f.write_str("because podmon is paused"),
            Self::Held(Hold::DetectOnly) => f.write_str("because podmon only detects"),
            Self::Held(Hold::Storm) => {
                f.write_str("because more nodes look lost at once than can be believed")
            }
            Self::Held(Hold::Powerless) => {
                f.write_str("because the driver cannot revoke a node's access to a volume")
            }
            Self::Veto => f.write_str("array connected or recent I/O"),
            Self::NoNodeId => f.write_str("due to missing CSI annotations"),
            Self::Unanswered(_) => {
                f.write_str("due to error while validating volume host connectivity")
            }
            Self::NotFenced(_) => f.write_str("couldn't fence volumes"),
            Self::MemberReady(pod) => write!(f, "because pod {pod} of its group is ready"),
            Self::DaemonSet(pod) => write!(
                f,
                "because pod {pod} belongs to a DaemonSet and would come back to the same node; remove its label"
            ),
            Self::Mirror(pod) => write!(
                f,
                "because pod {pod} is a static pod of the kubelet and would come back to the same node; remove its label"
            ),
            Self::Volume(pod, problem) => write!(f, "because of pod {pod}: {problem}"),
            Self::Shared { volume, with } => write!(
                f,
                "because pod {with}, which is not protected, uses volume {volume} on the node too; give it the label as well"
            ),
            Self::TooLarge => write!(
                f,
                "because its group does not fit into the journal ({MAX_BYTES} bytes at most)"
            ),
            Self::NotDeleted(error) => write!(f, "because the pod could not be deleted: {error}"),
            Self::Kept(finalizers) => write!(
                f,
                "because finalizers keep the pod: {}; whoever set them must remove them",
                finalizers.join(", ")
            ),
        }
    }
}
