//! A client without waiting, for the parts of the cluster that run inside it.

use std::sync::Arc;

use serde_json::Value;

use super::failure::Failure;
use super::kind::{Kind, Resource};
use super::patch::PatchFormat;
use super::store::{DeleteOptions, Key};
use super::{Server, same_name};

/// Reads and writes in the name of one component, with all the rules of the API and at once.
#[derive(Clone)]
pub struct Actor {
    server: Server,
    name: Arc<str>,
}

impl Actor {
    pub(super) fn new(server: Server, name: &str) -> Actor {
        Actor {
            server,
            name: name.into(),
        }
    }

    pub fn server(&self) -> &Server {
        &self.server
    }

    pub fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.server.read(kind, namespace, name)
    }

    pub fn list(&self, kind: Kind) -> Vec<Arc<Value>> {
        self.server.read_all(kind)
    }

    /// `namespace` is empty for kinds that have none.
    pub fn create(
        &self,
        kind: Kind,
        namespace: &str,
        object: Value,
    ) -> Result<Arc<Value>, Failure> {
        self.server.write(&self.name, |store, context| {
            store.create(Resource::stored(kind), namespace, object, context)
        })
    }

    /// A merge patch of the object.
    pub fn patch(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        patch: Value,
    ) -> Result<Arc<Value>, Failure> {
        self.merge(kind, namespace, name, false, patch)
    }

    /// A merge patch of the status subresource.
    pub fn patch_status(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        patch: Value,
    ) -> Result<Arc<Value>, Failure> {
        self.merge(kind, namespace, name, true, patch)
    }

    fn merge(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        status: bool,
        patch: Value,
    ) -> Result<Arc<Value>, Failure> {
        let (resource, key): (Resource, Key) = (
            Resource::stored(kind),
            (namespace.to_owned(), name.to_owned()),
        );
        self.server.write(&self.name, |store, context| {
            let Some(old) = store.get(kind, &key) else {
                return Err(Failure::not_found(resource, name));
            };
            let patched = PatchFormat::Merge.apply(kind, old, &patch)?;
            same_name(&patched, name)?;
            store.update(resource, &key, status, patched, context)
        })
    }

    /// Deletes; `grace` in seconds, `uid` as a precondition.
    pub fn delete(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        grace: Option<i64>,
        uid: Option<&str>,
    ) -> Result<Arc<Value>, Failure> {
        let key = (namespace.to_owned(), name.to_owned());
        let options = DeleteOptions {
            grace,
            uid: uid.map(str::to_owned),
            version: None,
        };
        self.server.write(&self.name, |store, context| {
            let deleted = store.delete(Resource::stored(kind), &key, &options, context);
            deleted.map(|(object, _)| object)
        })
    }

    /// Binds a pod to a node.
    pub fn bind(&self, namespace: &str, pod: &str, node: &str) -> Result<(), Failure> {
        let key = (namespace.to_owned(), pod.to_owned());
        let binding = serde_json::json!({"target": {"kind": "Node", "name": node}});
        self.server.write(&self.name, |store, context| {
            store.bind(&key, &binding, context)
        })
    }
}
