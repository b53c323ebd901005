//! A host on a temporary directory: pod directories and staging directories are real, mounts are lines of a table, the
//! runtime is a value, and unmounting is an entry that goes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::FutureExt;
use podmon::cri::{Running, RunningPod};
use podmon::domain::{BootId, PodKey};
use podmon::names::Profile;
use podmon::node::clear::{ClearError, Step};
use podmon::node::host::Host;
use podmon::node::layout::{Layout, hash};
use podmon::node::sight::{self, Unseen};
use serde_json::json;

pub const DRIVER: &str = "csi.example.com";

#[derive(Clone)]
pub struct FakeHost(Arc<Inner>);

struct Inner {
    base: PathBuf,
    layout: Layout,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    mounts: Vec<PathBuf>,
    busy: Vec<PathBuf>,
    running: BTreeMap<String, RunningPod>,
    runtime_down: bool,
    closed: bool,
    boot: String,
    steps: Vec<Step>,
    pulse: u64,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.base);
    }
}

impl FakeHost {
    pub fn new(test: &str) -> Self {
        let base = std::env::temp_dir().join(format!("podmon-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&base);
        let base = {
            fs::create_dir_all(&base).unwrap();
            fs::canonicalize(&base).unwrap()
        };
        fs::create_dir_all(base.join("kubelet/pods")).unwrap();
        fs::create_dir_all(base.join("proc/self")).unwrap();
        fs::create_dir_all(base.join("sys/block")).unwrap();
        let kubelet = base.join("kubelet");
        let layout = Layout::new(kubelet, Profile::Generic, DRIVER.into(), None);
        let state = State {
            boot: "boot-1".into(),
            ..State::default()
        };
        Self(Arc::new(Inner {
            base,
            layout,
            state: Mutex::new(state),
        }))
    }

    pub fn layout(&self) -> Layout {
        self.0.layout.clone()
    }

    pub fn base(&self) -> &Path {
        &self.0.base
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The seam.
    pub fn host(&self) -> Host {
        let (look, running, clear, pulse, boot, closed, stop) = (
            self.clone(),
            self.clone(),
            self.clone(),
            self.clone(),
            self.clone(),
            self.clone(),
            self.clone(),
        );
        Host {
            look: Arc::new(move || {
                look.write_mounts();
                let base = look.base();
                let sight = sight::look(&look.0.layout, &base.join("proc"), &base.join("sys"));
                futures::future::ready(sight).boxed()
            }),
            running: Arc::new(move || {
                let state = running.state();
                let answer = if state.runtime_down {
                    Err(Unseen::new("container runtime", "connection refused"))
                } else {
                    let pods = state.running.iter();
                    let pods = pods.map(|(uid, pod)| (uid.as_str().into(), pod.clone()));
                    Ok(Running {
                        pods: pods.collect(),
                    })
                };
                futures::future::ready(answer).boxed()
            }),
            clear: Arc::new(move |step| futures::future::ready(clear.perform(step)).boxed()),
            closed: Arc::new(move |_| futures::future::ready(Ok(closed.state().closed)).boxed()),
            stop: Arc::new(move |container| {
                stop.state()
                    .running
                    .retain(|_, pod| !pod.containers.contains(&container));
                futures::future::ready(Ok(())).boxed()
            }),
            pulse: Arc::new(move || pulse.state().pulse),
            boot: Arc::new(move || Some(BootId::from(boot.state().boot.as_str()))),
        }
    }

    fn write_mounts(&self) {
        let kubelet = self.base().join("kubelet");
        let mut table = format!(
            "1 0 8:1 / {} rw shared:1 - ext4 /dev/sda rw\n",
            kubelet.display()
        );
        for (index, point) in self.state().mounts.iter().enumerate() {
            let id = index + 10;
            table += &format!(
                "{id} 1 7:{id} / {} rw shared:{id} - ext4 /dev/loop{id} rw\n",
                point.display()
            );
        }
        fs::write(self.base().join("proc/self/mountinfo"), table).unwrap();
    }

    fn perform(&self, step: Step) -> Result<(), ClearError> {
        let mut state = self.state();
        state.steps.push(step.clone());
        let failed = |why: String| {
            Err(ClearError::Failed {
                step: step.clone(),
                why,
            })
        };
        match &step {
            Step::Unmount(path) if state.busy.contains(path) => failed("busy".into()),
            Step::Unmount(path) | Step::UnmountLazily(path) => {
                state.mounts.retain(|mounted| mounted != path);
                Ok(())
            }
            Step::FreeLoop(device) => {
                let name = device.file_name().unwrap();
                let _ = fs::remove_dir_all(self.base().join("sys/block").join(name));
                Ok(())
            }
            Step::Remove(path) if state.mounts.contains(path) => failed("is mounted".into()),
            Step::Remove(path) => match fs::remove_dir(path).or_else(|_| fs::remove_file(path)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    failed(error.to_string())
                }
                _ => Ok(()),
            },
        }
    }

    /// What podmon did to the host.
    pub fn steps(&self) -> Vec<Step> {
        self.state().steps.clone()
    }

    pub fn runtime_down(&self, down: bool) {
        self.state().runtime_down = down;
    }

    pub fn reboot(&self) {
        self.state().boot = "boot-2".into();
    }

    /// Nothing holds the block devices any more.
    pub fn close_devices(&self) {
        self.state().closed = true;
    }

    pub fn busy(&self, path: PathBuf) {
        self.state().busy.push(path);
    }

    /// Containers of the pod run, with a sandbox.
    pub fn run(&self, uid: &str, name: &str) {
        let mut pod = RunningPod {
            key: Some(PodKey {
                namespace: "db".into(),
                name: name.into(),
            }),
            ..RunningPod::default()
        };
        pod.sandboxes.push(format!("sandbox-{uid}"));
        pod.add_container("main", "running");
        self.state().running.insert(uid.into(), pod);
    }

    pub fn kill(&self, uid: &str) {
        self.state().running.remove(uid);
    }

    pub fn target(&self, uid: &str, volume: &str) -> PathBuf {
        let pod = self.0.layout.pod(&uid.into());
        pod.join("volumes/kubernetes.io~csi")
            .join(volume)
            .join("mount")
    }

    pub fn staging(&self, volume: &str) -> PathBuf {
        let hash = hash(&format!("handle-{volume}").into());
        self.0.layout.staging().join(hash).join("globalmount")
    }

    /// The volume is staged and published to the pod, as the kubelet does it.
    pub fn mount(&self, uid: &str, volume: &str) {
        let note = json!({"driverName": DRIVER, "volumeHandle": format!("handle-{volume}")});
        for path in [self.staging(volume), self.target(uid, volume)] {
            fs::create_dir_all(&path).unwrap();
            fs::write(path.with_file_name("vol_data.json"), note.to_string()).unwrap();
            let mut state = self.state();
            if !state.mounts.contains(&path) {
                state.mounts.push(path);
            }
            state.pulse += 1;
        }
    }

    pub fn mount_at(&self, path: &Path) {
        self.state().mounts.push(path.to_owned());
    }

    /// A raw block volume in a pod, as driver and kubelet make it.
    pub fn attach(&self, uid: &str, volume: &str) {
        let block = self.0.layout.block();
        let note = json!({"driverName": DRIVER, "volumeHandle": format!("handle-{volume}")});
        let link = self
            .0
            .layout
            .pod(&uid.into())
            .join("volumeDevices/kubernetes.io~csi");
        let published = block.join("publish").join(volume);
        let mapped = block.join(volume).join("dev");
        let data = block.join(volume).join("data");
        let sys = self.base().join("sys/block/loop5/loop");
        for directory in [
            &link,
            &published,
            &mapped,
            &data,
            &sys,
            &block.join("staging").join(volume),
        ] {
            fs::create_dir_all(directory).unwrap();
        }
        fs::write(data.join("vol_data.json"), note.to_string()).unwrap();
        fs::write(link.join(volume), "").unwrap();
        let mapped = mapped.join(uid);
        fs::write(sys.join("backing_file"), format!("{}\n", mapped.display())).unwrap();
        for path in [published.join(uid), mapped] {
            fs::write(&path, "").unwrap();
            self.mount_at(&path);
        }
    }

    pub fn mounted(&self, path: &Path) -> bool {
        self.state().mounts.iter().any(|mounted| mounted == path)
    }

    pub fn unmount(&self, path: &Path) {
        self.state().mounts.retain(|mounted| mounted != path);
        let _ = fs::remove_dir(path);
    }

    /// The kubelet's own cleaning of a pod that is gone.
    pub fn kubelet_cleans(&self, uid: &str, volumes: &[&str]) {
        self.kill(uid);
        for volume in volumes {
            self.unmount(&self.target(uid, volume));
            self.unmount(&self.staging(volume));
            let staged = self.staging(volume);
            let _ = fs::remove_dir_all(staged.parent().unwrap());
        }
        let _ = fs::remove_dir_all(self.0.layout.pod(&uid.into()));
        self.state().pulse += 1;
    }
}
