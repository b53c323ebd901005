//! The cluster with podmon in it, under the weather.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::fence::WatchedDriver;
use super::history::History;
use super::judge::{Judge, Rule};
use super::saboteur::Saboteur;
use super::weather::{Fault, Forecast, Spell};
use super::{Outcome, Plan};
use crate::embedded::api::Kind;
use crate::embedded::chance::Chance;
use crate::embedded::cluster::{Cluster, Shape};
use crate::embedded::daemon::{self, Gate, PROTECTED, Process};
use crate::embedded::host::{Host, Power};
use crate::embedded::network::{Conditions, Link, Listener};
use crate::embedded::object::*;
use crate::storage::array::Path;
use crate::storage::judge::judge as judge_ledger;
use crate::storage::trouble::{Call, Rule as DriverRule, Trouble};

const CONTROLLERS: usize = 2;
/// How long a crashed container takes to be started again.
const RESTART: std::ops::Range<Duration> = Duration::from_millis(500)..Duration::from_secs(10);

/// A podmon that is kept running.
struct Daemon {
    name: String,
    link: Link,
    gate: Gate,
    process: Option<Process>,
    /// The place of its machine; controllers are on machines of their own.
    host: Option<usize>,
    again: Duration,
}

pub struct World {
    pub cluster: Cluster,
    pub history: History,
    pub judge: Judge,
    daemons: Vec<Daemon>,
    saboteur: Option<Saboteur>,
    chance: Chance,
    disks: Disks,
    active: Vec<Spell>,
}

/// Directories for what podmon keeps on the machines' disks; removed in the end.
struct Disks(PathBuf);

impl Drop for Disks {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl World {
    /// A cluster at work: every pod runs, podmon leads.
    pub async fn new(
        shape: &Shape,
        saboteur: Option<Saboteur>,
        history: &History,
        mut chance: Chance,
    ) -> World {
        let cluster = Cluster::new(shape);
        let judge = Judge::new(history, cluster.array.clone(), cluster.hosts.clone());
        let (told, judging) = (history.clone(), judge.clone());
        let origin = tokio::time::Instant::now();
        cluster.server.observe(move |change| {
            let at = origin.elapsed();
            told.change(at, change);
            judging.change(at, change);
        });
        let number = chance.draw();
        let disks =
            std::env::temp_dir().join(format!("podmon-sim-{}-{number:016x}", std::process::id()));
        let mut world = World {
            cluster,
            history: history.clone(),
            judge,
            daemons: Vec::new(),
            saboteur,
            chance,
            disks: Disks(disks),
            active: Vec::new(),
        };
        world
            .cluster
            .add_statefulset("db", shape.nodes, 1, Some(PROTECTED));
        world
            .cluster
            .add_statefulset("cache", 2, 2, Some(PROTECTED));
        world.cluster.add_statefulset("plain", 1, 1, None);
        for controller in 0..CONTROLLERS {
            world.add_daemon(format!("podmon-ctl-{controller}"), None);
        }
        for host in 0..world.cluster.hosts.len() {
            let name = format!("podmon-node:{}", world.cluster.hosts[host].name());
            world.add_daemon(name, Some(host));
        }
        world
            .run_until(Duration::from_secs(120), |world| world.unrest().is_empty())
            .await;
        world
    }

    fn add_daemon(&mut self, name: String, host: Option<usize>) {
        let tamper = self.saboteur.and_then(Saboteur::tamper);
        let salt = self.daemons.len() as u64;
        let (history, origin) = (
            self.history.clone(),
            tokio::time::Instant::now() - self.cluster.elapsed(),
        );
        let who = name.clone();
        let listener = move |asked: &str, code: u16| {
            if !asked.starts_with("GET") && !asked.contains("/leases/") && code >= 400 {
                history.tell(
                    origin.elapsed(),
                    &format!("{who}: {asked} is refused: {code}"),
                );
            }
        };
        let listener: Option<Listener> = Some(Arc::new(listener));
        let link = Link::new(
            &self.cluster.server,
            &name,
            self.chance.fork(salt),
            tamper,
            listener,
        );
        self.daemons.push(Daemon {
            name,
            link,
            gate: Gate::default(),
            process: None,
            host,
            again: Duration::ZERO,
        });
    }

    fn tell(&self, what: &str) {
        self.history.tell(self.cluster.elapsed(), what);
    }

