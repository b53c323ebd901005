//! The driver against `csi-sanity`, the Kubernetes project's test of CSI drivers.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::client::{Client, ClientError};
use super::process::{Process, Scratch};

/// Why the driver did not pass.
#[derive(Debug, thiserror::Error)]
pub enum SanityError {
    #[error("csi-sanity could not be tried")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Array(#[from] ClientError),
    #[error("csi-sanity found faults:\n{0}")]
    Faults(String),
    #[error("mounts are left after csi-sanity: {0}")]
    Left(String),
}

/// Runs `csi-sanity` against the driver and gives its last words. Needs root, FUSE and loop devices.
///
/// `storage` is the binary of this crate. Blocks for a few seconds.
pub fn run(storage: &Path, csi_sanity: &Path) -> Result<String, SanityError> {
    let scratch = Scratch::new("sanity")?;
    let dir = scratch.path();
    let (array, socket) = (dir.join("array.sock"), dir.join("csi.sock"));
    let log = dir.join("log");
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let volumes = text(&dir.join("array"));
    let arguments = ["array", "--socket", &text(&array), "--dir", &volumes];
    let _array = Process::start(storage, arguments, &log)?;
    Client::new(&array).wait_until_up(Duration::from_secs(20))?;
    let arguments = [
        "combined",
        "--socket",
        &text(&socket),
        "--name",
        "sanity",
        "--array",
        &text(&array),
        "--run-dir",
        &text(&dir.join("run")),
        "--published-nodes",
    ];
    let _driver = Process::start(storage, arguments, &log)?;
    wait_for(&socket)?;
    let output = Command::new(csi_sanity)
        .arg(format!("--csi.endpoint={}", text(&socket)))
        .arg(format!("--csi.stagingdir={}", text(&dir.join("staging"))))
        .arg(format!("--csi.mountdir={}", text(&dir.join("mount"))))
        .args(["--csi.testvolumesize=67108864", "--ginkgo.no-color"])
        .stdin(Stdio::null())
        .output()?;
    let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        said.push_str(&String::from_utf8_lossy(&output.stderr));
        said.push_str(&std::fs::read_to_string(&log)?);
        return Err(SanityError::Faults(said));
    }
    match super::mounts::below(dir)?.as_slice() {
        [] => Ok(said.lines().rev().nth(1).unwrap_or(&said).to_owned()),
        left => Err(SanityError::Left(format!("{left:?}"))),
    }
}

fn wait_for(socket: &Path) -> io::Result<()> {
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while std::os::unix::net::UnixStream::connect(socket).is_err() {
        if std::time::Instant::now() > deadline {
            let text = format!("nothing listens on {}", socket.display());
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
