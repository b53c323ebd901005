//! Writes. Each carries the precondition that makes a late or repeated one harmless (design.md, invariant 2).

use std::time::Duration;

use either::Either;
use k8s_openapi::api::core::v1 as core;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::ResourceExt;
use serde_json::{Value, json};

use super::attachment::AttachmentView;
use super::node::{Node, NodeView};
use super::pod::PodView;
use super::{Cluster, ClusterError, request};
use crate::domain::{AttachmentName, AttachmentUid, Incarnation, NodeName, ResourceVersion};
use crate::journal::Journal;
use crate::taint::Taint;

/// Who wrote a field, as the API records it.
const FIELD_MANAGER: &str = "podmon";

/// A change of a Node, computed from one read of it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct NodePatch {
    pub node: NodeName,
    /// Of the read that everything here was computed from.
    pub version: ResourceVersion,
    /// The whole list of taints; `None` leaves it.
    pub taints: Option<Vec<Taint>>,
    /// The journal; `Some(None)` removes it, `None` leaves it.
    pub journal: Option<Option<Journal>>,
}

/// What became of an object that was deleted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Deleted {
    /// It is no longer in the API, or another one stands under its name.
    Gone,
    /// It is marked; a finalizer keeps it.
    Marked,
}

impl Cluster {
    /// Taints and journal in one write; 409 if the Node changed since it was read. The Node as it is afterwards.
    pub async fn patch_node(
        &self,
        patch: &NodePatch,
        within: Duration,
    ) -> Result<Node, ClusterError> {
        let mut metadata = json!({ "resourceVersion": patch.version.as_str() });
        if let Some(journal) = &patch.journal {
            let value = journal
                .as_ref()
                .map_or(Value::Null, |j| Value::String(j.write()));
            metadata["annotations"] = json!({ self.names.journal.as_str(): value });
        }
        let mut body = json!({ "metadata": metadata });
        if let Some(taints) = &patch.taints {
            body["spec"] = json!({ "taints": taints });
        }
        let api = Api::<NodeView>::all(self.client.clone());
        let params = PatchParams::apply(FIELD_MANAGER);
        let body = Patch::Merge(body);
        let call = api.patch(patch.node.as_str(), &params, &body);
        let view = request(|| format!("patch node {}", patch.node), within, call).await?;
        Ok(view.observe(&self.names))
    }

    /// Replaces `status.volumesInUse`; 409 if the Node changed since it was read.
    pub async fn patch_volumes_in_use(
        &self,
        node: &NodeName,
        version: &ResourceVersion,
        volumes: &[String],
        within: Duration,
    ) -> Result<Node, ClusterError> {
        let body = Patch::Merge(json!({
            "metadata": { "resourceVersion": version.as_str() },
            "status": { "volumesInUse": volumes },
        }));
        let api = Api::<NodeView>::all(self.client.clone());
        let params = PatchParams::apply(FIELD_MANAGER);
        let call = api.patch_status(node.as_str(), &params, &body);
        let view = request(|| format!("patch status of node {node}"), within, call).await?;
        Ok(view.observe(&self.names))
    }

    /// Deletes this very incarnation, without grace; with a version also only in the state that was read.
    pub async fn force_delete_pod(
        &self,
        pod: &Incarnation,
        version: Option<&ResourceVersion>,
        within: Duration,
    ) -> Result<Deleted, ClusterError> {
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            ..precondition(pod.uid.as_str(), version)
        };
        self.delete_pod(pod, &params, within).await
    }

    /// Deletes this very incarnation with its own grace period; `Gone` says only that the request was accepted.
    pub async fn delete_pod_gracefully(
        &self,
        pod: &Incarnation,
        within: Duration,
    ) -> Result<Deleted, ClusterError> {
        let params = precondition(pod.uid.as_str(), None);
        self.delete_pod(pod, &params, within).await
    }

    async fn delete_pod(
        &self,
        pod: &Incarnation,
        params: &DeleteParams,
        within: Duration,
    ) -> Result<Deleted, ClusterError> {
        let api = Api::<PodView>::namespaced(self.client.clone(), &pod.key.namespace);
        let call = api.delete(&pod.key.name, params);
        let answer = request(|| format!("delete pod {pod}"), within, call).await;
        outcome(answer)
    }

    /// Deletes this very attachment.
    pub async fn delete_attachment(
        &self,
        name: &AttachmentName,
        uid: &AttachmentUid,
        within: Duration,
    ) -> Result<Deleted, ClusterError> {
        let api = Api::<AttachmentView>::all(self.client.clone());
        let params = precondition(uid.as_str(), None);
        let call = api.delete(name.as_str(), &params);
        let answer = request(|| format!("delete volumeattachment {name}"), within, call).await;
        outcome(answer)
    }

    /// Records an event on an object.
    pub async fn create_event(
        &self,
        event: &core::Event,
        within: Duration,
    ) -> Result<(), ClusterError> {
        let namespace = event.namespace().unwrap_or_default();
        let api = Api::<core::Event>::namespaced(self.client.clone(), &namespace);
        let params = PostParams::default();
        let call = api.create(&params, event);
        request(|| format!("create event in {namespace}"), within, call)
            .await
            .map(drop)
    }

    /// Counts an event that was recorded before.
    pub async fn count_event(
        &self,
        namespace: &str,
        name: &str,
        count: u32,
        last: &str,
        within: Duration,
    ) -> Result<(), ClusterError> {
        let api = Api::<core::Event>::namespaced(self.client.clone(), namespace);
        let params = PatchParams::default();
        let body = Patch::Strategic(json!({ "count": count, "lastTimestamp": last }));
        let call = api.patch(name, &params, &body);
        request(|| format!("patch event {namespace}/{name}"), within, call)
            .await
            .map(drop)
    }
}

fn precondition(uid: &str, version: Option<&ResourceVersion>) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: version.map(|v| v.as_str().to_owned()),
        }),
        ..DeleteParams::default()
    }
}

/// What an answer says of the object that was meant. A conflict may be over the UID or not: the caller looks again.
fn outcome<K: kube::Resource<DynamicType = ()>>(
    answer: Result<Either<K, kube::core::Status>, ClusterError>,
) -> Result<Deleted, ClusterError> {
    match answer {
        // An object that is deleted at once is answered as it was; only finalizers keep it.
        Ok(Either::Left(object)) if !object.finalizers().is_empty() => Ok(Deleted::Marked),
        Ok(_) => Ok(Deleted::Gone),
        Err(error) if error.is_not_found() => Ok(Deleted::Gone),
        Err(error) => Err(error),
    }
}
