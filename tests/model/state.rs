//! One state of the model, and every way out of it: the real evacuation as it stands, the double around it, calls
//! that are under way or were given up, and the containers that run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use podmon::clock::Moment;
use podmon::cluster::watch::Change;
use podmon::controller::decide;
use podmon::controller::evacuation::{Evacuation, Rules};
use podmon::controller::step::{Outcome, Sight, Step};
use podmon::controller::world::{Observation, World};
use podmon::domain::{AttachmentUid, NodeName, PodUid, VolumeName};

use crate::cluster::{Cluster, names};
use crate::invariants::{Ghost, Violation};
use crate::perform::{perform, unanswered};
use crate::sabotage::Sabotage;

/// The node that fails.
pub const A: &str = "a";
/// One that does not.
pub const B: &str = "b";
/// How long the driver may still carry out a call after its deadline; later is against what is assumed of it.
const LATE: Duration = Duration::from_secs(60);
/// The longest deadline of a call.
const DEADLINE: Duration = Duration::from_secs(10);
/// Everything has to be settled after this long.
const HORIZON: Duration = Duration::from_secs(500);
pub const START: Duration = Duration::from_secs(1000);

/// What the model is run with.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Faults in one history at most.
    pub faults: u8,
    /// How often the attacher publishes again what it finds missing.
    pub republishes: u8,
    /// The pod may come back to the failed node although that is tainted.
    pub tolerates: bool,
    pub sabotage: Sabotage,
    /// Only these faults; all if empty.
    pub only: &'static [Fault],
}

/// What may go wrong; each costs one of the faults.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fault {
    /// A call is not carried out and fails.
    Failed,
    /// It is carried out, and the answer is lost.
    AnswerLost,
    /// It is given up and may be carried out later.
    GivenUp,
    /// Its answer comes late.
    Slow,
    /// The leader is gone; another, or itself in a new term, goes on.
    Crash,
    /// Time passes although something could go on.
    Sleep,
    /// The node is back, or lost again.
    Node,
    /// Somebody force-deletes the pod.
    Delete,
    /// Somebody deletes the Node object.
    NodeDeleted,
    /// The watches bring nothing any more.
    Deaf,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    Perform(usize),
    Fault(Fault, usize),
    Deliver(usize),
    /// A call that was given up acts.
    Act(usize),
    Attach(VolumeName, NodeName),
    Unattach(AttachmentUid),
    Publish(AttachmentUid),
    Land(AttachmentUid),
    Detach(AttachmentUid),
    Republish(AttachmentUid),
    /// The pod's owner makes it again, and the scheduler binds it.
    Replace(String, NodeName),
    Start(PodUid),
    Kill(PodUid),
    Requalify,
    /// The control plane notices that the pods of a node that is gone are gone too.
    Collect(PodUid),
    Wait,
}

/// A call that was given up, and until when it may still act.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Late {
    pub step: Step,
    until: Option<Moment>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    pub cluster: Cluster,
    pub now: Moment,
    pub term: u32,
    pub evacuation: Option<Evacuation>,
    pub pending: Vec<Step>,
    pub held: Vec<(Step, Outcome)>,
    pub late: Vec<Late>,
    pub deaf: bool,
    /// ControllerPublish under way.
    publishing: BTreeSet<AttachmentUid>,
    /// The failed node is up and reaches the API.
    pub up: bool,
    /// Containers, wherever the API believes them to be.
    pub running: BTreeMap<PodUid, (NodeName, BTreeSet<VolumeName>)>,
    /// What each pod's owner makes again: name and volumes.
    owners: BTreeMap<String, BTreeSet<VolumeName>>,
    faults: u8,
    republishes: u8,
    pub ghost: Ghost,
}

impl State {
    /// The state at the beginning; what is on the failed node is up to the setting.
    pub fn new(setting: &Setting, prepare: impl FnOnce(&mut Cluster)) -> Self {
        let mut cluster = Cluster::default();
        cluster.add_node(A);
        cluster.add_node(B);
        prepare(&mut cluster);
        let mut state = Self {
            now: Moment::since_boot(START),
            term: 1,
            evacuation: None,
            pending: Vec::new(),
            held: Vec::new(),
            late: Vec::new(),
            deaf: false,
            publishing: BTreeSet::new(),
            up: cluster.node(A).ready,
            running: BTreeMap::new(),
            owners: BTreeMap::new(),
            faults: setting.faults,
            republishes: setting.republishes,
            ghost: Ghost::default(),
            cluster,
        };
        for (uid, pod) in &state.cluster.pods {
            let volumes = state.cluster.uses[uid].ours.clone();
            let node = pod.node.clone().expect("a bound pod");
            if pod.started {
                state.running.insert(uid.clone(), (node, volumes.clone()));
            }
            state
                .owners
                .insert(pod.incarnation.key.name.clone(), volumes);
        }
        // What is attached and not published is being published.
        let attachments = state.cluster.attachments.values();
        state.publishing = attachments
            .filter(|a| !a.attached)
            .map(|a| a.uid.clone())
            .collect();
        state.settle(setting);
        state
    }

