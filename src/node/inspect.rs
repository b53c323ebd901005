//! What of evacuated incarnations is left on the host, and what podmon may clear away of it. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::blocker::{Blocker, Zombie};
use super::layout::{Layout, hash};
use super::mounts::Mount;
use super::requalify::Situation;
use super::sight::{BlockVolume, Identity, Kind, Owner, PodVolume, Sight, Staged};
use crate::domain::{PodUid, VolumeHandle, VolumeName};
use crate::journal::Journal;

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Findings {
    pub blockers: Vec<Blocker>,
    pub jobs: Vec<Job>,
    /// Incarnations that have no right to be here and of which something is.
    pub unclean: BTreeSet<PodUid>,
}

/// What to clear away of one volume, in this order: each target, then each staging path.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Job {
    pub volume: VolumeName,
    pub handle: VolumeHandle,
    pub targets: Vec<Target>,
    /// Empty while another pod of this node uses the volume.
    pub staging: Vec<PathBuf>,
    /// The driver's own mounts, to go after it unstaged the volume.
    pub private: Vec<PathBuf>,
}

/// A volume in one pod.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Target {
    pub pod: PodUid,
    pub kind: Kind,
    /// What NodeUnpublishVolume gets.
    pub path: PathBuf,
    /// Loop devices by which the kubelet holds it.
    pub loops: Vec<String>,
    /// Mounts made of it, which go first: sub-paths, and the kubelet's own of a block device.
    pub above: Vec<PathBuf>,
    /// The pod's link to a block device, which goes last.
    pub link: Option<PathBuf>,
}

/// Whose a volume is.
enum Whose {
    Ours(VolumeHandle),
    Foreign,
    Unknown,
}

/// Looks at everything that was read, for the incarnations that have no right to be here.
pub fn inspect(situation: &Situation, journal: Option<&Journal>) -> Findings {
    let mut blockers = Vec::new();
    let pods = match situation.pods {
        Ok(pods) => pods,
        Err(unseen) => {
            // Without them nobody's right to be here is known.
            blockers.push(Blocker::PodsUnknown(unseen.clone()));
            return Findings {
                blockers,
                ..Findings::default()
            };
        }
    };
    let listed = |uid: &PodUid| journal.is_some_and(|journal| journal.mentions(uid));
    let mut rightful = BTreeSet::new();
    for pod in pods {
        if !listed(&pod.incarnation.uid) {
            rightful.insert(pod.incarnation.uid.clone());
        } else if journal.is_some_and(|j| !j.is_open() || j.gone.contains(&pod.incarnation.uid)) {
            blockers.push(Blocker::StillBound(pod.incarnation.clone()));
        }
    }
    match situation.running {
        Err(unseen) => blockers.push(Blocker::RuntimeUnknown(unseen.clone())),
        Ok(running) => {
            let lives = pods.iter().any(|pod| pod.ready && !pod.mirror);
            if lives && !running.any() {
                blockers.push(Blocker::WrongRuntime);
            }
        }
    }
    match situation.detached {
        Err(unseen) => blockers.push(Blocker::Unseen(unseen.clone())),
        Ok(detached) => blockers.extend(detached.iter().map(|detached| Blocker::Detached {
            path: detached.path.clone(),
            source: detached.source.clone(),
        })),
    }
    let mut inspection = Inspection {
        situation,
        journal,
        host: situation.host,
        layout: situation.layout,
        mounts: situation.host.mounts.as_deref().unwrap_or_default(),
        rightful,
        alive: BTreeSet::new(),
        used: BTreeSet::new(),
        known: BTreeMap::new(),
        jobs: BTreeMap::new(),
        unclean: BTreeSet::new(),
        blockers,
    };
    inspection.runtime();
    inspection.learn();
    inspection.parts_unseen();
    inspection.pods();
    inspection.block();
    inspection.staged();
    inspection.finish()
}

