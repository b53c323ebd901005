//! The promise: after each fault the pod runs elsewhere, no second node has written, and nothing acknowledged is lost.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::time::{Duration, Instant};

use testbed::real::identity::Rights;
use testbed::real::rig::{DriverOptions, JOURNAL, TAINT, array_error};
use testbed::real::wait::Seen;
use testbed::real::workload::{Running, Workload};
use testbed::real::{Error, Node, wait_until};
use testbed::storage::trouble::{Call, Rule, Trouble};
use testbed::storage::{NodeId, Path, Report, evidence};

use crate::bench::{Bench, NAMESPACE, PATIENCE, Result, expect};

/// The controller that most scenarios run.
pub const CONTROLLER: &str = "controller-0";

/// A driver that cannot say who is connected and who writes.
const WITHOUT_EXTENSION: DriverOptions = DriverOptions {
    extension: false,
    published_nodes: false,
};

/// Storage goes over the same cable: what the zombie writes meanwhile arrives when the cable is back.
pub async fn after_a_network_cut(bench: &mut Bench) -> Result {
    let scene = Scene::set(bench, "cut").await?;
    scene.node(bench).cut_network()?;
    scene.set_path(bench, Path::Stalled)?;
    let moved = scene.moved(bench).await?;
    let back = Instant::now();
    scene.node(bench).mend_network()?;
    scene.set_path(bench, Path::Up)?;
    scene.free(bench, back).await?;
    let report = scene.judged(bench, &moved)?;
    expect(
        report.refused() > 0,
        "the zombie tried to write, and the fence was needed",
    )
}

pub async fn after_a_freeze(bench: &mut Bench) -> Result {
    let scene = Scene::set(bench, "frozen").await?;
    scene.node(bench).freeze().await?;
    let moved = scene.moved(bench).await?;
    let back = Instant::now();
    scene.node(bench).thaw()?;
    scene.free(bench, back).await?;
    let report = scene.judged(bench, &moved)?;
    expect(
        report.refused() > 0,
        "the thawed node tried to write on, and was refused",
    )
}

pub async fn after_a_power_loss_and_a_reboot(bench: &mut Bench) -> Result {
    let scene = Scene::set(bench, "power").await?;
    scene.node(bench).power_off()?;
    let moved = scene.moved(bench).await?;
    let back = Instant::now();
    scene.node(bench).power_on().await?;
    scene.free(bench, back).await?;
    scene.judged(bench, &moved).map(drop)
}

