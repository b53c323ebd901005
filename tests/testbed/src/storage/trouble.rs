//! What a driver can be told to do wrong.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::name::{NodeId, VolumeId};

/// A call of the CSI driver that can be made to misbehave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Call {
    Probe,
    ControllerPublish,
    ControllerUnpublish,
    Connectivity,
    ListVolumes,
    NodeStage,
    NodeUnstage,
    NodePublish,
    NodeUnpublish,
}

/// How long something takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Delay {
    #[default]
    None,
    For(Duration),
    Forever,
}

/// How a call departs from what it should do: wait, act or not, wait again, answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// Passes before the call takes effect. It takes effect even when the caller has given up.
    pub before: Delay,
    /// Whether it takes effect at all.
    pub acts: bool,
    /// Passes between the effect and the answer.
    pub after: Delay,
    /// gRPC code and message in place of the honest answer; without it a call that did not act still answers OK.
    pub answer: Option<(i32, String)>,
}

impl Trouble {
    const NONE: Self = Self {
        before: Delay::None,
        acts: true,
        after: Delay::None,
        answer: None,
    };

    /// Does nothing and says OK.
    pub fn no_op() -> Self {
        Self {
            acts: false,
            ..Self::NONE
        }
    }

    /// Does nothing and never answers.
    pub fn hang() -> Self {
        Self {
            before: Delay::Forever,
            ..Self::NONE
        }
    }

    /// Takes effect, never answers.
    pub fn act_then_hang() -> Self {
        Self {
            after: Delay::Forever,
            ..Self::NONE
        }
    }

    /// Does nothing and answers with this code.
    pub fn fail(code: tonic::Code, message: &str) -> Self {
        Self {
            acts: false,
            ..Self::act_then_fail(code, message)
        }
    }

    /// Takes effect, and answers with this code.
    pub fn act_then_fail(code: tonic::Code, message: &str) -> Self {
        Self {
            answer: Some((code as i32, message.to_owned())),
            ..Self::NONE
        }
    }

    /// Takes effect at once, answers late.
    pub fn slow(by: Duration) -> Self {
        Self {
            after: Delay::For(by),
            ..Self::NONE
        }
    }

    /// Takes effect late, whether or not anyone still waits.
    pub fn late(by: Duration) -> Self {
        Self {
            before: Delay::For(by),
            ..Self::NONE
        }
    }
}

/// Which calls are in which trouble.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    pub call: Call,
    /// Only calls for this volume.
    pub volume: Option<VolumeId>,
    /// Only calls for this node.
    pub node: Option<NodeId>,
    /// How many calls it still meets; none: all.
    pub times: Option<u32>,
    pub trouble: Trouble,
}

impl Rule {
    /// Every call of this kind, until the rules are cleared.
    pub fn all(call: Call, trouble: Trouble) -> Self {
        Self {
            call,
            volume: None,
            node: None,
            times: None,
            trouble,
        }
    }

    /// Only this many calls.
    pub fn times(self, times: u32) -> Self {
        Self {
            times: Some(times),
            ..self
        }
    }

    /// Only calls for this node.
    pub fn on(self, node: &NodeId) -> Self {
        Self {
            node: Some(node.clone()),
            ..self
        }
    }

    /// Only calls for this volume.
    pub fn of(self, volume: &VolumeId) -> Self {
        Self {
            volume: Some(volume.clone()),
            ..self
        }
    }

    fn meets(&self, call: Call, volumes: &[VolumeId], node: Option<&NodeId>) -> bool {
        self.call == call
            && self.times != Some(0)
            && self.volume.as_ref().is_none_or(|v| volumes.contains(v))
            && (self.node.is_none() || self.node.as_ref() == node)
    }
}

/// The rules in force; the first that meets a call counts.
#[derive(Debug, Clone, Default)]
pub struct Rules(Vec<Rule>);

impl Rules {
    /// Adds a rule, before the older ones.
    pub fn add(&mut self, rule: Rule) {
        self.0.insert(0, rule);
    }

    /// Everything behaves again.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// The trouble that this call is in, and uses one of its rule's times up.
    pub fn take(
        &mut self,
        call: Call,
        volumes: &[VolumeId],
        node: Option<&NodeId>,
    ) -> Option<Trouble> {
        let rule = self.0.iter_mut().find(|r| r.meets(call, volumes, node))?;
        rule.times = rule.times.map(|left| left - 1);
        Some(rule.trouble.clone())
    }
}
