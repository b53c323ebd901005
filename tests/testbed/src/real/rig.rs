//! What the promise needs around a cluster: the array, its driver, the attacher, and podmon in both modes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::storage::v1::{CSIDriver, CSINode};
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use super::identity::Rights;
use super::image::Image;
use super::isolation::STATE;
use super::node::Daemon;
use super::process::Process;
use super::{Binaries, Cluster, Context, Equipment, Error, Result, wait_until};
use crate::storage::driver::NAME as DRIVER;
use crate::storage::{Client as Array, Report, judge};

/// The namespace of the driver and of podmon beside it.
pub const NAMESPACE: &str = "podmon";

/// podmon's daemon on every node.
pub const PODMON: &str = "podmon";

/// The driver's daemon on every node.
pub const DRIVER_NODE: &str = "driver";

/// The value of podmon's label on pods that it protects.
pub const PROTECTED: &str = "csi-array";

/// podmon's taint, and its journal annotation, for this driver.
pub const TAINT: &str = "array.podmon.test/podmon";
pub const JOURNAL: &str = "array.podmon.test/podmon-evacuation";

/// How the driver's controller side behaves; its node side is always the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriverOptions {
    /// It serves podmon's connectivity extension.
    pub extension: bool,
    /// It lists which nodes a volume is published to, so the attacher repairs what it finds missing.
    pub published_nodes: bool,
}

impl Default for DriverOptions {
    fn default() -> Self {
        DriverOptions {
            extension: true,
            published_nodes: false,
        }
    }
}

/// A cluster with storage; see the module.
pub struct Rig {
    pub cluster: Cluster,
    /// The array, past every driver.
    pub array: Array,
    driver: Process,
    driver_options: DriverOptions,
    controllers: BTreeMap<String, Process>,
    attacher: Process,
    // Only kept alive.
    _array: Process,
}

impl Rig {
    /// Starts everything but podmon's controller. `array_flags` go to the array process.
    pub async fn start(
        binaries: Binaries,
        nodes: usize,
        controller_manager_flags: &[String],
        array_flags: &[&str],
    ) -> Result<Self> {
        let mut cluster = Cluster::start(binaries, controller_manager_flags).await?;
        let data = folder().join("data");
        std::fs::create_dir_all(&data).context(|| format!("create {}", data.display()))?;
        let mut command = Command::new(cluster.program("storage")?);
        command.arg("array").arg("--socket").arg(array_socket());
        command.arg("--dir").arg(data).args(array_flags);
        let array_process = cluster.run("array", command)?;
        let array = Array::new(&array_socket());
        array
            .wait_until_up(Duration::from_secs(60))
            .map_err(|error| Error::State(error.to_string()))?;
        let driver_options = DriverOptions::default();
        let driver = start_driver(&cluster, driver_options)?;
        wait_until("the driver serves", Duration::from_secs(60), async || {
            Ok(csi_socket().exists())
        })
        .await?;
        announce_driver(&cluster).await?;
        let attacher = start_attacher(&cluster)?;

        std::fs::write(
            settings(),
            "PODMON_CONTROLLER_LOG_LEVEL: debug\nPODMON_NODE_LOG_LEVEL: debug\n",
        )
        .context(|| "write podmon's settings".into())?;
        let kubeconfig = cluster
            .service_account(NAMESPACE, "node", &Rights::of_node())
            .await?;
        let equipment = Equipment {
            images: vec![Image::workload(&cluster)?],
            daemons: vec![
                driver_daemon(&cluster)?,
                podmon_daemon(&cluster, &kubeconfig)?,
            ],
        };
        cluster.start_nodes(nodes, &equipment).await?;
        let rig = Rig {
            cluster,
            array,
            driver,
            driver_options,
            controllers: BTreeMap::new(),
            attacher,
            _array: array_process,
        };
        for node in rig.cluster.nodes() {
            rig.wait_registered(node.name()).await?;
        }
        Ok(rig)
    }

    /// Waits until the kubelet of a node has taken the driver in.
    pub async fn wait_registered(&self, node: &str) -> Result<()> {
        let nodes: Api<CSINode> = Api::all(self.cluster.admin());
        wait_until(
            format!("the driver is registered on {node}"),
            Duration::from_secs(120),
            async || {
                let found = nodes
                    .get(node)
                    .await
                    .context(|| format!("read CSINode {node}"))?;
                Ok(found
                    .spec
                    .drivers
                    .iter()
                    .any(|driver| driver.name == DRIVER))
            },
        )
        .await
    }

    /// Restarts the driver's controller side and its attacher, if it is not as wanted already.
    pub async fn set_driver(&mut self, options: DriverOptions) -> Result<()> {
        if self.driver_options == options && self.driver.is_running() {
            return Ok(());
        }
        // It ends by itself when its driver is gone, but not at once.
        self.attacher.kill();
        self.driver.kill();
        let _ = std::fs::remove_file(csi_socket());
        self.driver = start_driver(&self.cluster, options)?;
        self.driver_options = options;
        wait_until("the driver serves", Duration::from_secs(60), async || {
            Ok(csi_socket().exists())
        })
        .await?;
        self.attacher = start_attacher(&self.cluster)?;
        Ok(())
    }

    /// A kubeconfig for podmon's controller with these rights.
    pub async fn controller_kubeconfig(&self, rights: &Rights) -> Result<PathBuf> {
        self.cluster
            .service_account(NAMESPACE, "controller", rights)
            .await
    }

