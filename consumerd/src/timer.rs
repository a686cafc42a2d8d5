//! A pause that costs one wake-up.
//!
//! The runtime's own timers are kept in a wheel of several levels: a pause of 100 ms wakes the thread twice, which doubles
//! what an idle daemon costs.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use crate::link::{wait_and_reset, watch};

/// One timer.
#[derive(Debug)]
pub struct Timer(AsyncFd<OwnedFd>);

impl Timer {
    /// A timer that does not run.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self(watch(timerfd_create(TimerfdClockId::Monotonic, flags)?)?))
    }

    /// Returns after `pause`. It may be dropped before: the next call sets the timer anew.
    ///
    /// # Errors
    /// Any error of the system.
    pub async fn sleep(&self, pause: Duration) -> io::Result<()> {
        // A timer set to 0 would never run.
        let it_value = Timespec::try_from(pause.max(Duration::from_nanos(1))).map_err(io::Error::other)?;
        let spec = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::empty(), &spec)?;
        wait_and_reset(&self.0).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[tokio::test]
    async fn a_sleep_lasts_as_asked_even_after_a_dropped_one() {
        let timer = Timer::new().unwrap();
        timer.sleep(Duration::ZERO).await.unwrap();
        tokio::select! {
            biased;
            _ = timer.sleep(Duration::from_millis(1)) => panic!("the sleep ended at once"),
            () = std::future::ready(()) => {}
        }
        let since = Instant::now();
        timer.sleep(Duration::from_millis(20)).await.unwrap();
        assert!(since.elapsed() >= Duration::from_millis(20));
    }
}
