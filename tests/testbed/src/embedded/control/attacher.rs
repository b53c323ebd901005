//! The external-attacher: turns VolumeAttachments into calls of the CSI driver.
//!
//! It writes its finalizer and the node id before it publishes, works on one call per attachment, repeats what failed, and
//! where the driver lists published nodes it publishes again what it finds missing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tonic::{Request, Status};

use super::Timing;
use crate::embedded::api::{Actor, Kind};
use crate::embedded::chance::Chance;
use crate::embedded::object::*;
use crate::proto::csi::controller_server::Controller as _;
use crate::proto::csi::volume_capability::{
    AccessMode, AccessType, MountVolume, access_mode::Mode,
};
use crate::proto::csi::{
    ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, VolumeCapability,
};
use crate::storage::driver::controller::ControllerService;
use crate::storage::driver::{EPOCH, NAME};

/// Where the attacher notes the node id that it published to.
pub const NODE_ID: &str = "csi.alpha.kubernetes.io/node-id";
/// `--timeout`
const CALL: Duration = Duration::from_secs(15);
/// `--retry-interval-start` and `--retry-interval-max`
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

pub struct Attacher {
    api: Actor,
    driver: ControllerService,
    timing: Timing,
    republish: Duration,
    chance: Chance,
    work: Arc<Mutex<Work>>,
    /// How long the attacher may take before it turns to an attachment.
    pub lateness: Duration,
}

#[derive(Default)]
struct Work {
    busy: BTreeSet<String>,
    /// By attachment: the last waiting time, and when it is over.
    again: BTreeMap<String, (Duration, Duration)>,
}

impl Attacher {
    pub fn new(api: Actor, driver: ControllerService, timing: Timing, chance: Chance) -> Attacher {
        Attacher {
            api,
            driver,
            timing,
            republish: timing.republish,
            chance,
            work: Arc::default(),
            lateness: Duration::from_millis(20),
        }
    }

    pub fn tick(&mut self, now: Duration) {
        let mut missing = BTreeSet::new();
        if self.driver.published_nodes && now >= self.republish {
            self.republish = now + self.timing.republish;
            missing = self.missing();
        }
        for attachment in self.api.list(Kind::VolumeAttachment) {
            if text(&attachment, "/spec/attacher") != NAME {
                continue;
            }
            let attached = attachment
                .pointer("/status/attached")
                .and_then(Value::as_bool)
                == Some(true);
            let terminating = is_terminating(&attachment);
            let wanted = terminating || !attached || missing.contains(name(&attachment));
            if !wanted || !self.claim(name(&attachment), now) {
                continue;
            }
            let late = self.chance.time(Duration::ZERO..self.lateness);
            let job = Job {
                api: self.api.clone(),
                driver: self.driver.clone(),
                name: name(&attachment).to_owned(),
                uid: uid(&attachment).to_owned(),
            };
            let work = self.work.clone();
            tokio::spawn(async move {
                tokio::time::sleep(late).await;
                let done = if terminating {
                    job.detach().await
                } else {
                    job.attach().await
                };
                let mut work = work.lock().unwrap_or_else(PoisonError::into_inner);
                work.busy.remove(&job.name);
                if done.is_ok() {
                    work.again.remove(&job.name);
                } else {
                    let last = work
                        .again
                        .get(&job.name)
                        .map_or(RETRY.0, |(last, _)| *last * 2);
                    let wait = last.min(RETRY.1);
                    work.again.insert(job.name.clone(), (wait, Duration::ZERO));
                }
            });
        }
    }

    /// Takes an attachment on, unless it is being worked on or has to wait after a failure.
    fn claim(&self, name: &str, now: Duration) -> bool {
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        if work.busy.contains(name) {
            return false;
        }
        if let Some((wait, until)) = work.again.get_mut(name) {
            if until.is_zero() {
                *until = now + *wait;
            }
            if now < *until {
                return false;
            }
            *until = Duration::ZERO;
        }
        work.busy.insert(name.to_owned())
    }

    /// Attachments that say "attached" although the driver does not list the node.
    fn missing(&self) -> BTreeSet<String> {
        let crate::storage::door::Door::Here { array, .. } = &self.driver.door else {
            return BTreeSet::new();
        };
        let volumes = array
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .volumes();
        let mut missing = BTreeSet::new();
        for attachment in self.api.list(Kind::VolumeAttachment) {
            let node = text(
                &attachment,
                "/metadata/annotations/csi.alpha.kubernetes.io~1node-id",
            );
            let Some(volume) = self.api.get(
                Kind::PersistentVolume,
                "",
                text(&attachment, "/spec/source/persistentVolumeName"),
            ) else {
                continue;
            };
            let handle = text(&volume, "/spec/csi/volumeHandle");
            let published = volumes
                .iter()
                .filter(|volume| volume.volume.as_str() == handle)
                .any(|volume| volume.granted.keys().any(|id| id.as_str() == node));
            if !published && !is_terminating(&attachment) {
                missing.insert(name(&attachment).to_owned());
            }
        }
        missing
    }
}