    fn rules(&self, setting: &Setting) -> Rules {
        Rules {
            by: format!("ctl-0/{}", self.term),
            republishes: setting.republishes > 0,
            array_seen: false,
            ignore_volumeless: false,
            skip_array_validation: false,
            array_lost: false,
            hold: None,
            out_of_service_release: false,
            wall: "2026-01-01T00:00:00Z".into(),
        }
    }

    // --- ways out ------------------------------------------------------------------------------------------------

    pub fn actions(&self, setting: &Setting) -> Vec<Action> {
        let mut actions = self.forced();
        let idle = actions.is_empty();
        for (index, late) in self.late.iter().enumerate() {
            if late.until.is_none_or(|until| self.now < until) {
                actions.push(Action::Act(index));
            }
        }
        if self.republishes > 0 {
            let lost = self.cluster.attachments.values().filter(|a| {
                a.attached
                    && !a.deleting
                    && !self.cluster.can_write(a.volume.as_str(), a.node.as_str())
            });
            actions.extend(lost.map(|a| Action::Republish(a.uid.clone())));
        }
        if self.faults > 0 {
            actions.extend(self.faults_possible(idle, setting));
        }
        if idle && self.next_moment().is_some() {
            actions.push(Action::Wait);
        }
        actions
    }

    /// What goes on by itself as long as nothing fails: time passes only after all of it.
    fn forced(&self) -> Vec<Action> {
        let mut actions: Vec<Action> = (0..self.pending.len()).map(Action::Perform).collect();
        actions.extend((0..self.held.len()).map(Action::Deliver));
        let (make, delete) = self.cluster.attach_detach();
        // On the healthy node a pod is attached and started at once: the sooner, the more there is to go wrong.
        let make = make.into_iter().filter(|(_, node)| node.as_str() == A);
        actions.extend(make.map(|(v, n)| Action::Attach(v, n)));
        actions.extend(delete.into_iter().map(Action::Unattach));
        for attachment in self.cluster.attachments.values() {
            let uid = attachment.uid.clone();
            if self.publishing.contains(&uid) {
                actions.push(Action::Land(uid));
            } else if attachment.deleting {
                actions.push(Action::Detach(uid));
            } else if !attachment.attached {
                actions.push(Action::Publish(uid));
            }
        }
        for (name, _) in &self.owners {
            let exists = self
                .cluster
                .pods
                .values()
                .any(|pod| pod.incarnation.key.name == *name);
            if !exists {
                actions.push(Action::Replace(name.clone(), B.into()));
            }
        }
        for (uid, pod) in &self.cluster.pods {
            if !pod.started && self.may_start(uid) {
                actions.push(Action::Start(uid.clone()));
            }
            let node_gone = pod
                .node
                .as_ref()
                .is_some_and(|node| !self.cluster.nodes.contains_key(node));
            if node_gone {
                actions.push(Action::Collect(uid.clone()));
            }
        }
        if self.up {
            let zombies = self.running.iter().filter(|(uid, (node, _))| {
                node.as_str() == A && !self.cluster.pods.contains_key(*uid)
            });
            actions.extend(zombies.map(|(uid, _)| Action::Kill(uid.clone())));
            // Beside an absent journal: nothing here that is not ready (protocol.md §4).
            let closed = match self.cluster.journal(A) {
                Some(journal) => !journal.is_open(),
                None => {
                    let node = NodeName::from(A);
                    let mut here = self.cluster.pods_on(&node);
                    let ready = here.all(|uid| self.cluster.pods[uid].ready);
                    self.cluster.tainted(A) && ready
                }
            };
            if closed && self.zombies().next().is_none() {
                actions.push(Action::Requalify);
            }
        }
        actions
    }

