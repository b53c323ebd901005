//! The embedded API server against the list of behaviours it shares with the real one.

use testbed::embedded::api::Server;
use testbed::embedded::fidelity;

/// Runs the list; the names of checks that failed come with what differed.
async fn failures(client: &kube::Client, prefix: &str) -> Vec<String> {
    let mut failures = Vec::new();
    for check in fidelity::all() {
        if let Err(difference) = check.run(client.clone(), prefix).await {
            failures.push(format!("{}: {difference}", check.name));
        }
    }
    failures
}

#[tokio::test(start_paused = true)]
async fn embedded_server_behaves_like_the_real_one() {
    let start = "2026-01-01T00:00:00Z".parse().expect("a timestamp");
    let server = Server::new(start, 1);
    let failures = failures(&server.client("fidelity"), "fid").await;
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The same list against a bare kube-apiserver: `FIDELITY_KUBECONFIG=… cargo test -p testbed --test fidelity -- --ignored`.
#[tokio::test]
#[ignore = "needs a bare kube-apiserver"]
async fn real_server_passes_the_same_list() {
    let path =
        std::env::var("FIDELITY_KUBECONFIG").expect("FIDELITY_KUBECONFIG names a kubeconfig");
    let kubeconfig = kube::config::Kubeconfig::read_from(path).expect("a readable kubeconfig");
    let config = kube::Config::from_custom_kubeconfig(
        kubeconfig,
        &kube::config::KubeConfigOptions::default(),
    )
    .await
    .expect("a usable kubeconfig");
    let client = kube::Client::try_from(config).expect("a client");
    let prefix = format!("fid{}", std::process::id());
    let failures = failures(&client, &prefix).await;
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[tokio::test]
async fn serves_over_tcp_too() {
    use k8s_openapi::api::core::v1::{Namespace, Node};
    let server = Server::new(jiff::Timestamp::now(), 1);
    let port = server
        .listen(([127, 0, 0, 1], 0).into())
        .await
        .expect("a port");
    let url = format!("http://{}", port.address()).parse().expect("a URL");
    let client = kube::Client::try_from(kube::Config::new(url)).expect("a client");
    let namespaces = kube::Api::<Namespace>::all(client.clone())
        .list(&kube::api::ListParams::default())
        .await
        .expect("namespaces");
    assert!(
        namespaces
            .items
            .iter()
            .any(|namespace| namespace.metadata.name.as_deref() == Some("default"))
    );
    let missing = kube::Api::<Node>::all(client)
        .get_opt("none")
        .await
        .expect("an answer");
    assert!(missing.is_none());
}
