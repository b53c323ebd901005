//! A node of values: what a test says about it, and the verdict.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use podmon::cluster::node::Node;
use podmon::cluster::pod::{Phase, Pod};
use podmon::cri::{Running, RunningPod};
use podmon::domain::{DriverName, Incarnation, PodKey, PodUid, VolumeHandle, VolumeName};
use podmon::names::{Names, Profile};
use podmon::node::blocker::Blocker;
use podmon::node::detached::Detached;
use podmon::node::layout::{KUBELET, Layout, hash};
use podmon::node::mounts::Mount;
use podmon::node::requalify::{Situation, Verdict, requalify};
use podmon::node::sight::{
    BlockVolume, Identity, Kind, Loop, Owner, PodDirectory, PodVolume, Seen, Sight, Staged, Unseen,
};
use podmon::taint::{NO_SCHEDULE, Taint, UNREACHABLE};

pub const DRIVER: &str = "csi.example.com";

pub struct World {
    pub node: Node,
    pub recreated: bool,
    pub tainted_for: Duration,
    pub kubelet_had: Duration,
    pub stages: bool,
    names: Names,
    layout: Layout,
    pods: Seen<Vec<Pod>>,
    running: Seen<Running>,
    host: Sight,
    unstaged: BTreeSet<VolumeHandle>,
    pub detached: Seen<Vec<Detached>>,
}

pub fn blocked(blockers: &[Blocker], kind: &str) -> bool {
    blockers.iter().any(|blocker| blocker.kind() == kind)
}

impl World {
    /// A tainted node with this journal, on which nothing is wrong; pod `gone` was evacuated with volume `pv1`.
    pub fn new(journal: &str) -> Self {
        let driver = DriverName::from(DRIVER);
        let names = Names::new(Profile::Generic, driver.clone(), Some("example"));
        let mut world = Self {
            node: Node {
                name: "node-a".into(),
                uid: "n1".into(),
                version: "7".into(),
                ready: true,
                taints: Vec::new(),
                paused: false,
                journal: None,
                annotated_id: None,
                boot: "b".into(),
                volumes_in_use: Vec::new(),
            },
            recreated: false,
            tainted_for: Duration::from_secs(60),
            kubelet_had: Duration::from_secs(60),
            stages: true,
            names,
            layout: Layout::new(KUBELET.into(), Profile::Generic, driver, None),
            pods: Ok(Vec::new()),
            running: Ok(Running::default()),
            host: Sight {
                mounts: Ok(Vec::new()),
                pods: Ok(Vec::new()),
                staged: Ok(Vec::new()),
                block: Ok(Vec::new()),
                loops: Ok(Vec::new()),
            },
            unstaged: BTreeSet::new(),
            detached: Ok(Vec::new()),
        };
        world.tainted(true);
        world.journal(journal);
        world
    }

    pub fn verdict(&self) -> Verdict {
        requalify(&Situation {
            names: &self.names,
            layout: &self.layout,
            node: &self.node,
            recreated: self.recreated,
            tainted_for: self.tainted_for,
            kubelet_had: self.kubelet_had,
            pods: &self.pods,
            running: &self.running,
            host: &self.host,
            detached: &self.detached,
            stages: self.stages,
            unstaged: &self.unstaged,
        })
    }

    pub fn tainted(&mut self, tainted: bool) {
        let ours = self.names.taint.clone();
        self.node.taints.retain(|taint| taint.key != ours);
        if tainted {
            self.taint(&ours);
        }
    }

    pub fn unreachable(&mut self) {
        self.taint(UNREACHABLE);
    }

    fn taint(&mut self, key: &str) {
        self.node.taints.push(Taint {
            key: key.into(),
            value: None,
            effect: NO_SCHEDULE.into(),
            time_added: None,
        });
    }