    /// One turn of the cluster; processes that ended are started again.
    pub async fn step(&mut self) {
        self.cluster.step().await;
        self.keep_running().await;
    }

    pub async fn run(&mut self, time: Duration) {
        let end = self.cluster.elapsed() + time;
        while self.cluster.elapsed() < end {
            self.step().await;
        }
    }

    pub async fn run_until(
        &mut self,
        within: Duration,
        mut holds: impl FnMut(&World) -> bool,
    ) -> bool {
        let end = self.cluster.elapsed() + within;
        loop {
            if holds(self) {
                return true;
            }
            if self.cluster.elapsed() >= end {
                return false;
            }
            self.step().await;
        }
    }

    async fn keep_running(&mut self) {
        let now = self.cluster.elapsed();
        for place in 0..self.daemons.len() {
            let host = self.daemons[place]
                .host
                .map(|host| self.cluster.hosts[host].clone());
            if host
                .as_ref()
                .is_some_and(|host| host.state().power == Power::Off)
            {
                continue;
            }
            if let Some(process) = self.daemons[place]
                .process
                .take_if(|process| process.is_over())
            {
                let name = self.daemons[place].name.clone();
                match futures::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(process.end()))
                    .await
                {
                    Ok(why) => self.tell(&format!("{name} ended: {why}")),
                    Err(_) => self
                        .judge
                        .find(Rule::NoPanic, now, format!("{name} panicked")),
                }
                self.daemons[place].again = now + self.chance.time(RESTART);
            }
            if self.daemons[place].process.is_none() && now >= self.daemons[place].again {
                self.start(place, host.as_ref());
            }
        }
    }

    fn start(&mut self, place: usize, host: Option<&Host>) {
        let Daemon {
            name, link, gate, ..
        } = &self.daemons[place];
        let server = &self.cluster.server;
        let process = match host {
            None => {
                let driver = WatchedDriver::channel(
                    &self.cluster,
                    &self.judge,
                    &self.history,
                    self.saboteur,
                    name,
                );
                daemon::controller(server, link, driver, gate, name)
            }
            Some(host) => {
                let disk = self.disks.0.join(host.name());
                let _ = std::fs::create_dir_all(&disk);
                let seam = host.seam(self.saboteur.map(Saboteur::blindness).unwrap_or_default());
                daemon::node(
                    server,
                    link,
                    host.driver(self.cluster.door.clone()),
                    gate,
                    host,
                    seam,
                    &disk,
                )
            }
        };
        self.tell(&format!("{name} starts"));
        self.daemons[place].process = Some(process);
    }

    fn kill(&mut self, place: usize) {
        if self.daemons[place].process.take().is_some() {
            self.tell(&format!("{} is killed", self.daemons[place].name));
        }
        self.daemons[place].again = self.cluster.elapsed() + self.chance.time(RESTART);
    }

    fn daemon_of(&self, host: usize) -> usize {
        CONTROLLERS + host
    }

    /// Lets the faults come and go.
    pub async fn weather(&mut self, forecast: Forecast, storm: Duration) {
        let start = self.cluster.elapsed();
        let mut coming = forecast.spells.into_iter().peekable();
        while self.cluster.elapsed() - start < storm {
            let now = self.cluster.elapsed() - start;
            while let Some(spell) = coming.next_if(|spell| spell.begins <= now) {
                self.tell(&format!(
                    "-- {:?} for {:.1} s",
                    spell.fault,
                    (spell.ends - spell.begins).as_secs_f64()
                ));
                self.begin(spell.fault);
                self.active.push(spell);
            }
            let (over, active) = self.active.iter().partition(|spell| spell.ends <= now);
            self.active = active;
            for Spell { fault, .. } in Vec::<Spell>::clone(&over) {
                self.end(fault);
            }
            self.step().await;
        }
    }

