//! A pod's work: numbered records, each flushed before it is acknowledged, until it is told to stop.
//!
//!     workload [--file PATH]… [--device PATH]… [--every-ms N] [--writer NAME]
//!
//! Every target has a thread of its own and lines of its own: `start`, `found`, `ack`, `fail`, `full`, `stop`. After a
//! failed write it goes on trying the same record, as a container does whose storage was taken away.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use testbed::storage::record::{Found, Record, SIZE};

/// How far behind the last record a reader looks for what should not be there.
const LOOK_AHEAD: u64 = 1024;

fn main() -> ExitCode {
    let options = match options(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("workload: {error}");
            return ExitCode::from(2);
        }
    };
    let stop = Arc::new(AtomicBool::new(false));
    // The first process of a container ignores the signal unless it has a handler.
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        if let Err(error) = signal_hook::flag::register(signal, Arc::clone(&stop)) {
            eprintln!("workload: signal {signal}: {error}");
            return ExitCode::FAILURE;
        }
    }
    let work = |target: Target| {
        let (stop, writer, every) = (Arc::clone(&stop), options.writer.clone(), options.every);
        std::thread::spawn(move || target.work(&writer, every, &stop))
    };
    let threads: Vec<_> = options.targets.into_iter().map(work).collect();
    let mut all_well = true;
    for thread in threads {
        all_well &= thread.join().is_ok_and(|well| well);
    }
    if all_well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

struct Options {
    targets: Vec<Target>,
    writer: String,
    every: Duration,
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let variable = |name| std::env::var(name).unwrap_or_default();
    let mut options = Options {
        targets: Vec::new(),
        writer: format!("{}@{}", variable("POD_UID"), host()),
        every: Duration::from_millis(50),
    };
    while let Some(argument) = arguments.next() {
        let (flag, mut given) = match argument.split_once('=') {
            Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
            None => (argument, None),
        };
        let mut value = || {
            let value = given.take().or_else(|| arguments.next());
            value.ok_or(format!("{flag} needs a value"))
        };
        let target = |path: String, is_device| Target {
            path: PathBuf::from(path),
            is_device,
        };
        match flag.as_str() {
            "--file" => options.targets.push(target(value()?, false)),
            "--device" => options.targets.push(target(value()?, true)),
            "--writer" => options.writer = value()?,
            "--every-ms" => {
                let millis = value()?
                    .parse()
                    .map_err(|error| format!("{flag}: {error}"))?;
                options.every = Duration::from_millis(millis);
            }
            _ => return Err(format!("unknown argument {flag}")),
        }
    }
    if options.targets.is_empty() {
        return Err("neither --file nor --device".to_owned());
    }
    Ok(options)
}

fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

struct Target {
    path: PathBuf,
    is_device: bool,
}

impl Target {
    /// Writes until it is stopped. False: it could not even begin, or what it found was damaged, or it is full.
    fn work(&self, writer: &str, every: Duration, stop: &AtomicBool) -> bool {
        self.say(format_args!("start writer={writer}"));
        let (file, found, slots) = match self.open().and_then(|file| {
            let slots = self.slots(&file)?;
            Ok((find(&file)?, file, slots))
        }) {
            Ok((found, file, slots)) => (file, found, slots),
            Err(error) => {
                self.say(format_args!("unusable {error}"));
                return false;
            }
        };
        self.say(format_args!("found {found}"));
        let mut number = found.last + 1;
        while !stop.load(Ordering::Relaxed) {
            if number > slots {
                self.say(format_args!("full {slots}"));
                return false;
            }
            match put(&file, number, writer) {
                Ok(()) => {
                    self.say(format_args!("ack {number}"));
                    number += 1;
                }
                Err(error) => self.say(format_args!("fail {number} {error}")),
            }
            std::thread::sleep(every);
        }
        self.say(format_args!("stop last={}", number - 1));
        found.damage.is_none()
    }

    fn open(&self) -> io::Result<File> {
        let is_new = !self.is_device && !self.path.exists();
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(is_new);
        let file = options.open(&self.path)?;
        if is_new {
            let dir = self.path.parent().unwrap_or(Path::new("/"));
            File::open(dir)?.sync_all()?;
        }
        Ok(file)
    }

    fn slots(&self, mut file: &File) -> io::Result<u64> {
        Ok(if self.is_device {
            file.seek(SeekFrom::End(0))? / SIZE as u64
        } else {
            u64::MAX
        })
    }

    /// One line per event; what cannot be said any more is no reason to stop.
    fn say(&self, event: std::fmt::Arguments<'_>) {
        let line = format!("{} {event}\n", self.path.display());
        let _ = io::stdout().lock().write_all(line.as_bytes());
    }
}

fn find(mut file: &File) -> io::Result<Found> {
    file.seek(SeekFrom::Start(0))?;
    let mut input = io::BufReader::with_capacity(1 << 20, file);
    let mut found = Found::default();
    let mut beyond = 0;
    while beyond < LOOK_AHEAD {
        let mut slot = Vec::with_capacity(SIZE);
        input.by_ref().take(SIZE as u64).read_to_end(&mut slot)?;
        if slot.is_empty() {
            break;
        }
        found.take(&slot);
        beyond += u64::from(found.is_at_end());
    }
    Ok(found)
}

fn put(file: &File, number: u64, writer: &str) -> io::Result<()> {
    let writer = writer.to_owned();
    let slot = Record { number, writer }.encode();
    file.write_all_at(&slot, (number - 1) * SIZE as u64)?;
    file.sync_data()
}