struct Inspection<'a> {
    situation: &'a Situation<'a>,
    journal: Option<&'a Journal>,
    host: &'a Sight,
    layout: &'a Layout,
    mounts: &'a [Mount],
    rightful: BTreeSet<PodUid>,
    /// Incarnations of which something runs, rightful or not.
    alive: BTreeSet<PodUid>,
    /// Volumes that a pod uses which is rightful, or may be listed and not yet released.
    used: BTreeSet<VolumeName>,
    /// Our volumes, by every sign of them.
    known: BTreeMap<VolumeName, VolumeHandle>,
    jobs: BTreeMap<VolumeHandle, Job>,
    unclean: BTreeSet<PodUid>,
    blockers: Vec<Blocker>,
}

impl<'a> Inspection<'a> {
    /// An incarnation that has no right to be here. A pod from a file on the node has it of itself: the API shows
    /// only its mirror, under another UID, and it can have no PersistentVolume.
    fn suspect(&self, uid: &PodUid) -> bool {
        if self.rightful.contains(uid) {
            return false;
        }
        let running = self.situation.running.as_ref().ok();
        let fixed = running.is_some_and(|r| r.pods.get(uid).is_some_and(|pod| pod.fixed));
        self.evacuated(uid) || !fixed
    }

    fn evacuated(&self, uid: &PodUid) -> bool {
        self.journal.is_some_and(|journal| journal.mentions(uid))
    }

    /// podmon may touch it: while the controller is at work only what it has released.
    fn touchable(&self, uid: &PodUid) -> bool {
        match self.journal {
            Some(journal) if journal.is_open() => journal.gone.contains(uid),
            _ => true,
        }
    }

    fn runtime(&mut self) {
        let Ok(running) = self.situation.running else {
            return;
        };
        for (uid, pod) in &running.pods {
            if pod.sandboxes.is_empty() && pod.containers.is_empty() {
                continue;
            }
            self.alive.insert(uid.clone());
            if !self.suspect(uid) {
                continue;
            }
            self.unclean.insert(uid.clone());
            let zombie = Zombie {
                uid: uid.clone(),
                key: pod.key.clone(),
            };
            if !pod.sandboxes.is_empty() {
                self.blockers.push(Blocker::Sandbox(zombie.clone()));
            }
            for container in &pod.containers {
                self.blockers.push(Blocker::Container {
                    pod: zombie.clone(),
                    container: container.clone(),
                });
            }
        }
    }

    /// Collects our volumes, and those in use by pods that may use them.
    fn learn(&mut self) {
        if let Some(journal) = self.journal {
            for (name, volume) in &journal.volumes {
                self.known.insert(name.clone(), volume.handle.clone());
            }
            if journal.is_open() {
                let entries = journal.pods.iter();
                let held = entries.filter(|(uid, _)| !journal.gone.contains(*uid));
                self.used
                    .extend(held.flat_map(|(_, entry)| entry.volumes.iter().cloned()));
            }
        }
        for pod in self.host.pods.iter().flatten() {
            for volume in pod.volumes.iter().flatten() {
                let whose = self.whose(&volume.name, volume.identity.as_ref());
                if let (Whose::Ours(handle), false) = (whose, volume.inline) {
                    self.known.insert(volume.name.clone(), handle);
                }
                let holds = self.rightful.contains(&pod.uid) || self.alive.contains(&pod.uid);
                if holds && volume.present {
                    self.used.insert(volume.name.clone());
                }
            }
        }
        for volume in self.host.block.iter().flatten() {
            if let Whose::Ours(handle) = self.whose(&volume.name, volume.identity.as_ref()) {
                self.known.insert(volume.name.clone(), handle);
            }
            let mut pods = volume.published.keys().chain(volume.mapped.keys());
            if pods.any(|uid| self.rightful.contains(uid) || self.alive.contains(uid)) {
                self.used.insert(volume.name.clone());
            }
        }
    }

    fn whose(&self, name: &VolumeName, identity: Option<&Identity>) -> Whose {
        let noted = || {
            let blocks = self.host.block.iter().flatten();
            let mut same = blocks.filter(|block| block.name == *name);
            same.find_map(|block| block.identity.as_ref())
        };
        match identity.or_else(noted) {
            Some(identity) if identity.driver == *self.layout.driver() => {
                Whose::Ours(identity.handle.clone())
            }
            Some(_) => Whose::Foreign,
            None => {
                let listed = self.journal.and_then(|journal| journal.volumes.get(name));
                listed.map_or(Whose::Unknown, |volume| Whose::Ours(volume.handle.clone()))
            }
        }
    }

