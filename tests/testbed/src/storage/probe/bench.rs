//! An array and the node plugins of some nodes, spoken to as a kubelet does.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tonic::transport::{Channel, Endpoint};

use super::{PATIENCE, ProbeError, check};
use crate::proto::csi::node_client::NodeClient;
use crate::proto::csi::volume_capability::access_mode::Mode;
use crate::proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use crate::proto::csi::{
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest, VolumeCapability,
};
use crate::storage::client::Client;
use crate::storage::driver::{EPOCH, NAME};
use crate::storage::name::{Epoch, NodeId, VolumeId};
use crate::storage::process::{Process, Scratch};
use crate::storage::{loops, mounts};

/// The array, and where everything is.
pub struct Bench {
    pub client: Client,
    pub storage: PathBuf,
    _array: Process,
    // Last, after all that uses it.
    scratch: Scratch,
}

impl Bench {
    pub fn new(storage: &Path, purpose: &str) -> Result<Self, ProbeError> {
        let scratch = Scratch::new(purpose)?;
        let dir = scratch.path();
        let client = Client::new(&dir.join("array.sock"));
        let arguments = [
            "array".to_owned(),
            format!("--socket={}", dir.join("array.sock").display()),
            format!("--dir={}", dir.join("array").display()),
        ];
        let array = Process::start(storage, arguments, &dir.join("array.log"))?;
        client.wait_until_up(PATIENCE)?;
        Ok(Self {
            client,
            storage: storage.to_owned(),
            _array: array,
            scratch,
        })
    }

    pub fn dir(&self) -> &Path {
        self.scratch.path()
    }

    /// Makes a volume.
    pub fn disk(&self, name: &str, is_block: bool) -> Result<Disk, ProbeError> {
        let volume = VolumeId::new(name).map_err(|error| ProbeError::Wrong(error.to_string()))?;
        self.client.create(&volume, 32 << 20)?;
        Ok(Disk { volume, is_block })
    }

    /// Starts a node plugin. `own_namespaces`: in namespaces of its own, which go when it is killed, as with a node's
    /// power.
    pub fn node(&self, name: &str, own_namespaces: bool) -> Result<Node, ProbeError> {
        // Loop devices are known by their node's name over the whole machine.
        let place = self.dir().file_name().unwrap_or_default();
        let node = NodeId::new(&format!("{name}.{}", place.to_string_lossy()))
            .map_err(|error| ProbeError::Wrong(error.to_string()))?;
        let dir = self.dir().join(name);
        std::fs::create_dir_all(&dir)?;
        let client = self.client.clone();
        let array = self.dir().join("array.sock");
        let start = Start {
            storage: self.storage.clone(),
            array,
            dir: dir.clone(),
            node: node.clone(),
            own_namespaces,
        };
        Ok(Node {
            driver: start.driver()?,
            start,
            client,
            node,
            dir,
        })
    }
}

struct Start {
    storage: PathBuf,
    array: PathBuf,
    dir: PathBuf,
    node: NodeId,
    own_namespaces: bool,
}

impl Start {
    fn driver(&self) -> io::Result<Process> {
        let mut arguments = Vec::new();
        if self.own_namespaces {
            let own = "--mount --propagation private --pid --fork --kill-child --mount-proc";
            arguments.extend(own.split(' ').map(str::to_owned));
            arguments.push(self.storage.to_string_lossy().into_owned());
        }
        arguments.extend([
            "node".to_owned(),
            format!("--name={}", self.node),
            format!("--array={}", self.array.display()),
            format!("--kubelet-dir={}", self.dir.join("kubelet").display()),
            format!("--run-dir={}", self.dir.join("run").display()),
        ]);
        let program = if self.own_namespaces {
            Path::new("unshare")
        } else {
            &self.storage
        };
        Process::start(program, arguments, &self.dir.join("driver.log"))
    }
}

/// A node plugin.
pub struct Node {
    pub driver: Process,
    pub node: NodeId,
    start: Start,
    client: Client,
    dir: PathBuf,
}

impl Node {
    /// Kills the plugin and starts it again after `meanwhile`.
    pub fn restart_driver(
        &mut self,
        meanwhile: impl FnOnce() -> io::Result<()>,
    ) -> Result<(), ProbeError> {
        self.driver.kill();
        meanwhile()?;
        self.driver = self.start.driver()?;
        Ok(())
    }

