//! The API server: each request that podmon makes, with its deadline and its precondition. No policy lives here.

pub mod attachment;
pub mod claim;
pub mod event;
pub mod lease;
pub mod node;
pub mod pod;
mod read;
pub mod survey;
mod view;
pub mod volume;
pub mod watch;
mod write;

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use kube::Client;

use crate::names::Names;

pub use write::{Deleted, NodePatch};

/// How long a request may take before it counts as failed; the client sets no deadline of its own.
pub const REQUEST: Duration = Duration::from_secs(10);

/// Objects a page when listing: the peak of memory is the page, not the whole.
const PAGE: u32 = 250;

/// A request that did not succeed. Whether it took effect is unknown unless the server refused it.
#[derive(thiserror::Error, Debug)]
pub enum ClusterError {
    #[error("{action}: no answer within {within:?}")]
    Deadline { action: String, within: Duration },
    #[error("{action}: {} ({})", status.message, status.code)]
    Refused {
        action: String,
        status: Box<kube::core::Status>,
    },
    #[error("{action}: {source}")]
    Failed {
        action: String,
        source: Box<kube::Error>,
    },
}

impl ClusterError {
    fn code(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(status.code),
            _ => None,
        }
    }

    /// The object is not there.
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// A precondition failed, or the object exists already.
    pub fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }

    /// Our rights do not cover it.
    pub fn is_forbidden(&self) -> bool {
        self.code() == Some(403)
    }

    /// Refused for its size: the request itself, or the object it makes.
    pub fn is_too_large(&self) -> bool {
        matches!(self.code(), Some(413 | 422))
    }
}

/// The API server, as podmon sees it for one driver.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    names: Names,
    protection: Protection,
}

/// What protects a pod: a label, outside the driver's own namespace.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Protection {
    pub key: String,
    pub value: String,
    /// Pods in it are the driver's own, whatever their labels.
    pub driver_namespace: Option<String>,
    /// Annotation by which a single pod is left alone.
    pub opt_out: String,
}

impl Protection {
    fn covers(
        &self,
        namespace: &str,
        labels: &BTreeMap<String, String>,
        annotations: &BTreeMap<String, String>,
    ) -> bool {
        let opted_out = annotations
            .get(&self.opt_out)
            .is_some_and(|value| value == "true");
        labels.get(&self.key) == Some(&self.value)
            && self.driver_namespace.as_deref() != Some(namespace)
            && !opted_out
    }

    /// The label selector that finds the protected pods.
    pub fn selector(&self) -> String {
        format!("{}={}", self.key, self.value)
    }
}

impl Cluster {
    pub fn new(client: Client, names: Names, protection: Protection) -> Self {
        Self {
            client,
            names,
            protection,
        }
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn names(&self) -> &Names {
        &self.names
    }

    pub fn protection(&self) -> &Protection {
        &self.protection
    }
}

/// Runs one request; `action` says what was tried, for the log.
pub(crate) async fn request<T>(
    action: impl FnOnce() -> String,
    within: Duration,
    call: impl Future<Output = kube::Result<T>>,
) -> Result<T, ClusterError> {
    match tokio::time::timeout(within, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) => Err(ClusterError::Refused {
            action: action(),
            status,
        }),
        Ok(Err(source)) => Err(ClusterError::Failed {
            action: action(),
            source: Box::new(source),
        }),
        Err(_) => Err(ClusterError::Deadline {
            action: action(),
            within,
        }),
    }
}
