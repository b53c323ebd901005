//! A Kubernetes API server in memory, behind a `kube::Client` or a TCP port.
//!
//! It answers as the real one does for the kinds and requests that podmon, the control-plane loops and kubectl use; everything
//! else gets 501. There is no authentication, no authorisation and no garbage collector. [`crate::embedded::fidelity`] is the
//! list of behaviours that both servers are held to.

mod actor;
mod discovery;
mod event;
mod failure;
mod kind;
mod patch;
mod request;
mod selector;
mod store;
mod strategy;
mod tcp;
mod watch;

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use serde_json::{Value, json};
use tokio::sync::Notify;

pub use actor::Actor;
pub use failure::Failure;
pub use kind::{Kind, Resource};
pub use store::{Change, Key, seconds};
pub use tcp::Listener;

use kind::{EVENTS_GROUP, KINDS};
use patch::PatchFormat;
use request::{Query, Target};
use selector::Selector;
use store::{Context, DeleteOptions, Store};
use watch::{Start, Watch};

/// The body of a response: a whole document, or the lines of a watch.
pub type ApiBody = UnsyncBoxBody<Bytes, Infallible>;

/// How long a watch lasts when the client does not say; the real server draws 30 to 60 minutes.
const WATCH_TIMEOUT: Duration = Duration::from_secs(45 * 60);
/// How long a list waits for a version that is not there yet.
const FUTURE_WAIT: Duration = Duration::from_secs(3);

/// The server; clones share one state.
#[derive(Clone)]
pub struct Server(Arc<Shared>);

struct Shared {
    store: Mutex<Store>,
    changed: Vec<Notify>,
    start: jiff::Timestamp,
    origin: tokio::time::Instant,
}

/// What a request came to.
enum Answer {
    Document(StatusCode, Value),
    Text(&'static str),
    Watch(Watch),
}

impl Server {
    /// A server whose clock shows `start` now and goes on with tokio's; `seed` decides UIDs and generated names.
    pub fn new(start: jiff::Timestamp, seed: u64) -> Server {
        let server = Server(Arc::new(Shared {
            store: Mutex::new(Store::new(seed)),
            changed: KINDS.iter().map(|_| Notify::new()).collect(),
            start,
            origin: tokio::time::Instant::now(),
        }));
        for namespace in ["default", "kube-system", "kube-public", "kube-node-lease"] {
            let object =
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
            server
                .create(
                    "kube-apiserver",
                    Resource::stored(Kind::Namespace),
                    "",
                    object,
                )
                .unwrap_or_else(|failure| panic!("namespace {namespace}: {failure}"));
        }
        server
    }

