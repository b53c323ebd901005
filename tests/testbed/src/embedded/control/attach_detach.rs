//! The attach-detach controller: VolumeAttachments for what pods on nodes need.
//!
//! It goes by what it remembers having attached. That a VolumeAttachment was deleted by another hand it learns only at its own
//! check, once a minute; a volume that is to go and that its node says it uses it leaves alone for six minutes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::Timing;
use crate::embedded::api::{Actor, Kind};
use crate::embedded::object::*;

/// A volume on a node.
type Place = (String, String);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Volume {
    handle: String,
    driver: String,
    shared: bool,
}

/// What the controller believes of a volume on a node.
#[derive(Clone, Debug)]
struct Attached {
    volume: Volume,
    /// The attacher said so; until then the attachment was only asked for.
    confirmed: bool,
    unwanted_since: Option<Duration>,
    /// The detach has begun, so the node is told that it must not mount the volume any more.
    detaching: bool,
}

pub struct AttachDetach {
    api: Actor,
    timing: Timing,
    check: Duration,
    attached: BTreeMap<Place, Attached>,
}

/// The name that Kubernetes gives to the attachment of a volume to a node: the same each time.
pub fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    let hash = Sha256::digest(format!("{handle}{driver}{node}"));
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("csi-{hex}")
}

impl AttachDetach {
    pub fn new(api: Actor, timing: Timing) -> AttachDetach {
        AttachDetach {
            api,
            timing,
            check: timing.attachment_check,
            attached: BTreeMap::new(),
        }
    }

    /// Forgets everything, as a restart does, and takes over what the attachments say.
    pub fn restart(&mut self, now: Duration) {
        self.check = now + self.timing.attachment_check;
        self.attached.clear();
        for attachment in self.api.list(Kind::VolumeAttachment) {
            let (volume, node) = place(&attachment);
            if let Some(found) = self.volume(&volume) {
                let attached = Attached {
                    volume: found,
                    confirmed: is_attached(&attachment),
                    unwanted_since: None,
                    detaching: false,
                };
                self.attached.insert((volume, node), attached);
            }
        }
    }

    fn volume(&self, name: &str) -> Option<Volume> {
        let volume = self.api.get(Kind::PersistentVolume, "", name)?;
        let csi = at(&volume, "/spec/csi")?;
        Some(Volume {
            handle: text(csi, "/volumeHandle").to_owned(),
            driver: text(csi, "/driver").to_owned(),
            shared: items(&volume, "/spec/accessModes").any(|mode| mode == "ReadWriteMany"),
        })
    }

    /// What the pods that are bound to nodes need.
    fn desired(&self) -> BTreeMap<Place, Volume> {
        let mut desired = BTreeMap::new();
        for pod in self.api.list(Kind::Pod) {
            if node_of(&pod).is_empty() || is_finished(&pod) {
                continue;
            }
            for claim in claims_of(&pod) {
                let Some(claim) = self
                    .api
                    .get(Kind::PersistentVolumeClaim, namespace(&pod), claim)
                else {
                    continue;
                };
                let volume = text(&claim, "/spec/volumeName");
                if let Some(found) = self.volume(volume) {
                    desired.insert((volume.to_owned(), node_of(&pod).to_owned()), found);
                }
            }
        }
        desired
    }

    pub fn tick(&mut self, now: Duration) {
        let desired = self.desired();
        if now >= self.check {
            self.check = now + self.timing.attachment_check;
            self.verify();
        }
        self.confirm();
        self.detach(&desired, now);
        self.attach(&desired);
        self.report();
    }

    fn attachment(&self, place: &Place, volume: &Volume) -> Option<std::sync::Arc<Value>> {
        let name = attachment_name(&volume.handle, &volume.driver, &place.1);
        self.api.get(Kind::VolumeAttachment, "", &name)
    }

    /// Looks whether what should be attached still has its attachment.
    fn verify(&mut self) {
        let places: Vec<Place> = self.attached.keys().cloned().collect();
        for place in places {
            let believed = &self.attached[&place];
            let there = self.attachment(&place, &believed.volume);
            if believed.confirmed && !there.is_some_and(|attachment| is_attached(&attachment)) {
                self.attached.remove(&place);
            }
        }
    }

    /// Takes note of what the attacher has done.
    fn confirm(&mut self) {
        let pending: Vec<Place> = self
            .attached
            .iter()
            .filter(|(_, a)| !a.confirmed)
            .map(|(p, _)| p.clone())
            .collect();
        for place in pending {
            let there = self.attachment(&place, &self.attached[&place].volume);
            match there {
                Some(attachment) if is_attached(&attachment) => {
                    if let Some(believed) = self.attached.get_mut(&place) {
                        believed.confirmed = true;
                    }
                }
                Some(_) => {}
                // Deleted before it was attached: asked for again if still wanted.
                None => {
                    self.attached.remove(&place);
                }
            }
        }
    }

