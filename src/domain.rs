//! The nouns that both halves speak of. A name alone never identifies what is acted on, so each kind of name has a
//! type of its own.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

macro_rules! names {
    ($($(#[$meaning:meta])* $name:ident;)*) => {$(
        $(#[$meaning])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// The text, as the API or the driver writes it.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text)
            }
        }
        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
    )*};
}

names! {
    /// UID of one pod incarnation.
    PodUid;
    /// Name of a Node object.
    NodeName;
    /// UID of a Node object: a node registered anew under its old name has another.
    NodeUid;
    /// The kernel's boot id, as the kubelet reports it.
    BootId;
    /// Name of a PersistentVolume.
    VolumeName;
    /// The driver's own name of a volume: `spec.csi.volumeHandle`, CSI `volume_id`.
    VolumeHandle;
    /// The driver's own name of a node: CSI `node_id`.
    NodeId;
    /// Name of a VolumeAttachment; the same each time the same volume is attached to the same node.
    AttachmentName;
    /// UID of a VolumeAttachment.
    AttachmentUid;
    /// Name of a CSI driver, from `GetPluginInfo`.
    DriverName;
    /// `metadata.resourceVersion`: compared for equality only.
    ResourceVersion;
}

/// `namespace/name` of a pod.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct PodKey {
    pub namespace: String,
    pub name: String,
}

/// A text that is not `namespace/name`.
#[derive(thiserror::Error, Debug)]
#[error("{0:?} is not of the form namespace/name")]
pub struct NotAPodKey(String);

impl FromStr for PodKey {
    type Err = NotAPodKey;
    fn from_str(text: &str) -> Result<Self, NotAPodKey> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => Ok(Self {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            }),
            _ => Err(NotAPodKey(text.to_owned())),
        }
    }
}

impl TryFrom<String> for PodKey {
    type Error = NotAPodKey;
    fn try_from(text: String) -> Result<Self, NotAPodKey> {
        text.parse()
    }
}

impl From<PodKey> for String {
    fn from(key: PodKey) -> String {
        key.to_string()
    }
}

impl fmt::Display for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// One pod by UID: what every evacuation and every clean-up is about.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Incarnation {
    pub key: PodKey,
    pub uid: PodUid,
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.key, self.uid)
    }
}
