//! The controller's loop, and all that it owns. One task owns all state, so there is no lock; effects run beside it
//! and hand back their outcomes.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};

use super::Ended;
use super::array::{Arrays, Poll};
use super::crash_loop::{CrashLoops, Restart};
use super::decide;
use super::driver_pods::DriverPods;
use super::evacuation::{Evacuation, Rules};
use super::perform::Effects;
use super::refusal::Hold;
use super::step::{Outcome, Refused, Sight, Step};
use super::storm::{Limit, Picture};
use super::world::{Observation, World};
use crate::clock::{Clock, Moment};
use crate::cluster::Deleted;
use crate::cluster::event::{Report, Severity, Subject};
use crate::cluster::lease::Claim;
use crate::cluster::node::Node;
use crate::cluster::watch::Change;
use crate::domain::{Incarnation, NodeName, PodUid};
use crate::names::Names;
use crate::settings::Settings;
use crate::taint;

/// How often everything is looked at although nothing happened.
const FULL_PASS: Duration = Duration::from_secs(30);

/// What was decided at the start, once and for all.
#[derive(Clone, Debug)]
pub struct Policy {
    pub names: Names,
    /// The driver can fence, and Kubernetes attaches its volumes.
    pub can_fence: bool,
    /// `LIST_VOLUMES_PUBLISHED_NODES`.
    pub republishes: bool,
    pub polls_arrays: bool,
    pub ignore_volumeless: bool,
    pub detect_only: bool,
    pub pause: bool,
    pub storm_guard: Limit,
    pub out_of_service_release: bool,
}

/// What was under way, and what came of it.
enum Done {
    Step(NodeName, Outcome),
    Poll(Poll, Result<Sight, String>),
    Offline(NodeName, Result<Node, Refused>),
    Restart(Incarnation, Result<Deleted, Refused>),
}

pub struct Reconciler {
    policy: Policy,
    settings: watch::Receiver<Settings>,
    effects: Effects,
    clock: Clock,
    claims: watch::Receiver<Option<Claim>>,
    /// The term that everything below but the world belongs to.
    by: Option<String>,
    world: World,
    driver_pods: DriverPods,
    arrays: Arrays,
    crash_loops: CrashLoops,
    evacuations: BTreeMap<NodeName, Evacuation>,
    /// Nodes whose offline taint is being written.
    offline: BTreeSet<NodeName>,
    storm: bool,
    performing: JoinSet<Done>,
}

impl Reconciler {
    pub fn new(
        policy: Policy,
        settings: watch::Receiver<Settings>,
        effects: Effects,
        clock: Clock,
        claims: watch::Receiver<Option<Claim>>,
    ) -> Self {
        Self {
            policy,
            settings,
            effects,
            clock,
            claims,
            by: None,
            world: World::default(),
            driver_pods: DriverPods::default(),
            arrays: Arrays::default(),
            crash_loops: CrashLoops::default(),
            evacuations: BTreeMap::new(),
            offline: BTreeSet::new(),
            storm: false,
            performing: JoinSet::new(),
        }
    }

    /// Runs until the watches end.
    pub async fn run(mut self, mut observations: mpsc::Receiver<Observation>) -> Ended {
        let mut full_pass = tokio::time::interval(FULL_PASS);
        loop {
            let wake = self.sleep();
            let mut touched = tokio::select! {
                observation = observations.recv() => match observation {
                    Some(observation) => self.observe(observation),
                    None => return Ended::Watch,
                },
                Some(done) = self.performing.join_next() => self.finished(done),
                // A claim that never ends has no sender left.
                Ok(()) = self.claims.changed() => BTreeSet::new(),
                _ = full_pass.tick() => self.everywhere(),
                () = wake => BTreeSet::new(),
            };
            // What else is there already, so that each node is thought about once for all of it.
            while let Ok(observation) = observations.try_recv() {
                touched.extend(self.observe(observation));
            }
            while let Some(done) = self.performing.try_join_next() {
                touched.extend(self.finished(done));
            }
            if self.lead() {
                touched = self.everywhere();
                self.judge_crash_loops();
            }
            self.advance(touched);
        }
    }

