//! The API server, the array and Kubernetes' own controllers as plain data: what the real ones do, without I/O or
//! time.

use std::collections::{BTreeMap, BTreeSet};

use podmon::clock::Moment;
use podmon::cluster::attachment::Attachment;
use podmon::cluster::node::Node;
use podmon::cluster::pod::{Owner, Phase, Pod};
use podmon::cluster::survey::{OurVolume, Problem, Survey, Uses};
use podmon::cluster::{Deleted, NodePatch};
use podmon::controller::step::Refused;
use podmon::domain::{
    AttachmentName, AttachmentUid, Incarnation, NodeId, NodeName, PodUid, ResourceVersion,
    VolumeHandle, VolumeName,
};
use podmon::journal::{Found, Journal};
use podmon::names::{Names, Profile};
use podmon::taint::{self, Taint};

/// The names that every double goes by.
pub fn names() -> Names {
    Names::new(Profile::Generic, "csi.example.com".into(), None)
}

/// Everything that stands in the API or in the array.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Cluster {
    pub nodes: BTreeMap<NodeName, Node>,
    pub pods: BTreeMap<PodUid, Pod>,
    pub uses: BTreeMap<PodUid, Uses>,
    pub volumes: BTreeMap<VolumeName, OurVolume>,
    pub attachments: BTreeMap<AttachmentUid, Attachment>,
    /// CSINode: the driver's id of each node.
    pub registered: BTreeMap<NodeName, NodeId>,
    /// Whom the array lets at a volume.
    pub access: BTreeSet<(VolumeHandle, NodeId)>,
    version: u32,
    serial: u32,
}

pub fn node_id(node: &NodeName) -> NodeId {
    format!("id-{node}").into()
}

pub fn handle(volume: &str) -> VolumeHandle {
    format!("handle-{volume}").into()
}

/// A volume's entry in `status.volumesInUse`.
fn in_use(handle: &VolumeHandle) -> String {
    format!("kubernetes.io/csi/{}^{handle}", names().driver)
}

fn plain(key: &str) -> Taint {
    Taint {
        key: key.to_owned(),
        value: None,
        effect: taint::NO_SCHEDULE.to_owned(),
        time_added: None,
    }
}

impl Cluster {
    // --- what is there -------------------------------------------------------------------------------------------

    pub fn add_node(&mut self, name: &str) {
        let serial = self.serial();
        let version = self.version();
        let name = NodeName::from(name);
        self.registered.insert(name.clone(), node_id(&name));
        let node = Node {
            uid: format!("node-{name}-{serial}").into(),
            name: name.clone(),
            version,
            ready: true,
            taints: Vec::new(),
            paused: false,
            journal: None,
            annotated_id: None,
            boot: "boot".into(),
            volumes_in_use: Vec::new(),
        };
        self.nodes.insert(name, node);
    }

    /// A volume of ours that one node at a time may use.
    pub fn add_volume(&mut self, name: &str) {
        let volume = OurVolume {
            handle: handle(name),
            many_writers: false,
            secret: None,
        };
        self.volumes.insert(name.into(), volume);
    }

    /// A protected pod that is bound to the node and not started yet; its UID.
    pub fn bind(&mut self, name: &str, node: &str, volumes: &[&str]) -> PodUid {
        let uid = PodUid::from(format!("{name}-{}", self.serial()));
        let key = format!("ns/{name}").parse().expect("a pod's key");
        let incarnation = Incarnation {
            key,
            uid: uid.clone(),
        };
        let pod = Pod {
            incarnation,
            version: self.version(),
            node: Some(node.into()),
            protected: true,
            phase: Phase::Pending,
            ready: false,
            started: false,
            terminating: false,
            finalizers: Vec::new(),
            owner: Some(Owner {
                kind: "StatefulSet".into(),
                name: name.into(),
            }),
            mirror: false,
            crash_looping: false,
            volumes: Vec::new(),
            affinity: BTreeMap::new(),
        };
        self.pods.insert(uid.clone(), pod);
        let uses = Uses {
            ours: volumes.iter().map(|name| VolumeName::from(*name)).collect(),
            problem: None,
        };
        self.uses.insert(uid.clone(), uses);
        uid
    }

    /// The same, attached, started and ready.
    pub fn run(&mut self, name: &str, node: &str, volumes: &[&str]) -> PodUid {
        let uid = self.bind(name, node, volumes);
        for volume in volumes {
            if self
                .attachments_on(&(*volume).into(), &node.into())
                .is_empty()
            {
                let attachment = self.attach(&(*volume).into(), &node.into());
                self.publish(&attachment);
                self.note_attached(&attachment);
            }
            let in_use = in_use(&handle(volume));
            self.edit_node(node, |node| node.volumes_in_use.push(in_use));
        }
        self.start(&uid);
        uid
    }

    pub fn start(&mut self, uid: &PodUid) {
        self.edit_pod(uid, |pod| {
            pod.phase = Phase::Running;
            pod.ready = true;
            pod.started = true;
        });
    }

