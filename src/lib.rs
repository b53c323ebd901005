//! podmon

/// Wire formats: generated from `proto/` at build time.
pub mod proto {
    /// The Container Storage Interface.
    pub mod csi {
        tonic::include_proto!("csi.v1");
    }
    /// The Container Runtime Interface.
    pub mod cri {
        tonic::include_proto!("runtime.v1");
    }
    /// The drivers' connectivity extension.
    pub mod podmon {
        tonic::include_proto!("podmon.v1");
    }
}
