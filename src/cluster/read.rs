//! Reads that are answered by the API server itself, never by a cache of its or ours.

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode};
use kube::Api;
use kube::api::ListParams;
use kube::core::Resource;
use serde::de::DeserializeOwned;

use super::attachment::{Attachment, AttachmentView};
use super::claim::{Claim, ClaimView};
use super::node::{Node, NodeView};
use super::pod::{Pod, PodView};
use super::volume::{SecretName, Volume, VolumeView};
use super::{Cluster, ClusterError, PAGE, REQUEST, request};
use crate::domain::{NodeId, NodeName, VolumeName};

impl Cluster {
    /// The Node, or `None` if there is no such object.
    pub async fn node(&self, name: &NodeName) -> Result<Option<Node>, ClusterError> {
        let api = Api::<NodeView>::all(self.client.clone());
        let found = get(&api, name.as_str(), "node").await?;
        Ok(found.map(|view| view.observe(&self.names)))
    }

    /// Every pod that is bound to the node, protected or not.
    pub async fn pods_on(&self, node: &NodeName) -> Result<Vec<Pod>, ClusterError> {
        let api = Api::<PodView>::all(self.client.clone());
        let bound = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let views = list(&api, bound, "pods").await?;
        let pods = views.into_iter().map(|view| view.observe(&self.protection));
        Ok(pods.collect())
    }

    /// Every attachment of the driver's volumes in the cluster; the API can select by neither node nor driver.
    pub async fn attachments(&self) -> Result<Vec<Attachment>, ClusterError> {
        let api = Api::<AttachmentView>::all(self.client.clone());
        let views = list(&api, ListParams::default(), "volumeattachments").await?;
        let ours = views.into_iter().filter_map(AttachmentView::observe);
        Ok(ours.filter(|a| a.driver == self.names.driver).collect())
    }

    /// The claim, or `None` if there is no such object.
    pub async fn claim(&self, namespace: &str, name: &str) -> Result<Option<Claim>, ClusterError> {
        let api = Api::<ClaimView>::namespaced(self.client.clone(), namespace);
        let found = get(&api, name, "persistentvolumeclaim").await?;
        Ok(found.map(ClaimView::observe))
    }

    /// Every claim of a namespace.
    pub async fn claims(&self, namespace: &str) -> Result<Vec<Claim>, ClusterError> {
        let api = Api::<ClaimView>::namespaced(self.client.clone(), namespace);
        let views = list(&api, ListParams::default(), "persistentvolumeclaims").await?;
        Ok(views.into_iter().map(ClaimView::observe).collect())
    }

    /// The PersistentVolume, or `None` if there is no such object.
    pub async fn volume(&self, name: &VolumeName) -> Result<Option<Volume>, ClusterError> {
        let api = Api::<VolumeView>::all(self.client.clone());
        let found = get(&api, name.as_str(), "persistentvolume").await?;
        Ok(found.map(VolumeView::observe))
    }

    /// Every PersistentVolume, if one request can bring them all.
    pub async fn volumes_if_few(&self) -> Result<Option<Vec<Volume>>, ClusterError> {
        let api = Api::<VolumeView>::all(self.client.clone());
        let params = ListParams::default().limit(PAGE);
        let what = || "list persistentvolumes".to_owned();
        let page = request(what, REQUEST, api.list(&params)).await?;
        let all = page.metadata.continue_.is_none_or(|token| token.is_empty());
        Ok(all.then(|| page.items.into_iter().map(VolumeView::observe).collect()))
    }

    /// The driver's node id by the CSINode object; `None` if the driver is not registered there.
    pub async fn registered_id(&self, node: &NodeName) -> Result<Option<NodeId>, ClusterError> {
        let api = Api::<CSINode>::all(self.client.clone());
        let found = get(&api, node.as_str(), "csinode").await?;
        let drivers = found.map(|object| object.spec.drivers).unwrap_or_default();
        let ours = drivers
            .into_iter()
            .find(|d| d.name == self.names.driver.as_str());
        Ok(ours
            .map(|d| d.node_id)
            .filter(|id| !id.is_empty())
            .map(NodeId::from))
    }

    /// What a Secret holds, as the driver gets it; values that are no text cannot be handed on.
    pub async fn secret(&self, secret: &SecretName) -> Result<Vec<(String, String)>, ClusterError> {
        let api = Api::<Secret>::namespaced(self.client.clone(), &secret.namespace);
        let what = || format!("get secret {}/{}", secret.namespace, secret.name);
        let found = request(what, REQUEST, api.get(&secret.name)).await?;
        let data = found.data.unwrap_or_default().into_iter();
        Ok(data
            .filter_map(|(key, value)| Some((key, String::from_utf8(value.0).ok()?)))
            .collect())
    }

    /// Whether Kubernetes attaches the driver's volumes at all; a driver without a CSIDriver object is attached.
    pub async fn attach_required(&self) -> Result<bool, ClusterError> {
        let api = Api::<CSIDriver>::all(self.client.clone());
        let found = get(&api, self.names.driver.as_str(), "csidriver").await?;
        Ok(found.is_none_or(|driver| driver.spec.attach_required.unwrap_or(true)))
    }
}

async fn get<K>(api: &Api<K>, name: &str, what: &str) -> Result<Option<K>, ClusterError>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    request(|| format!("get {what} {name}"), REQUEST, api.get_opt(name)).await
}

/// The whole list by pages; one snapshot, since the pages carry on from the first one's version.
async fn list<K>(api: &Api<K>, params: ListParams, what: &str) -> Result<Vec<K>, ClusterError>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let mut params = params.limit(PAGE);
    let mut items = Vec::new();
    loop {
        let page = request(|| format!("list {what}"), REQUEST, api.list(&params)).await?;
        items.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(items),
        }
    }
}
