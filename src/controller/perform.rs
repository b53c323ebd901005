//! The only place with effects: carries out a step and says what came of it. No policy lives here.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tonic::Code;

use crate::clock::Clock;
use crate::cluster::event::{Events, Report};
use crate::cluster::lease::{Claim, Live};
use crate::cluster::node::Node;
use crate::cluster::{Cluster, ClusterError, Deleted, NodePatch, REQUEST};
use crate::csi::{Connectivity, Driver, DriverError};
use crate::domain::{Incarnation, NodeId, NodeName, VolumeHandle};

use super::array::Poll;
use super::step::{Fence, GUARD, Outcome, Question, Refused, Sight, Step, Unfenced};

/// Deadline of a call to the driver; that of a fence is also what is left of the claim.
const DRIVER_CALL: Duration = Duration::from_secs(10);
/// Calls under way at once: the group that waits is not the one that hangs.
const QUESTIONS: usize = 64;
const FENCES: usize = 256;
const REQUESTS: usize = 24;

#[derive(Clone)]
pub struct Effects {
    cluster: Cluster,
    driver: Driver,
    clock: Clock,
    claims: watch::Receiver<Option<Claim>>,
    events: Events,
    fencing: Fencing,
    questions: Arc<Semaphore>,
    fences: Arc<Semaphore>,
    requests: Arc<Semaphore>,
}

/// The fences under way in this process, whatever evacuation they were sent for (protocol.md §5, guard 2).
#[derive(Clone, Default)]
struct Fencing(Arc<Mutex<BTreeSet<(VolumeHandle, NodeId)>>>);

/// One fence under way; dropping it frees its place.
struct Place {
    fencing: Fencing,
    call: (VolumeHandle, NodeId),
}

