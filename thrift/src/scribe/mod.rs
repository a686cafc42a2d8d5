//! Scribe (`idl/scribe.thrift`): log entries over framed TBinary, as Zipkin's Scribe port speaks it.
//!
//! The client side: [`span_message`], [`encode_log_call`], [`decode_reply`]. The server side: [`parse_call`],
//! [`decode_message`] for each entry, then [`encode_log_reply`] or [`encode_exception`]. What is encoded has its frame
//! header; what is decoded has it no more.

mod call;
mod fb303;
mod message;
mod reply;

pub use call::{BadCall, Call, LogEntry, Method, encode_log_call, parse_call};
pub use fb303::{Fb303, ServiceStatus, Status};
pub use message::{decode_message, span_message};
pub use reply::{
    Exception, ExceptionKind, Outcome, Reply, ResultCode, decode_reply, encode_exception, encode_log_reply,
};