    fn detach(&mut self, desired: &BTreeMap<Place, Volume>, now: Duration) {
        for (place, believed) in &mut self.attached {
            if desired.contains_key(place) {
                believed.unwanted_since = None;
                believed.detaching = false;
            } else if believed.unwanted_since.is_none() {
                believed.unwanted_since = Some(now);
            }
        }
        let unwanted: Vec<(Place, Attached)> = self
            .attached
            .iter()
            .filter(|(_, believed)| believed.unwanted_since.is_some())
            .map(|(place, believed)| (place.clone(), believed.clone()))
            .collect();
        for (place, believed) in unwanted {
            if let Some(node) = self.api.get(Kind::Node, "", &place.1) {
                let unique = unique_volume(&believed.volume.driver, &believed.volume.handle);
                let in_use =
                    items(&node, "/status/volumesInUse").any(|used| *used == unique.as_str());
                let waited = now.saturating_sub(believed.unwanted_since.unwrap_or(now));
                let lost = condition(&node, "Ready") != "True";
                let forced = lost && waited >= self.timing.forced_detach;
                if in_use && !forced && !has_taint(&node, "node.kubernetes.io/out-of-service", "") {
                    continue;
                }
            }
            if let Some(believed) = self.attached.get_mut(&place) {
                believed.detaching = true;
            }
            match self.attachment(&place, &believed.volume) {
                None => {
                    self.attached.remove(&place);
                }
                Some(attachment) if !is_terminating(&attachment) => {
                    let _ = self.api.delete(
                        Kind::VolumeAttachment,
                        "",
                        name(&attachment),
                        None,
                        Some(uid(&attachment)),
                    );
                    if self.attachment(&place, &believed.volume).is_none() {
                        self.attached.remove(&place);
                    }
                }
                Some(_) => {}
            }
        }
    }

    fn attach(&mut self, desired: &BTreeMap<Place, Volume>) {
        for (place, volume) in desired {
            if self.attached.contains_key(place) || self.api.get(Kind::Node, "", &place.1).is_none()
            {
                continue;
            }
            // The multi-attach rule.
            let elsewhere = self
                .attached
                .keys()
                .any(|other| other.0 == place.0 && other.1 != place.1);
            if elsewhere && !volume.shared {
                continue;
            }
            if let Some(there) = self.attachment(place, volume) {
                if is_terminating(&there) {
                    continue;
                }
            } else {
                let name = attachment_name(&volume.handle, &volume.driver, &place.1);
                let made = self.api.create(
                    Kind::VolumeAttachment,
                    "",
                    json!({
                        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": name},
                        "spec": {
                            "attacher": volume.driver, "nodeName": place.1,
                            "source": {"persistentVolumeName": place.0},
                        },
                    }),
                );
                if made.is_err() {
                    continue;
                }
            }
            let believed = Attached {
                volume: volume.clone(),
                confirmed: false,
                unwanted_since: None,
                detaching: false,
            };
            self.attached.insert(place.clone(), believed);
        }
    }

    /// Tells each node what is attached to it, which its kubelet waits for.
    fn report(&self) {
        for node in self.api.list(Kind::Node) {
            let mut wanted = BTreeSet::new();
            for (place, believed) in &self.attached {
                if place.1 == name(&node) && believed.confirmed && !believed.detaching {
                    wanted.insert(unique_volume(
                        &believed.volume.driver,
                        &believed.volume.handle,
                    ));
                }
            }
            let said: BTreeSet<String> = items(&node, "/status/volumesAttached")
                .map(|volume| text(volume, "/name").to_owned())
                .collect();
            if said != wanted {
                let list: Vec<Value> = wanted
                    .iter()
                    .map(|name| json!({"name": name, "devicePath": ""}))
                    .collect();
                let patch = json!({"status": {"volumesAttached": list}});
                let _ = self.api.patch_status(Kind::Node, "", name(&node), patch);
            }
        }
    }
}

fn place(attachment: &Value) -> Place {
    (
        text(attachment, "/spec/source/persistentVolumeName").to_owned(),
        text(attachment, "/spec/nodeName").to_owned(),
    )
}

fn is_attached(attachment: &Value) -> bool {
    attachment
        .pointer("/status/attached")
        .and_then(Value::as_bool)
        == Some(true)
}