    /// A client that acts as `actor`, without sockets.
    pub fn client(&self, actor: &str) -> kube::Client {
        let (server, actor) = (self.clone(), Arc::<str>::from(actor));
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let (server, actor) = (server.clone(), actor.clone());
            async move { Ok::<_, Infallible>(server.serve(&actor, request).await) }
        });
        kube::Client::new(service, "default")
    }

    /// A client for the parts of the cluster that run inside it.
    pub fn actor(&self, name: &str) -> Actor {
        Actor::new(self.clone(), name)
    }

    /// The newest resourceVersion.
    pub fn version(&self) -> u64 {
        self.lock().version()
    }

    /// The newest version of anything but leases and events: what the loops have to look at again.
    pub fn activity(&self) -> u64 {
        self.lock().activity()
    }

    /// Serves plain HTTP on `address` until the listener is dropped.
    pub async fn listen(&self, address: std::net::SocketAddr) -> std::io::Result<Listener> {
        Listener::bind(self.clone(), address).await
    }

    /// The server's time.
    pub fn now(&self) -> jiff::Timestamp {
        let elapsed = self.0.origin.elapsed();
        self.0.start + jiff::SignedDuration::try_from(elapsed).unwrap_or(jiff::SignedDuration::MAX)
    }

    /// Calls `observer` for every change from now on, in order. It must be quick and must not call the server.
    pub fn observe(&self, observer: impl FnMut(&Change) + Send + 'static) {
        self.lock().observe(Box::new(observer));
    }

    /// Forgets the history: watches and continued lists from before get 410.
    pub fn compact(&self) {
        self.lock().compact();
    }

    /// The stored form of an object, for judges that must not disturb the cluster.
    pub fn read(&self, kind: Kind, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.lock()
            .get(kind, &(namespace.to_owned(), name.to_owned()))
            .cloned()
    }

    /// All objects of a kind in their stored form.
    pub fn read_all(&self, kind: Kind) -> Vec<Arc<Value>> {
        self.lock().objects(kind).values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Store> {
        // A panic under the lock has failed the test already.
        self.0
            .store
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn changed(&self, kind: Kind) -> &Notify {
        &self.0.changed[kind as usize]
    }

    /// Runs one write and wakes the watches it concerns.
    fn write<T>(&self, actor: &Arc<str>, work: impl FnOnce(&mut Store, &Context) -> T) -> T {
        let now = self.now();
        let mut store = self.lock();
        let result = work(&mut store, &Context { actor, now });
        let touched = std::mem::take(&mut store.touched);
        drop(store);
        for kind in touched {
            self.changed(kind).notify_waiters();
        }
        result
    }

    fn create(
        &self,
        actor: &str,
        resource: Resource,
        namespace: &str,
        object: Value,
    ) -> Result<Arc<Value>, Failure> {
        self.write(&Arc::from(actor), |store, context| {
            store.create(resource, namespace, object, context)
        })
    }

    /// Answers one request of `actor`.
    pub async fn serve<B>(&self, actor: &Arc<str>, request: Request<B>) -> Response<ApiBody>
    where
        B: http_body::Body,
    {
        let (parts, body) = request.into_parts();
        let answer = match body.collect().await {
            Ok(body) => self.answer(actor, &parts, &body.to_bytes()).await,
            Err(_) => Err(Failure::bad_request("the request body broke off")),
        };
        let (status, body) = match answer {
            Ok(Answer::Watch(watch)) => {
                let lines = watch::stream(self.clone(), watch).map(|line| Ok(Frame::data(line)));
                (StatusCode::OK, StreamBody::new(lines).boxed_unsync())
            }
            Ok(Answer::Text(text)) => (StatusCode::OK, Full::from(text).boxed_unsync()),
            Ok(Answer::Document(status, document)) => (status, whole(&document)),
            Err(failure) => {
                let status =
                    StatusCode::from_u16(failure.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                (status, whole(&failure.to_status()))
            }
        };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        let json = header::HeaderValue::from_static("application/json");
        response.headers_mut().insert(header::CONTENT_TYPE, json);
        response
    }

    async fn answer(
        &self,
        actor: &Arc<str>,
        parts: &http::request::Parts,
        body: &[u8],
    ) -> Result<Answer, Failure> {
        let query = Query::parse(parts.uri.query().unwrap_or_default());
        if parts.method == Method::GET {
            match parts.uri.path() {
                "/healthz" | "/readyz" | "/livez" => return Ok(Answer::Text("ok")),
                path => {
                    if let Some(document) = discovery::document(path) {
                        return Ok(Answer::Document(StatusCode::OK, document));
                    }
                }
            }
        }
        let target = Target::parse(parts.uri.path())?;
        if query.given("dryRun") {
            return Err(Failure::not_implemented("dryRun"));
        }
        let content_type = parts
            .headers
            .get(header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .unwrap_or("application/json");
        let status = match (target.subresource.as_deref(), &parts.method) {
            (None, _) => false,
            (Some("status"), method)
                if target.resource.kind.facts().status && *method != Method::DELETE =>
            {
                true
            }
            (Some("binding"), method)
                if target.resource.kind == Kind::Pod && *method == Method::POST =>
            {
                return self.bind(actor, &target, body);
            }
            (Some(other), _) => {
                return Err(Failure::not_implemented(&format!(
                    "the subresource {other}"
                )));
            }
        };
        match (&parts.method, &target.name) {
            (&Method::GET, None) => self.list_or_watch(&target, &query).await,
            (&Method::GET, Some(_)) if query.flag("watch") => {
                Err(Failure::not_implemented("a watch of one object by path"))
            }
            (&Method::GET, Some(name)) => self.get(&target, name, &query).await,
            (&Method::POST, None) => {
                let object = decode_object(target.resource, content_type, body)?;
                let stored = self.write(actor, |store, context| {
                    store.create(target.resource, &target.namespace, object, context)
                })?;
                Ok(Answer::Document(
                    StatusCode::CREATED,
                    view(target.resource, &stored),
                ))
            }
            (&Method::PUT, Some(name)) => {
                let object = decode_object(target.resource, content_type, body)?;
                self.replace(actor, &target, name, status, object)
            }
            (&Method::PATCH, Some(name)) => {
                let format = PatchFormat::from_content_type(content_type)?;
                self.patch(actor, &target, name, status, format, body)
            }
            (&Method::DELETE, Some(name)) => self.delete(actor, &target, name, &query, body),
            (&Method::DELETE, None) => Err(Failure::not_implemented("deletecollection")),
            _ => Err(Failure::method_not_allowed()),
        }
    }

    async fn get(&self, target: &Target, name: &str, query: &Query) -> Result<Answer, Failure> {
        if let Some(version) = query.number("resourceVersion")? {
            self.reach(version).await?;
        }
        let key = (target.namespace.clone(), name.to_owned());
        match self.lock().get(target.resource.kind, &key) {
            Some(object) => Ok(Answer::Document(
                StatusCode::OK,
                view(target.resource, object),
            )),
            None => Err(Failure::not_found(target.resource, name)),
        }
    }

    /// Waits a little for a version that a client has seen elsewhere, then gives up.
    async fn reach(&self, version: u64) -> Result<(), Failure> {
        if version > self.lock().version() {
            tokio::time::sleep(FUTURE_WAIT).await;
            let current = self.lock().version();
            if version > current {
                return Err(Failure::too_large(version, current));
            }
        }
        Ok(())
    }

    async fn list_or_watch(&self, target: &Target, query: &Query) -> Result<Answer, Failure> {
        let selector = Selector::parse(
            target.resource,
            query.text("labelSelector"),
            query.text("fieldSelector"),
        )?;
        let version = query.number("resourceVersion")?;
        if query.flag("watch") {
            let initial = query.flag("sendInitialEvents");
            if initial && query.text("resourceVersionMatch") != "NotOlderThan" {
                return Err(options_forbidden(
                    "resourceVersionMatch",
                    "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
                ));
            }
            let bookmarks = query.flag("allowWatchBookmarks");
            let start = match version {
                Some(version) if version > 0 && !initial => Start::After(version),
                _ => Start::Now {
                    mark: bookmarks && (initial || version.is_none()),
                },
            };
            return Ok(Answer::Watch(Watch {
                resource: target.resource,
                namespace: target.namespace.clone(),
                selector,
                start,
                bookmarks,
                timeout: query
                    .number("timeoutSeconds")?
                    .map_or(WATCH_TIMEOUT, Duration::from_secs),
            }));
        }
        if let Some(version) = version {
            self.reach(version).await?;
        }
        self.list(target, query, &selector, version)
    }

    fn list(
        &self,
        target: &Target,
        query: &Query,
        selector: &Selector,
        version: Option<u64>,
    ) -> Result<Answer, Failure> {
        let limit = query
            .number("limit")?
            .filter(|limit| *limit > 0)
            .map(|limit| limit as usize);
        let store = self.lock();
        let exact = query.text("resourceVersionMatch") == "Exact";
        let (at, after) = match query.text("continue") {
            "" if exact => (version.unwrap_or(store.version()), None),
            "" => (store.version(), None),
            token => continue_from(token).map(|(version, key)| (version, Some(key)))?,
        };
        let kind = target.resource.kind;
        let past;
        let objects = if at == store.version() {
            store.objects(kind)
        } else {
            past = store.snapshot(kind, at)?;
            &past
        };
        let mut items = Vec::new();
        let mut metadata = json!({"resourceVersion": at.to_string()});
        let mut last: Option<&Key> = None;
        let mut remaining = 0;
        for (key, object) in objects {
            let elsewhere = !target.namespace.is_empty() && key.0 != target.namespace;
            if elsewhere
                || after.as_ref().is_some_and(|after| key <= after)
                || !selector.matches(object)
            {
                continue;
            }
            if limit.is_some_and(|limit| items.len() >= limit) {
                remaining += 1;
                continue;
            }
            let mut item = view(target.resource, object);
            if let Some(item) = item.as_object_mut() {
                item.remove("kind");
                item.remove("apiVersion");
            }
            items.push(item);
            last = Some(key);
        }
        if let Some((namespace, name)) = last.filter(|_| remaining > 0) {
            metadata["continue"] = json!(format!("{at}:{namespace}/{name}"));
            if selector.is_empty() {
                metadata["remainingItemCount"] = json!(remaining);
            }
        }
        let list = json!({
            "kind": format!("{}List", kind.facts().name),
            "apiVersion": target.resource.api_version(),
            "metadata": metadata,
            "items": items,
        });
        Ok(Answer::Document(StatusCode::OK, list))
    }

    fn replace(
        &self,
        actor: &Arc<str>,
        target: &Target,
        name: &str,
        status: bool,
        mut object: Value,
    ) -> Result<Answer, Failure> {
        let (resource, key) = (target.resource, (target.namespace.clone(), name.to_owned()));
        same_name(&object, name)?;
        self.write(actor, |store, context| {
            let Some(old) = store.get(resource.kind, &key).cloned() else {
                if !resource.kind.facts().create_on_update || status {
                    return Err(Failure::not_found(resource, name));
                }
                object["metadata"]
                    .as_object_mut()
                    .map(|metadata| metadata.remove("resourceVersion"));
                let stored = store.create(resource, &key.0, object, context)?;
                return Ok(Answer::Document(
                    StatusCode::CREATED,
                    view(resource, &stored),
                ));
            };
            // Unlike a patch, a PUT with another UID is a failed precondition.
            let uid = old["metadata"]["uid"].as_str().unwrap_or_default();
            if let Some(sent) = object["metadata"]["uid"]
                .as_str()
                .filter(|sent| *sent != uid && !sent.is_empty())
            {
                let why = format!(
                    "Precondition failed: UID in precondition: {sent}, UID in object meta: {uid}"
                );
                return Err(Failure::conflict(resource, name, &why));
            }
            let stored = store.update(resource, &key, status, object, context)?;
            Ok(Answer::Document(StatusCode::OK, view(resource, &stored)))
        })
    }

    fn patch(
        &self,
        actor: &Arc<str>,
        target: &Target,
        name: &str,
        status: bool,
        format: PatchFormat,
        body: &[u8],
    ) -> Result<Answer, Failure> {
        let body: Value = serde_json::from_slice(body)
            .map_err(|error| Failure::bad_request(format!("error decoding patch: {error}")))?;
        let (resource, key) = (target.resource, (target.namespace.clone(), name.to_owned()));
        self.write(actor, |store, context| {
            let Some(old) = store.get(resource.kind, &key) else {
                return Err(Failure::not_found(resource, name));
            };
            let patched = format.apply(resource.kind, &view(resource, old), &body)?;
            same_name(&patched, name)?;
            let stored =
                store.update(resource, &key, status, unview(resource, patched), context)?;
            Ok(Answer::Document(StatusCode::OK, view(resource, &stored)))
        })
    }

    fn delete(
        &self,
        actor: &Arc<str>,
        target: &Target,
        name: &str,
        query: &Query,
        body: &[u8],
    ) -> Result<Answer, Failure> {
        let sent: Value = if body.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(body).map_err(|error| Failure::bad_request(error.to_string()))?
        };
        if !sent["dryRun"].is_null() || !sent["orphanDependents"].is_null() {
            return Err(Failure::not_implemented("dryRun and orphanDependents"));
        }
        let policy = sent["propagationPolicy"]
            .as_str()
            .unwrap_or(query.text("propagationPolicy"));
        if !matches!(policy, "" | "Background") {
            return Err(Failure::not_implemented(
                "a propagation policy other than Background",
            ));
        }
        if target.resource.kind == Kind::Namespace {
            return Err(Failure::not_implemented("deleting a namespace"));
        }
        let grace = match sent["gracePeriodSeconds"].as_i64() {
            Some(grace) => Some(grace),
            None => query
                .number("gracePeriodSeconds")?
                .map(|grace| grace as i64),
        };
        let options = DeleteOptions {
            grace,
            uid: sent["preconditions"]["uid"].as_str().map(str::to_owned),
            version: sent["preconditions"]["resourceVersion"]
                .as_str()
                .map(str::to_owned),
        };
        let (resource, key) = (target.resource, (target.namespace.clone(), name.to_owned()));
        let (object, gone) = self.write(actor, |store, context| {
            store.delete(resource, &key, &options, context)
        })?;
        if !gone || resource.kind.facts().returns_deleted {
            return Ok(Answer::Document(StatusCode::OK, view(resource, &object)));
        }
        let mut details = json!({"name": name, "kind": resource.kind.facts().plural, "uid": object["metadata"]["uid"]});
        if !resource.group.is_empty() {
            details["group"] = json!(resource.group);
        }
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
        Ok(Answer::Document(StatusCode::OK, status))
    }

    fn bind(&self, actor: &Arc<str>, target: &Target, body: &[u8]) -> Result<Answer, Failure> {
        let binding: Value = serde_json::from_slice(body)
            .map_err(|error| Failure::bad_request(error.to_string()))?;
        let key = (
            target.namespace.clone(),
            target.name.clone().unwrap_or_default(),
        );
        self.write(actor, |store, context| store.bind(&key, &binding, context))?;
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
        Ok(Answer::Document(StatusCode::CREATED, status))
    }
}

fn whole(document: &Value) -> ApiBody {
    Full::from(document.to_string()).boxed_unsync()
}

/// The object as a client of this group reads it.
fn view(resource: Resource, stored: &Value) -> Value {
    if resource.group == EVENTS_GROUP {
        event::to_new(stored)
    } else {
        stored.clone()
    }
}

/// The object as it is stored, from what a client of this group wrote.
fn unview(resource: Resource, sent: Value) -> Value {
    if resource.group == EVENTS_GROUP {
        event::to_core(&sent)
    } else {
        sent
    }
}

fn decode_object(resource: Resource, content_type: &str, body: &[u8]) -> Result<Value, Failure> {
    if !content_type.starts_with("application/json") {
        return Err(Failure::unsupported_media_type());
    }
    let object: Value =
        serde_json::from_slice(body).map_err(|error| Failure::bad_request(error.to_string()))?;
    let (kind, version) = (resource.kind.facts().name, resource.api_version());
    if object["kind"] != kind || object["apiVersion"] != version.as_str() {
        let sent = object["kind"].as_str().unwrap_or_default();
        return Err(Failure::bad_request(format!(
            "{sent} in version \"v1\" cannot be handled as a {kind}: converting (v1.{sent}) to (core.{kind}): unknown conversion"
        )));
    }
    if !object["metadata"].is_object() {
        return Err(Failure::bad_request("metadata is missing"));
    }
    Ok(unview(resource, object))
}

fn same_name(object: &Value, name: &str) -> Result<(), Failure> {
    let sent = object["metadata"]["name"].as_str().unwrap_or_default();
    if sent == name {
        return Ok(());
    }
    Err(Failure::bad_request(format!(
        "the name of the object ({sent}) does not match the name on the URL ({name})"
    )))
}

fn continue_from(token: &str) -> Result<(u64, Key), Failure> {
    token
        .split_once(':')
        .and_then(|(version, key)| {
            let (namespace, name) = key.split_once('/')?;
            Some((
                version.parse().ok()?,
                (namespace.to_owned(), name.to_owned()),
            ))
        })
        .ok_or_else(|| Failure::bad_request("invalid continue token: continue key is not valid"))
}

fn options_forbidden(field: &str, why: &str) -> Failure {
    Failure {
        code: 422,
        reason: "Invalid",
        message: format!("ListOptions.meta.k8s.io \"\" is invalid: {field}: Forbidden: {why}"),
        details: Some(json!({
            "group": "meta.k8s.io",
            "kind": "ListOptions",
            "causes": [{"reason": "FieldValueForbidden", "message": format!("Forbidden: {why}"), "field": field}],
        })),
    }
}
