//! podmon: a sidecar to a CSI driver that moves stateful pods off failed nodes, and never lets the old incarnation
//! write beside the new one.
//!
//! ```text
//!  API server ── watch ──▶ ┐
//!  CSI driver ── poll ───▶ ├─ observations ─▶ World ─▶ decide(&World, now) ─▶ Evacuation ── Step ──▶ perform ─▶ API server, CSI driver
//!  clock ────────────────▶ ┘                plain data      pure              pure     ◀── Outcome ──   the only I/O
//! ```

pub mod arguments;
pub mod clock;
pub mod cluster;
pub mod configuration;
pub mod connect;
pub mod controller;
pub mod cri;
pub mod csi;
pub mod domain;
pub mod environment;
pub mod journal;
mod literals;
pub mod names;
pub mod node;
pub mod settings;
pub mod taint;
pub mod telemetry;

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
