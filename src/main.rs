//! Reads arguments, environment and configuration file, then runs the chosen half.

use std::io::Write as _;
use std::process::ExitCode;

use podmon::arguments::{Arguments, ArgumentsError, Mode, ParseError};
use podmon::configuration::Configuration;
use podmon::environment::Environment;
use podmon::telemetry::Telemetry;

/// Of a command line that cannot be read, as Go's `flag` package has it.
const MISUSE: u8 = 2;

fn main() -> ExitCode {
    if let Some(code) = podmon::node::clear::child(std::env::args_os()) {
        return code;
    }
    let telemetry = Telemetry::start();
    let mut arguments = std::env::args_os();
    let program = arguments.next().map_or_else(
        || "podmon".to_owned(),
        |name| name.to_string_lossy().into_owned(),
    );
    let arguments = match Arguments::parse(arguments) {
        Ok(arguments) => arguments,
        Err(ArgumentsError::CommandLine(ParseError::Help)) => {
            say(&Arguments::usage(&program));
            return ExitCode::SUCCESS;
        }
        Err(ArgumentsError::CommandLine(error)) => {
            say(&format!("{error}\n{}", Arguments::usage(&program)));
            return ExitCode::from(MISUSE);
        }
        Err(error) => return fatal(&error),
    };
    if let Some(ignored) = &arguments.ignored {
        tracing::warn!("{ignored}");
    }
    let (configuration, follower) =
        match Configuration::load(arguments, Environment::of_this_process()) {
            Ok(loaded) => loaded,
            Err(error) => return fatal(&error),
        };
    let settings = configuration.settings.borrow().clone();
    telemetry.set(settings.log_level, settings.log_format);
    settings.log();
    if configuration.environment.driver_namespace.is_none() {
        tracing::warn!("MY_POD_NAMESPACE is not set: the driver's own pods cannot be told apart");
    }

    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return fatal(&error),
    };
    runtime.block_on(async move {
        tokio::spawn(follower.run(move |settings| {
            telemetry.set(settings.log_level, settings.log_format);
        }));
        run(configuration).await
    })
}

async fn run(configuration: Configuration) -> ExitCode {
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        mode = %configuration.arguments.mode,
        driver_path = configuration.arguments.driver_path_or_default(),
        "podmon starts"
    );
    match configuration.arguments.mode {
        Mode::Controller | Mode::Standalone => fatal(&podmon::controller::run(configuration).await),
        Mode::Node => fatal(&podmon::node::run(configuration).await),
    }
}

/// Without the log's form, as Go's `flag` package does. A closed standard error is no reason to fail.
fn say(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn fatal(error: &dyn std::error::Error) -> ExitCode {
    tracing::error!("{error}");
    ExitCode::FAILURE
}
