//! Breadth first through every state that can be reached, so that a counterexample is a shortest one.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use crate::invariants::{Violation, settled};
use crate::state::{Action, Setting, State};

/// What was found.
#[derive(Debug)]
pub struct Explored {
    pub states: usize,
    pub transitions: usize,
    /// Distinct states in which nothing is left to happen.
    pub settled: usize,
    pub depth: usize,
    pub violation: Option<(Violation, Vec<Action>)>,
    /// The bound was reached before the end.
    pub cut: bool,
}

/// Follows every history; `bound`: states at most.
pub fn explore(initial: &State, setting: &Setting, bound: usize) -> Explored {
    let mut seen: HashMap<u64, Option<(u64, Action)>> = HashMap::new();
    let first = fingerprint(initial);
    seen.insert(first, None);
    let mut found = Explored {
        states: 1,
        transitions: 0,
        settled: 0,
        depth: 0,
        violation: None,
        cut: false,
    };
    let mut layer = vec![(first, initial.clone())];
    while !layer.is_empty() && found.violation.is_none() {
        let half = layer.len().div_ceil(THREADS);
        let results: Vec<Vec<Successors>> = std::thread::scope(|scope| {
            let chunks = layer.chunks(half.max(1));
            let threads: Vec<_> = chunks
                .map(|chunk| {
                    scope.spawn(move || {
                        chunk
                            .iter()
                            .map(|(_, state)| successors(state, setting))
                            .collect()
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("no panic"))
                .collect()
        });
        if found.depth > DEPTH {
            let path = trace(&seen, layer[0].0);
            found.violation = Some((Violation::NeverSettles, path));
            break;
        }
        let mut next = Vec::new();
        for ((from, _), successors) in layer.iter().zip(results.into_iter().flatten()) {
            found.settled += usize::from(successors.settled);
            if let Some((violation, action)) = successors.violation {
                let mut path = trace(&seen, *from);
                path.extend(action);
                found.violation = Some((violation, path));
                break;
            }
            for (action, state, mark) in successors.states {
                found.transitions += 1;
                seen.entry(mark).or_insert_with(|| {
                    next.push((mark, state));
                    Some((*from, action))
                });
            }
        }
        found.states = seen.len();
        found.depth += 1;
        if found.states > bound {
            found.cut = true;
            break;
        }
        layer = next;
    }
    found
}

/// No history that comes to an end is longer.
const DEPTH: usize = 120;

const THREADS: usize = 2;

struct Successors {
    states: Vec<(Action, State, u64)>,
    violation: Option<(Violation, Option<Action>)>,
    settled: bool,
}

fn successors(state: &State, setting: &Setting) -> Successors {
    let mut found = Successors {
        states: Vec::new(),
        violation: None,
        settled: state.is_settled(),
    };
    if found.settled
        && let Err(violation) = settled(state)
    {
        found.violation = Some((violation, None));
        return found;
    }
    let mut actions = state.actions(setting);
    actions.extend(state.returns(setting));
    for action in actions {
        let mut next = state.clone();
        match next.take(&action, setting) {
            Ok(()) => {
                let mark = fingerprint(&next);
                found.states.push((action, next, mark));
            }
            Err(violation) => {
                found.violation = Some((violation, Some(action)));
                return found;
            }
        }
    }
    found
}

fn trace(seen: &HashMap<u64, Option<(u64, Action)>>, mut at: u64) -> Vec<Action> {
    let mut actions = Vec::new();
    while let Some(Some((from, action))) = seen.get(&at) {
        actions.push(action.clone());
        at = *from;
    }
    actions.reverse();
    actions
}

/// Equal states have equal ones; that two others have is as good as impossible at these numbers.
fn fingerprint(state: &State) -> u64 {
    let mut hasher = Mixer(0);
    state.hash(&mut hasher);
    hasher.finish()
}

/// Fast without optimisation, which the standard hasher is not.
struct Mixer(u64);

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        let mixed = u128::from(self.0 ^ word ^ 0x9E37_79B9_7F4A_7C15) * 0xDA94_2042_E4DD_58B5_u128;
        self.0 = ((mixed >> 64) as u64).rotate_left(23) ^ (mixed as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
