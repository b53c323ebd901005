//! The loop: observe, decide, act. One task owns all state; what may take long runs beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::blocker::Blocker;
use super::cleanup::{Cleaner, CleanupError};
use super::detached::Detached;
use super::history::History;
use super::identity::{Identity, Store};
use super::inspect::Job;
use super::layout::Layout;
use super::patch;
use super::report::Reporter;
use super::requalify::{Situation, Verdict, requalify, zombies};
use super::sight::{Seen, Sight, Unseen};
use crate::clock::{Clock, Moment};
use crate::cluster::ClusterError;
use crate::cluster::event::{Events, Severity};
use crate::cluster::node::Node;
use crate::cluster::pod::Pod;
use crate::cluster::watch::Change;
use crate::cri::{Alive, Running};
use crate::domain::{PodUid, VolumeHandle};
use crate::journal::Found;

/// How often the host's pulse is felt, which costs no request.
const PULSE: Duration = Duration::from_secs(1);
/// How often the Node is read although nothing happened: with the watch's own renewals, one a minute, at most two requests
/// a minute.
const SAFETY: Duration = Duration::from_secs(65);
/// How soon after one another the pulse may make us read the Node.
const PULSE_READS: Duration = Duration::from_secs(3);
/// How often the Node is read while it concerns us, at most; the watch is mostly first.
const AWAITED: Duration = Duration::from_secs(5);
/// How long a read of the Node may take.
const READ: Duration = Duration::from_secs(3);
/// How often the host is looked at: most often, and least often.
const LOOKS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// Looks, or so, in the time for which nothing has changed.
const LULL: u32 = 20;
/// Reads of the Node and of its pods that a look decides nothing by are this many looks apart, and never closer than
/// [`AWAITED`].
const READS: u32 = 3;
/// Tries that a write may need before a Node that changes all the time is met differently.
const TRIES: usize = 5;
/// Volumes that are cleared away at once.
const PARALLEL: usize = 8;
/// Waiting time after a volume could not be cleared away: doubled from the first to the last.
const AGAIN: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(30));
/// How long the driver may take to say what it can do, and how soon it is asked again.
const ASK: Duration = Duration::from_secs(5);
/// How long a write may take.
const WRITE: Duration = Duration::from_secs(10);

/// All state of node mode.
pub struct Keeper {
    cleaner: Cleaner,
    layout: Layout,
    clock: Clock,
    store: Store,
    events: Events,
    /// The Node as last seen.
    node: Option<Node>,
    /// When it was last read, and whether that succeeded.
    read: Option<(Moment, bool)>,
    history: History,
    identity: Option<Identity>,
    pods: Option<(Moment, Seen<Vec<Pod>>)>,
    stages: Arc<OnceLock<bool>>,
    asking: Option<Moment>,
    pulse: u64,
    reporter: Reporter,
    jobs: JoinSet<Done>,
    under_way: BTreeSet<VolumeHandle>,
    failed: BTreeMap<VolumeHandle, Failed>,
    /// The operator allows it.
    stop_zombies: bool,
    stopping: BTreeSet<Alive>,
    stops: JoinSet<Alive>,
}

/// A volume that could not be cleared away.
struct Failed {
    problem: Option<String>,
    again: Moment,
    wait: Duration,
}

struct Done {
    job: Job,
    generation: u64,
    result: Result<(), CleanupError>,
}

/// What was read of the host and of the node's pods.
struct Truth {
    pods: Seen<Vec<Pod>>,
    running: Seen<Running>,
    host: Sight,
    detached: Seen<Vec<Detached>>,
}

impl Keeper {
    pub fn new(
        cleaner: Cleaner,
        layout: Layout,
        clock: Clock,
        store: Store,
        events: Events,
        stop_zombies: bool,
    ) -> Self {
        Self {
            identity: store.load(),
            pulse: (cleaner.host.pulse)(),
            cleaner,
            layout,
            clock,
            store,
            events,
            node: None,
            read: None,
            history: History::default(),
            pods: None,
            stages: Arc::default(),
            asking: None,
            reporter: Reporter::default(),
            jobs: JoinSet::new(),
            under_way: BTreeSet::new(),
            failed: BTreeMap::new(),
            stop_zombies,
            stopping: BTreeSet::new(),
            stops: JoinSet::new(),
        }
    }

