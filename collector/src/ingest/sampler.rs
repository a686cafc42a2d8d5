//! Sampling by trace id, as in Zipkin's collector: every collector keeps the same traces, and keeps them whole.

/// Decides which traces are kept.
#[derive(Debug, Clone, Copy)]
pub struct Sampler {
    boundary: i64,
}

impl Sampler {
    /// A sampler that keeps this share of all traces, 0 to 1.
    pub fn new(rate: f64) -> Self {
        // The float nearest to i64::MAX is above it; the cast saturates there.
        Sampler { boundary: (i64::MAX as f64 * rate.clamp(0.0, 1.0)) as i64 }
    }

    /// Whether the pieces of a trace are kept, by the low 64 bits of its id. Debug spans always are.
    pub fn keeps(&self, debug: bool, low: i64) -> bool {
        debug || low.checked_abs().unwrap_or(i64::MAX) <= self.boundary
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn rate_one_keeps_all_and_rate_zero_only_debug_spans() {
        for id in [1, -1, i64::MAX, i64::MIN] {
            assert!(Sampler::new(1.0).keeps(false, id));
            assert!(!Sampler::new(0.0).keeps(false, id));
            assert!(Sampler::new(0.0).keeps(true, id));
        }
    }

    #[test]
    fn ids_up_to_the_rate_are_kept_whatever_their_sign() {
        let half = Sampler::new(0.5);
        assert!(half.keeps(false, i64::MAX / 2) && half.keeps(false, -(i64::MAX / 2)));
        assert!(!half.keeps(false, i64::MAX / 2 + 2000) && !half.keeps(false, i64::MIN));
    }
}
