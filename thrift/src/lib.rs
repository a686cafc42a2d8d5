//! What BlkKin says and hears in Thrift: Scribe's `Log` call and Zipkin's v1 span, nothing else.
//!
//! No input or output happens here. Bytes go in, values come out, and the other way round; who owns the socket
//! decides when. Every length that a peer announces is held against [`Limits`] and against the bytes that are really
//! there before any memory is taken.
//!
//! | module | what it speaks |
//! |---|---|
//! | [`span`] | `zipkinCore.thrift`: one span, or a list of them, in TBinary |
//! | [`position`] | what its extension field of that name says |
//! | [`view`] | the span again, read in place, for whoever takes in very many |
//! | [`frame`] | the four-byte length before each message of a framed transport |
//! | [`writer`] | the span and the `Log` call again, from borrowed parts, for whoever ships very many |
//! | [`scribe`] | `scribe.thrift`: the call, its reply, the base64 inside it, and the fb303 methods beside it |
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
