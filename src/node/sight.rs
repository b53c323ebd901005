//! What the host shows of pods and their volumes, read now and nowhere remembered.
//!
//! What cannot be seen, for want of a mount or a right, is [`Unseen`]: a value of its own, never "clean".

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::layout::{Layout, VOLUME_DATA, hash};
use super::mounts::{self, Mount};
use crate::domain::{DriverName, PodUid, VolumeHandle, VolumeName};

/// Why a part of the truth could not be read.
#[derive(thiserror::Error, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[error("{what}: {why}")]
pub struct Unseen {
    pub what: String,
    pub why: String,
}

impl Unseen {
    pub fn new(what: impl ToString, why: impl ToString) -> Self {
        Self {
            what: what.to_string(),
            why: why.to_string(),
        }
    }
}

pub type Seen<T> = Result<T, Unseen>;

/// The host, at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sight {
    pub mounts: Seen<Vec<Mount>>,
    pub pods: Seen<Vec<PodDirectory>>,
    /// Staging directories of our driver's file systems, and those of the old generation.
    pub staged: Seen<Vec<Staged>>,
    pub block: Seen<Vec<BlockVolume>>,
    pub loops: Seen<Vec<Loop>>,
}

/// `<kubelet>/pods/<uid>`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PodDirectory {
    pub uid: PodUid,
    pub volumes: Seen<Vec<PodVolume>>,
}

/// A CSI volume in a pod's directory, inline ephemeral ones too.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PodVolume {
    /// The PersistentVolume, or what the kubelet made up for an inline volume.
    pub name: VolumeName,
    pub kind: Kind,
    /// `None` where the kubelet's note is missing or unreadable; for a block volume it is not kept here.
    pub identity: Option<Identity>,
    /// The target directory or link: `…/<name>/mount` or `…/volumeDevices/kubernetes.io~csi/<name>`.
    pub target: PathBuf,
    /// Made for this pod alone by the driver, and never staged.
    pub inline: bool,
    /// The target is there; a directory that holds only the kubelet's note is not a volume any more.
    pub present: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    Filesystem,
    Block,
}

/// Whose volume it is, by the kubelet's note.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Identity {
    pub driver: DriverName,
    pub handle: VolumeHandle,
}

/// A staging directory of a file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Staged {
    /// `…/globalmount`.
    pub path: PathBuf,
    pub owner: Owner,
    /// By the kubelet's note beside it.
    pub identity: Option<Identity>,
}

/// Whose staging directory it is, by its name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Owner {
    /// The hash of a handle of our driver.
    Hash(String),
    /// A PersistentVolume, of whichever driver.
    Volume(VolumeName),
}

/// What the kubelet keeps of a block volume outside the pods' directories.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockVolume {
    pub name: VolumeName,
    pub identity: Option<Identity>,
    /// `…/volumeDevices/staging/<name>`, if it is there.
    pub staging: Option<PathBuf>,
    /// `…/volumeDevices/publish/<name>/<pod>`.
    pub published: BTreeMap<PodUid, PathBuf>,
    /// `…/volumeDevices/<name>/dev/<pod>`.
    pub mapped: BTreeMap<PodUid, PathBuf>,
}

/// A loop device that is in use.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Loop {
    /// `loop3`.
    pub device: String,
    pub backing: PathBuf,
}

impl Staged {
    pub fn is_of(&self, volume: &VolumeName, handle: &VolumeHandle) -> bool {
        match &self.owner {
            Owner::Hash(found) => *found == hash(handle),
            Owner::Volume(found) => found == volume,
        }
    }
}

/// Reads everything. It blocks, and hangs if the host's own disk does; it never touches a mounted volume.
pub fn look(layout: &Layout, proc: &Path, sys: &Path) -> Sight {
    let kubelet = layout.kubelet();
    let real = fs::canonicalize(kubelet).map_err(|error| Unseen::new(kubelet.display(), error));
    let table = real.as_ref().map_err(Clone::clone).and_then(|real| {
        let mounts = read_mounts(proc)?;
        Ok((real, mounts))
    });
    let visible = |directory: &Path| {
        let (real, mounts) = table.as_ref().map_err(Clone::clone)?;
        visible(
            mounts,
            real,
            directory.strip_prefix(kubelet).unwrap_or(directory),
        )
    };
    Sight {
        pods: visible(&layout.pods()).and_then(|()| pods(layout)),
        staged: visible(&layout.csi()).and_then(|()| staged(layout)),
        block: visible(&layout.block()).and_then(|()| block(layout)),
        loops: loops(sys).map(|mut loops| {
            for device in &mut loops {
                known_by(kubelet, real.as_deref().ok(), &mut device.backing);
            }
            loops
        }),
        mounts: table.as_ref().map_err(Clone::clone).map(|(real, mounts)| {
            let mut mounts = mounts.clone();
            for mount in &mut mounts {
                known_by(kubelet, Some(real), &mut mount.point);
            }
            mounts
        }),
    }
}