    fn finished(&mut self, done: Result<Done, JoinError>) -> BTreeSet<NodeName> {
        match done {
            Ok(done) => self.record(done),
            // A step that panicked is a defect: better to start again from what the API says.
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => BTreeSet::new(),
        }
    }

    /// Until something wants to be asked again.
    fn sleep(&self) -> impl Future<Output = ()> + use<> {
        let evacuations = self.evacuations.values().filter_map(Evacuation::wake);
        let leads = self.by.is_some() && self.policy.polls_arrays && self.world.complete();
        let first: Option<Moment> = evacuations.chain(leads.then(|| self.arrays.wake())).min();
        let wait = first.map(|first| first - self.clock.now());
        async move {
            match wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
        }
    }

    fn observe(&mut self, observation: Observation) -> BTreeSet<NodeName> {
        let stale = match &observation {
            Observation::Pod(Change::Stale(error))
            | Observation::DriverPod(Change::Stale(error)) => Some(error),
            Observation::Node(Change::Stale(error)) => Some(error),
            Observation::Attachment(Change::Stale(error)) => Some(error),
            _ => None,
        };
        if let Some(error) = stale {
            tracing::warn!(%error, "A watch broke; trying again");
        }
        let was_complete = self.world.complete();
        let mut touched = match &observation {
            Observation::DriverPod(change) => self.driver_pods.observe(change),
            observation => self.world.observe(observation),
        };
        match &observation {
            Observation::Pod(Change::Applied(pod)) => self.judge_crash_loop(&pod.incarnation.uid),
            Observation::Pod(Change::All(_)) => self.judge_crash_loops(),
            Observation::Pod(Change::Deleted(pod)) => self.crash_loops.forget(&pod.incarnation.uid),
            _ => {}
        }
        let now = self.clock.now();
        for evacuation in self.evacuations.values_mut() {
            evacuation.observe(&observation, now);
        }
        if let Observation::Pod(Change::All(_))
        | Observation::Node(Change::All(_))
        | Observation::Attachment(Change::All(_)) = observation
        {
            touched.extend(self.evacuations.keys().cloned());
        }
        if !was_complete && self.world.complete() {
            touched.extend(self.everywhere());
            self.judge_crash_loops();
        }
        touched
    }

    fn record(&mut self, done: Done) -> BTreeSet<NodeName> {
        let now = self.clock.now();
        match done {
            Done::Step(node, outcome) => {
                if let (Some(evacuation), Some(by)) = (self.evacuations.get_mut(&node), &self.by) {
                    for step in evacuation.record(outcome, by, now) {
                        self.perform(node.clone(), step);
                    }
                }
                BTreeSet::from([node])
            }
            Done::Poll(poll, answer) => self.record_poll(poll, answer),
            Done::Offline(name, patched) => {
                self.offline.remove(&name);
                match patched {
                    Ok(node) => {
                        let key = &self.policy.names.offline_taint;
                        let offline = taint::has(&node.taints, key, taint::NO_SCHEDULE);
                        tracing::info!(node = %name, offline, "The driver's pod changed; offline taint written");
                        // Or the next look, before the watch, would write it again.
                        self.world
                            .observe(&Observation::Node(Change::Applied(node)));
                    }
                    Err(Refused::Conflict) => {}
                    Err(error) => {
                        tracing::warn!(node = %name, ?error, "The offline taint could not be written")
                    }
                }
                BTreeSet::new()
            }
            Done::Restart(pod, result) => {
                if let Err(error) = result {
                    tracing::warn!(pod = %pod.key, ?error, "The pod in a crash loop could not be deleted");
                    self.crash_loops.forget(&pod.uid);
                }
                BTreeSet::new()
            }
        }
    }

    fn record_poll(&mut self, poll: Poll, answer: Result<Sight, String>) -> BTreeSet<NodeName> {
        let Poll { node, uid, .. } = poll;
        if let Err(error) = &answer {
            tracing::debug!(%node, %error, "What the array sees of the node is not known");
        }
        let threshold = self.threshold();
        if !self.arrays.record(&uid, answer, threshold) {
            return BTreeSet::new();
        }
        if self.arrays.lost(&uid, threshold) {
            tracing::warn!(%node, polls = threshold, "The array does not see the node any more");
        } else if self.arrays.seen(&uid, threshold) {
            tracing::info!(%node, "The array sees the node");
        }
        BTreeSet::from([node])
    }

