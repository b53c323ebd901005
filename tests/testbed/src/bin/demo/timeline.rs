//! What a person sees: one line for each thing that happened, with the seconds since the fault.

use std::time::Duration;

pub struct Timeline {
    origin: Duration,
}

impl Timeline {
    /// Times are counted from here.
    pub fn from(origin: Duration) -> Self {
        Self { origin }
    }

    pub fn tell(&self, at: Duration, what: &str) {
        let seconds = at.saturating_sub(self.origin).as_secs_f64();
        println!("{seconds:>8.1} s  {what}");
    }
}