fn read_mounts(proc: &Path) -> Seen<Vec<Mount>> {
    let path = proc.join("self/mountinfo");
    let table = fs::read(&path).map_err(|error| Unseen::new(path.display(), error))?;
    mounts::parse(&table).map_err(|error| Unseen::new(path.display(), error))
}

/// A path as the kubelet has it, which may know its directory by a link.
fn known_by(kubelet: &Path, real: Option<&Path>, path: &mut PathBuf) {
    if let Some(rest) = real.and_then(|real| path.strip_prefix(real).ok()) {
        *path = kubelet.join(rest);
    }
}

/// Whether the host's own directory, `rest` below the kubelet's, shows here, with the mounts that are made in it: not so
/// in a container that was not given it.
fn visible(mounts: &[Mount], kubelet: &Path, rest: &Path) -> Seen<()> {
    let directory = kubelet.join(rest);
    let unseen = |why| Err(Unseen::new(directory.display(), why));
    let Some(here) = mounts::covering(mounts, &directory) else {
        return unseen("no mount shows it");
    };
    let pods = kubelet.join("pods");
    let with_pods = mounts::covering(mounts, &pods)
        .is_some_and(|shows| shows.point == here.point && pods.is_dir());
    if !here.point.starts_with(kubelet) && !with_pods {
        return unseen("not mounted into this container");
    }
    if !here.propagates {
        return unseen("mounts made on the host do not show here (no mount propagation)");
    }
    Ok(())
}

fn pods(layout: &Layout) -> Seen<Vec<PodDirectory>> {
    let pods = layout.pods();
    let entries = names(&pods)?.ok_or_else(|| Unseen::new(pods.display(), "no such directory"))?;
    let directories = entries.into_iter().map(|name| {
        let directory = pods.join(&name);
        PodDirectory {
            uid: PodUid::from(name),
            volumes: pod_volumes(&directory),
        }
    });
    Ok(directories.collect())
}

fn pod_volumes(pod: &Path) -> Seen<Vec<PodVolume>> {
    let mut volumes = Vec::new();
    let mounted = pod.join("volumes/kubernetes.io~csi");
    for name in names(&mounted)?.unwrap_or_default() {
        let directory = mounted.join(&name);
        let inside = names(&directory)?.unwrap_or_default();
        let note = note(&directory.join(VOLUME_DATA));
        volumes.push(PodVolume {
            name: VolumeName::from(name),
            kind: Kind::Filesystem,
            inline: note.as_ref().is_some_and(|note| note.inline),
            identity: note.map(|note| note.identity),
            present: inside.iter().any(|entry| entry == "mount"),
            target: directory.join("mount"),
        });
    }
    let devices = pod.join("volumeDevices/kubernetes.io~csi");
    for name in names(&devices)?.unwrap_or_default() {
        volumes.push(PodVolume {
            target: devices.join(&name),
            name: VolumeName::from(name),
            kind: Kind::Block,
            inline: false,
            identity: None,
            present: true,
        });
    }
    Ok(volumes)
}

fn staged(layout: &Layout) -> Seen<Vec<Staged>> {
    let mut staged = Vec::new();
    let new = layout.staging();
    for name in names(&new)?.unwrap_or_default() {
        if holds(&new.join(&name), "globalmount")? {
            staged.push(Staged {
                path: new.join(&name).join("globalmount"),
                identity: identity(&new.join(&name).join(VOLUME_DATA)),
                owner: Owner::Hash(name),
            });
        }
    }
    let old = layout.old_staging();
    for name in names(&old)?.unwrap_or_default() {
        if holds(&old.join(&name), "globalmount")? {
            staged.push(Staged {
                path: old.join(&name).join("globalmount"),
                identity: identity(&old.join(&name).join(VOLUME_DATA)),
                owner: Owner::Volume(VolumeName::from(name)),
            });
        }
    }
    Ok(staged)
}

/// Directories beside those of the volumes themselves; no PersistentVolume can be called so and have both.
const STAGING: &str = "staging";
const PUBLISH: &str = "publish";

