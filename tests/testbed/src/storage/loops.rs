//! Loop devices: block devices whose blocks are a file.
//!
//! They are global to the kernel. Ours carry a tag in place of the file name that `losetup` would enter, and free
//! themselves when the last user lets go, so nothing is left when a node loses its power.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::ioctl::{Getter, Ioctl, IoctlOutput, NoArg, Opcode, Setter, ioctl};

use super::name::{NodeId, VolumeId};

const LOOP_CLR_FD: Opcode = 0x4C01;
const LOOP_GET_STATUS64: Opcode = 0x4C05;
const LOOP_CONFIGURE: Opcode = 0x4C0A;
const LOOP_CTL_GET_FREE: Opcode = 0x4C82;
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// `struct loop_info64` of linux/loop.h, and where its fields are.
type LoopInfo = [u8; 232];
/// `struct loop_config`: descriptor, block size, a `loop_info64`, eight reserved words.
type LoopConfig = [u8; 304];
const RDEVICE: std::ops::Range<usize> = 16..24;
const FLAGS: std::ops::Range<usize> = 52..56;
const FILE_NAME: std::ops::Range<usize> = 56..120;

/// The beginning of every tag of ours.
pub const TAG: &str = "array/";

/// The tag of a node's device for a volume; what does not fit into the kernel's 63 bytes is left off.
pub fn tag(node: &NodeId, volume: &VolumeId) -> String {
    let mut tag = format!("{TAG}{node}/{volume}");
    tag.truncate(FILE_NAME.len() - 1);
    tag
}

/// A loop device in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopDevice {
    pub path: PathBuf,
    pub tag: String,
    /// Device number of what it stands on, when that is a block device itself.
    below: u64,
    device: u64,
}

/// Makes a file a block device. It lives as long as the returned handle or any other user of it, such as a mount.
pub fn attach(file: &File, tag: &str) -> io::Result<(PathBuf, File)> {
    let control = File::open("/dev/loop-control")?;
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let path = PathBuf::from(format!("/dev/loop{}", next_free(&control)?));
        let device = OpenOptions::new().read(true).write(true).open(&path)?;
        match configure(&device, file, tag) {
            Ok(()) => return Ok((path, device)),
            // Another process took the same free device.
            Err(rustix::io::Errno::BUSY) if Instant::now() < deadline => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Loop devices whose tag begins with this text, and those that others (the kubelet does) have put on top of them.
pub fn find(prefix: &str) -> io::Result<Vec<LoopDevice>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir("/sys/block")? {
        let name = entry?.file_name();
        if name.to_string_lossy().starts_with("loop")
            && let Some(device) = status(&Path::new("/dev").join(name))
        {
            all.push(device);
        }
    }
    let mut found: Vec<LoopDevice> = Vec::new();
    let ours = |d: &LoopDevice, found: &[LoopDevice]| {
        d.tag.starts_with(prefix) || found.iter().any(|f| f.device == d.below)
    };
    while let Some(next) = all.iter().position(|d| ours(d, &found)) {
        found.push(all.remove(next));
    }
    Ok(found)
}

/// Frees the devices that [`find`] gives, the uppermost first, as far as they are not in use.
pub fn sweep(prefix: &str) -> io::Result<()> {
    for device in find(prefix)?.iter().rev() {
        clear(&File::open(&device.path)?)?;
    }
    Ok(())
}

/// Waits until no device with this tag is left.
pub fn wait_until_gone(prefix: &str, within: Duration) -> io::Result<()> {
    let deadline = Instant::now() + within;
    loop {
        let left = find(prefix)?;
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            let text = format!("loop devices are still there: {left:?}");
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The kernel answers in the return value, which the ready-made patterns of rustix drop.
struct GetFree;

#[allow(
    unsafe_code,
    reason = "rustix has no safe pattern for an ioctl that answers in its return value"
)]
// SAFETY: LOOP_CTL_GET_FREE takes no argument and returns a device number.
unsafe impl Ioctl for GetFree {
    type Output = i32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        LOOP_CTL_GET_FREE
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(
        answer: IoctlOutput,
        _: *mut std::ffi::c_void,
    ) -> rustix::io::Result<i32> {
        Ok(answer)
    }
}

#[allow(unsafe_code, reason = "an ioctl")]
fn next_free(control: &File) -> rustix::io::Result<i32> {
    // SAFETY: see GetFree; the descriptor is that of /dev/loop-control.
    unsafe { ioctl(control, GetFree) }
}

#[allow(unsafe_code, reason = "an ioctl")]
fn configure(device: &File, file: &File, tag: &str) -> rustix::io::Result<()> {
    let mut config: LoopConfig = [0; 304];
    config[..4].copy_from_slice(&file.as_raw_fd().to_ne_bytes());
    let info = &mut config[8..240];
    info[FLAGS].copy_from_slice(&LO_FLAGS_AUTOCLEAR.to_ne_bytes());
    let name = &mut info[FILE_NAME];
    for (to, from) in name.iter_mut().zip(tag.bytes()) {
        *to = from;
    }
    // SAFETY: the argument has the size and layout of struct loop_config.
    unsafe { ioctl(device, Setter::<LOOP_CONFIGURE, LoopConfig>::new(config)) }
}

#[allow(unsafe_code, reason = "an ioctl")]
fn status(path: &Path) -> Option<LoopDevice> {
    // A device that goes away between two looks is no device of ours any more, and one that is free answers ENXIO.
    let device = File::open(path).ok()?;
    // SAFETY: the answer has the size and layout of struct loop_info64, all of whose bit patterns are valid.
    let info: LoopInfo =
        unsafe { ioctl(&device, Getter::<LOOP_GET_STATUS64, LoopInfo>::new()) }.ok()?;
    let name = info[FILE_NAME].split(|byte| *byte == 0).next()?;
    Some(LoopDevice {
        path: path.to_owned(),
        tag: String::from_utf8_lossy(name).into_owned(),
        below: u64::from_ne_bytes(info[RDEVICE].try_into().ok()?),
        device: device.metadata().ok()?.rdev(),
    })
}

#[allow(unsafe_code, reason = "an ioctl")]
fn clear(device: &File) -> rustix::io::Result<()> {
    // SAFETY: LOOP_CLR_FD takes no argument. A busy device is marked to free itself later.
    unsafe { ioctl(device, NoArg::<LOOP_CLR_FD>::new()) }
}