    fn everywhere(&self) -> BTreeSet<NodeName> {
        let known = self.world.nodes().map(|node| &node.name);
        known.chain(self.evacuations.keys()).cloned().collect()
    }

    /// Follows the claim; whether a term has begun. Another term knows nothing of this one's evacuations but what the
    /// journals say.
    fn lead(&mut self) -> bool {
        let by = self
            .claims
            .borrow_and_update()
            .as_ref()
            .map(|claim| claim.by.clone());
        if self.by == by {
            return false;
        }
        self.evacuations.clear();
        self.arrays = Arrays::default();
        self.offline.clear();
        self.performing = JoinSet::new();
        self.by = by;
        if let Some(by) = &self.by {
            tracing::info!(%by, "Leading");
        }
        self.by.is_some()
    }

    /// Begins evacuations where the picture calls for one, and lets every one of them go on.
    fn advance(&mut self, touched: BTreeSet<NodeName>) {
        let Some(by) = self.by.clone().filter(|_| self.world.complete()) else {
            return;
        };
        let now = self.clock.now();
        self.poll_arrays(now);
        for node in &touched {
            if !self.evacuations.contains_key(node)
                && decide::concerns(&self.world, node, self.array_lost(node))
            {
                let evacuation = Evacuation::new(node.clone(), self.policy.names.clone(), now);
                self.evacuations.insert(node.clone(), evacuation);
            }
            self.mark_offline(node);
        }
        let changed = !touched.is_empty() && self.watch_storm();
        let common = self.rules(by);
        let mut steps = Vec::new();
        let mut evacuations = std::mem::take(&mut self.evacuations);
        evacuations.retain(|node, evacuation| {
            let due = evacuation.wake().is_some_and(|wake| wake <= now);
            if !(changed || due || touched.contains(node)) {
                return true;
            }
            let rules = self.rules_for(node, &common);
            let next = evacuation.next(&rules, now);
            let over = next.is_empty() && evacuation.is_over(&rules);
            steps.extend(next.into_iter().map(|step| (node.clone(), step)));
            !over
        });
        self.evacuations = evacuations;
        for (node, step) in steps {
            self.perform(node, step);
        }
    }

    fn rules(&self, by: String) -> Rules {
        let hold = if !self.policy.can_fence {
            Some(Hold::Powerless)
        } else if self.policy.pause {
            Some(Hold::Paused)
        } else if self.policy.detect_only {
            Some(Hold::DetectOnly)
        } else {
            self.storm.then_some(Hold::Storm)
        };
        Rules {
            by,
            republishes: self.policy.republishes,
            ignore_volumeless: self.policy.ignore_volumeless,
            skip_array_validation: self.settings.borrow().skip_array_connection_validation,
            array_lost: false,
            array_seen: false,
            hold,
            out_of_service_release: self.policy.out_of_service_release,
            wall: self.wall(),
        }
    }

    fn rules_for(&self, node: &NodeName, common: &Rules) -> Rules {
        let paused = self.world.node(node).is_some_and(|node| node.paused);
        Rules {
            array_lost: self.array_lost(node),
            array_seen: self.array_seen(node),
            hold: common.hold.or(paused.then_some(Hold::Paused)),
            ..common.clone()
        }
    }

    fn wall(&self) -> String {
        self.clock.wall().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }

    fn threshold(&self) -> u32 {
        NonZeroU32::get(self.settings.borrow().connection_loss_threshold)
    }

    fn array_lost(&self, node: &NodeName) -> bool {
        let node = self.world.node(node);
        node.is_some_and(|node| self.arrays.lost(&node.uid, self.threshold()))
    }

    fn array_seen(&self, node: &NodeName) -> bool {
        let node = self.world.node(node);
        node.is_some_and(|node| self.arrays.seen(&node.uid, self.threshold()))
    }

