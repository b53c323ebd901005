//! Faults of a node on demand, and their end.

use super::node::{CONTAINERD, KUBELET};
use super::{Node, Result, process};

impl Node {
    /// Cuts the node off the network: API server and other nodes. The path to the array is another one and stays.
    pub fn cut_network(&self) -> Result<()> {
        process::output("ip", &["link", "set", &self.link(), "down"]).map(drop)
    }

    pub fn mend_network(&self) -> Result<()> {
        process::output("ip", &["link", "set", &self.link(), "up"]).map(drop)
    }

    /// Stops every process of the node, pods included, between two instructions.
    pub async fn freeze(&self) -> Result<()> {
        self.cgroup.freeze().await
    }

    /// Lets them go on, without a notion of the time that has passed.
    pub fn thaw(&self) -> Result<()> {
        self.cgroup.thaw()
    }

    /// Power loss: all processes die at once and nothing is written back. [`Node::power_on`] is the reboot.
    pub fn power_off(&self) -> Result<()> {
        self.cut_power()
    }

    /// Kills the kubelet; pods run on.
    pub fn stop_kubelet(&self) -> Result<()> {
        self.kill(KUBELET)
    }

    /// Kills containerd; containers run on under their shims.
    pub fn stop_containerd(&self) -> Result<()> {
        self.kill(CONTAINERD)
    }

    /// Ends whatever fault there is, and boots the node if it is off.
    pub async fn heal(&self) -> Result<()> {
        if !self.is_on() {
            self.power_on().await?;
        }
        self.thaw()?;
        self.mend_network()?;
        if !self.is_running(CONTAINERD) {
            self.start_containerd().await?;
        }
        if !self.is_running(KUBELET) {
            self.start_kubelet()?;
        }
        for name in self.stopped_daemons() {
            self.start_daemon(&name)?;
        }
        Ok(())
    }
}
