//! Keys and names that follow from the driver beside us (design.md, "Names").

use crate::arguments::flags::DRIVER_PATH;
use crate::domain::DriverName;

/// The drivers whose names and paths are those of the contract; every other driver is [`Profile::Generic`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Profile {
    PowerFlex,
    Unity,
    PowerScale,
    PowerStore,
    PowerMax,
    Generic,
}

impl Profile {
    /// Chosen by `--driverPath`; `None` where the flag was not given, which is the contract's default.
    pub fn choose(driver_path: Option<&str>) -> Self {
        let Some(path) = driver_path else {
            return Self::PowerFlex;
        };
        // The contract looks for these in this order.
        [
            Self::Unity,
            Self::PowerScale,
            Self::PowerStore,
            Self::PowerMax,
            Self::PowerFlex,
        ]
        .into_iter()
        .find(|profile| profile.dell_name().is_some_and(|name| path.contains(name)))
        .unwrap_or(Self::Generic)
    }

    /// The driver's short name in the contract's keys.
    pub fn dell_name(self) -> Option<&'static str> {
        match self {
            Self::PowerFlex => Some("vxflexos"),
            Self::Unity => Some("unity"),
            Self::PowerScale => Some("isilon"),
            Self::PowerStore => Some("powerstore"),
            Self::PowerMax => Some("powermax"),
            Self::Generic => None,
        }
    }
}

/// The keys that podmon reads and writes for one driver. Those of another driver are never touched.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Names {
    /// What decides whether a volume is ours.
    pub driver: DriverName,
    /// Taint of an evacuated node.
    pub taint: String,
    /// Taint of a node whose driver pod is not ready.
    pub offline_taint: String,
    /// Annotation that holds the journal.
    pub journal: String,
    /// Annotation of a node on which no evacuation is begun while its value is `true`.
    pub pause: String,
    /// Annotation of a pod that is left alone, in spite of its label, while its value is `true`.
    pub opt_out: String,
    /// Key of the driver's node id in the annotation `csi.volume.kubernetes.io/nodeid`.
    pub node_id_key: String,
}

impl Names {
    /// The names for `driver`, as `GetPluginInfo` calls it; `driver_path` is the value of `--driverPath`.
    pub fn new(profile: Profile, driver: DriverName, driver_path: Option<&str>) -> Self {
        let [taint, offline_taint, journal, pause, opt_out] = match profile.dell_name() {
            Some(name) => [
                format!("{name}.podmon.storage.dell.com"),
                format!("offline.{name}.storage.dell.com"),
                format!("{name}.podmon.storage.dell.com/evacuation"),
                format!("{name}.podmon.storage.dell.com/pause"),
                format!("{name}.podmon.storage.dell.com/opt-out"),
            ],
            None => {
                // The prefix of a key is a DNS name, which is lower case.
                let name = driver.as_str().to_ascii_lowercase();
                [
                    format!("{name}/podmon"),
                    format!("{name}/podmon-offline"),
                    format!("{name}/podmon-evacuation"),
                    format!("{name}/podmon-pause"),
                    format!("{name}/podmon-opt-out"),
                ]
            }
        };
        let node_id_key = driver_path.unwrap_or(DRIVER_PATH.default).to_owned();
        Self {
            driver,
            taint,
            offline_taint,
            journal,
            pause,
            opt_out,
            node_id_key,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_path_chooses_the_profile() {
        for (path, profile) in [
            (None, Profile::PowerFlex),
            (Some("csi-vxflexos.dellemc.com"), Profile::PowerFlex),
            (Some("csi-unity.dellemc.com"), Profile::Unity),
            (Some("csi-isilon.dellemc.com"), Profile::PowerScale),
            (Some("csi-powerstore.dellemc.com"), Profile::PowerStore),
            (Some("csi-powermax.dellemc.com"), Profile::PowerMax),
            (Some("rbd.csi.ceph.com"), Profile::Generic),
        ] {
            assert_eq!(Profile::choose(path), profile, "{path:?}");
        }
    }

    #[test]
    fn keys_of_the_contract() {
        let names = Names::new(
            Profile::PowerStore,
            "csi-powerstore.dellemc.com".into(),
            None,
        );
        assert_eq!(names.taint, "powerstore.podmon.storage.dell.com");
        assert_eq!(names.offline_taint, "offline.powerstore.storage.dell.com");
        assert_eq!(
            names.journal,
            "powerstore.podmon.storage.dell.com/evacuation"
        );
        assert_eq!(names.node_id_key, "csi-vxflexos.dellemc.com");
    }

    #[test]
    fn keys_of_any_other_driver_are_lower_case() {
        let names = Names::new(Profile::Generic, "RBD.csi.ceph.com".into(), Some("rbd"));
        assert_eq!(names.taint, "rbd.csi.ceph.com/podmon");
        assert_eq!(names.offline_taint, "rbd.csi.ceph.com/podmon-offline");
        assert_eq!(names.journal, "rbd.csi.ceph.com/podmon-evacuation");
        assert_eq!(names.node_id_key, "rbd");
        assert_eq!(names.driver.as_str(), "RBD.csi.ceph.com");
    }
}
