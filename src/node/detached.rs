//! File systems that were detached while something held them, on the operator's word. They write on, unseen, until their
//! device is closed, so each is noted in a file before it is detached, and counts until it provably cannot write.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::mounts::Mount;
use super::sight::{Seen, Unseen};
use crate::domain::BootId;

/// The file's name, beside the driver's socket.
const FILE: &str = "podmon-detached.json";

/// One detached file system.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Detached {
    /// Where it was mounted.
    pub path: PathBuf,
    /// Major and minor number of its device.
    pub device: (u32, u32),
    pub source: String,
    /// The boot in which it was detached; the next one ends it. `None` if that could not be told.
    pub boot: Option<BootId>,
}

impl Detached {
    pub fn of(mount: &Mount, boot: Option<BootId>) -> Self {
        Self {
            path: mount.point.clone(),
            device: mount.device,
            source: mount.source.clone(),
            boot,
        }
    }

    /// It has a block device, so whether it is closed can be told. A network file system has none.
    pub fn has_device(&self) -> bool {
        self.device.0 != 0
    }

    /// The machine was booted since.
    pub fn ended_by(&self, boot: Option<&BootId>) -> bool {
        matches!((&self.boot, boot), (Some(then), Some(now)) if then != now)
    }
}

/// Where they are noted.
#[derive(Clone, Debug)]
pub struct Detachments {
    path: PathBuf,
    writing: Arc<Mutex<()>>,
}

impl Detachments {
    pub fn beside(socket: &Path) -> Self {
        Self {
            path: socket.with_file_name(FILE),
            writing: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that are noted; a note that cannot be read is not "none".
    pub fn all(&self) -> Seen<Vec<Detached>> {
        let unseen = |why: String| Unseen::new(self.path.display(), why);
        match std::fs::read(&self.path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| unseen(error.to_string())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(unseen(error.to_string())),
        }
    }

    /// Notes one; only then may it be detached.
    pub fn note(&self, detached: Detached) -> Seen<()> {
        let _lock = self.lock();
        let mut all = self.all()?;
        if !all.contains(&detached) {
            all.push(detached);
        }
        self.write(&all)
    }

    /// Strikes out those that cannot write any more.
    pub fn forget(&self, ended: &[Detached]) -> Seen<()> {
        let _lock = self.lock();
        let mut all = self.all()?;
        all.retain(|detached| !ended.contains(detached));
        self.write(&all)
    }

    fn write(&self, all: &[Detached]) -> Seen<()> {
        let new = self.path.with_extension("json.new");
        let written = serde_json::to_vec(all)
            .map_err(io::Error::from)
            .and_then(|text| {
                std::fs::write(&new, text)?;
                std::fs::File::open(&new)?.sync_all()?;
                std::fs::rename(&new, &self.path)
            });
        written.map_err(|error| Unseen::new(self.path.display(), error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_that_cannot_be_read_is_not_none() {
        let base = std::env::temp_dir().join(format!("podmon-detached-{}", std::process::id()));
        std::fs::create_dir_all(&base).unwrap();
        let notes = Detachments::beside(&base.join("csi.sock"));
        assert_eq!(notes.all(), Ok(Vec::new()));
        let detached = Detached {
            path: "/mnt".into(),
            device: (8, 16),
            source: "/dev/sdb".into(),
            boot: Some("b1".into()),
        };
        notes.note(detached.clone()).unwrap();
        assert_eq!(notes.all(), Ok(vec![detached.clone()]));
        notes.forget(&[detached]).unwrap();
        assert_eq!(notes.all(), Ok(Vec::new()));
        std::fs::write(base.join(FILE), "[{").unwrap();
        assert!(notes.all().is_err());
        std::fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn only_another_boot_ends_it() {
        let detached = |boot: Option<&str>| Detached {
            path: "/mnt".into(),
            device: (0, 44),
            source: "server:/export".into(),
            boot: boot.map(BootId::from),
        };
        let now = BootId::from("b2");
        assert!(detached(Some("b1")).ended_by(Some(&now)));
        assert!(!detached(Some("b2")).ended_by(Some(&now)));
        assert!(!detached(None).ended_by(Some(&now)));
        assert!(!detached(Some("b1")).ended_by(None));
    }
}
