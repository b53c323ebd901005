//! The container runtimes of the host: which sandboxes and containers of which incarnation are alive, now.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::domain::{PodKey, PodUid};
use crate::proto::cri::runtime_service_client::RuntimeServiceClient;
use crate::proto::cri::{
    Container, ContainerState, ListContainersRequest, ListPodSandboxRequest, PodSandbox,
    PodSandboxState, StopContainerRequest,
};

/// Where runtimes listen: the contract's places in its order, then the same ones in an image where `/var/run` does
/// not lead to `/run`, then other runtimes'.
pub const SOCKETS: [&str; 9] = [
    "/var/run/dockershim.sock",
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/var/run/containerd/containerd.sock",
    "/var/run/crio/crio.sock",
    "/run/cri-dockerd.sock",
    "/var/run/cri-dockerd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/var/run/k3s/containerd/containerd.sock",
];

/// The kubelet's own limit for an answer.
const LARGEST_ANSWER: usize = 16 * 1024 * 1024;

/// Labels that the kubelet puts on sandboxes and containers.
const POD_UID: &str = "io.kubernetes.pod.uid";
const POD_NAME: &str = "io.kubernetes.pod.name";
const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
const CONTAINER_NAME: &str = "io.kubernetes.container.name";
/// Where the kubelet got a pod from: `api`, or for a static pod `file` or `http`.
const SOURCE: &str = "kubernetes.io/config.source";

/// A runtime that did not tell. What it runs is unknown, which is not nothing.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum RuntimeError {
    #[error("no socket of a container runtime found; looked for {looked}")]
    NoSocket { looked: String },
    #[error("{}: {why}", socket.display())]
    Socket { socket: PathBuf, why: String },
    #[error("{}: {call}: no answer within {within:?}", socket.display())]
    Deadline {
        socket: PathBuf,
        call: &'static str,
        within: Duration,
    },
    #[error("{}: {call}: {why}", socket.display())]
    Refused {
        socket: PathBuf,
        call: &'static str,
        why: String,
    },
}

/// What the runtimes know of pods, by incarnation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Running {
    pub pods: BTreeMap<PodUid, RunningPod>,
}

/// One incarnation, as a runtime knows it; exited parts are left out.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RunningPod {
    pub key: Option<PodKey>,
    /// From a file on the node, not from the API, so it can use no PersistentVolume.
    pub fixed: bool,
    /// Ids of sandboxes that are ready.
    pub sandboxes: Vec<String>,
    /// Containers, of every kind, that are not known to have exited.
    pub containers: Vec<Alive>,
}

/// A container that may still write.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Alive {
    pub id: String,
    pub name: String,
    pub state: &'static str,
    socket: PathBuf,
}

impl RunningPod {
    /// Adds a container that is not known to have exited.
    pub fn add_container(&mut self, name: &str, state: &'static str) {
        self.containers.push(Alive {
            id: String::new(),
            name: name.to_owned(),
            state,
            socket: PathBuf::new(),
        });
    }
}

impl Running {
    /// Whether any sandbox is ready, of whichever pod.
    pub fn any(&self) -> bool {
        self.pods.values().any(|pod| !pod.sandboxes.is_empty())
    }
}

/// The runtimes of a host, by the sockets on which they may listen.
#[derive(Clone, Debug)]
pub struct Runtimes {
    sockets: Vec<PathBuf>,
}

impl Runtimes {
    pub fn at(sockets: Vec<PathBuf>) -> Self {
        Self { sockets }
    }

    /// Asks every runtime whose socket is there. Each must answer: an idle second runtime says nothing about the one
    /// that the kubelet uses.
    pub async fn running(&self, within: Duration) -> Result<Running, RuntimeError> {
        let sockets = self.present();
        if sockets.is_empty() {
            let looked: Vec<_> = self.sockets.iter().map(|s| s.to_string_lossy()).collect();
            let looked = looked.join(", ");
            return Err(RuntimeError::NoSocket { looked });
        }
        let mut running = Running::default();
        for socket in sockets {
            let (sandboxes, containers) = list(&socket, within).await?;
            running.add(&socket, sandboxes, containers);
        }
        Ok(running)
    }

