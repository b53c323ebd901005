//! How a volume gets onto a node and off it again; what is there is always read from the mount table.
//!
//! Volume → data path (a process that serves a FUSE directory) → loop device → file system or device file. Every layer
//! is held by the one above it, the data path by its mount. So a driver that starts again finds everything as it was,
//! and a node that loses its power leaves nothing.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, mount};

use crate::storage::disk::{self, DISK};
use crate::storage::name::{Epoch, NodeId, VolumeId};
use crate::storage::{loops, mounts};

/// The device file of a block volume, below its staging path.
const DEVICE: &str = "device";
/// For a data path to come up, and for the kernel to let go of a device.
const PATIENCE: Duration = Duration::from_secs(20);
/// What must be empty for a volume to count as new.
const BLANK: usize = 128 << 10;

/// What a pod is to see of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    FileSystem,
    Block,
}

/// Why a volume is not where it should be.
#[derive(Debug, thiserror::Error)]
pub enum StagingError {
    #[error("volume {volume} is still staged by grant {old}; it must be unstaged first")]
    OldGrant { volume: VolumeId, old: String },
    #[error("volume {0} is not staged at {1}")]
    NotStaged(VolumeId, PathBuf),
    #[error("volume {0} is still in use at {1}")]
    InUse(VolumeId, PathBuf),
    #[error("volume {0} has content that is no ext4 file system")]
    ForeignContent(VolumeId),
    #[error("{0} did not come up within {PATIENCE:?}")]
    Late(String),
    #[error("{0} ended: {1}")]
    Ended(String, std::process::ExitStatus),
    #[error("{0}")]
    Io(String, #[source] io::Error),
}

fn at<'a>(what: &'a str, path: &'a Path) -> impl FnOnce(io::Error) -> StagingError + 'a {
    move |error| StagingError::Io(format!("{what} {}: {error}", path.display()), error)
}

/// A node's volumes.
#[derive(Debug, Clone)]
pub struct Staging {
    pub node: NodeId,
    /// The array's socket.
    pub array: PathBuf,
    /// Where the data paths are mounted; a directory of the node alone that a reboot empties.
    pub run_dir: PathBuf,
    /// The program that serves data paths and holds devices: the `storage` binary.
    pub program: PathBuf,
}

impl Staging {
    /// Brings a volume onto the node, new ones with a file system.
    pub fn stage(
        &self,
        volume: &VolumeId,
        epoch: Epoch,
        kind: Kind,
        path: &Path,
        options: &[String],
    ) -> Result<(), StagingError> {
        std::fs::create_dir_all(path).map_err(at("create", path))?;
        let target = self.staged(kind, path)?;
        let is_staged = mounted(&target)?.is_some();
        let disk = self.data_path(volume, epoch, is_staged)?;
        if is_staged {
            return Ok(());
        }
        match kind {
            Kind::FileSystem => self.mount_file_system(volume, &disk, &target, options),
            Kind::Block => self.show_device(volume, &disk, &target),
        }
    }

    /// Takes a volume off the node. One that is not there, or is staged at another path, is fine; one that a pod still
    /// sees is left as it is.
    pub fn unstage(&self, volume: &VolumeId, path: &Path) -> Result<(), StagingError> {
        let mut here = Vec::new();
        if path.exists() {
            here.push(self.staged(Kind::Block, path)?);
            here.push(self.staged(Kind::FileSystem, path)?);
        }
        let (staged, elsewhere): (Vec<_>, Vec<_>) = self
            .shown_at(volume)?
            .into_iter()
            .partition(|shown| here.contains(shown));
        match elsewhere.into_iter().next() {
            Some(_) if staged.is_empty() => return Ok(()),
            Some(place) => return Err(StagingError::InUse(volume.clone(), place)),
            None => {}
        }
        for target in &here {
            mounts::remove(target, Duration::ZERO).map_err(at("unmount", target))?;
        }
        if let Some(device) = here.first() {
            mounts::remove_target(device).map_err(at("remove", device))?;
        }
        let dir = self.run_dir.join(volume.as_str());
        // The device lets go of its file a moment after its last user has let go of it.
        mounts::remove(&dir, PATIENCE).map_err(at("unmount", &dir))?;
        mounts::remove_target(&dir).map_err(at("remove", &dir))
    }

