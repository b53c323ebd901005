//! Process 1 of a node: gives it file systems, kernel settings and a boot id of its own, then collects orphans.
//!
//! `node-init NAME FOLDER`, started in new namespaces and in the node's cgroup. FOLDER is the node's disk.

use std::error::Error;
use std::path::Path;

use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, unmount,
};
use rustix::process::WaitOptions;
use testbed::real::cgroup;

/// Settings that the kubelet wants and would set for the whole machine. It finds them as wanted and leaves the machine alone.
const KERNEL_SETTINGS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, folder] = arguments.as_slice() else {
        eprintln!("usage: node-init NAME FOLDER");
        std::process::exit(2);
    };
    if let Err(error) = prepare(name, Path::new(folder)) {
        eprintln!("node-init {name}: {error}");
        std::process::exit(1);
    }
    loop {
        // Without children of its own there is nothing to wait for until the next orphan comes.
        if rustix::process::wait(WaitOptions::empty()).is_err() {
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    }
}

fn prepare(name: &str, folder: &Path) -> Result<(), Box<dyn Error>> {
    rustix::system::sethostname(name.as_bytes())?;
    // Read while the machine's hierarchies are still in sight.
    let hierarchies = cgroup::hierarchies()?;
    tmpfs("/run")?;
    std::fs::create_dir_all("/run/lock")?;

    unmount("/sys", UnmountFlags::DETACH)?;
    mount("sysfs", "/sys", "sysfs", MountFlags::empty(), None)?;
    tmpfs("/sys/fs/cgroup")?;
    for hierarchy in hierarchies {
        let options = std::ffi::CString::new(hierarchy.options.as_str())?;
        std::fs::create_dir_all(&hierarchy.mount)?;
        mount(
            "cgroup",
            &hierarchy.mount,
            hierarchy.file_system.as_str(),
            MountFlags::empty(),
            options.as_c_str(),
        )
        .map_err(|error| format!("mount {}: {error}", hierarchy.mount.display()))?;
    }

    for (disk, at) in [
        ("kubelet", "/var/lib/kubelet"),
        ("containerd", "/var/lib/containerd"),
        ("log", "/var/log"),
        ("boot_id", "/proc/sys/kernel/random/boot_id"),
    ] {
        mount_bind(folder.join(disk), at).map_err(|error| format!("mount {at}: {error}"))?;
    }
    let settings = folder.join("kernel-settings");
    std::fs::create_dir_all(&settings)?;
    for (setting, value) in KERNEL_SETTINGS {
        let file = settings.join(setting.replace('/', "."));
        std::fs::write(&file, value)?;
        let at = Path::new("/proc/sys").join(setting);
        mount_bind(&file, &at).map_err(|error| format!("mount {}: {error}", at.display()))?;
    }
    mount_change(
        "/",
        MountPropagationFlags::SHARED | MountPropagationFlags::REC,
    )?;
    std::fs::write(folder.join("ready"), "")?;
    Ok(())
}

fn tmpfs(at: &str) -> rustix::io::Result<()> {
    mount("tmpfs", at, "tmpfs", MountFlags::empty(), c"mode=755")
}
