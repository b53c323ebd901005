//! A PersistentVolume, as far as podmon looks at it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use kube::core::ObjectMeta;
use serde::Deserialize;
use serde_json::Value;

use super::pod::IN_TREE_ATTACHABLE;
use super::view::view;
use crate::domain::{DriverName, VolumeHandle, VolumeName};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Volume {
    pub name: VolumeName,
    /// UID of the claim it is bound to.
    pub claim: Option<String>,
    pub backend: Backend,
    /// May be mounted by several nodes for writing (ReadWriteMany).
    pub many_writers: bool,
}

/// What stands behind a PersistentVolume.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Backend {
    Csi {
        driver: DriverName,
        handle: VolumeHandle,
        /// The driver wants a Secret for publish and unpublish (`controllerPublishSecretRef`).
        secret: Option<SecretName>,
    },
    /// Attached by Kubernetes' own code, or by whatever driver that was migrated to.
    InTree(String),
    /// Nothing that is attached to a node: NFS, a host path, …
    Unattached,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Deserialize)]
pub struct SecretName {
    #[serde(default)]
    pub namespace: String,
    #[serde(default)]
    pub name: String,
}

/// The wire form of [`Volume`].
#[derive(Clone, Debug, Deserialize)]
pub struct VolumeView {
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: Spec,
}
view!(VolumeView of core::PersistentVolume, ClusterResourceScope);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(default)]
    access_modes: Option<Vec<String>>,
    #[serde(default)]
    claim_ref: Option<ClaimRef>,
    #[serde(default)]
    csi: Option<Csi>,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct ClaimRef {
    #[serde(default)]
    uid: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Csi {
    #[serde(default)]
    driver: String,
    #[serde(default)]
    volume_handle: String,
    #[serde(default)]
    controller_publish_secret_ref: Option<SecretName>,
}

impl VolumeView {
    pub fn observe(self) -> Volume {
        let in_tree = IN_TREE_ATTACHABLE
            .iter()
            .find(|kind| self.spec.rest.contains_key(**kind));
        let backend = match (self.spec.csi, in_tree) {
            (Some(csi), _) => Backend::Csi {
                driver: csi.driver.into(),
                handle: csi.volume_handle.into(),
                secret: csi.controller_publish_secret_ref,
            },
            (None, Some(kind)) => Backend::InTree((*kind).to_owned()),
            (None, None) => Backend::Unattached,
        };
        let modes = self.spec.access_modes.unwrap_or_default();
        Volume {
            name: self.metadata.name.unwrap_or_default().into(),
            claim: self.spec.claim_ref.and_then(|claim| claim.uid),
            backend,
            many_writers: modes.iter().any(|mode| mode == "ReadWriteMany"),
        }
    }
}
