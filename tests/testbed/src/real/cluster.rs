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

/// What a cluster is made of.
#[derive(Debug, Clone)]
pub struct Options {
    /// How many nodes, named `node1`, `node2` and so on. They are started by [`Cluster::start`].
    pub nodes: usize,
    /// Flags for kube-controller-manager beside those of the fast failure profile. Without any, the attach-detach controller
    /// has its stock tick of one minute.
    pub controller_manager_flags: Vec<String>,
    /// Images that every node has, beside the pause image.
    pub images: Vec<Image>,
    /// Daemons that every node starts at each boot, before its kubelet.
    pub daemons: Vec<Daemon>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            nodes: 2,
            controller_manager_flags: Vec::new(),
            images: Vec::new(),
            daemons: Vec::new(),
        }
    }
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
    /// Starts the control plane and all nodes; returns when every node is Ready.
    pub async fn start(binaries: Binaries, options: Options) -> Result<Self> {
        let state = Path::new(STATE);
        mount("tmpfs", state, "tmpfs", MountFlags::empty(), c"mode=755")
            .context(|| format!("mount {STATE}"))?;
        let folder = state.join("control-plane");
        let logs = isolation::logs();
        let pki = Pki::create(&folder.join("pki"))?;
        let control_plane = ControlPlane::start(
            &binaries,
            &pki,
            &folder,
            &logs,
            &options.controller_manager_flags,
        )
        .await?;
        let mut cluster = Cluster {
            nodes: Vec::new(),
            control_plane,
            pki,
            binaries,
            folder,
            logs,
        };
        cluster.add_nodes(&options).await?;
        Ok(cluster)
    }

    async fn add_nodes(&mut self, options: &Options) -> Result<()> {
        let mut archives = Vec::new();
        let images = std::iter::once(Image::pause()).chain(options.images.iter().cloned());
        for (number, image) in images.enumerate() {
            let archive = Path::new(STATE).join(format!("image{number}.tar"));
            image.write(&archive)?;
            archives.push(archive);
        }
        for number in 1..=options.nodes {
            let node = Node::create(
                number,
                &self.binaries,
                &self.pki,
                &archives,
                &options.daemons,
                self.control_plane.admin(),
            )?;
            self.nodes.push(node);
        }
        futures::future::try_join_all(self.nodes.iter().map(Node::power_on)).await?;
        futures::future::try_join_all(self.nodes.iter().map(Node::wait_ready)).await?;
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
