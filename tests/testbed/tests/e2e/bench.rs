//! The cluster with what scenarios need around it, and the clean slate between them.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use testbed::real::rig::{self, DriverOptions, JOURNAL, TAINT, array_error};
use testbed::real::wait::Seen;
use testbed::real::{Binaries, Error, Rig, wait_until};
use testbed::storage::{NodeId, Path};

pub type Result<T = ()> = std::result::Result<T, Error>;

/// How long anything may take that normally takes seconds.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The namespace that scenarios work in.
pub const NAMESPACE: &str = "scenario";

/// The lease of podmon's controllers.
const LEASE: &str = "podmon-1";

pub struct Bench {
    pub rig: Rig,
}

impl Bench {
    pub async fn start(binaries: Binaries) -> Result<Self> {
        let started = Instant::now();
        let rig = Rig::start(binaries, 2, &[], &[]).await?;
        println!("cluster ready in {:.1} s", started.elapsed().as_secs_f64());
        let mut bench = Bench { rig };
        bench.make_namespace().await?;
        Ok(bench)
    }

    /// Ends all faults and removes what a scenario left.
    pub async fn reset(&mut self) -> Result {
        for node in self.rig.cluster.nodes() {
            let id = node.name().parse::<NodeId>();
            let id = id.map_err(|error| Error::State(format!("node id: {error}")))?;
            self.rig
                .array
                .set_path(&id, Path::Up)
                .map_err(array_error)?;
            node.heal().await?;
        }
        for node in self.rig.cluster.nodes() {
            node.wait_ready().await?;
        }
        self.rig.kill_controllers();
        self.rig.array.clear_rules().map_err(array_error)?;
        self.rig.set_driver(DriverOptions::default()).await?;
        // So that the next controller need not wait for the end of a dead one's term.
        let leases: Api<Lease> = Api::namespaced(self.rig.cluster.admin(), rig::NAMESPACE);
        let _ = leases.delete(LEASE, &DeleteParams::default()).await;
        self.clear_marks().await?;
        let namespaces: Api<Namespace> = Api::all(self.rig.cluster.admin());
        let pods = self.pods();
        for pod in list(&pods).await? {
            let name = pod.metadata.name.unwrap_or_default();
            let _ = pods
                .delete(&name, &DeleteParams::default().grace_period(0))
                .await;
        }
        let _ = namespaces.delete(NAMESPACE, &DeleteParams::default()).await;
        wait_until("the namespace is gone", PATIENCE, async || {
            api(namespaces.get_opt(NAMESPACE).await).map(|found| found.is_none())
        })
        .await?;
        self.make_namespace().await
    }

    /// Takes podmon's taint and journal off every node, as an operator who vouches for it may.
    async fn clear_marks(&self) -> Result {
        let nodes: Api<Node> = Api::all(self.rig.cluster.admin());
        for node in list(&nodes).await? {
            let name = node.metadata.name.unwrap_or_default();
            let mut taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
            let annotated = node
                .metadata
                .annotations
                .is_some_and(|all| all.contains_key(JOURNAL));
            let before = taints.len();
            taints.retain(|taint| taint.key != TAINT);
            if annotated || taints.len() != before {
                let patch = json!({
                    "metadata": {"annotations": {JOURNAL: null}}, "spec": {"taints": taints},
                });
                api(nodes
                    .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
                    .await)?;
            }
        }
        Ok(())
    }

    async fn make_namespace(&mut self) -> Result {
        let body = json!({"metadata": {"name": NAMESPACE}});
        create::<Namespace>(&Api::all(self.rig.cluster.admin()), body).await?;
        let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> =
            Api::namespaced(self.rig.cluster.admin(), NAMESPACE);
        wait_until(
            "the namespace has its ServiceAccount",
            PATIENCE,
            async || api(accounts.get_opt("default").await).map(|found| found.is_some()),
        )
        .await
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.rig.cluster.admin(), NAMESPACE)
    }

    /// Creates a pod that only sleeps, bound to a node, and waits until it runs.
    pub async fn sleeper(&self, name: &str, node: &str) -> Result<Pod> {
        let body = json!({
            "metadata": {"name": name},
            "spec": {
                "nodeName": node, "terminationGracePeriodSeconds": 0,
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "it", "image": "docker.io/local/pause:1", "imagePullPolicy": "Never"}],
            },
        });
        create(&self.pods(), body).await?;
        self.wait_running(name).await
    }

    pub async fn wait_running(&self, name: &str) -> Result<Pod> {
        wait_until(format!("pod {name} runs"), PATIENCE, async || {
            let pod = api(self.pods().get(name).await)?;
            let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
            Ok(match phase.as_deref() {
                Some("Running") => Seen::Yes(pod),
                other => Seen::NotYet(format!("{other:?}")),
            })
        })
        .await
    }
}

/// An API call's answer with our error.
pub fn api<T>(answer: kube::Result<T>) -> Result<T> {
    answer.map_err(|source| Error::Api {
        what: "a call of the scenario".into(),
        source: Box::new(source),
    })
}

pub async fn list<T>(of: &Api<T>) -> Result<Vec<T>>
where
    T: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    api(of.list(&ListParams::default()).await).map(|list| list.items)
}

pub async fn create<T>(of: &Api<T>, body: serde_json::Value) -> Result<T>
where
    T: Clone + std::fmt::Debug + serde::de::DeserializeOwned + serde::Serialize,
{
    let object = serde_json::from_value(body)
        .map_err(|error| Error::State(format!("object of the scenario: {error}")))?;
    api(of.create(&PostParams::default(), &object).await)
}

/// Fails the scenario unless `holds`.
pub fn expect(holds: bool, what: &str) -> Result {
    if holds {
        Ok(())
    } else {
        Err(Error::State(format!("expected: {what}")))
    }
}
