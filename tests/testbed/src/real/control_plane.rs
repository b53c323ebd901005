//! etcd, kube-apiserver, kube-controller-manager and kube-scheduler, with a fast failure profile.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Client;
use kube::api::Api;

use super::binaries::Binaries;
use super::identity::{self, Credential};
use super::pki::Pki;
use super::process::{self, Process};
use super::wait::Seen;
use super::{Result, wait_until};

/// The control plane's address on the bridge that connects the nodes.
pub const ADDRESS: &str = "10.99.0.1";

/// The bridge in the cluster's network namespace.
pub const BRIDGE: &str = "br0";

/// Generous, since a shared machine may be slow; nothing waits longer than it has to.
const READY: Duration = Duration::from_secs(120);

/// The four processes and the administrator's access.
pub struct ControlPlane {
    folder: PathBuf,
    logs: PathBuf,
    binaries: Binaries,
    admin: Client,
    etcd: Process,
    apiserver: Process,
    controller_manager: Process,
    scheduler: Process,
}

impl ControlPlane {
    /// Starts all four and waits until pods can be created.
    pub async fn start(
        binaries: &Binaries,
        pki: &Pki,
        folder: &Path,
        logs: &Path,
        controller_manager_flags: &[String],
    ) -> Result<Self> {
        network()?;
        for user in ["system:kube-controller-manager", "system:kube-scheduler"] {
            let file = user.trim_start_matches("system:kube-");
            let leaf = pki.issue(file, user, None, &[])?;
            write_kubeconfig(folder, file, pki, &Credential::Certificate(&leaf))?;
        }
        let leaf = pki.issue("admin", "admin", Some("system:masters"), &[])?;
        write_kubeconfig(folder, "admin", pki, &Credential::Certificate(&leaf))?;

        let mut etcd = etcd(binaries, folder, logs)?;
        wait_until("etcd answers", READY, async || {
            etcd.check()?;
            Ok(TcpStream::connect("127.0.0.1:2379").is_ok())
        })
        .await?;
        let mut apiserver = apiserver(binaries, pki, logs)?;
        let admin = identity::client(&kubeconfig(folder, "admin")).await?;
        wait_until("the API server is ready", READY, async || {
            apiserver.check()?;
            let request = http::Request::get("/readyz").body(Vec::new());
            let Ok(request) = request else {
                return Ok(Seen::NotYet("no request".into()));
            };
            Ok(match admin.request_text(request).await {
                Ok(answer) if answer == "ok" => Seen::Yes(()),
                Ok(answer) => Seen::NotYet(answer),
                Err(error) => Seen::NotYet(error.to_string()),
            })
        })
        .await?;
        let mut controller_manager =
            start_controller_manager(binaries, folder, logs, controller_manager_flags)?;
        let scheduler = start_scheduler(binaries, folder, logs)?;
        let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), "default");
        wait_until("the default ServiceAccount exists", READY, async || {
            controller_manager.check()?;
            Ok(matches!(accounts.get_opt("default").await, Ok(Some(_))))
        })
        .await?;
        Ok(ControlPlane {
            folder: folder.into(),
            logs: logs.into(),
            binaries: binaries.clone(),
            admin,
            etcd,
            apiserver,
            controller_manager,
            scheduler,
        })
    }

    /// A client with all rights, for tests; podmon never gets it.
    pub fn admin(&self) -> &Client {
        &self.admin
    }

    /// Stops the controller manager and starts it with `flags` after the usual ones (the last of a kind counts), for example
    /// `--attach-detach-reconcile-sync-period=10s`.
    pub async fn restart_controller_manager(&mut self, flags: &[String]) -> Result<()> {
        self.controller_manager.stop(Duration::from_secs(10)).await;
        self.controller_manager =
            start_controller_manager(&self.binaries, &self.folder, &self.logs, flags)?;
        Ok(())
    }

    /// Fails when one of the four has ended.
    pub fn check(&mut self) -> Result<()> {
        self.etcd.check()?;
        self.apiserver.check()?;
        self.controller_manager.check()?;
        self.scheduler.check()
    }
}

/// The URL of the API server.
pub fn server() -> String {
    format!("https://{ADDRESS}:6443")
}

/// The file of an identity's kubeconfig.
pub fn kubeconfig(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.kubeconfig"))
}

/// Writes the kubeconfig of an identity and returns its path.
pub fn write_kubeconfig(
    folder: &Path,
    name: &str,
    pki: &Pki,
    credential: &Credential,
) -> Result<PathBuf> {
    let path = kubeconfig(folder, name);
    identity::write_kubeconfig(&path, &server(), &pki.authority_file(), credential)?;
    Ok(path)
}

