//! What podmon does, in order: every request and every call to the driver, on their way through faults.

use std::convert::Infallible;
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use kube::client::Body;
use serde_json::{Value, json};
use testbed::embedded::api::{ApiBody, Server};
use testbed::scripted::Call;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::judge::Judge;

/// One thing that podmon did.
#[derive(Clone, Debug)]
pub enum What {
    Request(Sent),
    /// A call came in at the driver.
    Asked(Call),
    /// The driver answered a call, with OK or not.
    Answered(Call, bool),
}

#[derive(Clone, Debug)]
pub struct Sent {
    pub verb: String,
    pub path: String,
    pub query: String,
    pub body: Value,
    /// The status of the answer, once there is one.
    pub status: Option<u16>,
}

impl Sent {
    /// It changes something that other people than podmon's readers see.
    pub fn mutates(&self) -> bool {
        self.verb != "GET" && !self.path.contains("/leases") && !self.path.contains("/events")
    }
}

#[derive(Clone, Debug)]
pub struct Entry {
    pub at: Duration,
    pub what: What,
}

/// What happens to a request instead of, or before, its being served.
pub enum Fault {
    /// This status, with podmon none the wiser whose fault it was.
    Refuse(u16),
    /// This document.
    Answer(Value),
    /// Never answered, never served.
    Hang,
    /// Served after this long.
    Slow(Duration),
    /// Served, and the answer is an error all the same.
    Lose,
    /// Served after somebody else has done something.
    After(Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>),
}

type Wanted = Box<dyn Fn(&Sent) -> bool + Send + Sync>;

struct Rule {
    wanted: Wanted,
    fault: Arc<Fault>,
    left: usize,
}

/// When podmon dies: around which of its effects, counted from nought, and on which side of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crash {
    Before(usize),
    After(usize),
}

#[derive(Default)]
struct State {
    entries: Vec<Entry>,
    rules: Vec<Rule>,
    crash: Option<Crash>,
    effects: usize,
    crashed: bool,
    pub judge: Judge,
}

#[derive(Clone)]
pub struct Recorder {
    server: Server,
    state: Arc<Mutex<State>>,
    origin: Instant,
    fell: Arc<Notify>,
}

impl Recorder {
    pub fn new(server: Server, judge: Judge) -> Self {
        let state = State {
            judge,
            ..State::default()
        };
        Self {
            server,
            state: Arc::new(Mutex::new(state)),
            origin: Instant::now(),
            fell: Arc::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn entries(&self) -> Vec<Entry> {
        self.state().entries.clone()
    }

    pub fn verdicts(&self) -> Vec<String> {
        self.state().judge.verdicts().to_vec()
    }

    /// The next `times` requests that are wanted meet this fault.
    pub fn fault(
        &self,
        times: usize,
        fault: Fault,
        wanted: impl Fn(&Sent) -> bool + Send + Sync + 'static,
    ) {
        self.state().rules.push(Rule {
            wanted: Box::new(wanted),
            fault: Arc::new(fault),
            left: times,
        });
    }

    /// All faults are over.
    pub fn heal(&self) {
        self.state().rules.clear();
    }

    /// Lets podmon die there; [`Self::fallen`] tells when.
    pub fn crash(&self, crash: Crash) {
        self.state().crash = Some(crash);
    }

    /// Waits until podmon has died.
    pub async fn fallen(&self) {
        self.fell.notified().await;
    }

    /// Forgets the crash: who comes now is another process.
    pub fn revive(&self) {
        let mut state = self.state();
        state.crash = None;
        state.crashed = false;
    }

    /// Effects so far: requests that mutate, and fences.
    pub fn effects(&self) -> usize {
        self.state().effects
    }

    fn note(&self, what: What) -> usize {
        let at = self.origin.elapsed();
        let mut state = self.state();
        state.judge.look(&self.server, at, &what);
        state.entries.push(Entry { at, what });
        state.entries.len() - 1
    }

    /// Whether podmon goes on living after an effect of this kind; pending for ever when it does not.
    async fn effect(&self, before: bool, number: usize) {
        let dies = {
            let mut state = self.state();
            let wanted = match state.crash {
                Some(Crash::Before(at)) => before && at == number,
                Some(Crash::After(at)) => !before && at == number,
                None => false,
            };
            state.crashed |= wanted;
            if wanted {
                self.fell.notify_one();
            }
            state.crashed
        };
        if dies {
            pending::<()>().await;
        }
    }

    fn count(&self) -> usize {
        let mut state = self.state();
        state.effects += 1;
        state.effects - 1
    }

    /// A client whose every request is written down.
    pub fn client(&self, actor: &'static str) -> kube::Client {
        let recorder = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let recorder = recorder.clone();
            async move { Ok::<_, Infallible>(recorder.serve(actor, request).await) }
        });
        kube::Client::new(service, "default")
    }

