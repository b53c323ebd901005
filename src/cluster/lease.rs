//! Leadership by a Lease: every write carries the version that was read, and time is our own clock's, so that two
//! candidates never both win (rust.md: neither merge patches nor wall clocks can give that).
//!
//! A lease cannot fence. What a deposed leader still sends is harmless by its preconditions (design.md, invariant 2)
//! or guarded (protocol.md §5).

use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Api;
use kube::api::PostParams;
use kube::core::ObjectMeta;
use kube::runtime::{WatchStreamExt, watcher};
use tokio::sync::watch;

use super::{ClusterError, request};
use crate::clock::{Clock, Moment};

/// The name that every podmon uses, whatever its driver (contract §1.6).
pub const NAME: &str = "podmon-1";
/// How long a holder that does not renew keeps others out.
const DURATION: Duration = Duration::from_secs(15);
/// How long after its last renewal a leader may still act.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// How often the leader renews.
const RENEW: Duration = Duration::from_secs(5);
/// How long one renewal may take: a second try must fit before the claim ends.
const RENEWAL: Duration = Duration::from_secs(2);
/// How often a candidate looks although the watch shows no change.
const RETRY: Duration = Duration::from_secs(5);

/// A term of leadership. Whoever acts asks it at each use, since it runs out without a message.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Claim {
    /// Identity and number of the term: the same replica leading again is another.
    pub by: String,
    /// When it ends unless renewed.
    pub until: Moment,
}

/// The proof that an effect may begin: a claim that outlasts the effect's deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Live {
    within: Duration,
}

impl Claim {
    /// A proof for an effect that wants to take at most `wanted`; `None` once the claim has (nearly) run out.
    pub fn live(&self, now: Moment, wanted: Duration) -> Option<Live> {
        let left = self.until - now;
        let within = wanted.min(left.saturating_sub(MARGIN));
        (within >= SHORTEST).then_some(Live { within })
    }
}

impl Live {
    /// The deadline of the effect.
    pub fn within(self) -> Duration {
        self.within
    }
}

/// What is left unused of a claim, for the time between the check and the call.
const MARGIN: Duration = Duration::from_millis(500);
/// A call that cannot take this long is not begun.
const SHORTEST: Duration = Duration::from_millis(500);

/// What a candidate saw of the lease, and when it first saw it so.
#[derive(Clone, PartialEq, Debug)]
struct Seen {
    holder: String,
    renewed: Option<Timestamp>,
    transitions: i32,
    since: Moment,
}

/// Why leadership ended.
#[derive(thiserror::Error, Debug)]
pub enum Lost {
    #[error("not renewed for {RENEW_DEADLINE:?}: {0}")]
    NotRenewed(ClusterError),
    #[error("{0} leads now")]
    Taken(String),
}

/// One candidate for a lease.
pub struct Election {
    api: Api<Lease>,
    identity: String,
    clock: Clock,
    claims: watch::Sender<Option<Claim>>,
}

/// The identity of a replica: its host name, with what does not belong in a name replaced (contract §1.6).
pub fn identity(hostname: &str) -> String {
    let keep = |c: char| {
        if c.is_ascii_alphanumeric() || c == '-' {
            c
        } else {
            '-'
        }
    };
    let mut name: String = hostname.chars().map(keep).collect();
    if name.ends_with('-') {
        name.push('X');
    }
    name
}

impl Election {
    /// A candidate with a client of its own, so that no other traffic holds up a renewal; its claims appear on the
    /// receiver.
    pub fn new(
        client: kube::Client,
        namespace: &str,
        identity: String,
        clock: Clock,
    ) -> (Self, watch::Receiver<Option<Claim>>) {
        let (claims, receiver) = watch::channel(None);
        let election = Self {
            api: Api::namespaced(client, namespace),
            identity,
            clock,
            claims,
        };
        (election, receiver)
    }

    /// Stands until elected, leads until that is lost, and says why.
    pub async fn run(self) -> Lost {
        let lease = self.acquire().await;
        self.lead(lease).await
    }

    async fn acquire(&self) -> Lease {
        let mut seen: Option<Seen> = None;
        let mut said = String::new();
        // Shows a renewal when it happens, so that the time since the last one is known well.
        let changes = watcher::watch_object(self.api.clone(), NAME).default_backoff();
        let mut changes = std::pin::pin!(changes);
        loop {
            let started = self.clock.now();
            match self.attempt(&mut seen).await {
                Ok(Some(lease)) => {
                    self.publish(&lease, started);
                    return lease;
                }
                Ok(None) => {
                    let holder = seen.as_ref().map(|s| s.holder.clone()).unwrap_or_default();
                    if said != holder {
                        tracing::info!(lease = NAME, %holder, "Standing by: another podmon leads");
                        said = holder;
                    }
                }
                Err(error) if error.is_conflict() => {}
                Err(error) => {
                    tracing::warn!(%error, lease = NAME, "Cannot stand for election; trying again")
                }
            }
            let free = seen.as_ref().map(|seen| seen.since + DURATION);
            let wait = free.map_or(RETRY, |free| (free - self.clock.now()).min(RETRY));
            tokio::select! {
                () = tokio::time::sleep(wait.max(SHORTEST)) => {}
                _ = changes.next() => {}
            }
        }
    }

