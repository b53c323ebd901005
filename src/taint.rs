//! A node's taints, and edits of them.
//!
//! `spec.taints` is an atomic list: a patch of it carries every taint, those of others to the letter, and the
//! resourceVersion of the very read that it was computed from (protocol.md §2).

use serde::{Deserialize, Serialize};

/// Set by the node lifecycle controller on a node that it has lost.
pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// Set by an operator: the node is down and will not come back by itself.
pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// The effect of our own taints.
pub const NO_SCHEDULE: &str = "NoSchedule";

/// One taint, as the API writes it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Taint {
    pub key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    pub effect: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_added: Option<String>,
}

/// Whether one of the taints has this key and effect; the value says nothing.
pub fn has(taints: &[Taint], key: &str, effect: &str) -> bool {
    taints.iter().any(|t| t.key == key && t.effect == effect)
}

/// The list with `taint` in front, or `None` if its key and effect are there already.
pub fn with(taints: &[Taint], taint: Taint) -> Option<Vec<Taint>> {
    if has(taints, &taint.key, &taint.effect) {
        return None;
    }
    Some(
        std::iter::once(taint)
            .chain(taints.iter().cloned())
            .collect(),
    )
}

/// The list without the taint of this key and effect, or `None` if there is none.
pub fn without(taints: &[Taint], key: &str, effect: &str) -> Option<Vec<Taint>> {
    if !has(taints, key, effect) {
        return None;
    }
    let kept = taints
        .iter()
        .filter(|t| !(t.key == key && t.effect == effect));
    Some(kept.cloned().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(key: &str, effect: &str) -> Taint {
        Taint {
            key: key.into(),
            value: Some("v".into()),
            effect: effect.into(),
            time_added: Some("2026-01-01T00:00:00Z".into()),
        }
    }

    #[test]
    fn foreign_taints_stay_to_the_letter() {
        let foreign = [taint("a", "NoSchedule"), taint("ours", "NoExecute")];
        let both = with(&foreign, taint("ours", NO_SCHEDULE)).unwrap();
        assert_eq!(both[1..], foreign);
        assert_eq!(without(&both, "ours", NO_SCHEDULE).unwrap(), foreign);
    }

    #[test]
    fn nothing_to_do_is_no_write() {
        let list = [taint("ours", NO_SCHEDULE)];
        assert_eq!(with(&list, taint("ours", NO_SCHEDULE)), None);
        assert_eq!(without(&list, "ours", "NoExecute"), None);
    }
}
