//! Upper bounds for messages from a peer.

/// Upper bounds for messages that are decoded. A decoder never holds more than a small multiple of the bytes it was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The longest frame in bytes, without its four bytes of length.
    pub max_frame_bytes: usize,
    /// The most entries in one `Log` call, and the most spans in one list.
    pub max_entries: usize,
    /// The longest span in bytes, after base64 decoding.
    pub max_span_bytes: usize,
    /// The most annotations of one span, and separately the most binary annotations.
    pub max_annotations: usize,
    /// The deepest nesting of structs.
    pub max_depth: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_frame_bytes: 16 << 20,
            max_entries: 65_536,
            max_span_bytes: 4 << 20,
            max_annotations: 65_536,
            max_depth: 16,
        }
    }
}
