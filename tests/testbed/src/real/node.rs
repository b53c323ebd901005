//! A node: namespaces of its own with containerd, the kubelet and further daemons in them.
//!
//! A node is its process 1 (`node-init`) and what came of it. Power off kills that process, and with it the whole pid namespace;
//! the disk (`/var/lib/kubelet`, `/var/lib/containerd`) stays. Power on is a new boot with a new boot id.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1;
use kube::Client;
use kube::api::Api;
use rustix::process::{Pid, Signal};
use serde_json::json;

use super::binaries::Binaries;
use super::cgroup::Cgroup;
use super::control_plane::{self, BRIDGE};
use super::identity::Credential;
use super::isolation::{self, STATE};
use super::pki::Pki;
use super::process::{self, Process};
use super::wait::Seen;
use super::{Context, Error, Result, wait_until};
use crate::storage::loops;

/// How long a step of a node's boot may take on a slow machine.
const BOOT_STEP: Duration = Duration::from_secs(60);

/// A further process on every node. In its arguments and environment `{node}` stands for the node's name.
#[derive(Debug, Clone)]
pub struct Daemon {
    pub name: String,
    pub program: PathBuf,
    pub arguments: Vec<String>,
    pub environment: Vec<(String, String)>,
}

/// One node; see the module.
pub struct Node {
    name: String,
    number: usize,
    folder: PathBuf,
    logs: PathBuf,
    node_init: PathBuf,
    images: Vec<PathBuf>,
    daemons: Vec<Daemon>,
    pub(super) cgroup: Cgroup,
    api: Api<v1::Node>,
    boot: Mutex<Option<Boot>>,
}

/// What runs since the last power on.
#[derive(Debug)]
struct Boot {
    id: String,
    processes: BTreeMap<String, Process>,
    /// Dropped last: everything above lives in its pid namespace.
    init: Process,
}

/// Names of the processes that every node has.
pub const CONTAINERD: &str = "containerd";
pub const KUBELET: &str = "kubelet";

