//! Sampling by trace id, as Zipkin's collector does it: the same traces are kept everywhere, and whole.

use crate::store::Piece;

/// Decides which traces are kept.
#[derive(Debug, Clone, Copy)]
pub struct Sampler {
    boundary: i64,
}

impl Sampler {
    /// Keeps this share of all traces, 0 to 1.
    pub fn new(rate: f64) -> Self {
        // The float nearest to i64::MAX is above it; the cast saturates there.
        Sampler { boundary: (i64::MAX as f64 * rate.clamp(0.0, 1.0)) as i64 }
    }

    /// Whether this piece is kept. Debug spans always are.
    pub fn keeps(&self, piece: &Piece) -> bool {
        let (debug, low) = match piece {
            Piece::V1(span) => (span.debug, span.trace_id),
            Piece::V2(span) => (span.debug, span.trace_id.low() as i64),
        };
        debug || low.checked_abs().unwrap_or(i64::MAX) <= self.boundary
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkin_thrift::Span;

    fn piece(trace_id: i64, debug: bool) -> Piece {
        Piece::V1(Span { trace_id, id: 1, debug, ..Span::default() })
    }

    #[test]
    fn all_or_nothing_is_kept_at_the_ends() {
        for id in [1, -1, i64::MAX, i64::MIN] {
            assert!(Sampler::new(1.0).keeps(&piece(id, false)));
            assert!(!Sampler::new(0.0).keeps(&piece(id, false)));
            assert!(Sampler::new(0.0).keeps(&piece(id, true)));
        }
    }

    #[test]
    fn ids_up_to_the_rate_are_kept_whatever_their_sign() {
        let half = Sampler::new(0.5);
        assert!(half.keeps(&piece(i64::MAX / 2, false)) && half.keeps(&piece(-(i64::MAX / 2), false)));
        assert!(!half.keeps(&piece(i64::MAX / 2 + 2000, false)) && !half.keeps(&piece(i64::MIN, false)));
    }
}
