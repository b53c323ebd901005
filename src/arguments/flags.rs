//! Every flag: its name, its kind, its default and what it is for. Usage and reference pages come from this table.

/// One flag whose values are of kind `T`.
#[derive(Clone, Copy, Debug)]
pub struct Flag<T> {
    /// As it is written after the dash; case matters.
    pub name: &'static str,
    pub default: T,
    /// What a user reads in the usage.
    pub meaning: &'static str,
}

/// A flag's default, which also says what kind of value the flag takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Default {
    Text(&'static str),
    Integer(i64),
    Boolean(bool),
}

/// A flag of any kind, as the table holds it.
pub type Declaration = Flag<Default>;

const fn text(flag: Flag<&'static str>) -> Declaration {
    Flag {
        name: flag.name,
        default: Default::Text(flag.default),
        meaning: flag.meaning,
    }
}

const fn integer(flag: Flag<i64>) -> Declaration {
    Flag {
        name: flag.name,
        default: Default::Integer(flag.default),
        meaning: flag.meaning,
    }
}

const fn boolean(flag: Flag<bool>) -> Declaration {
    Flag {
        name: flag.name,
        default: Default::Boolean(flag.default),
        meaning: flag.meaning,
    }
}

/// All flags, sorted by name as the usage shows them.
pub const FLAGS: &[Declaration] = &[
    integer(CONNECTION_LOSS_THRESHOLD),
    integer(POLL_RATE),
    text(CSI_SOCKET),
    boolean(DETECT_ONLY),
    text(DRIVER_CONFIG_PARAMS),
    text(DRIVER_PATH),
    text(DRIVER_POD_LABEL_KEY),
    text(DRIVER_POD_LABEL_VALUE),
    boolean(IGNORE_VOLUMELESS_PODS),
    text(KUBECONFIG),
    text(KUBELET_ROOT),
    text(LABEL_KEY),
    text(LABEL_VALUE),
    boolean(LAZY_UNMOUNT),
    boolean(LEADER_ELECTION),
    text(MODE),
    boolean(OUT_OF_SERVICE_RELEASE),
    boolean(PAUSE),
    boolean(SKIP_ARRAY_CONNECTION_VALIDATION),
    boolean(STOP_ZOMBIES),
    text(STORM_GUARD),
];

pub const CONNECTION_LOSS_THRESHOLD: Flag<i64> = Flag {
    name: "arrayConnectivityConnectionLossThreshold",
    default: 3,
    meaning: "how many polls in a row must find a node disconnected from the array before its pods are moved; the configuration file overrides it",
};

pub const POLL_RATE: Flag<i64> = Flag {
    name: "arrayConnectivityPollRate",
    default: 15,
    meaning: "seconds between two polls of the nodes' connectivity to the array (controller); the configuration file overrides it",
};

pub const CSI_SOCKET: Flag<&str> = Flag {
    name: "csisock",
    default: "",
    meaning: "unix socket of the CSI driver beside this container, for example unix:/var/run/csi/csi.sock; required",
};

pub const DRIVER_CONFIG_PARAMS: Flag<&str> = Flag {
    name: "driver-config-params",
    default: "resources/driver-config-params.yaml",
    meaning: "configuration file (YAML); changes are taken over while podmon runs",
};

pub const DRIVER_PATH: Flag<&str> = Flag {
    name: "driverPath",
    default: "csi-vxflexos.dellemc.com",
    meaning: "name of the CSI driver: chooses the driver's names and paths, and is the key of its node id in the node's annotation",
};

pub const DRIVER_POD_LABEL_KEY: Flag<&str> = Flag {
    name: "driverPodLabelKey",
    default: "driver.dellemc.com",
    meaning: "label key of the driver's own node pods",
};

pub const DRIVER_POD_LABEL_VALUE: Flag<&str> = Flag {
    name: "driverPodLabelValue",
    default: "dell-storage",
    meaning: "label value of the driver's own node pods",
};

pub const IGNORE_VOLUMELESS_PODS: Flag<bool> = Flag {
    name: "ignoreVolumelessPods",
    default: false,
    meaning: "leave labelled pods alone that use no persistent volume",
};

pub const KUBECONFIG: Flag<&str> = Flag {
    name: "kubeconfig",
    default: "",
    meaning: "kubeconfig file; without it the service account of the pod is used",
};

pub const KUBELET_ROOT: Flag<&str> = Flag {
    name: "kubeletRoot",
    default: "/var/lib/kubelet",
    meaning: "the kubelet's directory, as mounted into this container (node)",
};

pub const LABEL_KEY: Flag<&str> = Flag {
    name: "labelkey",
    default: "podmon.dellemc.com/driver",
    meaning: "label key of protected pods",
};

pub const LABEL_VALUE: Flag<&str> = Flag {
    name: "labelvalue",
    default: "csi-vxflexos",
    meaning: "label value of protected pods",
};

pub const LAZY_UNMOUNT: Flag<bool> = Flag {
    name: "lazyUnmount",
    default: false,
    meaning: "detach what is busy of an evacuated pod's volume; the node stays tainted until its device is provably closed, for NFS until the next boot (node)",
};

pub const LEADER_ELECTION: Flag<bool> = Flag {
    name: "leaderelection",
    default: true,
    meaning: "work only while holding the lease; false where there is one process of this kind, as on nodes",
};

pub const MODE: Flag<&str> = Flag {
    name: "mode",
    default: "controller",
    meaning: "controller, node or standalone",
};

pub const SKIP_ARRAY_CONNECTION_VALIDATION: Flag<bool> = Flag {
    name: "skipArrayConnectionValidation",
    default: false,
    meaning: "once Kubernetes evicts from an unreachable node (NoExecute taint), move its pods even if the array still sees the node or I/O, or cannot say; the configuration file overrides it",
};

pub const DETECT_ONLY: Flag<bool> = Flag {
    name: "detectOnly",
    default: false,
    meaning: "decide and tell, but begin no evacuation (controller)",
};

pub const OUT_OF_SERVICE_RELEASE: Flag<bool> = Flag {
    name: "outOfServiceRelease",
    default: false,
    meaning: "without the right to patch nodes/status, set the taint node.kubernetes.io/out-of-service=podmon:NoSchedule for the seconds of a release, so that volumes detach at once (controller)",
};

pub const PAUSE: Flag<bool> = Flag {
    name: "pause",
    default: false,
    meaning: "begin no evacuation; those that have begun go on (controller)",
};

pub const STOP_ZOMBIES: Flag<bool> = Flag {
    name: "stopZombies",
    default: false,
    meaning: "stop containers of evacuated pods that the kubelet leaves running (node)",
};

pub const STORM_GUARD: Flag<&str> = Flag {
    name: "stormGuard",
    default: "50%",
    meaning: "begin no evacuation while more nodes than this look lost at once: a number, or a percentage of the nodes that hold protected pods (controller)",
};
