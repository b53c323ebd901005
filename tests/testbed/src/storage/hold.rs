//! Keeps a block device alive for as long as it is mounted somewhere.
//!
//! A bind mount of a device file is no user of the device, so a process has to be one. It ends when the mount has
//! gone, by whatever hand, and with it the device.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, poll};

use super::{loops, mounts};

/// Makes a file a block device, shows the device at `target`, and returns when it is shown there no more.
pub fn hold(file: &Path, tag: &str, target: &Path) -> io::Result<()> {
    let disk = OpenOptions::new().read(true).write(true).open(file)?;
    let (path, _device) = loops::attach(&disk, tag)?;
    // The device itself holds on to the file from now on.
    drop(disk);
    let table = File::open("/proc/self/mountinfo")?;
    mounts::bind(&path, target, false)?;
    while mounts::at(target)?.is_some() {
        let mut changes = [PollFd::new(&table, PollFlags::PRI)];
        match poll(&mut changes, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
