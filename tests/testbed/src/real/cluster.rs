//! The cluster as a whole: control plane, nodes and whatever else runs beside them.

use std::path::{Path, PathBuf};
use std::process::Command;

use kube::Client;
use rustix::mount::{MountFlags, mount};

use super::binaries::Binaries;
use super::control_plane::{self, ControlPlane};
use super::identity::{self, Credential, Rights};
use super::image::Image;
use super::isolation::{self, STATE};
use super::node::{Daemon, Node};
use super::pki::Pki;
use super::process::Process;
use super::{Context, Result};

/// What every node has, beside containerd and the kubelet.
#[derive(Debug, Clone, Default)]
pub struct Equipment {
    /// Images beside the pause image.
    pub images: Vec<Image>,
    /// Daemons that are started at each boot, before the kubelet.
    pub daemons: Vec<Daemon>,
}

/// A running cluster. Only within [`isolation::enter`], once per program.
pub struct Cluster {
    // Dropped in this order: nodes while the control plane still runs would only log more noise.
    nodes: Vec<Node>,
    control_plane: ControlPlane,
    pki: Pki,
    binaries: Binaries,
    folder: PathBuf,
    logs: PathBuf,
}

impl Cluster {
    /// Starts the control plane. The flags are for kube-controller-manager, beside those of the fast failure profile; without
    /// any, the attach-detach controller has its stock tick of one minute.
    pub async fn start(binaries: Binaries, controller_manager_flags: &[String]) -> Result<Self> {
        let state = Path::new(STATE);
        mount("tmpfs", state, "tmpfs", MountFlags::empty(), c"mode=755")
            .context(|| format!("mount {STATE}"))?;
        let folder = state.join("control-plane");
        let logs = isolation::logs();
        let pki = Pki::create(&folder.join("pki"))?;
        let control_plane =
            ControlPlane::start(&binaries, &pki, &folder, &logs, controller_manager_flags).await?;
        Ok(Cluster {
            nodes: Vec::new(),
            control_plane,
            pki,
            binaries,
            folder,
            logs,
        })
    }

    /// Adds nodes, named `node1`, `node2` and so on; returns when all are Ready.
    pub async fn start_nodes(&mut self, count: usize, equipment: &Equipment) -> Result<()> {
        let mut archives = Vec::new();
        let images = std::iter::once(Image::pause()).chain(equipment.images.iter().cloned());
        for (number, image) in images.enumerate() {
            let archive = Path::new(STATE).join(format!("image{number}.tar"));
            image.write(&archive)?;
            archives.push(archive);
        }
        let first = self.nodes.len() + 1;
        for number in first..first + count {
            let node = Node::create(
                number,
                &self.binaries,
                &self.pki,
                &archives,
                &equipment.daemons,
                self.control_plane.admin(),
            )?;
            self.nodes.push(node);
        }
        let new = &self.nodes[first - 1..];
        futures::future::try_join_all(new.iter().map(Node::power_on)).await?;
        futures::future::try_join_all(new.iter().map(Node::wait_ready)).await?;
        Ok(())
    }

    /// A client with all rights, for what a test sets up and looks at.
    pub fn admin(&self) -> Client {
        self.control_plane.admin().clone()
    }

    /// The administrator's kubeconfig, for kubectl and the storage sidecars.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        control_plane::kubeconfig(&self.folder, "admin")
    }

    /// A kubeconfig for the ServiceAccount `namespace/name` with exactly `rights`; made if it is not there.
    pub async fn service_account(
        &self,
        namespace: &str,
        name: &str,
        rights: &Rights,
    ) -> Result<PathBuf> {
        let token =
            identity::service_account(self.control_plane.admin(), namespace, name, rights).await?;
        let file = format!("{namespace}-{name}");
        control_plane::write_kubeconfig(&self.folder, &file, &self.pki, &Credential::Token(&token))
    }

    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node of a name, such as a pod's `spec.nodeName`.
    pub fn node(&self, name: &str) -> &Node {
        self.nodes
            .iter()
            .find(|node| node.name() == name)
            .unwrap_or_else(|| panic!("the cluster has no node {name}"))
    }

    pub fn control_plane(&mut self) -> &mut ControlPlane {
        &mut self.control_plane
    }

    /// Where a program of the cluster or of this workspace is.
    pub fn program(&self, name: &str) -> Result<&Path> {
        self.binaries.path(name)
    }

    /// Starts a process beside the control plane, outside of every node; its log is `<name>.log`.
    pub fn run(&self, name: &str, command: Command) -> Result<Process> {
        Process::start(name, command, &self.logs)
    }
}
