//! Controller mode: observe, decide, act (design.md). One task owns all state, so there is no lock; effects run
//! beside it and hand back their outcomes.

pub mod decide;
pub mod evacuation;
pub mod group;
pub mod perform;
pub mod refusal;
pub mod step;
pub mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kube::Api;
use kube::runtime::watcher;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::arguments::Mode;
use crate::clock::{Clock, Moment};
use crate::cluster::attachment::AttachmentView;
use crate::cluster::event::Events;
use crate::cluster::lease::{self, Claim, Election, Lost};
use crate::cluster::node::NodeView;
use crate::cluster::pod::PodView;
use crate::cluster::watch::{Change, watch};
use crate::cluster::{Cluster, Protection};
use crate::configuration::Configuration;
use crate::connect::{self, ClientError};
use crate::csi::{Capabilities, Driver};
use crate::domain::NodeName;
use crate::names::{Names, Profile};
use crate::settings::Settings;

use self::evacuation::{Evacuation, Rules};
use self::perform::Effects;
use self::step::{Outcome, Step};
use self::world::{Observation, World};

/// How often everything is looked at although nothing happened.
const FULL_PASS: Duration = Duration::from_secs(30);
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
    let arguments = configuration.arguments;
    let protection = Protection {
        key: arguments.protected.key.clone(),
        value: arguments.protected.value.clone(),
        driver_namespace: configuration.environment.driver_namespace.clone(),
    };
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
    let mut watches = watches(&cluster, &sender);
    drop(sender);
    let effects = Effects::new(cluster, driver, clock.clone(), claims.clone(), events);
    let controller = Controller {
        names: effects.names().clone(),
        world: World::default(),
        evacuations: BTreeMap::new(),
        abilities,
        ignore_volumeless: arguments.ignore_volumeless_pods,
        settings: configuration.settings,
        effects,
        clock,
        claims,
        performing: JoinSet::new(),
        by: None,
    };
    let lost = async {
        match election {
            Some(election) => Ended::Leadership(election.run().await),
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        ended = lost => ended,
        ended = controller.run(observations) => ended,
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

fn watches(cluster: &Cluster, sender: &mpsc::Sender<Observation>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let (names, protection) = (cluster.names().clone(), cluster.protection().clone());
    let client = || cluster.client().clone();
    let selector = protection.selector();
    tracing::info!(
        "labelSelector: {{map[{}:{}]",
        protection.key,
        protection.value
    );
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

/// The loop, and all that it owns.
struct Controller {
    names: Names,
    world: World,
    evacuations: BTreeMap<NodeName, Evacuation>,
    abilities: Abilities,
    ignore_volumeless: bool,
    settings: watch::Receiver<Settings>,
    effects: Effects,
    clock: Clock,
    claims: watch::Receiver<Option<Claim>>,
    performing: JoinSet<(NodeName, Outcome)>,
    /// The term that the evacuations belong to.
    by: Option<String>,
}

impl Controller {
    async fn run(mut self, mut observations: mpsc::Receiver<Observation>) -> Ended {
        let mut full_pass = tokio::time::interval(FULL_PASS);
        loop {
            let wake = self.sleep();
            let touched = tokio::select! {
                observation = observations.recv() => match observation {
                    Some(observation) => self.observe(observation),
                    None => return Ended::Watch,
                },
                Some(done) = self.performing.join_next() => match done {
                    Ok((node, outcome)) => self.record(node, outcome),
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                },
                _ = self.claims.changed() => BTreeSet::new(),
                _ = full_pass.tick() => self.everywhere(),
                () = wake => BTreeSet::new(),
            };
            self.lead();
            self.advance(touched);
        }
    }

    /// Until the first evacuation wants to be asked again.
    fn sleep(&self) -> impl Future<Output = ()> + use<> {
        let first: Option<Moment> = self.evacuations.values().filter_map(Evacuation::wake).min();
        let wait = first.map(|first| first - self.clock.now());
        async move {
            match wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
        }
    }

    fn observe(&mut self, observation: Observation) -> BTreeSet<NodeName> {
        if let Observation::Pod(Change::Stale(error))
        | Observation::Node(Change::Stale(error))
        | Observation::Attachment(Change::Stale(error)) = &observation
        {
            tracing::warn!(%error, "A watch broke; trying again");
        }
        let was_complete = self.world.complete();
        let mut touched = self.world.observe(&observation);
        let now = self.clock.now();
        for evacuation in self.evacuations.values_mut() {
            evacuation.observe(&observation, now);
        }
        touched.extend(self.evacuations.keys().cloned());
        if !was_complete && self.world.complete() {
            touched.extend(self.everywhere());
        }
        touched
    }

    fn record(&mut self, node: NodeName, outcome: Outcome) -> BTreeSet<NodeName> {
        let now = self.clock.now();
        if let (Some(evacuation), Some(by)) = (self.evacuations.get_mut(&node), &self.by) {
            for step in evacuation.record(outcome, by, now) {
                self.start(&node, step);
            }
        }
        BTreeSet::from([node])
    }

    fn everywhere(&self) -> BTreeSet<NodeName> {
        self.world.nodes().map(|node| node.name.clone()).collect()
    }

    /// Another term knows nothing of this one's evacuations but what the journals say.
    fn lead(&mut self) {
        let by = self
            .claims
            .borrow_and_update()
            .as_ref()
            .map(|claim| claim.by.clone());
        if self.by == by {
            return;
        }
        if let Some(by) = &by {
            tracing::info!(%by, "Leading");
        }
        self.evacuations.clear();
        self.performing.abort_all();
        self.performing = JoinSet::new();
        self.by = by;
        let everywhere = self.everywhere();
        self.advance(everywhere);
    }

    /// Begins evacuations where the picture calls for one, and lets every one of them go on.
    fn advance(&mut self, touched: BTreeSet<NodeName>) {
        let Some(by) = self.by.clone().filter(|_| self.world.complete()) else {
            return;
        };
        let now = self.clock.now();
        for node in touched {
            if !self.evacuations.contains_key(&node) && decide::concerns(&self.world, &node, false)
            {
                let evacuation = Evacuation::new(node.clone(), self.names.clone(), now);
                self.evacuations.insert(node, evacuation);
            }
        }
        let rules = self.rules(by);
        let mut steps = Vec::new();
        self.evacuations.retain(|node, evacuation| {
            let next = evacuation.next(&rules, now);
            let over = next.is_empty() && evacuation.is_over(&rules);
            steps.extend(next.into_iter().map(|step| (node.clone(), step)));
            !over
        });
        for (node, step) in steps {
            self.start(&node, step);
        }
    }

    fn rules(&self, by: String) -> Rules {
        let settings = self.settings.borrow();
        Rules {
            by,
            republishes: self.abilities.capabilities.republishes,
            powerless: !(self.abilities.capabilities.fences && self.abilities.attached),
            ignore_volumeless: self.ignore_volumeless,
            skip_array_validation: settings.skip_array_connection_validation,
            array_lost: false,
            held: false,
            wall: self.clock.wall().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        }
    }

    fn start(&mut self, node: &NodeName, step: Step) {
        let effects = self.effects.clone();
        let node = node.clone();
        self.performing.spawn(async move {
            let outcome = effects.perform(&node, step).await;
            (node, outcome)
        });
    }
}
