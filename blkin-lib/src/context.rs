//! The ids that a request carries over the wire: three ids in 24 bytes, as every BlkKin program packs them.

use crate::raw::Ids;

/// The trace, span and parent span id of a request. The default is the context of a request that is not traced: it is
/// passed on like any other, and nothing is recorded for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Context {
    pub(crate) ids: Ids,
}

/// Error of [`Context::from_bytes`]: an id is negative, or there is a trace id without a span id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadContext;

impl std::fmt::Display for BadContext {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("failed to read a trace context: negative ids, or a trace without a span")
    }
}

impl std::error::Error for BadContext {}

impl Context {
    /// Length of the packed form, in bytes.
    pub const PACKED_BYTES: usize = 24;

    /// Packs trace id, span id and parent span id, each big-endian (`struct blkin_trace_info_packed` in C).
    pub fn to_bytes(self) -> [u8; Self::PACKED_BYTES] {
        let mut bytes = [0; Self::PACKED_BYTES];
        bytes[..8].copy_from_slice(&self.ids.trace_id().to_be_bytes());
        bytes[8..16].copy_from_slice(&self.ids.span_id().to_be_bytes());
        bytes[16..].copy_from_slice(&self.ids.parent_span_id().to_be_bytes());
        bytes
    }

    /// Unpacks a context that [`Context::to_bytes`] or a C program packed. 24 zeros are a request that is not traced.
    ///
    /// # Errors
    /// [`BadContext`] for bytes that no program packs: a negative id, or a trace id without a span id.
    pub fn from_bytes(bytes: &[u8; Self::PACKED_BYTES]) -> Result<Context, BadContext> {
        let id = |at: usize| {
            let mut id = [0; 8];
            id.copy_from_slice(&bytes[at..at + 8]);
            u64::from_be_bytes(id)
        };
        let ids = Ids::new(id(0), id(8), id(16));
        let is_negative = (ids.trace_id() | ids.span_id() | ids.parent_span_id()) > i64::MAX as u64;
        if is_negative || (ids.trace_id() != 0 && ids.span_id() == 0) {
            return Err(BadContext);
        }
        Ok(Context { ids })
    }

    /// Whether this request is traced.
    #[inline(always)]
    pub fn is_sampled(&self) -> bool {
        self.ids.trace_id() != 0
    }

    /// The trace id; 0 if the request is not traced.
    pub fn trace_id(&self) -> u64 {
        self.ids.trace_id()
    }

    /// The span id; 0 if the request is not traced.
    pub fn span_id(&self) -> u64 {
        self.ids.span_id()
    }

    /// The parent's span id; 0 for a root.
    pub fn parent_span_id(&self) -> u64 {
        self.ids.parent_span_id()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_round_trips_in_the_byte_order_of_c_programs() {
        let context = Context { ids: Ids::new(1, 2, 0x0304) };
        let bytes = context.to_bytes();
        assert_eq!(bytes[7], 1);
        assert_eq!(bytes[15], 2);
        assert_eq!(bytes[22..], [3, 4]);
        assert_eq!(Context::from_bytes(&bytes), Ok(context));
        assert_eq!(Context::from_bytes(&[0; 24]), Ok(Context::default()));
    }

    #[test]
    fn invalid_context_bytes_are_rejected() {
        assert_eq!(Context::from_bytes(&[0xff; 24]), Err(BadContext));
        let mut without_span = [0; 24];
        without_span[7] = 1;
        assert_eq!(Context::from_bytes(&without_span), Err(BadContext));
    }
}
