//! Time, handed to whoever needs it as a value, so that the same code runs on a machine and in a simulation.

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

/// A point on the machine's own clock: time since boot, suspended time included, so that a claim also runs out
/// while the machine sleeps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Moment(Duration);

impl Moment {
    /// The moment this long after boot.
    pub const fn since_boot(elapsed: Duration) -> Self {
        Self(elapsed)
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;
    fn add(self, rest: Duration) -> Moment {
        Moment(self.0.saturating_add(rest))
    }
}

/// Zero when `earlier` is in fact later.
impl Sub for Moment {
    type Output = Duration;
    fn sub(self, earlier: Moment) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// Where time comes from.
#[derive(Clone)]
pub struct Clock {
    boot: Arc<dyn Fn() -> Moment + Send + Sync>,
    wall: Arc<dyn Fn() -> Timestamp + Send + Sync>,
}

impl Clock {
    /// The machine's clocks: `CLOCK_BOOTTIME` to measure, the wall clock only to tell people.
    pub fn machine() -> Self {
        Self::new(
            || {
                let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
                Moment(Duration::new(
                    time.tv_sec.unsigned_abs(),
                    u32::try_from(time.tv_nsec).unwrap_or(0),
                ))
            },
            Timestamp::now,
        )
    }

    /// Clocks of one's own: a simulation's, or a skewed one.
    pub fn new(
        boot: impl Fn() -> Moment + Send + Sync + 'static,
        wall: impl Fn() -> Timestamp + Send + Sync + 'static,
    ) -> Self {
        Self {
            boot: Arc::new(boot),
            wall: Arc::new(wall),
        }
    }

    /// Now, to measure with.
    pub fn now(&self) -> Moment {
        (self.boot)()
    }

    /// Now, to show to people; nothing is decided by it.
    pub fn wall(&self) -> Timestamp {
        (self.wall)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Clock").field(&self.now()).finish()
    }
}
