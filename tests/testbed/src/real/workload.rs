//! A StatefulSet that proves data: one pod with a filesystem and a block volume of the array.

use std::fs::File;
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::image::Image;
use super::rig::{PROTECTED, Rig, array_error};
use super::wait::Seen;
use super::{Cluster, Context, Error, Result, wait_until};
use crate::storage::VolumeId;
use crate::storage::driver::NAME as DRIVER;

/// Generous, as everywhere.
const PATIENCE: Duration = Duration::from_secs(180);

/// Size of each volume.
const BYTES: u64 = 64 << 20;

const IMAGE: &str = "docker.io/local/workload:1";

impl Image {
    /// The image of the workload, with a shell to look around.
    pub fn workload(cluster: &Cluster) -> Result<Self> {
        Ok(Image {
            name: IMAGE.into(),
            programs: vec![cluster.program("workload")?.into(), "/bin/busybox".into()],
            entrypoint: vec!["/bin/workload".into()],
        })
    }
}

/// A deployed StatefulSet of one replica with its volumes.
#[derive(Clone)]
pub struct Workload {
    client: Client,
    namespace: String,
    name: String,
    /// The volume with a file system.
    pub filesystem: VolumeId,
    /// The volume that the pod sees as a device.
    pub block: VolumeId,
}

impl Workload {
    /// Creates two volumes on the array and a StatefulSet that uses them. `name` must be new to the array: the judge tells
    /// volumes apart by name, over the whole ledger.
    pub async fn deploy(rig: &Rig, namespace: &str, name: &str) -> Result<Self> {
        let volume = |kind: &str| {
            format!("{name}-{kind}")
                .parse::<VolumeId>()
                .map_err(|error| Error::State(format!("volume of {name}: {error}")))
        };
        let workload = Workload {
            client: rig.cluster.admin(),
            namespace: namespace.into(),
            name: name.into(),
            filesystem: volume("data")?,
            block: volume("raw")?,
        };
        for (volume, mode) in [
            (&workload.filesystem, "Filesystem"),
            (&workload.block, "Block"),
        ] {
            rig.array.create(volume, BYTES).map_err(array_error)?;
            let body = workload.persistent_volume(volume, mode);
            apply::<PersistentVolume>(&Api::all(workload.client.clone()), body).await?;
        }
        let body = workload.stateful_set();
        apply(&workload.stateful_sets(), body).await?;
        Ok(workload)
    }

