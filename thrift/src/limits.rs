//! How much a peer may make this process take.

/// Upper bounds for what is read. A decoder never holds more than a small multiple of the bytes it was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest frame, without its four bytes of length.
    pub max_frame_bytes: usize,
    /// Most entries in one `Log` call, and most spans in one list.
    pub max_entries: usize,
    /// Longest span after base64.
    pub max_span_bytes: usize,
    /// Most annotations of one span, and most binary annotations.
    pub max_annotations: usize,
    /// Deepest nesting of structs that are skipped.
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