    async fn serve(&self, actor: &'static str, request: Request<Body>) -> Response<ApiBody> {
        let (parts, body) = request.into_parts();
        let bytes = match body.collect().await {
            Ok(body) => body.to_bytes(),
            Err(_) => Bytes::new(),
        };
        let sent = Sent {
            verb: parts.method.to_string(),
            path: parts.uri.path().to_owned(),
            query: parts.uri.query().unwrap_or_default().to_owned(),
            body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
            status: None,
        };
        if self.state().crashed {
            pending::<()>().await;
        }
        let number = if sent.mutates() {
            let number = self.count();
            self.effect(true, number).await;
            Some(number)
        } else {
            None
        };
        let fault = self.pick(&sent);
        let place = self.note(What::Request(sent.clone()));
        let request = Request::from_parts(parts, Full::new(bytes));
        let actor = Arc::from(actor);
        let response = match fault.as_deref() {
            None => self.server.serve(&actor, request).await,
            Some(Fault::Refuse(code)) => refusal(*code),
            Some(Fault::Answer(document)) => answer(200, document),
            Some(Fault::Hang) => pending().await,
            Some(Fault::Slow(wait)) => {
                tokio::time::sleep(*wait).await;
                self.server.serve(&actor, request).await
            }
            Some(Fault::Lose) => {
                self.server.serve(&actor, request).await;
                refusal(500)
            }
            Some(Fault::After(other)) => {
                other().await;
                self.server.serve(&actor, request).await
            }
        };
        {
            let mut state = self.state();
            let status = response.status().as_u16();
            if let What::Request(sent) = &mut state.entries[place].what {
                sent.status = Some(status);
            }
            state.judge.served(&self.server, &sent, status);
        }
        if let Some(number) = number {
            self.effect(false, number).await;
        }
        response
    }

    fn pick(&self, sent: &Sent) -> Option<Arc<Fault>> {
        let mut state = self.state();
        let rule = state
            .rules
            .iter_mut()
            .find(|rule| rule.left > 0 && (rule.wanted)(sent))?;
        rule.left -= 1;
        Some(rule.fault.clone())
    }

    /// What the scripted driver reports to.
    pub fn witness(&self) -> testbed::scripted::Witness {
        let recorder = self.clone();
        let last = Arc::new(Mutex::new(std::collections::BTreeMap::new()));
        Arc::new(move |call, answered| {
            let (recorder, last) = (recorder.clone(), last.clone());
            async move {
                let fence = matches!(call, Call::Unpublish { .. });
                let key = format!("{call:?}");
                match answered {
                    None => {
                        if recorder.state().crashed {
                            pending::<()>().await;
                        }
                        if fence {
                            let number = recorder.count();
                            last.lock().unwrap().insert(key, number);
                            recorder.effect(true, number).await;
                        }
                        recorder.note(What::Asked(call));
                    }
                    Some(ok) => {
                        recorder.note(What::Answered(call, ok));
                        let number = last.lock().unwrap().remove(&key);
                        if let Some(number) = number {
                            recorder.effect(false, number).await;
                        }
                    }
                }
            }
            .boxed()
        })
    }
}

fn answer(code: u16, document: &Value) -> Response<ApiBody> {
    let body = Full::from(document.to_string()).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    let json = http::HeaderValue::from_static("application/json");
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, json);
    response
}

fn refusal(code: u16) -> Response<ApiBody> {
    let reason = match code {
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        413 => "RequestEntityTooLarge",
        _ => "InternalError",
    };
    let status = json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code,
        "reason": reason, "message": format!("refused by the test with {code}")});
    answer(code, &status)
}

/// Requests of this method whose path ends so.
pub fn to(method: Method, end: &str) -> impl Fn(&Sent) -> bool + Send + Sync + 'static {
    let (verb, end) = (method.to_string(), end.to_owned());
    move |sent| sent.verb == verb && sent.path.ends_with(&end)
}