    /// Runs until the watch is gone.
    pub async fn run(mut self, mut changes: mpsc::Receiver<Change<Node>>) {
        loop {
            let pause = self.step().await;
            tokio::select! {
                change = changes.recv() => {
                    let Some(change) = change else { return };
                    self.take_in(change);
                    while let Ok(change) = changes.try_recv() {
                        self.take_in(change);
                    }
                }
                Some(done) = self.jobs.join_next() => self.cleared(done),
                Some(Ok(container)) = self.stops.join_next() => {
                    self.stopping.remove(&container);
                }
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    fn take_in(&mut self, change: Change<Node>) {
        match change {
            Change::All(nodes) => match nodes.into_iter().next() {
                Some(node) => self.observe(node),
                None => self.node = None,
            },
            Change::Applied(node) => self.observe(node),
            Change::Deleted(_) => self.node = None,
            Change::Stale(problem) => {
                tracing::debug!(problem, "The watch of the node is broken");
                self.history.interrupted();
            }
        }
    }

    fn observe(&mut self, node: Node) {
        let names = self.cleaner.cluster.names();
        self.history.observe(&node, names, self.clock.now());
        self.node = Some(node);
    }

    /// One pass; returns how soon the next one should follow if nothing happens before.
    async fn step(&mut self) -> Duration {
        self.safety_read().await;
        let Some(node) = self.node.clone() else {
            return PULSE;
        };
        let recreated = self.recreated(&node);
        let names = self.cleaner.cluster.names().clone();
        if !node.tainted(&names) && node.journal.is_none() && !recreated {
            self.reporter.cleared();
            self.failed.clear();
            return PULSE;
        }
        self.learn_abilities();
        let truth = self.truth(false).await;
        let verdict = self.decide(&node, recreated, &truth);
        match &verdict {
            Verdict::Wait(_) | Verdict::Clean(..) => self.report(&node, &verdict),
            _ => self.settle(recreated).await,
        }
        if let Verdict::Clean(jobs, _) = verdict.clone() {
            self.start(jobs, &node);
        }
        if self.stop_zombies {
            let zombies = zombies(&self.situation(&node, recreated, &truth), &verdict);
            self.stop(zombies);
        }
        self.pace()
    }

    /// Stops containers that the kubelet left running, on the operator's word.
    fn stop(&mut self, zombies: Vec<Alive>) {
        for container in zombies {
            if !self.stopping.insert(container.clone()) {
                continue;
            }
            tracing::warn!(
                container = container.name,
                id = container.id,
                "Stopping a container of an evacuated pod, as --stopZombies allows"
            );
            let stop = self.cleaner.host.stop.clone();
            self.stops.spawn(async move {
                if let Err(error) = stop(container.clone()).await {
                    tracing::warn!(%error, "The container cannot be stopped; trying again");
                }
                container
            });
        }
    }

    /// How soon to look again: soon after something changed, then less and less often.
    fn pace(&self) -> Duration {
        let still = self.history.unchanged_for(self.clock.now());
        let still = still.min(self.reporter.unchanged_for(self.clock.now()));
        (still / LULL).clamp(LOOKS.0, LOOKS.1)
    }

    /// Reads the Node when it is time to, or when the host shows that the kubelet is at work.
    async fn safety_read(&mut self) {
        let now = self.clock.now();
        let pulse = (self.cleaner.host.pulse)();
        let concerned = self.node.as_ref().is_some_and(|node| {
            node.tainted(self.cleaner.cluster.names()) || node.journal.is_some()
        });
        let interval = match self.read {
            Some((_, false)) => PULSE,
            _ if pulse != self.pulse => PULSE_READS,
            _ if concerned => (self.pace() * READS).max(AWAITED),
            _ => SAFETY,
        };
        if self.read.is_some_and(|(last, _)| now - last < interval) {
            return;
        }
        self.pulse = pulse;
        match self.live().await {
            Ok(node) => {
                if let Some((_, false)) = self.read {
                    tracing::info!("API connectivity restored to node");
                    self.history.interrupted();
                }
                self.read = Some((self.clock.now(), true));
                match node {
                    Some(node) => self.observe(node),
                    None => self.node = None,
                }
            }
            Err(error) => {
                if !matches!(self.read, Some((_, false))) {
                    tracing::warn!(%error, "Lost API connectivity from node");
                }
                self.history.interrupted();
                self.read = Some((self.clock.now(), false));
            }
        }
    }

    async fn live(&self) -> Result<Option<Node>, ClusterError> {
        let cluster = &self.cleaner.cluster;
        match tokio::time::timeout(READ, cluster.node(&self.cleaner.node)).await {
            Ok(answer) => answer,
            Err(_) => Err(ClusterError::Deadline {
                action: format!("get node {}", self.cleaner.node),
                within: READ,
            }),
        }
    }

    /// Whether the Node object is a new one; otherwise what it is gets noted.
    fn recreated(&mut self, node: &Node) -> bool {
        let Some(now) = self.identity_of(node) else {
            return false;
        };
        match &self.identity {
            Some(last) if *last == now => false,
            Some(last) if last.is_recreated(&now) => true,
            _ => {
                self.remember(now);
                false
            }
        }
    }

    fn identity_of(&self, node: &Node) -> Option<Identity> {
        let boot = (self.cleaner.host.boot)()?;
        let node = node.uid.clone();
        Some(Identity { node, boot })
    }

    fn remember(&mut self, identity: Identity) {
        if let Err(error) = self.store.save(&identity) {
            tracing::warn!(%error, "Cannot note which Node object this is; a Node registered anew will not be noticed after a restart");
        }
        self.identity = Some(identity);
    }

    /// Whether the driver stages volumes; asked, beside all else, until it answers.
    fn learn_abilities(&mut self) {
        let asked = self
            .asking
            .is_some_and(|last| self.clock.now() - last < ASK);
        if asked || self.stages.get().is_some() {
            return;
        }
        self.asking = Some(self.clock.now());
        let (driver, stages) = (self.cleaner.driver.clone(), self.stages.clone());
        tokio::spawn(async move {
            match driver.stages(ASK).await {
                Ok(answer) => {
                    let _ = stages.set(answer);
                }
                Err(error) => tracing::debug!(%error, "The driver does not say what it can do"),
            }
        });
    }

    /// Reads pods, runtime and host, in this order; the pods may be a little old if nothing is decided by them.
    async fn truth(&mut self, now: bool) -> Truth {
        let age = (self.pace() * READS).max(AWAITED);
        let old = |(read, _): &(Moment, _)| self.clock.now() - *read >= age;
        if now || self.pods.as_ref().is_none_or(old) {
            let read = self.clock.now();
            let pods = self.cleaner.cluster.pods_on(&self.cleaner.node).await;
            let pods = pods.map_err(|error| Unseen::new("pods of this node", error));
            self.pods = Some((read, pods));
        }
        let nothing = || Err(Unseen::new("pods of this node", "not read"));
        let pods = self
            .pods
            .as_ref()
            .map_or_else(nothing, |(_, pods)| pods.clone());
        Truth {
            pods,
            running: (self.cleaner.host.running)().await,
            host: (self.cleaner.host.look)().await,
            detached: self.detached().await,
        }
    }

    /// What was detached and may still be written to; what cannot any more is struck out.
    async fn detached(&self) -> Seen<Vec<Detached>> {
        let boot = (self.cleaner.host.boot)();
        let (mut open, mut ended) = (Vec::new(), Vec::new());
        for detached in self.cleaner.detachments.all()? {
            let closed = detached.ended_by(boot.as_ref())
                || (detached.has_device()
                    && (self.cleaner.host.closed)(detached.device).await == Ok(true));
            if closed { &mut ended } else { &mut open }.push(detached);
        }
        if !ended.is_empty() {
            self.cleaner.detachments.forget(&ended)?;
        }
        Ok(open)
    }

    fn situation<'a>(&'a self, node: &'a Node, recreated: bool, truth: &'a Truth) -> Situation<'a> {
        let now = self.clock.now();
        Situation {
            names: self.cleaner.cluster.names(),
            layout: &self.layout,
            node,
            recreated,
            tainted_for: self.history.tainted_for(now),
            kubelet_had: self.history.kubelet_had(now),
            pods: &truth.pods,
            running: &truth.running,
            host: &truth.host,
            detached: &truth.detached,
            stages: self.stages.get().copied().unwrap_or(true),
            unstaged: self.history.all_unstaged(),
        }
    }

    fn decide(&self, node: &Node, recreated: bool, truth: &Truth) -> Verdict {
        requalify(&self.situation(node, recreated, truth))
    }

    /// Decides anew by fresh reads, the Node before everything else, and writes what follows with that Node's version.
    async fn settle(&mut self, recreated: bool) {
        for attempt in 0..=TRIES {
            let node = match self.live().await {
                Ok(Some(node)) => node,
                Ok(None) => return,
                Err(error) => {
                    tracing::info!(%error, "The node cannot be read");
                    return;
                }
            };
            self.observe(node.clone());
            let truth = self.truth(true).await;
            let verdict = self.decide(&node, recreated, &truth);
            let mut base = node;
            if attempt == TRIES {
                // The Node changes faster than we look. What was decided stands if nothing that it was decided by
                // has changed.
                match self.live().await {
                    Ok(Some(newest)) if same(&newest, &base) => base = newest,
                    _ => return,
                }
            }
            let names = self.cleaner.cluster.names();
            let (boot, wall) = ((self.cleaner.host.boot)(), self.clock.wall().to_string());
            let Some(patch) = patch::of(&verdict, &base, names, boot.as_ref(), &wall) else {
                if verdict == Verdict::Nothing {
                    if let Some(identity) = self.identity_of(&base).filter(|_| recreated) {
                        self.remember(identity);
                    }
                } else {
                    self.report(&base, &verdict);
                }
                return;
            };
            match self.cleaner.cluster.patch_node(&patch, WRITE).await {
                Ok(node) => {
                    self.done(&base, &verdict);
                    if let Some(identity) = self.identity_of(&node).filter(|_| recreated) {
                        self.remember(identity);
                    }
                    self.observe(node);
                    return;
                }
                Err(error) if error.is_conflict() => {}
                Err(error) => {
                    tracing::warn!(%error, "The node's taint or journal cannot be written");
                    return;
                }
            }
        }
    }

    /// Tells what was done.
    fn done(&mut self, node: &Node, verdict: &Verdict) {
        let list = |blockers: &[Blocker]| {
            let texts: Vec<_> = blockers.iter().take(4).map(ToString::to_string).collect();
            texts.join("; ")
        };
        let (severity, reason, message) = match verdict {
            Verdict::Lift => {
                let text = "podmon lifts its taint: nothing of the evacuated pods is left here";
                (Severity::Normal, "NodeRequalified", text.to_owned())
            }
            Verdict::RemoveJournal => {
                let text = "podmon removes its journal: the taint was taken away by hand, and nothing of the evacuated pods is left here";
                (Severity::Normal, "NodeRequalified", text.to_owned())
            }
            Verdict::PutTaintBack(blockers) => {
                let text = format!(
                    "podmon puts its taint back, which was taken away too early: {}",
                    list(blockers)
                );
                (Severity::Warning, "NodeTaintedAgain", text)
            }
            Verdict::TaintRecreated(_, blockers) => {
                let text = format!(
                    "podmon taints the node, which was registered anew while pods of its former self were left: {}",
                    list(blockers)
                );
                (Severity::Warning, "NodeRecreated", text)
            }
            Verdict::Nothing | Verdict::Wait(_) | Verdict::Clean(..) => return,
        };
        tracing::info!(node = %node.name, "{message}");
        let subject = (&node.name, &node.uid);
        self.reporter
            .tell(subject, &self.events, severity, reason, message);
        self.reporter.cleared();
    }

    fn report(&mut self, node: &Node, verdict: &Verdict) {
        let problems = self.failed.iter().filter_map(|(volume, failed)| {
            let problem = failed.problem.clone()?;
            Some((volume.clone(), problem))
        });
        let problems = problems.collect();
        let now = self.clock.now();
        let subject = (&node.name, &node.uid);
        self.reporter
            .blocked(verdict.blockers(), &problems, now, subject, &self.events);
    }

    /// Starts what may be cleared away now, each volume once.
    fn start(&mut self, jobs: Vec<Job>, node: &Node) {
        let evacuated: BTreeSet<PodUid> = match node.read_journal() {
            Found::Journal(journal) => journal.gone,
            Found::Absent | Found::Unreadable(_) => BTreeSet::new(),
        };
        let now = self.clock.now();
        for job in jobs {
            let waits = self.failed.get(&job.handle).is_some_and(|f| f.again > now);
            if waits || self.under_way.contains(&job.handle) || self.under_way.len() >= PARALLEL {
                continue;
            }
            tracing::info!(volume = %job.volume, "Clearing away what the kubelet left of the volume");
            self.under_way.insert(job.handle.clone());
            let (cleaner, evacuated) = (self.cleaner.clone(), evacuated.clone());
            let generation = self.history.generation();
            self.jobs.spawn(async move {
                let result = cleaner.clean(&job, &evacuated).await;
                Done {
                    job,
                    generation,
                    result,
                }
            });
        }
    }

    fn cleared(&mut self, done: Result<Done, tokio::task::JoinError>) {
        let Ok(Done {
            job,
            generation,
            result,
        }) = done
        else {
            return;
        };
        self.under_way.remove(&job.handle);
        let problem = match result {
            Ok(()) => {
                tracing::info!(volume = %job.volume, "The volume is cleared away");
                self.failed.remove(&job.handle);
                if !job.staging.is_empty() {
                    self.history.unstaged(job.handle, generation);
                }
                return;
            }
            Err(CleanupError::InProgress(error)) => {
                tracing::debug!(volume = %job.volume, %error, "The driver is at it");
                None
            }
            Err(error) => Some(error.to_string()),
        };
        let before = self.failed.remove(&job.handle);
        if problem.is_some() && before.as_ref().map(|failed| &failed.problem) != Some(&problem) {
            tracing::warn!(volume = %job.volume, error = problem, "The volume cannot be cleared away; trying again");
        }
        let wait = match (&problem, before) {
            (Some(_), Some(before)) => (before.wait * 2).min(AGAIN.1),
            _ => AGAIN.0,
        };
        let again = self.clock.now() + wait;
        self.failed.insert(
            job.handle,
            Failed {
                problem,
                again,
                wait,
            },
        );
    }
}

/// Whether nothing that a verdict depends on differs between two reads of the Node.
fn same(one: &Node, other: &Node) -> bool {
    one.uid == other.uid
        && one.ready == other.ready
        && one.taints == other.taints
        && one.journal == other.journal
}