    pub fn edit_pod(&mut self, uid: &PodUid, edit: impl FnOnce(&mut Pod)) {
        let version = self.version();
        let pod = self.pods.get_mut(uid).expect("a pod to edit");
        edit(pod);
        pod.version = version;
    }

    pub fn edit_node(&mut self, name: &str, edit: impl FnOnce(&mut Node)) {
        let version = self.version();
        let node = self
            .nodes
            .get_mut(&NodeName::from(name))
            .expect("a node to edit");
        edit(node);
        node.version = version;
    }

    /// The node lifecycle controller has lost the node: evidence, and its pods are no longer ready.
    pub fn lose_node(&mut self, name: &str) {
        self.edit_node(name, |node| {
            node.ready = false;
            node.taints.push(plain(taint::UNREACHABLE));
        });
        let here: Vec<PodUid> = self.pods_on(&name.into()).cloned().collect();
        for uid in here {
            self.edit_pod(&uid, |pod| pod.ready = false);
        }
    }

    pub fn heal_node(&mut self, name: &str) {
        self.edit_node(name, |node| {
            node.ready = true;
            node.taints.retain(|taint| taint.key != taint::UNREACHABLE);
        });
    }

    pub fn delete_node(&mut self, name: &str) {
        self.nodes.remove(&NodeName::from(name));
    }

    /// Any hand but podmon's: without a look at finalizers.
    pub fn remove_pod(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
        self.uses.remove(uid);
    }

    pub fn object_to(&mut self, uid: &PodUid, problem: Problem) {
        self.uses.get_mut(uid).expect("a pod").problem = Some(problem);
    }

    // --- what is read --------------------------------------------------------------------------------------------

    pub fn node(&self, name: &str) -> &Node {
        &self.nodes[&NodeName::from(name)]
    }

    pub fn journal(&self, name: &str) -> Option<Journal> {
        match self.nodes.get(&NodeName::from(name))?.read_journal() {
            Found::Journal(journal) => Some(journal),
            Found::Absent | Found::Unreadable(_) => None,
        }
    }

    pub fn tainted(&self, name: &str) -> bool {
        self.nodes
            .get(&NodeName::from(name))
            .is_some_and(|node| node.tainted(&names()))
    }

    pub fn pods_on(&self, node: &NodeName) -> impl Iterator<Item = &PodUid> {
        let bound = self
            .pods
            .iter()
            .filter(move |(_, pod)| pod.node.as_ref() == Some(node));
        bound.map(|(uid, _)| uid)
    }

    /// Pods bound to the node, finished ones apart, that use the volume.
    pub fn users_on(&self, volume: &VolumeName, node: &NodeName) -> Vec<&PodUid> {
        let here = self.pods_on(node).filter(|uid| !self.pods[*uid].finished());
        here.filter(|uid| self.uses[*uid].ours.contains(volume))
            .collect()
    }

    pub fn attachments_on(&self, volume: &VolumeName, node: &NodeName) -> Vec<&Attachment> {
        let all = self.attachments.values();
        all.filter(|a| a.volume == *volume && a.node == *node)
            .collect()
    }

    pub fn can_write(&self, volume: &str, node: &str) -> bool {
        self.access
            .contains(&(handle(volume), node_id(&node.into())))
    }

    pub fn survey(&self, name: &NodeName, at: Moment) -> Survey {
        self.survey_with(name, self.nodes.get(name).cloned(), at)
    }

    /// The rest of a survey whose Node was read earlier.
    pub fn survey_with(&self, name: &NodeName, node: Option<Node>, at: Moment) -> Survey {
        let pods: BTreeMap<PodUid, Pod> = self
            .pods_on(name)
            .map(|uid| (uid.clone(), self.pods[uid].clone()))
            .collect();
        let live = pods.iter().filter(|(_, pod)| !pod.finished());
        let uses: BTreeMap<PodUid, Uses> = live
            .map(|(uid, _)| (uid.clone(), self.uses[uid].clone()))
            .collect();
        let named = uses.values().flat_map(|uses| &uses.ours);
        Survey {
            at,
            node,
            volumes: named
                .map(|name| (name.clone(), self.volumes[name].clone()))
                .collect(),
            attachments: self
                .attachments
                .iter()
                .filter(|(_, a)| a.node == *name)
                .map(|(uid, a)| (uid.clone(), a.clone()))
                .collect(),
            registered_id: self.registered.get(name).cloned(),
            pods,
            uses,
        }
    }

    // --- what podmon asks for ------------------------------------------------------------------------------------

    pub fn patch(&mut self, patch: &NodePatch) -> Result<Node, Refused> {
        let version = self.version();
        let node = self
            .nodes
            .get_mut(&patch.node)
            .ok_or_else(|| Refused::Failed("not found".into()))?;
        if node.version != patch.version {
            return Err(Refused::Conflict);
        }
        if let Some(taints) = &patch.taints {
            node.taints.clone_from(taints);
        }
        if let Some(journal) = &patch.journal {
            node.journal = journal.as_ref().map(Journal::write);
        }
        node.version = version;
        Ok(node.clone())
    }

