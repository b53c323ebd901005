//! The storage on its own, without Kubernetes: does the fence bite, does the driver survive itself, is nothing left?

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tonic::transport::{Channel, Endpoint};

use super::client::{Client, ClientError};
use super::driver::{EPOCH, NAME};
use super::judge::{Report, judge};
use super::name::{Epoch, NodeId, VolumeId};
use super::process::{Process, Scratch};
use super::{loops, mounts};
use crate::proto::csi::node_client::NodeClient;
use crate::proto::csi::volume_capability::access_mode::Mode;
use crate::proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use crate::proto::csi::{
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest, VolumeCapability,
};

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

fn check(holds: bool, what: &str) -> Result<(), ProbeError> {
    if holds {
        Ok(())
    } else {
        Err(ProbeError::Wrong(what.to_owned()))
    }
}

const PATIENCE: Duration = Duration::from_secs(30);

/// An array and the node plugin of one node.
struct Bench {
    // Dropped in this order: whoever holds mounts first, the directory last.
    driver: Process,
    client: Client,
    _array: Process,
    node: NodeId,
    storage: PathBuf,
    scratch: Scratch,
}

impl Bench {
    /// `wrapped`: the node plugin runs in namespaces of its own, which go when it is killed, as with a node's power.
    fn new(storage: &Path, purpose: &str, wrapped: bool) -> Result<Self, ProbeError> {
        let scratch = Scratch::new(purpose)?;
        let dir = scratch.path();
        // Loop devices are known by their node's name over the whole machine.
        let node = NodeId::new(&format!("{purpose}-{}", std::process::id()))
            .map_err(|error| ProbeError::Wrong(error.to_string()))?;
        let client = Client::new(&dir.join("array.sock"));
        let arguments = [
            "array".to_owned(),
            format!("--socket={}", dir.join("array.sock").display()),
            format!("--dir={}", dir.join("array").display()),
        ];
        let array = Process::start(storage, arguments, &dir.join("log"))?;
        client.wait_until_up(PATIENCE)?;
        let driver = start_driver(storage, dir, &node, wrapped)?;
        Ok(Self {
            driver,
            client,
            _array: array,
            node,
            storage: storage.to_owned(),
            scratch,
        })
    }

    fn dir(&self) -> &Path {
        self.scratch.path()
    }

