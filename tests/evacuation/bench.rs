//! One controller at work on the double, step by step, with time by hand.

use std::time::Duration;

use podmon::clock::Moment;
use podmon::controller::evacuation::{Evacuation, Rules};
use podmon::controller::step::{Outcome, Sight, Step};
use podmon::journal::Phase;

use crate::cluster::{Cluster, names};
use crate::perform::{perform, unanswered};

/// The failed node of every scenario.
pub const A: &str = "a";
/// A healthy one.
pub const B: &str = "b";

pub fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub struct Bench {
    pub cluster: Cluster,
    pub evacuation: Evacuation,
    pub rules: Rules,
    pub sight: Sight,
    pub now: Moment,
    /// Steps that were asked for and not carried out.
    pub pending: Vec<Step>,
    /// Every effect, in order.
    pub log: Vec<String>,
    /// The attach-detach controller and the attacher are at work.
    pub kubernetes: bool,
}

impl Bench {
    /// Two nodes; what is on them is up to the scenario.
    pub fn new(prepare: impl FnOnce(&mut Cluster)) -> Self {
        let mut cluster = Cluster::default();
        cluster.add_node(A);
        cluster.add_node(B);
        prepare(&mut cluster);
        let now = Moment::since_boot(seconds(1000));
        Self {
            cluster,
            evacuation: Evacuation::new(A.into(), names(), now),
            rules: Rules {
                by: "ctl-0/1".into(),
                republishes: false,
                ignore_volumeless: false,
                skip_array_validation: false,
                array_lost: false,
                array_seen: false,
                hold: None,
                out_of_service_release: false,
                wall: "2026-01-01T00:00:00Z".into(),
            },
            sight: Sight::Seen {
                connected: false,
                io: false,
            },
            now,
            pending: Vec::new(),
            log: Vec::new(),
            kubernetes: true,
        }
    }

    /// One pod with one volume on the failed node.
    pub fn failed_node() -> Self {
        Self::new(|cluster| {
            cluster.add_volume("pv1");
            cluster.run("db-0", A, &["pv1"]);
            cluster.lose_node(A);
        })
    }

    /// Asks for the next steps.
    pub fn next(&mut self) {
        let steps = self.evacuation.next(&self.rules, self.now);
        self.pending.extend(steps);
    }

    pub fn deliver(&mut self, outcome: Outcome) {
        let steps = self.evacuation.record(outcome, &self.rules.by, self.now);
        self.pending.extend(steps);
        self.next();
    }

    /// Carries one pending step out and hands its outcome back.
    pub fn perform(&mut self, index: usize) {
        self.now = self.now + Duration::from_millis(1);
        let step = self.pending.remove(index);
        let outcome = perform(&mut self.cluster, &A.into(), &step, self.sight, self.now);
        self.log.extend(describe(&step, &outcome));
        self.deliver(outcome);
    }

    /// Takes the first pending step of this kind out, to be dealt with by hand.
    pub fn take(&mut self, kind: &str) -> Step {
        let found = self.pending.iter().position(|step| word(step) == kind);
        let found = found.unwrap_or_else(|| {
            panic!(
                "no {kind} is pending but {:?}; so far:\n{}",
                self.pending.iter().map(word).collect::<Vec<_>>(),
                self.log.join("\n")
            )
        });
        self.pending.remove(found)
    }

    /// Carries out and answers everything that is pending, and what follows from it, until a step of this kind is
    /// asked for; with `wait` also over time.
    pub fn until(&mut self, kind: &str) {
        let kind = kind.to_owned();
        self.go(&format!("a {kind}"), |bench| {
            bench.pending.iter().any(|step| word(step) == kind)
        });
    }

    /// Goes on until this holds.
    pub fn go(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        if self.pending.is_empty() {
            self.next();
        }
        for _ in 0..1000 {
            if done(self) {
                return;
            }
            if !self.turn() {
                break;
            }
        }
        panic!(
            "{what} never comes; pending {:?}, wake {:?}; so far:\n{}\n{:#?}",
            self.pending,
            self.evacuation.wake(),
            self.log.join("\n"),
            self.evacuation
        );
    }

    /// One step, or one of Kubernetes' controllers, or time passes; whether anything could.
    pub fn turn(&mut self) -> bool {
        if !self.pending.is_empty() {
            self.perform(0);
            return true;
        }
        if self.kubernetes && self.kubernetes_turn() {
            self.evacuation.outdate(self.now);
            self.next();
            return true;
        }
        match self.evacuation.wake() {
            Some(wake) => {
                assert!(
                    self.now < wake,
                    "asked to be woken at {wake:?}, which is past; so far:\n{}",
                    self.log.join("\n")
                );
                self.now = wake;
                self.next();
                true
            }
            None => false,
        }
    }

    fn kubernetes_turn(&mut self) -> bool {
        let deleted: Vec<_> = self
            .cluster
            .attachments
            .values()
            .filter(|a| a.deleting)
            .map(|a| a.uid.clone())
            .collect();
        for uid in &deleted {
            self.cluster.detach(uid);
        }
        let (make, delete) = self.cluster.attach_detach();
        for (volume, node) in &make {
            let uid = self.cluster.attach(volume, node);
            self.cluster.publish(&uid);
            self.cluster.note_attached(&uid);
        }
        for uid in &delete {
            self.cluster.delete_attachment(uid);
        }
        !(deleted.is_empty() && make.is_empty() && delete.is_empty())
    }

