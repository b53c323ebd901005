//! The steps that change the host, each in a child process: a system call on a dead mount may never return, and a
//! process that waits in the kernel cannot be killed, only left behind.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

/// The first argument of the child; no flag of podmon's looks like it.
const CHILD: &str = "\u{1}clear";
/// Children at most, hung ones included.
const CHILDREN: usize = 64;

/// One change of the host. None of them is recursive, and what is gone already is a success.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Step {
    /// Unmounts what is mounted last on the path. Never lazily: a detached file system still writes.
    Unmount(PathBuf),
    /// The operator's word: detach it even while something holds it.
    UnmountLazily(PathBuf),
    /// Takes a loop device, by its path, off what it stands on.
    FreeLoop(PathBuf),
    /// Removes an empty directory, or a file or link that is not a directory.
    Remove(PathBuf),
}

/// A step that did not succeed.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum ClearError {
    #[error("{step}: hangs in the kernel (no answer within {within:?})")]
    Hangs { step: Step, within: Duration },
    #[error("{step}: {why}")]
    Failed { step: Step, why: String },
}

impl Step {
    fn parts(&self) -> (&'static str, &Path) {
        match self {
            Self::Unmount(path) => ("unmount", path),
            Self::UnmountLazily(path) => ("unmount-lazily", path),
            Self::FreeLoop(path) => ("free-loop", path),
            Self::Remove(path) => ("remove", path),
        }
    }

    fn named(word: &OsStr, path: PathBuf) -> Option<Self> {
        match word.to_str()? {
            "unmount" => Some(Self::Unmount(path)),
            "unmount-lazily" => Some(Self::UnmountLazily(path)),
            "free-loop" => Some(Self::FreeLoop(path)),
            "remove" => Some(Self::Remove(path)),
            _ => None,
        }
    }

    /// Does it, in this process.
    fn perform(&self) -> io::Result<()> {
        let done = match self {
            Self::FreeLoop(path) => return loop_device::free(path),
            Self::Unmount(path) => unmount(path, UnmountFlags::NOFOLLOW),
            Self::UnmountLazily(path) => {
                unmount(path, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)
            }
            Self::Remove(path) => rustix::fs::rmdir(path).or_else(|error| match error {
                Errno::NOTDIR => rustix::fs::unlink(path),
                error => Err(error),
            }),
        };
        match done {
            Err(Errno::NOENT) => Ok(()),
            // Nothing is mounted there.
            Err(Errno::INVAL) if matches!(self, Self::Unmount(_) | Self::UnmountLazily(_)) => {
                Ok(())
            }
            other => other.map_err(io::Error::from),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, path) = self.parts();
        write!(f, "{word} {}", path.display())
    }
}

/// Runs steps in children made of one program, podmon itself.
#[derive(Clone, Debug)]
pub struct Children {
    program: PathBuf,
    within: Duration,
    /// Steps whose children have not ended; some may never.
    running: Arc<Mutex<BTreeSet<Step>>>,
}

impl Children {
    /// A step that takes longer than `within` counts as hung.
    pub fn new(program: PathBuf, within: Duration) -> Self {
        Self {
            program,
            within,
            running: Arc::default(),
        }
    }

    fn running(&self) -> MutexGuard<'_, BTreeSet<Step>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one step. A child that hangs is left behind, and no second one is started for the same step.
    pub async fn run(&self, step: Step) -> Result<(), ClearError> {
        let within = self.within;
        {
            let mut running = self.running();
            if running.contains(&step) {
                return Err(ClearError::Hangs { step, within });
            }
            if running.len() >= CHILDREN {
                let why = format!("{CHILDREN} other steps hang");
                return Err(ClearError::Failed { step, why });
            }
            running.insert(step.clone());
        }
        let (this, of) = (self.clone(), step.clone());
        let ended = tokio::spawn(async move {
            let ended = child_of(&this.program, &of).await;
            this.running().remove(&of);
            ended
        });
        match tokio::time::timeout(within, ended).await {
            Err(_) => Err(ClearError::Hangs { step, within }),
            Ok(Err(error)) => Err(ClearError::Failed {
                step,
                why: error.to_string(),
            }),
            Ok(Ok(ended)) => ended.map_err(|why| ClearError::Failed { step, why }),
        }
    }
}

async fn child_of(program: &Path, step: &Step) -> Result<(), String> {
    let (word, path) = step.parts();
    let child = tokio::process::Command::new(program)
        .args([OsStr::new(CHILD), OsStr::new(word), path.as_os_str()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .await
        .map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&child.stderr);
    match (child.status.success(), said.trim()) {
        (true, _) => Ok(()),
        (false, "") => Err(child.status.to_string()),
        (false, said) => Err(said.to_owned()),
    }
}

/// The child's whole life, if that is what this process was started for. To be asked before anything else.
pub fn child(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut arguments = arguments.into_iter().skip(1);
    if arguments.next()?.to_str() != Some(CHILD) {
        return None;
    }
    let step = match (arguments.next(), arguments.next()) {
        (Some(word), Some(path)) => Step::named(&word, path.into()),
        _ => None,
    };
    match step.map(|step| step.perform()) {
        Some(Ok(())) => Some(ExitCode::SUCCESS),
        Some(Err(error)) => {
            eprintln!("{error}");
            Some(ExitCode::FAILURE)
        }
        None => Some(ExitCode::FAILURE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_recursive_is_removed() {
        let base = std::env::temp_dir().join(format!("podmon-clear-{}", std::process::id()));
        let full = base.join("full");
        std::fs::create_dir_all(&full).unwrap();
        std::fs::write(full.join("data"), "x").unwrap();
        assert!(Step::Remove(full.clone()).perform().is_err());
        std::fs::remove_file(full.join("data")).unwrap();
        Step::Remove(full.clone()).perform().unwrap();
        Step::Remove(full.clone()).perform().unwrap();
        assert!(!full.exists());
        // A link is removed, not what it leads to.
        let link = base.join("link");
        std::os::unix::fs::symlink(&base, &link).unwrap();
        Step::Remove(link.clone()).perform().unwrap();
        assert!(base.exists() && link.symlink_metadata().is_err());
        std::fs::remove_dir_all(&base).unwrap();
    }

    #[tokio::test]
    async fn a_hung_child_is_left_behind_and_not_doubled() {
        let base = std::env::temp_dir().join(format!("podmon-hangs-{}", std::process::id()));
        std::fs::create_dir_all(&base).unwrap();
        let program = base.join("hangs");
        let started = base.join("started");
        let script = format!("#!/bin/sh\necho >> {}\nexec sleep 5\n", started.display());
        std::fs::write(&program, script).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, mode).unwrap();
        let children = Children::new(program, Duration::from_millis(1500));
        for _ in 0..3 {
            let answer = children.run(Step::Unmount("/mnt".into())).await;
            assert!(
                matches!(answer, Err(ClearError::Hangs { .. })),
                "{answer:?}"
            );
        }
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while !started.exists() && std::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(std::fs::read(&started).unwrap(), b"\n", "one child only");
        std::fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn only_our_own_word_makes_a_child() {
        for arguments in [vec![], vec!["podmon"], vec!["podmon", "--mode=node"]] {
            assert!(child(arguments.into_iter().map(OsString::from)).is_none());
        }
    }
}