    /// The node plugin once it answers.
    async fn csi(&self) -> Result<NodeClient<Channel>, ProbeError> {
        let socket = self
            .dir()
            .join("kubelet/plugins")
            .join(NAME)
            .join("csi.sock");
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))
            .map_err(|error| ProbeError::Wrong(error.to_string()))?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match endpoint.connect().await {
                Ok(channel) => return Ok(NodeClient::new(channel)),
                Err(error) if Instant::now() > deadline => {
                    return Err(ProbeError::Wrong(format!(
                        "{}: {error}",
                        self.driver.name()
                    )));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// Grants as soon as the array knows the node.
    async fn grant(&self, volume: &VolumeId) -> Result<Epoch, ProbeError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.client.grant(volume, &self.node) {
                Ok(epoch) => return Ok(epoch),
                Err(error) if Instant::now() > deadline => return Err(error.into()),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    async fn stage(&self, disk: &Disk, epoch: Epoch) -> Result<(), ProbeError> {
        let request = NodeStageVolumeRequest {
            volume_id: disk.volume.to_string(),
            publish_context: HashMap::from([(EPOCH.to_owned(), epoch.to_string())]),
            staging_target_path: self.text(&disk.staged()),
            volume_capability: Some(disk.capability()),
            ..NodeStageVolumeRequest::default()
        };
        self.csi().await?.node_stage_volume(request).await?;
        Ok(())
    }

    async fn publish(&self, disk: &Disk, pod: &str) -> Result<PathBuf, ProbeError> {
        let target = self
            .dir()
            .join("kubelet/pods")
            .join(pod)
            .join(disk.volume.as_str());
        let request = NodePublishVolumeRequest {
            volume_id: disk.volume.to_string(),
            staging_target_path: self.text(&disk.staged()),
            target_path: target.to_string_lossy().into_owned(),
            volume_capability: Some(disk.capability()),
            ..NodePublishVolumeRequest::default()
        };
        self.csi().await?.node_publish_volume(request).await?;
        Ok(target)
    }

    async fn unpublish(&self, disk: &Disk, target: &Path) -> Result<(), ProbeError> {
        let request = NodeUnpublishVolumeRequest {
            volume_id: disk.volume.to_string(),
            target_path: target.to_string_lossy().into_owned(),
        };
        self.csi().await?.node_unpublish_volume(request).await?;
        Ok(())
    }

    async fn unstage(&self, disk: &Disk) -> Result<(), ProbeError> {
        let request = NodeUnstageVolumeRequest {
            volume_id: disk.volume.to_string(),
            staging_target_path: self.text(&disk.staged()),
        };
        self.csi().await?.node_unstage_volume(request).await?;
        Ok(())
    }

    fn text(&self, below: &Path) -> String {
        self.dir().join(below).to_string_lossy().into_owned()
    }

    /// The beginning of the tags of this node's loop devices.
    fn tag(&self) -> String {
        format!("{}{}/", loops::TAG, self.node)
    }

    fn loops(&self) -> Result<usize, ProbeError> {
        Ok(loops::find(&self.tag())?.len())
    }

    /// As a kubelet does with each block volume, so that the device stays open: without autoclear.
    fn put_loop_device_on(&self, target: &Path) -> Result<(), ProbeError> {
        let mut command = std::process::Command::new("nsenter");
        command.args(["--mount", "--target", &self.driver.id().to_string()]);
        command.args(["losetup", "--find"]).arg(target);
        let status = command.status()?;
        check(status.success(), &format!("{command:?}: {status}"))
    }

    fn nothing_is_left(&self) -> Result<(), ProbeError> {
        loops::wait_until_gone(&self.tag(), PATIENCE)?;
        let left = mounts::below(self.dir())?;
        check(left.is_empty(), &format!("mounts are left: {left:?}"))
    }
}

fn start_driver(storage: &Path, dir: &Path, node: &NodeId, wrapped: bool) -> io::Result<Process> {
    let mut arguments = Vec::new();
    if wrapped {
        let own = "--mount --propagation private --pid --fork --kill-child --mount-proc";
        arguments.extend(own.split(' ').map(str::to_owned));
        arguments.push(storage.to_string_lossy().into_owned());
    }
    arguments.extend([
        "node".to_owned(),
        format!("--name={node}"),
        format!("--array={}", dir.join("array.sock").display()),
        format!("--kubelet-dir={}", dir.join("kubelet").display()),
        format!("--run-dir={}", dir.join("run").display()),
    ]);
    let program = if wrapped {
        Path::new("unshare")
    } else {
        storage
    };
    Process::start(program, arguments, &dir.join("log"))
}

struct Disk {
    volume: VolumeId,
    is_block: bool,
}

impl Disk {
    fn new(client: &Client, name: &str, is_block: bool) -> Result<Self, ProbeError> {
        let volume = VolumeId::new(name).map_err(|error| ProbeError::Wrong(error.to_string()))?;
        client.create(&volume, 32 << 20)?;
        Ok(Self { volume, is_block })
    }

    fn staged(&self) -> PathBuf {
        Path::new("kubelet/staging").join(self.volume.as_str())
    }

    fn capability(&self) -> VolumeCapability {
        let access_type = if self.is_block {
            AccessType::Block(BlockVolume {})
        } else {
            AccessType::Mount(MountVolume::default())
        };
        VolumeCapability {
            access_type: Some(access_type),
            access_mode: Some(AccessMode {
                mode: Mode::SingleNodeWriter.into(),
            }),
        }
    }
}

/// A file system and a block volume, two pods on the first; the driver is killed and comes back; the volumes are
/// revoked with files open, taken off the node, granted anew, and read. Needs root, FUSE and loop devices.
///
/// Gives the judge's report, which was checked.
pub async fn fence(storage: &Path) -> Result<Report, ProbeError> {
    let mut bench = Bench::new(storage, "probe", false)?;
    let files = Disk::new(&bench.client, "files", false)?;
    let block = Disk::new(&bench.client, "block", true)?;
    let mut targets = Vec::new();
    for (disk, pods) in [(&files, &["one", "two"][..]), (&block, &["one"][..])] {
        let epoch = bench.grant(&disk.volume).await?;
        bench.stage(disk, epoch).await?;
        bench.stage(disk, epoch).await?;
        for pod in pods {
            targets.push((disk, bench.publish(disk, pod).await?));
        }
    }
    check(bench.loops()? == 2, "one loop device for each volume")?;
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

    bench.driver.kill();
    log.write_all(b"without driver\n")?;
    log.sync_all()?;
    bench.driver = start_driver(&bench.storage, bench.dir(), &bench.node, false)?;
    let epoch = bench.grant(&files.volume).await?;
    bench.stage(&files, epoch).await?;
    check(
        bench.loops()? == 2,
        "a driver that starts again finds what it staged",
    )?;

    for disk in [&files, &block] {
        bench.client.revoke(&disk.volume, &bench.node)?;
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
        bench.unpublish(disk, target).await?;
        bench.unpublish(disk, target).await?;
    }
    for disk in [&files, &block] {
        bench.unstage(disk).await?;
        bench.unstage(disk).await?;
    }
    bench.nothing_is_left()?;

    for disk in [&files, &block] {
        let epoch = bench.grant(&disk.volume).await?;
        bench.stage(disk, epoch).await?;
    }
    let target = bench.publish(&files, "three").await?;
    let read = std::fs::read(target.join("log"))?;
    let whole = b"before\nwithout driver\n";
    check(
        read == whole,
        "what was flushed before the revoke is there after it",
    )?;
    bench.unpublish(&files, &target).await?;
    let target = bench.publish(&block, "three").await?;
    let mut read = [0; 7];
    File::open(&target)?.read_exact_at(&mut read, 0)?;
    check(
        &read == b"before\n",
        "the device holds what was written before the revoke",
    )?;
    bench.unpublish(&block, &target).await?;
    for disk in [&files, &block] {
        bench.unstage(disk).await?;
    }
    bench.nothing_is_left()?;

    let report = judge(&bench.client.ledger_after(0)?);
    check(report.is_clean(), &report.to_string())?;
    check(report.refused() > 0, "the ledger shows what was refused")?;
    Ok(report)
}

/// A node with both kinds of volume loses its power: no loop device is left on the machine, once those that a kubelet
/// puts on top of block volumes are swept away, and the array hears no more of it. Needs root, FUSE, loop devices and `unshare`.
pub async fn power_off(storage: &Path) -> Result<(), ProbeError> {
    let mut bench = Bench::new(storage, "power", true)?;
    for (name, is_block) in [("files", false), ("block", true)] {
        let disk = Disk::new(&bench.client, name, is_block)?;
        let epoch = bench.grant(&disk.volume).await?;
        bench.stage(&disk, epoch).await?;
        let target = bench.publish(&disk, "one").await?;
        if is_block {
            bench.put_loop_device_on(&target)?;
        }
    }
    check(
        bench.loops()? == 3,
        "one loop device for each volume and the kubelet's",
    )?;
    let heard = |bench: &Bench| bench.client.connectivity(&bench.node, &[]);
    check(heard(&bench)?.connected, "the array hears a living node")?;
    bench.driver.kill();
    loops::sweep(&bench.tag())?;
    bench.nothing_is_left()?;
    let deadline = Instant::now() + PATIENCE;
    while heard(&bench)?.connected {
        check(Instant::now() < deadline, "the array hears a dead node")?;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}
