//! The host, as node mode sees and changes it: the seam at which a simulation puts a host of its own.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::Semaphore;

use super::clear::{Children, ClearError, Step};
use super::device;
use super::holders;
use super::layout::Layout;
use super::sight::{self, Seen, Sight, Unseen};
use crate::cri::{Alive, Running, Runtimes};
use crate::domain::BootId;

/// How long a look at the disk may take.
const LOOK: Duration = Duration::from_secs(5);
/// How long a runtime may take to answer.
const RUNTIME: Duration = Duration::from_secs(5);
/// How long a runtime may take to stop a container.
const STOP: Duration = Duration::from_secs(30);
/// How long one change may take before it counts as hung.
const CLEAR: Duration = Duration::from_secs(10);

/// A question that takes time, or something to do that does.
pub type Ask<Of, Answer> = Arc<dyn Fn(Of) -> BoxFuture<'static, Answer> + Send + Sync>;

/// What can be asked of a host, and done to it. Every function answers in bounded time.
#[derive(Clone)]
pub struct Host {
    /// Reads mounts, pod directories and staging directories.
    pub look: Arc<dyn Fn() -> BoxFuture<'static, Sight> + Send + Sync>,
    /// Asks the container runtimes.
    pub running: Arc<dyn Fn() -> BoxFuture<'static, Seen<Running>> + Send + Sync>,
    /// Changes something.
    pub clear: Ask<Step, Result<(), ClearError>>,
    /// Whether nothing holds the block device of these numbers: it can be opened exclusively.
    pub closed: Ask<(u32, u32), Seen<bool>>,
    /// Stops a container at once.
    pub stop: Ask<Alive, Seen<()>>,
    /// Differs whenever the kubelet has made or removed a pod's directory: a hint, cheap enough to ask every second.
    pub pulse: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// The kernel's boot id, if it can be read.
    pub boot: Arc<dyn Fn() -> Option<BootId> + Send + Sync>,
}

/// Where a machine keeps what [`Host`] looks at.
#[derive(Clone, Debug)]
pub struct Machine {
    pub proc: PathBuf,
    pub sys: PathBuf,
    pub dev: PathBuf,
    /// Where container runtimes may listen.
    pub sockets: Vec<PathBuf>,
    /// podmon's own binary, for the children.
    pub program: PathBuf,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            proc: "/proc".into(),
            sys: "/sys".into(),
            dev: "/dev".into(),
            sockets: crate::cri::SOCKETS.iter().map(PathBuf::from).collect(),
            program: "/proc/self/exe".into(),
        }
    }
}

impl Host {
    /// The machine on which this process runs, or directories that look like one.
    pub fn machine(machine: Machine, layout: Layout) -> Self {
        let runtimes = Runtimes::at(machine.sockets);
        let pods = layout.pods();
        let boot = machine.proc.join("sys/kernel/random/boot_id");
        let children = Children::new(machine.program, CLEAR);
        // A look that hangs keeps its place, so that not one more thread is spent on the next.
        let place = Arc::new(Semaphore::new(1));
        let (proc, sys) = (machine.proc, machine.sys);
        let processes = proc.clone();
        let (devices, stopping) = (sys.clone(), runtimes.clone());
        Self {
            look: Arc::new(move || {
                let (layout, proc, sys) = (layout.clone(), proc.clone(), sys.clone());
                let place = place.clone();
                async move {
                    let Ok(place) = place.try_acquire_owned() else {
                        return nothing("the last look has not come back");
                    };
                    let look = tokio::task::spawn_blocking(move || {
                        let _place = place;
                        sight::look(&layout, &proc, &sys)
                    });
                    match tokio::time::timeout(LOOK, look).await {
                        Ok(Ok(sight)) => sight,
                        Ok(Err(error)) => nothing(&error.to_string()),
                        Err(_) => nothing("the disk does not answer"),
                    }
                }
                .boxed()
            }),
            running: Arc::new(move || {
                let runtimes = runtimes.clone();
                async move {
                    let running = runtimes.running(RUNTIME).await;
                    running.map_err(|error| Unseen::new("container runtime", error))
                }
                .boxed()
            }),
            clear: Arc::new(move |step| {
                let (children, proc) = (children.clone(), processes.clone());
                async move { children.run(step).await.map_err(|e| explain(e, &proc)) }.boxed()
            }),
            closed: Arc::new(move |device| {
                let (sys, dev) = (devices.clone(), machine.dev.clone());
                async move {
                    let open =
                        tokio::task::spawn_blocking(move || device::closed(&sys, &dev, device));
                    match tokio::time::timeout(LOOK, open).await {
                        Ok(Ok(answer)) => answer,
                        _ => Err(Unseen::new("block device", "it does not answer")),
                    }
                }
                .boxed()
            }),
            stop: Arc::new(move |container| {
                let runtimes = stopping.clone();
                async move {
                    let stopped = runtimes.stop(&container, STOP).await;
                    stopped.map_err(|error| Unseen::new("container runtime", error))
                }
                .boxed()
            }),
            pulse: Arc::new(move || {
                let changed = std::fs::metadata(&pods);
                changed.map_or(0, |m| {
                    m.mtime().unsigned_abs().wrapping_mul(1_000_000_000)
                        ^ m.mtime_nsec().unsigned_abs()
                })
            }),
            boot: Arc::new(move || {
                let id = std::fs::read_to_string(&boot).ok()?;
                Some(BootId::from(id.trim()))
            }),
        }
    }
}

/// Names who keeps a mount busy.
fn explain(error: ClearError, proc: &Path) -> ClearError {
    match error {
        ClearError::Failed {
            step: Step::Unmount(path),
            why,
        } => {
            let holders = holders::of(proc, &path).join(", ");
            let why = match holders.as_str() {
                "" => why,
                holders => format!("{why}; held by {holders}"),
            };
            ClearError::Failed {
                step: Step::Unmount(path),
                why,
            }
        }
        other => other,
    }
}

/// A look that showed nothing at all.
fn nothing(why: &str) -> Sight {
    let unseen = Unseen::new("the host", why);
    Sight {
        mounts: Err(unseen.clone()),
        pods: Err(unseen.clone()),
        staged: Err(unseen.clone()),
        block: Err(unseen.clone()),
        loops: Err(unseen),
    }
}
