//! What a disk did not take, until it is time to try whether it takes as much: while nobody sends anything, nothing else would tell.

use std::time::{Duration, Instant};

/// What was refused last.
#[derive(Debug)]
pub struct Refusal {
    bytes: usize,
    try_at: Instant,
}

impl Refusal {
    /// Pause between trials.
    pub const TRY_EVERY: Duration = Duration::from_secs(2);

    /// Of so many bytes, just now.
    pub fn of(bytes: usize) -> Refusal {
        Refusal { bytes, try_at: Instant::now() + Self::TRY_EVERY }
    }

    /// Takes what was refused, in bytes, if it is time to try that.
    pub fn take_if_due(last: &mut Option<Refusal>) -> Option<usize> {
        last.take_if(|refusal| Instant::now() >= refusal.try_at).map(|refusal| refusal.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_refused_is_tried_once_a_while_later() {
        let mut last = Some(Refusal::of(7));
        assert_eq!(Refusal::take_if_due(&mut last), None);
        last = last.map(|refusal| Refusal { try_at: refusal.try_at - Refusal::TRY_EVERY, ..refusal });
        assert_eq!(Refusal::take_if_due(&mut last), Some(7));
        assert_eq!(Refusal::take_if_due(&mut last), None);
    }
}
