//! The configuration file: each key, each fault, and its reload.

#[path = "settings/process.rs"]
mod process;
#[path = "settings/reload.rs"]
mod reload;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use podmon::arguments::Arguments;
use podmon::environment::Environment;
use podmon::settings::{Settings, Source};
use podmon::telemetry::{Format, Level};
use tempfile::TempDir;

const LEVEL: &str = "PODMON_CONTROLLER_LOG_LEVEL";
const FORMAT: &str = "PODMON_CONTROLLER_LOG_FORMAT";
const POLL_RATE: &str = "PODMON_ARRAY_CONNECTIVITY_POLL_RATE";
const THRESHOLD: &str = "PODMON_ARRAY_CONNECTIVITY_CONNECTION_LOSS_THRESHOLD";
const SKIP: &str = "PODMON_SKIP_ARRAY_CONNECTION_VALIDATION";

/// The settings' source at `path`, with further arguments and variables.
fn source(path: &Path, args: &[&str], variables: &[(&str, &str)]) -> Source {
    let file = format!("--driver-config-params={}", path.display());
    let arguments = ["--csisock=/s", &file]
        .into_iter()
        .chain(args.iter().copied());
    let arguments = Arguments::parse(arguments).expect("good arguments");
    let variables: BTreeMap<_, _> = variables
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    Source::new(&arguments, &Environment::new(&variables, None))
}

fn load_with(yaml: &str, args: &[&str], variables: &[(&str, &str)]) -> Result<Settings, String> {
    let directory = TempDir::new().expect("a temporary directory");
    let path = directory.path().join("driver-config-params.yaml");
    std::fs::write(&path, yaml).expect("a file");
    match source(&path, args, variables).load() {
        Ok(follower) => Ok(follower.subscribe().borrow().clone()),
        Err(error) => Err(error.to_string()),
    }
}

fn load(yaml: &str) -> Result<Settings, String> {
    load_with(yaml, &[], &[])
}

fn settings(poll_rate: u64, threshold: u32, skip: bool, level: Level, format: Format) -> Settings {
    Settings {
        poll_rate: Duration::from_secs(poll_rate),
        connection_loss_threshold: threshold.try_into().expect("greater than zero"),
        skip_array_connection_validation: skip,
        log_level: level,
        log_format: format,
    }
}

#[test]
fn absent_keys_have_the_flags_values() {
    let flags = [
        "--arrayConnectivityPollRate=60",
        "--arrayConnectivityConnectionLossThreshold=5",
        "--skipArrayConnectionValidation",
    ];
    for yaml in [
        "",
        "# nothing",
        "{}",
        "CSI_LOG_LEVEL: info",
        "PODMON_CONTROLLER_LOG_LEVEL:",
    ] {
        assert_eq!(
            load_with(yaml, &flags, &[]),
            Ok(settings(60, 5, true, Level::Debug, Format::Text)),
            "{yaml:?}"
        );
    }
}

#[test]
fn d1_the_file_wins_from_the_start() {
    let flags = [
        "--arrayConnectivityPollRate=60",
        "--arrayConnectivityConnectionLossThreshold=5",
        "--skipArrayConnectionValidation",
    ];
    let yaml =
        format!("{POLL_RATE}: 5\n{THRESHOLD}: 4\n{SKIP}: false\n{LEVEL}: warn\n{FORMAT}: JSON\n");
    assert_eq!(
        load_with(&yaml, &flags, &[]),
        Ok(settings(5, 4, false, Level::Warning, Format::Json))
    );
    let lower_case = yaml.to_lowercase();
    assert_eq!(
        load_with(&lower_case, &flags, &[]),
        Ok(settings(5, 4, false, Level::Warning, Format::Json))
    );
}

#[test]
fn a_variable_that_is_not_empty_overrides_the_file() {
    let yaml = format!("{POLL_RATE}: 5\n{THRESHOLD}: 4\n{SKIP}: false\n{LEVEL}: warn\n");
    let variables = [
        (POLL_RATE, "7"),
        (THRESHOLD, ""),
        (SKIP, "T"),
        (LEVEL, "Error"),
        (FORMAT, "json"),
    ];
    assert_eq!(
        load_with(&yaml, &[], &variables),
        Ok(settings(7, 4, true, Level::Error, Format::Json))
    );
    assert_eq!(
        load_with("", &[], &[(POLL_RATE, "0x10")]),
        Err(format!(
            "error with configuration parameters: parsing {POLL_RATE} failed: value was 0x10"
        ))
    );
}

