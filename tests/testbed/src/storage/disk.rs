//! A node's view of a volume: a FUSE directory with one file, `disk`, whose every access the array decides.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, Session, WriteFlags,
};

use super::array::Access;
use super::client::{Client, ClientError};
use super::name::{Epoch, NodeId, VolumeId};
use super::seclusion;

/// The file in the directory.
pub const DISK: &str = "disk";
/// How often a node tells the array that it lives.
pub const HEARTBEAT: Duration = Duration::from_millis(500);

const ROOT: u64 = 1;
const FILE: u64 = 2;
/// Nothing here ever changes its size.
const FOR_GOOD: Duration = Duration::from_secs(3600);

/// What the mount table says of a data path, and what it is read back from.
pub fn source(volume: &VolumeId, epoch: Epoch) -> String {
    format!("array:{volume}:{epoch}")
}

/// The grant behind a source of the mount table, if it is one of this volume.
pub fn epoch_of(source: &str, volume: &VolumeId) -> Option<Epoch> {
    let rest = source.strip_prefix("array:")?;
    rest.strip_prefix(volume.as_str())?
        .strip_prefix(':')?
        .parse()
        .ok()
}

/// Serves a node's view of a volume in `dir` until it is unmounted, and gives the array signs of life meanwhile.
///
/// Only for a process that does nothing else: it leaves the mounts of its surroundings.
pub fn serve(array: &Path, access: Access, dir: &Path) -> Result<(), DiskError> {
    let array = array.canonicalize().map_err(DiskError::Mount)?;
    let bytes = Client::new(&array)
        .volumes()?
        .into_iter()
        .find(|v| v.volume == access.volume)
        .map(|v| v.bytes)
        .ok_or_else(|| DiskError::NoVolume(access.volume.clone()))?;
    let (Some(array_dir), Some(socket)) = (array.parent(), array.file_name()) else {
        return Err(DiskError::Mount(io::ErrorKind::InvalidInput.into()));
    };
    let mut config = Config::default();
    config.n_threads = Some(4);
    let name = source(&access.volume, access.epoch);
    config.mount_options = vec![MountOption::FSName(name), MountOption::NoDev];
    let node = access.node.clone();
    let socket = Path::new(seclusion::KEPT).join(socket);
    let disk = Disk {
        client: Client::patient(&socket),
        access,
        bytes,
    };
    let session = Session::new(disk, dir, &config).map_err(DiskError::Mount)?;
    seclusion::enter(array_dir).map_err(DiskError::Mount)?;
    live(&socket, &node);
    session.run().map_err(DiskError::Mount)
}

/// Why a data path could not be served.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    #[error(transparent)]
    Array(#[from] ClientError),
    #[error("the array has no volume {0}")]
    NoVolume(VolumeId),
    #[error("the data path could not be mounted")]
    Mount(#[source] io::Error),
}

/// Gives signs of life until the process ends.
pub fn live(socket: &Path, node: &NodeId) {
    let (client, node) = (Client::patient(socket), node.clone());
    std::thread::spawn(move || {
        loop {
            // A cut path or a dead array is what the silence is to show.
            let _ = client.seen(&node);
            std::thread::sleep(HEARTBEAT);
        }
    });
}

struct Disk {
    client: Client,
    access: Access,
    bytes: u64,
}

impl Disk {
    fn attributes(&self, of: INodeNo) -> FileAttr {
        let is_root = u64::from(of) == ROOT;
        FileAttr {
            ino: of,
            size: if is_root { 0 } else { self.bytes },
            blocks: if is_root { 0 } else { self.bytes / 512 },
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if is_root {
                FileType::Directory
            } else {
                FileType::RegularFile
            },
            perm: if is_root { 0o700 } else { 0o600 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for Disk {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == DISK {
            let attributes = self.attributes(INodeNo(FILE));
            reply.entry(&FOR_GOOD, &attributes, Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, of: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&FOR_GOOD, &self.attributes(of));
    }

    /// Without direct I/O the page cache would take writes that the array never sees.
    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let length = u64::from(size).min(self.bytes.saturating_sub(offset));
        match self.client.read(&self.access, offset, length) {
            Ok(data) => reply.data(&data),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written = u32::try_from(data.len()).unwrap_or(u32::MAX);
        match self.client.write(&self.access, offset, data) {
            Ok(()) => reply.written(written),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        match self.client.sync(&self.access) {
            Ok(()) => reply.ok(),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    /// So that nothing tries to give blocks back.
    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: u64,
        _: i32,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EOPNOTSUPP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_table_tells_the_grant() {
        let volume = VolumeId::new("pvc-1").unwrap();
        assert_eq!(
            epoch_of(&source(&volume, Epoch(7)), &volume),
            Some(Epoch(7))
        );
        for other in ["array:pvc-10:7", "array:pvc-1", "array:pvc-1:x", "pvc-1:7"] {
            assert_eq!(epoch_of(other, &volume), None, "{other}");
        }
    }
}
