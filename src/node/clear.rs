//! The steps that change the host, each in a child process: a system call on a dead mount may never return, and a
//! process that waits in the kernel cannot be killed, only left behind.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use tokio::io::AsyncReadExt;

/// The first argument of the child; no flag of podmon's looks like it.
const CHILD: &str = "\u{1}clear";

/// One change of the host. None of them is recursive, and what is gone already is a success.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Step {
    /// Unmounts what is mounted last on the path. Never lazily: a detached file system still writes.
    Unmount(PathBuf),
    /// The operator's word: detach it even while something holds it.
    UnmountLazily(PathBuf),
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
            Self::Remove(path) => ("remove", path),
        }
    }

    fn named(word: &OsStr, path: PathBuf) -> Option<Self> {
        match word.to_str()? {
            "unmount" => Some(Self::Unmount(path)),
            "unmount-lazily" => Some(Self::UnmountLazily(path)),
            "remove" => Some(Self::Remove(path)),
            _ => None,
        }
    }

    /// Does it, in this process.
    fn perform(&self) -> io::Result<()> {
        let done = match self {
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
            Err(Errno::INVAL) if !matches!(self, Self::Remove(_)) => Ok(()),
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

/// Runs the step in a child made of `program`, podmon itself; a child that hangs is left behind.
pub async fn in_child(program: &Path, step: Step, within: Duration) -> Result<(), ClearError> {
    let (word, path) = step.parts();
    let failed = |why: String| ClearError::Failed {
        step: step.clone(),
        why,
    };
    let mut child = tokio::process::Command::new(program)
        .args([OsStr::new(CHILD), OsStr::new(word), path.as_os_str()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let mut said = child.stderr.take();
    let ended = tokio::time::timeout(within, async {
        let mut text = String::new();
        if let Some(said) = &mut said {
            let _ = said.read_to_string(&mut text).await;
        }
        (child.wait().await, text)
    });
    match ended.await {
        Err(_) => Err(ClearError::Hangs { step, within }),
        Ok((Err(error), _)) => Err(failed(error.to_string())),
        Ok((Ok(status), _)) if status.success() => Ok(()),
        Ok((Ok(status), text)) => Err(failed(match text.trim() {
            "" => status.to_string(),
            text => text.to_owned(),
        })),
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

    #[test]
    fn only_our_own_word_makes_a_child() {
        for arguments in [vec![], vec!["podmon"], vec!["podmon", "--mode=node"]] {
            assert!(child(arguments.into_iter().map(OsString::from)).is_none());
        }
    }
}
