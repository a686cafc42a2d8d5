//! Notices at once that somebody set the clock.
//!
//! Records get the offset of CLOCK_REALTIME that the worker measured last, and an idle worker measures it only a few times a
//! second: a burst right after a step would get times from before the step. So the worker waits on a timer that never expires,
//! and that the kernel cancels when the clock is set (timerfd_create(2), `TFD_TIMER_CANCEL_ON_SET`).

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use crate::link::{wait_and_reset, watch};

/// In the year 2242.
const NEVER: Timespec = Timespec { tv_sec: 1 << 33, tv_nsec: 0 };

/// Waits for the clock to be set.
#[derive(Debug)]
pub struct ClockSet(Option<AsyncFd<OwnedFd>>);

impl ClockSet {
    /// Notices every clock step from now on; none, where the system has no such timer.
    pub fn watch() -> Self {
        let timer = Self::timer();
        if let Err(e) = &timer {
            tracing::info!(
                "failed to watch for clock steps; each is noticed only at the next look at the rings: {e}"
            );
        }
        Self(timer.ok())
    }

    fn timer() -> io::Result<AsyncFd<OwnedFd>> {
        let timer = timerfd_create(TimerfdClockId::Realtime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let flags = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
        let never = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: NEVER };
        timerfd_settime(&timer, flags, &never)?;
        watch(timer)
    }

    /// Returns when the clock has been set since the last return.
    ///
    /// # Errors
    /// Any error of the system.
    pub async fn happened(&self) -> io::Result<()> {
        let Some(timer) = &self.0 else { return std::future::pending().await };
        match wait_and_reset(timer).await {
            Err(e) if e.raw_os_error() == Some(Errno::CANCELED.raw_os_error()) => Ok(()),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Duration;

    use rustix::time::{ClockId, clock_gettime, clock_settime};
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn each_setting_of_the_clock_is_reported_and_nothing_else() {
        let clock_set = ClockSet::watch();
        assert!(timeout(Duration::from_millis(20), clock_set.happened()).await.is_err());
        for _ in 0..2 {
            // Sets the clock to what it shows, which is a step by as long as this takes.
            if let Err(e) = clock_settime(ClockId::Realtime, clock_gettime(ClockId::Realtime)) {
                assert_eq!(e, Errno::PERM);
                let _ = writeln!(io::stderr(), "not shown: this needs CAP_SYS_TIME");
                return;
            }
            timeout(Duration::from_secs(10), clock_set.happened()).await.expect("nothing was heard").unwrap();
        }
        assert!(timeout(Duration::from_millis(20), clock_set.happened()).await.is_err());
    }
}
