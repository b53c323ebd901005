//! The failover on the embedded cluster: podmon itself, both halves, under paused time.

use std::time::Duration;

use testbed::embedded::api::Kind;
use testbed::embedded::chance::Chance;
use testbed::embedded::cluster::Shape;
use testbed::embedded::daemon;
use testbed::embedded::entropy;
use testbed::embedded::object;
use testbed::embedded::sim::Plan;
use testbed::embedded::sim::history::History;
use testbed::embedded::sim::weather::Fault;
use testbed::embedded::sim::world::World;
use testbed::storage::{Operation, Verdict};

use super::Failure;
use super::timeline::Timeline;

const POD: &str = "db-0";
/// How long each thing may take before the demonstration counts as failed.
const PATIENCE: Duration = Duration::from_secs(180);
/// How long the fault lasts once the pod runs elsewhere.
const LASTS: Duration = Duration::from_secs(10);

/// Whether the pod moved, the node came back, and the ledger is clean.
pub fn show(failure: Failure, seed: u64) -> bool {
    entropy::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    match runtime {
        Ok(runtime) => runtime.block_on(failover(failure, seed)),
        Err(error) => {
            eprintln!("no runtime: {error}");
            false
        }
    }
}

/// Something to wait for, and what to tell of it.
type Sign<'a> = (String, Box<dyn Fn(&World) -> bool + 'a>);

async fn failover(failure: Failure, seed: u64) -> bool {
    let shape = Shape {
        seed,
        ..Shape::default()
    };
    let history = History::new();
    let mut world = World::new(&shape, None, &history, Chance::new(seed)).await;
    let lost = world.cluster.place(POD);
    let Some(node) = world
        .cluster
        .hosts
        .iter()
        .position(|host| host.name() == lost)
    else {
        eprintln!("pod {POD} does not run");
        return false;
    };
    let uid = uid_of(&world, POD);
    let began = world.cluster.elapsed();
    let ledger = world.cluster.array().records().len();
    let timeline = Timeline::from(began);
    let fault = match failure {
        Failure::Network => Fault::CutNode(node),
        Failure::Freeze => Fault::FreezeNode(node),
        Failure::Power => Fault::PowerOff(node),
        Failure::Kubelet => Fault::StopKubelet(node),
    };
    println!("Three nodes; StatefulSet pod {POD} runs on {lost}. Seconds are simulated.\n");
    timeline.tell(began, &format!("{lost} {}", failure.meaning()));
    world.begin(fault);

    let signs: Vec<Sign> = vec![
        (
            format!("{lost} is NotReady"),
            Box::new(|w| !is_ready(w, &lost)),
        ),
        (
            "podmon announces the evacuation: taint and journal on the node".into(),
            Box::new(|w| is_tainted(w, &lost)),
        ),
        (
            "podmon has fenced the volume at the array".into(),
            Box::new(|w| was_revoked(w, ledger, node)),
        ),
        (
            "podmon has deleted the pod".into(),
            Box::new(|w| uid_of(w, POD) != uid),
        ),
        (
            "the volume is detached from the lost node".into(),
            Box::new(|w| !is_attached(w, &lost)),
        ),
        (
            format!("a new {POD} runs on another node"),
            Box::new(|w| w.cluster.is_ready(POD) && w.cluster.place(POD) != lost),
        ),
    ];
    if !follow(&mut world, &timeline, signs).await {
        return false;
    }
    world.run(LASTS).await;
    timeline.tell(world.cluster.elapsed(), &format!("{lost} comes back"));
    world.end(fault);
    let signs: Vec<Sign> = vec![
        (format!("{lost} is Ready"), Box::new(|w| is_ready(w, &lost))),
        (
            "the old pod is gone from the node: no process, no mount".into(),
            Box::new(|w| !w.cluster.hosts[node].state().pods.contains_key(&uid)),
        ),
        (
            "podmon has lifted taint and journal: the node is in use again".into(),
            Box::new(|w| !is_tainted(w, &lost)),
        ),
    ];
    let back = follow(&mut world, &timeline, signs).await;
    world.run(LASTS).await;
    let outcome = world.conclude(Plan::short(seed));
    println!(
        "\n{} writes of the old pod were refused after its fence.",
        outcome.refused
    );
    for violation in &outcome.violations {
        println!("BROKEN: {violation:?}");
    }
    if outcome.is_clean() {
        println!("Ledger: no volume ever had two writers. The promise was kept.");
    }
    back && outcome.is_clean()
}

/// Tells each sign when it is seen, in whatever order they come; false if one does not.
async fn follow(world: &mut World, timeline: &Timeline, mut signs: Vec<Sign<'_>>) -> bool {
    let all = world
        .run_until(PATIENCE, |world| {
            signs.retain(|(what, seen)| {
                let seen = seen(world);
                if seen {
                    timeline.tell(world.cluster.elapsed(), what);
                }
                !seen
            });
            signs.is_empty()
        })
        .await;
    for (what, _) in &signs {
        println!("NOT SEEN within {PATIENCE:?}: {what}");
    }
    all
}

fn uid_of(world: &World, pod: &str) -> String {
    let pod = world.cluster.pod(pod);
    pod.map(|pod| object::uid(&pod).to_owned())
        .unwrap_or_default()
}

fn is_ready(world: &World, node: &str) -> bool {
    let node = world.cluster.server.read(Kind::Node, "", node);
    node.is_some_and(|node| object::condition(&node, "Ready") == "True")
}

fn is_tainted(world: &World, node: &str) -> bool {
    let node = world.cluster.server.read(Kind::Node, "", node);
    node.is_some_and(|node| object::has_taint(&node, &daemon::taint(), "NoSchedule"))
}

fn is_attached(world: &World, node: &str) -> bool {
    let attachments = world.cluster.server.read_all(Kind::VolumeAttachment);
    attachments.iter().any(|attachment| {
        let volume = object::text(attachment, "/spec/source/persistentVolumeName");
        attachment["spec"]["nodeName"] == node && volume.ends_with(POD)
    })
}

fn was_revoked(world: &World, since: usize, node: usize) -> bool {
    let id = world.cluster.hosts[node].state().id.clone();
    let array = world.cluster.array();
    let mut records = array.records()[since..].iter();
    records.any(|record| {
        let revoked = record.operation == Operation::Revoke && record.verdict == Verdict::Accepted;
        revoked && record.node == id && record.volume.to_string().ends_with(POD)
    })
}
