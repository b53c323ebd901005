//! What is known of the fences of one evacuation.

use std::collections::BTreeMap;

use super::{AFTER_GIVING_UP, Attempt, FENCE_STANDS, WITHHELD};
use crate::clock::Moment;
use crate::controller::step::Unfenced;
use crate::domain::{NodeId, VolumeName};
use crate::journal::Volume;

/// Calls for one volume and one node id; one at a time.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Calls {
    attempt: Attempt,
    /// Start of the last call that said OK.
    ok: Option<Moment>,
    /// End of the last call that was given up: it may act still.
    given_up: Option<Moment>,
    /// A call may have left this process.
    sent: bool,
    error: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Fences {
    calls: BTreeMap<(VolumeName, NodeId), Calls>,
    /// A fence is due and waits for a Node read a moment ago.
    waiting: bool,
}

impl Fences {
    pub(super) fn any_under_way(&self) -> bool {
        self.calls.values().any(|calls| calls.attempt.under_way)
    }

    pub(super) fn waiting(&self) -> bool {
        self.waiting
    }

    pub(super) fn wait(&mut self, waiting: bool) {
        self.waiting = waiting;
    }

    /// Every id of the volume was fenced by a call that began at `since` or later.
    pub(super) fn stands_since(&self, name: &VolumeName, volume: &Volume, since: Moment) -> bool {
        !volume.node_ids.is_empty()
            && volume.node_ids.iter().all(|id| {
                let calls = self.calls.get(&(name.clone(), id.clone()));
                calls
                    .and_then(|calls| calls.ok)
                    .is_some_and(|ok| ok >= since)
            })
    }

    /// Every id of the volume was fenced a moment ago.
    pub(super) fn stands(&self, name: &VolumeName, volume: &Volume, now: Moment) -> bool {
        let mut oks = volume.node_ids.iter().map(|id| {
            let calls = self.calls.get(&(name.clone(), id.clone()));
            calls.and_then(|calls| calls.ok)
        });
        !volume.node_ids.is_empty() && oks.all(|ok| ok.is_some_and(|ok| now - ok < FENCE_STANDS))
    }

    /// The ids for which a call may begin now, of those not fenced since `since`; and when the next one may.
    pub(super) fn due(
        &self,
        name: &VolumeName,
        volume: &Volume,
        since: Moment,
        now: Moment,
    ) -> (Vec<NodeId>, Option<Moment>) {
        let mut due = Vec::new();
        let mut next: Option<Moment> = None;
        for id in &volume.node_ids {
            let calls = self.calls.get(&(name.clone(), id.clone()));
            if calls.and_then(|c| c.ok).is_some_and(|ok| ok >= since) {
                continue;
            }
            match calls {
                Some(calls) if calls.attempt.under_way => {}
                Some(calls) if !calls.attempt.due(now) => {
                    let at = calls.attempt.not_before;
                    next = Some(next.map_or(at, |next| next.min(at)));
                }
                _ => due.push(id.clone()),
            }
        }
        (due, next)
    }

    pub(super) fn begin(&mut self, volume: &VolumeName, id: &NodeId) {
        self.at(volume, id).attempt.begin();
    }

    /// `own`: this id is the one that the volume was published to, as far as is known.
    pub(super) fn record(
        &mut self,
        volume: &VolumeName,
        id: &NodeId,
        started: Moment,
        now: Moment,
        result: Result<(), Unfenced>,
        own: bool,
    ) {
        let calls = self.at(volume, id);
        // Published to another id than this one: that the array does not know it is as good as revoked.
        let result = match result {
            Err(Unfenced::NotFound) if !own => Ok(()),
            result => result,
        };
        match result {
            Ok(()) => {
                calls.ok = Some(started);
                calls.sent = true;
                calls.error = None;
                calls.attempt.succeeded();
            }
            Err(Unfenced::Withheld) => {
                calls.attempt.under_way = false;
                calls.attempt.not_before = now + WITHHELD;
            }
            Err(unfenced) => {
                calls.sent |= !matches!(unfenced, Unfenced::NeverSent(_));
                if matches!(unfenced, Unfenced::GivenUp(_)) {
                    calls.given_up = Some(now);
                }
                calls.error = Some(match unfenced {
                    Unfenced::NeverSent(text)
                    | Unfenced::Refused(text)
                    | Unfenced::GivenUp(text) => text,
                    Unfenced::NotFound | Unfenced::Withheld => {
                        "the driver knows no such volume or node".into()
                    }
                });
                calls.attempt.failed(now);
            }
        }
    }

    /// The last error of a volume that is not fenced.
    pub(super) fn error(&self, name: &VolumeName, volume: &Volume) -> Option<&str> {
        volume.node_ids.iter().find_map(|id| {
            let calls = self.calls.get(&(name.clone(), id.clone()))?;
            calls.error.as_deref()
        })
    }

    /// Whether any call for the volume may have left this process.
    pub(super) fn sent(&self, name: &VolumeName) -> bool {
        let mut calls = self.calls.iter().filter(|((volume, _), _)| volume == name);
        calls.any(|(_, calls)| calls.sent || calls.attempt.under_way)
    }

    /// When a call for the volume was last given up that no later one made up for.
    pub(super) fn unsettled(&self, name: &VolumeName) -> Option<Moment> {
        let calls = self.calls.iter().filter(|((volume, _), _)| volume == name);
        let given_up = calls.filter_map(|(_, calls)| {
            let given_up = calls.given_up?;
            calls.ok.is_none_or(|ok| ok < given_up).then_some(given_up)
        });
        given_up.max()
    }

    /// When no call that was given up can act any more: `None` while that waits for a later OK.
    pub(super) fn quiet_from(&self, name: &VolumeName) -> Option<Moment> {
        let calls = self.calls.iter().filter(|((volume, _), _)| volume == name);
        let mut quiet = Moment::default();
        for (_, calls) in calls {
            if calls.attempt.under_way {
                return None;
            }
            if let Some(given_up) = calls.given_up {
                if calls.ok.is_none_or(|ok| ok < given_up) {
                    return None;
                }
                quiet = quiet.max(given_up + AFTER_GIVING_UP);
            }
        }
        Some(quiet)
    }

    fn at(&mut self, volume: &VolumeName, id: &NodeId) -> &mut Calls {
        self.calls.entry((volume.clone(), id.clone())).or_default()
    }
}
