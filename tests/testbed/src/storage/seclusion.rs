//! A place of its own for a process that serves a mount: a mount namespace in which nothing of the node is mounted.
//!
//! Without it a power loss can hang for good: when the server is the last of the node's processes to end, the kernel
//! takes the node's mounts down in the server's own exit, before it closes `/dev/fuse`, and waits for the file system
//! on top of the served file to be flushed through the very server that is ending.

use std::io;
use std::path::Path;

use rustix::fs::{Mode, mkdir};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, unmount,
};
use rustix::process::{chdir, pivot_root};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Any directory that every machine has; it is covered in the new namespace only.
const ROOM: &str = "/proc";

/// Where the kept directory is in the new namespace.
pub const KEPT: &str = "/kept";

/// Leaves all mounts behind but for one directory, which is at [`KEPT`] from now on.
///
/// Only for a process that has one thread.
pub fn enter(keep: &Path) -> io::Result<()> {
    leave()?;
    // Else what is unmounted here would be unmounted on the node as well.
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )?;
    mount("tmpfs", ROOM, "tmpfs", MountFlags::empty(), None)?;
    let room = Path::new(ROOM);
    for name in ["kept", "left"] {
        mkdir(room.join(name), Mode::RWXU)?;
    }
    mount_bind(keep, room.join("kept"))?;
    pivot_root(room, room.join("left"))?;
    chdir("/")?;
    unmount("/left", UnmountFlags::DETACH)?;
    Ok(())
}

#[allow(
    unsafe_code,
    reason = "another mount namespace for one thread is a trap for its siblings"
)]
fn leave() -> io::Result<()> {
    // SAFETY: the caller has no other thread whose paths would change their meaning.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.map_err(io::Error::from)
}
