//! The testbed itself: nodes are real, and each fault does what it says and heals.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use testbed::real::identity::{self, Rights};
use testbed::real::{Workload, wait_until};

use crate::bench::{Bench, NAMESPACE, PATIENCE, Result, expect, list};

pub async fn are_ready(bench: &mut Bench) -> Result {
    let nodes = list::<Node>(&Api::all(bench.rig.cluster.admin())).await?;
    expect(nodes.len() == 2, "two nodes")?;
    let mut boots = Vec::new();
    for node in bench.rig.cluster.nodes() {
        node.wait_ready().await?;
        boots.push(node.boot_id());
    }
    expect(boots[0] != boots[1], "two machines, two boot ids")
}

pub async fn run_a_pod(bench: &mut Bench) -> Result {
    let pod = bench.sleeper("sleeper", "node1").await?;
    let node = bench.rig.cluster.node("node1");
    expect(
        containers(node)?.contains(&uid(&pod)),
        "the sandbox is on node1",
    )?;
    expect(
        !containers(bench.rig.cluster.node("node2"))?.contains(&uid(&pod)),
        "and not on node2",
    )
}

pub async fn lose_and_regain_the_network(bench: &mut Bench) -> Result {
    let pod = bench.sleeper("sleeper", "node1").await?;
    let node = bench.rig.cluster.node("node1");
    node.cut_network()?;
    node.wait_lost().await?;
    expect(
        containers(node)?.contains(&uid(&pod)),
        "the pod runs on, cut off",
    )?;
    node.mend_network()?;
    node.wait_ready().await
}

pub async fn freeze_and_thaw(bench: &mut Bench) -> Result {
    bench.sleeper("sleeper", "node1").await?;
    let node = bench.rig.cluster.node("node1");
    node.run(
        "ticker",
        "sh",
        &["-c", "while :; do date +%s%N; sleep 0.05; done"],
    )?;
    let log = testbed::real::isolation::logs().join("node1-ticker.log");
    let ticks = || std::fs::read_to_string(&log).map_or(0, |text| text.lines().count());
    wait_until("the ticker ticks", PATIENCE, async || Ok(ticks() > 3)).await?;
    node.freeze().await?;
    let frozen = ticks();
    node.wait_lost().await?;
    expect(ticks() == frozen, "nothing runs in a frozen node")?;
    node.thaw()?;
    wait_until("the ticker ticks on", PATIENCE, async || {
        Ok(ticks() > frozen)
    })
    .await?;
    node.wait_ready().await?;
    node.kill("ticker")
}

pub async fn lose_power_and_reboot(bench: &mut Bench) -> Result {
    bench.sleeper("sleeper", "node1").await?;
    let node = bench.rig.cluster.node("node1");
    let before = node.boot_id();
    node.power_off()?;
    expect(!node.is_on(), "the node is off")?;
    node.wait_lost().await?;
    node.power_on().await?;
    expect(node.boot_id() != before, "a reboot has a new boot id")?;
    let file = node.output("cat", &["/proc/sys/kernel/random/boot_id"])?;
    expect(
        Some(file.trim().to_owned()) == node.boot_id(),
        "which the node sees itself",
    )?;
    node.wait_ready().await?;
    bench.wait_running("sleeper").await.map(drop)
}

pub async fn lose_the_kubelet(bench: &mut Bench) -> Result {
    let pod = bench.sleeper("sleeper", "node1").await?;
    let node = bench.rig.cluster.node("node1");
    node.stop_kubelet()?;
    node.wait_lost().await?;
    expect(
        containers(node)?.contains(&uid(&pod)),
        "the pod runs on without a kubelet",
    )?;
    node.start_kubelet()?;
    node.wait_ready().await
}

pub async fn lose_the_runtime(bench: &mut Bench) -> Result {
    bench.sleeper("sleeper", "node1").await?;
    let node = bench.rig.cluster.node("node1");
    let shims = node.output("pgrep", &["--count", "containerd-shim"])?;
    node.stop_containerd()?;
    expect(containers(node).is_err(), "no answer from a dead runtime")?;
    let left = node.output("pgrep", &["--count", "containerd-shim"])?;
    expect(shims == left, "containers outlive their runtime")?;
    node.start_containerd().await?;
    node.wait_ready().await
}

pub async fn refuse_what_an_identity_may_not(bench: &mut Bench) -> Result {
    let rights = Rights::of_controller();
    let kubeconfig = bench
        .rig
        .cluster
        .service_account("podmon-test", "controller", &rights)
        .await?;
    let nodes: Api<Node> = Api::all(identity::client(&kubeconfig).await?);
    let touch = Patch::Merge(json!({"status": {"volumesInUse": null}}));
    let allowed = nodes.get("node1").await;
    expect(allowed.is_ok(), "the controller reads nodes")?;
    let status = async || {
        nodes
            .patch_status("node1", &PatchParams::default(), &touch)
            .await
    };
    let refused = matches!(status().await, Err(kube::Error::Api(answer)) if answer.code == 403);
    expect(refused, "existing charts do not grant nodes/status")?;
    let rights = rights.with_node_status();
    bench
        .rig
        .cluster
        .service_account("podmon-test", "controller", &rights)
        .await?;
    wait_until("nodes/status is granted", PATIENCE, async || {
        Ok(status().await.is_ok())
    })
    .await
}

/// What the node's runtime knows about containers, labels with pod UIDs included.
fn containers(node: &testbed::real::Node) -> Result<String> {
    let names = node.output(
        "ctr",
        &[
            "--namespace",
            "k8s.io",
            "--timeout",
            "5s",
            "containers",
            "list",
            "--quiet",
        ],
    )?;
    let mut all = String::new();
    for name in names.lines() {
        all += &node.output(
            "ctr",
            &["--namespace", "k8s.io", "containers", "info", name],
        )?;
    }
    Ok(all)
}

fn uid(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap_or_default()
}

pub async fn run_a_stateful_pod(bench: &mut Bench) -> Result {
    let mark = bench.rig.mark()?;
    let workload = Workload::deploy(&bench.rig, NAMESPACE, "plain").await?;
    let running = workload.wait_running(None).await?;
    wait_until("the pod writes to both volumes", PATIENCE, async || {
        let report = bench.rig.report(mark)?;
        let wrote = |volume| {
            report
                .tenures
                .get(volume)
                .is_some_and(|all| all[0].accepted > 10)
        };
        Ok(wrote(&workload.filesystem) && wrote(&workload.block))
    })
    .await?;
    expect(workload.attachments().await?.len() == 2, "two attachments")?;
    expect(running.node.starts_with("node"), "on a node of ours")?;
    workload.remove().await?;
    expect(bench.rig.report(mark)?.is_clean(), "one writer")
}
