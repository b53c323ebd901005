//! Live reload of the configuration file.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use super::{FileError, Settings, Source};

/// Time between two looks at the file. A change takes effect at the second look that finds it.
pub const INTERVAL: Duration = Duration::from_secs(2);

/// Looks at the file's content again and again. Polling sees what a file watch may miss: the swapped symlinks of a
/// ConfigMap, a file that is missing for a while, a file system without notifications.
#[derive(Debug)]
pub struct Follower {
    source: Source,
    /// What the settings in effect were read from.
    applied: Vec<u8>,
    sender: watch::Sender<Settings>,
}

impl Follower {
    pub(super) fn new(source: Source, applied: Vec<u8>, settings: Settings) -> Self {
        Self {
            source,
            applied,
            sender: watch::Sender::new(settings),
        }
    }

    /// The values in effect, now and later.
    pub fn subscribe(&self) -> watch::Receiver<Settings> {
        self.sender.subscribe()
    }

    /// Follows the file for ever. `on_change` is called with each new set of values before it is published.
    pub async fn run(mut self, on_change: impl Fn(&Settings)) {
        let mut looks = interval(INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut missing = false;
        let mut previous = None;
        loop {
            looks.tick().await;
            let contents = match tokio::fs::read(&self.source.path).await {
                Ok(contents) => contents,
                Err(reason) => {
                    if !missing {
                        let error = self.source.unread(reason);
                        tracing::warn!("{error}; the values in effect stay");
                    }
                    missing = true;
                    continue;
                }
            };
            if missing {
                tracing::info!("the configuration file can be read again");
                missing = false;
            }
            // Seen twice: a file that is just being written is not taken half-done.
            if contents != self.applied && previous.as_ref() == Some(&contents) {
                self.reload(&contents, &on_change);
                self.applied = contents.clone();
            }
            previous = Some(contents);
        }
    }

    /// A fault is only a warning; keys before it have taken effect by then.
    fn reload(&self, contents: &[u8], on_change: &impl Fn(&Settings)) {
        tracing::info!("configuration file has changed");
        let mut settings = self.sender.borrow().clone();
        let applied = match self.source.document(contents) {
            Ok(document) => self
                .source
                .apply(&document, &mut settings)
                .map_err(|error| format!("error with configuration parameters: {error}")),
            Err(error @ (FileError::Read { .. } | FileError::Parse { .. })) => {
                Err(error.to_string())
            }
        };
        on_change(&settings);
        if let Err(error) = applied {
            tracing::warn!("{error}; the values behind it stay as they were");
        }
        settings.log();
        self.sender.send_replace(settings);
    }
}
