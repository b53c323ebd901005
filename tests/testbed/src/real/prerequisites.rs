//! What the machine must have. On Debian as root missing packages are installed; everything else is named with its remedy.

use std::path::Path;
use std::process::Command;

use super::{Context, Error, Result};

/// A file whose presence shows that a Debian package is installed.
struct Package {
    name: &'static str,
    shown_by: &'static [&'static str],
}

const PACKAGES: &[Package] = &[
    Package {
        name: "containerd",
        shown_by: &["containerd", "ctr", "containerd-shim-runc-v2"],
    },
    Package {
        name: "runc",
        shown_by: &["runc"],
    },
    Package {
        name: "containernetworking-plugins",
        shown_by: &["/usr/lib/cni/bridge", "/usr/lib/cni/host-local"],
    },
    Package {
        name: "busybox-static",
        shown_by: &["/bin/busybox"],
    },
    Package {
        name: "e2fsprogs",
        shown_by: &["mkfs.ext4", "e2fsck"],
    },
    Package {
        name: "iproute2",
        shown_by: &["ip"],
    },
    Package {
        name: "mount",
        shown_by: &["mount", "umount", "losetup"],
    },
    Package {
        name: "util-linux",
        shown_by: &["unshare", "nsenter", "setpriv", "blkid"],
    },
];

/// Directories of system programs that a user's `PATH` may lack.
const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Checks all prerequisites and installs missing packages where that is possible.
pub fn ensure() -> Result<()> {
    extend_path();
    if !rustix::process::geteuid().is_root() {
        return Err(missing(
            "root: nodes need namespaces, mounts and loop devices",
            "run the same command as root, e.g. with sudo -E",
        ));
    }
    if !is_present("go") {
        return Err(missing(
            "Go 1.26 or newer: it builds the control plane",
            "install it from https://go.dev/dl and put it into PATH",
        ));
    }
    packages()?;
    device("/dev/fuse", "fuse")?;
    device("/dev/loop-control", "loop")?;
    for controller in ["cpu", "cpuset", "memory", "devices", "freezer", "pids"] {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")
            .context(|| "read /proc/self/mountinfo".into())?;
        let mounted = mounts
            .lines()
            .filter_map(|line| line.split_once(" - cgroup cgroup "))
            .any(|(_, options)| options.split(',').any(|option| option.trim() == controller));
        if !mounted {
            return Err(missing(
                &format!("the cgroup v1 hierarchy `{controller}`"),
                "boot with systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller on the kernel command line",
            ));
        }
    }
    Ok(())
}

fn packages() -> Result<()> {
    let absent: Vec<&str> = PACKAGES
        .iter()
        .filter(|package| !package.shown_by.iter().all(|file| is_present(file)))
        .map(|package| package.name)
        .collect();
    if absent.is_empty() {
        return Ok(());
    }
    let install = format!(
        "apt-get update && apt-get install --yes --no-install-recommends {}",
        absent.join(" ")
    );
    let debian = Path::new("/etc/debian_version").exists() && is_present("apt-get");
    if !debian {
        return Err(missing(
            &format!("the programs of the packages {}", absent.join(", ")),
            &format!("on Debian: {install}; elsewhere the distribution's packages of these names"),
        ));
    }
    eprintln!("installing {}", absent.join(" "));
    let status = Command::new("sh")
        .args(["-c", &install])
        .env("DEBIAN_FRONTEND", "noninteractive")
        .status()
        .context(|| "start apt-get".into())?;
    let still_absent = PACKAGES
        .iter()
        .flat_map(|package| package.shown_by)
        .find(|file| !is_present(file));
    match still_absent {
        None => Ok(()),
        Some(file) => Err(missing(
            &format!("{file} (apt-get ended with {status})"),
            &install,
        )),
    }
}

fn device(path: &str, module: &str) -> Result<()> {
    if !Path::new(path).exists() {
        let _ = Command::new("modprobe").arg(module).status();
    }
    if Path::new(path).exists() {
        return Ok(());
    }
    Err(missing(
        &format!("the device {path}"),
        &format!("modprobe {module}; in a container: pass the device in"),
    ))
}

/// Whether an absolute path exists, or a program of that name is in `PATH`.
fn is_present(file: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    file.starts_with('/') && Path::new(file).exists()
        || !file.starts_with('/')
            && std::env::split_paths(&path).any(|folder| folder.join(file).is_file())
}

/// Makes the system's programs reachable for this process and its children.
#[allow(unsafe_code)]
fn extend_path() {
    let path = std::env::var("PATH").unwrap_or_default();
    // SAFETY: called first thing in `main`, before any other thread exists.
    unsafe { std::env::set_var("PATH", format!("{path}:{SYSTEM_PATH}")) };
}

fn missing(what: &str, remedy: &str) -> Error {
    Error::Missing {
        what: what.into(),
        remedy: remedy.into(),
    }
}
