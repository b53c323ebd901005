//! The CSI driver of the array: controller, node, and the connectivity extension.

use std::path::Path;

use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::Router;
use tonic::{Code, Status};

use super::array::Refusal;
use super::door::Door;
use super::name::{Epoch, NodeId, VolumeId};
use super::request::{Answer, Request};
use super::trouble::{Call, Delay, Trouble};

pub mod connectivity;
pub mod controller;
pub mod identity;
pub mod node;
pub mod registration;
pub mod staging;

/// The driver's CSI name.
pub const NAME: &str = "array.podmon.test";
/// The key of the publish context under which the grant travels from controller to node.
pub const EPOCH: &str = "epoch";

/// Serves on a unix socket, in place of a dead process that left its socket behind, until the process ends.
pub async fn serve(socket: &Path, services: Router) -> Result<(), ServeError> {
    let failed = |error| ServeError::Socket(socket.to_owned(), error);
    let listener = super::server::listen(socket).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let listener = UnixListener::from_std(listener).map_err(failed)?;
    services
        .serve_with_incoming(UnixListenerStream::new(listener))
        .await
        .map_err(|error| ServeError::Services(socket.to_owned(), error))
}

/// Why the driver does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("socket {0}")]
    Socket(std::path::PathBuf, #[source] std::io::Error),
    #[error("gRPC services on {0}")]
    Services(std::path::PathBuf, #[source] tonic::transport::Error),
}

/// Carries a call out, with the trouble that it may be in.
///
/// `act` is told whether to act or only to answer as if. It runs to its end even when the caller has given up, as
/// the work of a real driver does.
async fn carry_out<T, F>(
    door: &Door,
    call: Call,
    volumes: Vec<VolumeId>,
    node: Option<NodeId>,
    act: impl FnOnce(bool) -> F + Send + 'static,
) -> Result<T, Status>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Status>> + Send,
{
    let asked = Request::Trouble {
        call,
        volumes,
        node,
    };
    let trouble = match door.ask(asked).await.map_err(status)? {
        Answer::Trouble(trouble) => trouble,
        other => return Err(nonsense(&other)),
    };
    let work = async move {
        let Some(trouble) = trouble else {
            return act(true).await;
        };
        let Trouble {
            before,
            acts,
            after,
            answer,
        } = trouble;
        pass(before).await;
        match answer {
            None => {
                let outcome = act(acts).await;
                pass(after).await;
                outcome
            }
            Some((code, message)) => {
                // An error without having acted must leave no trace, not even a pretended one.
                if acts {
                    act(true).await?;
                }
                pass(after).await;
                Err(Status::new(Code::from_i32(code), message))
            }
        }
    };
    match tokio::spawn(work).await {
        Ok(outcome) => outcome,
        Err(error) => Err(Status::internal(error.to_string())),
    }
}

async fn pass(delay: Delay) {
    match delay {
        Delay::None => {}
        Delay::For(time) => tokio::time::sleep(time).await,
        Delay::Forever => std::future::pending().await,
    }
}

/// The gRPC code for what the array refused.
fn status(refusal: Refusal) -> Status {
    let code = match &refusal {
        Refusal::UnknownVolume(_) | Refusal::UnknownNode(_) => Code::NotFound,
        Refusal::Exists { .. } => Code::AlreadyExists,
        Refusal::Held { .. } | Refusal::NoAccess(_) => Code::FailedPrecondition,
        Refusal::BeyondEnd { .. } => Code::OutOfRange,
        Refusal::NoPath { .. } => Code::Unavailable,
        Refusal::Broken(_) => Code::Internal,
    };
    Status::new(code, refusal.to_string())
}

fn nonsense(answer: &Answer) -> Status {
    Status::internal(format!("the array answered {answer:?}"))
}

async fn grant(door: &Door, volume: VolumeId, node: NodeId) -> Result<Epoch, Status> {
    let answer = door.ask(Request::Grant { volume, node }).await;
    match answer.map_err(status)? {
        Answer::Granted(epoch) => Ok(epoch),
        other => Err(nonsense(&other)),
    }
}

async fn done(door: &Door, request: Request) -> Result<(), Status> {
    match door.ask(request).await.map_err(status)? {
        Answer::Done => Ok(()),
        other => Err(nonsense(&other)),
    }
}

/// A required volume id. One that cannot be a name of the array is one that the array does not have.
fn volume_id(id: &str) -> Result<VolumeId, Status> {
    if id.is_empty() {
        return Err(Status::invalid_argument("volume_id is missing"));
    }
    VolumeId::new(id).map_err(|error| Status::not_found(error.to_string()))
}

fn node_id(id: &str) -> Result<NodeId, Status> {
    if id.is_empty() {
        return Err(Status::invalid_argument("node_id is missing"));
    }
    NodeId::new(id).map_err(|error| Status::not_found(error.to_string()))
}

#[cfg(test)]
mod tests;