    /// Where the volume is mounted, staged or published, as file system or as device.
    fn shown_at(&self, volume: &VolumeId) -> Result<Vec<PathBuf>, StagingError> {
        let tag = loops::tag(&self.node, volume);
        let devices = loops::find(&tag).map_err(at("loop devices for", &self.run_dir))?;
        let devices: Vec<_> = devices.iter().filter(|device| device.tag == tag).collect();
        let mounts = mounts::below(Path::new("/")).map_err(at("mount table for", &self.run_dir))?;
        let shows = |mount: &procfs::process::MountInfo| {
            devices.iter().any(|device| {
                let is_source = mount.mount_source.as_deref() == device.path.to_str();
                let is_file =
                    Path::new("/dev").join(mount.root.trim_start_matches('/')) == device.path;
                is_source || (mount.fs_type == "devtmpfs" && is_file)
            })
        };
        let shown = mounts.into_iter().filter(shows);
        Ok(shown.map(|mount| mount.mount_point).collect())
    }

    /// Shows a staged volume to a pod.
    pub fn publish(
        &self,
        volume: &VolumeId,
        kind: Kind,
        staged: &Path,
        target: &Path,
        read_only: bool,
    ) -> Result<(), StagingError> {
        let source = self.staged(kind, staged)?;
        if mounted(&source)?.is_none() {
            return Err(StagingError::NotStaged(volume.clone(), staged.to_owned()));
        }
        if let Some(parent) = target.parent() {
            std::fs::create_dir_all(parent).map_err(at("create", parent))?;
        }
        let target = mounts::spelled(target).map_err(at("resolve", target))?;
        if mounted(&target)?.is_some() {
            return Ok(());
        }
        match kind {
            Kind::FileSystem => std::fs::create_dir_all(&target),
            Kind::Block => OpenOptions::new()
                .create(true)
                .append(true)
                .open(&target)
                .map(drop),
        }
        .map_err(at("create", &target))?;
        mounts::bind(&source, &target, read_only).map_err(at("bind", &target))
    }

    /// Hides a volume from a pod; one that is not shown is fine.
    pub fn unpublish(&self, target: &Path) -> Result<(), StagingError> {
        match mounts::spelled(target) {
            Ok(target) => {
                mounts::remove(&target, Duration::ZERO).map_err(at("unmount", &target))?;
                mounts::remove_target(&target).map_err(at("remove", &target))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(at("resolve", target)(error)),
        }
    }

    /// Where a volume of this kind is mounted when it is staged at this path.
    fn staged(&self, kind: Kind, path: &Path) -> Result<PathBuf, StagingError> {
        let path = mounts::spelled(path).map_err(at("resolve", path))?;
        Ok(match kind {
            Kind::FileSystem => path,
            Kind::Block => path.join(DEVICE),
        })
    }

    /// The volume as a file, through a data path with this grant.
    fn data_path(
        &self,
        volume: &VolumeId,
        epoch: Epoch,
        in_use: bool,
    ) -> Result<PathBuf, StagingError> {
        let dir = self.run_dir.join(volume.as_str());
        std::fs::create_dir_all(&self.run_dir).map_err(at("create", &self.run_dir))?;
        let dir = mounts::spelled(&dir).map_err(at("resolve", &dir))?;
        let disk = dir.join(DISK);
        if let Some(source) = mounted(&dir)? {
            let same = disk::epoch_of(&source, volume) == Some(epoch);
            if same && (in_use || disk.exists()) {
                return Ok(disk);
            }
            if in_use {
                let (volume, old) = (volume.clone(), source);
                return Err(StagingError::OldGrant { volume, old });
            }
            mounts::remove(&dir, PATIENCE).map_err(at("unmount", &dir))?;
        }
        std::fs::create_dir_all(&dir).map_err(at("create", &dir))?;
        let mut command = Command::new(&self.program);
        command.arg("attach").arg("--array").arg(&self.array);
        command.args(["--node", self.node.as_str()]);
        command.args(["--volume", volume.as_str()]);
        command.args(["--epoch", &epoch.to_string()]);
        command.arg("--dir").arg(&dir);
        self.start(volume, command, || disk.exists())?;
        Ok(disk)
    }

    fn mount_file_system(
        &self,
        volume: &VolumeId,
        disk: &Path,
        target: &Path,
        options: &[String],
    ) -> Result<(), StagingError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(disk)
            .map_err(at("open", disk))?;
        let is_new = match content(&file).map_err(at("read", disk))? {
            Content::Nothing => true,
            Content::Ext4 => false,
            Content::Foreign => return Err(StagingError::ForeignContent(volume.clone())),
        };
        let tag = loops::tag(&self.node, volume);
        let (device, _held) = loops::attach(&file, &tag).map_err(at("loop device for", disk))?;
        if is_new {
            make_file_system(&device)?;
        }
        // After the fence the file system must stop, not carry on with what it has in memory.
        let mut data = "errors=remount-ro".to_owned();
        for option in options {
            data.push(',');
            data.push_str(option);
        }
        let data = std::ffi::CString::new(data)
            .map_err(|error| at("mount options for", target)(error.into()))?;
        mount(
            &device,
            target,
            "ext4",
            MountFlags::empty(),
            data.as_c_str(),
        )
        .map_err(|error| at("mount ext4 at", target)(error.into()))
    }