#[test]
fn numbers() {
    for key in [POLL_RATE, THRESHOLD] {
        for (value, read) in [
            ("60", Ok(60)),
            ("\"60\"", Ok(60)),
            ("'+60'", Ok(60)),
            ("\"060\"", Ok(60)),
            ("60.0", Ok(60)),
            ("~", Ok(0)),
            ("0", Err("should be greater than zero, but was 0")),
            ("-5", Err("should be greater than zero, but was -5")),
            (
                "4294967296",
                Err("should be at most 4294967295, but was 4294967296"),
            ),
            ("5s", Err("failed: value was 5s")),
            ("1.5", Err("failed: value was 1.5")),
            ("\"0x10\"", Err("failed: value was 0x10")),
            ("\"1_000\"", Err("failed: value was 1_000")),
            ("\"\"", Err("failed: value was ")),
            ("true", Err("failed: value was true")),
            ("[5]", Err("failed: value was ")),
            ("{a: 5}", Err("failed: value was ")),
            ("99999999999999999999", Err("failed: value was 1")),
        ] {
            let loaded = load(&format!("{key}: {value}"));
            match read {
                Ok(number) => {
                    let loaded = loaded.unwrap_or_else(|error| panic!("{key}: {value}: {error}"));
                    let (number, default) = if key == POLL_RATE {
                        (loaded.poll_rate.as_secs(), (number, 15))
                    } else {
                        (loaded.connection_loss_threshold.get().into(), (number, 3))
                    };
                    let expected = if default.0 == 0 { default.1 } else { default.0 };
                    assert_eq!(number, expected, "{key}: {value}");
                }
                Err(text) => {
                    let error = loaded.expect_err(value);
                    assert!(
                        error.starts_with("error with configuration parameters: "),
                        "{error}"
                    );
                    assert!(error.contains(key) && error.contains(text), "{error}");
                }
            }
        }
    }
}

#[test]
fn booleans() {
    for (value, read) in [
        ("true", Some(true)),
        ("True", Some(true)),
        ("\"T\"", Some(true)),
        ("1", Some(true)),
        ("FALSE", Some(false)),
        ("f", Some(false)),
        ("0", Some(false)),
        ("null", Some(false)),
        ("yes", None),
        ("on", None),
        ("\"tRUE\"", None),
        ("\"\"", None),
        ("2", None),
        ("[true]", None),
    ] {
        let loaded = load(&format!("{SKIP}: {value}"));
        match read {
            Some(read) => assert_eq!(
                loaded.map(|settings| settings.skip_array_connection_validation),
                Ok(read),
                "{value}"
            ),
            None => {
                let error = loaded.expect_err(value);
                assert!(error.contains(&format!("parsing {SKIP} failed")), "{error}");
            }
        }
    }
}

#[test]
fn log_levels_and_formats() {
    for (value, level) in [
        ("panic", Level::Panic),
        ("fatal", Level::Fatal),
        ("error", Level::Error),
        ("warn", Level::Warning),
        ("WARNING", Level::Warning),
        ("Info", Level::Info),
        ("debug", Level::Debug),
        ("trace", Level::Trace),
        ("\"\"", Level::Debug),
        ("~", Level::Debug),
    ] {
        let loaded = load(&format!("{LEVEL}: {value}"));
        assert_eq!(
            loaded.map(|settings| settings.log_level),
            Ok(level),
            "{value}"
        );
    }
    for value in ["verbose", "5", "\" info\"", "true"] {
        let error = load(&format!("{LEVEL}: {value}")).expect_err(value);
        let name = value.trim_matches('"');
        assert_eq!(
            error,
            format!("error with configuration parameters: input log level \"{name}\" is not valid")
        );
    }
    for (value, format) in [
        ("text", Format::Text),
        ("TEXT", Format::Text),
        ("Json", Format::Json),
        ("\"\"", Format::Text),
        ("xml", Format::Text),
    ] {
        let loaded = load(&format!("{FORMAT}: {value}"));
        assert_eq!(
            loaded.map(|settings| settings.log_format),
            Ok(format),
            "{value}"
        );
    }
}