/// The pod writes on, and the driver says so: nothing may happen to it.
pub async fn never_while_the_array_sees_writes(bench: &mut Bench) -> Result {
    let scene = Scene::set(bench, "veto").await?;
    let node = scene.node(bench);
    node.stop_kubelet()?;
    node.wait_lost().await?;
    let before = bench.rig.report(scene.mark)?.accepted();
    // Longer than an evacuation takes, by far.
    let until = Instant::now() + Duration::from_secs(15);
    while Instant::now() < until {
        let pod = scene.workload.pod().await?;
        let uid = pod.and_then(|pod| pod.metadata.uid);
        expect(uid.as_ref() == Some(&scene.before.uid), "the pod stays")?;
        expect(marks(node).await?.is_empty(), "the node is not tainted")?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let report = bench.rig.report(scene.mark)?;
    expect(report.accepted() > before, "the pod wrote all the while")?;
    expect(report.refused() == 0, "nothing was fenced")?;
    node.start_kubelet()?;
    node.wait_ready().await?;
    scene.workload.clone().remove().await
}

/// Without the extension nobody knows of the writes: Kubernetes' word counts, and the fence makes it safe.
pub async fn after_the_kubelet_died_under_a_driver_without_the_extension(
    bench: &mut Bench,
) -> Result {
    bench.rig.set_driver(WITHOUT_EXTENSION).await?;
    let scene = Scene::set(bench, "kubelet").await?;
    scene.node(bench).stop_kubelet()?;
    let moved = scene.moved(bench).await?;
    let back = Instant::now();
    scene.node(bench).start_kubelet()?;
    scene.free(bench, back).await?;
    let report = scene.judged(bench, &moved)?;
    expect(report.refused() > 0, "the running pod was refused")
}

/// The control: with a fence that only says OK the same scenario must be found out.
pub async fn is_found_out_when_the_fence_does_nothing(bench: &mut Bench) -> Result {
    bench.rig.set_driver(WITHOUT_EXTENSION).await?;
    let scene = Scene::set(bench, "sham").await?;
    bench
        .rig
        .array
        .add_rule(Rule::all(Call::ControllerUnpublish, Trouble::no_op()))
        .map_err(array_error)?;
    scene.node(bench).cut_network()?;
    scene.moved(bench).await?;
    let caught = wait_until("the ledger shows two writers", PATIENCE, async || {
        let report = bench.rig.report(scene.mark)?;
        Ok(match report.findings.first() {
            Some(finding) => Seen::Yes(finding.to_string()),
            None => Seen::NotYet(format!("{} writes accepted", report.accepted())),
        })
    })
    .await?;
    println!("caught: {caught}");
    bench.rig.array.clear_rules().map_err(array_error)?;
    bench.rig.kill_controllers();
    // For real now, or the old pod would write on for as long as it lives.
    for volume in [&scene.workload.filesystem, &scene.workload.block] {
        let node = node_id(&scene.before)?;
        bench.rig.array.revoke(volume, &node).map_err(array_error)?;
    }
    scene.node(bench).mend_network()?;
    scene.workload.clone().remove().await
}

/// Existing charts do not let podmon take volumes out of `volumesInUse`: safe as ever, only later.
pub async fn without_the_right_to_node_status(bench: &mut Bench) -> Result {
    let scene = Scene::set_with(bench, "unhurried", &Rights::of_controller()).await?;
    scene.node(bench).power_off()?;
    let moved = scene.moved(bench).await?;
    let back = Instant::now();
    scene.node(bench).power_on().await?;
    scene.free(bench, back).await?;
    scene.judged(bench, &moved).map(drop)
}

/// A protected pod that runs and writes, with a controller that watches over it.
pub struct Scene {
    pub name: &'static str,
    pub workload: Workload,
    /// The incarnation that the fault meets.
    pub before: Running,
    /// What it says, also after its end.
    output: File,
    /// Where its part of the ledger begins.
    pub mark: u64,
}

impl Scene {
    /// With the rights that podmon's own chart grants.
    pub async fn set(bench: &mut Bench, name: &'static str) -> Result<Self> {
        Self::set_with(bench, name, &Rights::of_controller().with_node_status()).await
    }

    pub async fn set_with(bench: &mut Bench, name: &'static str, rights: &Rights) -> Result<Self> {
        let kubeconfig = bench.rig.controller_kubeconfig(rights).await?;
        bench.rig.start_controller(CONTROLLER, &kubeconfig)?;
        Self::deploy(bench, name).await
    }

    /// Without a controller.
    pub async fn deploy(bench: &mut Bench, name: &'static str) -> Result<Self> {
        let mark = bench.rig.mark()?;
        let workload = Workload::deploy(&bench.rig, NAMESPACE, name).await?;
        let before = workload.wait_running(None).await?;
        let scene = Scene {
            name,
            output: workload.output(&bench.rig, &before)?,
            workload,
            before,
            mark,
        };
        scene.wait_writing(bench, &scene.before.node).await?;
        Ok(scene)
    }

    /// Cuts or mends the way from the node to the array.
    pub fn set_path(&self, bench: &Bench, path: Path) -> Result {
        let node = node_id(&self.before)?;
        bench.rig.array.set_path(&node, path).map_err(array_error)
    }

    /// Waits until both volumes have taken a number of writes from a node.
    pub async fn wait_writing(&self, bench: &Bench, node: &str) -> Result {
        wait_until(format!("{node} writes"), PATIENCE, async || {
            let report = bench.rig.report(self.mark)?;
            Ok([&self.workload.filesystem, &self.workload.block]
                .into_iter()
                .all(|volume| {
                    report.tenures.get(volume).is_some_and(|tenures| {
                        let last = tenures.iter().rfind(|t| t.node.as_str() == node);
                        last.is_some_and(|tenure| tenure.accepted > 20)
                    })
                }))
        })
        .await
    }

    /// The node that the fault meets.
    pub fn node<'a>(&self, bench: &'a Bench) -> &'a Node {
        bench.rig.cluster.node(&self.before.node)
    }

    /// Waits until another incarnation runs and writes elsewhere. To be called right after the fault.
    pub async fn moved(&self, bench: &mut Bench) -> Result<Moved> {
        let fault = Instant::now();
        self.node(bench).wait_lost().await?;
        let lost = Instant::now();
        let running = self.workload.wait_running(Some(&self.before)).await?;
        let elsewhere = Instant::now();
        println!(
            "{}: lost after {:.1} s, then running elsewhere after {:.1} s",
            self.name,
            (lost - fault).as_secs_f64(),
            (elsewhere - lost).as_secs_f64()
        );
        bench.rig.check_controllers()?;
        expect(running.node != self.before.node, "it runs on another node")?;
        let output = self.workload.output(&bench.rig, &running)?;
        self.wait_writing(bench, &running.node).await?;
        Ok(Moved { output })
    }

    /// Waits until the node that came back is free of podmon's taint and journal, and of everything of the old incarnation.
    pub async fn free(&self, bench: &Bench, back: Instant) -> Result {
        let node = self.node(bench);
        wait_until(format!("{} is free", node.name()), PATIENCE, async || {
            let marks = marks(node).await?;
            Ok(if marks.is_empty() {
                Seen::Yes(())
            } else {
                Seen::NotYet(marks.join(" and "))
            })
        })
        .await?;
        println!(
            "{}: free {:.1} s after its return",
            self.name,
            back.elapsed().as_secs_f64()
        );
        let mounts = node.output("cat", &["/proc/mounts"])?;
        expect(
            !mounts.contains(&self.before.uid),
            "no mount of the old incarnation is left",
        )?;
        let containers = node.output("ctr", &["--namespace", "k8s.io", "containers", "list"])?;
        expect(
            !containers.contains(&self.before.uid),
            "no container of the old incarnation is left",
        )?;
        node.wait_ready().await
    }

    /// Ends the scene and judges it: one writer at a time, nothing lost.
    pub fn judged(&self, bench: &Bench, moved: &Moved) -> Result<Report> {
        let report = bench.rig.report(self.mark)?;
        print!("{report}");
        expect(report.is_clean(), "no volume had two writers")?;
        let handovers = report.handovers().count();
        expect(handovers == 2, "each volume changed hands once")?;
        let mut runs = evidence::read(&text(&self.output)?);
        runs.extend(evidence::read(&text(&moved.output)?));
        let targets = runs.iter().filter(|run| run.found.is_some()).count();
        expect(targets == 4, "both incarnations looked at both volumes")?;
        let losses = evidence::judge(&runs);
        let shown: Vec<_> = losses.iter().map(ToString::to_string).collect();
        expect(losses.is_empty(), &format!("no data lost: {shown:?}"))?;
        Ok(report)
    }
}

/// The incarnation that took over.
pub struct Moved {
    output: File,
}

/// What podmon has put on a node.
pub async fn marks(node: &Node) -> Result<Vec<String>> {
    let object = node.object().await?;
    let annotations = object.metadata.annotations.unwrap_or_default();
    let taints = object.spec.and_then(|spec| spec.taints).unwrap_or_default();
    let taint = taints.into_iter().find(|taint| taint.key == TAINT);
    let journal = annotations.get(JOURNAL);
    Ok(taint
        .map(|taint| format!("taint {}", taint.effect))
        .into_iter()
        .chain(journal.map(|journal| format!("journal {journal}")))
        .collect())
}

/// The array's name for the node of an incarnation.
fn node_id(running: &Running) -> Result<NodeId> {
    let parsed = running.node.parse();
    parsed.map_err(|error| Error::State(format!("node id: {error}")))
}

fn text(mut file: &File) -> Result<String> {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0))
        .and_then(|_| file.read_to_string(&mut text))
        .map_err(|source| Error::Io {
            what: "read a workload's output".into(),
            source,
        })?;
    Ok(text)
}
