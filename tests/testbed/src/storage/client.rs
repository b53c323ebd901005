//! The array process as seen from outside: one typed call for everything that can be asked of it.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::array::{Access, Connectivity, Lie, Path, Refusal, VolumeState};
use super::ledger::Record;
use super::name::{Epoch, NodeId, VolumeId};
use super::request::{Answer, Request};
use super::trouble::{Call, Rule, Trouble};
use super::wire;

/// Why a request was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("array at {0} does not answer")]
    Lost(PathBuf, #[source] io::Error),
    #[error("array at {0} answered {1:?}, which is no answer to this request")]
    Nonsense(PathBuf, Answer),
}

/// A connection to an array process, made when it is first needed and again after it broke.
///
/// Calls block. Those of a node's data path may do so for as long as its path is cut; the others answer at once, and
/// give up after ten seconds.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
    stream: Mutex<Option<UnixStream>>,
    patience: Option<Duration>,
}

impl Clone for Client {
    fn clone(&self) -> Self {
        Self {
            socket: self.socket.clone(),
            stream: Mutex::default(),
            patience: self.patience,
        }
    }
}

impl Client {
    /// A client of the array that listens on this socket. Does not connect yet.
    pub fn new(socket: &FilePath) -> Self {
        Self {
            socket: socket.to_owned(),
            stream: Mutex::default(),
            patience: Some(Duration::from_secs(10)),
        }
    }

    /// A client that waits for its answers as long as it takes.
    pub fn patient(socket: &FilePath) -> Self {
        Self {
            patience: None,
            ..Self::new(socket)
        }
    }