    fn poll_arrays(&mut self, now: Moment) {
        if !self.policy.polls_arrays {
            return;
        }
        let rate = self.settings.borrow().poll_rate;
        for poll in self.arrays.due(&self.world, rate, now) {
            let effects = self.effects.clone();
            self.performing.spawn(async move {
                let answer = effects.poll(&poll).await;
                Done::Poll(poll, answer)
            });
        }
    }

    /// Says once that the picture cannot be believed, and once that it clears; whether it did either.
    fn watch_storm(&mut self) -> bool {
        let picture = Picture::new(&self.world, |node| self.array_lost(node));
        let storm = !picture.is_believable(self.policy.storm_guard);
        if storm == self.storm {
            return false;
        }
        self.storm = storm;
        let (lost, holding, limit) = (picture.lost.len(), picture.holding, self.policy.storm_guard);
        if !storm {
            tracing::info!(lost, holding, %limit, "Storm guard: the picture clears; evacuations may begin again");
            return true;
        }
        tracing::error!(lost, holding, %limit, "Storm guard: more nodes look lost at once than can be believed; no evacuation is begun");
        let first = picture
            .lost
            .first()
            .and_then(|name| self.world.node(name))
            .cloned();
        if let Some(node) = first {
            let report = Report {
                subject: Subject::Node(node.name.clone(), node.uid),
                severity: Severity::Warning,
                reason: "StormGuard".into(),
                message: format!(
                    "podmon begins no evacuation: {lost} of {holding} nodes with protected pods look lost at once (limit {limit}); check the array's API and the control plane, or raise --stormGuard"
                ),
            };
            self.effects.report(report);
        }
        true
    }

    fn mark_offline(&mut self, name: &NodeName) {
        let Some(node) = self
            .world
            .node(name)
            .filter(|_| !self.offline.contains(name))
        else {
            return;
        };
        if let Some(patch) = self
            .driver_pods
            .patch(node, &self.policy.names, &self.wall())
        {
            self.offline.insert(name.clone());
            let (effects, name) = (self.effects.clone(), name.clone());
            self.performing.spawn(async move {
                let patched = effects.patch_node(&patch).await;
                Done::Offline(name, patched)
            });
        }
    }

    /// Those that were there before anybody led, or while a watch was broken.
    fn judge_crash_loops(&mut self) {
        let nodes = self.everywhere();
        let pods = nodes.iter().flat_map(|node| self.world.pods_on(node));
        let pods: Vec<PodUid> = pods.map(|pod| pod.incarnation.uid.clone()).collect();
        for uid in pods {
            self.judge_crash_loop(&uid);
        }
    }

    fn judge_crash_loop(&mut self, uid: &PodUid) {
        if self.by.is_none() || self.policy.pause || self.policy.detect_only {
            return;
        }
        let Some((pod, node)) = self.world.pod(uid).and_then(|pod| {
            let node = self.world.node(pod.node.as_ref()?)?;
            Some((pod.clone(), node.clone()))
        }) else {
            return;
        };
        if let Some(restart) = self.crash_loops.judge(&pod, &node, &self.policy.names) {
            let Restart { pod, retry } = restart;
            tracing::warn!(pod = %pod.key, uid = %pod.uid, node = %node.name, retry, "Crash loop; deleting the pod");
            let report = Report {
                subject: Subject::Pod(pod.clone()),
                severity: Severity::Warning,
                reason: "CrashLoopBackOff".into(),
                message: format!(
                    "podmon cleaning pod [{} {} retry: {retry}] with delete",
                    pod.uid, node.name
                ),
            };
            self.effects.report(report);
            let effects = self.effects.clone();
            self.performing.spawn(async move {
                let deleted = effects.delete_gracefully(&pod).await;
                Done::Restart(pod, deleted)
            });
        }
    }

    fn perform(&mut self, node: NodeName, step: Step) {
        if let Step::Report(report) = step {
            return self.effects.report(report);
        }
        let effects = self.effects.clone();
        self.performing.spawn(async move {
            let outcome = effects.perform(&node, step).await;
            Done::Step(node, outcome)
        });
    }
}
