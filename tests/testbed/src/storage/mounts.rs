//! What is mounted where, read from the kernel each time it is asked.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use procfs::process::{MountInfo, Process};
use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount};

/// The mount that is on top at this path.
pub fn at(path: &Path) -> io::Result<Option<MountInfo>> {
    let mounts = Process::myself()
        .and_then(|me| me.mountinfo())
        .map_err(io::Error::other)?;
    let on_top = mounts.into_iter().rfind(|mount| mount.mount_point == path);
    Ok(on_top)
}

/// Makes `target` show what `source` shows.
pub fn bind(source: &Path, target: &Path, read_only: bool) -> io::Result<()> {
    mount_bind(source, target)?;
    if read_only {
        mount_remount(target, MountFlags::BIND | MountFlags::RDONLY, "")?;
    }
    Ok(())
}

/// Takes every mount at this path away; none there is fine. What is in use for a moment is tried again.
pub fn remove(path: &Path, patience: Duration) -> io::Result<()> {
    let deadline = Instant::now() + patience;
    while at(path)?.is_some() {
        match unmount(path, UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            Err(rustix::io::Errno::BUSY) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(error) => {
                let text = format!("unmount {}: {error}", path.display());
                return Err(io::Error::new(io::Error::from(error).kind(), text));
            }
        }
    }
    Ok(())
}

/// Removes an empty directory or a file; not there is fine.
pub fn remove_target(path: &Path) -> io::Result<()> {
    let removed = match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => std::fs::remove_dir(path),
        Ok(_) => std::fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The path as the mount table spells it, for one whose last part need not exist.
pub fn spelled(path: &Path) -> io::Result<PathBuf> {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        _ => Ok(path.to_owned()),
    }
}

/// What is mounted at or below a path, the latest first.
pub fn below(path: &Path) -> io::Result<Vec<MountInfo>> {
    let mut mounts = Process::myself()
        .and_then(|me| me.mountinfo())
        .map_err(io::Error::other)?
        .0;
    mounts.retain(|mount| mount.mount_point.starts_with(path));
    mounts.reverse();
    Ok(mounts)
}

/// Takes every mount at or below a path away, the latest first.
pub fn remove_below(path: &Path) -> io::Result<()> {
    for mount in below(path)? {
        remove(&mount.mount_point, Duration::from_secs(10))?;
    }
    Ok(())
}