    pub fn wait(&mut self, time: Duration) {
        self.now = self.now + time;
        self.next();
    }

    /// Something is seen to have changed.
    pub fn changed(&mut self) {
        self.evacuation.outdate(self.now);
        self.next();
    }

    /// Runs until the journal is closed.
    pub fn close(&mut self) {
        self.go("a closed journal", |bench| {
            bench
                .cluster
                .journal(A)
                .is_some_and(|journal| journal.phase == Phase::Closed)
        });
        self.over();
    }

    /// Runs until the evacuation has nothing more to do.
    pub fn over(&mut self) {
        self.go("the end", |bench| {
            bench.pending.is_empty() && bench.evacuation.is_over(&bench.rules)
        });
    }

    /// Goes on for this long, whatever there is to do.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        self.next();
        for _ in 0..1000 {
            let wake = self.evacuation.wake();
            let busy = !self.pending.is_empty();
            if !busy && wake.is_none_or(|wake| wake > end) {
                let kubernetes = self.kubernetes && self.kubernetes_turn();
                if !kubernetes {
                    self.now = end;
                    return;
                }
                self.changed();
                continue;
            }
            self.turn();
        }
        panic!("busy without end; so far:\n{}", self.log.join("\n"));
    }

    /// The leader is gone; its memory with it. What it had asked for is handed back.
    pub fn crash(&mut self) -> Vec<Step> {
        let term: u32 = self
            .rules
            .by
            .rsplit('/')
            .next()
            .and_then(|term| term.parse().ok())
            .expect("a term");
        self.rules.by = format!("ctl-0/{}", term + 1);
        self.evacuation = Evacuation::new(A.into(), names(), self.now);
        self.log.push(format!("leader is {}", self.rules.by));
        let lost = std::mem::take(&mut self.pending);
        self.next();
        lost
    }

    /// The answer to this step is lost.
    pub fn lose(&mut self, step: &Step) {
        self.log.push(format!("{} unanswered", word(step)));
        self.deliver(unanswered(step, self.now));
    }

    pub fn count(&self, start: &str) -> usize {
        self.log
            .iter()
            .filter(|line| line.starts_with(start))
            .count()
    }

    pub fn events(&self) -> Vec<&str> {
        self.log
            .iter()
            .filter_map(|line| line.strip_prefix("event "))
            .collect()
    }

    /// Position in the log of the first line that starts so.
    pub fn position(&self, start: &str) -> usize {
        self.log
            .iter()
            .position(|line| line.starts_with(start))
            .unwrap_or_else(|| panic!("no {start:?} in\n{}", self.log.join("\n")))
    }

    /// No effect but reads and reports.
    pub fn untouched(&self) {
        let effects = [
            "announce", "patch", "fence", "delete", "forget", "close", "open",
        ];
        let done = |line: &&String| {
            effects.iter().any(|effect| line.starts_with(effect)) && !line.ends_with("refused")
        };
        let done: Vec<&String> = self.log.iter().filter(done).collect();
        assert!(done.is_empty(), "{done:?} in\n{}", self.log.join("\n"));
    }
}

pub fn word(step: &Step) -> &'static str {
    match step {
        Step::Survey => "survey",
        Step::Look => "look",
        Step::Ask(_) => "ask",
        Step::Patch(_) => "patch",
        Step::ForgetInUse { .. } => "forget",
        Step::Fence(_) => "fence",
        Step::DeletePod { .. } => "delete pod",
        Step::DeleteAttachment { .. } => "delete attachment",
        Step::Report(_) => "report",
    }
}

/// One line for the log; reads leave none.
fn describe(step: &Step, outcome: &Outcome) -> Option<String> {
    let line = match (step, outcome) {
        (Step::Survey | Step::Look | Step::Ask(_), _) => return None,
        (Step::Patch(patch), Outcome::Patch { node, .. }) => {
            let what = match &patch.journal {
                Some(Some(journal)) if journal.is_open() => format!(
                    "open {} gone {}{}",
                    journal
                        .pods
                        .keys()
                        .map(ToString::to_string)
                        .collect::<Vec<_>>()
                        .join(","),
                    journal
                        .gone
                        .iter()
                        .map(ToString::to_string)
                        .collect::<Vec<_>>()
                        .join(","),
                    if patch.taints.is_some() {
                        " +taint"
                    } else {
                        ""
                    },
                ),
                Some(Some(_)) => "close".to_owned(),
                Some(None) => "patch away".to_owned(),
                None => "patch".to_owned(),
            };
            format!("{what}{}", if node.is_ok() { "" } else { " refused" })
        }
        (Step::ForgetInUse { .. }, _) => "forget in use".to_owned(),
        (Step::Fence(fence), Outcome::Fence { result, .. }) => {
            format!(
                "fence {} {}{}",
                fence.volume,
                fence.node,
                if result.is_ok() { "" } else { " failed" }
            )
        }
        (Step::DeletePod { pod, .. }, Outcome::DeletePod { result, .. }) => {
            format!("delete pod {} {result:?}", pod.uid)
        }
        (Step::DeleteAttachment { uid, .. }, _) => format!("delete attachment {uid}"),
        (Step::Report(report), _) => format!("event {}: {}", report.reason, report.message),
        (step, outcome) => panic!("{step:?} was answered by {outcome:?}"),
    };
    Some(line)
}