    /// Stops a container, at once.
    pub async fn stop(&self, container: &Alive, within: Duration) -> Result<(), RuntimeError> {
        let socket = &container.socket;
        let mut client = client(socket, within)?;
        let request = StopContainerRequest {
            container_id: container.id.clone(),
            timeout: 0,
        };
        let answer = client.stop_container(request);
        answered(socket, "StopContainer", within, answer)
            .await
            .map(drop)
    }

    /// The sockets that are there, each once however many names it has. One that cannot be looked at counts: asking
    /// it will say why.
    fn present(&self) -> Vec<PathBuf> {
        let mut seen = Vec::new();
        let mut sockets = Vec::new();
        for path in &self.sockets {
            match std::fs::metadata(path) {
                Ok(file) if seen.contains(&(file.dev(), file.ino())) => {}
                Ok(file) => {
                    seen.push((file.dev(), file.ino()));
                    sockets.push(path.clone());
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(_) => sockets.push(path.clone()),
            }
        }
        sockets
    }
}

fn client(socket: &Path, within: Duration) -> Result<RuntimeServiceClient<Channel>, RuntimeError> {
    let address = format!("unix://{}", socket.display());
    let endpoint = Endpoint::from_shared(address).map_err(|error| RuntimeError::Socket {
        socket: socket.to_owned(),
        why: error.to_string(),
    })?;
    let channel = endpoint.connect_timeout(within).connect_lazy();
    Ok(RuntimeServiceClient::new(channel).max_decoding_message_size(LARGEST_ANSWER))
}

async fn list(
    socket: &Path,
    within: Duration,
) -> Result<(Vec<PodSandbox>, Vec<Container>), RuntimeError> {
    let mut client = client(socket, within)?;
    let sandboxes = client.list_pod_sandbox(ListPodSandboxRequest::default());
    let sandboxes = answered(socket, "ListPodSandbox", within, sandboxes).await?;
    let containers = client.list_containers(ListContainersRequest::default());
    let containers = answered(socket, "ListContainers", within, containers).await?;
    Ok((sandboxes.items, containers.containers))
}

async fn answered<T>(
    socket: &Path,
    call: &'static str,
    within: Duration,
    answer: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, RuntimeError> {
    let socket = socket.to_owned();
    match tokio::time::timeout(within, answer).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(RuntimeError::Refused {
            socket,
            call,
            why: format!("{} ({:?})", status.message(), status.code()),
        }),
        Err(_) => Err(RuntimeError::Deadline {
            socket,
            call,
            within,
        }),
    }
}

impl Running {
    fn add(&mut self, socket: &Path, sandboxes: Vec<PodSandbox>, containers: Vec<Container>) {
        let mut pod_of = BTreeMap::new();
        for sandbox in sandboxes {
            let metadata = sandbox.metadata.unwrap_or_default();
            let label = sandbox.labels.get(POD_UID).cloned();
            let Some(uid) = label.or(Some(metadata.uid)).filter(|uid| !uid.is_empty()) else {
                // Not the kubelet's.
                continue;
            };
            let uid = PodUid::from(uid);
            pod_of.insert(sandbox.id.clone(), uid.clone());
            let pod = self.pods.entry(uid).or_default();
            pod.key = key(&sandbox.labels);
            let source = sandbox.annotations.get(SOURCE).map(String::as_str);
            pod.fixed |= matches!(source, Some("file" | "http"));
            if sandbox.state != PodSandboxState::SandboxNotready as i32 {
                pod.sandboxes.push(sandbox.id);
            }
        }
        for container in containers {
            let label = container
                .labels
                .get(POD_UID)
                .map(|uid| PodUid::from(uid.as_str()));
            let Some(uid) = label.or_else(|| pod_of.get(&container.pod_sandbox_id).cloned()) else {
                continue;
            };
            let pod = self.pods.entry(uid).or_default();
            if pod.key.is_none() {
                pod.key = key(&container.labels);
            }
            let Some(state) = alive(container.state) else {
                continue;
            };
            let named = container.metadata.map(|metadata| metadata.name);
            let label = container.labels.get(CONTAINER_NAME).cloned();
            pod.containers.push(Alive {
                name: label.or(named).unwrap_or_default(),
                id: container.id,
                state,
                socket: socket.to_owned(),
            });
        }
    }
}

/// What to call a state in which a container may still write; a state that we do not know is one.
fn alive(state: i32) -> Option<&'static str> {
    match ContainerState::try_from(state) {
        Ok(ContainerState::ContainerExited) => None,
        Ok(ContainerState::ContainerCreated) => Some("created"),
        Ok(ContainerState::ContainerRunning) => Some("running"),
        Ok(ContainerState::ContainerUnknown) | Err(_) => Some("in an unknown state"),
    }
}

