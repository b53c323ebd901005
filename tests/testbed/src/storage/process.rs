//! Processes of the `storage` binary, killed by their own id when their owner goes.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A process that does not outlive this value.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
}

impl Process {
    /// Starts a program whose output goes to a log file.
    pub fn start<A: AsRef<OsStr>>(
        program: &Path,
        arguments: impl IntoIterator<Item = A>,
        log: &Path,
    ) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.args(arguments);
        let output = std::fs::File::options()
            .create(true)
            .append(true)
            .open(log)?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?);
        command.stderr(output);
        let name = format!("{command:?}");
        match command.spawn() {
            Ok(child) => Ok(Self { name, child }),
            Err(error) => Err(io::Error::new(error.kind(), format!("{name}: {error}"))),
        }
    }

    /// How the process is called in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Asks the process to end, and waits for it. False: it did not end well within the time, and was killed.
    pub fn terminate(&mut self, within: Duration) -> io::Result<bool> {
        let id = i32::try_from(self.child.id()).map_err(io::Error::other)?;
        if let Some(id) = Pid::from_raw(id) {
            kill_process(id, Signal::TERM)?;
        }
        let deadline = Instant::now() + within;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status.success());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.kill();
        Ok(false)
    }

    /// Ends the process at once and waits until it is gone.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// An empty directory that goes with this value, with everything that is still mounted below it.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// A new directory below the system's temporary one.
    pub fn new(purpose: &str) -> io::Result<Self> {
        let name = format!("podmon-{purpose}-{}", std::process::id());
        let path = std::env::temp_dir().canonicalize()?.join(name);
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = super::mounts::remove_below(&self.0) {
            // Removing files through a mount that is left would remove what is not ours.
            eprintln!("{} is left behind: {error}", self.0.display());
            return;
        }
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
