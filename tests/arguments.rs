//! The command line, against Go's `flag` package and the contract.

#[path = "arguments/charts.rs"]
mod charts;
#[path = "arguments/process.rs"]
mod process;

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use podmon::arguments::flags::{Declaration, Default, FLAGS, Flag};
use podmon::arguments::parse::Parsed;
use podmon::arguments::{Arguments, ArgumentsError, Label, Mode, ParseError};
use podmon::controller::storm::Limit;
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Map, Value};

/// A command line and what Go makes of it; see `arguments/oracle.go`.
#[derive(Deserialize, Debug)]
#[serde(default)]
struct Outcome {
    args: Vec<String>,
    error: Option<String>,
    help: bool,
    given: Map<String, Value>,
    behind: Vec<String>,
}

impl std::default::Default for Outcome {
    fn default() -> Self {
        Self {
            args: Vec::new(),
            error: None,
            help: false,
            given: Map::new(),
            behind: Vec::new(),
        }
    }
}

fn parsed(args: &[String]) -> Result<Parsed, ParseError> {
    Parsed::new(FLAGS, args.iter().map(OsString::from))
}

/// The value that `flag` has after `args`.
fn value(parsed: &Parsed, flag: &Declaration) -> Value {
    let (name, meaning) = (flag.name, flag.meaning);
    match flag.default {
        Default::Text(default) => parsed
            .text(&Flag {
                name,
                default,
                meaning,
            })
            .into(),
        Default::Integer(default) => parsed
            .integer(&Flag {
                name,
                default,
                meaning,
            })
            .into(),
        Default::Boolean(default) => parsed
            .boolean(&Flag {
                name,
                default,
                meaning,
            })
            .into(),
    }
}

fn default(flag: &Declaration) -> Value {
    match flag.default {
        Default::Text(text) => text.into(),
        Default::Integer(integer) => integer.into(),
        Default::Boolean(boolean) => boolean.into(),
    }
}

#[test]
fn as_go_has_it() {
    let mut lines = include_str!("arguments/go.jsonl").lines();
    let mut usage = Arguments::usage("podmon");
    for flag in FLAGS {
        assert!(
            !flag.meaning.contains('`'),
            "Go takes a word in backquotes for the kind of the value: {}",
            flag.name
        );
        usage = usage.replace(flag.meaning, "MEANING");
    }
    assert_eq!(
        Value::from(usage),
        serde_json::from_str::<Value>(lines.next().unwrap()).unwrap()
    );
    let mut count = 0;
    for line in lines {
        let go: Outcome = serde_json::from_str(line).unwrap();
        count += 1;
        match parsed(&go.args) {
            Err(ParseError::Help) => assert!(go.help, "{line}"),
            Err(error) => assert_eq!(Some(error.to_string()), go.error, "{line}"),
            Ok(ours) => {
                assert!(go.error.is_none() && !go.help, "{line}");
                for flag in FLAGS {
                    let expected = go
                        .given
                        .get(flag.name)
                        .cloned()
                        .unwrap_or_else(|| default(flag));
                    assert_eq!(value(&ours, flag), expected, "{}: {line}", flag.name);
                }
                let behind = ours.ignored.map(|ignored| ignored.arguments);
                assert_eq!(behind.unwrap_or_default(), go.behind, "{line}");
            }
        }
    }
    assert!(count > 500, "the table has only {count} lines");
}

fn parse(args: &[&str]) -> Result<Arguments, ArgumentsError> {
    Arguments::parse(std::iter::once("--csisock=/s").chain(args.iter().copied()))
}

#[test]
fn defaults_of_the_contract() {
    assert_eq!(
        parse(&[]).unwrap(),
        Arguments {
            mode: Mode::Controller,
            csi_socket: "/s".into(),
            leader_election: true,
            kubeconfig: None,
            protected: Label {
                key: "podmon.dellemc.com/driver".to_owned(),
                value: "csi-vxflexos".to_owned(),
            },
            driver_pods: Label {
                key: "driver.dellemc.com".to_owned(),
                value: "dell-storage".to_owned(),
            },
            driver_path: None,
            ignore_volumeless_pods: false,
            detect_only: false,
            pause: false,
            storm_guard: Limit::Percent(50),
            out_of_service_release: false,
            kubelet_root: "/var/lib/kubelet".into(),
            lazy_unmount: false,
            stop_zombies: false,
            settings_file: "resources/driver-config-params.yaml".into(),
            poll_rate: Duration::from_secs(15),
            connection_loss_threshold: NonZeroU32::new(3).unwrap(),
            skip_array_connection_validation: false,
            ignored: None,
        }
    );
    assert_eq!(
        parse(&[]).unwrap().driver_path_or_default(),
        "csi-vxflexos.dellemc.com"
    );
}

