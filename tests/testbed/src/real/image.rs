//! Container images made here: one layer with a few programs and the libraries they need, as a docker archive.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use serde_json::json;
use sha2::{Digest, Sha256};

use super::{Context, Result, process};

/// An image to be made.
#[derive(Debug, Clone)]
pub struct Image {
    /// Full name with tag, such as `docker.io/local/pause:1`.
    pub name: String,
    /// Programs, each put into `/bin`.
    pub programs: Vec<PathBuf>,
    pub entrypoint: Vec<String>,
}

impl Image {
    /// The image of pod sandboxes and of pods that only have to be there: a static busybox that sleeps.
    pub fn pause() -> Self {
        Image {
            name: "docker.io/local/pause:1".into(),
            programs: vec!["/bin/busybox".into()],
            entrypoint: ["/bin/busybox", "sleep", "2000000000"]
                .map(String::from)
                .to_vec(),
        }
    }

    /// Writes the archive that `ctr images import` reads.
    pub fn write(&self, archive: &Path) -> Result<()> {
        let layer = self.layer()?;
        let config = json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
            "os": "linux",
            "config": {"Env": ["PATH=/bin"], "Entrypoint": self.entrypoint},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", hex(&layer))]},
        })
        .to_string();
        let config_name = format!("{}.json", hex(config.as_bytes()));
        let manifest =
            json!([{"Config": config_name, "RepoTags": [self.name], "Layers": ["layer.tar"]}])
                .to_string();
        let file = File::create(archive).context(|| format!("create {}", archive.display()))?;
        let mut tar = tar::Builder::new(file);
        for (name, content) in [
            (config_name.as_str(), config.as_bytes()),
            ("layer.tar", &layer),
            ("manifest.json", manifest.as_bytes()),
        ] {
            append(&mut tar, name, content).context(|| format!("write {}", archive.display()))?;
        }
        tar.finish()
            .context(|| format!("write {}", archive.display()))
    }

    fn layer(&self) -> Result<Vec<u8>> {
        let mut files: BTreeSet<(PathBuf, PathBuf)> = BTreeSet::new();
        for program in &self.programs {
            let name = program.file_name().unwrap_or(program.as_os_str());
            files.insert((Path::new("bin").join(name), program.clone()));
            for library in libraries(program) {
                let inside = library.strip_prefix("/").unwrap_or(&library);
                files.insert((inside.to_path_buf(), library.clone()));
            }
        }
        let mut tar = tar::Builder::new(Vec::new());
        let written = ["tmp", "data", "proc", "sys", "dev", "etc"]
            .into_iter()
            .try_for_each(|folder| {
                let mut header = tar::Header::new_gnu();
                header.set_entry_type(tar::EntryType::Directory);
                header.set_mode(0o755);
                header.set_size(0);
                tar.append_data(&mut header, folder, std::io::empty())
            });
        written.context(|| format!("layer of {}", self.name))?;
        for (inside, outside) in files {
            let content =
                std::fs::read(&outside).context(|| format!("read {}", outside.display()))?;
            append(&mut tar, &inside, &content).context(|| format!("layer of {}", self.name))?;
        }
        tar.into_inner()
            .context(|| format!("layer of {}", self.name))
    }
}

fn append<W: std::io::Write>(
    tar: &mut tar::Builder<W>,
    name: impl AsRef<Path>,
    content: &[u8],
) -> std::io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o755);
    header.set_size(content.len() as u64);
    tar.append_data(&mut header, name, content)
}

/// The shared libraries and the loader of a program; none if it is static.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let listed = process::output("ldd", &[&program.to_string_lossy()]).unwrap_or_default();
    listed
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_program_brings_its_loader() {
        let own = std::env::current_exe().expect("this program has a path");
        let libraries = libraries(&own);
        assert!(
            libraries
                .iter()
                .any(|path| path.to_string_lossy().contains("ld-linux")),
            "{libraries:?}"
        );
    }
}
