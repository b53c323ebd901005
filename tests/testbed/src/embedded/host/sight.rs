//! The machine, as podmon's node mode sees and changes it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::FutureExt;
use podmon::cri::{Running, RunningPod};
use podmon::domain::{BootId, PodKey, VolumeHandle};
use podmon::names::Profile;
use podmon::node::clear::{ClearError, Step};
use podmon::node::host::Host as Seam;
use podmon::node::layout::{KUBELET, Layout, hash};
use podmon::node::mounts::Mount;
use podmon::node::sight::{Identity, Kind, Owner, PodDirectory, PodVolume, Sight, Staged, Unseen};

use super::{Host, State};
use crate::storage::driver::NAME;
use crate::storage::name::VolumeId;

/// Ways in which the machine may hide the truth from podmon, to see whether the judges notice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blindness {
    /// The runtime's silence reads as "nothing runs", and so does what runs.
    pub runtime: bool,
    /// No directory and no mount shows.
    pub disk: bool,
}

impl Host {
    /// Where the kubelet of the embedded machines keeps things.
    pub fn layout() -> Layout {
        Layout::new(KUBELET.into(), Profile::Generic, NAME.into(), None)
    }

    /// The seam of node mode.
    pub fn seam(&self, blindness: Blindness) -> Seam {
        let (look, running, clear, pulse, boot) = (
            self.clone(),
            self.clone(),
            self.clone(),
            self.clone(),
            self.clone(),
        );
        Seam {
            look: Arc::new(move || futures::future::ready(sight(&look.state(), blindness)).boxed()),
            running: Arc::new(move || {
                futures::future::ready(runtimes(&running.state(), blindness)).boxed()
            }),
            clear: Arc::new(move |step| futures::future::ready(clear.clear(step)).boxed()),
            // Only asked for when the operator's flags allow what the embedded machines do not model.
            closed: Arc::new(|_| {
                futures::future::ready(Err(not_modelled("block devices"))).boxed()
            }),
            stop: Arc::new(|_| {
                futures::future::ready(Err(not_modelled("stopping a container"))).boxed()
            }),
            pulse: Arc::new(move || pulse.state().pulse),
            boot: Arc::new(move || Some(BootId::from(boot.state().boot_id()))),
        }
    }

    fn clear(&self, step: Step) -> Result<(), ClearError> {
        let mut state = self.state();
        let failed = |why: &str| {
            Err(ClearError::Failed {
                step: step.clone(),
                why: why.to_owned(),
            })
        };
        let done = match &step {
            Step::Unmount(path) | Step::UnmountLazily(path) => state.unmount(path),
            Step::Remove(path) => state.remove(path),
            Step::FreeLoop(_) => Err("the embedded machines have no loop devices".to_owned()),
        };
        done.or_else(|why| failed(&why))
    }
}

fn not_modelled(what: &str) -> Unseen {
    Unseen::new(what, "not modelled by the embedded machines")
}

pub(super) fn staging(handle: &VolumeId) -> PathBuf {
    let hash = hash(&VolumeHandle::from(handle.as_str()));
    Host::layout().staging().join(hash).join("globalmount")
}

fn target(uid: &str, volume: &str) -> PathBuf {
    Host::layout()
        .pod(&uid.into())
        .join("volumes/kubernetes.io~csi")
        .join(volume)
        .join("mount")
}

impl State {
    /// Unmounts what is mounted at a path; fine if nothing is.
    pub(super) fn unmount(&mut self, path: &Path) -> Result<(), String> {
        for (uid, pod) in &mut self.pods {
            let found = pod
                .published
                .keys()
                .find(|volume| target(uid, volume) == path)
                .cloned();
            if let Some(volume) = found {
                if pod.running {
                    return Err("device or resource busy".to_owned());
                }
                pod.published.remove(&volume);
            }
        }
        let staged = self
            .staged
            .keys()
            .find(|handle| staging(handle) == path)
            .cloned();
        if let Some(handle) = staged {
            let mut published = self.pods.values().flat_map(|pod| pod.published.values());
            if published.any(|mounted| mounted.handle == handle) {
                return Err("device or resource busy".to_owned());
            }
            self.staged.remove(&handle);
        }
        Ok(())
    }

    /// Removes an empty directory.
    fn remove(&mut self, path: &Path) -> Result<(), String> {
        for (uid, pod) in &mut self.pods {
            let found = pod
                .targets
                .keys()
                .find(|volume| target(uid, volume) == path)
                .cloned();
            if let Some(volume) = found {
                if pod.published.contains_key(&volume) {
                    return Err("device or resource busy".to_owned());
                }
                pod.targets.remove(&volume);
            }
        }
        Ok(())
    }
}

fn mount(point: PathBuf, index: usize) -> Mount {
    Mount {
        root: PathBuf::from("/"),
        device: (7, index as u32),
        kind: "ext4".to_owned(),
        source: format!("/dev/loop{index}"),
        propagates: true,
        point,
    }
}

fn sight(state: &State, blindness: Blindness) -> Sight {
    let mut mounts = vec![mount(PathBuf::from(KUBELET), 0)];
    let (mut pods, mut staged) = (Vec::new(), Vec::new());
    if !blindness.disk {
        let published = state
            .pods
            .iter()
            .flat_map(|(uid, pod)| pod.published.keys().map(move |volume| target(uid, volume)));
        for point in state.staged.keys().map(staging).chain(published) {
            mounts.push(mount(point, mounts.len()));
        }
        for (uid, pod) in state.pods.iter().filter(|(_, pod)| pod.directory) {
            let volumes = pod.targets.iter().map(|(volume, handle)| PodVolume {
                name: volume.as_str().into(),
                kind: Kind::Filesystem,
                identity: Some(identity(handle)),
                target: target(uid, volume),
                present: true,
                inline: false,
            });
            pods.push(PodDirectory {
                uid: uid.as_str().into(),
                volumes: Ok(volumes.collect()),
            });
        }
        for handle in state.staged.keys() {
            staged.push(Staged {
                path: staging(handle),
                owner: Owner::Hash(hash(&VolumeHandle::from(handle.as_str()))),
                identity: Some(identity(handle)),
            });
        }
    }
    Sight {
        mounts: Ok(mounts),
        pods: Ok(pods),
        staged: Ok(staged),
        block: Ok(Vec::new()),
        loops: Ok(Vec::new()),
    }
}

fn identity(handle: &VolumeId) -> Identity {
    Identity {
        driver: NAME.into(),
        handle: handle.as_str().into(),
    }
}

fn runtimes(state: &State, blindness: Blindness) -> Result<Running, Unseen> {
    if blindness.runtime {
        return Ok(Running::default());
    }
    if !state.runtime {
        return Err(Unseen::new("container runtime", "connection refused"));
    }
    let mut pods = BTreeMap::new();
    for (uid, local) in state.pods.iter().filter(|(_, local)| local.running) {
        let mut pod = RunningPod {
            key: Some(PodKey {
                namespace: local.namespace.as_str().into(),
                name: local.name.as_str().into(),
            }),
            ..RunningPod::default()
        };
        pod.sandboxes.push(format!("sandbox-{uid}"));
        pod.add_container("main", "running");
        pods.insert(uid.as_str().into(), pod);
    }
    Ok(Running { pods })
}
