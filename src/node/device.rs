//! Whether a block device is in use: the kernel opens it exclusively for one holder at a time, a file system included.

use std::fs;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, fstat, major, minor, open};
use rustix::io::Errno;

use super::sight::{Seen, Unseen};

/// Whether nothing holds the device of these numbers. One that cannot be found is not known to be closed.
pub fn closed(sys: &Path, dev: &Path, numbers: (u32, u32)) -> Seen<bool> {
    let name = format!("{}:{}", numbers.0, numbers.1);
    let unseen = |why: &dyn std::fmt::Display| Unseen::new(format!("block device {name}"), why);
    let about = sys.join("dev/block").join(&name).join("uevent");
    let about = fs::read_to_string(about).map_err(|error| unseen(&error))?;
    let file = about
        .lines()
        .find_map(|line| line.strip_prefix("DEVNAME="))
        .ok_or_else(|| unseen(&"the kernel does not name it"))?;
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = match open(dev.join(file), flags, Mode::empty()) {
        Ok(opened) => opened,
        Err(Errno::BUSY) => return Ok(false),
        Err(error) => return Err(unseen(&error)),
    };
    let found = fstat(&opened).map_err(|error| unseen(&error))?;
    let same = FileType::from_raw_mode(found.st_mode) == FileType::BlockDevice
        && (major(found.st_rdev), minor(found.st_rdev)) == numbers;
    if same {
        Ok(true)
    } else {
        Err(unseen(&format!("{file} is another one")))
    }
}
