//! A PersistentVolumeClaim, as far as podmon looks at it.

use k8s_openapi::api::core::v1 as core;
use kube::core::ObjectMeta;
use serde::Deserialize;

use super::view::view;
use crate::domain::{PodUid, VolumeName};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Claim {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// The PersistentVolume it is bound to.
    pub volume: Option<VolumeName>,
    /// The pod that owns it, for a generic ephemeral volume.
    pub pod: Option<PodUid>,
}

/// The wire form of [`Claim`].
#[derive(Clone, Debug, Deserialize)]
pub struct ClaimView {
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: Spec,
}
view!(ClaimView of core::PersistentVolumeClaim, NamespaceResourceScope);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(default)]
    volume_name: Option<String>,
}

impl ClaimView {
    pub fn observe(self) -> Claim {
        let owners = self.metadata.owner_references.unwrap_or_default();
        let pod = owners.into_iter().find(|owner| owner.kind == "Pod");
        Claim {
            namespace: self.metadata.namespace.unwrap_or_default(),
            name: self.metadata.name.unwrap_or_default(),
            uid: self.metadata.uid.unwrap_or_default(),
            volume: self
                .spec
                .volume_name
                .filter(|name| !name.is_empty())
                .map(VolumeName::from),
            pod: pod.map(|owner| owner.uid.into()),
        }
    }
}
