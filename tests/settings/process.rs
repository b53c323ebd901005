//! The process with its configuration file: exit codes and start-up lines.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use tempfile::TempDir;

const DEADLINE: Duration = Duration::from_secs(30);

/// A running podmon, ended with its owner.
struct Podmon {
    process: Child,
    lines: Receiver<String>,
}

impl Podmon {
    /// With a kubeconfig of a server that does not exist: how far it gets is no matter here.
    fn start(directory: &Path, args: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_podmon"))
            .arg(format!(
                "--csisock={}",
                directory.join("csi.sock").display()
            ))
            .arg(format!(
                "--driver-config-params={}",
                directory.join("params.yaml").display()
            ))
            .arg(format!(
                "--kubeconfig={}",
                directory.join("kubeconfig").display()
            ))
            .args(args)
            .env_clear()
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("podmon can be started");
        let stderr = process.stderr.take().expect("a pipe");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { process, lines }
    }

    /// Reads on to the first line with `text`, and returns it.
    fn says(&self, text: &str) -> String {
        let deadline = Instant::now() + DEADLINE;
        let mut seen = Vec::new();
        loop {
            match self
                .lines
                .recv_timeout(deadline.saturating_duration_since(Instant::now()))
            {
                Ok(line) if line.contains(text) => return line,
                Ok(line) => seen.push(line),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    panic!("podmon never said {text:?}, only {seen:#?}")
                }
            }
        }
    }

    /// Waits for its end.
    fn exit_code(&mut self) -> Option<i32> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.process.try_wait().expect("a child") {
                return status.code();
            }
            assert!(Instant::now() < deadline, "podmon still runs");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Podmon {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn with_params(yaml: &str) -> TempDir {
    let directory = TempDir::new().expect("a temporary directory");
    std::fs::write(directory.path().join("params.yaml"), yaml).expect("a file");
    std::fs::write(
        directory.path().join("kubeconfig"),
        "\
apiVersion: v1
kind: Config
clusters: [{name: none, cluster: {server: 'http://127.0.0.1:1'}}]
users: [{name: none, user: {}}]
contexts: [{name: none, context: {cluster: none, user: none}}]
current-context: none
",
    )
    .expect("a file");
    directory
}

#[test]
fn d2_a_bad_value_ends_the_process_with_exit_code_1() {
    let directory = with_params("PODMON_ARRAY_CONNECTIVITY_POLL_RATE: 0\n");
    let mut podmon = Podmon::start(directory.path(), &[], &[]);
    let line = podmon.says("error with configuration parameters");
    assert!(line.contains("level=error"), "{line}");
    assert!(
        line.contains("PODMON_ARRAY_CONNECTIVITY_POLL_RATE should be greater than zero, but was 0"),
        "{line}"
    );
    assert_eq!(podmon.exit_code(), Some(1));
}

#[test]
fn d2_node_mode_needs_its_nodes_name() {
    let directory = with_params("");
    let mut podmon = Podmon::start(
        directory.path(),
        &["--mode=node"],
        &[("KUBE_NODE_NAME", "")],
    );
    podmon.says("KUBE_NODE_NAME environment variable must be set");
    assert_eq!(podmon.exit_code(), Some(1));
}

#[test]
fn values_in_effect_are_logged_at_the_start() {
    let directory = with_params("PODMON_ARRAY_CONNECTIVITY_POLL_RATE: 7\n");
    let variables = [("PODMON_SKIP_ARRAY_CONNECTION_VALIDATION", "true")];
    let podmon = Podmon::start(directory.path(), &[], &variables);
    for (key, value) in [
        ("PODMON_ARRAY_CONNECTIVITY_POLL_RATE", "7"),
        ("PODMON_ARRAY_CONNECTIVITY_CONNECTION_LOSS_THRESHOLD", "3"),
        ("PODMON_SKIP_ARRAY_CONNECTION_VALIDATION", "true"),
    ] {
        let line = podmon.says(key);
        assert!(
            line.contains("msg=\"parameter value after config file processing\""),
            "{line}"
        );
        assert!(
            line.ends_with(&format!("key={key} value={value}")),
            "{line}"
        );
    }
}

#[test]
fn the_log_takes_its_form_from_the_file() {
    let directory = with_params("PODMON_CONTROLLER_LOG_FORMAT: json\n");
    let podmon = Podmon::start(directory.path(), &[], &[]);
    let line = podmon.says("parameter value after config file processing");
    let line: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(line["level"], "info");
    assert_eq!(line["msg"], "parameter value after config file processing");

    let directory = with_params("PODMON_CONTROLLER_LOG_FORMAT: xml\n");
    let podmon = Podmon::start(directory.path(), &[], &[]);
    assert!(podmon.says("xml").contains("level=warning"));
    assert!(podmon.says("parameter value").starts_with("time=\""));
}
