//! Clusters to test podmon on: one in memory, one of real components.

pub mod embedded;
pub mod real;
pub mod scripted;
pub mod storage;

/// Wire formats, client and server side.
pub mod proto {
    /// The Container Storage Interface.
    pub mod csi {
        tonic::include_proto!("csi.v1");
    }
    /// The Container Runtime Interface, as far as podmon uses it.
    pub mod cri {
        tonic::include_proto!("runtime.v1");
    }
    /// The drivers' connectivity extension.
    pub mod podmon {
        tonic::include_proto!("podmon.v1");
    }
    /// The kubelet's plugin registration.
    pub mod registration {
        tonic::include_proto!("pluginregistration");
    }
}