#[test]
fn each_mode_reads_its_own_logging_keys() {
    let yaml = "\
PODMON_CONTROLLER_LOG_LEVEL: error
PODMON_CONTROLLER_LOG_FORMAT: json
PODMON_NODE_LOG_LEVEL: trace
PODMON_NODE_LOG_FORMAT: text
";
    for (mode, level, format) in [
        ("controller", Level::Error, Format::Json),
        ("node", Level::Trace, Format::Text),
        ("standalone", Level::Info, Format::Text),
    ] {
        let loaded = load_with(yaml, &[&format!("--mode={mode}")], &[]);
        assert_eq!(loaded, Ok(settings(15, 3, false, level, format)), "{mode}");
    }
    for (mode, good) in [("controller", false), ("node", true), ("standalone", true)] {
        let loaded = load_with(&format!("{LEVEL}: loud"), &[&format!("--mode={mode}")], &[]);
        assert_eq!(loaded.is_ok(), good, "{mode}");
    }
}

#[test]
fn the_first_fault_in_the_contracts_order_is_the_one_reported() {
    let keys = [
        (LEVEL, "loud", "input log level"),
        (POLL_RATE, "x", POLL_RATE),
        (THRESHOLD, "x", THRESHOLD),
        (SKIP, "x", SKIP),
    ];
    for first in 0..keys.len() {
        // In the file in the opposite order.
        let yaml: String = keys[first..]
            .iter()
            .rev()
            .map(|(key, value, _)| format!("{key}: {value}\n"))
            .collect();
        let error = load(&yaml).expect_err(&yaml);
        assert!(error.contains(keys[first].2), "{error}");
    }
}

#[test]
fn a_file_that_cannot_be_used() {
    for yaml in ["- a", "text", "a: b: c", "PODMON_X: 1\nPODMON_X: 2", "a: {"] {
        let error = load(yaml).expect_err(yaml);
        assert!(
            error.starts_with("unable to read driver config file: "),
            "{error}"
        );
        assert!(!error.contains('\n'), "{error}");
    }
    let directory = TempDir::new().expect("a temporary directory");
    for path in [
        directory.path().join("missing.yaml"),
        directory.path().to_owned(),
    ] {
        let error = source(&path, &[], &[])
            .load()
            .expect_err("no file")
            .to_string();
        assert!(
            error.starts_with("unable to read driver config file: "),
            "{error}"
        );
        assert!(error.contains(&path.display().to_string()), "{error}");
    }
}

#[test]
fn parameter_files_of_the_existing_charts() {
    let logging = "\
PODMON_CONTROLLER_LOG_LEVEL: \"info\"
PODMON_CONTROLLER_LOG_FORMAT: \"TEXT\"
PODMON_NODE_LOG_LEVEL: \"info\"
PODMON_NODE_LOG_FORMAT: \"TEXT\"
";
    for (driver, yaml, level) in [
        (
            "vxflexos",
            "CSI_LOG_LEVEL: debug\nCSI_LOG_FORMAT: TEXT\ninterfaceNames:\n  worker-1: \"192.0.2.1,192.0.2.2\"\n",
            Level::Info,
        ),
        (
            "unity",
            "CSI_LOG_LEVEL: \"info\"\nALLOW_RWO_MULTIPOD_ACCESS: \"false\"\nTENANT_NAME: \"\"\nSYNC_NODE_INFO_TIME_INTERVAL: \"15\"\n",
            Level::Info,
        ),
        (
            "isilon",
            "CSI_LOG_LEVEL: \"debug\"\nAZ_RECONCILE_INTERVAL: 1h\n",
            Level::Info,
        ),
        (
            "powerstore",
            "CSI_LOG_LEVEL: \"debug\"\nCSI_LOG_FORMAT: \"JSON\"\n",
            Level::Info,
        ),
    ] {
        let loaded = load(&format!("{yaml}{logging}")).unwrap_or_else(|e| panic!("{driver}: {e}"));
        assert_eq!(
            loaded,
            settings(15, 3, false, level, Format::Text),
            "{driver}"
        );
    }
    let powermax = "CSI_LOG_LEVEL: \"debug\"\nCSI_LOG_FORMAT: \"TEXT\"\n";
    assert_eq!(
        load(powermax),
        Ok(settings(15, 3, false, Level::Debug, Format::Text))
    );
    let empty = "PODMON_CONTROLLER_LOG_LEVEL: \"\"\nPODMON_CONTROLLER_LOG_FORMAT: \"\"\n";
    assert_eq!(
        load(empty),
        Ok(settings(15, 3, false, Level::Debug, Format::Text))
    );
}
