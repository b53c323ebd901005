//! Cgroups of version 1: one directory per hierarchy, the only thing of a cluster that the kernel does not remove by itself.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use super::wait::Seen;
use super::{Context, Error, Result};

/// The directory in every hierarchy under which all cgroups of a cluster live.
pub const PARENT: &str = "podmon-testbed";

/// A mounted cgroup hierarchy.
#[derive(Debug, Clone)]
pub struct Hierarchy {
    pub mount: PathBuf,
    /// `cgroup` or `cgroup2`.
    pub file_system: String,
    /// What a further mount of the same hierarchy names: its controllers, or `none,name=systemd`.
    pub options: String,
}

impl Hierarchy {
    fn has(&self, controller: &str) -> bool {
        self.options.split(',').any(|option| option == controller)
    }
}

/// All hierarchies mounted below `/sys/fs/cgroup`.
pub fn hierarchies() -> Result<Vec<Hierarchy>> {
    let table = std::fs::read_to_string("/proc/self/mountinfo")
        .context(|| "read /proc/self/mountinfo".into())?;
    Ok(table.lines().filter_map(parse).collect())
}

fn parse(line: &str) -> Option<Hierarchy> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mount = mount.split(' ').nth(4)?;
    let mut fields = file_system.split(' ');
    let kind = fields.next()?;
    let options = fields.nth(1)?;
    if !kind.starts_with("cgroup") || !mount.starts_with("/sys/fs/cgroup") {
        return None;
    }
    let mut named: Vec<&str> = options
        .split(',')
        .filter(|option| !matches!(*option, "rw" | "xattr" | "clone_children"))
        .filter(|option| !option.starts_with("release_agent"))
        .collect();
    if named.iter().any(|option| option.starts_with("name=")) {
        named.insert(0, "none");
    }
    Some(Hierarchy {
        mount: mount.into(),
        file_system: kind.into(),
        options: if kind == "cgroup2" {
            String::new()
        } else {
            named.join(",")
        },
    })
}

/// A cgroup of one name in every hierarchy.
#[derive(Debug, Clone)]
pub struct Cgroup {
    name: String,
    hierarchies: Vec<Hierarchy>,
}

impl Cgroup {
    /// The cgroup of a node.
    pub fn of_node(node: &str) -> Result<Self> {
        Self::named(format!("{PARENT}/{node}"))
    }

    /// The one that holds all cgroups of a cluster.
    pub fn of_cluster() -> Result<Self> {
        Self::named(PARENT.into())
    }

    fn named(name: String) -> Result<Self> {
        Ok(Cgroup {
            name,
            hierarchies: hierarchies()?,
        })
    }

    fn directories(&self) -> impl Iterator<Item = PathBuf> {
        self.hierarchies
            .iter()
            .map(|hierarchy| hierarchy.mount.join(&self.name))
    }

    fn directory(&self, controller: &str) -> Result<PathBuf> {
        self.hierarchies
            .iter()
            .find(|hierarchy| hierarchy.has(controller))
            .map(|hierarchy| hierarchy.mount.join(&self.name))
            .ok_or_else(|| Error::State(format!("no cgroup hierarchy with {controller}")))
    }