    /// Parts of the host that must be seen in any case.
    fn parts_unseen(&mut self) {
        let unseen = [
            self.host.mounts.as_ref().err(),
            self.host.pods.as_ref().err(),
        ];
        let mut last = None;
        for unseen in unseen.into_iter().flatten() {
            if last != Some(unseen) {
                self.blockers.push(Blocker::Unseen(unseen.clone()));
            }
            last = Some(unseen);
        }
    }

    fn pods(&mut self) {
        let host = self.host;
        for pod in host.pods.iter().flatten() {
            if !self.suspect(&pod.uid) {
                continue;
            }
            let mut left = false;
            match &pod.volumes {
                Err(unseen) => self.blockers.push(Blocker::Unseen(unseen.clone())),
                Ok(volumes) => {
                    for volume in volumes.iter().filter(|volume| volume.present) {
                        left |= self.pod_volume(&pod.uid, volume);
                    }
                }
            }
            if left {
                self.unclean.insert(pod.uid.clone());
            } else if self.situation.kubelet_had < super::requalify::KUBELET_FIRST {
                self.blockers.push(Blocker::PodDirectory(pod.uid.clone()));
            }
        }
        self.mounts_in_pods();
    }

    /// Whether the volume is one of ours, or may be.
    fn pod_volume(&mut self, uid: &PodUid, volume: &PodVolume) -> bool {
        let (pod, name) = (uid.clone(), volume.name.clone());
        match self.whose(&volume.name, volume.identity.as_ref()) {
            Whose::Foreign => false,
            Whose::Unknown => {
                let volume = name;
                self.blockers.push(Blocker::VolumeUnknown { pod, volume });
                true
            }
            Whose::Ours(handle) => {
                let target = match volume.kind {
                    Kind::Filesystem => Target {
                        pod: uid.clone(),
                        kind: Kind::Filesystem,
                        path: volume.target.clone(),
                        loops: Vec::new(),
                        above: self.sub_paths(uid, &volume.name),
                        link: None,
                    },
                    Kind::Block => self.block_target(uid, &volume.name),
                };
                self.blockers.push(Blocker::VolumePresent {
                    pod,
                    volume: volume.name.clone(),
                });
                self.target(&volume.name, &handle, target);
                true
            }
        }
    }

    /// Mounts of sub-paths of the volume, the innermost first.
    fn sub_paths(&self, uid: &PodUid, volume: &VolumeName) -> Vec<PathBuf> {
        let base = self
            .layout
            .pod(uid)
            .join("volume-subpaths")
            .join(volume.as_str());
        self.mounts_below(&base)
    }

    fn mounts_below(&self, base: &Path) -> Vec<PathBuf> {
        let below = self.mounts.iter().filter(|m| m.point.starts_with(base));
        let mut points: Vec<_> = below.map(|mount| mount.point.clone()).collect();
        points.sort();
        points.reverse();
        points
    }

    fn is_mounted(&self, path: &Path) -> bool {
        self.mounts
            .iter()
            .any(|mount| mount.point.starts_with(path))
    }

    /// Mounts below the directory of a pod that had a volume of ours, of whatever is not memory.
    fn mounts_in_pods(&mut self) {
        let pods = self.layout.pods();
        for mount in self.mounts {
            let Ok(rest) = mount.point.strip_prefix(&pods) else {
                continue;
            };
            let mut parts = rest.iter();
            let Some(uid) = parts
                .next()
                .and_then(|part| part.to_str())
                .map(PodUid::from)
            else {
                continue;
            };
            let concerned = self.evacuated(&uid) || self.unclean.contains(&uid);
            if parts.next().is_none() || !concerned || !self.suspect(&uid) {
                continue;
            }
            if mount.kind != "tmpfs" {
                self.unclean.insert(uid);
                let path = mount.point.clone();
                self.blockers.push(Blocker::Mounted { path });
            }
        }
    }