    pub fn journal(&mut self, kind: &str) {
        let listed = r#""listed":{"n":"db/db-1","v":["pv2"]}"#;
        let volumes = r#""pv1":{"h":"handle-pv1","i":["id"],"va":""},"pv2":{"h":"handle-pv2","i":["id"],"va":""}"#;
        let write = |version: u32, phase: &str, node: &str, pods: &str, array: &str| {
            Some(format!(
                r#"{{"v":{version},"id":"e1","by":"c/1","phase":"{phase}","why":"NodeFailure","node":"{node}",{array}"pods":{{{pods}}},"vols":{{{volumes}}},"gone":["gone"]}}"#
            ))
        };
        self.node.journal = match kind {
            "absent" => None,
            "open" => write(1, "open", "n1", listed, ""),
            "closed" => write(1, "closed", "n1", "", ""),
            "unreadable" => Some("{".to_owned()),
            "newer" => write(2, "closed", "n1", "", ""),
            "foreign" => write(1, "closed", "n2", "", ""),
            "array lost" => write(1, "closed", "n1", "", r#""array":"lost","#),
            other => panic!("no journal is {other}"),
        };
    }

    pub fn pods_unknown(&mut self) {
        self.pods = Err(Unseen::new("pods", "timeout"));
    }

    pub fn runtime_down(&mut self) {
        self.running = Err(Unseen::new("container runtime", "connection refused"));
    }

    pub fn mounts_unknown(&mut self) {
        self.host.mounts = Err(Unseen::new("/proc/self/mountinfo", "malformed"));
    }

    pub fn staging_unseen(&mut self) {
        self.host.staged = Err(Unseen::new("plugins/kubernetes.io/csi", "not mounted"));
        self.host.block = Err(Unseen::new("volumeDevices", "not mounted"));
    }

    pub fn unstaged(&mut self, handle: &str) {
        self.unstaged.insert(handle.into());
        self.unstaged.insert("handle-pv2".into());
    }

    /// A protected pod that the API binds here, Ready, with its sandbox.
    pub fn bind(&mut self, uid: &str, name: &str) {
        self.run(uid, name);
        let Ok(pods) = &mut self.pods else { return };
        pods.push(Pod {
            incarnation: Incarnation {
                key: key(name),
                uid: uid.into(),
            },
            version: "1".into(),
            node: Some("node-a".into()),
            protected: true,
            phase: Phase::Running,
            ready: true,
            started: true,
            terminating: false,
            finalizers: Vec::new(),
            owner: None,
            mirror: false,
            crash_looping: false,
            volumes: Vec::new(),
            affinity: BTreeMap::new(),
        });
    }

    pub fn not_ready(&mut self, uid: &str) {
        for pod in self.pods.iter_mut().flatten() {
            pod.ready &= pod.incarnation.uid.as_str() != uid;
        }
    }

    /// Panics if the runtime is down.
    pub fn running_mut(&mut self) -> &mut Running {
        self.running.as_mut().unwrap()
    }

    fn running_pod(&mut self, uid: &str) -> Option<&mut RunningPod> {
        let running = self.running.as_mut().ok()?;
        Some(running.pods.entry(uid.into()).or_default())
    }

    pub fn run(&mut self, uid: &str, name: &str) {
        if let Some(pod) = self.running_pod(uid) {
            pod.key = Some(key(name));
            pod.sandboxes.push(format!("sandbox-of-{uid}"));
        }
    }

    pub fn container(&mut self, uid: &str, name: &str) {
        if let Some(pod) = self.running_pod(uid) {
            pod.add_container(name, "running");
        }
    }

    pub fn directory(&mut self, uid: &str) {
        self.pod_directory(uid);
    }

    fn pod_directory(&mut self, uid: &str) -> &mut PodDirectory {
        let pods = self.host.pods.as_mut().unwrap();
        let uid = PodUid::from(uid);
        let index = pods.iter().position(|pod| pod.uid == uid);
        let index = index.unwrap_or_else(|| {
            pods.push(PodDirectory {
                uid: uid.clone(),
                volumes: Ok(Vec::new()),
            });
            pods.len() - 1
        });
        &mut pods[index]
    }

    /// A volume of ours, mounted in a pod.
    pub fn mount(&mut self, uid: &str, volume: &str) {
        self.mount_of(uid, volume, Some(DRIVER));
    }

    pub fn mount_of(&mut self, uid: &str, volume: &str, driver: Option<&str>) {
        let target = self.target(uid, volume);
        let found = PodVolume {
            name: volume.into(),
            kind: Kind::Filesystem,
            inline: volume.starts_with("csi-"),
            identity: driver.map(|driver| identity(driver, volume)),
            target: target.clone(),
            present: true,
        };
        if let Ok(volumes) = &mut self.pod_directory(uid).volumes {
            volumes.push(found);
        }
        self.mounted_at(target);
    }

    fn target(&self, uid: &str, volume: &str) -> PathBuf {
        let volumes = self
            .layout
            .pod(&uid.into())
            .join("volumes/kubernetes.io~csi");
        volumes.join(volume).join("mount")
    }

    pub fn unmount(&mut self, uid: &str, volume: &str) {
        let target = self.target(uid, volume);
        self.host
            .mounts
            .as_mut()
            .unwrap()
            .retain(|m| m.point != target);
        let volumes = self.pod_directory(uid).volumes.as_mut().unwrap();
        volumes.retain(|found| found.name.as_str() != volume);
    }

    pub fn mounted_at(&mut self, point: impl AsRef<Path>) {
        let Ok(mounts) = &mut self.host.mounts else {
            return;
        };
        mounts.push(Mount {
            point: point.as_ref().to_owned(),
            root: "/".into(),
            device: (7, 1),
            kind: "ext4".into(),
            source: "/dev/loop1".into(),
            propagates: true,
        });
    }

    pub fn sub_path(&mut self, uid: &str, volume: &str) {
        let base = self.layout.pod(&uid.into()).join("volume-subpaths");
        self.mounted_at(base.join(volume).join("main/0"));
    }

    pub fn stage(&mut self, volume: &str) {
        let identity = identity(DRIVER, volume);
        let owner = hash(&identity.handle);
        let path = self.layout.staging().join(&owner).join("globalmount");
        self.mounted_at(&path);
        if let Ok(staged) = &mut self.host.staged {
            staged.push(Staged {
                path,
                owner: Owner::Hash(owner),
                identity: Some(identity),
            });
        } else {
            // Where it cannot be seen, it is not in the mount table either.
            self.staging_unseen();
        }
    }

    /// A raw block volume in a pod, with the kubelet's loop device on it.
    pub fn block(&mut self, uid: &str, volume: &str) {
        let base = self.layout.block();
        let published = base.join("publish").join(volume).join(uid);
        let mapped = base.join(volume).join("dev").join(uid);
        self.mounted_at(&published);
        self.mounted_at(&mapped);
        let pod = PodUid::from(uid);
        let link = self
            .layout
            .pod(&pod)
            .join("volumeDevices/kubernetes.io~csi");
        let found = PodVolume {
            name: volume.into(),
            kind: Kind::Block,
            inline: false,
            identity: None,
            target: link.join(volume),
            present: true,
        };
        if let Ok(volumes) = &mut self.pod_directory(uid).volumes {
            volumes.push(found);
        }
        if let Ok(loops) = &mut self.host.loops {
            loops.push(Loop {
                device: "loop7".into(),
                backing: mapped.clone(),
            });
        }
        if let Ok(block) = &mut self.host.block {
            block.push(BlockVolume {
                name: VolumeName::from(volume),
                identity: Some(identity(DRIVER, volume)),
                staging: None,
                published: [(pod.clone(), published)].into(),
                mapped: [(pod, mapped)].into(),
            });
        }
    }
}

fn identity(driver: &str, volume: &str) -> Identity {
    Identity {
        driver: driver.into(),
        handle: format!("handle-{volume}").into(),
    }
}

fn key(name: &str) -> PodKey {
    PodKey {
        namespace: "db".into(),
        name: name.into(),
    }
}