    fn show_device(
        &self,
        volume: &VolumeId,
        disk: &Path,
        target: &Path,
    ) -> Result<(), StagingError> {
        File::create(target).map_err(at("create", target))?;
        let mut command = Command::new(&self.program);
        command.arg("hold").arg("--file").arg(disk);
        command.args(["--tag", &loops::tag(&self.node, volume)]);
        command.arg("--target").arg(target);
        self.start(volume, command, || {
            matches!(mounts::at(target), Ok(Some(_)))
        })
    }

    /// Starts a process that outlives this one, and waits until it is of use.
    fn start(
        &self,
        volume: &VolumeId,
        mut command: Command,
        is_up: impl Fn() -> bool,
    ) -> Result<(), StagingError> {
        let log = self.run_dir.join(format!("{volume}.log"));
        let output = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .map_err(at("open", &log))?;
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(output).process_group(0);
        let name = format!("{command:?}");
        let child = command
            .spawn()
            .map_err(|error| StagingError::Io(format!("start {name}: {error}"), error))?;
        wait_until_up(child, name, is_up)
    }
}

fn wait_until_up(
    mut child: Child,
    name: String,
    is_up: impl Fn() -> bool,
) -> Result<(), StagingError> {
    let deadline = Instant::now() + PATIENCE;
    while !is_up() {
        let waited = child.try_wait();
        let waited = waited.map_err(|error| StagingError::Io(name.clone(), error))?;
        if let Some(status) = waited {
            return Err(StagingError::Ended(name, status));
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            return Err(StagingError::Late(name));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    // Somebody has to take note of its end, or it stays in the process table.
    std::thread::spawn(move || child.wait());
    Ok(())
}

fn mounted(path: &Path) -> Result<Option<String>, StagingError> {
    let mount = mounts::at(path).map_err(at("mount table for", path))?;
    Ok(mount.map(|mount| mount.mount_source.unwrap_or_default()))
}

enum Content {
    Nothing,
    Ext4,
    Foreign,
}

fn content(mut file: &File) -> io::Result<Content> {
    let mut first = vec![0; BLANK];
    let mut length = 0;
    while length < BLANK {
        match file.read(&mut first[length..])? {
            0 => break,
            read => length += read,
        }
    }
    // The superblock begins at 1024; its magic number stands at byte 56 of it.
    Ok(if first.get(1080..1082) == Some(&[0x53, 0xEF]) {
        Content::Ext4
    } else if first.iter().all(|byte| *byte == 0) {
        Content::Nothing
    } else {
        Content::Foreign
    })
}

/// Everything is written now: a volume that is still being initialised shows I/O that no pod has asked for.
fn make_file_system(device: &Path) -> Result<(), StagingError> {
    let mut command = Command::new("mkfs.ext4");
    command.args(["-q", "-F", "-E"]);
    command.arg("nodiscard,lazy_itable_init=0,lazy_journal_init=0");
    let status = command.arg(device).stdin(Stdio::null()).status();
    match status.map_err(at("mkfs.ext4", device))? {
        status if status.success() => Ok(()),
        status => Err(StagingError::Ended(format!("{command:?}"), status)),
    }
}
