//! A machine of the cluster: power, network, a kubelet, containers that write, mounts.
//!
//! What the disk holds outlives a power loss, what the kernel holds does not, and containers do not ask whether the API server
//! can be reached.

mod kubelet;
mod node_service;
pub mod sight;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::embedded::api::Actor;
use crate::embedded::chance::Chance;
use crate::embedded::control::Timing;
use crate::storage::array::{Access, Array};
use crate::storage::name::{NodeId, VolumeId};

/// How often a container writes.
const WRITE: Duration = Duration::from_millis(500);
/// How often the kubelet looks around although nothing has changed.
const KUBELET: Duration = Duration::from_millis(300);
/// How often the driver's node side shows the array that the host is there.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    On,
    /// The kernel stands still; everything goes on afterwards as if nothing had been.
    Frozen,
    Off,
}

/// A volume in the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// The PersistentVolume.
    pub volume: String,
    pub handle: VolumeId,
    /// The session by which the host reaches the array.
    pub access: Access,
}

/// What the host has of one incarnation of a pod.
#[derive(Clone, Debug)]
pub struct LocalPod {
    pub namespace: String,
    pub name: String,
    pub labels: serde_json::Value,
    /// The PersistentVolumes of our driver that it uses, with their handles.
    pub volumes: BTreeMap<String, VolumeId>,
    /// Its directory is on the disk. It outlives a reboot.
    pub directory: bool,
    /// Bind mounts below the directory, by PersistentVolume.
    pub published: BTreeMap<String, Mounted>,
    /// Target directories made for publishing, by PersistentVolume. They outlive a reboot.
    pub targets: BTreeMap<String, VolumeId>,
    /// A container is alive.
    pub running: bool,
    /// The last write of the container was carried out.
    pub healthy: bool,
    next_write: Duration,
    start: Option<Duration>,
    kill: Option<Duration>,
    remove: Option<Duration>,
}

pub struct State {
    pub name: String,
    pub id: NodeId,
    pub power: Power,
    /// The host reaches the API server.
    pub network: bool,
    pub kubelet: bool,
    /// The container runtime answers.
    pub runtime: bool,
    pub boot: u64,
    /// Counts what the kubelet does to pod directories.
    pub pulse: u64,
    pub pods: BTreeMap<String, LocalPod>,
    /// The staging mounts, by handle.
    pub staged: BTreeMap<VolumeId, Mounted>,
    timing: Timing,
    chance: Chance,
    registered: bool,
    next_lease: Duration,
    next_status: Duration,
    next_sign: Duration,
    /// What the kubelet has looked at, and when it looks again although nothing has changed.
    settled: (u64, Duration),
}

impl State {
    pub fn boot_id(&self) -> String {
        format!("{}-boot-{}", self.name, self.boot)
    }

    /// Whether any process on the host makes progress.
    pub fn alive(&self) -> bool {
        self.power == Power::On
    }
}

/// A machine; clones are handles to the same one.
#[derive(Clone)]
pub struct Host {
    state: Arc<Mutex<State>>,
    api: Actor,
    array: Arc<Mutex<Array>>,
}

impl Host {
    pub fn new(
        name: &str,
        id: NodeId,
        api: Actor,
        array: Arc<Mutex<Array>>,
        timing: Timing,
        chance: Chance,
    ) -> Host {
        let state = State {
            name: name.to_owned(),
            id,
            power: Power::On,
            network: true,
            kubelet: true,
            runtime: true,
            boot: 1,
            pulse: 0,
            pods: BTreeMap::new(),
            staged: BTreeMap::new(),
            timing,
            chance,
            registered: false,
            next_lease: Duration::ZERO,
            next_status: Duration::ZERO,
            next_sign: Duration::ZERO,
            settled: (0, Duration::ZERO),
        };
        Host {
            state: Arc::new(Mutex::new(state)),
            api,
            array,
        }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn name(&self) -> String {
        self.state().name.clone()
    }

    /// The mains are cut: memory is lost, the disk is not.
    pub fn power_off(&self) {
        let mut state = self.state();
        state.power = Power::Off;
        state.staged.clear();
        state.registered = false;
        for pod in state.pods.values_mut() {
            pod.running = false;
            pod.published.clear();
            (pod.start, pod.kill, pod.remove) = (None, None, None);
        }
    }

    pub fn power_on(&self) {
        let mut state = self.state();
        if state.power == Power::Off {
            state.boot += 1;
        }
        state.power = Power::On;
        state.kubelet = true;
        state.runtime = true;
    }

    /// The kubelet starts anew; containers do not notice.
    pub fn restart_kubelet(&self) {
        let mut state = self.state();
        state.registered = false;
        state.kubelet = true;
        for pod in state.pods.values_mut() {
            (pod.start, pod.kill, pod.remove) = (None, None, None);
        }
    }

    pub fn tick(&self, now: Duration) {
        let mut state = self.state();
        if state.power != Power::On {
            return;
        }
        self.run_containers(&mut state, now);
        let activity = self.api.server().activity();
        if state.kubelet && (activity != state.settled.0 || now >= state.settled.1) {
            state.settled = (activity, now + KUBELET);
            kubelet::tick(&mut state, &self.api, now);
        }
    }

    /// Containers write whether or not anyone can see it.
    fn run_containers(&self, state: &mut State, now: Duration) {
        let mut array = self.array.lock().unwrap_or_else(PoisonError::into_inner);
        if now >= state.next_sign {
            state.next_sign = now + SIGN_OF_LIFE;
            let _ = array.seen(now, &state.id);
        }
        for pod in state.pods.values_mut() {
            if !pod.running || now < pod.next_write {
                continue;
            }
            pod.next_write = now + WRITE;
            pod.healthy = true;
            for mounted in pod.published.values() {
                let block = now.as_millis() as u64 % 1024 * 512;
                pod.healthy &= array.write(now, &mounted.access, block, 512).is_ok();
            }
        }
    }
}
