//! The kinds the server holds, and what the real API server does differently from kind to kind.

/// A kind of object. Events are one kind, served under two groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Namespace,
    Node,
    Pod,
    PersistentVolume,
    PersistentVolumeClaim,
    Event,
    Lease,
    StatefulSet,
    StorageClass,
    CsiDriver,
    CsiNode,
    VolumeAttachment,
}

/// What distinguishes one kind from another on the wire and in the registry.
pub struct Facts {
    pub kind: Kind,
    pub name: &'static str,
    pub plural: &'static str,
    pub short: &'static [&'static str],
    pub group: &'static str,
    pub namespaced: bool,
    /// Has the `status` subresource, which isolates status from the rest.
    pub status: bool,
    /// A PUT without resourceVersion overwrites.
    pub unconditional_update: bool,
    /// A PUT to a name that is not there creates it.
    pub create_on_update: bool,
    /// DELETE answers with the object instead of a Status.
    pub returns_deleted: bool,
    /// Changes of `spec` count `metadata.generation` up.
    pub generation: bool,
}

const fn facts(
    kind: Kind,
    name: &'static str,
    plural: &'static str,
    group: &'static str,
    namespaced: bool,
    status: bool,
) -> Facts {
    Facts {
        kind,
        name,
        plural,
        short: &[],
        group,
        namespaced,
        status,
        unconditional_update: true,
        create_on_update: false,
        returns_deleted: true,
        generation: false,
    }
}

/// In the order of [`Kind`].
pub static KINDS: [Facts; 12] = [
    Facts {
        short: &["ns"],
        returns_deleted: false,
        ..facts(Kind::Namespace, "Namespace", "namespaces", "", false, true)
    },
    Facts {
        short: &["no"],
        returns_deleted: false,
        ..facts(Kind::Node, "Node", "nodes", "", false, true)
    },
    Facts {
        short: &["po"],
        generation: true,
        ..facts(Kind::Pod, "Pod", "pods", "", true, true)
    },
    Facts {
        short: &["pv"],
        ..facts(
            Kind::PersistentVolume,
            "PersistentVolume",
            "persistentvolumes",
            "",
            false,
            true,
        )
    },
    Facts {
        short: &["pvc"],
        ..facts(
            Kind::PersistentVolumeClaim,
            "PersistentVolumeClaim",
            "persistentvolumeclaims",
            "",
            true,
            true,
        )
    },
    Facts {
        short: &["ev"],
        create_on_update: true,
        returns_deleted: false,
        ..facts(Kind::Event, "Event", "events", "", true, false)
    },
    Facts {
        unconditional_update: false,
        create_on_update: true,
        returns_deleted: false,
        ..facts(
            Kind::Lease,
            "Lease",
            "leases",
            "coordination.k8s.io",
            true,
            false,
        )
    },
    Facts {
        short: &["sts"],
        returns_deleted: false,
        generation: true,
        ..facts(
            Kind::StatefulSet,
            "StatefulSet",
            "statefulsets",
            "apps",
            true,
            true,
        )
    },
    Facts {
        short: &["sc"],
        ..facts(
            Kind::StorageClass,
            "StorageClass",
            "storageclasses",
            "storage.k8s.io",
            false,
            false,
        )
    },
    facts(
        Kind::CsiDriver,
        "CSIDriver",
        "csidrivers",
        "storage.k8s.io",
        false,
        false,
    ),
    facts(
        Kind::CsiNode,
        "CSINode",
        "csinodes",
        "storage.k8s.io",
        false,
        false,
    ),
    Facts {
        unconditional_update: false,
        ..facts(
            Kind::VolumeAttachment,
            "VolumeAttachment",
            "volumeattachments",
            "storage.k8s.io",
            false,
            true,
        )
    },
];

/// The group under which events have `regarding` and `note`.
pub const EVENTS_GROUP: &str = "events.k8s.io";

impl Kind {
    pub fn facts(self) -> &'static Facts {
        &KINDS[self as usize]
    }
}

/// A kind as a client addresses it: events may come under either of two groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource {
    pub kind: Kind,
    pub group: &'static str,
}

impl Resource {
    /// The kind as it is stored.
    pub fn stored(kind: Kind) -> Resource {
        Resource {
            kind,
            group: kind.facts().group,
        }
    }

    pub fn find(group: &str, version: &str, plural: &str) -> Option<Resource> {
        if version != "v1" {
            return None;
        }
        if group == EVENTS_GROUP && plural == "events" {
            return Some(Resource {
                kind: Kind::Event,
                group: EVENTS_GROUP,
            });
        }
        KINDS
            .iter()
            .find(|facts| facts.group == group && facts.plural == plural)
            .map(|facts| Resource::stored(facts.kind))
    }

    pub fn api_version(self) -> String {
        match self.group {
            "" => "v1".to_owned(),
            group => format!("{group}/v1"),
        }
    }

    /// `nodes`, `leases.coordination.k8s.io`: as messages of the real server name a resource.
    pub fn qualified(self) -> String {
        match self.group {
            "" => self.kind.facts().plural.to_owned(),
            group => format!("{}.{group}", self.kind.facts().plural),
        }
    }

    /// `Node`, `Lease.coordination.k8s.io`: as messages about invalid fields name a kind.
    pub fn qualified_kind(self) -> String {
        match self.group {
            // Events are validated in their internal form, which has no group.
            "" | EVENTS_GROUP => self.kind.facts().name.to_owned(),
            group => format!("{}.{group}", self.kind.facts().name),
        }
    }
}
