//! What podmon was started with: every flag, checked once, so that nothing after the start has to doubt them.

pub mod flags;
pub mod parse;
mod socket;
mod usage;

use std::ffi::OsString;
use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use crate::controller::storm::{Limit, NotALimit};

pub use parse::{Ignored, ParseError};
pub use socket::SocketError;

use flags::FLAGS;
use parse::Parsed;

/// Which half of podmon this process is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// Beside the driver's controller: decides and evacuates.
    Controller,
    /// Beside the driver on each node: cleans up and lifts the taint.
    Node,
    /// The controller's pod handling without node, driver-pod and array watches.
    Standalone,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Controller => "controller",
            Self::Node => "node",
            Self::Standalone => "standalone",
        })
    }
}

/// One label, key and value.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Label {
    /// Never empty: an empty key would select every pod of the cluster.
    pub key: String,
    pub value: String,
}

impl fmt::Display for Label {
    /// As a label selector.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key, self.value)
    }
}

/// The flags' values.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Arguments {
    pub mode: Mode,
    /// The driver's socket.
    pub csi_socket: PathBuf,
    pub leader_election: bool,
    /// `None`: the service account of the pod.
    pub kubeconfig: Option<PathBuf>,
    /// What protected pods carry.
    pub protected: Label,
    /// What the driver's own node pods carry.
    pub driver_pods: Label,
    /// `--driverPath` if it was given and not empty: whether it was, decides the driver's names.
    pub driver_path: Option<String>,
    pub ignore_volumeless_pods: bool,
    pub detect_only: bool,
    pub pause: bool,
    /// `--stormGuard`.
    pub storm_guard: Limit,
    pub out_of_service_release: bool,
    /// The kubelet's directory.
    pub kubelet_root: PathBuf,
    pub lazy_unmount: bool,
    pub stop_zombies: bool,
    /// `--driver-config-params`.
    pub settings_file: PathBuf,
    /// Time between two connectivity polls, where the configuration file says nothing.
    pub poll_rate: Duration,
    /// Failed polls in a row before a node counts as disconnected, where the configuration file says nothing.
    pub connection_loss_threshold: NonZeroU32,
    /// Where the configuration file says nothing.
    pub skip_array_connection_validation: bool,
    /// What stood behind the flags, to be warned of.
    pub ignored: Option<Ignored>,
}

/// Why podmon cannot start with its arguments.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum ArgumentsError {
    /// The command line itself; the usage is shown with it.
    #[error(transparent)]
    CommandLine(#[from] ParseError),
    #[error("invalid mode; choose controller, node, or standalone (--mode was {0:?})")]
    Mode(String),
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("--{0} cannot be empty")]
    Empty(&'static str),
    #[error("--{flag} should be greater than zero, but was {value}")]
    NotPositive { flag: &'static str, value: i64 },
    #[error("--stormGuard: {0}")]
    StormGuard(#[from] NotALimit),
    #[error("--{flag} should be at most {}, but was {value}", u32::MAX)]
    TooLarge { flag: &'static str, value: i64 },
}

impl Arguments {
    /// Reads the arguments behind the program's name.
    pub fn parse(
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Result<Self, ArgumentsError> {
        let parsed = Parsed::new(FLAGS, arguments.into_iter().map(Into::into))?;
        let mode = match parsed.text(&flags::MODE) {
            "controller" => Mode::Controller,
            "node" => Mode::Node,
            "standalone" => Mode::Standalone,
            other => return Err(ArgumentsError::Mode(other.to_owned())),
        };
        let poll_rate = positive(&flags::POLL_RATE, &parsed)?;
        Ok(Self {
            mode,
            csi_socket: socket::socket_path(parsed.text(&flags::CSI_SOCKET))?,
            leader_election: parsed.boolean(&flags::LEADER_ELECTION),
            kubeconfig: Some(parsed.text(&flags::KUBECONFIG))
                .filter(|path| !path.is_empty())
                .map(PathBuf::from),
            protected: Label {
                key: present(&flags::LABEL_KEY, &parsed)?,
                value: parsed.text(&flags::LABEL_VALUE).to_owned(),
            },
            driver_pods: Label {
                key: present(&flags::DRIVER_POD_LABEL_KEY, &parsed)?,
                value: parsed.text(&flags::DRIVER_POD_LABEL_VALUE).to_owned(),
            },
            driver_path: parsed
                .given(&flags::DRIVER_PATH)
                .filter(|path| !path.is_empty())
                .map(str::to_owned),
            ignore_volumeless_pods: parsed.boolean(&flags::IGNORE_VOLUMELESS_PODS),
            kubelet_root: present(&flags::KUBELET_ROOT, &parsed)?.into(),
            lazy_unmount: parsed.boolean(&flags::LAZY_UNMOUNT),
            stop_zombies: parsed.boolean(&flags::STOP_ZOMBIES),
            detect_only: parsed.boolean(&flags::DETECT_ONLY),
            pause: parsed.boolean(&flags::PAUSE),
            storm_guard: parsed.text(&flags::STORM_GUARD).parse()?,
            out_of_service_release: parsed.boolean(&flags::OUT_OF_SERVICE_RELEASE),
            settings_file: present(&flags::DRIVER_CONFIG_PARAMS, &parsed)?.into(),
            poll_rate: Duration::from_secs(poll_rate.get().into()),
            connection_loss_threshold: positive(&flags::CONNECTION_LOSS_THRESHOLD, &parsed)?,
            skip_array_connection_validation: parsed
                .boolean(&flags::SKIP_ARRAY_CONNECTION_VALIDATION),
            ignored: parsed.ignored,
        })
    }

    /// `--driverPath`, or the contract's default for it.
    pub fn driver_path_or_default(&self) -> &str {
        self.driver_path
            .as_deref()
            .unwrap_or(flags::DRIVER_PATH.default)
    }

    /// The usage of `program`, as `-h` shows it.
    pub fn usage(program: &str) -> String {
        usage::usage(program, FLAGS)
    }
}

impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "arguments behind the flags have no effect and were ignored, flags among them too: {:?}",
            self.arguments
        )?;
        match self.after {
            Some(flag) => write!(
                f,
                "; -{flag} was set to true, to give it a value write -{flag}=…"
            ),
            None => Ok(()),
        }
    }
}

fn present(flag: &flags::Flag<&'static str>, parsed: &Parsed) -> Result<String, ArgumentsError> {
    match parsed.text(flag) {
        "" => Err(ArgumentsError::Empty(flag.name)),
        text => Ok(text.to_owned()),
    }
}

fn positive(flag: &flags::Flag<i64>, parsed: &Parsed) -> Result<NonZeroU32, ArgumentsError> {
    let (flag, value) = (flag.name, parsed.integer(flag));
    if value <= 0 {
        return Err(ArgumentsError::NotPositive { flag, value });
    }
    u32::try_from(value)
        .ok()
        .and_then(NonZeroU32::new)
        .ok_or(ArgumentsError::TooLarge { flag, value })
}
