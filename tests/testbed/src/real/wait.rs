//! Waiting for a condition with a deadline, the only way in which anything here waits.

use std::time::{Duration, Instant};

use super::{Error, Result};

/// How often a condition is looked at.
const INTERVAL: Duration = Duration::from_millis(50);

/// What a look at a condition found.
#[derive(Debug)]
pub enum Seen<T> {
    /// It holds.
    Yes(T),
    /// Not yet; the text says what is there instead, for the message at the deadline.
    NotYet(String),
}

impl From<bool> for Seen<()> {
    fn from(holds: bool) -> Self {
        if holds {
            Seen::Yes(())
        } else {
            Seen::NotYet("no".into())
        }
    }
}

/// Looks again and again until `look` says yes. An error of `look` is "not yet": the API server may be restarting, an object
/// may not be there. At the deadline the last finding is in the error.
pub async fn wait_until<T, S: Into<Seen<T>>>(
    what: impl Into<String>,
    deadline: Duration,
    mut look: impl AsyncFnMut() -> Result<S>,
) -> Result<T> {
    let started = Instant::now();
    let mut last = String::from("nothing");
    loop {
        let left = deadline.saturating_sub(started.elapsed());
        match tokio::time::timeout(left, look()).await {
            Ok(Ok(seen)) => match seen.into() {
                Seen::Yes(value) => return Ok(value),
                Seen::NotYet(why) => last = why,
            },
            Ok(Err(ended @ Error::Ended { .. })) => return Err(ended),
            Ok(Err(error)) => last = error.to_string(),
            Err(_) => {
                return Err(Error::Deadline {
                    what: what.into(),
                    deadline,
                    last,
                });
            }
        }
        tokio::time::sleep(INTERVAL).await;
    }
}
