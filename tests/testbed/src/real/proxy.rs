//! A proxy in front of the API server that can halt one client at a chosen mutating call, so that it can be killed there.
//!
//! Writes to leases and events are let through uncounted: they come by the clock, and would make the count of a run depend on
//! how fast it was.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::client::Body;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::{Context, Result, identity};

/// On which side of a call's effect the client is halted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The API server never sees the call.
    Before,
    /// The call took effect; its answer is withheld.
    After,
}

/// A running proxy. It forwards in the name of one identity, whoever calls.
pub struct Proxy {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    server: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct State {
    /// Mutating calls since the last [`Proxy::halt_at`] or [`Proxy::count`].
    seen: Vec<String>,
    halt: Option<Halt>,
}

struct Halt {
    nth: usize,
    side: Side,
    reached: oneshot::Sender<String>,
}

impl Proxy {
    /// Starts a proxy that forwards with the credentials of `kubeconfig`.
    pub async fn start(kubeconfig: &Path) -> Result<Self> {
        let client = identity::client(kubeconfig).await?;
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .context(|| "listen for the proxy".into())?;
        let address = listener
            .local_addr()
            .context(|| "address of the proxy".into())?;
        let state = Arc::<Mutex<State>>::default();
        let shared = Arc::clone(&state);
        let server = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (client, state) = (client.clone(), Arc::clone(&shared));
                let service =
                    service_fn(move |request| forward(client.clone(), Arc::clone(&state), request));
                // A connection ends with its client; nothing is to be done about it.
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Ok(Proxy {
            address,
            state,
            server,
        })
    }

    /// Writes a kubeconfig that leads through the proxy.
    pub fn write_kubeconfig(&self, path: &Path) -> Result<()> {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "clusters": [{"name": "it", "cluster": {"server": format!("http://{}", self.address)}}],
            "users": [{"name": "it", "user": {}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        });
        std::fs::write(path, config.to_string()).context(|| format!("write {}", path.display()))
    }

    /// Counts from here on, and halts nothing.
    pub fn count(&self) {
        *lock(&self.state) = State::default();
    }

    /// Counts from here on, and halts the client at its `nth` mutating call (from 1). The receiver gets that call when it is
    /// reached; it fails when the count is started anew before.
    pub fn halt_at(&self, nth: usize, side: Side) -> oneshot::Receiver<String> {
        let (reached, receiver) = oneshot::channel();
        *lock(&self.state) = State {
            seen: Vec::new(),
            halt: Some(Halt { nth, side, reached }),
        };
        receiver
    }

    /// The mutating calls since the count was started.
    pub fn calls(&self) -> Vec<String> {
        lock(&self.state).seen.clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl State {
    /// Notes a mutating call; returns the halt that it has reached.
    fn note(&mut self, call: String) -> Option<Halt> {
        self.seen.push(call);
        let nth = self.seen.len();
        self.halt.take_if(|halt| halt.nth == nth)
    }
}

async fn forward(
    client: Client,
    state: Arc<Mutex<State>>,
    request: http::Request<Incoming>,
) -> std::result::Result<http::Response<Body>, Box<dyn std::error::Error + Send + Sync>> {
    let call = format!("{} {}", request.method(), request.uri().path());
    let halt = if is_counted(&request) {
        lock(&state).note(call.clone())
    } else {
        None
    };
    let (mut head, body) = request.into_parts();
    // The client sets its own.
    head.headers.remove(http::header::HOST);
    head.headers.remove(http::header::AUTHORIZATION);
    let body = body.collect().await?.to_bytes();
    let request = http::Request::from_parts(head, Body::from(body));
    match halt {
        None => Ok(client.send(request).await?),
        Some(halt) => {
            if halt.side == Side::After {
                client.send(request).await?;
            }
            let _ = halt.reached.send(call);
            std::future::pending().await
        }
    }
}

fn is_counted<B>(request: &http::Request<B>) -> bool {
    let path = request.uri().path();
    let mutates = !matches!(*request.method(), http::Method::GET | http::Method::HEAD);
    mutates && !path.contains("/leases") && !path.contains("/events")
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
