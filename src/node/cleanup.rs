//! Clears away what the kubelet left of one volume: first from the pods, then from the node.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use super::clear::{ClearError, Step};
use super::detached::{Detached, Detachments};
use super::host::Host;
use super::inspect::{Job, Target};
use super::mounts::Mount;
use super::sight::{Kind, Unseen};
use crate::cluster::pod::{Pod, Source};
use crate::cluster::{Cluster, ClusterError};
use crate::csi::{Driver, DriverError};
use crate::domain::{Incarnation, NodeName, PodUid, VolumeName};
use crate::names::Profile;

/// How long one call to the driver may take; the kubelet gives it twice that.
const CALL: Duration = Duration::from_secs(60);
/// Mounts that may lie on one another at one path.
const STACKED: usize = 16;

/// Why a volume is not cleared away yet.
#[derive(thiserror::Error, Debug)]
pub enum CleanupError {
    /// The driver is at it: the kubelet's call, or ours of before.
    #[error("the driver is at it: {0}")]
    InProgress(DriverError),
    #[error("{0}")]
    Driver(DriverError),
    #[error("{0}")]
    Clear(#[from] ClearError),
    #[error("{0}")]
    Cluster(#[from] ClusterError),
    #[error("{0}")]
    Unseen(#[from] Unseen),
    /// The pod turned up in the API after all.
    #[error("pod {0} is bound to this node")]
    Rightful(Incarnation),
    #[error("pod {0} uses the volume too")]
    UsedBy(Incarnation),
}

/// Everything a cleanup needs.
#[derive(Clone)]
pub struct Cleaner {
    pub cluster: Cluster,
    pub driver: Driver,
    pub host: Host,
    pub node: NodeName,
    pub profile: Profile,
    pub detachments: Detachments,
    /// Detach what is busy, on the operator's word.
    pub lazily: bool,
}

impl Cleaner {
    /// Clears one volume away. `evacuated` are the incarnations that the journal has released: they are known to be
    /// gone; of every other one the API is asked again, since it may be newer than what the job was made from.
    pub async fn clean(&self, job: &Job, evacuated: &BTreeSet<PodUid>) -> Result<(), CleanupError> {
        if job.targets.iter().any(|t| !evacuated.contains(&t.pod)) {
            let pods = self.cluster.pods_on(&self.node).await?;
            let targeted = |pod: &Pod| {
                let uid = &pod.incarnation.uid;
                !evacuated.contains(uid) && job.targets.iter().any(|t| t.pod == *uid)
            };
            if let Some(pod) = pods.into_iter().find(targeted) {
                return Err(CleanupError::Rightful(pod.incarnation));
            }
        }
        for target in &job.targets {
            self.unpublish(job, target).await?;
        }
        for path in &job.staging {
            self.unused(&job.volume, evacuated).await?;
            let called = self.driver.node_unstage(&job.handle, path, CALL).await;
            self.said(called)?;
            self.unmount(path).await?;
            self.remove(path).await?;
        }
        for path in &job.private {
            self.unused(&job.volume, evacuated).await?;
            self.unmount(path).await?;
            self.remove(path).await?;
        }
        Ok(())
    }

    async fn unpublish(&self, job: &Job, target: &Target) -> Result<(), CleanupError> {
        for device in &target.loops {
            let device = Path::new("/dev").join(device);
            (self.host.clear)(Step::FreeLoop(device)).await?;
        }
        for path in &target.above {
            self.unmount(path).await?;
        }
        let called = self
            .driver
            .node_unpublish(&job.handle, &target.path, CALL)
            .await;
        self.said(called)?;
        self.unmount(&target.path).await?;
        self.remove(&target.path).await?;
        if target.kind == Kind::Block {
            for path in &target.above {
                self.remove(path).await?;
            }
            if let Some(link) = &target.link {
                self.remove(link).await?;
            }
        }
        Ok(())
    }

    /// What the driver's answer means.
    fn said(&self, answer: Result<(), DriverError>) -> Result<(), CleanupError> {
        match answer {
            Err(error) if tolerated(self.profile, &error) => Ok(()),
            Err(error) if error.is_in_progress() => Err(CleanupError::InProgress(error)),
            other => other.map_err(CleanupError::Driver),
        }
    }

    /// Unmounts everything at and below the path, the innermost first, by what the host shows now.
    async fn unmount(&self, path: &Path) -> Result<(), CleanupError> {
        for _ in 0..STACKED {
            let mounts = (self.host.look)().await.mounts?;
            let mut below: Vec<_> = mounts
                .into_iter()
                .filter(|mount| mount.point.starts_with(path))
                .collect();
            below.sort();
            if below.is_empty() {
                return Ok(());
            }
            for mount in below.into_iter().rev() {
                match (self.host.clear)(Step::Unmount(mount.point.clone())).await {
                    Err(_) if self.lazily => self.detach(mount).await?,
                    other => other?,
                }
            }
        }
        let why = "something mounts it again and again";
        Err(Unseen::new(path.display(), why).into())
    }

    async fn detach(&self, mount: Mount) -> Result<(), CleanupError> {
        let detached = Detached::of(&mount, (self.host.boot)());
        self.detachments.note(detached)?;
        tracing::warn!(path = %mount.point.display(), source = mount.source, "Detaching what is busy, as --lazyUnmount allows");
        Ok((self.host.clear)(Step::UnmountLazily(mount.point)).await?)
    }

    async fn remove(&self, path: &Path) -> Result<(), CleanupError> {
        Ok((self.host.clear)(Step::Remove(path.to_owned())).await?)
    }

    /// That no pod bound to this node uses the volume, by the API, now. A pod that has not started yet is a user too:
    /// the kubelet may mount the volume for it at any time.
    async fn unused(
        &self,
        volume: &VolumeName,
        evacuated: &BTreeSet<PodUid>,
    ) -> Result<(), CleanupError> {
        for pod in self.cluster.pods_on(&self.node).await? {
            if pod.finished() || evacuated.contains(&pod.incarnation.uid) {
                continue;
            }
            for source in &pod.volumes {
                let (Source::Claim(claim) | Source::Ephemeral(claim)) = source else {
                    continue;
                };
                let namespace = &pod.incarnation.key.namespace;
                let claim = self.cluster.claim(namespace, claim).await?;
                if claim.and_then(|claim| claim.volume).as_ref() == Some(volume) {
                    return Err(CleanupError::UsedBy(pod.incarnation));
                }
            }
        }
        Ok(())
    }
}

/// Answers that mean no harm with this driver (contract.md §1.22).
fn tolerated(profile: Profile, error: &DriverError) -> bool {
    let text = error.to_string();
    profile == Profile::Unity
        && text.contains("NFS Share for filesystem")
        && text.contains("not found")
}