    /// Creates it, with its parents. A cpuset takes no process before it has processors and memory nodes.
    pub fn create(&self) -> Result<()> {
        for hierarchy in &self.hierarchies {
            let mut at = hierarchy.mount.clone();
            for part in self.name.split('/') {
                let above = at.clone();
                at.push(part);
                if !at.is_dir() {
                    std::fs::create_dir(&at).context(|| format!("create {}", at.display()))?;
                }
                if hierarchy.has("cpuset") {
                    for file in ["cpuset.cpus", "cpuset.mems"] {
                        let value = std::fs::read_to_string(above.join(file))
                            .context(|| format!("read {}", above.join(file).display()))?;
                        write(&at.join(file), value.trim())?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The files into which a process writes its pid to join.
    pub fn entrances(&self) -> Vec<PathBuf> {
        self.directories()
            .map(|directory| directory.join("cgroup.procs"))
            .collect()
    }

    /// The pids in it and below it, as seen from this process's pid namespace; 0 is a process outside of that.
    pub fn processes(&self) -> Vec<i32> {
        let Ok(directory) = self.directory("pids") else {
            return Vec::new();
        };
        subtree(&directory)
            .iter()
            .filter_map(|directory| std::fs::read_to_string(directory.join("cgroup.procs")).ok())
            .flat_map(|list| {
                list.lines()
                    .filter_map(|line| line.parse().ok())
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    /// Stops every process in it, as if the machine hung. The kernel says `FREEZING` for as long as a thread waits for storage
    /// that is frozen, too: it runs no instruction either.
    pub async fn freeze(&self) -> Result<()> {
        write(&self.directory("freezer")?.join("freezer.state"), "FROZEN")?;
        super::wait_until(
            format!("{} stands still", self.name),
            Duration::from_secs(10),
            async || {
                let running = self.processes().into_iter().find(|pid| !is_still(*pid));
                Ok(match running {
                    None => Seen::Yes(()),
                    Some(pid) => Seen::NotYet(format!("process {pid} runs")),
                })
            },
        )
        .await
    }

    /// Lets them go on.
    pub fn thaw(&self) -> Result<()> {
        write(&self.directory("freezer")?.join("freezer.state"), "THAWED")
    }

    /// Kills what is in it, thaws it so that the kill takes effect, and removes it with everything below. For a cgroup that
    /// does not exist there is nothing to do.
    pub fn destroy(&self, patience: Duration) -> Result<()> {
        let started = Instant::now();
        loop {
            let pids = self.processes();
            for pid in pids.iter().filter_map(|pid| Pid::from_raw(*pid)) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
            for freezer in self.directory("freezer").iter().flat_map(|d| subtree(d)) {
                let _ = std::fs::write(freezer.join("freezer.state"), "THAWED");
            }
            let left: Vec<PathBuf> = self
                .directories()
                .flat_map(|directory| subtree(&directory))
                .filter(|directory| std::fs::remove_dir(directory).is_err() && directory.exists())
                .collect();
            match left.first() {
                None => return Ok(()),
                Some(directory) if started.elapsed() > patience => {
                    return Err(Error::State(format!(
                        "{} cannot be removed; processes in it: {pids:?}",
                        directory.display()
                    )));
                }
                Some(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    pub fn exists(&self) -> bool {
        self.directories().any(|directory| directory.exists())
    }
}

/// Whether no thread of a process runs or could at once: each is frozen, in an uninterruptible wait, or ended.
fn is_still(pid: i32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    threads.into_iter().flatten().flatten().all(|thread| {
        let status = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        let state = status
            .rsplit(") ")
            .next()
            .and_then(|rest| rest.chars().next());
        !matches!(state, Some('R' | 'S' | 'I'))
    })
}

/// A directory and all below it, deepest first.
fn subtree(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.append(&mut subtree(&entry.path()));
        }
    }
    if directory.is_dir() {
        found.push(directory.into());
    }
    found
}

fn write(file: &Path, value: &str) -> Result<()> {
    std::fs::write(file, value).context(|| format!("write {value} to {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_are_read_with_the_options_of_a_further_mount() {
        let read = |line| parse(line).map(|h| (h.file_system, h.options));
        assert_eq!(
            read("36 31 0:33 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct"),
            Some(("cgroup".into(), "cpu,cpuacct".into()))
        );
        assert_eq!(
            read("40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd"),
            Some(("cgroup".into(), "none,name=systemd".into()))
        );
        assert_eq!(
            read("41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"),
            Some(("cgroup2".into(), String::new()))
        );
        assert_eq!(read("27 1 254:0 / / rw,relatime - ext4 /dev/vda rw"), None);
    }
}