    fn faults_possible(&self, idle: bool, setting: &Setting) -> Vec<Action> {
        let mut actions = Vec::new();
        for (index, step) in self.pending.iter().enumerate() {
            actions.push(Action::Fault(Fault::Failed, index));
            actions.push(Action::Fault(Fault::Slow, index));
            if !matches!(step, Step::Survey | Step::Look | Step::Ask(_)) {
                actions.push(Action::Fault(Fault::AnswerLost, index));
                actions.push(Action::Fault(Fault::GivenUp, index));
            }
        }
        actions.push(Action::Fault(Fault::Crash, 0));
        if !idle && self.next_moment().is_some() {
            actions.push(Action::Fault(Fault::Sleep, 0));
        }
        if self.cluster.nodes.contains_key(&NodeName::from(A)) {
            actions.push(Action::Fault(Fault::Node, 0));
            actions.push(Action::Fault(Fault::NodeDeleted, 0));
        }
        if !self.deaf {
            actions.push(Action::Fault(Fault::Deaf, 0));
        }
        for (index, pod) in self.cluster.pods.values().enumerate() {
            if pod.node.as_ref().is_some_and(|node| node.as_str() == A) {
                actions.push(Action::Fault(Fault::Delete, index));
            }
        }
        actions.retain(|action| match action {
            Action::Fault(fault, _) => setting.only.is_empty() || setting.only.contains(fault),
            _ => true,
        });
        // The scheduler may choose the failed node again once that looks healthy.
        actions
    }

    /// Where a pod that is missing may be bound besides the healthy node.
    pub fn returns(&self, setting: &Setting) -> Vec<Action> {
        let Some(node) = self.cluster.nodes.get(&NodeName::from(A)) else {
            return Vec::new();
        };
        let open = node.ready && !node.unreachable() && !node.tainted(&names());
        if !open && !setting.tolerates {
            return Vec::new();
        }
        let missing = self.owners.keys().filter(|name| {
            let mut pods = self.cluster.pods.values();
            !pods.any(|pod| pod.incarnation.key.name == **name)
        });
        missing
            .map(|name| Action::Replace(name.clone(), A.into()))
            .collect()
    }

    fn may_start(&self, uid: &PodUid) -> bool {
        let pod = &self.cluster.pods[uid];
        let Some(node) = &pod.node else { return false };
        let alive = node.as_str() != A || self.up;
        let attachable = if node.as_str() == B {
            self.cluster.attach_detach().0
        } else {
            Vec::new()
        };
        // A kubelet ends what it no longer knows before it starts what it does.
        let clean = node.as_str() != A || self.zombies().next().is_none();
        let ready = |volume: &VolumeName| {
            let attachments = self.cluster.attachments_on(volume, node);
            let attached = attachments.iter().any(|a| a.attached && !a.deleting)
                && self.cluster.can_write(volume.as_str(), node.as_str());
            let wanted = (volume.clone(), node.clone());
            attached || (node.as_str() == B && attachable.contains(&wanted))
        };
        alive && clean && self.cluster.uses[uid].ours.iter().all(ready)
    }

    /// Containers on the failed node whose pods are gone.
    fn zombies(&self) -> impl Iterator<Item = &PodUid> {
        let here = self
            .running
            .iter()
            .filter(|(_, (node, _))| node.as_str() == A);
        here.map(|(uid, _)| uid)
            .filter(|uid| !self.cluster.pods.contains_key(*uid))
    }

    fn next_moment(&self) -> Option<Moment> {
        let wake = self.evacuation.as_ref().and_then(Evacuation::wake);
        let late = self
            .late
            .iter()
            .filter_map(|late| late.until)
            .filter(|until| *until > self.now);
        // A call that may still act is waited out, so that the state is settled afterwards.
        wake.into_iter().chain(late).min()
    }

    /// Nothing is left to happen by itself.
    pub fn is_settled(&self) -> bool {
        self.forced().is_empty() && self.next_moment().is_none()
    }

    // --- steps ---------------------------------------------------------------------------------------------------