impl Fencing {
    fn enter(&self, fence: &Fence) -> Option<Place> {
        let call = (fence.handle.clone(), fence.node.clone());
        let mut calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        calls.insert(call.clone()).then(|| Place {
            fencing: self.clone(),
            call,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut calls = self
            .fencing
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        calls.remove(&self.call);
    }
}

impl Effects {
    pub fn new(
        cluster: Cluster,
        driver: Driver,
        clock: Clock,
        claims: watch::Receiver<Option<Claim>>,
        events: Events,
    ) -> Self {
        Self {
            cluster,
            driver,
            clock,
            claims,
            events,
            fencing: Fencing::default(),
            questions: Arc::new(Semaphore::new(QUESTIONS)),
            fences: Arc::new(Semaphore::new(FENCES)),
            requests: Arc::new(Semaphore::new(REQUESTS)),
        }
    }

    /// Carries out one step for this node.
    pub async fn perform(&self, node: &NodeName, step: Step) -> Outcome {
        let at_once = match &step {
            Step::Ask(_) => &self.questions,
            Step::Fence(_) => &self.fences,
            _ => &self.requests,
        };
        // Held until the step is done; a closed semaphore does not occur, and would only lift the bound.
        let _permit = at_once.acquire().await.ok();
        match step {
            Step::Survey => {
                let survey = self.cluster.survey(node, self.clock.now()).await;
                Outcome::Survey(survey.map_err(|error| error.to_string()))
            }
            Step::Look => {
                let at = self.clock.now();
                let found = self.cluster.node(node).await;
                Outcome::Look {
                    at,
                    node: found.map_err(|error| error.to_string()),
                }
            }
            Step::Ask(question) => Outcome::Ask {
                group: question.group.clone(),
                answer: self.ask(&question).await.map_err(|error| error.to_string()),
            },
            Step::Patch(patch) => Outcome::Patch {
                at: self.clock.now(),
                node: self.patch_node(&patch).await,
            },
            Step::ForgetInUse { version, volumes } => {
                let at = self.clock.now();
                let patched = match self.live(REQUEST) {
                    Some(live) => {
                        let call = self.cluster.patch_volumes_in_use(
                            node,
                            &version,
                            &volumes,
                            live.within(),
                        );
                        call.await.map_err(refused)
                    }
                    None => Err(Refused::NotLeading),
                };
                Outcome::ForgetInUse { at, node: patched }
            }
            Step::Fence(fence) => {
                let started = self.clock.now();
                let result = self.fence(&fence).await;
                Outcome::Fence {
                    evacuation: fence.evacuation,
                    volume: fence.volume,
                    node: fence.node,
                    started,
                    result,
                }
            }
            Step::DeletePod { pod, version } => {
                let result = match self.live(REQUEST) {
                    Some(live) => {
                        let call =
                            self.cluster
                                .force_delete_pod(&pod, version.as_ref(), live.within());
                        call.await.map_err(refused)
                    }
                    None => Err(Refused::NotLeading),
                };
                Outcome::DeletePod { pod, result }
            }
            Step::DeleteAttachment { name, uid } => {
                let result = match self.live(REQUEST) {
                    Some(live) => {
                        let call = self.cluster.delete_attachment(&name, &uid, live.within());
                        call.await.map_err(refused)
                    }
                    None => Err(Refused::NotLeading),
                };
                Outcome::DeleteAttachment { uid, result }
            }
            Step::Report(report) => {
                self.events.report(report);
                Outcome::Reported
            }
        }
    }

    /// Writes taints and journal, in the state that the patch was computed from only.
    pub async fn patch_node(&self, patch: &NodePatch) -> Result<Node, Refused> {
        let live = self.live(REQUEST).ok_or(Refused::NotLeading)?;
        self.cluster
            .patch_node(patch, live.within())
            .await
            .map_err(refused)
    }

    /// Deletes a pod with its own grace period.
    pub async fn delete_gracefully(&self, pod: &Incarnation) -> Result<Deleted, Refused> {
        let live = self.live(REQUEST).ok_or(Refused::NotLeading)?;
        let call = self.cluster.delete_pod_gracefully(pod, live.within());
        call.await.map_err(refused)
    }

    /// Asks what the array sees of a node, no volume named. A node without id is unknown.
    pub async fn poll(&self, poll: &Poll) -> Result<Sight, String> {
        let id = match &poll.annotated_id {
            Some(id) => Some(id.clone()),
            None => {
                let registered = self.cluster.registered_id(&poll.node).await;
                registered.map_err(|error| error.to_string())?
            }
        };
        let id = id.ok_or("neither the Node nor its CSINode object says the driver's node id")?;
        let _permit = self.questions.acquire().await.ok();
        match self.driver.connectivity(&id, &[], DRIVER_CALL).await {
            Ok(Connectivity::Unsupported) => Ok(Sight::Unsupported),
            Ok(Connectivity::Seen {
                connected,
                ios_in_progress: io,
                ..
            }) => Ok(Sight::Seen { connected, io }),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Hands in a report.
    pub fn report(&self, report: Report) {
        self.events.report(report);
    }

    /// The proof that an effect may begin now.
    fn live(&self, wanted: Duration) -> Option<Live> {
        let claim = self.claims.borrow();
        claim.as_ref()?.live(self.clock.now(), wanted)
    }

    async fn fence(&self, fence: &Fence) -> Result<(), Unfenced> {
        let Some(_place) = self.fencing.enter(fence) else {
            return Err(Unfenced::Withheld);
        };
        let secrets = match &fence.secret {
            None => Vec::new(),
            Some(secret) => {
                let read = self.cluster.secret(secret).await;
                read.map_err(|error| Unfenced::NeverSent(error.to_string()))?
            }
        };
        // Last of all, since whatever comes before takes time.
        let Some(live) = self.live(DRIVER_CALL) else {
            return Err(Unfenced::Withheld);
        };
        if self.clock.now() - fence.confirmed > GUARD {
            return Err(Unfenced::Withheld);
        }
        let call = self
            .driver
            .unpublish(&fence.handle, &fence.node, &secrets, live.within());
        call.await.map_err(unfenced)
    }

    async fn ask(&self, question: &Question) -> Result<Sight, DriverError> {
        let Question {
            node,
            exclusive,
            shared,
            ..
        } = question;
        let mut connected = false;
        let mut io = false;
        for (volumes, counts) in [(exclusive, true), (shared, false)] {
            // Without any volume the node alone is asked about.
            if volumes.is_empty() && !(counts && shared.is_empty()) {
                continue;
            }
            match self.driver.connectivity(node, volumes, DRIVER_CALL).await? {
                Connectivity::Unsupported => return Ok(Sight::Unsupported),
                Connectivity::Seen {
                    connected: seen,
                    ios_in_progress,
                    messages,
                } => {
                    connected |= seen;
                    io |= counts && ios_in_progress;
                    tracing::debug!(node_id = %node, seen, ios_in_progress, ?messages, "The array answered");
                }
            }
        }
        Ok(Sight::Seen { connected, io })
    }
}

fn refused(error: ClusterError) -> Refused {
    if error.is_conflict() {
        Refused::Conflict
    } else if error.is_too_large() {
        Refused::TooLarge
    } else if error.is_forbidden() {
        Refused::Forbidden
    } else {
        Refused::Failed(error.to_string())
    }
}

fn unfenced(error: DriverError) -> Unfenced {
    let text = error.to_string();
    if error.never_sent() {
        return Unfenced::NeverSent(text);
    }
    match error.code() {
        Some(Code::NotFound) => Unfenced::NotFound,
        _ if error.is_answer() => Unfenced::Refused(text),
        _ => Unfenced::GivenUp(text),
    }
}