    /// Waits until the array answers.
    pub fn wait_until_up(&self, within: Duration) -> Result<(), ClientError> {
        let deadline = Instant::now() + within;
        loop {
            match self.volumes() {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Sends any request with the data that belong to it.
    pub fn ask(&self, request: &Request, data: &[u8]) -> Result<(Answer, Vec<u8>), ClientError> {
        // A panic of another thread leaves at worst a stream in the middle of a message.
        let mut held = match self.stream.lock() {
            Ok(held) => held,
            Err(poisoned) => {
                let mut held = poisoned.into_inner();
                *held = None;
                held
            }
        };
        let outcome = self.exchange(held.take(), request, data);
        let (stream, (answer, data)) =
            outcome.map_err(|error| ClientError::Lost(self.socket.clone(), error))?;
        *held = Some(stream);
        Ok((answer?, data))
    }

    #[expect(clippy::type_complexity, reason = "used once, right above")]
    fn exchange(
        &self,
        stream: Option<UnixStream>,
        request: &Request,
        data: &[u8],
    ) -> io::Result<(UnixStream, (Result<Answer, Refusal>, Vec<u8>))> {
        let mut stream = match stream {
            Some(stream) => stream,
            None => {
                let stream = UnixStream::connect(&self.socket)?;
                stream.set_read_timeout(self.patience)?;
                stream
            }
        };
        wire::send(&mut stream, request, data)?;
        let reply = wire::receive(&mut stream)?;
        Ok((stream, reply.ok_or(io::ErrorKind::UnexpectedEof)?))
    }

    fn done(&self, request: Request) -> Result<(), ClientError> {
        match self.ask(&request, &[])?.0 {
            Answer::Done => Ok(()),
            other => Err(self.nonsense(other)),
        }
    }

    fn nonsense(&self, answer: Answer) -> ClientError {
        ClientError::Nonsense(self.socket.clone(), answer)
    }

    /// See [`Array::create`](super::array::Array::create).
    pub fn create(&self, volume: &VolumeId, bytes: u64) -> Result<(), ClientError> {
        let volume = volume.clone();
        self.done(Request::Create { volume, bytes })
    }

    /// See [`Array::delete`](super::array::Array::delete).
    pub fn delete(&self, volume: &VolumeId) -> Result<(), ClientError> {
        let volume = volume.clone();
        self.done(Request::Delete { volume })
    }

    /// All volumes with who has access.
    pub fn volumes(&self) -> Result<Vec<VolumeState>, ClientError> {
        match self.ask(&Request::Volumes, &[])?.0 {
            Answer::Volumes(volumes) => Ok(volumes),
            other => Err(self.nonsense(other)),
        }
    }

    /// Grants past the driver, and so past its troubles.
    pub fn grant(&self, volume: &VolumeId, node: &NodeId) -> Result<Epoch, ClientError> {
        let (volume, node) = (volume.clone(), node.clone());
        match self.ask(&Request::Grant { volume, node }, &[])?.0 {
            Answer::Granted(epoch) => Ok(epoch),
            other => Err(self.nonsense(other)),
        }
    }

    /// Revokes past the driver, and so past its troubles.
    pub fn revoke(&self, volume: &VolumeId, node: &NodeId) -> Result<(), ClientError> {
        self.done(Request::Revoke {
            volume: volume.clone(),
            node: Some(node.clone()),
            pretend: false,
        })
    }

    /// What the array would tell of a node and volumes.
    pub fn connectivity(
        &self,
        node: &NodeId,
        volumes: &[VolumeId],
    ) -> Result<Connectivity, ClientError> {
        let request = Request::Connectivity {
            node: node.clone(),
            volumes: volumes.to_vec(),
            sample: None,
        };
        match self.ask(&request, &[])?.0 {
            Answer::Connectivity(said) => Ok(said),
            other => Err(self.nonsense(other)),
        }
    }

    /// Gives a sign of life of a node.
    pub fn seen(&self, node: &NodeId) -> Result<(), ClientError> {
        let node = node.clone();
        self.done(Request::Seen { node })
    }

    /// Reads from a volume in a node's name.
    pub fn read(&self, by: &Access, offset: u64, length: u64) -> Result<Vec<u8>, ClientError> {
        let by = by.clone();
        self.ask(&Request::Read { by, offset, length }, &[])
            .map(|(_, data)| data)
    }

    /// Writes to a volume in a node's name.
    pub fn write(&self, by: &Access, offset: u64, data: &[u8]) -> Result<(), ClientError> {
        let request = Request::Write {
            by: by.clone(),
            offset,
            length: data.len() as u64,
        };
        self.ask(&request, data).map(drop)
    }

    /// Flushes in a node's name.
    pub fn sync(&self, by: &Access) -> Result<(), ClientError> {
        self.done(Request::Sync { by: by.clone() })
    }

    /// Cuts or mends the way from a node to the array.
    pub fn set_path(&self, node: &NodeId, path: Path) -> Result<(), ClientError> {
        let node = node.clone();
        self.done(Request::SetPath { node, path })
    }

    /// Makes the array lie about a node.
    pub fn set_lie(&self, node: &NodeId, lie: Lie) -> Result<(), ClientError> {
        let node = node.clone();
        self.done(Request::SetLie { node, lie })
    }

    /// Makes calls of the driver misbehave.
    pub fn add_rule(&self, rule: Rule) -> Result<(), ClientError> {
        self.done(Request::AddRule(rule))
    }

    /// Every call of the driver behaves again.
    pub fn clear_rules(&self) -> Result<(), ClientError> {
        self.done(Request::ClearRules)
    }

    /// The trouble that a call of the driver is in; uses up one time of its rule.
    pub fn trouble(
        &self,
        call: Call,
        volumes: &[VolumeId],
        node: Option<&NodeId>,
    ) -> Result<Option<Trouble>, ClientError> {
        let request = Request::Trouble {
            call,
            volumes: volumes.to_vec(),
            node: node.cloned(),
        };
        match self.ask(&request, &[])?.0 {
            Answer::Trouble(trouble) => Ok(trouble),
            other => Err(self.nonsense(other)),
        }
    }

    /// The records after this sequence number; 0: all.
    pub fn ledger_after(&self, after: u64) -> Result<Vec<Record>, ClientError> {
        match self.ask(&Request::Ledger { after }, &[])?.0 {
            Answer::Ledger(records) => Ok(records),
            other => Err(self.nonsense(other)),
        }
    }
}
