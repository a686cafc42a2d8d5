//! Scribe (`idl/scribe.thrift`): log entries over framed TBinary, as Zipkin's Scribe port speaks it.
//!
//! - A client uses [`span_message`], [`encode_log_call`], [`decode_reply`].
//! - A server uses [`parse_call`], [`decode_message`] for each entry, then [`encode_log_reply`] or [`encode_exception`].
//! - A server with very many entries reads them in place: [`skim_log`], [`append_decoded`] for each message, then
//!   [`SpanView`](crate::view::SpanView).
//! - A relay uses [`skim_log`], [`annotation_count`], [`encode_raw_log_call`].
//!
//! Encoders write the frame header; decoders expect the frame without it.

mod call;
mod fb303;
mod message;
mod raw;
mod reply;

pub use call::{BadCall, Call, LogEntry, Method, encode_log_call, parse_call};
pub use fb303::{Fb303, ServiceStatus, Status};
pub use message::{
    annotation_count, append_decoded, decode_message, message_bytes, span_message, write_message,
};
pub use raw::{RawEntry, RawLog, encode_raw_log_call, raw_entries, skim_log};
pub use reply::{
    Exception, ExceptionKind, Outcome, Reply, ResultCode, decode_reply, encode_exception, encode_log_reply,
};
