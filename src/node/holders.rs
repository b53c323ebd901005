//! Which processes keep a mount busy, as far as this container's view of processes goes: for the message only.

use std::fs;
use std::path::Path;

/// Processes that a message names at most.
const NAMED: usize = 5;

/// Processes with their working directory, root or an open file at or below `path`, as `name (pid)`.
pub fn of(proc: &Path, path: &Path) -> Vec<String> {
    let processes = fs::read_dir(proc).into_iter().flatten().flatten();
    let numbered = processes.filter_map(|entry| {
        let pid = entry.file_name().into_string().ok()?;
        pid.bytes().all(|byte| byte.is_ascii_digit()).then_some(pid)
    });
    let holding = numbered.filter(|pid| holds(&proc.join(pid), path));
    let named = holding.map(|pid| {
        let name = fs::read_to_string(proc.join(&pid).join("comm")).unwrap_or_default();
        format!("{} ({pid})", name.trim_end())
    });
    named.take(NAMED).collect()
}

fn holds(process: &Path, path: &Path) -> bool {
    let leads_there = |link: &Path| fs::read_link(link).is_ok_and(|to| to.starts_with(path));
    let files = fs::read_dir(process.join("fd"))
        .into_iter()
        .flatten()
        .flatten();
    ["cwd", "root"]
        .iter()
        .any(|name| leads_there(&process.join(name)))
        || files.into_iter().any(|file| leads_there(&file.path()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_holder() {
        let base = std::env::temp_dir().join(format!("podmon-holders-{}", std::process::id()));
        fs::create_dir_all(&base).unwrap();
        let base = fs::canonicalize(base).unwrap();
        assert!(of(Path::new("/proc"), &base).is_empty());
        let held = fs::File::create(base.join("held")).unwrap();
        let holders = of(Path::new("/proc"), &base);
        let us = format!("({})", std::process::id());
        assert!(
            holders.iter().any(|holder| holder.ends_with(&us)),
            "{holders:?}"
        );
        drop(held);
        fs::remove_dir_all(&base).unwrap();
    }
}
