//! The storm guard: when more nodes look lost at once than can be believed, the array's API or the control plane is
//! the likelier patient, and no new group is evacuated (design.md, invariant 6).

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::domain::NodeName;

use super::decide::evidence;
use super::world::World;

/// How many of the nodes that hold protected pods may be lost at once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Limit {
    Nodes(u32),
    /// Of the nodes that hold protected pods, rounded up.
    Percent(u32),
}

/// A limit that is neither a number nor a percentage.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
#[error("{0:?} is neither a number of nodes (such as 3) nor a percentage of them from 1% to 100%")]
pub struct NotALimit(String);

impl FromStr for Limit {
    type Err = NotALimit;
    fn from_str(text: &str) -> Result<Self, NotALimit> {
        let error = || NotALimit(text.to_owned());
        match text.strip_suffix('%') {
            Some(percent) => match percent.parse() {
                Ok(percent @ 1..=100) => Ok(Self::Percent(percent)),
                _ => Err(error()),
            },
            None => text.parse().map(Self::Nodes).map_err(|_| error()),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nodes(nodes) => write!(f, "{nodes}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl Limit {
    /// Whether so many of so many may be lost.
    pub fn allows(self, lost: usize, of: usize) -> bool {
        let most = match self {
            Self::Nodes(nodes) => nodes as usize,
            Self::Percent(percent) => (of * percent as usize).div_ceil(100),
        };
        lost <= most
    }
}

/// The nodes that hold protected pods, or held them when they were lost, and those of them that look lost.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Picture {
    pub holding: usize,
    pub lost: BTreeSet<NodeName>,
}

impl Picture {
    /// By the cached picture; `array_lost` tells of one node whether its array is.
    pub fn new(world: &World, array_lost: impl Fn(&NodeName) -> bool) -> Self {
        let mut picture = Self::default();
        for node in world.nodes() {
            let lost = evidence(node, array_lost(&node.name)).is_some();
            // One that was evacuated counts as long as it is lost: otherwise nodes that fail one after the other, each
            // evacuated before the next, would never look like many.
            let evacuated = lost && node.journal.is_some();
            if !evacuated && !world.pods_on(&node.name).any(|pod| !pod.finished()) {
                continue;
            }
            picture.holding += 1;
            if lost {
                picture.lost.insert(node.name.clone());
            }
        }
        picture
    }

    pub fn is_believable(&self, limit: Limit) -> bool {
        limit.allows(self.lost.len(), self.holding)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_lets_one_of_two_and_a_third_of_nine_go() {
        let limit: Limit = "50%".parse().unwrap();
        for (lost, of, allowed) in [
            (1, 1, true),
            (1, 2, true),
            (2, 2, false),
            (3, 9, true),
            (9, 9, false),
        ] {
            assert_eq!(limit.allows(lost, of), allowed, "{lost} of {of}");
        }
    }

    #[test]
    fn limits_that_are_none() {
        for text in ["", "%", "0%", "101%", "-1", "half", "5 %"] {
            assert_eq!(text.parse::<Limit>(), Err(NotALimit(text.into())));
        }
        assert_eq!("0".parse(), Ok(Limit::Nodes(0)));
    }
}
