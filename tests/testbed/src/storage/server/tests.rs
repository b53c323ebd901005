//! The array process over its socket: data, ledger file, cut paths, dead senders.

use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::*;
use crate::storage::array::{Access, Policy};
use crate::storage::client::{Client, ClientError};
use crate::storage::ledger::{self, Operation, Verdict};
use crate::storage::name::NodeId;
use crate::storage::process::Scratch;

struct Bench {
    scratch: Scratch,
    client: Client,
    access: Access,
}

impl Bench {
    /// A served array with a volume that one node may write. Its threads end with the test's process.
    fn new(name: &str) -> Self {
        let scratch = Scratch::new(name).unwrap();
        let (socket, dir) = (scratch.path().join("sock"), scratch.path().join("dir"));
        let client = Client::new(&socket);
        std::thread::spawn(move || serve(Array::new(Policy::Permissive), &socket, &dir));
        client.wait_until_up(Duration::from_secs(20)).unwrap();
        let (volume, node) = (VolumeId::new("v").unwrap(), NodeId::new("a").unwrap());
        client.create(&volume, 8192).unwrap();
        client.seen(&node).unwrap();
        let epoch = client.grant(&volume, &node).unwrap();
        let access = Access {
            volume,
            node,
            epoch,
        };
        Self {
            scratch,
            client,
            access,
        }
    }

    fn socket(&self) -> PathBuf {
        self.scratch.path().join("sock")
    }

    fn cut(&self, path: Path) {
        self.client.set_path(&self.access.node, path).unwrap();
    }

    fn revoke(&self) {
        let Access { volume, node, .. } = &self.access;
        self.client.revoke(volume, node).unwrap();
    }

    fn writes(&self) -> Vec<Verdict> {
        let records = self.client.ledger_after(0).unwrap();
        let writes = records.iter().filter(|r| r.operation == Operation::Write);
        writes.map(|r| r.verdict).collect()
    }
}

#[test]
fn data_come_back_until_the_revoke_and_the_file_tells_it_all() {
    let bench = Bench::new("server-data");
    bench.client.write(&bench.access, 4096, b"data").unwrap();
    bench.client.sync(&bench.access).unwrap();
    assert_eq!(
        bench.client.read(&bench.access, 4095, 6).unwrap(),
        b"\0data\0"
    );
    bench.revoke();
    let refused = bench.client.write(&bench.access, 0, b"late");
    assert!(matches!(
        refused,
        Err(ClientError::Refused(Refusal::NoAccess(_)))
    ));
    let file = ledger::read(&bench.scratch.path().join("dir").join(LEDGER)).unwrap();
    assert_eq!(file, bench.client.ledger_after(0).unwrap());
    assert_eq!(bench.writes(), [Verdict::Accepted, Verdict::Refused]);
}

#[test]
fn a_failing_path_fails_at_once_and_reaches_no_ledger() {
    let bench = Bench::new("server-failing");
    bench.cut(Path::Failing);
    assert!(bench.client.write(&bench.access, 0, b"x").is_err());
    assert_eq!(bench.writes(), []);
}

#[test]
fn a_stalled_write_arrives_when_the_path_is_back_and_meets_the_fence() {
    let bench = Bench::new("server-stalled");
    bench.cut(Path::Stalled);
    let (done, outcome) = mpsc::channel();
    let (client, access) = (Client::patient(&bench.socket()), bench.access.clone());
    std::thread::spawn(move || done.send(client.write(&access, 0, b"late").is_ok()));
    bench.revoke();
    bench.cut(Path::Up);
    assert_eq!(outcome.recv_timeout(Duration::from_secs(20)), Ok(false));
    assert_eq!(bench.writes(), [Verdict::Refused]);
}

#[test]
fn what_a_dead_node_had_under_way_never_arrives() {
    let bench = Bench::new("server-dead");
    bench.cut(Path::Stalled);
    let mut stream = UnixStream::connect(bench.socket()).unwrap();
    let request = Request::Write {
        by: bench.access.clone(),
        offset: 0,
        length: 1,
    };
    wire::send(&mut stream, &request, b"x").unwrap();
    drop(stream);
    bench.cut(Path::Up);
    // The thread of the dead sender would have written before this write is answered, or soon after it.
    let deadline = Instant::now() + Duration::from_millis(200);
    while Instant::now() < deadline {
        bench.client.write(&bench.access, 1, b"y").unwrap();
    }
    let records = bench.client.ledger_after(0).unwrap();
    let of_the_dead = records
        .iter()
        .filter(|r| r.operation == Operation::Write && r.offset == 0);
    assert_eq!(of_the_dead.count(), 0);
}
