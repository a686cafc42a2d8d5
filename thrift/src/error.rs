//! The errors of this crate.

use thrift::TransportErrorKind;
/// Why bytes from a peer were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes are not TBinary, or end too early.
    #[error("failed to read thrift: {0}")]
    Malformed(String),
    /// A length, count or depth is over its limit. The peer must send smaller messages, or the limit must be raised.
    #[error("failed to accept {what} of {size}: the limit is {limit}")]
    TooLarge {
        /// The name of the thing that is too large.
        what: &'static str,
        /// The size that the peer announced.
        size: u64,
        /// The largest size allowed.
        limit: u64,
    },
    /// The bytes are not a frame but begin another protocol: most likely the port is wrong.
    #[error("failed to accept {0}: Scribe's framed Thrift is expected here; is the port right?")]
    NotFramed(&'static str),
    /// The trace id or span id of a span is zero or missing.
    #[error("failed to accept a span without {0}: it is zero or missing")]
    ZeroId(&'static str),
    /// The message of a Scribe entry is not base64.
    #[error("failed to decode a message as base64: {0}")]
    Base64(String),
    /// A list of spans breaks off at a broken span, because the start of the next span cannot be found.
    #[error("failed to read the list past span {at} of {announced}: {cause}")]
    ListBroken {
        /// The number of spans before the broken one.
        at: usize,
        /// The number of spans that the list announced.
        announced: usize,
        /// What is wrong with the broken span.
        cause: String,
    },
    /// A reply is not an answer to the call.
    #[error("failed to match a reply to its call: {0}")]
    UnexpectedReply(String),
}

impl From<thrift::Error> for Error {
    fn from(error: thrift::Error) -> Self {
        Error::Malformed(match error {
            thrift::Error::Transport(e) if e.kind == TransportErrorKind::EndOfFile => {
                "it ends too early".to_owned()
            }
            thrift::Error::Transport(e) => e.message,
            thrift::Error::Protocol(e) => e.message,
            thrift::Error::Application(e) => e.message,
            thrift::Error::User(e) => e.to_string(),
        })
    }
}
