//! Everything about one node that an evacuation decides by, read from the API server itself.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::try_join_all;
use futures::stream::{self, StreamExt, TryStreamExt};

use super::attachment::Attachment;
use super::claim::Claim;
use super::node::Node;
use super::pod::{Pod, Source};
use super::volume::{Backend, SecretName, Volume};
use super::{Cluster, ClusterError};
use crate::clock::Moment;
use crate::domain::{
    AttachmentUid, DriverName, NodeId, NodeName, PodUid, VolumeHandle, VolumeName,
};

/// Above this many claims of one namespace, or volumes, one list costs less than as many reads.
const LIST_ABOVE: usize = 4;
/// Reads under way at once for one survey; each takes a connection.
const AT_ONCE: usize = 8;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Survey {
    /// When reading began: nothing here is older.
    pub at: Moment,
    /// `None`: there is no such Node object.
    pub node: Option<Node>,
    /// Every pod bound to the node, protected or not.
    pub pods: BTreeMap<PodUid, Pod>,
    /// What each of those pods uses.
    pub uses: BTreeMap<PodUid, Uses>,
    /// The volumes of ours that those pods use.
    pub volumes: BTreeMap<VolumeName, OurVolume>,
    /// The attachments of volumes of ours to this node.
    pub attachments: BTreeMap<AttachmentUid, Attachment>,
    /// The driver's node id by the CSINode object.
    pub registered_id: Option<NodeId>,
}

/// What fencing a volume of ours needs to know of its PersistentVolume.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct OurVolume {
    pub handle: VolumeHandle,
    pub many_writers: bool,
    pub secret: Option<SecretName>,
}

/// The volumes that a pod uses.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Uses {
    pub ours: BTreeSet<VolumeName>,
    /// What keeps us from releasing the pod, as far as its volumes go.
    pub problem: Option<Problem>,
}

/// A volume that we cannot fence, or do not know.
#[derive(thiserror::Error, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Problem {
    #[error("persistentvolumeclaim {0} cannot be found")]
    NoClaim(String),
    #[error("persistentvolumeclaim {0} belongs to another pod")]
    ForeignClaim(String),
    #[error("persistentvolumeclaim {0} is not bound")]
    Unbound(String),
    #[error("persistentvolume {0} cannot be found")]
    NoVolume(VolumeName),
    #[error("persistentvolume {0} is bound to another persistentvolumeclaim")]
    ForeignVolume(VolumeName),
    #[error(
        "volume {volume} belongs to driver {driver}, which this podmon cannot fence; protect only pods whose attachable volumes are of one driver"
    )]
    ForeignDriver {
        volume: VolumeName,
        driver: DriverName,
    },
    #[error(
        "volume {volume} is attached by Kubernetes itself ({kind}), which this podmon cannot fence; protect only pods whose attachable volumes are of one driver"
    )]
    InTree { volume: String, kind: String },
    #[error(
        "the secret {namespace}/{name} that volume {volume} needs for its fence cannot be read; grant podmon get on it"
    )]
    Secret {
        volume: VolumeName,
        namespace: String,
        name: String,
    },
}

impl Survey {
    /// The attachments of one volume to this node.
    pub fn attachments_of(&self, volume: &VolumeName) -> impl Iterator<Item = &Attachment> {
        self.attachments
            .values()
            .filter(move |a| a.volume == *volume)
    }

    /// Every pod here, finished ones apart, that uses one of the volumes behind this handle.
    pub fn users_of(&self, handle: &VolumeHandle) -> impl Iterator<Item = &Pod> {
        self.pods.values().filter(move |pod| {
            let uses = self.uses.get(&pod.incarnation.uid);
            let mut ours = uses.into_iter().flat_map(|uses| &uses.ours);
            !pod.finished()
                && ours.any(|v| self.volumes.get(v).is_some_and(|v| v.handle == *handle))
        })
    }
}

impl Cluster {
    /// Reads the node first and what is bound to it afterwards: a patch with that Node's version then proves that
    /// the node did not change while the rest was read.
    pub async fn survey(&self, name: &NodeName, at: Moment) -> Result<Survey, ClusterError> {
        let node = self.node(name).await?;
        let (pods, attachments, registered_id) = futures::try_join!(
            self.pods_on(name),
            self.attachments(),
            self.registered_id(name)
        )?;
        let live = pods.iter().filter(|pod| !pod.finished());
        let claims = self.claims_of(live.clone()).await?;
        let bound = claims
            .values()
            .filter_map(|claim| claim.volume.clone())
            .collect();
        let volumes = self.volumes_named(bound).await?;
        let unreadable = self.unreadable_secrets(volumes.values()).await;

        let mut survey = Survey {
            at,
            node,
            pods: BTreeMap::new(),
            uses: BTreeMap::new(),
            volumes: BTreeMap::new(),
            attachments: attachments
                .into_iter()
                .filter(|a| a.node == *name)
                .map(|a| (a.uid.clone(), a))
                .collect(),
            registered_id,
        };
        for pod in live {
            let uses = self.uses(pod, &claims, &volumes, &unreadable, &mut survey.volumes);
            survey.uses.insert(pod.incarnation.uid.clone(), uses);
        }
        survey.pods = pods
            .into_iter()
            .map(|pod| (pod.incarnation.uid.clone(), pod))
            .collect();
        Ok(survey)
    }