fn block(layout: &Layout) -> Seen<Vec<BlockVolume>> {
    let base = layout.block();
    let mut volumes: BTreeMap<String, BlockVolume> = BTreeMap::new();
    for name in names(&base)?.unwrap_or_default() {
        if name == STAGING || name == PUBLISH {
            continue;
        }
        let directory = base.join(&name);
        let devices = directory.join("dev");
        let mapped = names(&devices)?.unwrap_or_default();
        let volume = entry(&mut volumes, name);
        volume.identity = identity(&directory.join("data").join(VOLUME_DATA));
        volume.mapped = by_pod(&devices, mapped);
    }
    let staging = base.join(STAGING);
    for name in names(&staging)?.unwrap_or_default() {
        let path = staging.join(&name);
        entry(&mut volumes, name).staging = Some(path);
    }
    let publish = base.join(PUBLISH);
    for name in names(&publish)?.unwrap_or_default() {
        let directory = publish.join(&name);
        let published = names(&directory)?.unwrap_or_default();
        entry(&mut volumes, name).published = by_pod(&directory, published);
    }
    Ok(volumes.into_values().collect())
}

fn entry(volumes: &mut BTreeMap<String, BlockVolume>, name: String) -> &mut BlockVolume {
    let empty = BlockVolume {
        name: VolumeName::from(name.as_str()),
        identity: None,
        staging: None,
        published: BTreeMap::new(),
        mapped: BTreeMap::new(),
    };
    volumes.entry(name).or_insert(empty)
}

fn by_pod(directory: &Path, names: Vec<String>) -> BTreeMap<PodUid, PathBuf> {
    let paths = names.into_iter().map(|name| {
        let path = directory.join(&name);
        (PodUid::from(name), path)
    });
    paths.collect()
}

fn loops(sys: &Path) -> Seen<Vec<Loop>> {
    let block = sys.join("block");
    let devices =
        names(&block)?.ok_or_else(|| Unseen::new(block.display(), "no such directory"))?;
    let mut loops = Vec::new();
    for device in devices.into_iter().filter(|name| name.starts_with("loop")) {
        let file = block.join(&device).join("loop/backing_file");
        match fs::read_to_string(&file) {
            Ok(text) => loops.push(Loop {
                device,
                backing: text.trim_end_matches('\n').into(),
            }),
            // A free loop device has no such file, or an instant ago had one.
            Err(error) if gone(&error) => {}
            Err(error) => return Err(Unseen::new(file.display(), error)),
        }
    }
    Ok(loops)
}

/// The names in a directory, in order; `None` if there is no such directory. Nothing in it is looked at.
fn names(directory: &Path) -> Seen<Option<Vec<String>>> {
    let unseen = |error: io::Error| Unseen::new(directory.display(), error);
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if gone(&error) => return Ok(None),
        Err(error) => return Err(unseen(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let name = entry.map_err(unseen)?.file_name();
        found.push(name.into_string().map_err(|name| {
            Unseen::new(
                directory.display(),
                format!("cannot name the entry {name:?}"),
            )
        })?);
    }
    found.sort();
    Ok(Some(found))
}

fn holds(directory: &Path, name: &str) -> Seen<bool> {
    let inside = names(directory)?.unwrap_or_default();
    Ok(inside.iter().any(|entry| entry == name))
}

fn gone(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory)
        || error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error())
}

/// What the kubelet notes beside a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Note {
    identity: Identity,
    inline: bool,
}

#[derive(Deserialize)]
struct VolumeData {
    #[serde(rename = "driverName")]
    driver: String,
    #[serde(rename = "volumeHandle")]
    handle: String,
    #[serde(rename = "volumeLifecycleMode", default)]
    lifecycle: Option<String>,
}

/// The kubelet's note in `file`; `None` if it is missing, unreadable or says nothing.
fn note(file: &Path) -> Option<Note> {
    parse_note(&fs::read(file).ok()?)
}

fn identity(file: &Path) -> Option<Identity> {
    note(file).map(|note| note.identity)
}

fn parse_note(text: &[u8]) -> Option<Note> {
    let data: VolumeData = serde_json::from_slice(text).ok()?;
    (!data.driver.is_empty() && !data.handle.is_empty()).then(|| Note {
        identity: Identity {
            driver: data.driver.into(),
            handle: data.handle.into(),
        },
        inline: data.lifecycle.as_deref() == Some("Ephemeral"),
    })
}

#[cfg(test)]
mod tests;
