//! podmon as a process of the embedded cluster: started, frozen, crashed and started again.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use podmon::arguments::Arguments;
use podmon::clock::{Clock, Moment};
use podmon::configuration::Configuration;
use podmon::csi::Driver;
use podmon::environment::Environment;
use podmon::names::{Names, Profile};
use podmon::node::detached::Detachments;
use podmon::node::identity::Store;
use podmon::settings::Settings;
use tokio::task::JoinHandle;
use tonic::transport::Channel;

use super::api::Server;
use super::host::Host;
use super::network::Link;
use crate::storage::driver::NAME;

/// The label of protected pods.
pub const PROTECTED: (&str, &str) = ("podmon.dellemc.com/driver", "csi-array");

/// What keeps a process's own code from running. Calls that have left it go on.
#[derive(Clone, Default)]
pub struct Gate(Arc<Mutex<(bool, Option<Waker>)>>);

impl Gate {
    pub fn freeze(&self, frozen: bool) {
        let mut gate = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        gate.0 = frozen;
        if let Some(waker) = gate.1.take_if(|_| !frozen) {
            waker.wake();
        }
    }
}

struct Gated<F> {
    work: Pin<Box<F>>,
    gate: Gate,
}

impl<F: Future> Future for Gated<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let mut gate = self.gate.0.lock().unwrap_or_else(PoisonError::into_inner);
        if gate.0 {
            gate.1 = Some(context.waker().clone());
            return Poll::Pending;
        }
        drop(gate);
        self.work.as_mut().poll(context)
    }
}

/// A running podmon. Dropping it kills it.
pub struct Process {
    task: JoinHandle<String>,
}

impl Process {
    fn start(gate: &Gate, work: impl Future<Output = String> + Send + 'static) -> Process {
        let work = Gated {
            work: Box::pin(work),
            gate: gate.clone(),
        };
        Process {
            task: tokio::spawn(work),
        }
    }

    /// It has ended by itself.
    pub fn is_over(&self) -> bool {
        self.task.is_finished()
    }

    /// Why it has ended. A panic of podmon's goes on here.
    pub async fn end(mut self) -> String {
        match (&mut self.task).await {
            Ok(why) => why,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(error) => error.to_string(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn clock(server: &Server) -> Clock {
    let (server, origin) = (server.clone(), tokio::time::Instant::now());
    let started = server.now();
    let boot = move || {
        Moment::since_boot(
            Duration::from_secs(started.as_second().unsigned_abs()) + origin.elapsed(),
        )
    };
    Clock::new(boot, move || server.now())
}

fn configuration(mode: &str, node: Option<&str>) -> Configuration {
    let arguments = Arguments::parse([
        &format!("--mode={mode}"),
        "--csisock=unix:/embedded/csi.sock",
        "--driverPath=array",
        &format!("--labelkey={}", PROTECTED.0),
        &format!("--labelvalue={}", PROTECTED.1),
        "--leaderelection=true",
    ]);
    let arguments = arguments.unwrap_or_else(|error| panic!("podmon's arguments: {error}"));
    let variables = node.map(|node| ("KUBE_NODE_NAME".to_owned(), node.to_owned()));
    Configuration {
        settings: tokio::sync::watch::channel(Settings::of_arguments(&arguments)).1,
        environment: Environment::new(&variables.into_iter().collect(), None),
        arguments,
    }
}

fn names() -> Names {
    Names::new(Profile::Generic, NAME.into(), Some("array"))
}

/// The taint that podmon puts on the nodes of the embedded cluster.
pub fn taint() -> String {
    names().taint
}

/// The annotation that holds the journal.
pub fn journal() -> String {
    names().journal
}

/// Starts a controller of this host name.
pub fn controller(
    server: &Server,
    link: &Link,
    driver: Channel,
    gate: &Gate,
    hostname: &str,
) -> Process {
    let parts = podmon::controller::Parts {
        client: link.client(),
        lease_client: link.client(),
        driver: Driver::on(driver),
        names: names(),
        clock: clock(server),
        hostname: hostname.to_owned(),
    };
    let configuration = configuration("controller", None);
    Process::start(gate, async move {
        podmon::controller::serve(configuration, parts)
            .await
            .to_string()
    })
}

/// Starts podmon on a machine. `disk` is a directory of the machine's own.
pub fn node(
    server: &Server,
    link: &Link,
    driver: Channel,
    gate: &Gate,
    host: &Host,
    seam: podmon::node::host::Host,
    disk: &std::path::Path,
) -> Process {
    let parts = podmon::node::Parts {
        client: link.client(),
        driver: Driver::on(driver),
        names: names(),
        clock: clock(server),
        layout: Host::layout(),
        host: seam,
        store: Store::beside(&disk.join("csi.sock")),
        detachments: Detachments::beside(&disk.join("csi.sock")),
    };
    let configuration = configuration("node", Some(&host.name()));
    Process::start(gate, async move {
        podmon::node::serve(configuration, parts).await.to_string()
    })
}