    pub fn take(&mut self, action: &Action, setting: &Setting) -> Result<(), Violation> {
        let before = self.cluster.clone();
        match action {
            Action::Perform(index) => {
                let step = self.pending.remove(*index);
                let outcome = self.carry_out(&step, setting)?;
                self.record(outcome, setting);
            }
            Action::Deliver(index) => {
                let (_, outcome) = self.held.remove(*index);
                self.record(outcome, setting);
            }
            Action::Act(index) => {
                let late = self.late.remove(*index);
                self.carry_out(&late.step, setting)?;
            }
            Action::Fault(fault, index) => {
                self.faults -= 1;
                self.go_wrong(*fault, *index, setting)?;
            }
            Action::Attach(volume, node) => drop(self.cluster.attach(volume, node)),
            Action::Unattach(uid) => drop(self.cluster.delete_attachment(uid)),
            Action::Publish(uid) => drop(self.publishing.insert(uid.clone())),
            Action::Land(uid) => {
                self.publishing.remove(uid);
                self.cluster.publish(uid);
                self.cluster.note_attached(uid);
            }
            Action::Detach(uid) => self.cluster.detach(uid),
            Action::Republish(uid) => {
                self.republishes -= 1;
                self.cluster.publish(uid);
            }
            Action::Replace(name, node) => {
                let volumes: Vec<String> =
                    self.owners[name].iter().map(ToString::to_string).collect();
                let volumes: Vec<&str> = volumes.iter().map(String::as_str).collect();
                self.cluster.bind(name, node.as_str(), &volumes);
            }
            Action::Start(uid) => {
                let node = self.cluster.pods[uid].node.clone().expect("a bound pod");
                let volumes = self.cluster.uses[uid].ours.clone();
                for volume in volumes.iter().filter(|_| node.as_str() == B) {
                    if self.cluster.attachments_on(volume, &node).is_empty() {
                        let attachment = self.cluster.attach(volume, &node);
                        self.cluster.publish(&attachment);
                        self.cluster.note_attached(&attachment);
                    }
                }
                self.running.insert(uid.clone(), (node, volumes));
                self.cluster.start(uid);
            }
            Action::Kill(uid) => drop(self.running.remove(uid)),
            Action::Requalify => self.cluster.edit_node(A, |node| {
                node.journal = None;
                node.taints.retain(|taint| taint.key != names().taint);
            }),
            Action::Collect(uid) => self.cluster.remove_pod(uid),
            Action::Wait => self.pass(),
        }
        self.observe(&before, setting);
        self.settle(setting);
        let mut ghost = std::mem::take(&mut self.ghost);
        let looked = ghost.look(&before, self);
        self.ghost = ghost;
        looked?;
        if self.now - Moment::since_boot(START) > HORIZON {
            return Err(Violation::NeverSettles);
        }
        Ok(())
    }

    fn carry_out(&mut self, step: &Step, setting: &Setting) -> Result<Outcome, Violation> {
        let mut ghost = std::mem::take(&mut self.ghost);
        let checked = ghost.before(step, self);
        self.ghost = ghost;
        checked?;
        let sight = Sight::Seen {
            connected: false,
            io: false,
        };
        if setting.sabotage == Sabotage::AttachmentFirst
            && let Step::DeletePod { pod, .. } = step
        {
            let used = self.cluster.attachments.values();
            let used = used.filter(|a| self.cluster.uses[&pod.uid].ours.contains(&a.volume));
            for attachment in used.cloned().collect::<Vec<_>>() {
                let first = Step::DeleteAttachment {
                    name: attachment.name,
                    uid: attachment.uid,
                };
                self.carry_out(&first, setting)?;
            }
        }
        let step = setting.sabotage.step(step, &mut self.cluster);
        let outcome = match setting.sabotage.instead(&step, &self.cluster, self.now) {
            Some(outcome) => outcome,
            None => perform(&mut self.cluster, &A.into(), &step, sight, self.now),
        };
        self.ghost.after(&step, &outcome, &self.cluster);
        Ok(setting.sabotage.outcome(outcome))
    }

    fn go_wrong(&mut self, fault: Fault, index: usize, setting: &Setting) -> Result<(), Violation> {
        match fault {
            Fault::Failed => {
                let step = self.pending.remove(index);
                self.record(unanswered(&step, self.now), setting);
            }
            Fault::AnswerLost => {
                let step = self.pending.remove(index);
                self.carry_out(&step, setting)?;
                self.record(unanswered(&step, self.now), setting);
            }
            Fault::GivenUp => {
                let step = self.pending.remove(index);
                let until = matches!(step, Step::Fence(_)).then(|| self.now + LATE);
                let outcome = setting.sabotage.outcome(unanswered(&step, self.now));
                self.late.push(Late { step, until });
                self.record(outcome, setting);
            }
            Fault::Slow => {
                let step = self.pending.remove(index);
                let outcome = self.carry_out(&step, setting)?;
                self.held.push((step, earlier(outcome)));
            }
            Fault::Crash => {
                self.term += 1;
                self.evacuation = None;
                self.held.clear();
                for step in std::mem::take(&mut self.pending) {
                    let until = match step {
                        Step::Survey | Step::Look | Step::Ask(_) | Step::Report(_) => continue,
                        Step::Fence(_) => Some(self.now + DEADLINE),
                        _ => None,
                    };
                    self.late.push(Late { step, until });
                }
            }
            Fault::Sleep => self.pass(),
            Fault::Node => self.turn_node(),
            Fault::NodeDeleted => {
                self.cluster.delete_node(A);
                self.up = false;
            }
            Fault::Delete => {
                let uid = self.cluster.pods.keys().nth(index).cloned();
                self.cluster.remove_pod(&uid.expect("a pod"));
            }
            Fault::Deaf => self.deaf = true,
        }
        Ok(())
    }