    /// One look at the lease, and a versioned write if it is free.
    async fn attempt(&self, seen: &mut Option<Seen>) -> Result<Option<Lease>, ClusterError> {
        let found = request(
            || format!("get lease {NAME}"),
            RENEW,
            self.api.get_opt(NAME),
        )
        .await?;
        let Some(mut lease) = found else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(NAME.into()),
                    ..Default::default()
                },
                spec: Some(self.spec(1, self.clock.wall())),
            };
            let params = PostParams::default();
            let call = self.api.create(&params, &lease);
            return request(|| format!("create lease {NAME}"), RENEW, call)
                .await
                .map(Some);
        };
        let spec = lease.spec.take().unwrap_or_default();
        let now = self.clock.now();
        let holder = spec.holder_identity.unwrap_or_default();
        let renewed = spec.renew_time.map(|time| time.0);
        let transitions = spec.lease_transitions.unwrap_or(0);
        let same = seen
            .as_ref()
            .filter(|s| s.holder == holder && s.renewed == renewed && s.transitions == transitions);
        let since = same.map_or(now, |s| s.since);
        // A record of our own name is that of a process before us: containers of a pod follow one another.
        let free = holder.is_empty() || holder == self.identity || now - since >= DURATION;
        *seen = Some(Seen {
            holder,
            renewed,
            transitions,
            since,
        });
        if !free {
            return Ok(None);
        }
        // A new term even after our own: whoever resumes from memory is told apart.
        lease.spec = Some(self.spec(transitions.saturating_add(1), self.clock.wall()));
        self.replace(&lease).await.map(Some)
    }

    async fn lead(&self, mut lease: Lease) -> Lost {
        let mut wait = RENEW;
        loop {
            tokio::time::sleep(wait).await;
            let started = self.clock.now();
            if let Some(spec) = &mut lease.spec {
                spec.renew_time = Some(MicroTime(self.clock.wall()));
            }
            match self.replace(&lease).await {
                Ok(renewed) => {
                    self.publish(&renewed, started);
                    lease = renewed;
                    wait = RENEW;
                }
                Err(error) => {
                    if let Some(lost) = self.after_failure(&mut lease, error).await {
                        self.claims.send_replace(None);
                        return lost;
                    }
                    wait = Duration::from_millis(500);
                }
            }
        }
    }

    /// After a renewal that failed: whether leadership is lost, or only the version is old.
    async fn after_failure(&self, lease: &mut Lease, error: ClusterError) -> Option<Lost> {
        if error.is_conflict() || error.is_not_found() {
            let found = request(
                || format!("get lease {NAME}"),
                RENEW,
                self.api.get_opt(NAME),
            )
            .await;
            match found {
                Ok(Some(current)) => {
                    let of = |lease: &Lease| {
                        let spec = lease.spec.clone().unwrap_or_default();
                        (spec.holder_identity, spec.lease_transitions)
                    };
                    if of(&current) != of(lease) {
                        let holder = of(&current).0.unwrap_or_default();
                        return Some(Lost::Taken(holder));
                    }
                    lease.metadata = current.metadata;
                    return None;
                }
                Ok(None) => return Some(Lost::Taken("nobody (the lease was deleted)".into())),
                Err(_) => {}
            }
        }
        let until = self.claims.borrow().as_ref().map(|claim| claim.until);
        if until.is_none_or(|until| self.clock.now() >= until) {
            return Some(Lost::NotRenewed(error));
        }
        tracing::warn!(%error, "Leadership could not be renewed; trying again");
        None
    }

    async fn replace(&self, lease: &Lease) -> Result<Lease, ClusterError> {
        let params = PostParams::default();
        let call = self.api.replace(NAME, &params, lease);
        request(|| format!("update lease {NAME}"), RENEWAL, call).await
    }

    /// The claim counts from before the write was sent: when it arrived is not known.
    fn publish(&self, lease: &Lease, started: Moment) {
        let term = lease.spec.as_ref().and_then(|spec| spec.lease_transitions);
        self.claims.send_replace(Some(Claim {
            by: format!("{}/{}", self.identity, term.unwrap_or(0)),
            until: started + RENEW_DEADLINE,
        }));
    }

    fn spec(&self, transitions: i32, now: Timestamp) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(DURATION.as_secs() as i32),
            acquire_time: Some(MicroTime(now)),
            renew_time: Some(MicroTime(now)),
            lease_transitions: Some(transitions),
            ..Default::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_is_a_clean_host_name() {
        assert_eq!(identity("ctl-0"), "ctl-0");
        assert_eq!(identity("host.example_"), "host-example-X");
    }

    #[test]
    fn a_claim_proves_nothing_beyond_its_end() {
        let at = |seconds| Moment::since_boot(Duration::from_secs(seconds));
        let claim = Claim {
            by: "a/1".into(),
            until: at(10),
        };
        let second = Duration::from_secs(1);
        assert_eq!(claim.live(at(0), second).map(Live::within), Some(second));
        let shortened = claim.live(at(8), 5 * second).map(Live::within);
        assert_eq!(shortened, Some(Duration::from_millis(1500)));
        assert_eq!(claim.live(at(10), second), None);
        assert_eq!(claim.live(at(99), second), None);
    }
}
