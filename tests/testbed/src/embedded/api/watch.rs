//! Watches: a stream of changes after a version, with bookmarks and an end.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::failure::Failure;
use super::kind::Resource;
use super::selector::Selector;
use super::store::Change;
use super::{Server, event};

/// How often a quiet watch is told the newest version.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);

/// Where a watch starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With what is there now, as `ADDED`; `mark` its end by a bookmark.
    Now { mark: bool },
    /// After this version.
    After(u64),
}

/// What a client watches.
pub struct Watch {
    pub resource: Resource,
    pub namespace: String,
    pub selector: Selector,
    pub start: Start,
    pub bookmarks: bool,
    pub timeout: Duration,
}

struct Position {
    server: Server,
    watch: Watch,
    seen: u64,
    ends: Instant,
    bookmark: Instant,
    ready: VecDeque<Bytes>,
    over: bool,
}

/// Lines of JSON, one watch event each.
pub fn stream(server: Server, watch: Watch) -> impl Stream<Item = Bytes> + Send + 'static {
    let now = Instant::now();
    let mut position = Position {
        ends: now + watch.timeout,
        bookmark: now + BOOKMARK_INTERVAL,
        seen: 0,
        ready: VecDeque::new(),
        over: false,
        server,
        watch,
    };
    position.begin();
    stream::unfold(position, |mut position| async move {
        position.next().await.map(|line| (line, position))
    })
    .fuse()
}

impl Position {
    fn begin(&mut self) {
        match self.watch.start {
            Start::After(version) => self.seen = version,
            Start::Now { mark } => {
                let server = self.server.clone();
                let store = server.lock();
                self.seen = store.version();
                for object in store.objects(self.watch.resource.kind).values() {
                    if self.wants(object) {
                        self.line("ADDED", object);
                    }
                }
                if mark {
                    self.mark(json!({"k8s.io/initial-events-end": "true"}));
                }
            }
        }
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                return Some(line);
            }
            if self.over {
                return None;
            }
            let server = self.server.clone();
            let changed = server.changed(self.watch.resource.kind);
            let mut changed = std::pin::pin!(changed.notified());
            changed.as_mut().enable();
            self.collect();
            if !self.ready.is_empty() || self.over {
                continue;
            }
            tokio::select! {
                biased;
                () = &mut changed => {}
                () = tokio::time::sleep_until(self.ends) => {
                    self.over = true;
                    if self.watch.bookmarks {
                        self.mark(json!({}));
                    }
                }
                () = tokio::time::sleep_until(self.bookmark) => {
                    self.bookmark += BOOKMARK_INTERVAL;
                    if self.watch.bookmarks {
                        self.mark(json!({}));
                    }
                }
            }
        }
    }

    /// Takes over what has happened since the last look.
    fn collect(&mut self) {
        let server = self.server.clone();
        let store = server.lock();
        let changes: Result<Vec<Arc<Change>>, Failure> = store
            .since(self.watch.resource.kind, self.seen)
            .map(|changes| changes.cloned().collect());
        // A watch may be told to start in the future; it waits there.
        self.seen = self.seen.max(store.version());
        drop(store);
        match changes {
            Ok(changes) => changes.iter().for_each(|change| self.change(change)),
            Err(expired) => {
                self.over = true;
                let line = json!({"type": "ERROR", "object": expired.to_status()});
                self.ready.push_back(text(&line));
            }
        }
    }

    fn wants(&self, object: &Value) -> bool {
        (self.watch.namespace.is_empty()
            || object["metadata"]["namespace"] == self.watch.namespace.as_str())
            && self.watch.selector.matches(object)
    }

    fn change(&mut self, change: &Change) {
        let before = change
            .before
            .as_ref()
            .is_some_and(|object| self.wants(object));
        let after = !change.deleted && self.wants(&change.after);
        match (before, after) {
            (false, true) => self.line("ADDED", &change.after),
            (true, true) => self.line("MODIFIED", &change.after),
            // An object that no longer matches is sent in its last matching state, with the version of the change.
            (true, false) => {
                let last = change
                    .before
                    .as_ref()
                    .filter(|_| !change.deleted)
                    .unwrap_or(&change.after);
                let mut last = Value::clone(last);
                last["metadata"]["resourceVersion"] = json!(change.version.to_string());
                self.line("DELETED", &last);
            }
            (false, false) => {}
        }
    }

    fn line(&mut self, what: &str, object: &Value) {
        let line = if self.watch.resource.group == self.watch.resource.kind.facts().group {
            // Spares a copy of the object.
            let mut line = format!("{{\"type\":\"{what}\",\"object\":").into_bytes();
            if serde_json::to_writer(&mut line, object).is_err() {
                return;
            }
            line.extend_from_slice(b"}\n");
            Bytes::from(line)
        } else {
            text(&json!({"type": what, "object": event::to_new(object)}))
        };
        self.ready.push_back(line);
    }

    fn mark(&mut self, annotations: Value) {
        let mut metadata = json!({"resourceVersion": self.seen.to_string()});
        if annotations
            .as_object()
            .is_some_and(|annotations| !annotations.is_empty())
        {
            metadata["annotations"] = annotations;
        }
        let object = json!({
            "kind": self.watch.resource.kind.facts().name,
            "apiVersion": self.watch.resource.api_version(),
            "metadata": metadata,
        });
        self.ready
            .push_back(text(&json!({"type": "BOOKMARK", "object": object})));
    }
}

fn text(line: &Value) -> Bytes {
    Bytes::from(format!("{line}\n"))
}
