//! The server on a TCP port, for kubectl and for podmon as a process of its own.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::Server;

/// An open port; dropping it closes the port and every connection.
pub struct Listener {
    address: SocketAddr,
    accept: tokio::task::JoinHandle<()>,
}

impl Listener {
    pub(super) async fn bind(server: Server, address: SocketAddr) -> std::io::Result<Listener> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let accept = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, peer)) = listener.accept().await {
                let (server, actor) = (server.clone(), Arc::<str>::from(peer.to_string()));
                connections.spawn(async move {
                    let service = service_fn(move |request: hyper::Request<Incoming>| {
                        let (server, actor) = (server.clone(), actor.clone());
                        async move { Ok::<_, Infallible>(server.serve(&actor, request).await) }
                    });
                    // A client that goes away is no concern of the server's.
                    let _ = hyper::server::conn::http1::Builder::new()
                        .timer(TokioTimer::new())
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Listener { address, accept })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.accept.abort();
    }
}
