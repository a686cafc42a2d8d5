//! Bounded TBinary and framed codec: Scribe and zipkinCore.
