//! Controller mode: observe, decide, act (design.md).

pub mod array;
pub mod crash_loop;
pub mod decide;
pub mod driver_pods;
pub mod evacuation;
pub mod group;
pub mod perform;
pub mod reconciler;
pub mod refusal;
pub mod step;
pub mod storm;
pub mod world;

use std::time::Duration;

use kube::Api;
use kube::runtime::watcher;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::arguments::{Label, Mode};
use crate::clock::Clock;
use crate::cluster::Cluster;
use crate::cluster::attachment::AttachmentView;
use crate::cluster::event::Events;
use crate::cluster::lease::{self, Claim, Election, Lost};
use crate::cluster::node::NodeView;
use crate::cluster::pod::PodView;
use crate::cluster::watch::watch;
use crate::configuration::Configuration;
use crate::connect::{self, ClientError};
use crate::csi::{Capabilities, Driver};
use crate::names::{Names, Profile};

use self::perform::Effects;
use self::reconciler::{Policy, Reconciler};
use self::world::Observation;

/// Observations that wait to be taken in at most.
const OBSERVATIONS: usize = 1024;
/// How long one question about the driver's abilities may take, and how soon it is asked again.
const DRIVER: Duration = Duration::from_secs(10);
const DRIVER_AGAIN: Duration = Duration::from_secs(2);

/// Why the controller ended.
#[derive(thiserror::Error, Debug)]
pub enum Ended {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("--csisock: {0}")]
    Socket(#[from] tonic::transport::Error),
    #[error("stopped leading: {0}")]
    Leadership(Lost),
    #[error("a watch ended")]
    Watch,
}

/// Runs until leadership is lost; never returns otherwise.
pub async fn run(configuration: Configuration) -> Ended {
    match start(configuration).await {
        Ok(ended) | Err(ended) => ended,
    }
}

async fn start(configuration: Configuration) -> Result<Ended, Ended> {
    let arguments = &configuration.arguments;
    let config = connect::api_server(arguments.kubeconfig.as_deref()).await?;
    let driver = Driver::at(&arguments.csi_socket)?;
    let name = connect::driver_name(&driver, &arguments.csi_socket).await;
    let driver_path = arguments.driver_path.as_deref();
    let names = Names::new(Profile::choose(driver_path), name, driver_path);
    let parts = Parts {
        client: connect::client(&config)?,
        // So that no other traffic holds up a renewal.
        lease_client: connect::client(&config)?,
        driver,
        names,
        clock: Clock::machine(),
        hostname: rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned(),
    };
    Ok(serve(configuration, parts).await)
}

/// What a controller is made of besides its configuration: the seams under which a simulation puts its own.
pub struct Parts {
    pub client: kube::Client,
    pub lease_client: kube::Client,
    pub driver: Driver,
    pub names: Names,
    pub clock: Clock,
    pub hostname: String,
}