impl Node {
    /// Prepares the disk and the configuration of node `number`.
    pub(super) fn create(
        number: usize,
        binaries: &Binaries,
        pki: &Pki,
        images: &[PathBuf],
        daemons: &[Daemon],
        admin: &Client,
    ) -> Result<Self> {
        let name = format!("node{number}");
        let folder = Path::new(STATE).join(&name);
        for part in ["kubelet", "containerd", "log/pods", "cni"] {
            let path = folder.join(part);
            std::fs::create_dir_all(&path).context(|| format!("create {}", path.display()))?;
        }
        let address = format!("10.99.0.{}", 10 + number);
        let user = format!("system:node:{name}");
        let leaf = pki.issue(&name, &user, Some("system:nodes"), &[&address, &name])?;
        let kubeconfig = control_plane::write_kubeconfig(
            &folder,
            "kubelet",
            pki,
            &Credential::Certificate(&leaf),
        )?;
        let kubelet = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "failCgroupV1": false, "failSwapOn": false, "cgroupDriver": "cgroupfs",
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "authentication": {"anonymous": {"enabled": false}, "webhook": {"enabled": false},
                               "x509": {"clientCAFile": pki.authority_file()}},
            "authorization": {"mode": "AlwaysAllow"},
            "tlsCertFile": leaf.certificate, "tlsPrivateKeyFile": leaf.key, "address": address,
            "nodeStatusUpdateFrequency": "2s", "nodeStatusReportFrequency": "30s", "nodeLeaseDurationSeconds": 4,
            "volumeStatsAggPeriod": "10s", "evictionHard": {"memory.available": "50Mi"},
            "imageGCHighThresholdPercent": 100, "makeIPTablesUtilChains": false,
            "resolvConf": "", "clusterDNS": ["10.0.0.10"],
        });
        let network = json!({
            "cniVersion": "0.4.0", "name": "node", "plugins": [{
                "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false,
                // Under /run, so that a reboot forgets the addresses given out.
                "ipam": {"type": "host-local", "dataDir": "/run/cni",
                         "ranges": [[{"subnet": format!("10.24{number}.0.0/24")}]]},
            }],
        });
        let node = Node {
            logs: isolation::logs(),
            node_init: binaries.path("node-init")?.into(),
            images: images.to_vec(),
            daemons: daemons.to_vec(),
            cgroup: Cgroup::of_node(&name)?,
            api: Api::all(admin.clone()),
            boot: Mutex::new(None),
            folder,
            name,
            number,
        };
        node.write("kubelet.json", &kubelet.to_string())?;
        node.write("cni/node.conflist", &network.to_string())?;
        node.write("containerd.toml", &containerd_config(&node.folder))?;
        let start_kubelet = format!(
            "exec {} --config={} --kubeconfig={} --hostname-override={} --node-ip={address} --root-dir=/var/lib/kubelet --v=2",
            binaries.path("kubelet")?.display(),
            node.folder.join("kubelet.json").display(),
            kubeconfig.display(),
            node.name,
        );
        node.write("start-kubelet", &start_kubelet)?;
        Ok(node)
    }

    fn write(&self, file: &str, content: &str) -> Result<()> {
        let path = self.folder.join(file);
        std::fs::write(&path, content).context(|| format!("write {}", path.display()))
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The end of the node's cable at the bridge.
    pub(super) fn link(&self) -> String {
        format!("{}-link", self.name)
    }

    /// The node's disk, as seen from outside: `kubelet` and `containerd` are in it. Mounts of the node do not show here.
    pub fn disk(&self) -> &Path {
        &self.folder
    }

    fn boot(&self) -> MutexGuard<'_, Option<Boot>> {
        self.boot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_on(&self) -> bool {
        self.boot().is_some()
    }

    /// The boot id of the present boot.
    pub fn boot_id(&self) -> Option<String> {
        self.boot().as_ref().map(|boot| boot.id.clone())
    }

    /// The pid of the node's process 1, as seen from outside.
    fn init_pid(&self) -> Result<Pid> {
        self.boot()
            .as_ref()
            .and_then(|boot| boot.init.pid())
            .ok_or_else(|| Error::State(format!("{} is off", self.name)))
    }

    /// The node's root directory with its mounts, as seen from outside.
    pub fn root(&self) -> Result<PathBuf> {
        Ok(format!("/proc/{}/root", self.init_pid()?.as_raw_nonzero()).into())
    }

    /// Boots the node: network, containerd, images, daemons, kubelet. Returns once the kubelet is started; see
    /// [`Node::wait_ready`].
    pub async fn power_on(&self) -> Result<()> {
        if self.is_on() {
            return Err(Error::State(format!("{} is on already", self.name)));
        }
        self.cgroup.create()?;
        let id = new_boot_id()?;
        self.write("boot_id", &format!("{id}\n"))?;
        let ready = self.folder.join("ready");
        let _ = std::fs::remove_file(&ready);
        let mut command = in_cgroup(&self.cgroup);
        command
            .args(["unshare", "--net", "--mount", "--propagation", "private"])
            .args(["--uts", "--ipc", "--cgroup", "--pid"])
            .args(["--fork", "--kill-child", "--mount-proc", "--"])
            .arg(&self.node_init)
            .args([self.name.as_ref(), self.folder.as_os_str()]);
        let mut init = Process::start_wrapped(&self.process_name("init"), command, &self.logs)?;
        wait_until(
            format!("{} has its mounts", self.name),
            BOOT_STEP,
            async || {
                init.check()?;
                Ok(ready.exists())
            },
        )
        .await?;
        *self.boot() = Some(Boot {
            id,
            processes: BTreeMap::new(),
            init,
        });
        self.connect()?;
        self.start_containerd().await?;
        for image in &self.images {
            let mut import = self.inside("ctr")?;
            import.args(["--namespace", "k8s.io", "images", "import"]);
            process::output_of(import.arg(image))?;
        }
        for daemon in &self.daemons {
            self.start_daemon(&daemon.name)?;
        }
        self.start_kubelet()
    }

    /// Plugs the node into the bridge.
    fn connect(&self) -> Result<()> {
        let pid = self.init_pid()?.as_raw_nonzero().to_string();
        let (link, address) = (self.link(), format!("10.99.0.{}/24", 10 + self.number));
        for arguments in [
            &[
                "link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", &pid,
            ][..],
            &["link", "set", &link, "master", BRIDGE, "up"],
        ] {
            process::output("ip", arguments)?;
        }
        for arguments in [
            &["link", "set", "lo", "up"][..],
            &["address", "add", &address, "dev", "eth0"],
            &["link", "set", "eth0", "up"],
            &["route", "add", "default", "via", control_plane::ADDRESS],
        ] {
            process::output_of(
                Command::new("nsenter")
                    .args(["--target", &pid, "--net", "ip"])
                    .args(arguments),
            )?;
        }
        Ok(())
    }

    /// Starts the container runtime and waits until it answers.
    pub async fn start_containerd(&self) -> Result<()> {
        let mut command = self.inside(CONTAINERD)?;
        command
            .arg("--config")
            .arg(self.folder.join("containerd.toml"));
        self.start(CONTAINERD, command)?;
        wait_until(
            format!("containerd on {} answers", self.name),
            BOOT_STEP,
            async || {
                self.check(CONTAINERD)?;
                process::output_of(self.inside("ctr")?.arg("version")).map(|_| true)
            },
        )
        .await
    }

    /// Starts the kubelet.
    pub fn start_kubelet(&self) -> Result<()> {
        let mut command = self.inside("sh")?;
        command.arg(self.folder.join("start-kubelet"));
        self.start(KUBELET, command)
    }

    /// Starts one of the daemons that were given for every node.
    pub fn start_daemon(&self, name: &str) -> Result<()> {
        let daemon = self
            .daemons
            .iter()
            .find(|daemon| daemon.name == name)
            .ok_or_else(|| Error::State(format!("no daemon {name} was given")))?;
        let mut command = self.inside(&daemon.program)?;
        let filled = |text: &String| text.replace("{node}", &self.name);
        command.args(daemon.arguments.iter().map(filled)).envs(
            daemon
                .environment
                .iter()
                .map(|(name, value)| (name, filled(value))),
        );
        self.start(name, command)
    }

    /// The given daemons that do not run.
    pub(super) fn stopped_daemons(&self) -> Vec<String> {
        let names = self.daemons.iter().map(|daemon| daemon.name.clone());
        names.filter(|name| !self.is_running(name)).collect()
    }

    /// Starts a process inside the node under a name; its log is `<node>-<name>.log`. It ends with the node at the latest.
    pub fn run(&self, name: &str, program: impl AsRef<Path>, arguments: &[&str]) -> Result<()> {
        let mut command = self.inside(program)?;
        command.args(arguments);
        self.start(name, command)
    }

    /// Runs a short command inside the node and returns what it printed.
    pub fn output(&self, program: &str, arguments: &[&str]) -> Result<String> {
        process::output_of(self.inside(program)?.args(arguments))
    }

    fn start(&self, name: &str, command: Command) -> Result<()> {
        if self.is_running(name) {
            return Err(Error::State(format!("{name} runs on {}", self.name)));
        }
        let process = Process::start_wrapped(&self.process_name(name), command, &self.logs)?;
        match self.boot().as_mut() {
            Some(boot) => boot.processes.insert(name.into(), process),
            None => return Err(Error::State(format!("{} is off", self.name))),
        };
        Ok(())
    }

    fn process_name(&self, name: &str) -> String {
        format!("{}-{name}", self.name)
    }

    /// Whether the process of that name runs.
    pub fn is_running(&self, name: &str) -> bool {
        self.check(name).is_ok()
    }

    fn check(&self, name: &str) -> Result<()> {
        self.boot()
            .as_mut()
            .and_then(|boot| boot.processes.get_mut(name))
            .ok_or_else(|| Error::State(format!("no {name} on {}", self.name)))?
            .check()
    }

    /// Sends a signal to the process of that name.
    pub fn signal(&self, name: &str, signal: Signal) -> Result<()> {
        self.boot()
            .as_ref()
            .and_then(|boot| boot.processes.get(name))
            .ok_or_else(|| Error::State(format!("no {name} on {}", self.name)))?
            .signal(signal)
    }

    /// SIGKILL to the process of that name, and waits for its end.
    pub fn kill(&self, name: &str) -> Result<()> {
        let process = self
            .boot()
            .as_mut()
            .and_then(|boot| boot.processes.remove(name));
        process
            .ok_or_else(|| Error::State(format!("no {name} on {}", self.name)))
            .map(|mut process| process.kill())
    }

    /// A command that runs in all namespaces and the cgroup of the node.
    fn inside(&self, program: impl AsRef<Path>) -> Result<Command> {
        let pid = self.init_pid()?.as_raw_nonzero().to_string();
        let mut command = in_cgroup(&self.cgroup);
        command
            .args(["nsenter", "--target", &pid, "--all", "--"])
            .arg(program.as_ref());
        Ok(command)
    }

    /// Ends everything at once, without a goodbye to anybody. The disk stays.
    pub(super) fn cut_power(&self) -> Result<()> {
        let boot = self.boot().take();
        let boot = boot.ok_or_else(|| Error::State(format!("{} is off", self.name)))?;
        if let Some(pid) = boot.init.pid() {
            rustix::process::kill_process(pid, Signal::KILL)
                .context(|| format!("kill process 1 of {}", self.name))?;
        }
        // Also thaws: a frozen node dies only then, and none of its instructions runs before the kill.
        self.cgroup.destroy(BOOT_STEP)?;
        drop(boot);
        isolation::sweep_loops(&format!("{}{}/", loops::TAG, self.name))?;
        // The kernel removes the link with the namespace, but later; the next boot needs its name.
        let _ = process::output("ip", &["link", "delete", &self.link()]);
        Ok(())
    }

    /// The Node object, read from the API server.
    pub async fn object(&self) -> Result<v1::Node> {
        self.api
            .get(&self.name)
            .await
            .context(|| format!("read node {}", self.name))
    }

    /// The status of the Ready condition: `True`, `False` or `Unknown`.
    pub async fn readiness(&self) -> Result<String> {
        let conditions = self
            .object()
            .await?
            .status
            .and_then(|status| status.conditions)
            .unwrap_or_default();
        Ok(conditions
            .into_iter()
            .find(|condition| condition.type_ == "Ready")
            .map_or_else(|| "absent".into(), |condition| condition.status))
    }

    /// Waits until the node is Ready, in its present boot, and no taint of a lost node is left.
    pub async fn wait_ready(&self) -> Result<()> {
        let boot = self.boot_id();
        wait_until(
            format!("{} is Ready", self.name),
            Duration::from_secs(120),
            async || {
                let (readiness, object) = (self.readiness().await?, self.object().await?);
                let reported = object
                    .status
                    .and_then(|status| status.node_info)
                    .map(|info| info.boot_id);
                let taints = object.spec.and_then(|spec| spec.taints).unwrap_or_default();
                let lost: Vec<_> = taints
                    .into_iter()
                    .map(|taint| taint.key)
                    .filter(|key| key.starts_with("node.kubernetes.io/"))
                    .collect();
                Ok(
                    if readiness == "True" && reported == boot && lost.is_empty() {
                        Seen::Yes(())
                    } else {
                        Seen::NotYet(format!(
                            "Ready is {readiness}, boot {reported:?}, taints {lost:?}"
                        ))
                    },
                )
            },
        )
        .await
    }

    /// Waits until the control plane holds the node for lost.
    pub async fn wait_lost(&self) -> Result<()> {
        wait_until(
            format!("{} is lost", self.name),
            Duration::from_secs(120),
            async || {
                let (readiness, object) = (self.readiness().await?, self.object().await?);
                let taints = object.spec.and_then(|spec| spec.taints).unwrap_or_default();
                let tainted = taints
                    .iter()
                    .any(|taint| taint.key == "node.kubernetes.io/unreachable");
                Ok(if readiness != "True" && tainted {
                    Seen::Yes(())
                } else {
                    Seen::NotYet(format!(
                        "Ready is {readiness}, unreachable taint: {tainted}"
                    ))
                })
            },
        )
        .await
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.is_on()
            && let Err(error) = self.cut_power()
        {
            eprintln!("{}: {error}", self.name);
        }
    }
}

/// A command that joins the cgroup, then runs its arguments. The shell does it because a process must move itself, before it
/// makes or enters a cgroup namespace.
fn in_cgroup(cgroup: &Cgroup) -> Command {
    let mut script = String::from("set -e\n");
    for entrance in cgroup.entrances() {
        script += &format!("echo 0 > {}\n", entrance.display());
    }
    script += "exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", &script, "in-cgroup"]);
    command
}

/// A random identifier in the kernel's form.
fn new_boot_id() -> Result<String> {
    let file = "/proc/sys/kernel/random/uuid";
    let id = std::fs::read_to_string(file).context(|| format!("read {file}"))?;
    Ok(id.trim().into())
}

fn containerd_config(folder: &Path) -> String {
    format!(
        r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs"]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/local/pause:1"
  # Without CAP_SYS_RESOURCE runc dies otherwise.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"#,
        folder.join("cni").display()
    )
}