    fn block(&mut self) {
        let host = self.host;
        for volume in host.block.iter().flatten() {
            let whose = self.whose(&volume.name, volume.identity.as_ref());
            if matches!(whose, Whose::Foreign) {
                continue;
            }
            let pods: BTreeSet<_> = volume
                .published
                .keys()
                .chain(volume.mapped.keys())
                .collect();
            for uid in pods {
                if !self.suspect(uid) {
                    continue;
                }
                let paths = [volume.published.get(uid), volume.mapped.get(uid)];
                let loops = self.loops(volume, uid);
                let held: Vec<_> = paths
                    .into_iter()
                    .flatten()
                    .filter(|path| self.evacuated(uid) || self.is_mounted(path))
                    .cloned()
                    .collect();
                if held.is_empty() && loops.is_empty() {
                    continue;
                }
                self.unclean.insert(uid.clone());
                let Whose::Ours(handle) = &whose else {
                    self.blockers.push(Blocker::VolumeUnknown {
                        pod: uid.clone(),
                        volume: volume.name.clone(),
                    });
                    continue;
                };
                let name = || volume.name.clone();
                self.blockers.extend(held.into_iter().map(|path| {
                    let volume = name();
                    Blocker::BlockDevice { volume, path }
                }));
                self.blockers.extend(loops.into_iter().map(|device| {
                    let volume = name();
                    Blocker::LoopDevice { volume, device }
                }));
                let target = self.block_target(uid, &volume.name);
                self.target(&volume.name, handle, target);
            }
        }
        let any = self.host.block.iter().flatten().next().is_some();
        if let (true, Err(unseen)) = (any, &self.host.loops) {
            self.blockers.push(Blocker::Unseen(unseen.clone()));
        }
    }

    /// Loop devices on this pod's share of the volume.
    fn loops(&self, volume: &BlockVolume, uid: &PodUid) -> Vec<String> {
        let Some(path) = volume.mapped.get(uid) else {
            return Vec::new();
        };
        let loops = self.host.loops.iter().flatten();
        let on_it = loops.filter(|held| held.backing == *path);
        on_it.map(|held| held.device.clone()).collect()
    }

    fn block_target(&self, uid: &PodUid, volume: &VolumeName) -> Target {
        let base = self.layout.block();
        let found = self.host.block.iter().flatten().find(|v| v.name == *volume);
        let devices = base.join(volume.as_str()).join("dev").join(uid.as_str());
        let link = self.layout.pod(uid).join("volumeDevices/kubernetes.io~csi");
        Target {
            pod: uid.clone(),
            kind: Kind::Block,
            path: base
                .join("publish")
                .join(volume.as_str())
                .join(uid.as_str()),
            loops: found
                .map(|volume| self.loops(volume, uid))
                .unwrap_or_default(),
            above: self.mounts_below(&devices),
            link: Some(link.join(volume.as_str())),
        }
    }

    fn staged(&mut self) {
        let known = self.known.clone();
        let mut covered: Vec<PathBuf> = Vec::new();
        match &self.host.staged {
            Ok(staged) => {
                for staged in staged {
                    covered.push(staged.path.clone());
                    self.staged_filesystem(staged, &known);
                }
            }
            Err(unseen) => self.staging_unseen(unseen, &known),
        }
        for volume in self.host.block.iter().flatten() {
            let (Some(path), Some(handle)) = (&volume.staging, known.get(&volume.name)) else {
                continue;
            };
            covered.push(path.clone());
            self.staged_at(&volume.name, handle, path);
        }
        for (name, handle) in &known {
            self.shown_elsewhere(name, handle, &covered);
        }
    }

    fn staged_filesystem(&mut self, staged: &Staged, known: &BTreeMap<VolumeName, VolumeHandle>) {
        let noted = match (&staged.identity, &staged.owner) {
            (Some(identity), _) if identity.driver != *self.layout.driver() => return,
            (Some(identity), _) => Some(identity.handle.clone()),
            (None, Owner::Hash(found)) => known
                .values()
                .find(|handle| hash(handle) == *found)
                .cloned(),
            (None, Owner::Volume(name)) => known.get(name).cloned(),
        };
        let named = |handle: &VolumeHandle| {
            let mut same = known.iter().filter(|(_, known)| *known == handle);
            same.next().map(|(name, _)| name.clone())
        };
        let directory = || match &staged.owner {
            Owner::Hash(text) => VolumeName::from(text.as_str()),
            Owner::Volume(name) => name.clone(),
        };
        match noted {
            Some(handle) => {
                let name = named(&handle).unwrap_or_else(directory);
                self.staged_at(&name, &handle, &staged.path);
            }
            // The directory of our driver, but of which volume is not told: nothing can be unstaged by it.
            None if self.is_mounted(&staged.path) => self.blockers.push(Blocker::Staged {
                volume: directory(),
                path: staged.path.clone(),
            }),
            None => {}
        }
    }