    /// The claims that these pods name, by `namespace/name`; what is not there is missing from the map.
    async fn claims_of<'a>(
        &self,
        pods: impl Iterator<Item = &'a Pod>,
    ) -> Result<BTreeMap<String, Claim>, ClusterError> {
        let mut wanted: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for pod in pods {
            for source in &pod.volumes {
                if let Source::Claim(name) | Source::Ephemeral(name) = source {
                    let namespace = pod.incarnation.key.namespace.as_str();
                    wanted.entry(namespace).or_default().insert(name);
                }
            }
        }
        let found = try_join_all(wanted.into_iter().map(async |(namespace, names)| {
            if names.len() > LIST_ABOVE {
                return self.claims(namespace).await;
            }
            let claims = names.into_iter().map(|name| self.claim(namespace, name));
            Ok(try_join_all(claims).await?.into_iter().flatten().collect())
        }))
        .await?;
        let claims = found.into_iter().flatten();
        Ok(claims
            .map(|c| (format!("{}/{}", c.namespace, c.name), c))
            .collect())
    }

    /// The volumes of these names; what is not there is missing from the map.
    async fn volumes_named(
        &self,
        names: BTreeSet<VolumeName>,
    ) -> Result<BTreeMap<VolumeName, Volume>, ClusterError> {
        let few = if names.len() > LIST_ABOVE {
            self.volumes_if_few().await?
        } else {
            None
        };
        let found = match few {
            Some(all) => all
                .into_iter()
                .filter(|volume| names.contains(&volume.name))
                .collect(),
            None => {
                let reads = stream::iter(names).map(async |name| self.volume(&name).await);
                let found = reads.buffer_unordered(AT_ONCE);
                found
                    .try_filter_map(async |volume| Ok(volume))
                    .try_collect::<Vec<_>>()
                    .await?
            }
        };
        Ok(found
            .into_iter()
            .map(|volume| (volume.name.clone(), volume))
            .collect())
    }

    fn uses(
        &self,
        pod: &Pod,
        claims: &BTreeMap<String, Claim>,
        volumes: &BTreeMap<VolumeName, Volume>,
        unreadable: &BTreeSet<SecretName>,
        found: &mut BTreeMap<VolumeName, OurVolume>,
    ) -> Uses {
        let mut uses = Uses::default();
        for source in &pod.volumes {
            let (ours, problem) = self.resolve(pod, source, claims, volumes, unreadable);
            if let Some((name, volume)) = ours {
                found.insert(name.clone(), volume);
                uses.ours.insert(name);
            }
            uses.problem = uses.problem.or(problem);
        }
        uses
    }

    /// The volume of ours behind a source, and what keeps it from being fenced; both where other users of a volume
    /// that we must refuse matter still.
    fn resolve(
        &self,
        pod: &Pod,
        source: &Source,
        claims: &BTreeMap<String, Claim>,
        volumes: &BTreeMap<VolumeName, Volume>,
        unreadable: &BTreeSet<SecretName>,
    ) -> (Option<(VolumeName, OurVolume)>, Option<Problem>) {
        let name = match source {
            Source::Claim(name) | Source::Ephemeral(name) => name,
            Source::InTree(kind) => {
                let volume = pod.incarnation.key.to_string();
                let kind = kind.clone();
                return (None, Some(Problem::InTree { volume, kind }));
            }
        };
        let key = format!("{}/{name}", pod.incarnation.key.namespace);
        let Some(claim) = claims.get(&key) else {
            return (None, Some(Problem::NoClaim(key)));
        };
        let of_pod = claim.pod.as_ref() == Some(&pod.incarnation.uid);
        if matches!(source, Source::Ephemeral(_)) && !of_pod {
            return (None, Some(Problem::ForeignClaim(key)));
        }
        let Some(name) = claim.volume.clone() else {
            return (None, Some(Problem::Unbound(key)));
        };
        let Some(volume) = volumes.get(&name) else {
            return (None, Some(Problem::NoVolume(name)));
        };
        if volume.claim.as_ref() != Some(&claim.uid) {
            return (None, Some(Problem::ForeignVolume(name)));
        }
        match &volume.backend {
            Backend::Unattached => (None, None),
            Backend::InTree(kind) => {
                let (volume, kind) = (name.to_string(), kind.clone());
                (None, Some(Problem::InTree { volume, kind }))
            }
            Backend::Csi { driver, .. } if *driver != self.names().driver => {
                let driver = driver.clone();
                (
                    None,
                    Some(Problem::ForeignDriver {
                        volume: name,
                        driver,
                    }),
                )
            }
            Backend::Csi { handle, secret, .. } => {
                let refused = secret
                    .as_ref()
                    .filter(|secret| unreadable.contains(*secret));
                let problem = refused.map(|secret| Problem::Secret {
                    volume: name.clone(),
                    namespace: secret.namespace.clone(),
                    name: secret.name.clone(),
                });
                let ours = OurVolume {
                    handle: handle.clone(),
                    many_writers: volume.many_writers,
                    secret: secret.clone(),
                };
                (Some((name, ours)), problem)
            }
        }
    }

    async fn unreadable_secrets(
        &self,
        volumes: impl Iterator<Item = &Volume>,
    ) -> BTreeSet<SecretName> {
        let named = volumes.filter_map(|volume| match &volume.backend {
            Backend::Csi { driver, secret, .. } if *driver == self.names().driver => secret.clone(),
            _ => None,
        });
        let mut unreadable = BTreeSet::new();
        for secret in named.collect::<BTreeSet<_>>() {
            if self.secret(&secret).await.is_err() {
                unreadable.insert(secret);
            }
        }
        unreadable
    }
}
