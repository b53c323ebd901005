//! The command line of the `storage` binary: array, data path and CSI driver as processes.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use tonic::transport::Server;

use super::array::{Access, Array, Policy, StaleSessions};
use super::client::Client;
use super::disk;
use super::door::Door;
use super::driver::connectivity::ConnectivityService;
use super::driver::controller::ControllerService;
use super::driver::identity::IdentityService;
use super::driver::node::NodeService;
use super::driver::registration::RegistrationService;
use super::driver::staging::Staging;
use super::driver::{self, NAME};
use super::name::{Epoch, NodeId, VolumeId};
use super::{hold, server};
use crate::proto::csi::controller_server::ControllerServer;
use crate::proto::csi::identity_server::IdentityServer;
use crate::proto::csi::node_server::NodeServer;
use crate::proto::podmon::podmon_server::PodmonServer;
use crate::proto::registration::registration_server::RegistrationServer;

/// Storage that fences: array, data path and CSI driver.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The array.
    Array {
        /// Unix socket to serve on.
        #[arg(long)]
        socket: PathBuf,
        /// Empty directory for volumes and ledger.
        #[arg(long)]
        dir: PathBuf,
        /// Refuse a second node instead of granting it.
        #[arg(long)]
        exclusive: bool,
        /// How long a node may be silent before it counts as disconnected.
        #[arg(long, default_value_t = 2000)]
        silence_ms: u64,
        /// How long I/O counts as in progress.
        #[arg(long, default_value_t = 2000)]
        sample_ms: u64,
        /// Let a new grant to a node revive the node's old sessions.
        #[arg(long)]
        revive_stale_sessions: bool,
    },
    /// A node's view of a volume: a FUSE directory with one file, until it is unmounted.
    Attach {
        #[arg(long)]
        array: PathBuf,
        #[arg(long)]
        node: NodeId,
        #[arg(long)]
        volume: VolumeId,
        /// The grant.
        #[arg(long)]
        epoch: Epoch,
        #[arg(long)]
        dir: PathBuf,
    },
    /// A file shown as a block device, until it is unmounted.
    Hold {
        #[arg(long)]
        file: PathBuf,
        /// What the loop device is to be called.
        #[arg(long)]
        tag: String,
        /// Existing file over which the device is mounted.
        #[arg(long)]
        target: PathBuf,
    },
    /// The CSI driver beside the control plane.
    Controller {
        /// Unix socket to serve on.
        #[arg(long)]
        socket: PathBuf,
        #[arg(long)]
        array: PathBuf,
        #[command(flatten)]
        controller: ControllerArguments,
    },
    /// The CSI driver on a node.
    Node {
        /// The node's name, to Kubernetes and to the array.
        #[arg(long)]
        name: NodeId,
        #[arg(long)]
        array: PathBuf,
        /// The kubelet's root directory.
        #[arg(long)]
        kubelet_dir: PathBuf,
        #[arg(long, default_value = RUN_DIR)]
        run_dir: PathBuf,
    },
    /// Controller and node on one socket, for csi-sanity.
    Combined {
        #[arg(long)]
        socket: PathBuf,
        #[arg(long)]
        name: NodeId,
        #[arg(long)]
        array: PathBuf,
        #[arg(long, default_value = RUN_DIR)]
        run_dir: PathBuf,
        #[command(flatten)]
        controller: ControllerArguments,
    },
}

const RUN_DIR: &str = "/run/array.podmon.test";

#[derive(Debug, Args)]
struct ControllerArguments {
    /// Do not serve the connectivity extension.
    #[arg(long)]
    without_extension: bool,
    /// Tell in ListVolumes which nodes have access.
    #[arg(long)]
    published_nodes: bool,
}

/// Runs the command line of this process.
pub fn main() -> Result<(), Box<dyn Error>> {
    match Arguments::parse().command {
        Command::Array {
            socket,
            dir,
            exclusive,
            silence_ms,
            sample_ms,
            revive_stale_sessions,
        } => {
            let policy = if exclusive {
                Policy::Exclusive
            } else {
                Policy::Permissive
            };
            let stale = if revive_stale_sessions {
                StaleSessions::Revived
            } else {
                StaleSessions::Refused
            };
            let array = Array::new(policy)
                .with_stale_sessions(stale)
                .with_silence(Duration::from_millis(silence_ms))
                .with_sample(Duration::from_millis(sample_ms));
            Ok(server::serve(array, &socket, &dir)?)
        }
        Command::Attach {
            array,
            node,
            volume,
            epoch,
            dir,
        } => {
            let access = Access {
                volume,
                node,
                epoch,
            };
            Ok(disk::serve(&array, access, &dir)?)
        }
        Command::Hold { file, tag, target } => Ok(hold::hold(&file, &tag, &target)?),
        Command::Controller {
            socket,
            array,
            controller,
        } => block_on(async {
            let door = Door::There(Client::new(&array));
            driver::serve(&socket, controllers(&door, &controller)).await
        }),
        Command::Node {
            name,
            array,
            kubelet_dir,
            run_dir,
        } => block_on(serve_node(name, &array, &kubelet_dir, run_dir)),
        Command::Combined {
            socket,
            name,
            array,
            run_dir,
            controller,
        } => block_on(async {
            let door = Door::There(Client::new(&array));
            let node = node_service(&door, name, &array, run_dir);
            let services = controllers(&door, &controller);
            driver::serve(&socket, services.add_service(NodeServer::new(node))).await
        }),
    }
}

fn block_on(
    work: impl Future<Output = Result<(), driver::ServeError>>,
) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    Ok(runtime.block_on(work)?)
}

fn controllers(door: &Door, arguments: &ControllerArguments) -> tonic::transport::server::Router {
    let controller = ControllerService {
        door: door.clone(),
        published_nodes: arguments.published_nodes,
    };
    let extension = (!arguments.without_extension).then(|| {
        let door = door.clone();
        PodmonServer::new(ConnectivityService { door })
    });
    let identity = IdentityService { door: door.clone() };
    Server::builder()
        .add_service(IdentityServer::new(identity))
        .add_service(ControllerServer::new(controller))
        .add_optional_service(extension)
}

fn node_service(door: &Door, node: NodeId, array: &Path, run_dir: PathBuf) -> NodeService {
    disk::live(array, &node);
    let staging = Staging {
        node,
        array: array.to_owned(),
        run_dir,
        // Not argv[0], which need not be a path.
        program: PathBuf::from("/proc/self/exe"),
    };
    NodeService::new(door.clone(), staging)
}

async fn serve_node(
    name: NodeId,
    array: &Path,
    kubelet_dir: &Path,
    run_dir: PathBuf,
) -> Result<(), driver::ServeError> {
    let door = Door::There(Client::new(array));
    let node = node_service(&door, name, array, run_dir);
    let socket = kubelet_dir.join("plugins").join(NAME).join("csi.sock");
    let registry = kubelet_dir.join("plugins_registry");
    // gRPC in Go makes the path the authority of its requests, with %2F for each slash; hyper takes a percent sign only
    // before an at sign.
    let registry = registry.join(format!("registration@{NAME}.sock"));
    let registration = RegistrationService {
        endpoint: socket.to_string_lossy().into_owned(),
    };
    let services = Server::builder()
        .add_service(IdentityServer::new(IdentityService { door }))
        .add_service(NodeServer::new(node));
    let registration = Server::builder().add_service(RegistrationServer::new(registration));
    tokio::try_join!(
        driver::serve(&socket, services),
        driver::serve(&registry, registration),
    )
    .map(drop)
}
