//! All that a process of podmon is given at its start.

use tokio::sync::watch;

use crate::arguments::{Arguments, Mode};
use crate::cluster::Protection;
use crate::environment::{Environment, NoNodeName};
use crate::names::Names;
use crate::settings::{Follower, Settings, SettingsError, Source};

/// Handed to the half that runs.
#[derive(Clone, Debug)]
pub struct Configuration {
    pub arguments: Arguments,
    pub environment: Environment,
    /// The values in effect; they may change at any time.
    pub settings: watch::Receiver<Settings>,
}

/// Why podmon cannot start.
#[derive(thiserror::Error, Debug)]
pub enum ConfigurationError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    NodeName(#[from] NoNodeName),
}

impl Configuration {
    /// Reads the configuration file; the [`Follower`] keeps the settings up to date when it is run.
    pub fn load(
        arguments: Arguments,
        environment: Environment,
    ) -> Result<(Self, Follower), ConfigurationError> {
        let follower = Source::new(&arguments, &environment).load()?;
        if arguments.mode == Mode::Node {
            environment.required_node_name()?;
        }
        let configuration = Self {
            arguments,
            environment,
            settings: follower.subscribe(),
        };
        Ok((configuration, follower))
    }

    /// What protects a pod, for the driver of these names.
    pub fn protection(&self, names: &Names) -> Protection {
        Protection {
            key: self.arguments.protected.key.clone(),
            value: self.arguments.protected.value.clone(),
            driver_namespace: self.environment.driver_namespace.clone(),
            opt_out: names.opt_out.clone(),
        }
    }
}
