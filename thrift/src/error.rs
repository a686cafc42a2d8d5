//! Why bytes were refused.

use thrift::TransportErrorKind;
/// Why bytes from a peer could not be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes are not TBinary, or end too early.
    #[error("failed to read thrift: {0}")]
    Malformed(String),
    /// A length, count or depth is over its limit. The peer must send smaller messages, or the limit must grow.
    #[error("failed to accept {what} of {size}: the limit is {limit}")]
    TooLarge {
        /// What was too large.
        what: &'static str,
        /// What the peer announced.
        size: u64,
        /// What is allowed.
        limit: u64,
    },
    /// What comes is no frame but the beginning of another protocol: a wrong port, most likely.
    #[error("failed to accept {0}: this is Scribe's framed Thrift; is it the right port?")]
    NotFramed(&'static str),
    /// A span whose trace id or span id is zero or missing.
    #[error("failed to accept a span without {0}: it is zero or missing")]
    ZeroId(&'static str),
    /// The message of a Scribe entry is not base64.
    #[error("failed to decode a message as base64: {0}")]
    Base64(String),
    /// A list of spans breaks off: what follows the broken span cannot be found any more.
    #[error("failed to read the list past span {at} of {announced}: {cause}")]
    ListBroken {
        /// How many spans came before the broken one.
        at: usize,
        /// How many spans the list announced.
        announced: usize,
        /// What was wrong with the broken one.
        cause: String,
    },
    /// A reply that does not answer the call.
    #[error("failed to match a reply: {0}")]
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
