//! The array as a process: volume files, a ledger file, a unix socket with a thread for each connection.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::net::{RecvFlags, recv};

use super::array::{Array, Path, Refusal};
use super::name::VolumeId;
use super::request::{Answer, Request};
use super::wire;

/// The file in the array's directory that holds the ledger, one JSON record per line.
pub const LEDGER: &str = "ledger";

/// Serves an array on a socket until the process ends. Volumes and ledger lie in `dir`, which starts empty.
pub fn serve(array: Array, socket: &FilePath, dir: &FilePath) -> io::Result<()> {
    std::fs::create_dir_all(dir.join("volumes"))?;
    let ledger = OpenOptions::new()
        .append(true)
        .create_new(true)
        .open(dir.join(LEDGER))?;
    let server = Arc::new(Server {
        started: (SystemTime::now(), Instant::now()),
        state: Mutex::new(State {
            array,
            dir: dir.join("volumes"),
            files: HashMap::new(),
            ledger,
            written: 0,
        }),
        path_changed: Condvar::new(),
    });
    let listener = listen(socket)?;
    for stream in listener.incoming() {
        let (server, stream) = (Arc::clone(&server), stream?);
        std::thread::spawn(move || {
            if let Err(error) = server.converse(stream) {
                eprintln!("array: a connection ended: {error}");
            }
        });
    }
    Ok(())
}

/// Listens on a unix socket in place of a dead process that left its socket behind.
pub fn listen(socket: &FilePath) -> io::Result<UnixListener> {
    if let Some(parent) = socket.parent() {
        std::fs::create_dir_all(parent)?;
    }
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    UnixListener::bind(socket)
}

struct Server {
    started: (SystemTime, Instant),
    state: Mutex<State>,
    path_changed: Condvar,
}

struct State {
    array: Array,
    dir: PathBuf,
    files: HashMap<VolumeId, File>,
    ledger: File,
    /// Sequence number of the last record in the file.
    written: u64,
}

impl Server {
    fn converse(&self, mut stream: UnixStream) -> io::Result<()> {
        while let Some((request, data)) = wire::receive::<Request>(&mut stream)? {
            let Some((reply, data)) = self.decide(&stream, request, &data)? else {
                return Ok(());
            };
            wire::send(&mut stream, &reply, &data)?;
        }
        Ok(())
    }

    /// Decides and carries out a request; none when its sender is dead, be it while the path was stalled.
    #[expect(clippy::type_complexity, reason = "a reply with its data")]
    fn decide(
        &self,
        stream: &UnixStream,
        request: Request,
        data: &[u8],
    ) -> io::Result<Option<(Result<Answer, Refusal>, Vec<u8>)>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if request.path_of().is_some() && is_closed(stream) {
                return Ok(None);
            }
            let reply = state.carry_out(self.now(), request.clone(), data);
            if matches!(request, Request::SetPath { .. }) {
                self.path_changed.notify_all();
            }
            state.write_ledger()?;
            match reply {
                Err(Refusal::NoPath {
                    path: Path::Stalled,
                    ..
                }) => {
                    state = self.stalled(state);
                }
                Ok((answer, data)) => return Ok(Some((Ok(answer), data))),
                Err(refusal) => return Ok(Some((Err(refusal), Vec::new()))),
            }
        }
    }

    fn stalled<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.path_changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Time since the Unix epoch that never jumps.
    fn now(&self) -> Duration {
        let (wall, steady) = self.started;
        wall.duration_since(UNIX_EPOCH).unwrap_or_default() + steady.elapsed()
    }
}

/// A sender waits for its answer, so it has nothing more to say unless it is gone.
fn is_closed(stream: &UnixStream) -> bool {
    let mut byte = [0_u8];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    !matches!(
        recv(stream, &mut byte[..], flags),
        Ok((1.., _)) | Err(rustix::io::Errno::AGAIN)
    )
}

impl State {
    fn carry_out(
        &mut self,
        now: Duration,
        request: Request,
        data: &[u8],
    ) -> Result<(Answer, Vec<u8>), Refusal> {
        if let Request::Write { length, .. } = &request
            && *length != data.len() as u64
        {
            let text = format!("a write of {length} bytes came with {}", data.len());
            return Err(Refusal::Broken(text));
        }
        let answer = self.array.answer(now, request.clone())?;
        let read = self
            .touch(&request, data)
            .map_err(|error| Refusal::Broken(format!("{request:?}: {error}")))?;
        Ok((answer, read))
    }

    /// The effect of an accepted request on the volume files.
    fn touch(&mut self, request: &Request, data: &[u8]) -> io::Result<Vec<u8>> {
        match request {
            Request::Create { volume, bytes } => {
                let options = File::options().read(true).write(true).create(true).clone();
                options
                    .open(self.dir.join(volume.as_str()))?
                    .set_len(*bytes)?;
                Ok(Vec::new())
            }
            Request::Delete { volume } => {
                self.files.remove(volume);
                match std::fs::remove_file(self.dir.join(volume.as_str())) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                    _ => Ok(Vec::new()),
                }
            }
            Request::Read { by, offset, length } => {
                let length = usize::try_from(*length).map_err(io::Error::other)?;
                let mut read = vec![0; length];
                self.file(&by.volume)?.read_exact_at(&mut read, *offset)?;
                Ok(read)
            }
            Request::Write { by, offset, .. } => {
                self.file(&by.volume)?.write_all_at(data, *offset)?;
                Ok(Vec::new())
            }
            _ => Ok(Vec::new()),
        }
    }

    fn file(&mut self, volume: &VolumeId) -> io::Result<&File> {
        if !self.files.contains_key(volume) {
            let path = self.dir.join(volume.as_str());
            let file = File::options().read(true).write(true).open(path)?;
            self.files.insert(volume.clone(), file);
        }
        Ok(&self.files[volume])
    }

    fn write_ledger(&mut self) -> io::Result<()> {
        for record in self.array.ledger().after(self.written) {
            let mut line = serde_json::to_vec(record)?;
            line.push(b'\n');
            self.ledger.write_all(&line)?;
            self.written = record.sequence;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