fn key(labels: &std::collections::HashMap<String, String>) -> Option<PodKey> {
    Some(PodKey {
        namespace: labels.get(POD_NAMESPACE)?.clone(),
        name: labels.get(POD_NAME)?.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(id: &str, uid: &str, state: i32) -> PodSandbox {
        PodSandbox {
            id: id.into(),
            state,
            labels: [
                (POD_UID.to_owned(), uid.to_owned()),
                (POD_NAME.to_owned(), "db-0".to_owned()),
                (POD_NAMESPACE.to_owned(), "db".to_owned()),
            ]
            .into(),
            ..Default::default()
        }
    }

    fn container(sandbox: &str, state: i32) -> Container {
        Container {
            id: format!("of-{sandbox}"),
            pod_sandbox_id: sandbox.into(),
            state,
            ..Default::default()
        }
    }

    fn running(sandboxes: Vec<PodSandbox>, containers: Vec<Container>) -> Running {
        let mut running = Running::default();
        running.add(Path::new("/run/cri.sock"), sandboxes, containers);
        running
    }

    /// S2: whatever is not known to have exited is alive, in every state that there is or will be.
    #[test]
    fn s2_only_an_exited_container_is_dead() {
        for state in [0, 1, 3, 4, -1] {
            let seen = running(vec![sandbox("s", "u", 1)], vec![container("s", state)]);
            assert_eq!(seen.pods[&"u".into()].containers.len(), 1, "{state}");
        }
        let exited = running(vec![sandbox("s", "u", 1)], vec![container("s", 2)]);
        let pod = &exited.pods[&"u".into()];
        assert!(pod.containers.is_empty() && pod.sandboxes.is_empty());
    }

    /// S2: a container is its sandbox's pod's, also without a label of its own, under whatever id it was restarted.
    #[test]
    fn s2_containers_are_found_by_incarnation() {
        let seen = running(
            vec![sandbox("s1", "old", 0), sandbox("s2", "new", 0)],
            vec![container("s1", 1), container("s2", 1)],
        );
        assert_eq!(seen.pods[&"old".into()].containers[0].id, "of-s1");
        assert_eq!(seen.pods[&"new".into()].containers[0].id, "of-s2");
    }

    #[test]
    fn a_pod_from_a_file_is_known_as_such() {
        let mut mirror = sandbox("s", "u", 0);
        mirror.annotations.insert(SOURCE.into(), "file".into());
        assert!(running(vec![mirror], vec![]).pods[&"u".into()].fixed);
    }

    #[tokio::test]
    async fn s1_no_socket_is_unknown() {
        let runtimes = Runtimes::at(vec!["/nowhere/cri.sock".into()]);
        let answer = runtimes.running(Duration::from_secs(1)).await;
        assert!(matches!(answer, Err(RuntimeError::NoSocket { .. })));
    }

    #[tokio::test]
    async fn s1_a_socket_without_a_listener_is_unknown() {
        let directory = std::env::temp_dir().join(format!("podmon-cri-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let socket = directory.join("cri.sock");
        let _ = std::fs::remove_file(&socket);
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        let runtimes = Runtimes::at(vec![socket.clone()]);
        let answer = runtimes.running(Duration::from_secs(1)).await;
        let _ = std::fs::remove_dir_all(&directory);
        assert!(
            matches!(answer, Err(RuntimeError::Refused { .. })),
            "{answer:?}"
        );
    }
}
