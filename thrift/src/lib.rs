//! Encodes and decodes the Thrift that BlkKin uses: Scribe's `Log` call and Zipkin's v1 span, nothing else.
//!
//! There is no input or output here: functions turn bytes into values and values into bytes, and the owner of the socket
//! decides when. Every length that a peer announces is checked against [`Limits`] and against the bytes that are present
//! before memory is allocated for it.
//!
//! | module | what it handles |
//! |---|---|
//! | [`span`] | `zipkinCore.thrift`: one span, or a list of spans, in TBinary |
//! | [`position`] | the content of the extension field `position` |
//! | [`view`] | a span read in place, for receivers of very many spans |
//! | [`frame`] | the four-byte length before each message of a framed transport |
//! | [`writer`] | a span and the `Log` call written from borrowed parts, for senders of very many spans |
//! | [`scribe`] | `scribe.thrift`: the call, its reply, the base64 inside it, and the fb303 methods |
//!
//! The IDL that this crate implements by hand is in `thrift/idl/`.

mod binary;
mod error;
pub mod frame;
mod limits;
pub mod position;
pub mod scribe;
mod skim;
pub mod span;
pub mod view;
pub mod writer;

pub use error::Error;
pub use limits::Limits;
pub use span::{Annotation, AnnotationType, BinaryAnnotation, Endpoint, Span};
