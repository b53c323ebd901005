//! The way between one process and the API server, and all that can go wrong on it.
//!
//! What has left the process is carried out whether or not anyone still waits for the answer: a request that is held up
//! arrives late, as on a real network.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use tokio::sync::{Notify, oneshot};

use super::api::{ApiBody, Server};
use super::chance::Chance;

type Error = Box<dyn std::error::Error + Send + Sync>;
type Body = UnsyncBoxBody<Bytes, Error>;

/// What the way is like now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// Nothing passes; what is under way waits.
    pub cut: bool,
    /// The process stands still; what is under way waits.
    pub frozen: bool,
    /// Time for one direction.
    pub latency: Range<Duration>,
    /// Further delay of each piece of a watch.
    pub watch_delay: Range<Duration>,
    /// How many of a hundred requests are refused without effect.
    pub refused: u64,
    /// How many of a hundred answers are lost after the effect.
    pub answers_lost: u64,
}

impl Conditions {
    pub const GOOD: Conditions = Conditions {
        cut: false,
        frozen: false,
        latency: Duration::from_millis(1)..Duration::from_millis(5),
        watch_delay: Duration::ZERO..Duration::from_millis(20),
        refused: 0,
        answers_lost: 0,
    };
}

/// What a saboteur does to a request on its way: method, path and query, body.
pub type Tamper = Arc<dyn Fn(&http::Method, &str, Bytes) -> Bytes + Send + Sync>;

/// Hears of every request that was carried out: method and path, and the answer's code.
pub type Listener = Arc<dyn Fn(&str, u16) + Send + Sync>;

/// The way of one process; clones are the same way.
#[derive(Clone)]
pub struct Link(Arc<Inner>);

struct Inner {
    server: Server,
    actor: Arc<str>,
    state: Mutex<State>,
    open: Notify,
    tamper: Option<Tamper>,
    listener: Option<Listener>,
}

struct State {
    conditions: Conditions,
    chance: Chance,
    /// How often connections were torn: open watches end with it.
    torn: u64,
}

impl Link {
    pub fn new(
        server: &Server,
        actor: &str,
        chance: Chance,
        tamper: Option<Tamper>,
        listener: Option<Listener>,
    ) -> Link {
        Link(Arc::new(Inner {
            server: server.clone(),
            actor: actor.into(),
            state: Mutex::new(State {
                conditions: Conditions::GOOD,
                chance,
                torn: 0,
            }),
            open: Notify::new(),
            tamper,
            listener,
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what the way is like.
    pub fn change(&self, change: impl FnOnce(&mut Conditions)) {
        let mut state = self.state();
        let before = state.conditions.cut;
        change(&mut state.conditions);
        // After a cut a connection goes on, or turns out to be dead.
        if before && !state.conditions.cut && state.chance.percent(50) {
            state.torn += 1;
        }
        drop(state);
        self.0.open.notify_waiters();
    }

    /// Ends every open connection.
    pub fn tear(&self) {
        self.state().torn += 1;
        self.0.open.notify_waiters();
    }

    /// A client whose requests go this way.
    pub fn client(&self) -> kube::Client {
        let link = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            link.clone().carry(request)
        });
        kube::Client::new(service, "default")
    }

    async fn passable(&self) {
        loop {
            let opened = self.0.open.notified();
            let mut opened = std::pin::pin!(opened);
            opened.as_mut().enable();
            {
                let state = self.state();
                if !state.conditions.cut && !state.conditions.frozen {
                    return;
                }
            }
            opened.await;
        }
    }

    async fn carry(self, request: Request<kube::client::Body>) -> Result<Response<Body>, Error> {
        let (parts, body) = request.into_parts();
        let mut body = body.collect().await?.to_bytes();
        if let Some(tamper) = &self.0.tamper {
            let path = parts.uri.path_and_query().map_or("", |path| path.as_str());
            body = tamper(&parts.method, path, body);
        }
        let asked = format!("{} {}", parts.method, parts.uri.path());
        let request = Request::from_parts(parts, Full::new(body));
        let (there, back, refused, lost) = {
            let mut state = self.state();
            let Conditions {
                latency,
                refused,
                answers_lost,
                ..
            } = state.conditions.clone();
            let (there, back) = (
                state.chance.time(latency.clone()),
                state.chance.time(latency),
            );
            (
                there,
                back,
                state.chance.percent(refused),
                state.chance.percent(answers_lost),
            )
        };
        let (sender, receiver) = oneshot::channel::<Result<Response<ApiBody>, Error>>();
        let link = self.clone();
        tokio::spawn(async move {
            link.passable().await;
            tokio::time::sleep(there).await;
            link.passable().await;
            if refused {
                let _ = sender.send(Err("the connection was refused".into()));
                return;
            }
            let response = link.0.server.serve(&link.0.actor, request).await;
            if let Some(listener) = &link.0.listener {
                listener(&asked, response.status().as_u16());
            }
            tokio::time::sleep(back).await;
            link.passable().await;
            let answer = if lost {
                Err("the connection broke before the answer came".into())
            } else {
                Ok(response)
            };
            let _ = sender.send(answer);
        });
        let response = receiver
            .await
            .unwrap_or_else(|_| Err("the connection broke".into()))?;
        Ok(response.map(|body| self.deliver(body)))
    }

    /// Hands a body on piece by piece, as the way allows.
    fn deliver(&self, body: ApiBody) -> Body {
        let torn = self.state().torn;
        let pieces = stream::unfold(Some((self.clone(), body)), move |position| async move {
            let (link, mut body) = position?;
            let frame = tokio::select! {
                biased;
                () = link.is_torn(torn) => {
                    return Some((Err(Error::from("the connection broke")), None));
                }
                frame = body.frame() => frame?,
            };
            let delay = {
                let mut state = link.state();
                let range = state.conditions.watch_delay.clone();
                state.chance.time(range)
            };
            tokio::time::sleep(delay).await;
            link.passable().await;
            let frame: Result<Frame<Bytes>, Error> = frame.map_err(|never| match never {});
            Some((frame, Some((link, body))))
        });
        StreamBody::new(pieces).boxed_unsync()
    }

    async fn is_torn(&self, since: u64) {
        loop {
            let changed = self.0.open.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            if self.state().torn != since {
                return;
            }
            changed.await;
        }
    }
}
