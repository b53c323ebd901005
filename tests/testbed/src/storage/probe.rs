//! The storage on its own, without Kubernetes: does the fence bite, does the driver survive itself, is nothing left?
//!
//! Everything here needs root, FUSE, loop devices and the usual tools of util-linux and e2fsprogs. `storage` and
//! `workload` are the binaries of this crate.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::client::ClientError;
use super::evidence::{self, Loss, Run};
use super::judge::{Report, judge};
use super::loops;
use super::process::Process;
use super::request::Request;

mod bench;

use bench::{Bench, Node};

/// Why a probe failed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Array(#[from] ClientError),
    #[error("CSI: {}", .0.message())]
    Driver(#[from] tonic::Status),
    #[error("{0}")]
    Wrong(String),
}

const PATIENCE: Duration = Duration::from_secs(30);

fn check(holds: bool, what: &str) -> Result<(), ProbeError> {
    if holds {
        Ok(())
    } else {
        Err(ProbeError::Wrong(what.to_owned()))
    }
}

/// A file system and a block volume, two pods on the first; the driver is killed and comes back; the volumes are
/// revoked with files open, taken off the node, granted anew, and read. Gives the judge's report, which was checked.
pub async fn fence(storage: &Path) -> Result<Report, ProbeError> {
    let bench = Bench::new(storage, "fence")?;
    let mut node = bench.node("node", false)?;
    let (files, block) = (bench.disk("files", false)?, bench.disk("block", true)?);
    let mut targets = Vec::new();
    for (disk, pods) in [(&files, &["one", "two"][..]), (&block, &["one"][..])] {
        let epoch = node.grant(disk).await?;
        node.stage(disk, epoch).await?;
        node.stage(disk, epoch).await?;
        for pod in pods {
            targets.push((disk, node.publish(disk, pod).await?));
        }
    }
    check(node.loops()? == 2, "one loop device for each volume")?;
    let mut log = File::create(targets[0].1.join("log"))?;
    let device = OpenOptions::new().write(true).open(&targets[2].1)?;
    log.write_all(b"before\n")?;
    log.sync_all()?;
    device.write_all_at(b"before\n", 0)?;
    device.sync_all()?;
    let read = std::fs::read(targets[1].1.join("log"))?;
    check(
        read == b"before\n",
        "the second pod reads what the first wrote",
    )?;

    node.restart_driver(|| {
        log.write_all(b"without driver\n")?;
        log.sync_all()
    })?;
    let epoch = node.grant(&files).await?;
    node.stage(&files, epoch).await?;
    check(
        node.loops()? == 2,
        "a driver that starts again finds what it staged",
    )?;

    for disk in [&files, &block] {
        let refused = node.unstage(disk).await;
        check(refused.is_err(), "a volume that a pod sees is not unstaged")?;
        node.unstage_from("elsewhere", disk).await?;
    }
    log.write_all(b"still\n")?;
    log.sync_all()?;

    for disk in [&files, &block] {
        bench.client.revoke(&disk.volume, &node.node)?;
    }
    let refused = log.write_all(b"after\n").and_then(|()| log.sync_all());
    check(
        refused.is_err(),
        "an open file takes no write after the revoke",
    )?;
    let refused = device
        .write_all_at(b"after\n", 0)
        .and_then(|()| device.sync_all());
    check(
        refused.is_err(),
        "an open device takes no write after the revoke",
    )?;
    drop((log, device));

    for (disk, target) in &targets {
        node.unpublish(disk, target).await?;
        node.unpublish(disk, target).await?;
    }
    for disk in [&files, &block] {
        node.unstage(disk).await?;
        node.unstage(disk).await?;
    }
    node.nothing_is_left()?;

    let log = node.bring(&files, "three").await?;
    let device = node.bring(&block, "three").await?;
    let read = std::fs::read(log.join("log"))?;
    let whole = b"before\nwithout driver\nstill\n";
    check(
        read == whole,
        "what was flushed before the revoke is there after it",
    )?;
    let mut read = [0; 7];
    File::open(&device)?.read_exact_at(&mut read, 0)?;
    check(
        &read == b"before\n",
        "the device holds what was written before the revoke",
    )?;
    for (disk, target) in [(&files, log), (&block, device)] {
        node.unpublish(disk, &target).await?;
        node.unstage(disk).await?;
    }
    node.nothing_is_left()?;

    let report = judge(&bench.client.ledger_after(0)?);
    check(report.is_clean(), &report.to_string())?;
    check(report.refused() > 0, "the ledger shows what was refused")?;
    Ok(report)
}

