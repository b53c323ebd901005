//! Who talks to the API server, and with what rights. podmon never gets more than its charts grant.

use std::path::Path;

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;

use super::pki::Leaf;
use super::{Context, Error, Result};

/// What a kubeconfig proves its user with.
pub enum Credential<'a> {
    Certificate(&'a Leaf),
    Token(&'a str),
}

/// Writes a kubeconfig (JSON is YAML too).
pub fn write_kubeconfig(
    path: &Path,
    server: &str,
    authority: &Path,
    credential: &Credential,
) -> Result<()> {
    let user = match credential {
        Credential::Certificate(leaf) => {
            json!({"client-certificate": leaf.certificate, "client-key": leaf.key})
        }
        Credential::Token(token) => json!({"token": token}),
    };
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "it",
        "clusters": [{"name": "it", "cluster": {"server": server, "certificate-authority": authority}}],
        "users": [{"name": "it", "user": user}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
    });
    std::fs::write(path, config.to_string()).context(|| format!("write {}", path.display()))
}

/// A client for a kubeconfig. It does not retry by itself: callers wait for conditions instead.
pub async fn client(path: &Path) -> Result<Client> {
    let unusable = |why: String| Error::Kubeconfig {
        path: path.into(),
        why,
    };
    let file = Kubeconfig::read_from(path).map_err(|error| unusable(error.to_string()))?;
    let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .map_err(|error| unusable(error.to_string()))?;
    config.default_retry = false;
    Client::try_from(config).map_err(|error| unusable(error.to_string()))
}

/// The rights of a ServiceAccount: in the whole cluster and in its own namespace.
#[derive(Debug, Clone, Default)]
pub struct Rights {
    pub cluster: Vec<PolicyRule>,
    pub namespace: Vec<PolicyRule>,
}

impl Rights {
    /// What the existing charts grant podmon's controller, and no more.
    pub fn of_controller() -> Self {
        Rights {
            cluster: vec![
                rule("", "nodes", "get list watch patch"),
                rule("", "pods", "get list watch delete"),
                rule("", "persistentvolumes", "get list watch"),
                rule("", "persistentvolumeclaims", "get list watch update"),
                rule(
                    "storage.k8s.io",
                    "volumeattachments",
                    "get list watch patch delete",
                ),
                rule("storage.k8s.io", "csinodes", "get list watch"),
                rule("storage.k8s.io", "storageclasses", "get list watch"),
                rule("", "events", "list watch create update patch"),
            ],
            namespace: vec![
                rule(
                    "coordination.k8s.io",
                    "leases",
                    "get watch list delete update create",
                ),
                rule("", "pods", "update patch"),
                rule("", "secrets", "get list"),
                rule("apps", "replicasets", "get"),
            ],
        }
    }

    /// What the existing charts have in common for podmon on the nodes: no events, no csinodes.
    pub fn of_node() -> Self {
        Rights {
            cluster: vec![
                rule("", "nodes", "get list watch update patch"),
                rule("", "pods", "get list watch"),
                rule("", "persistentvolumes", "get list watch"),
                rule("", "persistentvolumeclaims", "get list watch update"),
                rule("storage.k8s.io", "volumeattachments", "get list watch"),
                rule("storage.k8s.io", "storageclasses", "get list watch"),
            ],
            namespace: vec![rule(
                "coordination.k8s.io",
                "leases",
                "get watch list delete update create",
            )],
        }
    }

    /// Adds what podmon's own chart grants beyond those: without it `status.volumesInUse` stays, and a pod moves only at the
    /// attach-detach controller's next tick.
    pub fn with_node_status(mut self) -> Self {
        self.cluster.push(rule("", "nodes/status", "patch"));
        self
    }
}

/// One rule; `verbs` are separated by spaces.
pub fn rule(group: &str, resource: &str, verbs: &str) -> PolicyRule {
    PolicyRule {
        api_groups: Some(vec![group.into()]),
        resources: Some(vec![resource.into()]),
        verbs: verbs.split(' ').map(Into::into).collect(),
        ..Default::default()
    }
}

/// Creates the ServiceAccount `namespace/name` with exactly these rights and returns a token for it. Calling it again replaces
/// the rights; tokens given out before then have the new ones too.
pub async fn service_account(
    admin: &Client,
    namespace: &str,
    name: &str,
    rights: &Rights,
) -> Result<String> {
    let api = |path: String, body: serde_json::Value| apply(admin, path, body);
    let account =
        json!({"kind": "ServiceAccount", "apiGroup": "", "name": name, "namespace": namespace});
    let namespaces: Api<Namespace> = Api::all(admin.clone());
    let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    namespaces
        .patch(
            namespace,
            &PatchParams::apply("testbed"),
            &Patch::Apply(body),
        )
        .await
        .context(|| format!("create namespace {namespace}"))?;
    let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), namespace);
    let body = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}});
    accounts
        .patch(name, &PatchParams::apply("testbed"), &Patch::Apply(body))
        .await
        .context(|| format!("create ServiceAccount {namespace}/{name}"))?;

    let rbac = "rbac.authorization.k8s.io/v1";
    let wide = format!("{namespace}-{name}");
    api(
        format!("/apis/{rbac}/clusterroles/{wide}"),
        json!({"apiVersion": rbac, "kind": "ClusterRole", "metadata": {"name": wide}, "rules": rights.cluster}),
    )
    .await?;
    api(
        format!("/apis/{rbac}/clusterrolebindings/{wide}"),
        json!({"apiVersion": rbac, "kind": "ClusterRoleBinding", "metadata": {"name": wide}, "subjects": [account],
               "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": wide}}),
    )
    .await?;
    api(
        format!("/apis/{rbac}/namespaces/{namespace}/roles/{name}"),
        json!({"apiVersion": rbac, "kind": "Role", "metadata": {"name": name}, "rules": rights.namespace}),
    )
    .await?;
    api(
        format!("/apis/{rbac}/namespaces/{namespace}/rolebindings/{name}"),
        json!({"apiVersion": rbac, "kind": "RoleBinding", "metadata": {"name": name}, "subjects": [account],
               "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}}),
    )
    .await?;

    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            expiration_seconds: Some(24 * 3600),
            ..Default::default()
        }),
        ..Default::default()
    };
    let answer = accounts
        .create_token_request(name, &PostParams::default(), &request)
        .await
        .context(|| format!("token for {namespace}/{name}"))?;
    answer
        .status
        .and_then(|status| status.token)
        .ok_or_else(|| Error::State(format!("no token in the answer for {namespace}/{name}")))
}

/// A server-side apply by path: creates the object or replaces what an earlier call set.
async fn apply(admin: &Client, path: String, body: serde_json::Value) -> Result<()> {
    let request = http::Request::patch(format!("{path}?fieldManager=testbed&force=true"))
        .header("Content-Type", "application/apply-patch+yaml")
        .body(body.to_string().into_bytes())
        .map_err(|error| Error::State(format!("request for {path}: {error}")))?;
    admin
        .request::<serde_json::Value>(request)
        .await
        .map(drop)
        .context(|| format!("apply {path}"))
}
