//! What an evacuation wants done, and what came of it: the only words between policy and effects.

use std::time::Duration;

use crate::clock::Moment;
use crate::cluster::Deleted;
use crate::cluster::NodePatch;
use crate::cluster::event::Report;
use crate::cluster::node::Node;
use crate::cluster::survey::Survey;
use crate::cluster::volume::SecretName;
use crate::domain::{
    AttachmentName, AttachmentUid, Incarnation, NodeId, PodUid, ResourceVersion, VolumeHandle,
    VolumeName,
};

/// How long after the Node was read a fence may still be sent (protocol.md §5, guard 1).
pub const GUARD: Duration = Duration::from_secs(2);

/// One effect. Those that an evacuation yields together may run at once.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// Read everything about the node.
    Survey,
    /// Read the Node alone.
    Look,
    /// Ask the driver what the array sees.
    Ask(Question),
    /// Write taint and journal.
    Patch(NodePatch),
    /// Take volumes out of `status.volumesInUse`; `volumes` are those that stay.
    ForgetInUse {
        version: ResourceVersion,
        volumes: Vec<String>,
    },
    Fence(Fence),
    /// Force-delete a pod all of whose volumes are fenced; a version where it has none.
    DeletePod {
        pod: Incarnation,
        version: Option<ResourceVersion>,
    },
    DeleteAttachment {
        name: AttachmentName,
        uid: AttachmentUid,
    },
    Report(Report),
}

/// What to ask before a group is announced. RWX volumes are asked for apart: their I/O is no veto, since another
/// node may cause it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Question {
    pub group: PodUid,
    pub node: NodeId,
    pub exclusive: Vec<VolumeHandle>,
    pub shared: Vec<VolumeHandle>,
}

/// What the array sees of a group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Sight {
    /// The driver has no such call.
    Unsupported,
    Seen {
        connected: bool,
        io: bool,
    },
}

/// One call that revokes the node's access to a volume.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Fence {
    /// The evacuation it is sent for, by the journal's id.
    pub evacuation: String,
    pub volume: VolumeName,
    pub handle: VolumeHandle,
    pub node: NodeId,
    pub secret: Option<SecretName>,
    /// When the Node was last read, with our journal open and the volume in it.
    pub confirmed: Moment,
}

/// What came of a step.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    Survey(Result<Survey, String>),
    Look {
        at: Moment,
        node: Result<Option<Node>, String>,
    },
    Ask {
        group: PodUid,
        answer: Result<Sight, String>,
    },
    Patch {
        at: Moment,
        node: Result<Node, Refused>,
    },
    ForgetInUse {
        at: Moment,
        node: Result<Node, Refused>,
    },
    Fence {
        evacuation: String,
        volume: VolumeName,
        node: NodeId,
        started: Moment,
        result: Result<(), Unfenced>,
    },
    DeletePod {
        pod: Incarnation,
        result: Result<Deleted, Refused>,
    },
    DeleteAttachment {
        uid: AttachmentUid,
        result: Result<Deleted, Refused>,
    },
    /// A report was handed in.
    Reported,
}

/// Why the API server did not do it, or may not have.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Refused {
    /// What it was computed from is no longer so.
    Conflict,
    TooLarge,
    Forbidden,
    /// There was no claim to leadership that outlasts the call; nothing was sent.
    NotLeading,
    Failed(String),
}

/// Why a fence did not say OK.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Unfenced {
    /// Nothing was sent: the guard or the claim had run out, or an earlier call is still under way.
    Withheld,
    /// Nothing left this process.
    NeverSent(String),
    /// The driver knows no such volume or node.
    NotFound,
    /// The driver refused.
    Refused(String),
    /// No answer within the deadline: it may act still.
    GivenUp(String),
}
