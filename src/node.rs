//! Node mode: what must be proved on this host before the node may be used again after its pods were evacuated, and
//! the clearing away of what the kubelet leaves behind (design.md, "The node").
//!
//! Truth is read from the host and the API server each time it is needed; what is remembered only makes podmon wait
//! longer. So a restart changes nothing.

pub mod blocker;
pub mod cleanup;
pub mod clear;
pub mod detached;
mod device;
pub mod history;
mod holders;
pub mod host;
pub mod identity;
pub mod inspect;
pub mod layout;
pub mod mounts;
pub mod patch;
pub mod report;
pub mod requalify;
mod serve;
pub mod sight;

use kube::Api;
use kube::runtime::watcher;
use tokio::sync::mpsc;

use crate::clock::Clock;
use crate::cluster::Cluster;
use crate::cluster::event::Events;
use crate::cluster::node::NodeView;
use crate::cluster::watch::watch;
use crate::configuration::Configuration;
use crate::connect::{self, ClientError};
use crate::csi::Driver;
use crate::domain::NodeName;
use crate::environment::NoNodeName;
use crate::names::{Names, Profile};

use self::cleanup::Cleaner;
use self::detached::Detachments;
use self::host::{Host, Machine};
use self::identity::Store;
use self::layout::Layout;
use self::serve::Keeper;

/// Changes of the Node that wait to be taken in at most.
const CHANGES: usize = 16;

/// Why node mode ended.
#[derive(thiserror::Error, Debug)]
pub enum Ended {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("--csisock: {0}")]
    Socket(#[from] tonic::transport::Error),
    #[error(transparent)]
    NodeName(#[from] NoNodeName),
    #[error("a watch ended")]
    Watch,
}

/// What node mode is made of besides its configuration: the seams under which a simulation puts its own.
pub struct Parts {
    pub client: kube::Client,
    pub driver: Driver,
    pub names: Names,
    pub clock: Clock,
    pub layout: Layout,
    pub host: Host,
    pub store: Store,
    pub detachments: Detachments,
}

/// Runs on this machine; returns only when it cannot go on. Leader election is not for nodes, whatever the flag says:
/// each looks after itself.
pub async fn run(configuration: Configuration) -> Ended {
    match start(&configuration).await {
        Ok(parts) => serve(configuration, parts).await,
        Err(ended) => ended,
    }
}

async fn start(configuration: &Configuration) -> Result<Parts, Ended> {
    let arguments = &configuration.arguments;
    let config = connect::api_server(arguments.kubeconfig.as_deref()).await?;
    let client = connect::client(&config)?;
    let driver = Driver::at(&arguments.csi_socket)?;
    let name = connect::driver_name(&driver, &arguments.csi_socket).await;
    let driver_path = arguments.driver_path.as_deref();
    let names = Names::new(Profile::choose(driver_path), name, driver_path);
    let layout = Layout::new(
        arguments.kubelet_root.clone(),
        Profile::choose(driver_path),
        names.driver.clone(),
        configuration.environment.private_mount_dir.clone(),
    );
    Ok(Parts {
        client,
        driver,
        names,
        clock: Clock::machine(),
        host: Host::machine(Machine::default(), layout.clone()),
        layout,
        store: Store::beside(&arguments.csi_socket),
        detachments: Detachments::beside(&arguments.csi_socket),
    })
}

/// Runs on these parts.
pub async fn serve(configuration: Configuration, parts: Parts) -> Ended {
    let name: NodeName = match configuration.environment.required_node_name() {
        Ok(name) => name.clone(),
        Err(error) => return error.into(),
    };
    let protection = configuration.protection(&parts.names);
    let arguments = configuration.arguments;
    let cluster = Cluster::new(parts.client, parts.names, protection);
    let (events, send_events) = Events::new(cluster.clone(), parts.clock.clone());
    let (sender, changes) = mpsc::channel(CHANGES);
    let names = cluster.names().clone();
    let own = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let nodes = Api::<NodeView>::all(cluster.client().clone());
    let watching = watch(
        nodes,
        own,
        move |view| Some(view.observe(&names)),
        |change| change,
        sender,
    );
    let cleaner = Cleaner {
        cluster,
        driver: parts.driver,
        host: parts.host,
        node: name,
        profile: Profile::choose(arguments.driver_path.as_deref()),
        detachments: parts.detachments,
        lazily: arguments.lazy_unmount,
    };
    let keeper = Keeper::new(
        cleaner,
        parts.layout,
        parts.clock,
        parts.store,
        events,
        arguments.stop_zombies,
    );
    tokio::select! {
        () = keeper.run(changes) => Ended::Watch,
        () = watching => Ended::Watch,
        () = send_events => Ended::Watch,
    }
}
