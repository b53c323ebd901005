//! Frees a loop device: the one request to the kernel for which no safe interface exists, kept apart from podmon, which
//! has no unsafe code of its own.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::ioctl::{NoArg, Opcode, ioctl};

/// `LOOP_CLR_FD` of linux/loop.h.
const LOOP_CLR_FD: Opcode = 0x4C01;

/// Takes the device off its backing file; while something holds the device, as soon as that lets go. A device that is
/// free already is a success.
pub fn free(device: &Path) -> io::Result<()> {
    let device = File::open(device)?;
    // SAFETY: LOOP_CLR_FD takes no argument and touches no memory of ours.
    #[allow(unsafe_code)]
    let freed = unsafe { ioctl(&device, NoArg::<LOOP_CLR_FD>::new()) };
    match freed {
        Err(rustix::io::Errno::NXIO) => Ok(()),
        other => Ok(other?),
    }
}