    /// Bound to the claim that the StatefulSet will make from its template.
    fn persistent_volume(&self, volume: &VolumeId, mode: &str) -> Value {
        let claim = format!("{}-0", volume_claim(volume.as_str(), &self.name));
        json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume},
            "spec": {
                "capacity": {"storage": "64Mi"}, "accessModes": ["ReadWriteOnce"], "volumeMode": mode,
                "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "array",
                "claimRef": {"namespace": self.namespace, "name": claim},
                "csi": {"driver": DRIVER, "volumeHandle": volume, "fsType": "ext4"},
            },
        })
    }

    fn stateful_set(&self) -> Value {
        let labels = json!({"app": self.name, "podmon.dellemc.com/driver": PROTECTED});
        let claim = |kind: &str, mode: &str| {
            json!({"metadata": {"name": kind}, "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "array", "volumeMode": mode,
                "resources": {"requests": {"storage": "32Mi"}}}})
        };
        json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": self.name},
            "spec": {
                "serviceName": self.name, "replicas": 1, "selector": {"matchLabels": {"app": self.name}},
                "volumeClaimTemplates": [claim("data", "Filesystem"), claim("raw", "Block")],
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "terminationGracePeriodSeconds": 1,
                        "containers": [{
                            "name": "workload", "image": IMAGE, "imagePullPolicy": "Never",
                            "command": ["/bin/workload", "--file", "/data/records", "--device", "/dev/raw"],
                            "env": [{"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}],
                            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                            "volumeDevices": [{"name": "raw", "devicePath": "/dev/raw"}],
                        }],
                    },
                },
            },
        })
    }

    fn stateful_sets(&self) -> Api<StatefulSet> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The name of the only pod.
    pub fn pod_name(&self) -> String {
        format!("{}-0", self.name)
    }

    /// The pod as the API server has it now.
    pub async fn pod(&self) -> Result<Option<Pod>> {
        self.pods()
            .get_opt(&self.pod_name())
            .await
            .context(|| format!("read pod {}", self.pod_name()))
    }

    /// Waits until the pod runs, in another incarnation than `before`.
    pub async fn wait_running(&self, before: Option<&Running>) -> Result<Running> {
        wait_until(format!("{} runs", self.pod_name()), PATIENCE, async || {
            let Some(pod) = self.pod().await? else {
                return Ok(Seen::NotYet("no pod".into()));
            };
            let phase = pod.status.and_then(|status| status.phase);
            let found = Running {
                uid: pod.metadata.uid.unwrap_or_default(),
                node: pod.spec.and_then(|spec| spec.node_name).unwrap_or_default(),
            };
            let is_new = before.is_none_or(|before| before.uid != found.uid);
            Ok(if is_new && phase.as_deref() == Some("Running") {
                Seen::Yes(found)
            } else {
                Seen::NotYet(format!("{phase:?} on {:?}, new: {is_new}", found.node))
            })
        })
        .await
    }

    /// Opens what an incarnation says, as its node keeps it. An open file stays readable after the kubelet has removed it.
    pub fn output(&self, rig: &Rig, running: &Running) -> Result<File> {
        let pod = format!("{}_{}_{}", self.namespace, self.pod_name(), running.uid);
        let pods = rig.cluster.node(&running.node).disk().join("log/pods");
        let path = pods.join(pod).join("workload/0.log");
        File::open(&path).context(|| format!("open {}", path.display()))
    }

    /// The attachments of its volumes.
    pub async fn attachments(&self) -> Result<Vec<VolumeAttachment>> {
        let all: Api<VolumeAttachment> = Api::all(self.client.clone());
        let listed = all
            .list(&ListParams::default())
            .await
            .context(|| "list attachments".into())?;
        let ours = [self.filesystem.as_str(), self.block.as_str()];
        Ok(listed
            .items
            .into_iter()
            .filter(|attachment| {
                let volume = &attachment.spec.source.persistent_volume_name;
                volume.as_deref().is_some_and(|name| ours.contains(&name))
            })
            .collect())
    }

    /// Removes it and waits until nothing of it is attached anywhere.
    pub async fn remove(self) -> Result<()> {
        let at_once = DeleteParams::default().grace_period(0);
        let _ = self.stateful_sets().delete(&self.name, &at_once).await;
        let _ = self.pods().delete(&self.pod_name(), &at_once).await;
        let claims: Api<PersistentVolumeClaim> =
            Api::namespaced(self.client.clone(), &self.namespace);
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        for volume in [&self.filesystem, &self.block] {
            let claim = format!("{}-0", volume_claim(volume.as_str(), &self.name));
            let _ = claims.delete(&claim, &DeleteParams::default()).await;
        }
        wait_until(format!("{} is detached", self.name), PATIENCE, async || {
            let left = self.attachments().await?;
            let pod = self.pod().await?.is_some();
            Ok(if left.is_empty() && !pod {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{} attachments, pod there: {pod}", left.len()))
            })
        })
        .await?;
        for volume in [&self.filesystem, &self.block] {
            let _ = volumes
                .delete(volume.as_str(), &DeleteParams::default())
                .await;
        }
        Ok(())
    }
}

/// An incarnation of the pod that has run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    pub uid: String,
    pub node: String,
}

/// The name of the claim, without the ordinal: a StatefulSet puts the template's name first, the array's volumes have it last.
fn volume_claim(volume: &str, set: &str) -> String {
    let kind = volume.strip_prefix(set).unwrap_or(volume);
    format!("{}-{set}", kind.trim_start_matches('-'))
}

async fn apply<T>(api: &Api<T>, body: Value) -> Result<()>
where
    T: Clone + std::fmt::Debug + DeserializeOwned + Serialize,
{
    let name = body["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    api.patch(&name, &PatchParams::apply("testbed"), &Patch::Apply(body))
        .await
        .map(drop)
        .context(|| format!("create {name}"))
}
