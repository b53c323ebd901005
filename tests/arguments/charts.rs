//! Drop-in: the arguments of the existing charts, for each driver, by helm and by the operator.

use std::path::PathBuf;
use std::time::Duration;

use podmon::arguments::{Arguments, Label, Mode};
use podmon::controller::storm::Limit;
use podmon::environment::Environment;
use podmon::names::Profile;

const KUBELET: &str = "/var/lib/kubelet";

struct Chart {
    driver: &'static str,
    profile: Profile,
    /// Below the kubelet's `plugins`.
    directory: &'static str,
    params: &'static str,
    /// `X_CSI_PRIVATE_MOUNT_DIR` by helm; the operator always gives the kubelet's root.
    private: &'static str,
    /// Seconds, where the chart gives them.
    helm_poll_rate: Option<u64>,
    operator_poll_rate: Option<u64>,
    driver_path: Option<&'static str>,
}

const CHARTS: [Chart; 5] = [
    Chart {
        driver: "vxflexos",
        profile: Profile::PowerFlex,
        directory: "vxflexos.emc.dell.com",
        params: "/vxflexos-config-params/driver-config-params.yaml",
        private: "/var/lib/kubelet/plugins/vxflexos.emc.dell.com/disks",
        helm_poll_rate: None,
        operator_poll_rate: Some(5),
        driver_path: None,
    },
    Chart {
        driver: "unity",
        profile: Profile::Unity,
        directory: "unity.emc.dell.com",
        params: "/unity-config/driver-config-params.yaml",
        private: "/var/lib/kubelet/plugins/unity.emc.dell.com/disks",
        helm_poll_rate: None,
        operator_poll_rate: None,
        driver_path: Some("csi-unity.dellemc.com"),
    },
    Chart {
        driver: "isilon",
        profile: Profile::PowerScale,
        directory: "csi-isilon",
        params: "/csi-isilon-config-params/driver-config-params.yaml",
        private: "/var/lib/kubelet/plugins/csi-isilon/disks",
        helm_poll_rate: Some(60),
        operator_poll_rate: Some(60),
        driver_path: Some("csi-isilon.dellemc.com"),
    },
    Chart {
        driver: "powerstore",
        profile: Profile::PowerStore,
        directory: "csi-powerstore.dellemc.com",
        params: "/powerstore-config-params/driver-config-params.yaml",
        private: "/var/lib/kubelet",
        helm_poll_rate: Some(60),
        operator_poll_rate: Some(60),
        driver_path: Some("csi-powerstore.dellemc.com"),
    },
    Chart {
        driver: "powermax",
        profile: Profile::PowerMax,
        directory: "powermax.emc.dell.com",
        params: "/powermax-config-params/driver-config-params.yaml",
        private: "/var/lib/kubelet",
        helm_poll_rate: Some(60),
        operator_poll_rate: Some(60),
        driver_path: Some("csi-powermax.dellemc.com"),
    },
];

/// Who wrote the manifest.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Form {
    Helm,
    Operator,
}

fn socket(chart: &Chart, mode: Mode) -> String {
    match mode {
        Mode::Node => format!("{KUBELET}/plugins/{}/csi_sock", chart.directory),
        _ => "/var/run/csi/csi.sock".to_owned(),
    }
}

fn poll_rate(chart: &Chart, form: Form) -> Option<u64> {
    match form {
        Form::Helm => chart.helm_poll_rate,
        Form::Operator => chart.operator_poll_rate,
    }
}

fn arguments(chart: &Chart, form: Form, mode: Mode) -> Vec<String> {
    let mut args = vec![
        format!("--csisock=unix:{}", socket(chart, mode)),
        format!("--labelvalue=csi-{}", chart.driver),
    ];
    args.extend(chart.driver_path.map(|path| format!("--driverPath={path}")));
    args.push(format!("--mode={mode}"));
    args.push("--skipArrayConnectionValidation=false".to_owned());
    args.push(format!("--driver-config-params={}", chart.params));
    args.push("--driverPodLabelValue=dell-storage".to_owned());
    args.push("--ignoreVolumelessPods=false".to_owned());
    args.extend(
        poll_rate(chart, form).map(|seconds| format!("--arrayConnectivityPollRate={seconds}")),
    );
    match mode {
        Mode::Node => args.push("--leaderelection=false".to_owned()),
        _ if form == Form::Operator => {
            args.push("--arrayConnectivityConnectionLossThreshold=3".to_owned());
        }
        _ => {}
    }
    args
}

