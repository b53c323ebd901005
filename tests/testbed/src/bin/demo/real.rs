//! The failover on real components: control plane, two nodes with kubelet and containerd, file systems, and an array
//! that really fences.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, PostParams};
use testbed::real::binaries::Tool;
use testbed::real::identity::Rights;
use testbed::real::rig::{DriverOptions, TAINT};
use testbed::real::workload::{Running, Workload};
use testbed::real::{Binaries, Error, Node, Rig, isolation, wait_until};

use super::Failure;
use super::timeline::Timeline;

type Result<T> = std::result::Result<T, Error>;

const NAMESPACE: &str = "demo";
/// How long anything may take that normally takes seconds.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long the fault lasts once the pod runs elsewhere.
const LASTS: Duration = Duration::from_secs(5);
/// Records that show that a pod is at work.
const AT_WORK: u64 = 20;

/// Success if the pod moved, the node came back, and the ledger is clean. To be called before any thread is started.
pub fn show(failure: Failure) -> ExitCode {
    isolation::enter(&[Tool::Etcd, Tool::Kube, Tool::CsiAttacher], |binaries| {
        let runtime = tokio::runtime::Runtime::new();
        let shown = runtime
            .map_err(|error| error.to_string())
            .and_then(|runtime| {
                let shown = runtime.block_on(failover(failure, binaries));
                shown.map_err(|error| error.to_string())
            });
        match shown {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        }
    })
}

async fn failover(failure: Failure, binaries: Binaries) -> Result<bool> {
    println!("Starting a control plane, two nodes and an array …");
    let mut rig = Rig::start(binaries, 2, &[], &[]).await?;
    // With the extension the array would see a pod that writes on, and podmon would leave it alone.
    let options = DriverOptions {
        extension: false,
        ..DriverOptions::default()
    };
    rig.set_driver(options).await?;
    make_namespace(&rig).await?;
    let rights = Rights::of_controller().with_node_status();
    let kubeconfig = rig.controller_kubeconfig(&rights).await?;
    rig.start_controller("controller-0", &kubeconfig)?;
    let mark = rig.mark()?;
    let workload = Workload::deploy(&rig, NAMESPACE, "db").await?;
    let before = workload.wait_running(None).await?;
    wait_writing(&rig, &workload, mark, &before.node).await?;
    let node = rig.cluster.node(&before.node);
    let name = node.name();
    println!(
        "StatefulSet pod {} runs on {name}, with a file system and a raw block volume.\n",
        workload.pod_name()
    );

    let began = Instant::now();
    let timeline = Timeline::from(Duration::ZERO);
    let tell = |what: &str| timeline.tell(began.elapsed(), what);
    tell(&format!("{name} {}", failure.meaning()));
    match failure {
        Failure::Network => node.cut_network()?,
        Failure::Freeze => node.freeze().await?,
        Failure::Power => node.power_off()?,
        Failure::Kubelet => node.stop_kubelet()?,
    }
    node.wait_lost().await?;
    tell(&format!("{name} is NotReady"));
    let announced = async {
        wait_until("the node is tainted", PATIENCE, async || {
            is_tainted(node).await
        })
        .await?;
        tell("podmon announces the evacuation: taint and journal on the node");
        Ok::<(), Error>(())
    };
    let fenced = async {
        wait_until("both volumes are fenced", PATIENCE, async || {
            let report = rig.report(mark)?;
            let volumes = [&workload.filesystem, &workload.block];
            Ok(volumes.into_iter().all(|volume| {
                let mut tenures = report.tenures.get(volume).into_iter().flatten();
                tenures.any(|t| t.node.as_str() == before.node && t.revoked.is_some())
            }))
        })
        .await?;
        tell("podmon has fenced both volumes at the array");
        Ok(())
    };
    let deleted = async {
        wait_until("the pod is deleted", PATIENCE, async || {
            let uid = workload.pod().await?.and_then(|pod| pod.metadata.uid);
            Ok(uid.as_ref() != Some(&before.uid))
        })
        .await?;
        tell("podmon has deleted the pod");
        Ok(())
    };
    let detached = async {
        wait_until(
            "nothing is attached to the lost node",
            PATIENCE,
            async || {
                let attachments = workload.attachments().await?;
                Ok(attachments.iter().all(|a| a.spec.node_name != before.node))
            },
        )
        .await?;
        tell("the volumes are detached from the lost node");
        Ok(())
    };
    let moved = async {
        let running = workload.wait_running(Some(&before)).await?;
        tell(&format!("a new pod runs on {}", running.node));
        Ok(running)
    };
    let ((), (), (), (), after): ((), (), (), (), Running) =
        futures::try_join!(announced, fenced, deleted, detached, moved)?;
    wait_writing(&rig, &workload, mark, &after.node).await?;
    tokio::time::sleep(LASTS).await;

    tell(&format!("{name} comes back"));
    node.heal().await?;
    node.wait_ready().await?;
    tell(&format!("{name} is Ready"));
    wait_until("the old pod is gone from the node", PATIENCE, async || {
        let mounts = node.output("cat", &["/proc/mounts"])?;
        let containers = node.output("ctr", &["--namespace", "k8s.io", "containers", "list"])?;
        Ok(!mounts.contains(&before.uid) && !containers.contains(&before.uid))
    })
    .await?;
    tell("the old pod is gone from the node: no process, no mount");
    wait_until("the taint is lifted", PATIENCE, async || {
        Ok(!is_tainted(node).await?)
    })
    .await?;
    tell("podmon has lifted taint and journal: the node is in use again");

    let report = rig.report(mark)?;
    println!("\n{report}");
    if report.is_clean() {
        println!("Ledger: no volume ever had two writers. The promise was kept.");
    }
    Ok(report.is_clean())
}

async fn make_namespace(rig: &Rig) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(rig.cluster.admin());
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(NAMESPACE.into());
    let made = namespaces.create(&PostParams::default(), &namespace).await;
    made.map_err(|source| Error::Api {
        what: format!("namespace {NAMESPACE}"),
        source: Box::new(source),
    })?;
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> =
        Api::namespaced(rig.cluster.admin(), NAMESPACE);
    wait_until(
        "the namespace has its ServiceAccount",
        PATIENCE,
        async || Ok(matches!(accounts.get_opt("default").await, Ok(Some(_)))),
    )
    .await
}

async fn wait_writing(rig: &Rig, workload: &Workload, mark: u64, node: &str) -> Result<()> {
    wait_until(format!("{node} writes"), PATIENCE, async || {
        let report = rig.report(mark)?;
        let volumes = [&workload.filesystem, &workload.block];
        Ok(volumes.into_iter().all(|volume| {
            let tenures = report.tenures.get(volume).into_iter().flatten();
            tenures
                .filter(|tenure| tenure.node.as_str() == node)
                .any(|tenure| tenure.accepted > AT_WORK)
        }))
    })
    .await
}

async fn is_tainted(node: &Node) -> Result<bool> {
    let object = node.object().await?;
    let taints = object.spec.and_then(|spec| spec.taints).unwrap_or_default();
    Ok(taints.iter().any(|taint| taint.key == TAINT))
}