fn network() -> Result<()> {
    let cidr = format!("{ADDRESS}/24");
    for arguments in [
        &["link", "set", "lo", "up"][..],
        &["link", "add", BRIDGE, "type", "bridge"],
        &["address", "add", &cidr, "dev", BRIDGE],
        &["link", "set", BRIDGE, "up"],
    ] {
        process::output("ip", arguments)?;
    }
    Ok(())
}

fn etcd(binaries: &Binaries, folder: &Path, logs: &Path) -> Result<Process> {
    let mut command = Command::new(binaries.path("etcd")?);
    command.arg("--data-dir").arg(folder.join("etcd")).args([
        "--listen-client-urls=http://127.0.0.1:2379",
        "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--initial-advertise-peer-urls=http://127.0.0.1:2380",
        "--initial-cluster=default=http://127.0.0.1:2380",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]);
    Process::start("etcd", command, logs)
}

fn apiserver(binaries: &Binaries, pki: &Pki, logs: &Path) -> Result<Process> {
    let serving = pki.issue(
        "apiserver",
        "kube-apiserver",
        None,
        &[
            ADDRESS,
            "127.0.0.1",
            "10.0.0.1",
            "localhost",
            "kubernetes.default.svc",
        ],
    )?;
    let to_kubelets = pki.issue(
        "apiserver-to-kubelets",
        "kube-apiserver-kubelet-client",
        Some("system:masters"),
        &[],
    )?;
    let authority = pki.authority_file();
    let mut command = Command::new(binaries.path("kube-apiserver")?);
    for (flag, file) in [
        ("tls-cert-file", &serving.certificate),
        ("tls-private-key-file", &serving.key),
        ("client-ca-file", &authority),
        ("kubelet-client-certificate", &to_kubelets.certificate),
        ("kubelet-client-key", &to_kubelets.key),
        ("kubelet-certificate-authority", &authority),
        (
            "service-account-key-file",
            &pki.service_account_public_key(),
        ),
        (
            "service-account-signing-key-file",
            &pki.service_account_key(),
        ),
    ] {
        command.arg(format!("--{flag}={}", file.display()));
    }
    command.args([
        "--etcd-servers=http://127.0.0.1:2379",
        &format!("--bind-address={ADDRESS}"),
        &format!("--advertise-address={ADDRESS}"),
        "--secure-port=6443",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--anonymous-auth=false",
        "--allow-privileged=true",
        "--endpoint-reconciler-type=none",
        "--kubelet-preferred-address-types=InternalIP,Hostname",
        "--profiling=false",
    ]);
    Process::start("kube-apiserver", command, logs)
}

fn start_controller_manager(
    binaries: &Binaries,
    folder: &Path,
    logs: &Path,
    flags: &[String],
) -> Result<Process> {
    let mut command = with_kubeconfig(binaries, "kube-controller-manager", folder)?;
    command
        .arg(format!("--service-account-private-key-file={}", folder.join("pki/sa.key").display()))
        .arg(format!("--root-ca-file={}", folder.join("pki/ca.crt").display()))
        .args([
            "--use-service-account-credentials=true",
            "--controllers=*,-bootstrap-signer-controller,-token-cleaner-controller,-horizontal-pod-autoscaler-controller,-cronjob-controller,-certificatesigningrequest-signing-controller",
            // A node counts as lost after three seconds without a lease, not after forty.
            "--node-monitor-period=500ms",
            "--node-monitor-grace-period=3s",
            "--node-startup-grace-period=10s",
            "--pvclaimbinder-sync-period=2s",
        ])
        .args(flags);
    Process::start("kube-controller-manager", command, logs)
}

fn start_scheduler(binaries: &Binaries, folder: &Path, logs: &Path) -> Result<Process> {
    let command = with_kubeconfig(binaries, "kube-scheduler", folder)?;
    Process::start("kube-scheduler", command, logs)
}

fn with_kubeconfig(binaries: &Binaries, program: &str, folder: &Path) -> Result<Command> {
    let file = kubeconfig(folder, program.trim_start_matches("kube-"));
    let mut command = Command::new(binaries.path(program)?);
    for flag in [
        "kubeconfig",
        "authentication-kubeconfig",
        "authorization-kubeconfig",
    ] {
        command.arg(format!("--{flag}={}", file.display()));
    }
    command.args([
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
    ]);
    Ok(command)
}