    fn staged_at(&mut self, name: &VolumeName, handle: &VolumeHandle, path: &Path) {
        let evacuated = self.journal.is_some_and(|journal| {
            journal
                .volumes
                .values()
                .any(|volume| volume.handle == *handle)
        });
        let waits = evacuated && self.situation.stages && !self.situation.unstaged.contains(handle);
        if self.in_use(handle) || !(self.is_mounted(path) || waits) {
            return;
        }
        self.blockers.push(Blocker::Staged {
            volume: name.clone(),
            path: path.to_owned(),
        });
        self.job(name, handle).staging.push(path.to_owned());
    }

    /// Where we cannot see, the driver's word counts.
    fn staging_unseen(
        &mut self,
        unseen: &super::sight::Unseen,
        known: &BTreeMap<VolumeName, VolumeHandle>,
    ) {
        if !self.situation.stages {
            return;
        }
        for (name, handle) in known {
            if self.in_use(handle) || self.situation.unstaged.contains(handle) {
                continue;
            }
            self.blockers.push(Blocker::StagingUnseen {
                volume: name.clone(),
                unseen: unseen.clone(),
            });
            let paths = self.layout.staging_paths(name, handle);
            self.job(name, handle).staging.extend(paths);
        }
    }

    /// Mounts of the volume that neither a pod nor the kubelet's staging directories account for.
    fn shown_elsewhere(&mut self, name: &VolumeName, handle: &VolumeHandle, covered: &[PathBuf]) {
        if self.in_use(handle) {
            return;
        }
        let private = self.layout.private_mounts(handle);
        let formulas = self.layout.staging_paths(name, handle);
        for mount in self.mounts {
            let point = &mount.point;
            let by_formula = private.contains(point) || formulas.contains(point);
            let seen = covered.iter().any(|path| point.starts_with(path))
                || point.starts_with(self.layout.block());
            if seen || !(by_formula || self.layout.shows(point, name, handle)) {
                continue;
            }
            self.blockers.push(Blocker::Mounted {
                path: point.clone(),
            });
            if formulas.contains(point) && self.situation.stages {
                self.job(name, handle).staging.push(point.clone());
            }
            if private.contains(point) {
                self.job(name, handle).private.push(point.clone());
            }
        }
    }

    fn in_use(&self, handle: &VolumeHandle) -> bool {
        let mut same = self.known.iter().filter(|(_, known)| *known == handle);
        same.any(|(name, _)| self.used.contains(name))
    }

    fn target(&mut self, name: &VolumeName, handle: &VolumeHandle, target: Target) {
        if !self.touchable(&target.pod) || self.alive.contains(&target.pod) {
            return;
        }
        let targets = &mut self.job(name, handle).targets;
        if !targets.iter().any(|known| known.path == target.path) {
            targets.push(target);
        }
    }

    fn job(&mut self, name: &VolumeName, handle: &VolumeHandle) -> &mut Job {
        self.jobs.entry(handle.clone()).or_insert_with(|| Job {
            volume: name.clone(),
            handle: handle.clone(),
            targets: Vec::new(),
            staging: Vec::new(),
            private: Vec::new(),
        })
    }

    fn finish(mut self) -> Findings {
        // What runs is not known, so neither is what may be taken away from it.
        let blind = self.situation.running.is_err() || self.host.mounts.is_err();
        let mut jobs: Vec<_> = self.jobs.into_values().collect();
        if blind {
            jobs.clear();
        }
        for job in &mut jobs {
            job.staging.sort();
            job.staging.dedup();
        }
        jobs.retain(|j| !(j.targets.is_empty() && j.staging.is_empty() && j.private.is_empty()));
        let mut seen = std::collections::HashSet::new();
        self.blockers.retain(|blocker| seen.insert(blocker.clone()));
        Findings {
            blockers: self.blockers,
            jobs,
            unclean: self.unclean,
        }
    }
}
