//! Watches: the API server's changes as observations. What they show may be old; nothing irreversible is done by it.

use std::fmt::Debug;
use std::time::Duration;

use futures::stream::StreamExt;
use kube::Api;
use kube::runtime::watcher::{self, Event};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use super::PAGE;

/// How long the server may keep one watch open, in seconds. A dead connection is noticed only after that.
const OPEN: u32 = 60;
/// Waiting time after a failed watch: doubled from the first to the last.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// A change of the watched objects.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Change<T> {
    /// These are all of them now; what is not among them is gone.
    All(Vec<T>),
    Applied(T),
    Deleted(T),
    /// The watch is broken: what is known may be old, until `All` comes again.
    Stale(String),
}

/// Watches until the receiver is gone. `observe` narrows each object down to what matters, or drops it.
pub async fn watch<V, T, O>(
    api: Api<V>,
    select: watcher::Config,
    observe: impl Fn(V) -> Option<T>,
    wrap: impl Fn(Change<T>) -> O,
    observations: mpsc::Sender<O>,
) where
    V: kube::Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let select = select.timeout(OPEN).page_size(PAGE);
    let mut wait = BACKOFF.0;
    loop {
        let mut stream = std::pin::pin!(watcher::watcher(api.clone(), select.clone()));
        let mut all = Vec::new();
        let problem = loop {
            let change = match stream.next().await {
                Some(Ok(Event::Init)) => {
                    all.clear();
                    continue;
                }
                Some(Ok(Event::InitApply(object))) => {
                    all.extend(observe(object));
                    continue;
                }
                Some(Ok(Event::InitDone)) => Change::All(std::mem::take(&mut all)),
                Some(Ok(Event::Apply(object))) => match observe(object) {
                    Some(seen) => Change::Applied(seen),
                    None => continue,
                },
                Some(Ok(Event::Delete(object))) => match observe(object) {
                    Some(seen) => Change::Deleted(seen),
                    None => continue,
                },
                Some(Err(error)) => break error.to_string(),
                None => break "the stream ended".to_owned(),
            };
            wait = BACKOFF.0;
            if observations.send(wrap(change)).await.is_err() {
                return;
            }
        };
        // A new watcher, since an expired version would otherwise be asked for again and again.
        if observations
            .send(wrap(Change::Stale(problem)))
            .await
            .is_err()
        {
            return;
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(BACKOFF.1);
    }
}
