//! The size of a write that the disk refused, until it is time to try such a write again: while no data arrives, nothing else
//! would show that the disk works again.

use std::time::{Duration, Instant};

/// The write that was refused last.
#[derive(Debug)]
pub struct Refusal {
    bytes: usize,
    try_at: Instant,
}

impl Refusal {
    /// Pause between attempts.
    pub const TRY_EVERY: Duration = Duration::from_secs(2);

    /// A write of `bytes` was refused just now.
    pub fn of(bytes: usize) -> Refusal {
        Refusal { bytes, try_at: Instant::now() + Self::TRY_EVERY }
    }

    /// Takes the size of the refused write, in bytes, if it is time to try again.
    pub fn take_if_due(last: &mut Option<Refusal>) -> Option<usize> {
        last.take_if(|refusal| Instant::now() >= refusal.try_at).map(|refusal| refusal.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_value_is_retried_once_after_a_delay() {
        let mut last = Some(Refusal::of(7));
        assert_eq!(Refusal::take_if_due(&mut last), None);
        last = last.map(|refusal| Refusal { try_at: refusal.try_at - Refusal::TRY_EVERY, ..refusal });
        assert_eq!(Refusal::take_if_due(&mut last), Some(7));
        assert_eq!(Refusal::take_if_due(&mut last), None);
    }
}