fn environment(chart: &Chart, form: Form, mode: Mode) -> Environment {
    let namespace = format!("csi-{}", chart.driver);
    let mut variables = vec![
        ("MY_NODE_NAME", "worker-1".to_owned()),
        ("MY_POD_NAME", "some-pod".to_owned()),
        ("MY_POD_NAMESPACE", namespace.clone()),
    ];
    if mode == Mode::Node {
        let private = match form {
            Form::Helm => chart.private,
            Form::Operator => KUBELET,
        };
        variables.push(("KUBE_NODE_NAME", "worker-1".to_owned()));
        variables.push(("X_CSI_PRIVATE_MOUNT_DIR", private.to_owned()));
        if form == Form::Operator {
            variables.push(("X_CSI_PODMON_API_PORT", "8083".to_owned()));
        }
    }
    // What newer charts add for another version.
    variables.push(("X_CSI_METRICS_ENABLED", "true".to_owned()));
    variables.push(("X_CSI_METRICS_PORT", "8444".to_owned()));
    let variables = variables
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    Environment::new(&variables, Some(&namespace))
}

#[test]
fn arguments_and_environment_of_the_existing_charts() {
    for chart in &CHARTS {
        for form in [Form::Helm, Form::Operator] {
            for mode in [Mode::Controller, Mode::Node] {
                let case = format!("{} by {form:?}, {mode}", chart.driver);
                let args = arguments(chart, form, mode);
                let read = Arguments::parse(&args).unwrap_or_else(|e| panic!("{case}: {e}"));
                let expected = Arguments {
                    mode,
                    csi_socket: PathBuf::from(socket(chart, mode)),
                    leader_election: mode != Mode::Node,
                    kubeconfig: None,
                    protected: Label {
                        key: "podmon.dellemc.com/driver".to_owned(),
                        value: format!("csi-{}", chart.driver),
                    },
                    driver_pods: Label {
                        key: "driver.dellemc.com".to_owned(),
                        value: "dell-storage".to_owned(),
                    },
                    driver_path: chart.driver_path.map(str::to_owned),
                    ignore_volumeless_pods: false,
                    detect_only: false,
                    pause: false,
                    storm_guard: Limit::Percent(50),
                    out_of_service_release: false,
                    kubelet_root: "/var/lib/kubelet".into(),
                    lazy_unmount: false,
                    stop_zombies: false,
                    settings_file: chart.params.into(),
                    poll_rate: Duration::from_secs(poll_rate(chart, form).unwrap_or(15)),
                    connection_loss_threshold: 3.try_into().unwrap(),
                    skip_array_connection_validation: false,
                    ignored: None,
                };
                assert_eq!(read, expected, "{case}");
                assert_eq!(
                    Profile::choose(read.driver_path.as_deref()),
                    chart.profile,
                    "{case}"
                );

                let environment = environment(chart, form, mode);
                let namespace = format!("csi-{}", chart.driver);
                assert_eq!(environment.driver_namespace.as_deref(), Some(&*namespace));
                assert_eq!(environment.lease_namespace, namespace);
                assert!(environment.overrides.is_empty());
                let private = (mode == Mode::Node).then_some(match form {
                    Form::Helm => chart.private,
                    Form::Operator => KUBELET,
                });
                assert_eq!(environment.private_mount_dir, private.map(PathBuf::from));
                assert_eq!(
                    environment.required_node_name().is_ok(),
                    mode == Mode::Node,
                    "{case}"
                );
            }
        }
    }
}
