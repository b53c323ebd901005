//! Figures: how long podmon takes, on a real API server with a scripted driver. Prints a table; asserts nothing.
//!
//! `figures --kubeconfig FILE --podmon FILE [WORK…]`: with no WORK named, all of them.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Config, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use testbed::scripted::{Driver, Script};

const DRIVER: &str = "csi-vxflexos.dellemc.com";

type Anything = Box<dyn std::error::Error>;

/// One amount of work.
struct Work {
    name: &'static str,
    nodes: usize,
    failing: usize,
    pods_a_node: usize,
    volumes: usize,
    driver: Duration,
}

const WORKS: [Work; 5] = [
    Work {
        name: "one",
        nodes: 2,
        failing: 1,
        pods_a_node: 1,
        volumes: 1,
        driver: Duration::ZERO,
    },
    Work {
        name: "four-volumes",
        nodes: 2,
        failing: 1,
        pods_a_node: 1,
        volumes: 4,
        driver: Duration::ZERO,
    },
    Work {
        name: "42-pods",
        nodes: 3,
        failing: 1,
        pods_a_node: 42,
        volumes: 2,
        driver: Duration::from_millis(200),
    },
    Work {
        name: "100-pods",
        nodes: 3,
        failing: 1,
        pods_a_node: 100,
        volumes: 2,
        driver: Duration::from_millis(200),
    },
    Work {
        name: "30-of-300",
        nodes: 300,
        failing: 30,
        pods_a_node: 33,
        volumes: 1,
        driver: Duration::from_millis(50),
    },
];

/// podmon as a process, ended with its handle.
struct Podmon(Child);

impl Drop for Podmon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::main]
async fn main() -> Result<(), Anything> {
    let mut arguments = std::env::args().skip(1);
    let (mut kubeconfig, mut podmon, mut wanted) = (None, None, Vec::new());
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--kubeconfig" => kubeconfig = arguments.next().map(PathBuf::from),
            "--podmon" => podmon = arguments.next().map(PathBuf::from),
            _ => wanted.push(argument),
        }
    }
    let kubeconfig = kubeconfig.ok_or("--kubeconfig FILE is missing")?;
    let podmon = podmon.ok_or("--podmon FILE is missing")?;
    let file = kube::config::Kubeconfig::read_from(&kubeconfig)?;
    let config = Config::from_custom_kubeconfig(file, &Default::default()).await?;
    let client = Client::try_from(config)?;
    println!("| work | floor | failure visible → every pod gone | mutating requests by podmon |");
    println!("|---|---|---|---|");
    for work in WORKS
        .iter()
        .filter(|w| wanted.is_empty() || wanted.iter().any(|n| n == w.name))
    {
        run(work, &client, &kubeconfig, &podmon).await?;
    }
    Ok(())
}