    fn turn_node(&mut self) {
        self.up = !self.up;
        if self.up {
            self.cluster.heal_node(A);
            let here: Vec<PodUid> = self.cluster.pods_on(&A.into()).cloned().collect();
            for uid in here.iter().filter(|uid| self.running.contains_key(*uid)) {
                self.cluster.edit_pod(uid, |pod| pod.ready = true);
            }
        } else {
            self.cluster.lose_node(A);
        }
    }

    fn pass(&mut self) {
        if let Some(next) = self.next_moment() {
            self.now = next;
        }
        let now = self.now;
        self.late
            .retain(|late| late.until.is_none_or(|until| now < until));
    }

    fn record(&mut self, outcome: Outcome, setting: &Setting) {
        let by = self.rules(setting).by;
        if let Some(evacuation) = &mut self.evacuation {
            // What follows are reports.
            evacuation.record(outcome, &by, self.now);
        }
    }

    /// What the watches bring of this change.
    fn observe(&mut self, before: &Cluster, _setting: &Setting) {
        if self.deaf {
            return;
        }
        let Some(evacuation) = &mut self.evacuation else {
            return;
        };
        let mut seen = Vec::new();
        changes(&before.pods, &self.cluster.pods, |change| {
            seen.push(Observation::Pod(change))
        });
        changes(&before.nodes, &self.cluster.nodes, |change| {
            seen.push(Observation::Node(change))
        });
        changes(&before.attachments, &self.cluster.attachments, |change| {
            seen.push(Observation::Attachment(change));
        });
        for observation in seen {
            evacuation.observe(&observation, self.now);
        }
    }

    /// Begins and ends the evacuation as the controller does, and asks for its next steps.
    fn settle(&mut self, setting: &Setting) {
        let rules = self.rules(setting);
        if self.evacuation.is_none() {
            let mut world = World::default();
            world.observe(&Observation::Pod(Change::All(
                self.cluster.pods.values().cloned().collect(),
            )));
            world.observe(&Observation::Node(Change::All(
                self.cluster.nodes.values().cloned().collect(),
            )));
            if decide::concerns(&world, &A.into(), false) {
                self.evacuation = Some(Evacuation::new(A.into(), names(), self.now));
            }
        }
        let Some(evacuation) = &mut self.evacuation else {
            return;
        };
        let next = evacuation.next(&rules, self.now);
        let over = next.is_empty() && evacuation.is_over(&rules);
        self.pending.extend(
            next.into_iter()
                .filter(|step| !matches!(step, Step::Report(_))),
        );
        if over {
            self.evacuation = None;
        }
    }
}

/// What was read before anything that happens from now on.
fn earlier(mut outcome: Outcome) -> Outcome {
    let at = match &mut outcome {
        Outcome::Survey(Ok(survey)) => &mut survey.at,
        Outcome::Look { at, .. } | Outcome::Patch { at, .. } | Outcome::ForgetInUse { at, .. } => {
            at
        }
        Outcome::Fence { started, .. } => started,
        _ => return outcome,
    };
    let since_boot = *at - Moment::default();
    *at = Moment::since_boot(since_boot.saturating_sub(Duration::from_nanos(1)));
    outcome
}

fn changes<K: Ord, T: Clone + PartialEq>(
    before: &BTreeMap<K, T>,
    after: &BTreeMap<K, T>,
    mut tell: impl FnMut(Change<T>),
) {
    for (key, object) in after {
        if before.get(key) != Some(object) {
            tell(Change::Applied(object.clone()));
        }
    }
    for (key, object) in before {
        if !after.contains_key(key) {
            tell(Change::Deleted(object.clone()));
        }
    }
}