/// A node with both kinds of volume loses its power: no loop device is left on the machine, once those that a kubelet
/// puts on top of block volumes are swept away, and the array hears no more of it.
pub async fn power_off(storage: &Path) -> Result<(), ProbeError> {
    let bench = Bench::new(storage, "power")?;
    let mut node = bench.node("node", true)?;
    node.bring(&bench.disk("files", false)?, "one").await?;
    let device = node.bring(&bench.disk("block", true)?, "one").await?;
    node.put_loop_device_on(&device)?;
    check(
        node.loops()? == 3,
        "one loop device for each volume and the kubelet's",
    )?;
    let heard = |node: &Node| bench.client.connectivity(&node.node, &[]);
    check(heard(&node)?.connected, "the array hears a living node")?;
    node.driver.kill();
    loops::sweep(&node.tag())?;
    node.nothing_is_left()?;
    let deadline = Instant::now() + PATIENCE;
    while heard(&node)?.connected {
        check(Instant::now() < deadline, "the array hears a dead node")?;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// What is known after a hand-over.
#[derive(Debug)]
pub struct Handover {
    /// By the ledger.
    pub report: Report,
    /// By the workloads' own words.
    pub losses: Vec<Loss>,
    /// The workloads' runs, the first node's first.
    pub runs: Vec<Run>,
}

/// A workload writes on one node, its volumes are fenced from there, and another writes on the next, while the first
/// never stops trying. With `fence` false the array only says that it fenced: then two must have written.
pub async fn hand_over(
    storage: &Path,
    workload: &Path,
    fence: bool,
) -> Result<Handover, ProbeError> {
    let purpose = if fence { "handover" } else { "no-fence" };
    let bench = Bench::new(storage, purpose)?;
    let (first, second) = (bench.node("first", false)?, bench.node("second", false)?);
    let disks = [bench.disk("files", false)?, bench.disk("block", true)?];
    let mut pods = Vec::new();
    for node in [&first, &second] {
        let mut targets = Vec::new();
        for disk in &disks {
            targets.push(node.bring(disk, "pod").await?);
        }
        // The same records must be seen under the same name on both nodes.
        let log = bench.dir().join(format!("{}.log", node.node));
        let mut pod = Pod::start(workload, node, &targets, log)?;
        pod.wait(|run| run.acknowledged.len() >= 5).await?;
        pods.push((node, targets, pod));
        if node.node != first.node {
            break;
        }
        for disk in &disks {
            let revoke = Request::Revoke {
                volume: disk.volume.clone(),
                node: Some(node.node.clone()),
                pretend: !fence,
            };
            bench.client.ask(&revoke, &[])?;
        }
        if fence {
            pods[0].2.wait(|run| run.failed > 0).await?;
        }
    }
    if !fence {
        let said = pods[0].2.runs()?;
        let more = |run: &Run| {
            let before = said.iter().find(|r| r.target == run.target);
            before.is_none_or(|r| run.acknowledged.len() > r.acknowledged.len() + 3)
        };
        pods[0].2.wait(more).await?;
    }
    let mut runs = Vec::new();
    for (_, _, pod) in &mut pods {
        runs.extend(pod.stop()?);
    }
    for (node, targets, _) in &pods {
        for (disk, target) in disks.iter().zip(targets) {
            node.unpublish(disk, target).await?;
            node.unstage(disk).await?;
        }
        node.nothing_is_left()?;
    }
    Ok(Handover {
        report: judge(&bench.client.ledger_after(0)?),
        losses: evidence::judge(&runs),
        runs,
    })
}

/// A workload on a node.
struct Pod {
    process: Process,
    log: PathBuf,
}

impl Pod {
    fn start(
        workload: &Path,
        node: &Node,
        targets: &[PathBuf],
        log: PathBuf,
    ) -> Result<Self, ProbeError> {
        let arguments = [
            format!("--writer=pod@{}", node.node),
            format!("--file={}", targets[0].join("log").display()),
            format!("--device={}", targets[1].display()),
        ];
        let process = Process::start(workload, arguments, &log)?;
        Ok(Self { process, log })
    }

    /// Both targets by the names that they have on every node.
    fn runs(&self) -> Result<Vec<Run>, ProbeError> {
        let mut runs = evidence::read(&std::fs::read_to_string(&self.log)?);
        for run in &mut runs {
            let is_block = run.target.ends_with("block");
            run.target = if is_block { "block" } else { "files" }.to_owned();
        }
        Ok(runs)
    }

    async fn wait(&mut self, far_enough: impl Fn(&Run) -> bool) -> Result<(), ProbeError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let runs = self.runs()?;
            if runs.len() == 2 && runs.iter().all(&far_enough) {
                return Ok(());
            }
            let late = format!("{} said only {runs:?}", self.process.name());
            check(Instant::now() < deadline, &late)?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn stop(&mut self) -> Result<Vec<Run>, ProbeError> {
        let well = self.process.terminate(PATIENCE)?;
        check(well, &format!("{} did not end well", self.process.name()))?;
        self.runs()
    }
}
