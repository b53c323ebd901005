//! The kernel's mount table, `/proc/self/mountinfo`.
//!
//! Read by hand: a mount point may hold any byte, and the table is believed whole or not at all. (The `procfs`
//! crate leaves the kernel's octal escapes in the paths and refuses text that is not UTF-8.)

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One mount, as this process's mount namespace shows it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Mount {
    /// Where it is mounted.
    pub point: PathBuf,
    /// Which part of its file system shows there.
    pub root: PathBuf,
    /// Major and minor number of its device.
    pub device: (u32, u32),
    /// `ext4`, `nfs4`, `tmpfs`, …
    pub kind: String,
    /// A device, an export, or whatever the file system calls its source.
    pub source: String,
    /// Mounts that are made or taken away below it elsewhere show here too.
    pub propagates: bool,
}

/// A table that cannot be believed.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
#[error("line {line} of the mount table is malformed")]
pub struct Malformed {
    /// Counted from 1.
    pub line: usize,
}

/// Reads a whole table; in the kernel's order, so a later mount on the same point hides an earlier one.
pub fn parse(table: &[u8]) -> Result<Vec<Mount>, Malformed> {
    let lines = table.split(|byte| *byte == b'\n').enumerate();
    lines
        .filter(|(_, line)| !line.is_empty())
        .map(|(index, line)| parse_line(line).ok_or(Malformed { line: index + 1 }))
        .collect()
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let _id = fields.next()?;
    let _parent = fields.next()?;
    let device = std::str::from_utf8(fields.next()?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let root = path(fields.next()?)?;
    let point = path(fields.next()?)?;
    let _options = fields.next()?;
    let mut propagates = false;
    loop {
        match fields.next()? {
            b"-" => break,
            optional => {
                propagates |= optional.starts_with(b"shared:") || optional.starts_with(b"master:");
            }
        }
    }
    let kind = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = unescape(fields.next()?)?;
    Some(Mount {
        point,
        root,
        device: (major.parse().ok()?, minor.parse().ok()?),
        kind,
        source: String::from_utf8_lossy(&source).into_owned(),
        propagates,
    })
}

fn path(field: &[u8]) -> Option<PathBuf> {
    (!field.is_empty()).then_some(())?;
    unescape(field).map(|bytes| PathBuf::from(OsString::from_vec(bytes)))
}

/// The kernel writes space, tab, newline and backslash as three octal digits.
fn unescape(field: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        if first == b'\\' {
            let digits = std::str::from_utf8(tail.get(..3)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 8).ok()?);
            rest = &tail[3..];
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    Some(bytes)
}

/// The mount that shows at `path`: of those above it the nearest, and of several on one point the last.
pub fn covering<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    let above = mounts.iter().filter(|mount| path.starts_with(&mount.point));
    above.max_by_key(|mount| mount.point.components().count())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TABLE: &[u8] = b"\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
80 21 7:3 /sub\\040dir /var/lib/kubelet/pods/u1/volumes/kubernetes.io~csi/pv\\0401/mount rw shared:7 master:2 - ext4 /dev/loop3 rw\n\
81 21 0:44 / /mnt/\xff rw - fuse.arrayd none rw\n";

    #[test]
    fn reads_escapes_devices_and_propagation() {
        let mounts = parse(TABLE).unwrap();
        assert_eq!(
            mounts[1].point,
            Path::new("/var/lib/kubelet/pods/u1/volumes/kubernetes.io~csi/pv 1/mount")
        );
        assert_eq!(mounts[1].root, Path::new("/sub dir"));
        assert_eq!(mounts[1].device, (7, 3));
        assert!(mounts[1].propagates && !mounts[2].propagates);
        assert_eq!(mounts[2].kind, "fuse.arrayd");
    }

    #[test]
    fn one_bad_line_spoils_the_table() {
        let mut table = TABLE.to_vec();
        table.extend_from_slice(b"82 21 8:2 / /data rw\n");
        assert_eq!(parse(&table), Err(Malformed { line: 4 }));
        for escape in ["/a\\9", "/a\\777", "/a\\04"] {
            let line = format!("82 21 8:2 / {escape} rw - ext4 none rw");
            assert!(parse(line.as_bytes()).is_err(), "{escape}");
        }
    }

    #[test]
    fn the_nearest_and_latest_mount_covers() {
        let mounts = parse(TABLE).unwrap();
        let below = |path| covering(&mounts, Path::new(path)).map(|mount| mount.device);
        assert_eq!(below("/mnt/other"), Some((8, 1)));
        let target = "/var/lib/kubelet/pods/u1/volumes/kubernetes.io~csi/pv 1/mount/data";
        assert_eq!(below(target), Some((7, 3)));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(table: Vec<u8>) {
            let _ = parse(&table);
        }

        #[test]
        fn no_field_makes_it_panic(field in "[\\\\0-9a-f: -]{0,40}") {
            let _ = parse(format!("1 2 3:4 / {field} rw - a b c").as_bytes());
            let _ = parse(format!("1 2 {field} / / rw shared:1 - a b").as_bytes());
        }
    }
}
