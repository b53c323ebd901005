//! The log: lines in the manner of logrus, so that existing log searches keep working, with a level and a format that
//! can change while podmon runs.

mod line;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Registry, reload};

use line::Lines;

/// A level by its logrus name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Level {
    Panic,
    Fatal,
    Error,
    Warning,
    Info,
    Debug,
    Trace,
}

impl Level {
    /// By its name in any case.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "panic" => Self::Panic,
            "fatal" => Self::Fatal,
            "error" => Self::Error,
            "warn" | "warning" => Self::Warning,
            "info" => Self::Info,
            "debug" => Self::Debug,
            "trace" => Self::Trace,
            _ => return None,
        })
    }

    fn filter(self) -> LevelFilter {
        match self {
            // What ends the process is logged as an error, and must be seen at every level.
            Self::Panic | Self::Fatal | Self::Error => LevelFilter::ERROR,
            Self::Warning => LevelFilter::WARN,
            Self::Info => LevelFilter::INFO,
            Self::Debug => LevelFilter::DEBUG,
            Self::Trace => LevelFilter::TRACE,
        }
    }

    /// podmon's own lines by this level, those of libraries only when they are warnings.
    fn targets(self) -> Targets {
        Targets::new()
            .with_default(self.filter().min(LevelFilter::WARN))
            .with_target("podmon", self.filter())
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Panic => "panic",
            Self::Fatal => "fatal",
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        })
    }
}

/// How a line is written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Format {
    /// `time="…" level=info msg="…" key=value`.
    Text,
    /// One JSON object with `time`, `level`, `msg` and the fields.
    Json,
}

impl Format {
    /// By its name in any case.
    pub fn named(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "text" => Some(Self::Text),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

/// Sets level and format of a running log.
#[derive(Clone, Debug)]
pub struct Telemetry {
    targets: reload::Handle<Targets, Registry>,
    json: Arc<AtomicBool>,
}

impl Telemetry {
    /// The log of this process on standard error, at level info and in text until [`Telemetry::set`].
    pub fn start() -> Self {
        let (subscriber, telemetry) = Self::new(io::stderr);
        // A second start in one process leaves the first in place, which only a test can bring about.
        let _ = tracing::subscriber::set_global_default(subscriber);
        telemetry
    }

    /// A log on `writer`, each line in one write.
    pub fn new<W>(writer: W) -> (impl Subscriber + Send + Sync, Self)
    where
        W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
    {
        let json = Arc::new(AtomicBool::new(false));
        let (filter, targets) = reload::Layer::new(Level::Info.targets());
        let subscriber = tracing_subscriber::registry()
            .with(filter)
            .with(Lines::new(writer, Arc::clone(&json)));
        (subscriber, Self { targets, json })
    }

    /// From the next line on.
    pub fn set(&self, level: Level, format: Format) {
        self.json.store(format == Format::Json, Ordering::Relaxed);
        if let Err(error) = self.targets.reload(level.targets()) {
            tracing::warn!(%error, "the log level stays as it was");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// What `log` writes, line by line.
    fn lines(log: impl FnOnce(&Telemetry)) -> Vec<String> {
        let written = Arc::new(Mutex::new(Vec::<u8>::new()));
        let sink = Arc::clone(&written);
        struct Sink(Arc<Mutex<Vec<u8>>>);
        impl io::Write for Sink {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().unwrap().extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (subscriber, telemetry) = Telemetry::new(move || Sink(Arc::clone(&sink)));
        tracing::subscriber::with_default(subscriber, || log(&telemetry));
        let written = written.lock().unwrap();
        let text = String::from_utf8(written.clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// A line without its time, after a check that it begins with one.
    fn untimed(line: &str) -> &str {
        let rest = line.strip_prefix("time=\"").expect("begins with the time");
        let (time, rest) = rest.split_once("\" ").expect("a quoted time");
        assert!(time.parse::<jiff::Timestamp>().is_ok(), "{time}");
        rest
    }

    #[test]
    fn text_lines() {
        let lines = lines(|_| {
            tracing::info!("plain");
            tracing::warn!(pod = "ns/name", count = 2, ok = true, "two \"words\"");
            tracing::error!(reason = "a b", empty = "");
            tracing::debug!("not shown");
        });
        let lines: Vec<_> = lines.iter().map(|line| untimed(line)).collect();
        assert_eq!(
            lines,
            [
                "level=info msg=plain",
                r#"level=warning msg="two \"words\"" count=2 ok=true pod=ns/name"#,
                r#"level=error msg= empty= reason="a b""#,
            ]
        );
    }

    #[test]
    fn json_lines() {
        let lines = lines(|telemetry| {
            telemetry.set(Level::Debug, Format::Json);
            tracing::debug!(pod = "ns/name", count = 2, level = "mine", "now shown");
        });
        let mut line: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
        let time = line.as_object_mut().unwrap().remove("time").unwrap();
        assert!(time.as_str().unwrap().parse::<jiff::Timestamp>().is_ok());
        assert_eq!(
            line,
            serde_json::json!({
                "level": "debug", "msg": "now shown", "pod": "ns/name", "count": 2, "fields.level": "mine",
            })
        );
    }

    #[test]
    fn fields_of_spans_are_on_the_line() {
        let lines = lines(|_| {
            let outer =
                tracing::info_span!("evacuation", id = "9f3c", node = tracing::field::Empty);
            outer.record("node", "worker-1");
            let _outer = outer.enter();
            let _inner = tracing::info_span!("group", id = "inner").entered();
            tracing::info!(pod = "ns/name", "within");
        });
        assert_eq!(
            untimed(&lines[0]),
            "level=info msg=within id=inner node=worker-1 pod=ns/name"
        );
    }

    #[test]
    fn levels_by_name_and_effect() {
        for (name, shown) in [
            ("panic", 1),
            ("fatal", 1),
            ("ERROR", 1),
            ("warn", 2),
            ("Warning", 2),
            ("info", 3),
            ("debug", 4),
            ("trace", 5),
        ] {
            let level = Level::named(name).unwrap();
            let lines = lines(|telemetry| {
                telemetry.set(level, Format::Text);
                tracing::error!("e");
                tracing::warn!("w");
                tracing::info!("i");
                tracing::debug!("d");
                tracing::trace!("t");
            });
            assert_eq!(lines.len(), shown, "{name}: {lines:?}");
        }
        assert_eq!(Level::named("verbose"), None);
        assert_eq!(Level::named(""), None);
    }

    #[test]
    fn libraries_are_heard_when_they_warn_and_named() {
        let lines = lines(|telemetry| {
            telemetry.set(Level::Trace, Format::Text);
            tracing::info!(target: "kube_client::client", "quiet");
            tracing::warn!(target: "kube_client::client", "heard");
        });
        let lines: Vec<_> = lines.iter().map(|line| untimed(line)).collect();
        assert_eq!(
            lines,
            ["level=warning msg=heard target=\"kube_client::client\""]
        );
    }
}