/// Runs on these parts until leadership is lost.
pub async fn serve(configuration: Configuration, parts: Parts) -> Ended {
    let protection = configuration.protection(&parts.names);
    let arguments = configuration.arguments;
    let Parts {
        client,
        lease_client,
        driver,
        names,
        clock,
        hostname,
    } = parts;
    let cluster = Cluster::new(client, names, protection);
    let abilities = abilities(&cluster, &driver).await;

    let elected = arguments.leader_election && arguments.mode == Mode::Controller;
    tracing::info!("leader election: {elected}");
    let identity = lease::identity(&hostname);
    let namespace = &configuration.environment.lease_namespace;
    let (election, claims) = if elected {
        let (election, claims) = Election::new(lease_client, namespace, identity, clock.clone());
        (Some(election), claims)
    } else {
        (None, unopposed(&identity, &clock))
    };

    let (events, send_events) = Events::new(cluster.clone(), clock.clone());
    let (sender, observations) = mpsc::channel(OBSERVATIONS);
    // Standalone is the controller with the watch on protected pods alone (contract §1.5).
    let whole = arguments.mode == Mode::Controller;
    let driver_pods = whole.then_some(&arguments.driver_pods);
    let mut watches = watches(&cluster, driver_pods, &sender);
    drop(sender);
    let policy = Policy {
        names: cluster.names().clone(),
        can_fence: abilities.capabilities.fences && abilities.attached,
        republishes: abilities.capabilities.republishes,
        polls_arrays: whole,
        ignore_volumeless: arguments.ignore_volumeless_pods,
        detect_only: arguments.detect_only,
        pause: arguments.pause,
        storm_guard: arguments.storm_guard,
        out_of_service_release: arguments.out_of_service_release,
    };
    let effects = Effects::new(cluster, driver, clock.clone(), claims.clone(), events);
    let reconciler = Reconciler::new(policy, configuration.settings, effects, clock, claims);
    let lost = async {
        match election {
            Some(election) => Ended::Leadership(election.run().await),
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        ended = lost => ended,
        ended = reconciler.run(observations) => ended,
        _ = watches.join_next() => Ended::Watch,
        () = send_events => Ended::Watch,
    }
}

/// A claim that never ends, for a controller that is told to do without election. Its term is told apart by the time
/// at which it began.
fn unopposed(identity: &str, clock: &Clock) -> watch::Receiver<Option<Claim>> {
    let by = format!("{identity}/{}", clock.wall().as_second());
    let until = clock.now() + Duration::from_secs(u32::MAX.into());
    watch::channel(Some(Claim { by, until })).1
}

/// What the driver can do, and whether Kubernetes lets it.
#[derive(Clone, Copy, Debug)]
struct Abilities {
    capabilities: Capabilities,
    attached: bool,
}

async fn abilities(cluster: &Cluster, driver: &Driver) -> Abilities {
    let capabilities = loop {
        match driver.capabilities(DRIVER).await {
            Ok(capabilities) => break capabilities,
            Err(error) if error.code() == Some(tonic::Code::Unimplemented) => {
                break Capabilities::default();
            }
            Err(error) => {
                tracing::warn!(%error, "The driver does not say what it can do; trying again")
            }
        }
        tokio::time::sleep(DRIVER_AGAIN).await;
    };
    let attached = loop {
        match cluster.attach_required().await {
            Ok(attached) => break attached,
            // Existing charts may not read CSIDriver; the Dell drivers all attach.
            Err(error) if error.is_forbidden() => break true,
            Err(error) => {
                tracing::warn!(%error, "Whether volumes are attached is not known; trying again")
            }
        }
        tokio::time::sleep(DRIVER_AGAIN).await;
    };
    let driver = &cluster.names().driver;
    if !capabilities.fences {
        tracing::error!(%driver, "The driver has no PUBLISH_UNPUBLISH_VOLUME, so it cannot fence: no pod is protected");
    } else if !attached {
        tracing::error!(%driver, "The CSIDriver object says attachRequired: false, so there is nothing to fence: no pod is protected");
    }
    Abilities {
        capabilities,
        attached,
    }
}

fn watches(
    cluster: &Cluster,
    driver_pods: Option<&Label>,
    sender: &mpsc::Sender<Observation>,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let (names, protection) = (cluster.names().clone(), cluster.protection().clone());
    let client = || cluster.client().clone();
    let selector = protection.selector();
    tracing::info!(
        "labelSelector: {{map[{}:{}]",
        protection.key,
        protection.value
    );
    let driver_namespace = protection.driver_namespace.clone();
    if let (Some(label), Some(namespace)) = (driver_pods, driver_namespace) {
        let protection = protection.clone();
        tasks.spawn(watch(
            Api::<PodView>::namespaced(client(), &namespace),
            watcher::Config::default().labels(&label.to_string()),
            move |view| Some(view.observe(&protection)),
            Observation::DriverPod,
            sender.clone(),
        ));
    }
    tasks.spawn(watch(
        Api::<PodView>::all(client()),
        watcher::Config::default().labels(&selector),
        move |view| Some(view.observe(&protection)),
        Observation::Pod,
        sender.clone(),
    ));
    let driver = names.driver.clone();
    tasks.spawn(watch(
        Api::<NodeView>::all(client()),
        watcher::Config::default(),
        move |view| Some(view.observe(&names)),
        Observation::Node,
        sender.clone(),
    ));
    tasks.spawn(watch(
        Api::<AttachmentView>::all(client()),
        watcher::Config::default(),
        move |view| {
            view.observe()
                .filter(|attachment| attachment.driver == driver)
        },
        Observation::Attachment,
        sender.clone(),
    ));
    tasks
}
