//! The connections that both halves start with: the API server's client, and a driver that answers.

use std::path::Path;
use std::time::Duration;

use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::csi::Driver;
use crate::domain::DriverName;

/// How long one attempt to reach the driver may take.
const ATTEMPT: Duration = Duration::from_secs(10);
/// Waiting time between attempts: doubled from the first to the last.
const AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// How long a connection to the API server may take to be made.
const CONNECT: Duration = Duration::from_secs(5);

/// Why there is no client for the API server. That it does not answer is none: it may later.
#[derive(thiserror::Error, Debug)]
pub enum ClientError {
    #[error("kubernetes connection error: --kubeconfig={path}: {source}")]
    Kubeconfig {
        path: String,
        source: Box<kube::config::KubeconfigError>,
    },
    #[error("kubernetes connection error: not in a cluster, and no --kubeconfig is given: {0}")]
    InCluster(#[from] kube::config::InClusterError),
    #[error("kubernetes connection error: {0}")]
    Client(Box<kube::Error>),
}

/// How to reach the API server: by a kubeconfig file, or as a pod of the cluster.
pub async fn api_server(kubeconfig: Option<&Path>) -> Result<Config, ClientError> {
    let mut config = match kubeconfig {
        Some(path) => {
            let broken = |source| ClientError::Kubeconfig {
                path: path.display().to_string(),
                source: Box::new(source),
            };
            let file = Kubeconfig::read_from(path).map_err(broken)?;
            let options = KubeConfigOptions::default();
            Config::from_custom_kubeconfig(file, &options)
                .await
                .map_err(broken)?
        }
        None => Config::incluster()?,
    };
    // A repeated write must be decided anew, not sent again.
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT);
    Ok(config)
}

/// A client of its own for this configuration.
pub fn client(config: &Config) -> Result<kube::Client, ClientError> {
    kube::Client::try_from(config.clone()).map_err(|error| ClientError::Client(Box::new(error)))
}

/// Waits until the driver tells its name, however long that takes: sidecars start in no order.
pub async fn driver_name(driver: &Driver, socket: &Path) -> DriverName {
    let mut wait = AGAIN.0;
    let mut said = String::new();
    tracing::info!("Attempting driver connection at: {}", socket.display());
    loop {
        match driver.name(ATTEMPT).await {
            Ok(name) => {
                tracing::info!(driver = %name, "Connected to driver: {}", socket.display());
                return name;
            }
            Err(error) => {
                let text = error.to_string();
                if said != text {
                    tracing::warn!(socket = %socket.display(), error = text, "The driver does not answer; trying again");
                    said = text;
                }
            }
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(AGAIN.1);
    }
}
