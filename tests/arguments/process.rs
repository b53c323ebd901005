//! The process's exit codes and what it says before it ends.

use std::process::{Command, Output};

fn podmon(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_podmon"))
        .args(args)
        .env_clear()
        .current_dir(env!("CARGO_TARGET_TMPDIR"))
        .output()
        .expect("podmon can be started")
}

fn said(output: &Output) -> String {
    assert_eq!(output.stdout, b"", "everything goes to standard error");
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

#[test]
fn help_is_the_usage_and_success() {
    for arg in ["-h", "--help", "-help", "--h"] {
        let output = podmon(&[arg]);
        assert_eq!(output.status.code(), Some(0), "{arg}");
        let said = said(&output);
        assert!(
            said.starts_with(&format!("Usage of {}:\n", env!("CARGO_BIN_EXE_podmon"))),
            "{said}"
        );
        assert!(said.contains("\n  -labelkey string\n    \t"), "{said}");
    }
}

#[test]
fn misuse_is_one_line_then_the_usage_and_exit_code_2() {
    for (args, first) in [
        (
            &["--labelKey=x"][..],
            "flag provided but not defined: -labelKey",
        ),
        (&["-csisock"], "flag needs an argument: -csisock"),
        (&["---mode=node"], "bad flag syntax: ---mode=node"),
        (
            &["--leaderelection=maybe"],
            "invalid boolean value \"maybe\" for -leaderelection: parse error",
        ),
        (
            &["--arrayConnectivityPollRate", "5s"],
            "invalid value \"5s\" for flag -arrayConnectivityPollRate: parse error",
        ),
        (
            &["--arrayConnectivityPollRate=99999999999999999999"],
            "invalid value \"99999999999999999999\" for flag -arrayConnectivityPollRate: value out of range",
        ),
    ] {
        let output = podmon(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let said = said(&output);
        let mut lines = said.lines();
        assert_eq!(lines.next(), Some(first));
        assert!(
            lines
                .next()
                .is_some_and(|line| line.starts_with("Usage of ")),
            "{said}"
        );
    }
}

#[test]
fn a_fatal_configuration_error_is_one_line_and_exit_code_1() {
    for (args, text) in [
        (&[][..], "--csisock"),
        (
            &["--csisock=/s", "--mode=both"],
            "invalid mode; choose controller, node, or standalone",
        ),
        (
            &["--csisock=/s", "--driver-config-params="],
            "--driver-config-params cannot be empty",
        ),
        (
            &["--csisock=/s"],
            "unable to read driver config file: resources/driver-config-params.yaml",
        ),
    ] {
        let output = podmon(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let said = said(&output);
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains("level=error"), "{said}");
        assert!(said.contains(text), "{said}");
    }
}

#[test]
fn d5_ignored_arguments_are_warned_of() {
    let output = podmon(&["--csisock=/s", "--leaderelection", "false", "--labelkey=x"]);
    let said = said(&output);
    let warning = said
        .lines()
        .find(|line| line.contains("level=warning"))
        .expect("a warning");
    for word in ["false", "--labelkey=x", "-leaderelection="] {
        assert!(warning.contains(word), "{warning}");
    }
}