#[test]
fn every_flag_in_every_form_reaches_its_value() {
    type Seen = fn(&Arguments) -> String;
    let cases: &[(&str, &str, Seen)] = &[
        ("arrayConnectivityPollRate", "0x3c", |a| {
            a.poll_rate.as_secs().to_string()
        }),
        ("arrayConnectivityConnectionLossThreshold", "1_0", |a| {
            a.connection_loss_threshold.to_string()
        }),
        ("csisock", "unix:/run/x.sock", |a| {
            a.csi_socket.display().to_string()
        }),
        ("kubeconfig", "/k", |a| format!("{:?}", a.kubeconfig)),
        ("labelkey", "k", |a| a.protected.key.clone()),
        ("labelvalue", "v", |a| a.protected.value.clone()),
        ("mode", "node", |a| a.mode.to_string()),
        ("driverPath", "d", |a| format!("{:?}", a.driver_path)),
        ("driver-config-params", "/p.yaml", |a| {
            a.settings_file.display().to_string()
        }),
        ("driverPodLabelKey", "dk", |a| a.driver_pods.key.clone()),
        ("driverPodLabelValue", "dv", |a| a.driver_pods.value.clone()),
        ("leaderelection", "f", |a| a.leader_election.to_string()),
        ("skipArrayConnectionValidation", "T", |a| {
            a.skip_array_connection_validation.to_string()
        }),
        ("detectOnly", "t", |a| a.detect_only.to_string()),
        ("pause", "1", |a| a.pause.to_string()),
        ("stormGuard", "3", |a| a.storm_guard.to_string()),
        ("outOfServiceRelease", "T", |a| {
            a.out_of_service_release.to_string()
        }),
        ("kubeletRoot", "/data/kubelet", |a| {
            a.kubelet_root.display().to_string()
        }),
        ("lazyUnmount", "t", |a| a.lazy_unmount.to_string()),
        ("stopZombies", "t", |a| a.stop_zombies.to_string()),
        ("ignoreVolumelessPods", "TRUE", |a| {
            a.ignore_volumeless_pods.to_string()
        }),
    ];
    let expected = [
        "60",
        "10",
        "/run/x.sock",
        "Some(\"/k\")",
        "k",
        "v",
        "node",
        "Some(\"d\")",
        "/p.yaml",
        "dk",
        "dv",
        "false",
        "true",
        "true",
        "true",
        "3",
        "true",
        "/data/kubelet",
        "true",
        "true",
        "true",
    ];
    assert_eq!(cases.len(), FLAGS.len(), "a flag has no case here");
    for ((name, text, seen), expected) in cases.iter().zip(expected) {
        let boolean = FLAGS
            .iter()
            .any(|flag| flag.name == *name && matches!(flag.default, Default::Boolean(_)));
        for dash in ["-", "--"] {
            let joined = parse(&[&format!("{dash}{name}={text}")]).unwrap();
            assert_eq!(seen(&joined), expected, "{dash}{name}={text}");
            if !boolean {
                let apart = parse(&[&format!("{dash}{name}"), text]).unwrap();
                assert_eq!(seen(&apart), expected, "{dash}{name} {text}");
            }
        }
    }
}

#[test]
fn d5_a_blank_behind_a_boolean_loses_all_that_follows() {
    let read = parse(&["--leaderelection", "false", "--labelkey=x", "--mode=node"]).unwrap();
    assert!(read.leader_election);
    assert_eq!(read.mode, Mode::Controller);
    let warning = read.ignored.expect("says what was ignored").to_string();
    for word in ["false", "--labelkey=x", "--mode=node", "-leaderelection="] {
        assert!(warning.contains(word), "{word}: {warning}");
    }
}

#[test]
fn d4_an_empty_socket_names_its_flag() {
    for args in [&[][..], &["--csisock="]] {
        let error = Arguments::parse(args).unwrap_err().to_string();
        assert!(error.contains("--csisock"), "{error}");
    }
}