    /// The plugin once it answers.
    async fn csi(&self) -> Result<NodeClient<Channel>, ProbeError> {
        let socket = self.dir.join("kubelet/plugins").join(NAME).join("csi.sock");
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))
            .map_err(|error| ProbeError::Wrong(error.to_string()))?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match endpoint.connect().await {
                Ok(channel) => return Ok(NodeClient::new(channel)),
                Err(error) if Instant::now() > deadline => {
                    let text = format!("{}: {error}", self.driver.name());
                    return Err(ProbeError::Wrong(text));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// Grants, as soon as the array knows the node.
    pub async fn grant(&self, disk: &Disk) -> Result<Epoch, ProbeError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.client.grant(&disk.volume, &self.node) {
                Ok(epoch) => return Ok(epoch),
                Err(error) if Instant::now() > deadline => return Err(error.into()),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    pub async fn stage(&self, disk: &Disk, epoch: Epoch) -> Result<(), ProbeError> {
        let request = NodeStageVolumeRequest {
            volume_id: disk.volume.to_string(),
            publish_context: HashMap::from([(EPOCH.to_owned(), epoch.to_string())]),
            staging_target_path: self.staged(disk),
            volume_capability: Some(disk.capability()),
            ..NodeStageVolumeRequest::default()
        };
        self.csi().await?.node_stage_volume(request).await?;
        Ok(())
    }

    pub async fn publish(&self, disk: &Disk, pod: &str) -> Result<PathBuf, ProbeError> {
        let pod = self.dir.join("kubelet/pods").join(pod);
        let target = pod.join(disk.volume.as_str());
        let request = NodePublishVolumeRequest {
            volume_id: disk.volume.to_string(),
            staging_target_path: self.staged(disk),
            target_path: target.to_string_lossy().into_owned(),
            volume_capability: Some(disk.capability()),
            ..NodePublishVolumeRequest::default()
        };
        self.csi().await?.node_publish_volume(request).await?;
        Ok(target)
    }

    /// Grants, stages and publishes.
    pub async fn bring(&self, disk: &Disk, pod: &str) -> Result<PathBuf, ProbeError> {
        let epoch = self.grant(disk).await?;
        self.stage(disk, epoch).await?;
        self.publish(disk, pod).await
    }

    pub async fn unpublish(&self, disk: &Disk, target: &Path) -> Result<(), ProbeError> {
        let request = NodeUnpublishVolumeRequest {
            volume_id: disk.volume.to_string(),
            target_path: target.to_string_lossy().into_owned(),
        };
        self.csi().await?.node_unpublish_volume(request).await?;
        Ok(())
    }

    pub async fn unstage(&self, disk: &Disk) -> Result<(), ProbeError> {
        self.unstage_from("staging", disk).await
    }

    /// Unstages from another folder than the one in which volumes are staged.
    pub async fn unstage_from(&self, folder: &str, disk: &Disk) -> Result<(), ProbeError> {
        let path = self.dir.join("kubelet").join(folder);
        let path = path.join(disk.volume.as_str());
        let request = NodeUnstageVolumeRequest {
            volume_id: disk.volume.to_string(),
            staging_target_path: path.to_string_lossy().into_owned(),
        };
        self.csi().await?.node_unstage_volume(request).await?;
        Ok(())
    }

    fn staged(&self, disk: &Disk) -> String {
        let staging = self.dir.join("kubelet/staging");
        staging
            .join(disk.volume.as_str())
            .to_string_lossy()
            .into_owned()
    }

    /// The beginning of the tags of this node's loop devices.
    pub fn tag(&self) -> String {
        format!("{}{}/", loops::TAG, self.node)
    }

    /// How many loop devices of this node there are, with what stands on them.
    pub fn loops(&self) -> Result<usize, ProbeError> {
        Ok(loops::find(&self.tag())?.len())
    }

    /// As a kubelet does with each block volume, so that the device stays open: without autoclear.
    pub fn put_loop_device_on(&self, target: &Path) -> Result<(), ProbeError> {
        let mut command = std::process::Command::new("nsenter");
        command.args(["--mount", "--target", &self.driver.id().to_string()]);
        command.args(["losetup", "--find"]).arg(target);
        let status = command.status()?;
        check(status.success(), &format!("{command:?}: {status}"))
    }

    pub fn nothing_is_left(&self) -> Result<(), ProbeError> {
        loops::wait_until_gone(&self.tag(), PATIENCE)?;
        let left = mounts::below(&self.dir)?;
        check(left.is_empty(), &format!("mounts are left: {left:?}"))
    }
}

/// A volume.
pub struct Disk {
    pub volume: VolumeId,
    pub is_block: bool,
}

impl Disk {
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