struct Job {
    api: Actor,
    driver: ControllerService,
    name: String,
    uid: String,
}

impl Job {
    fn attachment(&self) -> Option<Arc<Value>> {
        let attachment = self.api.get(Kind::VolumeAttachment, "", &self.name)?;
        (uid(&attachment) == self.uid).then_some(attachment)
    }

    fn volume(&self, attachment: &Value) -> Result<Arc<Value>, Status> {
        let volume = text(attachment, "/spec/source/persistentVolumeName");
        let found = self.api.get(Kind::PersistentVolume, "", volume);
        found.ok_or_else(|| Status::not_found(format!("persistentvolume {volume}")))
    }

    /// By the CSINode object.
    fn registered(&self, node: &str) -> Option<String> {
        let csinode = self.api.get(Kind::CsiNode, "", node)?;
        items(&csinode, "/spec/drivers")
            .find(|driver| driver["name"] == NAME)
            .map(|driver| text(driver, "/nodeID").to_owned())
    }

    async fn attach(&self) -> Result<(), Status> {
        let Some(attachment) = self
            .attachment()
            .filter(|attachment| !is_terminating(attachment))
        else {
            return Ok(());
        };
        let volume = self.volume(&attachment)?;
        let node = text(&attachment, "/spec/nodeName");
        let node_id = self
            .registered(node)
            .ok_or_else(|| Status::not_found(format!("driver {NAME} on CSINode {node}")))?;
        let mut finalizers: Vec<Value> = items(&attachment, "/metadata/finalizers")
            .cloned()
            .collect();
        let ours = json!(finalizer());
        if !finalizers.contains(&ours) {
            finalizers.push(ours);
        }
        let noted = json!({"metadata": {
            "resourceVersion": version(&attachment), "finalizers": finalizers, "annotations": {NODE_ID: node_id},
        }});
        let noted = self
            .api
            .patch(Kind::VolumeAttachment, "", &self.name, noted);
        noted.map_err(|failure| Status::aborted(failure.to_string()))?;
        let capability = VolumeCapability {
            access_type: Some(AccessType::Mount(MountVolume::default())),
            access_mode: Some(AccessMode {
                mode: Mode::SingleNodeWriter.into(),
            }),
        };
        let request = ControllerPublishVolumeRequest {
            volume_id: text(&volume, "/spec/csi/volumeHandle").to_owned(),
            node_id,
            volume_capability: Some(capability),
            ..Default::default()
        };
        let call = self.driver.controller_publish_volume(Request::new(request));
        let answer = within(call).await?;
        let context = answer
            .publish_context
            .get(EPOCH)
            .cloned()
            .unwrap_or_default();
        if self.attachment().is_some() {
            let status = json!({"status": {"attached": true, "attachmentMetadata": {EPOCH: context}, "attachError": null}});
            let _ = self
                .api
                .patch_status(Kind::VolumeAttachment, "", &self.name, status);
        }
        Ok(())
    }

    async fn detach(&self) -> Result<(), Status> {
        let Some(attachment) = self.attachment() else {
            return Ok(());
        };
        let noted = text(
            &attachment,
            "/metadata/annotations/csi.alpha.kubernetes.io~1node-id",
        );
        let node = text(&attachment, "/spec/nodeName");
        let node_id = if noted.is_empty() {
            self.registered(node).unwrap_or_default()
        } else {
            noted.to_owned()
        };
        let volume = self.volume(&attachment)?;
        // An empty id would mean all nodes.
        if !node_id.is_empty() {
            let request = ControllerUnpublishVolumeRequest {
                volume_id: text(&volume, "/spec/csi/volumeHandle").to_owned(),
                node_id,
                ..Default::default()
            };
            within(
                self.driver
                    .controller_unpublish_volume(Request::new(request)),
            )
            .await?;
        }
        let Some(attachment) = self.attachment() else {
            return Ok(());
        };
        let detached = json!({"status": {"attached": false, "attachmentMetadata": null}});
        let _ = self
            .api
            .patch_status(Kind::VolumeAttachment, "", &self.name, detached);
        let finalizers = items(&attachment, "/metadata/finalizers")
            .filter(|other| **other != finalizer().as_str());
        let finalizers: Vec<Value> = finalizers.cloned().collect();
        let _ = self.api.patch(
            Kind::VolumeAttachment,
            "",
            &self.name,
            json!({"metadata": {"finalizers": finalizers}}),
        );
        Ok(())
    }
}

fn finalizer() -> String {
    format!("external-attacher/{}", NAME.replace('.', "-"))
}

async fn within<T>(
    call: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, Status> {
    match tokio::time::timeout(CALL, call).await {
        Ok(answer) => answer.map(tonic::Response::into_inner),
        Err(_) => Err(Status::deadline_exceeded("no answer")),
    }
}
