//! What an operator may change while podmon runs: the configuration file, which is the driver's parameter file too.

mod document;
mod follow;

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use crate::arguments::{Arguments, Mode};
use crate::environment::Environment;
use crate::literals;
use crate::telemetry::{Format, Level};

use document::{Document, DocumentError};
pub use follow::{Follower, INTERVAL};

/// The values in effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Time between two connectivity polls; whole seconds, at least one.
    pub poll_rate: Duration,
    /// Failed polls in a row before a node counts as disconnected from the array.
    pub connection_loss_threshold: NonZeroU32,
    pub skip_array_connection_validation: bool,
    pub log_level: Level,
    pub log_format: Format,
}

impl Settings {
    /// What the flags say; the log as it is before the file is read.
    pub fn of_arguments(arguments: &Arguments) -> Self {
        Self {
            poll_rate: arguments.poll_rate,
            connection_loss_threshold: arguments.connection_loss_threshold,
            skip_array_connection_validation: arguments.skip_array_connection_validation,
            log_level: Level::Info,
            log_format: Format::Text,
        }
    }
}

/// Where the values come from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Source {
    path: PathBuf,
    mode: Mode,
    /// Used for each key that is absent.
    flags: Settings,
    /// `PODMON_*` variables: each overrides its key in the file.
    overrides: BTreeMap<String, String>,
}

/// The file cannot be used at all.
#[derive(thiserror::Error, Debug)]
pub enum FileError {
    #[error("unable to read driver config file: {}: {reason}", .path.display())]
    Read { path: PathBuf, reason: io::Error },
    #[error("unable to read driver config file: {}: {reason}", .path.display())]
    Parse {
        path: PathBuf,
        reason: DocumentError,
    },
}

/// A key whose value cannot be used. Keys before it are applied, those after it are not.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum KeyError {
    #[error("input log level {0:?} is not valid")]
    Level(String),
    #[error("parsing {key} failed: value was {value}")]
    Parse { key: &'static str, value: String },
    #[error("{key} should be greater than zero, but was {value}")]
    NotPositive { key: &'static str, value: i64 },
    #[error("{key} should be at most {}, but was {value}", u32::MAX)]
    TooLarge { key: &'static str, value: i64 },
}

/// Why podmon cannot start with its configuration file.
#[derive(thiserror::Error, Debug)]
pub enum SettingsError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("error with configuration parameters: {0}")]
    Key(#[from] KeyError),
}

const POLL_RATE: &str = "PODMON_ARRAY_CONNECTIVITY_POLL_RATE";
const CONNECTION_LOSS_THRESHOLD: &str = "PODMON_ARRAY_CONNECTIVITY_CONNECTION_LOSS_THRESHOLD";
const SKIP_ARRAY_CONNECTION_VALIDATION: &str = "PODMON_SKIP_ARRAY_CONNECTION_VALIDATION";

impl Source {
    pub fn new(arguments: &Arguments, environment: &Environment) -> Self {
        Self {
            path: arguments.settings_file.clone(),
            mode: arguments.mode,
            flags: Settings::of_arguments(arguments),
            overrides: environment.overrides.clone(),
        }
    }

    /// Reads the file for the first time. Unlike later, any fault in it is fatal.
    pub fn load(self) -> Result<Follower, SettingsError> {
        let contents = std::fs::read(&self.path).map_err(|reason| self.unread(reason))?;
        let document = self.document(&contents)?;
        let mut settings = self.flags.clone();
        self.apply(&document, &mut settings)?;
        Ok(Follower::new(self, contents, settings))
    }

    fn unread(&self, reason: io::Error) -> FileError {
        FileError::Read {
            path: self.path.clone(),
            reason,
        }
    }

    fn document(&self, contents: &[u8]) -> Result<Document, FileError> {
        Document::parse(contents).map_err(|reason| FileError::Parse {
            path: self.path.clone(),
            reason,
        })
    }

    /// Applies the keys in the contract's order up to the first fault.
    fn apply(&self, document: &Document, settings: &mut Settings) -> Result<(), KeyError> {
        let value = |key: &str| {
            let overriding = self.overrides.get(key).map(String::as_str);
            overriding.or_else(|| document.get(key))
        };
        let logging = match self.mode {
            Mode::Controller => Some((
                "PODMON_CONTROLLER_LOG_LEVEL",
                "PODMON_CONTROLLER_LOG_FORMAT",
            )),
            Mode::Node => Some(("PODMON_NODE_LOG_LEVEL", "PODMON_NODE_LOG_FORMAT")),
            Mode::Standalone => None,
        };
        if let Some((level, format)) = logging {
            let name = value(level).unwrap_or_default();
            // Charts pass an empty level where the user gave none.
            let level = match name {
                "" => Some(Level::Debug),
                name => Level::named(name),
            };
            settings.log_level = level.unwrap_or(Level::Debug);
            if level.is_none() {
                return Err(KeyError::Level(name.to_owned()));
            }
            settings.log_format = match value(format).unwrap_or_default() {
                "" => Format::Text,
                name => Format::named(name).unwrap_or_else(|| {
                    tracing::warn!("log format {name:?} is neither text nor json, text is used");
                    Format::Text
                }),
            };
        }
        settings.poll_rate = match value(POLL_RATE) {
            Some(text) => Duration::from_secs(positive(POLL_RATE, text)?.get().into()),
            None => self.flags.poll_rate,
        };
        settings.connection_loss_threshold = match value(CONNECTION_LOSS_THRESHOLD) {
            Some(text) => positive(CONNECTION_LOSS_THRESHOLD, text)?,
            None => self.flags.connection_loss_threshold,
        };
        let key = SKIP_ARRAY_CONNECTION_VALIDATION;
        settings.skip_array_connection_validation = match value(key) {
            Some(text) => literals::boolean(text).map_err(|_| KeyError::Parse {
                key,
                value: text.to_owned(),
            })?,
            None => self.flags.skip_array_connection_validation,
        };
        Ok(())
    }
}

impl Settings {
    /// Logs each value in effect.
    pub fn log(&self) {
        let log = |key: &str, value: &dyn std::fmt::Display| {
            tracing::info!(
                key,
                value = %value,
                "parameter value after config file processing"
            );
        };
        log("LOG_LEVEL", &self.log_level);
        log("LOG_FORMAT", &self.log_format);
        log(POLL_RATE, &self.poll_rate.as_secs());
        log(CONNECTION_LOSS_THRESHOLD, &self.connection_loss_threshold);
        log(
            SKIP_ARRAY_CONNECTION_VALIDATION,
            &self.skip_array_connection_validation,
        );
    }
}

fn positive(key: &'static str, text: &str) -> Result<NonZeroU32, KeyError> {
    let value = literals::decimal(text).map_err(|_| KeyError::Parse {
        key,
        value: text.to_owned(),
    })?;
    if value <= 0 {
        return Err(KeyError::NotPositive { key, value });
    }
    u32::try_from(value)
        .ok()
        .and_then(NonZeroU32::new)
        .ok_or(KeyError::TooLarge { key, value })
}