    /// Lets a fault set in.
    pub fn begin(&mut self, fault: Fault) {
        match fault {
            Fault::CutNode(node) => {
                self.cluster.hosts[node].state().network = false;
                self.daemons[self.daemon_of(node)]
                    .link
                    .change(|way| way.cut = true);
            }
            Fault::IsolateNode(node) => {
                self.begin(Fault::CutNode(node));
                self.begin(Fault::CutStorage(node));
            }
            Fault::CutStorage(node) => self.set_path(node, Path::Stalled),
            Fault::FreezeNode(node) => {
                let mut host = self.cluster.hosts[node].state();
                if host.power == Power::On {
                    host.power = Power::Frozen;
                    drop(host);
                    self.freeze(self.daemon_of(node), true);
                }
            }
            Fault::PowerOff(node) => {
                let place = self.daemon_of(node);
                self.freeze(place, false);
                self.cluster.hosts[node].power_off();
                self.kill(place);
                self.daemons[place].link.tear();
            }
            Fault::StopKubelet(node) => self.cluster.hosts[node].state().kubelet = false,
            Fault::StopRuntime(node) => self.cluster.hosts[node].state().runtime = false,
            Fault::CutController(place) => self.daemons[place].link.change(|way| way.cut = true),
            Fault::FreezeController(place) => self.freeze(place, true),
            Fault::CrashController(place) => self.kill(place),
            Fault::CrashNodePodmon(node) => self.kill(self.daemon_of(node)),
            Fault::BadNetwork => self.everywhere(|way| {
                way.refused = 10;
                way.answers_lost = 10;
                way.latency = Duration::from_millis(1)..Duration::from_secs(3);
            }),
            Fault::LateWatches => self.everywhere(|way| {
                way.watch_delay = Duration::from_millis(100)..Duration::from_secs(20);
            }),
            Fault::ApiRestart => {
                self.cluster.server.compact();
                self.daemons.iter().for_each(|daemon| daemon.link.tear());
            }
            Fault::FencesFail => {
                self.trouble(Trouble::fail(tonic::Code::Internal, "the array is busy"))
            }
            Fault::FencesHang => self.trouble(Trouble::hang()),
            Fault::FencesSlow => self.trouble(Trouble::slow(Duration::from_secs(5))),
            Fault::FencesLate => self.trouble(Trouble::late(Duration::from_secs(25))),
            Fault::LateAttacher => self.cluster.attacher.lateness = Duration::from_secs(10),
            Fault::RestartAttachDetach => {
                let now = self.cluster.elapsed();
                self.cluster.attach_detach.restart(now);
            }
            Fault::DeletePod(number) => {
                let pods = self.cluster.server.read_all(Kind::Pod);
                if let Some(pod) = pods.get(number) {
                    let _ = self.cluster.operator.delete(
                        Kind::Pod,
                        namespace(pod),
                        name(pod),
                        None,
                        None,
                    );
                }
            }
            Fault::Cordon(node) => self.cordon(node, true),
        }
    }

    /// Heals it, unless the same fault is still at work otherwise.
    pub fn end(&mut self, fault: Fault) {
        // The same fault may have come twice.
        if self.active.iter().any(|spell| spell.fault == fault) {
            return;
        }
        match fault {
            Fault::CutNode(node) => {
                self.cluster.hosts[node].state().network = true;
                self.daemons[self.daemon_of(node)]
                    .link
                    .change(|way| way.cut = false);
            }
            Fault::IsolateNode(node) => {
                self.end(Fault::CutNode(node));
                self.end(Fault::CutStorage(node));
            }
            Fault::CutStorage(node) => self.set_path(node, Path::Up),
            Fault::FreezeNode(node) => {
                let mut host = self.cluster.hosts[node].state();
                if host.power == Power::Frozen {
                    host.power = Power::On;
                }
                drop(host);
                self.freeze(self.daemon_of(node), false);
            }
            Fault::PowerOff(node) => {
                if self.cluster.hosts[node].state().power == Power::Off {
                    self.cluster.hosts[node].power_on();
                }
            }
            Fault::StopKubelet(node) => {
                if self.cluster.hosts[node].state().power != Power::Off {
                    self.cluster.hosts[node].restart_kubelet();
                }
            }
            Fault::StopRuntime(node) => self.cluster.hosts[node].state().runtime = true,
            Fault::CutController(place) => self.daemons[place].link.change(|way| way.cut = false),
            Fault::FreezeController(place) => self.freeze(place, false),
            Fault::BadNetwork => self.everywhere(|way| {
                let Conditions {
                    refused,
                    answers_lost,
                    latency,
                    ..
                } = Conditions::GOOD;
                (way.refused, way.answers_lost, way.latency) = (refused, answers_lost, latency);
            }),
            Fault::LateWatches => {
                self.everywhere(|way| way.watch_delay = Conditions::GOOD.watch_delay)
            }
            Fault::FencesFail | Fault::FencesHang | Fault::FencesSlow | Fault::FencesLate => {
                self.cluster.array().clear_rules();
            }
            Fault::LateAttacher => self.cluster.attacher.lateness = Duration::from_millis(20),
            Fault::Cordon(node) => self.cordon(node, false),
            Fault::CrashController(_)
            | Fault::CrashNodePodmon(_)
            | Fault::ApiRestart
            | Fault::RestartAttachDetach
            | Fault::DeletePod(_) => {}
        }
    }