    /// Starts a replica of podmon's controller under a name.
    pub fn start_controller(&mut self, name: &str, kubeconfig: &Path) -> Result<()> {
        // A replica is told apart by its host name, as in a pod.
        let mut command = Command::new("unshare");
        command
            .args([
                "--uts",
                "--",
                "sh",
                "-c",
                "hostname \"$0\" && exec \"$@\"",
                name,
            ])
            .arg(self.cluster.program("podmon")?)
            .args(podmon_arguments("controller", &csi_socket(), kubeconfig))
            .envs([
                ("MY_POD_NAME", name),
                ("POD_NAME", name),
                ("MY_POD_NAMESPACE", NAMESPACE),
                ("POD_NAMESPACE", NAMESPACE),
            ]);
        let process = self
            .cluster
            .run(&format!("podmon-controller-{name}"), command)?;
        self.controllers.insert(name.into(), process);
        Ok(())
    }

    /// SIGKILL to a replica.
    pub fn kill_controller(&mut self, name: &str) -> Result<()> {
        match self.controllers.remove(name) {
            Some(mut process) => {
                process.kill();
                Ok(())
            }
            None => Err(Error::State(format!("no controller {name} runs"))),
        }
    }

    /// SIGKILL to every replica.
    pub fn kill_controllers(&mut self) {
        for (_, mut process) in std::mem::take(&mut self.controllers) {
            process.kill();
        }
    }

    /// Fails when a replica has ended by itself.
    pub fn check_controllers(&mut self) -> Result<()> {
        self.controllers.values_mut().try_for_each(Process::check)
    }

    /// Where the ledger stands now; a later [`Rig::report`] begins here.
    pub fn mark(&self) -> Result<u64> {
        let records = self.array.ledger_after(0).map_err(array_error)?;
        Ok(records.last().map_or(0, |record| record.sequence))
    }

    /// The judgement on what happened after `mark`.
    pub fn report(&self, mark: u64) -> Result<Report> {
        let records = self.array.ledger_after(mark).map_err(array_error)?;
        Ok(judge(&records))
    }
}

/// An array's refusal as an error of the rig.
pub fn array_error(error: crate::storage::ClientError) -> Error {
    Error::State(format!("array: {error}"))
}

fn folder() -> PathBuf {
    Path::new(STATE).join("array")
}

fn array_socket() -> PathBuf {
    folder().join("array.sock")
}

fn csi_socket() -> PathBuf {
    folder().join("csi.sock")
}

fn settings() -> PathBuf {
    Path::new(STATE).join("podmon.yaml")
}

fn start_driver(cluster: &Cluster, options: DriverOptions) -> Result<Process> {
    let mut command = Command::new(cluster.program("storage")?);
    command.arg("controller").arg("--socket").arg(csi_socket());
    command.arg("--array").arg(array_socket());
    if !options.extension {
        command.arg("--without-extension");
    }
    if options.published_nodes {
        command.arg("--published-nodes");
    }
    cluster.run("driver-controller", command)
}

async fn announce_driver(cluster: &Cluster) -> Result<()> {
    let drivers: Api<CSIDriver> = Api::all(cluster.admin());
    let body = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER},
        "spec": {"attachRequired": true, "podInfoOnMount": false, "fsGroupPolicy": "None"},
    });
    drivers
        .patch(DRIVER, &PatchParams::apply("testbed"), &Patch::Apply(body))
        .await
        .map(drop)
        .context(|| format!("create CSIDriver {DRIVER}"))
}

fn start_attacher(cluster: &Cluster) -> Result<Process> {
    let mut command = Command::new(cluster.program("csi-attacher")?);
    command
        .arg(format!(
            "--kubeconfig={}",
            cluster.admin_kubeconfig().display()
        ))
        .arg(format!("--csi-address={}", csi_socket().display()))
        .args([
            "--timeout=15s",
            "--retry-interval-start=200ms",
            "--retry-interval-max=2s",
            "--kube-api-qps=100",
            "--kube-api-burst=200",
            "--v=5",
        ]);
    cluster.run("csi-attacher", command)
}

fn driver_daemon(cluster: &Cluster) -> Result<Daemon> {
    let arguments = [
        "node",
        "--name={node}",
        &format!("--array={}", array_socket().display()),
        "--kubelet-dir=/var/lib/kubelet",
    ]
    .map(String::from);
    Ok(Daemon {
        name: DRIVER_NODE.into(),
        program: cluster.program("storage")?.into(),
        arguments: arguments.to_vec(),
        environment: Vec::new(),
    })
}

fn podmon_daemon(cluster: &Cluster, kubeconfig: &Path) -> Result<Daemon> {
    let socket = format!("/var/lib/kubelet/plugins/{DRIVER}/csi.sock");
    let mut arguments = podmon_arguments("node", Path::new(&socket), kubeconfig);
    arguments.push("--leaderelection=false".into());
    let environment = [
        ("KUBE_NODE_NAME", "{node}"),
        ("MY_NODE_NAME", "{node}"),
        ("MY_POD_NAME", "podmon-{node}"),
        ("MY_POD_NAMESPACE", NAMESPACE),
        ("POD_NAMESPACE", NAMESPACE),
        ("X_CSI_PRIVATE_MOUNT_DIR", "/var/lib/kubelet"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()));
    Ok(Daemon {
        name: PODMON.into(),
        program: cluster.program("podmon")?.into(),
        arguments,
        environment: environment.to_vec(),
    })
}

fn podmon_arguments(mode: &str, socket: &Path, kubeconfig: &Path) -> Vec<String> {
    vec![
        format!("--mode={mode}"),
        format!("--csisock=unix:{}", socket.display()),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--labelvalue={PROTECTED}"),
        format!("--driverPath={DRIVER}"),
        format!("--driver-config-params={}", settings().display()),
        "--driverPodLabelValue=array".into(),
    ]
}
