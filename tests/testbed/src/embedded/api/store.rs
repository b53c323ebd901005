//! Objects, their history and the one resourceVersion that orders it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde_json::{Value, json};

use super::failure::Failure;
use super::kind::{KINDS, Kind, Resource};
use super::strategy;

/// Namespace (empty for cluster-wide kinds) and name.
pub type Key = (String, String);

/// How many changes of one kind a watch can look back on before it is told that its version is too old.
const HISTORY: usize = 4096;

/// One write, as every watch of the kind sees it.
#[derive(Clone, Debug)]
pub struct Change {
    pub version: u64,
    pub kind: Kind,
    pub key: Key,
    /// Who asked for it: the name the client was made with.
    pub actor: Arc<str>,
    pub before: Option<Arc<Value>>,
    pub after: Arc<Value>,
    /// `after` is the last state of an object that is no longer there.
    pub deleted: bool,
}

/// Sees each change in order, under the store's lock: it must be quick and must not call the server.
pub type Observer = Box<dyn FnMut(&Change) + Send>;

#[derive(Default)]
struct Collection {
    objects: BTreeMap<Key, Arc<Value>>,
    history: VecDeque<Arc<Change>>,
    /// Changes up to this version are forgotten.
    compacted: u64,
}

pub struct Store {
    collections: Vec<Collection>,
    version: u64,
    /// The last version that was not one of a lease or an event.
    activity: u64,
    seed: u64,
    identities: u64,
    observers: Vec<Observer>,
    /// Kinds changed since this was last taken; the server wakes their watches.
    pub touched: Vec<Kind>,
}

/// What a DELETE asks for.
#[derive(Clone, Debug, Default)]
pub struct DeleteOptions {
    pub grace: Option<i64>,
    pub uid: Option<String>,
    pub version: Option<String>,
}

/// Who writes, and when.
pub struct Context<'a> {
    pub actor: &'a Arc<str>,
    pub now: jiff::Timestamp,
}

impl Context<'_> {
    fn text(&self) -> String {
        seconds(self.now)
    }
}

