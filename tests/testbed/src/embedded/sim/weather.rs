//! Faults: which, when, for how long. The seed decides all of it beforehand.

use std::time::Duration;

use crate::embedded::chance::Chance;

/// A fault. Numbers are places in the lists of machines and controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The machine does not reach the API server; its containers run on.
    CutNode(usize),
    /// The machine reaches neither the API server nor the array.
    IsolateNode(usize),
    /// The machine does not reach the array.
    CutStorage(usize),
    FreezeNode(usize),
    PowerOff(usize),
    /// The kubelet is gone, containers run on.
    StopKubelet(usize),
    /// The container runtime does not answer.
    StopRuntime(usize),
    CutController(usize),
    FreezeController(usize),
    CrashController(usize),
    CrashNodePodmon(usize),
    /// Requests and answers of every podmon get lost.
    BadNetwork,
    /// Watches of every podmon are late.
    LateWatches,
    /// The API server forgets its history, and all connections break.
    ApiRestart,
    /// Fences fail.
    FencesFail,
    /// Fences never answer, and do nothing.
    FencesHang,
    /// Fences take effect and say so late.
    FencesSlow,
    /// Fences say nothing for long, and take effect after their caller has given up.
    FencesLate,
    /// The attacher takes its time.
    LateAttacher,
    RestartAttachDetach,
    /// An operator deletes a pod.
    DeletePod(usize),
    Cordon(usize),
}

/// A fault with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spell {
    pub begins: Duration,
    pub ends: Duration,
    pub fault: Fault,
}

/// The faults of one simulation, by their beginning.
#[derive(Clone, Debug)]
pub struct Forecast {
    pub spells: Vec<Spell>,
}

impl Forecast {
    pub fn new(chance: &mut Chance, nodes: usize, storm: Duration) -> Forecast {
        let mut spells = Vec::new();
        let mut at = chance.time(Duration::from_secs(5)..Duration::from_secs(60));
        while at < storm {
            let lasts = match chance.below(3) {
                0 => chance.time(Duration::from_secs(1)..Duration::from_secs(15)),
                1 => chance.time(Duration::from_secs(10)..Duration::from_secs(120)),
                _ => chance.time(Duration::from_secs(60)..Duration::from_secs(400)),
            };
            spells.push(Spell {
                begins: at,
                ends: at + lasts,
                fault: fault(chance, nodes),
            });
            // Faults come in bursts.
            at += if chance.percent(60) {
                chance.time(Duration::from_millis(100)..Duration::from_secs(10))
            } else {
                chance.time(Duration::from_secs(30)..Duration::from_secs(300))
            };
        }
        Forecast { spells }
    }

    /// One fault and no other.
    pub fn only(fault: Fault, begins: Duration, lasts: Duration) -> Forecast {
        Forecast {
            spells: vec![Spell {
                begins,
                ends: begins + lasts,
                fault,
            }],
        }
    }
}

fn fault(chance: &mut Chance, nodes: usize) -> Fault {
    let node = chance.below(nodes as u64) as usize;
    let controller = chance.below(2) as usize;
    match chance.below(32) {
        0..=4 => Fault::CutNode(node),
        5 | 6 => Fault::FreezeNode(node),
        7 | 8 => Fault::PowerOff(node),
        9 | 10 => Fault::StopKubelet(node),
        11 => Fault::StopRuntime(node),
        12 => Fault::CutController(controller),
        13 | 14 => Fault::FreezeController(controller),
        15 => Fault::CrashController(controller),
        16 => Fault::CrashNodePodmon(node),
        17 => Fault::BadNetwork,
        18 => Fault::LateWatches,
        19 => Fault::ApiRestart,
        20 => Fault::FencesFail,
        21 => Fault::FencesHang,
        22 => Fault::FencesSlow,
        23 => Fault::FencesLate,
        24 => Fault::LateAttacher,
        25 => Fault::RestartAttachDetach,
        26 => Fault::DeletePod(node),
        27 => Fault::Cordon(node),
        28..=30 => Fault::IsolateNode(node),
        _ => Fault::CutStorage(node),
    }
}
