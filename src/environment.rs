//! What podmon reads from its environment, once, at the start.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::domain::NodeName;

/// Where Kubernetes puts the namespace of the pod's service account.
const SERVICE_ACCOUNT_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// The environment's values. An empty variable counts as absent, everywhere.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Environment {
    /// `KUBE_NODE_NAME`: the node that this process is on.
    pub node_name: Option<NodeName>,
    /// `MY_POD_NAMESPACE`: pods in it are the driver's own, and never protected.
    pub driver_namespace: Option<String>,
    /// `X_CSI_PRIVATE_MOUNT_DIR`: base of the driver's private and staging paths.
    pub private_mount_dir: Option<PathBuf>,
    /// `POD_NAMESPACE`, else the service account's namespace, else `default`.
    pub lease_namespace: String,
    /// `PODMON_*`, by upper-case name: each overrides the key of the same name in the configuration file.
    pub overrides: BTreeMap<String, String>,
}

/// Node mode without the name of its node.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
#[error("KUBE_NODE_NAME environment variable must be set")]
pub struct NoNodeName;

impl Environment {
    /// Of this process; what is not UTF-8 is left out.
    pub fn of_this_process() -> Self {
        let variables = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        // Outside a pod the file is missing, which is no error.
        let namespace = std::fs::read_to_string(SERVICE_ACCOUNT_NAMESPACE).ok();
        Self::new(&variables, namespace.as_deref())
    }

    /// `service_account_namespace` is the content of the file of that name.
    pub fn new(
        variables: &BTreeMap<String, String>,
        service_account_namespace: Option<&str>,
    ) -> Self {
        let present = |name: &str| {
            variables
                .get(name)
                .filter(|value| !value.is_empty())
                .cloned()
        };
        Self {
            node_name: present("KUBE_NODE_NAME").map(NodeName::from),
            driver_namespace: present("MY_POD_NAMESPACE"),
            private_mount_dir: present("X_CSI_PRIVATE_MOUNT_DIR").map(PathBuf::from),
            lease_namespace: present("POD_NAMESPACE")
                .or_else(|| {
                    service_account_namespace
                        .map(|namespace| namespace.trim().to_owned())
                        .filter(|namespace| !namespace.is_empty())
                })
                .unwrap_or_else(|| "default".to_owned()),
            overrides: variables
                .iter()
                .filter(|(name, value)| name.starts_with("PODMON_") && !value.is_empty())
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
        }
    }

    /// The node's name, which node mode cannot do without.
    pub fn required_node_name(&self) -> Result<&NodeName, NoNodeName> {
        self.node_name.as_ref().ok_or(NoNodeName)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)], service_account: Option<&str>) -> Environment {
        let variables = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        Environment::new(&variables, service_account)
    }

    #[test]
    fn everything_set() {
        let read = environment(
            &[
                ("KUBE_NODE_NAME", "worker-1"),
                ("MY_POD_NAMESPACE", "powerstore"),
                ("X_CSI_PRIVATE_MOUNT_DIR", "/var/lib/kubelet"),
                ("POD_NAMESPACE", "leases"),
                ("PODMON_NODE_LOG_LEVEL", "info"),
                ("PODMON_NODE_LOG_FORMAT", ""),
                ("podmon_node_log_level", "debug"),
                ("MY_NODE_NAME", "ignored"),
            ],
            Some("account"),
        );
        assert_eq!(read.required_node_name(), Ok(&NodeName::from("worker-1")));
        assert_eq!(read.driver_namespace.as_deref(), Some("powerstore"));
        assert_eq!(read.private_mount_dir, Some("/var/lib/kubelet".into()));
        assert_eq!(read.lease_namespace, "leases");
        assert_eq!(
            read.overrides,
            BTreeMap::from([("PODMON_NODE_LOG_LEVEL".to_owned(), "info".to_owned())])
        );
    }

    #[test]
    fn nothing_set() {
        for variables in [
            &[][..],
            &[
                ("KUBE_NODE_NAME", ""),
                ("MY_POD_NAMESPACE", ""),
                ("X_CSI_PRIVATE_MOUNT_DIR", ""),
                ("POD_NAMESPACE", ""),
            ],
        ] {
            let read = environment(variables, None);
            assert_eq!(read.required_node_name(), Err(NoNodeName));
            assert_eq!(read.driver_namespace, None);
            assert_eq!(read.private_mount_dir, None);
            assert_eq!(read.lease_namespace, "default");
        }
    }

    #[test]
    fn lease_namespace_falls_back() {
        assert_eq!(
            environment(&[], Some("account\n")).lease_namespace,
            "account"
        );
        assert_eq!(environment(&[], Some(" \n")).lease_namespace, "default");
    }
}
