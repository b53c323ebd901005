//! The Node object and boot as last seen, in a file beside the driver's socket: how a node notices that it was
//! registered anew while its pods ran on. A missing or unreadable file means nothing.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::domain::{BootId, NodeUid};

/// The file's name.
pub const FILE: &str = "podmon-node.json";

/// Which Node object this machine was, in which boot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Identity {
    pub node: NodeUid,
    pub boot: BootId,
}

impl Identity {
    /// The same boot, and another Node object.
    pub fn is_recreated(&self, now: &Identity) -> bool {
        self.boot == now.boot && self.node != now.node
    }
}

/// Where it is kept.
#[derive(Clone, Debug)]
pub struct Store {
    path: PathBuf,
}

impl Store {
    pub fn beside(socket: &Path) -> Self {
        Self {
            path: socket.with_file_name(FILE),
        }
    }

    pub fn load(&self) -> Option<Identity> {
        serde_json::from_slice(&std::fs::read(&self.path).ok()?).ok()
    }

    pub fn save(&self, identity: &Identity) -> io::Result<()> {
        let new = self.path.with_extension("json.new");
        std::fs::write(&new, serde_json::to_vec(identity)?)?;
        std::fs::rename(&new, &self.path)
    }
}
