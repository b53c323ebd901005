//! The programs of the cluster: built once by Go from the modules in `go/` and kept in the user's cache, or taken from
//! `KUBEBUILDER_ASSETS`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Context, Error, Result, process};

/// One Go module of ours; building it gives one or more programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    Etcd,
    Kube,
    CsiAttacher,
    CsiSanity,
}

impl Tool {
    /// The folder under `go/`.
    fn folder(self) -> &'static str {
        match self {
            Tool::Etcd => "etcd",
            Tool::Kube => "kube",
            Tool::CsiAttacher => "csi-attacher",
            Tool::CsiSanity => "csi-sanity",
        }
    }

    fn programs(self) -> &'static [&'static str] {
        match self {
            Tool::Etcd => &["etcd"],
            Tool::Kube => &[
                "kube-apiserver",
                "kube-controller-manager",
                "kube-scheduler",
                "kubectl",
                "kubelet",
            ],
            Tool::CsiAttacher => &["csi-attacher"],
            Tool::CsiSanity => &["csi-sanity"],
        }
    }
}

/// Where each program is.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Binaries(BTreeMap<String, PathBuf>);

impl Binaries {
    /// Provides the programs of `tools`, building what is neither given nor cached. The first build takes minutes and says so.
    pub fn provide(tools: &[Tool]) -> Result<Self> {
        let assets = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
        let mut found = BTreeMap::new();
        for tool in tools {
            let mut built: Option<PathBuf> = None;
            for &program in tool.programs() {
                let given = assets.as_ref().map(|folder| folder.join(program));
                let path = match given.filter(|path| path.is_file()) {
                    Some(path) => path,
                    None => match &built {
                        Some(folder) => folder.join(program),
                        None => built.insert(build(*tool)?).join(program),
                    },
                };
                found.insert(program.to_owned(), path);
            }
        }
        Ok(Binaries(found))
    }

    /// The path of a program; an error if its tool was not asked for.
    pub fn path(&self, program: &str) -> Result<&Path> {
        self.0
            .get(program)
            .map(PathBuf::as_path)
            .ok_or_else(|| Error::State(format!("{program} was not asked for at the start")))
    }

    /// Adds one of this workspace's own programs.
    pub fn insert(&mut self, program: &str, path: PathBuf) {
        self.0.insert(program.into(), path);
    }
}

/// Builds a tool, unless its binaries are in the cache, and returns their folder.
fn build(tool: Tool) -> Result<PathBuf> {
    let module = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("go")
        .join(tool.folder());
    let read = |file: &str| {
        let path = module.join(file);
        std::fs::read_to_string(&path).context(|| format!("read {}", path.display()))
    };
    let (go_mod, go_sum) = (read("go.mod")?, read("go.sum")?);
    let compiler = process::output_of(go(&module).args(["env", "GOVERSION", "GOARCH"]))?;
    let digest = Sha256::new()
        .chain_update(&go_mod)
        .chain_update(&go_sum)
        .chain_update(&compiler)
        .finalize();
    let key: String = digest.iter().take(8).map(|b| format!("{b:02x}")).collect();
    let cache = cache_folder()?;
    let folder = cache.join(format!("{}-{key}", tool.folder()));
    if folder.is_dir() {
        return Ok(folder);
    }

    // Built beside and renamed, so that an interrupted build is never taken for a finished one.
    let partial = cache.join(format!("{}-{key}.partial", tool.folder()));
    let _ = std::fs::remove_dir_all(&partial);
    std::fs::create_dir_all(&partial).context(|| format!("create {}", partial.display()))?;
    let mut target = partial.clone().into_os_string();
    target.push("/");
    let mut command = go(&module);
    command.args(["build", "-mod=readonly", "-ldflags"]);
    command.arg(linker_flags(tool, &go_mod)?).arg("-o");
    command.arg(target).arg("tool");
    watch(command, tool)?;
    if tool == Tool::Etcd {
        std::fs::rename(partial.join("server"), partial.join("etcd"))
            .context(|| "etcd's module gave no program named `server`".into())?;
    }
    std::fs::rename(&partial, &folder).context(|| format!("create {}", folder.display()))?;
    Ok(folder)
}

fn go(module: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "go"])
        .current_dir(module)
        .envs([
            ("CGO_ENABLED", "0"),
            ("GOTOOLCHAIN", "local"),
            ("GOFLAGS", "-trimpath"),
        ]);
    command
}

fn cache_folder() -> Result<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::home_dir().map(|home| home.join(".cache")))
        .ok_or_else(|| Error::Missing {
            what: "a home directory to keep built programs in".into(),
            remedy: "export XDG_CACHE_HOME=/some/directory".into(),
        })?;
    Ok(base.join("podmon-testbed"))
}

/// Kubernetes takes its version from the linker; without it servers and user agents call themselves `v0.0.0`.
fn linker_flags(tool: Tool, go_mod: &str) -> Result<String> {
    let mut flags = String::from("-s -w");
    if tool != Tool::Kube {
        return Ok(flags);
    }
    let version = go_mod
        .split_whitespace()
        .skip_while(|word| *word != "k8s.io/kubernetes")
        .find(|word| word.starts_with('v'))
        .ok_or_else(|| Error::State("go/kube/go.mod does not require k8s.io/kubernetes".into()))?;
    let mut parts = version.trim_start_matches('v').split('.');
    let (major, minor) = (
        parts.next().unwrap_or_default(),
        parts.next().unwrap_or_default(),
    );
    for package in [
        "k8s.io/component-base/version",
        "k8s.io/client-go/pkg/version",
    ] {
        flags += &format!(
            " -X {package}.gitVersion={version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor} -X {package}.gitTreeState=clean"
        );
    }
    Ok(flags)
}

/// Runs a build and shows that it is alive.
fn watch(mut command: Command, tool: Tool) -> Result<()> {
    let started = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .spawn()
        .context(|| "start go".into())?;
    let mut next = Duration::ZERO;
    loop {
        if let Some(status) = child.try_wait().context(|| "wait for go".into())? {
            if status.success() {
                eprintln!(
                    "built {} in {} s",
                    tool.folder(),
                    started.elapsed().as_secs()
                );
                return Ok(());
            }
            return Err(Error::Command {
                command: format!("go build tool (in go/{})", tool.folder()),
                status,
                output: "see above".into(),
            });
        }
        if started.elapsed() >= next {
            eprintln!(
                "building {} (once, then cached) … {} s",
                tool.folder(),
                started.elapsed().as_secs()
            );
            next += Duration::from_secs(15);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
