//! Saboteurs: each breaks one rule of podmon's at its seams, to show that the judges would notice.

use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use serde_json::Value;

use crate::embedded::daemon;
use crate::embedded::host::sight::Blindness;
use crate::embedded::network::Tamper;

/// One broken rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Saboteur {
    /// The fence says OK and does nothing.
    SkipFence,
    /// The fence says OK at once and takes effect half a minute later.
    ReleaseBeforeFence,
    /// The fence goes to every node at once.
    FenceEverybody,
    /// podmon's taint is left out of every patch.
    ForgetTaint,
    /// Neither containers nor mounts are seen.
    LiftEarly,
}

impl Saboteur {
    pub const ALL: [Saboteur; 5] = [
        Saboteur::SkipFence,
        Saboteur::ReleaseBeforeFence,
        Saboteur::FenceEverybody,
        Saboteur::ForgetTaint,
        Saboteur::LiftEarly,
    ];

    pub fn blindness(self) -> Blindness {
        Blindness {
            runtime: self == Saboteur::LiftEarly,
            disk: self == Saboteur::LiftEarly,
        }
    }

    /// What it does to requests on their way to the API server.
    pub fn tamper(self) -> Option<Tamper> {
        if self != Saboteur::ForgetTaint {
            return None;
        }
        Some(Arc::new(|method: &Method, path: &str, body: Bytes| {
            if *method != Method::PATCH || !path.starts_with("/api/v1/nodes/") {
                return body;
            }
            let Ok(mut document) = serde_json::from_slice::<Value>(&body) else {
                return body;
            };
            let taints = document.pointer_mut("/spec/taints");
            if let Some(taints) = taints.and_then(Value::as_array_mut) {
                taints.retain(|taint| taint["key"] != daemon::taint().as_str());
            }
            Bytes::from(document.to_string())
        }))
    }
}