async fn run(
    work: &Work,
    client: &Client,
    kubeconfig: &PathBuf,
    podmon: &PathBuf,
) -> Result<(), Anything> {
    clear(client).await?;
    let folder = std::env::temp_dir().join(format!("podmon-figures-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let socket = folder.join("csi.sock");
    let _ = std::fs::remove_file(&socket);
    let driver = Driver::new(Script::named(DRIVER));
    driver.direct(|script| {
        script.slow = work.driver;
        script.validate = Ok((false, false));
    });
    let serving = driver.serve(&socket)?;
    build(work, client).await?;
    let settings = folder.join("params.yaml");
    std::fs::write(&settings, "{}\n")?;
    let log = std::fs::File::create(folder.join("podmon.log"))?;
    let child = Command::new(podmon)
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .arg(format!("--csisock={}", socket.display()))
        .arg(format!("--driver-config-params={}", settings.display()))
        .args([
            "--mode=controller",
            "--leaderelection=false",
            "--arrayConnectivityPollRate=600",
        ])
        .env("MY_POD_NAMESPACE", "driver")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()?;
    let _podmon = Podmon(child);
    // Ready when it has polled every node that holds protected pods.
    let holding = work.failing;
    while driver.calls().len() < holding {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let floor = floor(client, &driver).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let started = Instant::now();
    stream::iter(0..work.failing)
        .for_each_concurrent(8, |index| async move {
            if let Err(error) = fail(client, index, work.pods_a_node).await {
                eprintln!("node {index}: {error}");
            }
        })
        .await;
    let visible = started.elapsed();
    loop {
        let left = pods.list_metadata(&ListParams::default().limit(1)).await?;
        if left.items.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let gone = started.elapsed();
    let fences = driver.calls().len();
    println!(
        "| {}: {} pods, {} volumes each, {} nodes, driver {:?} | {:.1} ms | {:.1} ms (making it visible took {:.1}) | {} driver calls |",
        work.name,
        work.failing * work.pods_a_node,
        work.volumes,
        work.failing,
        work.driver,
        floor.as_secs_f64() * 1e3,
        gone.as_secs_f64() * 1e3,
        visible.as_secs_f64() * 1e3,
        fences,
    );
    serving.abort();
    Ok(())
}

/// The shortest sequence of calls that could move one pod with one volume: look, announce, fence, delete.
async fn floor(client: &Client, _driver: &Driver) -> Result<Duration, Anything> {
    let nodes: Api<Node> = Api::all(client.clone());
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), "default");
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let attachments: Api<VolumeAttachment> = Api::all(client.clone());
    pods.create(&PostParams::default(), &from(json!({"apiVersion":"v1","kind":"Pod","metadata":{"name":"floor"},"spec":{"nodeName":"node-1","terminationGracePeriodSeconds":0,"containers":[{"name":"c","image":"i"}]}}))?).await?;
    let claim = claims
        .list(&ListParams::default().limit(1))
        .await?
        .items
        .remove(0);
    let started = Instant::now();
    let node = nodes.get("node-1").await?;
    pods.list(&ListParams::default().fields("spec.nodeName=node-1"))
        .await?;
    claims.get(&claim.name_any()).await?;
    volumes
        .get(&claim.spec.and_then(|s| s.volume_name).unwrap_or_default())
        .await?;
    attachments.list(&ListParams::default().limit(250)).await?;
    let patch = json!({"metadata":{"resourceVersion": node.resource_version(), "annotations":{"floor":"1"}}});
    nodes
        .patch("node-1", &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    pods.delete("floor", &DeleteParams::default().grace_period(0))
        .await?;
    Ok(started.elapsed())
}

async fn fail(client: &Client, index: usize, pods_a_node: usize) -> Result<(), Anything> {
    let nodes: Api<Node> = Api::all(client.clone());
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let name = format!("node-{index}");
    let unknown = json!({"status":{"conditions":[{"type":"Ready","status":"Unknown"}]}});
    nodes
        .patch_status(&name, &PatchParams::default(), &Patch::Merge(unknown))
        .await?;
    let not_ready =
        json!({"status":{"phase":"Running","conditions":[{"type":"Ready","status":"False"}]}});
    for pod in 0..pods_a_node {
        pods.patch_status(
            &format!("pod-{index}-{pod}"),
            &PatchParams::default(),
            &Patch::Merge(not_ready.clone()),
        )
        .await?;
    }
    let taint =
        json!({"spec":{"taints":[{"key":"node.kubernetes.io/unreachable","effect":"NoSchedule"}]}});
    nodes
        .patch(&name, &PatchParams::default(), &Patch::Merge(taint))
        .await?;
    Ok(())
}

fn from<K: DeserializeOwned>(value: Value) -> Result<K, Anything> {
    Ok(serde_json::from_value(value)?)
}

async fn build(work: &Work, client: &Client) -> Result<(), Anything> {
    let create = PostParams::default();
    let patch = PatchParams::default();
    let nodes: Api<Node> = Api::all(client.clone());
    let csi_nodes: Api<CSINode> = Api::all(client.clone());
    let ready = json!({"status":{"conditions":[{"type":"Ready","status":"True"}]}});
    let made = stream::iter(0..work.nodes).map(|index| {
        let (nodes, csi_nodes, create, patch, ready) = (&nodes, &csi_nodes, &create, &patch, &ready);
        async move {
            let name = format!("node-{index}");
            let annotation = json!({DRIVER: format!("id-{index}")}).to_string();
            nodes.create(create, &from(json!({"apiVersion":"v1","kind":"Node","metadata":{"name":name,"annotations":{"csi.volume.kubernetes.io/nodeid":annotation}}}))?).await?;
            nodes.patch_status(&name, patch, &Patch::Merge(ready)).await?;
            csi_nodes.create(create, &from(json!({"apiVersion":"storage.k8s.io/v1","kind":"CSINode","metadata":{"name":name},"spec":{"drivers":[{"name":DRIVER,"nodeID":format!("id-{index}")}]}}))?).await?;
            Ok::<(), Anything>(())
        }
    });
    made.buffer_unordered(8)
        .collect::<Vec<_>>()
        .await
        .into_iter()
        .collect::<Result<(), _>>()?;
    let all = (0..work.failing).flat_map(|node| (0..work.pods_a_node).map(move |pod| (node, pod)));
    let made =
        stream::iter(all).map(|(node, pod)| pod_with_volumes(client, node, pod, work.volumes));
    made.buffer_unordered(8)
        .collect::<Vec<_>>()
        .await
        .into_iter()
        .collect()
}

async fn pod_with_volumes(
    client: &Client,
    node: usize,
    pod: usize,
    volumes: usize,
) -> Result<(), Anything> {
    let create = PostParams::default();
    let patch = PatchParams::default();
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), "default");
    let persistent: Api<PersistentVolume> = Api::all(client.clone());
    let attachments: Api<VolumeAttachment> = Api::all(client.clone());
    let mut sources = Vec::new();
    for volume in 0..volumes {
        let name = format!("v-{node}-{pod}-{volume}");
        let claim = claims.create(&create, &from(json!({"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":name},"spec":{"accessModes":["ReadWriteOnce"],"storageClassName":"s","volumeName":name,"resources":{"requests":{"storage":"1Gi"}}}}))?).await?;
        persistent.create(&create, &from(json!({"apiVersion":"v1","kind":"PersistentVolume","metadata":{"name":name},"spec":{"accessModes":["ReadWriteOnce"],"storageClassName":"s","capacity":{"storage":"1Gi"},"csi":{"driver":DRIVER,"volumeHandle":format!("h-{name}")},"claimRef":{"namespace":"default","name":name,"uid":claim.uid()}}}))?).await?;
        attachments.create(&create, &from(json!({"apiVersion":"storage.k8s.io/v1","kind":"VolumeAttachment","metadata":{"name":name,"annotations":{"csi.alpha.kubernetes.io/node-id":format!("id-{node}")}},"spec":{"attacher":DRIVER,"nodeName":format!("node-{node}"),"source":{"persistentVolumeName":name}}}))?).await?;
        attachments
            .patch_status(
                &name,
                &patch,
                &Patch::Merge(json!({"status":{"attached":true}})),
            )
            .await?;
        sources
            .push(json!({"name":format!("v{volume}"),"persistentVolumeClaim":{"claimName":name}}));
    }
    let name = format!("pod-{node}-{pod}");
    pods.create(&create, &from(json!({"apiVersion":"v1","kind":"Pod","metadata":{"name":name,"labels":{"podmon.dellemc.com/driver":"csi-vxflexos"}},"spec":{"nodeName":format!("node-{node}"),"containers":[{"name":"c","image":"i"}],"volumes":sources}}))?).await?;
    let ready =
        json!({"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}});
    pods.patch_status(&name, &patch, &Patch::Merge(ready))
        .await?;
    Ok(())
}

/// Everything of an earlier work goes.
async fn clear(client: &Client) -> Result<(), Anything> {
    let force = DeleteParams::default().grace_period(0);
    let default = DeleteParams::default();
    let list = ListParams::default();
    Api::<Pod>::namespaced(client.clone(), "default")
        .delete_collection(&force, &list)
        .await?;
    let unprotect = Patch::Merge(json!({"metadata":{"finalizers":null}}));
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), "default");
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    for claim in claims.list(&list).await? {
        claims
            .patch(&claim.name_any(), &PatchParams::default(), &unprotect)
            .await?;
    }
    for volume in volumes.list(&list).await? {
        volumes
            .patch(&volume.name_any(), &PatchParams::default(), &unprotect)
            .await?;
    }
    claims.delete_collection(&default, &list).await?;
    volumes.delete_collection(&default, &list).await?;
    Api::<VolumeAttachment>::all(client.clone())
        .delete_collection(&default, &list)
        .await?;
    Api::<Node>::all(client.clone())
        .delete_collection(&default, &list)
        .await?;
    Api::<CSINode>::all(client.clone())
        .delete_collection(&default, &list)
        .await?;
    Ok(())
}