    pub fn forget_in_use(
        &mut self,
        name: &NodeName,
        version: &ResourceVersion,
        volumes: &[String],
    ) -> Result<Node, Refused> {
        let next = self.version();
        let node = self
            .nodes
            .get_mut(name)
            .ok_or_else(|| Refused::Failed("not found".into()))?;
        if node.version != *version {
            return Err(Refused::Conflict);
        }
        node.volumes_in_use = volumes.to_vec();
        node.version = next;
        Ok(node.clone())
    }

    pub fn delete_pod(
        &mut self,
        pod: &Incarnation,
        version: Option<&ResourceVersion>,
    ) -> Result<Deleted, Refused> {
        let Some(found) = self.pods.get_mut(&pod.uid) else {
            return Ok(Deleted::Gone);
        };
        if version.is_some_and(|version| found.version != *version) {
            return Err(Refused::Conflict);
        }
        if !found.finalizers.is_empty() {
            found.terminating = true;
            return Ok(Deleted::Marked);
        }
        self.remove_pod(&pod.uid);
        Ok(Deleted::Gone)
    }

    /// The attacher's finalizer stands on every attachment until it has unpublished.
    pub fn delete_attachment(&mut self, uid: &AttachmentUid) -> Deleted {
        match self.attachments.get_mut(uid) {
            Some(attachment) => {
                attachment.deleting = true;
                Deleted::Marked
            }
            None => Deleted::Gone,
        }
    }

    pub fn unpublish(&mut self, handle: &VolumeHandle, node: &NodeId) {
        self.access.remove(&(handle.clone(), node.clone()));
    }

    // --- what Kubernetes does ------------------------------------------------------------------------------------

    /// The attach-detach controller makes an attachment; its name is the same each time.
    pub fn attach(&mut self, volume: &VolumeName, node: &NodeName) -> AttachmentUid {
        let uid = AttachmentUid::from(format!("va-{volume}-{node}-{}", self.serial()));
        let attachment = Attachment {
            name: AttachmentName::from(format!("csi-{volume}-{node}")),
            uid: uid.clone(),
            driver: names().driver,
            volume: volume.clone(),
            node: node.clone(),
            attached: false,
            deleting: false,
            node_id: None,
        };
        self.attachments.insert(uid.clone(), attachment);
        uid
    }

    /// What the attach-detach controller would do at its next tick: for each, an attachment to make, or to delete.
    pub fn attach_detach(&self) -> (Vec<(VolumeName, NodeName)>, Vec<AttachmentUid>) {
        let mut make = Vec::new();
        for (uid, pod) in &self.pods {
            let Some(node) = pod.node.as_ref().filter(|_| !pod.finished()) else {
                continue;
            };
            for volume in &self.uses[uid].ours {
                let shared = self.volumes[volume].many_writers;
                let elsewhere = self
                    .attachments
                    .values()
                    .any(|a| a.volume == *volume && (a.node == *node || !shared));
                let wanted = (volume.clone(), node.clone());
                if !elsewhere && !make.contains(&wanted) {
                    make.push(wanted);
                }
            }
        }
        let used = |attachment: &Attachment| {
            let Some(node) = self.nodes.get(&attachment.node) else {
                return false;
            };
            let name = in_use(&self.volumes[&attachment.volume].handle);
            node.volumes_in_use.contains(&name)
        };
        let idle = self
            .attachments
            .values()
            .filter(|a| !a.deleting && self.users_on(&a.volume, &a.node).is_empty() && !used(a));
        (make, idle.map(|a| a.uid.clone()).collect())
    }

    /// ControllerPublishVolume through this attachment takes effect at the array.
    pub fn publish(&mut self, uid: &AttachmentUid) {
        let attachment = &self.attachments[uid];
        let handle = self.volumes[&attachment.volume].handle.clone();
        self.access.insert((handle, node_id(&attachment.node)));
    }

    /// The attacher notes that it published.
    pub fn note_attached(&mut self, uid: &AttachmentUid) {
        let attachment = self.attachments.get_mut(uid).expect("an attachment");
        attachment.attached = true;
        attachment.node_id = Some(node_id(&attachment.node));
    }

    /// The attacher unpublishes a deleted attachment and takes its finalizer off.
    pub fn detach(&mut self, uid: &AttachmentUid) {
        if let Some(attachment) = self.attachments.remove(uid) {
            let handle = self.volumes[&attachment.volume].handle.clone();
            self.unpublish(&handle, &node_id(&attachment.node));
        }
    }

    fn version(&mut self) -> ResourceVersion {
        self.version += 1;
        self.version.to_string().into()
    }

    fn serial(&mut self) -> u32 {
        self.serial += 1;
        self.serial
    }
}
