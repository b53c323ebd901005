//! One process of the cluster: started with a log file, ended by pid.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use super::{Context, Error, Result};

/// A running process. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    /// The process does its work in a child (as `nsenter` and `unshare` do when they enter a pid namespace).
    wrapped: bool,
}

impl Process {
    /// Starts `command`; what it prints is appended to `<logs>/<name>.log`.
    pub fn start(name: &str, command: Command, logs: &Path) -> Result<Self> {
        Self::spawn(name, command, logs, false)
    }

    /// As [`Process::start`] for a command that forks once and lets its child do the work.
    pub fn start_wrapped(name: &str, command: Command, logs: &Path) -> Result<Self> {
        Self::spawn(name, command, logs, true)
    }

    fn spawn(name: &str, mut command: Command, logs: &Path, wrapped: bool) -> Result<Self> {
        let log = logs.join(format!("{name}.log"));
        let out = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .context(|| format!("log {}", log.display()))?;
        let err = out.try_clone().context(|| format!("log of {name}"))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .context(|| format!("start {name} ({:?})", command.get_program()))?;
        Ok(Process {
            name: name.into(),
            child,
            log,
            wrapped,
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The pid of the process that does the work; `None` before a wrapper has forked, and after the end.
    pub fn pid(&self) -> Option<Pid> {
        let outer = self.child.id();
        if !self.wrapped {
            return Pid::from_raw(outer as i32);
        }
        let children = std::fs::read_to_string(format!("/proc/{outer}/task/{outer}/children"));
        let first = children.ok()?.split_whitespace().next()?.parse().ok()?;
        Pid::from_raw(first)
    }

    /// The pid of the wrapper, or of the process itself when it has none.
    pub fn outer_pid(&self) -> u32 {
        self.child.id()
    }

    /// Fails when the process has ended.
    pub fn check(&mut self) -> Result<()> {
        match self.child.try_wait().context(|| self.name.clone())? {
            None => Ok(()),
            Some(status) => Err(Error::Ended {
                name: self.name.clone(),
                status,
                log: self.log.clone(),
            }),
        }
    }

    pub fn is_running(&mut self) -> bool {
        self.check().is_ok()
    }

    /// Sends a signal to the process that does the work.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self
            .pid()
            .ok_or_else(|| Error::State(format!("{} does not run", self.name)))?;
        rustix::process::kill_process(pid, signal)
            .context(|| format!("signal {signal:?} to {}", self.name))
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) {
        if self.wrapped
            && let Some(pid) = self.pid()
        {
            // Only the worker: its wrapper ends with it, and would leave it behind if killed first.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        } else {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }

    /// SIGTERM, then SIGKILL after `patience`.
    pub async fn stop(&mut self, patience: Duration) {
        let _ = self.signal(Signal::TERM);
        let asked = Instant::now();
        while self.is_running() && asked.elapsed() < patience {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        if self.is_running() {
            self.kill();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.kill();
        }
    }
}

/// Runs a short command to its end and returns its standard output.
pub fn output(program: &str, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    command.args(arguments);
    output_of(&mut command)
}

/// As [`output`], for a prepared command.
pub fn output_of(command: &mut Command) -> Result<String> {
    let shown = || {
        std::iter::once(command.get_program())
            .chain(command.get_args())
            .map(|part| part.to_string_lossy())
            .collect::<Vec<_>>()
            .join(" ")
    };
    let shown = shown();
    let done = command
        .stdin(Stdio::null())
        .output()
        .context(|| format!("run {shown}"))?;
    if !done.status.success() {
        return Err(Error::Command {
            command: shown,
            status: done.status,
            output: String::from_utf8_lossy(&done.stderr).trim().to_owned(),
        });
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}