    fn freeze(&self, place: usize, frozen: bool) {
        self.daemons[place].gate.freeze(frozen);
        self.daemons[place].link.change(|way| way.frozen = frozen);
    }

    fn set_path(&self, node: usize, path: Path) {
        let id = self.cluster.hosts[node].state().id.clone();
        self.cluster.array().set_path(&id, path);
    }

    fn everywhere(&self, change: impl Fn(&mut Conditions)) {
        self.daemons
            .iter()
            .for_each(|daemon| daemon.link.change(&change));
    }

    fn trouble(&self, trouble: Trouble) {
        self.cluster
            .array()
            .add_rule(DriverRule::all(Call::ControllerUnpublish, trouble));
    }

    fn cordon(&self, node: usize, cordoned: bool) {
        let patch = json!({"spec": {"unschedulable": cordoned}});
        let _ =
            self.cluster
                .operator
                .patch(Kind::Node, "", &self.cluster.hosts[node].name(), patch);
    }

    /// Ends every fault that is still at work.
    pub fn clear_up(&mut self) {
        self.tell("-- the weather clears up");
        for Spell { fault, .. } in std::mem::take(&mut self.active) {
            self.end(fault);
        }
    }

    /// What is not as it should be once nothing disturbs it any more.
    pub fn unrest(&self) -> BTreeSet<String> {
        let mut unrest = BTreeSet::new();
        for set in self.cluster.server.read_all(Kind::StatefulSet) {
            for ordinal in 0..set["spec"]["replicas"].as_u64().unwrap_or(0) {
                let pod = format!("{}-{ordinal}", name(&set));
                if !self.cluster.is_ready(&pod) {
                    unrest.insert(format!(
                        "pod {pod} is not ready on {:?}",
                        self.cluster.place(&pod)
                    ));
                }
            }
        }
        for node in self.cluster.server.read_all(Kind::Node) {
            if condition(&node, "Ready") != "True" {
                unrest.insert(format!("node {} is not ready", name(&node)));
            }
            if items(&node, "/spec/taints").next().is_some() {
                unrest.insert(format!(
                    "node {} is tainted: {}",
                    name(&node),
                    node["spec"]["taints"]
                ));
            }
            let journal = &node["metadata"]["annotations"][daemon::journal()];
            if let Some(journal) = journal.as_str() {
                unrest.insert(format!("node {} has a journal: {journal}", name(&node)));
            }
        }
        let bound: BTreeSet<String> = self
            .cluster
            .server
            .read_all(Kind::Pod)
            .iter()
            .map(|pod| uid(pod).to_owned())
            .collect();
        for host in &self.cluster.hosts {
            let state = host.state();
            for (uid, pod) in state.pods.iter().filter(|(uid, _)| !bound.contains(*uid)) {
                unrest.insert(format!("{} still has pod {} ({uid})", state.name, pod.name));
            }
        }
        unrest
    }

    /// Goes on until everything is as it should be, and some time longer.
    pub async fn come_to_rest(&mut self, within: Duration) {
        let rested = self
            .run_until(within, |world| world.unrest().is_empty())
            .await;
        if rested {
            self.run(Duration::from_secs(30)).await;
        }
        let at = self.cluster.elapsed();
        for what in self.unrest() {
            self.judge.find(Rule::AlwaysMoving, at, what);
        }
    }

    /// Sums up.
    pub fn conclude(self, plan: Plan) -> Outcome {
        let at = self.cluster.elapsed();
        let array = self.cluster.array();
        let report = judge_ledger(array.records());
        for finding in &report.findings {
            self.judge.find(Rule::OneWriter, at, finding.to_string());
        }
        Outcome {
            plan,
            violations: self.judge.violations(),
            digest: self.history.digest(array.records()),
            story: self.history.story(),
            releases: self.judge.releases(),
            refused: report.refused(),
            simulated: at,
        }
    }
}
