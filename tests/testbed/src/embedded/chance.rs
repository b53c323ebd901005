//! Chance from a seed: the same on every machine.

use std::ops::Range;
use std::time::Duration;

/// A generator of the SplitMix64 kind: not for secrets, for histories.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Chance {
        Chance(seed)
    }

    /// A generator of its own for one part of the system, so that one part's draws do not shift another's.
    pub fn fork(&mut self, salt: u64) -> Chance {
        Chance(self.draw() ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; zero when `end` is zero.
    pub fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.draw() % end }
    }

    /// True as often as this out of a hundred.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A time within the range, in whole milliseconds.
    pub fn time(&mut self, range: Range<Duration>) -> Duration {
        let span = range.end.saturating_sub(range.start).as_millis() as u64;
        range.start + Duration::from_millis(self.below(span.max(1)))
    }

    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> Option<&'a T> {
        choices.get(self.below(choices.len() as u64) as usize)
    }
}