#[test]
fn values_that_cannot_work_are_refused() {
    for (arg, text) in [
        (
            "--mode=both",
            "invalid mode; choose controller, node, or standalone",
        ),
        (
            "--mode=",
            "invalid mode; choose controller, node, or standalone",
        ),
        (
            "--driver-config-params=",
            "--driver-config-params cannot be empty",
        ),
        ("--labelkey=", "--labelkey cannot be empty"),
        (
            "--driverPodLabelKey=",
            "--driverPodLabelKey cannot be empty",
        ),
        ("--csisock=tcp://h:1", "--csisock must be unix:/path"),
        (
            "--arrayConnectivityPollRate=0",
            "--arrayConnectivityPollRate should be greater than zero, but was 0",
        ),
        (
            "--arrayConnectivityConnectionLossThreshold=-1",
            "--arrayConnectivityConnectionLossThreshold should be greater than zero, but was -1",
        ),
        (
            "--arrayConnectivityPollRate=4294967296",
            "--arrayConnectivityPollRate should be at most 4294967295, but was 4294967296",
        ),
    ] {
        let error = parse(&[arg]).expect_err(arg).to_string();
        assert!(error.contains(text), "{arg}: {error}");
    }
}

#[test]
fn driver_path_is_given_or_not() {
    for (args, given, value) in [
        (&[][..], None, "csi-vxflexos.dellemc.com"),
        (&["--driverPath="], None, "csi-vxflexos.dellemc.com"),
        (
            &["--driverPath=csi-vxflexos.dellemc.com"],
            Some("csi-vxflexos.dellemc.com"),
            "csi-vxflexos.dellemc.com",
        ),
        (&["--driverPath=rbd"], Some("rbd"), "rbd"),
    ] {
        let read = parse(args).unwrap();
        assert_eq!(read.driver_path.as_deref(), given);
        assert_eq!(read.driver_path_or_default(), value);
    }
}

#[test]
fn the_last_of_a_repeated_flag_wins() {
    let read = parse(&[
        "--mode=x",
        "-mode",
        "node",
        "--kubeconfig=/a",
        "--kubeconfig=",
    ])
    .unwrap();
    assert_eq!(read.mode, Mode::Node);
    assert_eq!(read.kubeconfig.as_deref(), None::<&Path>);
}

#[test]
fn the_table_is_sorted_and_without_repetition() {
    let names: Vec<_> = FLAGS.iter().map(|flag| flag.name).collect();
    assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
}

/// One assignment of a flag, and the words that write it in one of Go's forms.
fn assignment() -> impl Strategy<Value = (&'static Declaration, Value, Vec<String>)> {
    (
        0..FLAGS.len(),
        any::<String>(),
        any::<i64>(),
        any::<bool>(),
        any::<[bool; 2]>(),
    )
        .prop_map(|(flag, text, integer, boolean, [double, apart])| {
            let flag = &FLAGS[flag];
            let dash = if double { "--" } else { "-" };
            let (value, text, apart) = match flag.default {
                Default::Text(_) => (Value::from(text.clone()), text, apart),
                Default::Integer(_) => (integer.into(), integer.to_string(), apart),
                Default::Boolean(_) => (boolean.into(), boolean.to_string(), false),
            };
            let name = flag.name;
            let words = if apart {
                vec![format!("{dash}{name}"), text]
            } else {
                vec![format!("{dash}{name}={text}")]
            };
            (flag, value, words)
        })
}

proptest! {
    #[test]
    fn no_command_line_makes_it_panic(args in prop::collection::vec(
        prop_oneof![any::<OsString>(), "-{0,3}[a-zA-Z-]{0,12}=?.{0,4}".prop_map(OsString::from)], 0..6,
    )) {
        let _ = Arguments::parse(args);
    }

    #[test]
    fn what_is_written_is_read(assignments in prop::collection::vec(assignment(), 0..8)) {
        let words: Vec<String> = assignments.iter().flat_map(|(_, _, words)| words.clone()).collect();
        let read = parsed(&words).unwrap();
        prop_assert_eq!(&read.ignored, &None);
        for flag in FLAGS {
            let last = assignments.iter().rev().find(|(assigned, _, _)| assigned.name == flag.name);
            let expected = last.map_or_else(|| default(flag), |(_, value, _)| value.clone());
            prop_assert_eq!(value(&read, flag), expected);
        }
    }

    #[test]
    fn the_first_word_without_a_dash_ends_the_flags(
        before in prop::collection::vec(assignment(), 0..3),
        word in "[^-].{0,5}",
        behind in prop::collection::vec(any::<String>(), 0..3),
    ) {
        let mut words: Vec<String> = before.into_iter().flat_map(|(_, _, words)| words).collect();
        let alone = parsed(&words).unwrap();
        let behind: Vec<String> = std::iter::once(word).chain(behind).collect();
        words.extend(behind.iter().cloned());
        let read = parsed(&words).unwrap();
        for flag in FLAGS {
            prop_assert_eq!(value(&read, flag), value(&alone, flag));
        }
        prop_assert_eq!(read.ignored.map(|ignored| ignored.arguments), Some(behind));
    }
}
