//! One run of a cluster: a lock, namespaces around it, and a clean machine afterwards.
//!
//! The program runs twice. The outer run checks the machine, provides the programs, takes the lock and starts itself again in
//! new pid, network and mount namespaces. There it is process 1: with its end the kernel ends all. The outer run then removes the
//! cgroups. If the outer run is killed, its child gets the kernel's parent-death signal, and the next start removes the rest.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal};

use super::binaries::{Binaries, Tool};
use super::cgroup::Cgroup;
use super::{Context, Error, Result, prerequisites};
use crate::storage::loops;

/// Where a cluster's files are: a file system in memory that only its own mount namespace sees.
pub const STATE: &str = "/var/lib/podmon-testbed";

/// Directories that nodes mount their own disks on; created for the run when the machine has none.
const MOUNT_POINTS: [&str; 3] = [STATE, "/var/lib/kubelet", "/var/lib/containerd"];

const LOCK: &str = "/run/podmon-testbed.lock";

/// Tells the inner run that it is one, and where the programs are.
const INSIDE: &str = "PODMON_TESTBED_INSIDE";

/// Exit code after an interrupt, as a shell gives it.
const INTERRUPTED: u8 = 130;

/// Calls `inside` with the programs of `tools` and of this workspace, in namespaces of its own. Call it first in `main`, before
/// any thread is started: the program is run again from its beginning, with the same arguments.
pub fn enter(tools: &[Tool], inside: impl FnOnce(Binaries) -> ExitCode) -> ExitCode {
    if let Ok(given) = std::env::var(INSIDE) {
        return match serde_json::from_str(&given) {
            Ok(binaries) => inside(binaries),
            Err(error) => {
                eprintln!("{INSIDE} is set by the outer run only: {error}");
                ExitCode::FAILURE
            }
        };
    }
    match outside(tools) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("the cluster cannot be started: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The folder for the logs of the last run, kept afterwards.
pub fn logs() -> PathBuf {
    target_folder().join("testbed-logs")
}

/// Cargo's target folder: this program is in `<target>/<profile>/` or `<target>/<profile>/deps/`.
fn target_folder() -> PathBuf {
    profile_folder()
        .parent()
        .map_or_else(std::env::temp_dir, Path::to_path_buf)
}

fn profile_folder() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    let mut folder = program.parent().unwrap_or(Path::new(".")).to_path_buf();
    if folder.ends_with("deps") {
        folder.pop();
    }
    folder
}

fn outside(tools: &[Tool]) -> Result<u8> {
    prerequisites::ensure()?;
    let _lock = lock()?;
    remove_leftovers()?;
    let mut binaries = Binaries::provide(tools)?;
    own_programs(&mut binaries)?;
    let logs = logs();
    let _ = std::fs::remove_dir_all(&logs);
    std::fs::create_dir_all(&logs).context(|| format!("create {}", logs.display()))?;
    for folder in MOUNT_POINTS {
        std::fs::create_dir_all(folder).context(|| format!("create {folder}"))?;
    }
    let code = run_inside(&binaries);
    remove_leftovers()?;
    code
}

/// Removes what the kernel does not: cgroups with what may be frozen in them, the kubelets' loop devices, empty mount points.
fn remove_leftovers() -> Result<()> {
    Cgroup::of_cluster()?.destroy(Duration::from_secs(60))?;
    sweep_loops(&format!("{}node", loops::TAG))?;
    // Found by the kubelet's name for it alone when the server of the disk at the bottom is dead already.
    let has_own_kubelet =
        std::fs::read_dir("/var/lib/kubelet").is_ok_and(|mut d| d.next().is_some());
    if !has_own_kubelet {
        sweep_loops("/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/")?;
    }
    for folder in MOUNT_POINTS {
        // Only if empty: on a machine with a kubelet of its own these are not ours.
        let _ = std::fs::remove_dir(folder);
    }
    Ok(())
}

/// Frees the loop devices whose names begin so, and those on top of them: a kubelet puts one on every block volume, and that
/// one does not free itself, so a node that died leaves it behind with the driver's below it.
pub(super) fn sweep_loops(names: &str) -> Result<()> {
    let started = Instant::now();
    loop {
        // A device that frees itself as soon as the one above it is gone is missed by the same sweep, and ends it.
        let swept = loops::sweep(names).and_then(|()| loops::find(names));
        match swept {
            Ok(left) if left.is_empty() => return Ok(()),
            Err(error) if started.elapsed() > LOOPS_GONE => {
                return Err(error).context(|| format!("free the loop devices {names}"));
            }
            Ok(left) if started.elapsed() > LOOPS_GONE => {
                return Err(Error::State(format!("loop devices are left: {left:?}")));
            }
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// How long that may take; a device may be held for the moment by whoever looks for file systems.
const LOOPS_GONE: Duration = Duration::from_secs(30);

/// One cluster at a time: names of cgroups and the mount points are the machine's.
fn lock() -> Result<File> {
    let mut file = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(LOCK)
        .context(|| format!("open {LOCK}"))?;
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        let mut holder = String::new();
        let _ = file.read_to_string(&mut holder);
        eprintln!("waiting for the cluster of process {}", holder.trim());
        rustix::fs::flock(&file, FlockOperation::LockExclusive)
            .context(|| format!("lock {LOCK}"))?;
    }
    file.rewind()
        .and_then(|()| file.set_len(0))
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .context(|| format!("write {LOCK}"))?;
    Ok(file)
}

/// Builds podmon and the testbed's programs beside this one; Cargo builds only the one that was asked for.
fn own_programs(binaries: &mut Binaries) -> Result<()> {
    let folder = profile_folder();
    if let Some(cargo) = std::env::var_os("CARGO") {
        let mut command = Command::new(cargo);
        command
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .args([
                "build",
                "--quiet",
                "--package",
                "podmon",
                "--package",
                "testbed",
                "--bins",
            ])
            .arg("--target-dir")
            .arg(target_folder());
        if folder.ends_with("release") {
            command.arg("--release");
        }
        // What Cargo tells the program it runs is not meant for a build: build scripts would take it for a change.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            let told = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "OUT_DIR"];
            if told.iter().any(|prefix| name.starts_with(prefix)) {
                command.env_remove(name.as_ref());
            }
        }
        let status = command.status().context(|| "start cargo".into())?;
        if !status.success() {
            return Err(Error::Command {
                command: "cargo build --package podmon --package testbed --bins".into(),
                status,
                output: "see above".into(),
            });
        }
    }
    for program in ["podmon", "node-init", "storage", "workload"] {
        let path = folder.join(program);
        if path.is_file() {
            binaries.insert(program, path);
        } else if program == "node-init" {
            return Err(Error::Missing {
                what: path.display().to_string(),
                remedy: "cargo build --package podmon --package testbed --bins".into(),
            });
        }
    }
    Ok(())
}

/// Starts this program again inside new namespaces and waits for its end.
fn run_inside(binaries: &Binaries) -> Result<u8> {
    let program = std::env::current_exe().context(|| "find this program".into())?;
    let given = serde_json::to_string(binaries)
        .map_err(|error| Error::State(format!("paths of the programs: {error}")))?;
    // The outermost `setpriv` ties `unshare` to this process, `--kill-child` ties process 1 to `unshare`.
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "unshare"])
        .args(["--net", "--mount", "--propagation", "private", "--ipc"])
        .args(["--pid", "--fork", "--kill-child", "--mount-proc", "--"])
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, given);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context(|| "start a runtime".into())?;
    runtime.block_on(async {
        let mut child = tokio::process::Command::from(command)
            .spawn()
            .context(|| "start unshare".into())?;
        let unshare = child.id().and_then(|id| Pid::from_raw(id as i32));
        let mut terminate =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
                .context(|| "catch SIGTERM".into())?;
        let mut tick = tokio::time::interval(Duration::from_millis(200));
        loop {
            tokio::select! {
                status = child.wait() => {
                    let status = status.context(|| "wait for unshare".into())?;
                    return Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1));
                }
                _ = tokio::signal::ctrl_c() => break,
                _ = terminate.recv() => break,
                _ = tick.tick() => {
                    // Process 1 cannot end before a frozen process of its namespace is thawed.
                    if unshare.is_some_and(is_ending) {
                        Cgroup::of_cluster()?.destroy(Duration::from_secs(60))?;
                    }
                }
            }
        }
        eprintln!("interrupted, cleaning up");
        if let Some(unshare) = unshare {
            let _ = rustix::process::kill_process(unshare, Signal::KILL);
        }
        let _ = child.wait().await;
        Ok(INTERRUPTED)
    })
}

/// Whether the only child of `unshare` has given up its memory, which it does early in its end.
fn is_ending(unshare: Pid) -> bool {
    let pid = unshare.as_raw_nonzero();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let Some(child) = children
        .ok()
        .and_then(|list| list.split_whitespace().next().map(str::to_owned))
    else {
        return false;
    };
    std::fs::read(format!("/proc/{child}/cmdline")).is_ok_and(|line| line.is_empty())
}