/// Whole seconds, as the API writes its timestamps.
pub fn seconds(time: jiff::Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Scrambles a counter; the steps of the SplitMix64 generator.
fn scramble(state: u64) -> u64 {
    let mut z = state.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Store {
    pub fn new(seed: u64) -> Store {
        Store {
            collections: KINDS.iter().map(|_| Collection::default()).collect(),
            version: 1,
            activity: 1,
            seed,
            identities: 0,
            observers: Vec::new(),
            touched: Vec::new(),
        }
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn activity(&self) -> u64 {
        self.activity
    }

    pub fn observe(&mut self, observer: Observer) {
        self.observers.push(observer);
    }

    fn random(&mut self) -> u64 {
        self.identities += 1;
        scramble(self.seed ^ scramble(self.identities))
    }

    fn uid(&mut self) -> String {
        let (high, low) = (self.random(), self.random());
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            high >> 32,
            high >> 16 & 0xffff,
            high & 0xfff,
            low >> 48 & 0x3fff | 0x8000,
            low & 0xffff_ffff_ffff
        )
    }

    fn suffix(&mut self) -> String {
        const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        let mut number = self.random();
        let mut suffix = String::new();
        for _ in 0..5 {
            suffix.push(char::from(
                LETTERS[(number % LETTERS.len() as u64) as usize],
            ));
            number /= LETTERS.len() as u64;
        }
        suffix
    }

    pub fn get(&self, kind: Kind, key: &Key) -> Option<&Arc<Value>> {
        self.collections[kind as usize].objects.get(key)
    }

    /// All objects of a kind as they were right after `version`, in the order of their keys.
    pub fn snapshot(&self, kind: Kind, version: u64) -> Result<BTreeMap<Key, Arc<Value>>, Failure> {
        let collection = &self.collections[kind as usize];
        if version < collection.compacted {
            return Err(Failure {
                message: "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.".to_owned(),
                ..Failure::expired(version, collection.compacted)
            });
        }
        let mut objects = collection.objects.clone();
        for change in collection
            .history
            .iter()
            .rev()
            .take_while(|change| change.version > version)
        {
            match &change.before {
                Some(before) => objects.insert(change.key.clone(), before.clone()),
                None => objects.remove(&change.key),
            };
        }
        Ok(objects)
    }

    pub fn objects(&self, kind: Kind) -> &BTreeMap<Key, Arc<Value>> {
        &self.collections[kind as usize].objects
    }

    /// The changes of a kind after `version`.
    pub fn since(
        &self,
        kind: Kind,
        version: u64,
    ) -> Result<impl Iterator<Item = &Arc<Change>>, Failure> {
        let collection = &self.collections[kind as usize];
        if version < collection.compacted {
            return Err(Failure::expired(version, collection.compacted));
        }
        let start = collection
            .history
            .partition_point(|change| change.version <= version);
        Ok(collection.history.range(start..))
    }

    /// Forgets all history so far, as etcd does every five minutes: older watches and lists get 410.
    pub fn compact(&mut self) {
        for collection in &mut self.collections {
            collection.history.clear();
            collection.compacted = self.version;
        }
    }

    fn record(
        &mut self,
        kind: Kind,
        key: Key,
        context: &Context,
        mut object: Value,
        deleted: bool,
    ) -> Arc<Value> {
        self.version += 1;
        if !matches!(kind, Kind::Lease | Kind::Event) {
            self.activity = self.version;
        }
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let after = Arc::new(object);
        let collection = &mut self.collections[kind as usize];
        let before = if deleted {
            collection.objects.remove(&key)
        } else {
            collection.objects.insert(key.clone(), after.clone())
        };
        let change = Arc::new(Change {
            version: self.version,
            kind,
            key,
            actor: context.actor.clone(),
            before,
            after: after.clone(),
            deleted,
        });
        for observer in &mut self.observers {
            observer(&change);
        }
        collection.history.push_back(change);
        if collection.history.len() > HISTORY
            && let Some(oldest) = collection.history.pop_front()
        {
            collection.compacted = oldest.version;
        }
        if !self.touched.contains(&kind) {
            self.touched.push(kind);
        }
        after
    }

    /// `object` is in the stored form.
    pub fn create(
        &mut self,
        resource: Resource,
        namespace: &str,
        mut object: Value,
        context: &Context,
    ) -> Result<Arc<Value>, Failure> {
        let kind = resource.kind;
        if kind.facts().namespaced != namespace.is_empty() {
            self.check_namespace(namespace)?;
        } else {
            return Err(Failure::bad_request(
                "an empty namespace may not be set during creation",
            ));
        }
        let metadata = &mut object["metadata"];
        if metadata["resourceVersion"]
            .as_str()
            .is_some_and(|version| !version.is_empty() && version != "0")
        {
            return Err(Failure::internal(
                "resourceVersion should not be set on objects to be created",
            ));
        }
        let sent = metadata["namespace"].as_str().unwrap_or_default();
        if !sent.is_empty() && sent != namespace {
            return Err(Failure::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        if metadata["name"].as_str().unwrap_or_default().is_empty() {
            let prefix = metadata["generateName"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            if prefix.is_empty() {
                return Err(Failure::invalid(
                    resource,
                    "",
                    "metadata.name",
                    "FieldValueRequired",
                    "Required value: name or generateName is required",
                ));
            }
            metadata["name"] = json!(format!("{prefix}{}", self.suffix()));
        }
        if !namespace.is_empty() {
            metadata["namespace"] = json!(namespace);
        }
        let name = metadata["name"].as_str().unwrap_or_default().to_owned();
        check_name(resource, &name)?;
        let key = (namespace.to_owned(), name.clone());
        for field in [
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "generation",
        ] {
            metadata
                .as_object_mut()
                .map(|metadata| metadata.remove(field));
        }
        metadata["creationTimestamp"] = json!(context.text());
        if kind.facts().generation {
            metadata["generation"] = json!(1);
        }
        let mut object = strategy::normalise(kind, object)?;
        strategy::prepare_create(kind, &mut object, &context.text());
        strategy::validate(resource, None, &object)?;
        if self.get(kind, &key).is_some() {
            return Err(Failure::already_exists(resource, &name));
        }
        object["metadata"]["uid"] = json!(self.uid());
        Ok(self.record(kind, key, context, object, false))
    }

    fn check_namespace(&self, namespace: &str) -> Result<(), Failure> {
        let key = (String::new(), namespace.to_owned());
        if namespace.is_empty() || self.get(Kind::Namespace, &key).is_some() {
            return Ok(());
        }
        Err(Failure::not_found(
            Resource::stored(Kind::Namespace),
            namespace,
        ))
    }

    /// Replaces an object by `new`, given in the stored form and made from `old`; `status` says through which endpoint.
    pub fn update(
        &mut self,
        resource: Resource,
        key: &Key,
        status: bool,
        mut new: Value,
        context: &Context,
    ) -> Result<Arc<Value>, Failure> {
        let (kind, name) = (resource.kind, key.1.as_str());
        let Some(old) = self.get(kind, key).cloned() else {
            return Err(Failure::not_found(resource, name));
        };
        let current = old["metadata"]["resourceVersion"]
            .as_str()
            .unwrap_or_default();
        match new["metadata"]["resourceVersion"]
            .as_str()
            .unwrap_or_default()
        {
            "" | "0" if kind.facts().unconditional_update => {}
            "" | "0" => return Err(Failure::version_required(resource, name)),
            sent => {
                let sent: u64 = sent.parse().map_err(|_| {
                    Failure::internal(format!(
                        "strconv.ParseUint: parsing {sent:?}: invalid syntax"
                    ))
                })?;
                if current != sent.to_string() {
                    return Err(Failure::modified(resource, name));
                }
            }
        }
        if let Some(uid) = new["metadata"]["uid"].as_str()
            && old["metadata"]["uid"] != uid
        {
            let why = format!("Invalid value: {uid:?}: field is immutable");
            return Err(Failure::invalid(
                resource,
                name,
                "metadata.uid",
                "FieldValueInvalid",
                &why,
            ));
        }
        for field in [
            "name",
            "namespace",
            "uid",
            "resourceVersion",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "generation",
        ] {
            match old["metadata"].get(field) {
                Some(value) => new["metadata"][field] = value.clone(),
                None => {
                    new["metadata"]
                        .as_object_mut()
                        .map(|metadata| metadata.remove(field));
                }
            }
        }
        let mut new = strategy::normalise(kind, new)?;
        strategy::prepare_update(kind, status, &old, &mut new);
        strategy::validate(resource, Some(&old), &new)?;
        if new == *old {
            return Ok(old);
        }
        if kind.facts().generation && old["spec"] != new["spec"] {
            bump_generation(&mut new);
        }
        let metadata = &new["metadata"];
        let doomed = !metadata["deletionTimestamp"].is_null()
            && metadata["finalizers"].is_null()
            && metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0;
        if doomed {
            let last = new.clone();
            self.record(kind, key.clone(), context, new, true);
            return Ok(Arc::new(last));
        }
        Ok(self.record(kind, key.clone(), context, new, false))
    }

    /// The pod's node, set once, by the scheduler.
    pub fn bind(&mut self, key: &Key, binding: &Value, context: &Context) -> Result<(), Failure> {
        let pods = Resource::stored(Kind::Pod);
        let node = binding["target"]["name"].as_str().unwrap_or_default();
        let Some(pod) = self.get(Kind::Pod, key) else {
            return Err(Failure::not_found(pods, &key.1));
        };
        let mut pod = Value::clone(pod);
        let refuse = |why: String| {
            let mut failure = Failure::conflict(pods, &key.1, &why);
            failure.message = failure.message.replacen("pods \"", "pods/binding \"", 1);
            if let Some(details) = &mut failure.details {
                details["kind"] = json!("pods/binding");
            }
            Err(failure)
        };
        if let Some(uid) = binding["metadata"]["uid"].as_str()
            && pod["metadata"]["uid"] != uid
        {
            return refuse(format!(
                "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                pod["metadata"]["uid"].as_str().unwrap_or_default()
            ));
        }
        if !pod["metadata"]["deletionTimestamp"].is_null() {
            return refuse(format!(
                "pod {} is being deleted, cannot be assigned to a host",
                key.1
            ));
        }
        if let Some(taken) = pod["spec"]["nodeName"]
            .as_str()
            .filter(|node| !node.is_empty())
        {
            return refuse(format!(
                "pod {} is already assigned to node {taken:?}",
                key.1
            ));
        }
        pod["spec"]["nodeName"] = json!(node);
        let scheduled =
            json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": context.text()});
        match pod["status"]["conditions"].as_array_mut() {
            Some(conditions) => {
                conditions.retain(|condition| condition["type"] != "PodScheduled");
                conditions.push(scheduled);
            }
            None => pod["status"]["conditions"] = json!([scheduled]),
        }
        self.record(Kind::Pod, key.clone(), context, pod, false);
        Ok(())
    }

    /// Marks or removes an object; the answer is its last or present state, and whether it is gone.
    pub fn delete(
        &mut self,
        resource: Resource,
        key: &Key,
        options: &DeleteOptions,
        context: &Context,
    ) -> Result<(Arc<Value>, bool), Failure> {
        let (kind, name) = (resource.kind, key.1.as_str());
        let Some(old) = self.get(kind, key).cloned() else {
            return Err(Failure::not_found(resource, name));
        };
        let metadata = &old["metadata"];
        let field = |field: &str| metadata[field].as_str().unwrap_or_default();
        if let Some(uid) = &options.uid
            && uid != field("uid")
        {
            let why = format!(
                "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been deleted and then recreated",
                field("uid")
            );
            return Err(Failure::precondition(resource, name, &why));
        }
        if let Some(version) = &options.version
            && version != field("resourceVersion")
        {
            let why = format!(
                "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record ({}). The object might have been modified",
                field("resourceVersion")
            );
            return Err(Failure::precondition(resource, name, &why));
        }
        let terminating = !metadata["deletionTimestamp"].is_null();
        let finalized = metadata["finalizers"].is_null();
        if kind == Kind::Pod {
            let grace = self.pod_grace(&old, options);
            let present = metadata["deletionGracePeriodSeconds"].as_i64();
            if terminating && present.is_some_and(|present| present <= grace) {
                if present != Some(0) || !finalized {
                    return Ok((old, false));
                }
            } else {
                let marked = mark(&old, grace, context.now);
                let marked = self.record(kind, key.clone(), context, marked, false);
                if grace > 0 || !finalized {
                    return Ok((marked, false));
                }
            }
        } else if !finalized {
            if terminating {
                return Ok((old, false));
            }
            let marked = mark(&old, 0, context.now);
            return Ok((
                self.record(kind, key.clone(), context, marked, false),
                false,
            ));
        }
        let last = self.get(kind, key).cloned().unwrap_or(old);
        Ok((
            self.record(kind, key.clone(), context, Value::clone(&last), true),
            true,
        ))
    }

    /// A pod that never ran, or has finished, goes at once.
    fn pod_grace(&self, pod: &Value, options: &DeleteOptions) -> i64 {
        let asked = options
            .grace
            .or(pod["spec"]["terminationGracePeriodSeconds"].as_i64())
            .unwrap_or(30);
        let unscheduled = pod["spec"]["nodeName"]
            .as_str()
            .unwrap_or_default()
            .is_empty();
        let finished = matches!(
            pod["status"]["phase"].as_str(),
            Some("Succeeded" | "Failed")
        );
        if unscheduled || finished {
            return 0;
        }
        // Negative means "the least that is still graceful".
        if asked < 0 { 1 } else { asked }
    }
}

fn bump_generation(object: &mut Value) {
    let generation = object["metadata"]["generation"].as_i64().unwrap_or(0);
    object["metadata"]["generation"] = json!(generation + 1);
}

fn mark(object: &Value, grace: i64, now: jiff::Timestamp) -> Value {
    let mut object = object.clone();
    let first = object["metadata"]["deletionTimestamp"].is_null();
    // A shorter grace period counts from the first request.
    let asked = object["metadata"]["deletionTimestamp"]
        .as_str()
        .and_then(|time| time.parse::<jiff::Timestamp>().ok())
        .map(|due| {
            let before = object["metadata"]["deletionGracePeriodSeconds"]
                .as_i64()
                .unwrap_or(0);
            due - jiff::SignedDuration::from_secs(before)
        })
        .unwrap_or(now);
    object["metadata"]["deletionTimestamp"] =
        json!(seconds(asked + jiff::SignedDuration::from_secs(grace)));
    object["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
    if first && object["metadata"]["generation"].is_i64() {
        bump_generation(&mut object);
    }
    object
}

fn check_name(resource: Resource, name: &str) -> Result<(), Failure> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let free = matches!(resource.kind, Kind::Event);
    if name.len() <= 253
        && (free
            || name.chars().all(plain) && edge(name.chars().next()) && edge(name.chars().last()))
    {
        return Ok(());
    }
    let why = format!(
        "Invalid value: {name:?}: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character"
    );
    Err(Failure::invalid(
        resource,
        name,
        "metadata.name",
        "FieldValueInvalid",
        &why,
    ))
}
