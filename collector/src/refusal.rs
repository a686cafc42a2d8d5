//! Why an entry was refused: one set of causes for all formats, so that refusals can be counted by cause.

use std::fmt::Display;

use blkin_thrift::Limits;
use serde::Serialize;

use crate::model::BadId;

/// The causes by which refused entries are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Not base64, or not gzip, where it should be.
    Encoding,
    /// Not thrift, JSON or protocol buffers, or cut off.
    Syntax,
    /// Longer, deeper or more than a limit allows.
    TooLarge,
    /// An id that is missing, zero or not a number.
    BadId,
    /// A member whose value is not allowed.
    BadValue,
    /// An annotation without time or value, a tag without key or value.
    EmptyAnnotation,
    /// A span of Zipkin's other version.
    OtherVersion,
}

/// All causes, in the order of their numbers.
pub const ALL_CAUSES: [Cause; 7] = [
    Cause::Encoding,
    Cause::Syntax,
    Cause::TooLarge,
    Cause::BadId,
    Cause::BadValue,
    Cause::EmptyAnnotation,
    Cause::OtherVersion,
];

impl Cause {
    /// The label of metrics.
    pub fn label(self) -> &'static str {
        match self {
            Cause::Encoding => "encoding",
            Cause::Syntax => "syntax",
            Cause::TooLarge => "too_large",
            Cause::BadId => "bad_id",
            Cause::BadValue => "bad_value",
            Cause::EmptyAnnotation => "empty_annotation",
            Cause::OtherVersion => "other_version",
        }
    }
}

/// A refusal, whose text says what was wrong.
pub trait Refusal: Display {
    /// The cause under which it is counted.
    fn cause(&self) -> Cause;
}

/// Why a whole list was refused.
#[derive(Debug, thiserror::Error)]
pub enum BadList {
    /// It is not JSON, or not a list.
    #[error("failed to read a JSON list of spans: {0}")]
    Json(#[from] serde_json::Error),
    /// It has too many entries.
    #[error("failed to accept a list of more than {0} spans: send smaller lists")]
    TooMany(usize),
}

/// Why one entry of a list was refused. The others are not affected.
#[derive(Debug, thiserror::Error)]
pub enum BadEntry {
    /// A member has the wrong type. The place in the message is relative to the text of the entry.
    #[error("failed to read a span: {0} of the span")]
    Json(#[from] serde_json::Error),
    /// Not an entry, but text that follows the list.
    #[error("failed to read what comes after the list of spans: {0}")]
    AfterList(serde_json::Error),
    /// The bytes are not valid protocol buffers.
    #[error("failed to read a span: {0}")]
    Proto(&'static str),
    /// A required member is missing.
    #[error("failed to read a span: no {0}")]
    Missing(&'static str),
    /// A member that must be an id is not one.
    #[error("failed to read a span's {member}: {cause}")]
    Id {
        /// Which member.
        member: &'static str,
        /// What is wrong with it.
        cause: BadId,
    },
    /// A kind that Zipkin does not have.
    #[error("failed to read a span: unknown kind {0:?}")]
    Kind(String),
    /// A port above 65535.
    #[error("failed to read a span: port {0} is out of range")]
    Port(i64),
    /// An annotation without time or value.
    #[error("failed to read a span: incomplete annotation")]
    IncompleteAnnotation,
    /// A tag without key, which v1 calls a binary annotation.
    #[error("failed to read a span: no key of a binary annotation")]
    MissingKey,
    /// A member that only the other version of the format has: it would be lost.
    #[error(
        "failed to read a span: the member {0} belongs to the other version of the format; post v1 to /api/v1/spans, v2 to \
         /api/v2/spans"
    )]
    OtherVersion(&'static str),
    /// More of something than the limit allows.
    #[error("failed to accept a span with {what} beyond the limit of {limit}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
}

impl BadEntry {
    /// Checks the length of an entry against the limit.
    pub(crate) fn check_length(bytes: usize, limits: &Limits) -> Result<(), BadEntry> {
        BadEntry::check("a length", bytes, limits.max_span_bytes)
    }

    /// Checks a number of annotations or tags against the limit.
    pub(crate) fn check_count(what: &'static str, count: usize, limits: &Limits) -> Result<(), BadEntry> {
        BadEntry::check(what, count, limits.max_annotations)
    }

    fn check(what: &'static str, size: usize, limit: usize) -> Result<(), BadEntry> {
        if size > limit { Err(BadEntry::TooLarge { what, limit }) } else { Ok(()) }
    }
}

impl Refusal for BadList {
    fn cause(&self) -> Cause {
        match self {
            BadList::Json(_) => Cause::Syntax,
            BadList::TooMany(_) => Cause::TooLarge,
        }
    }
}

impl Refusal for BadEntry {
    fn cause(&self) -> Cause {
        match self {
            BadEntry::AfterList(_) | BadEntry::Proto(_) => Cause::Syntax,
            BadEntry::Missing(_) | BadEntry::Id { .. } => Cause::BadId,
            BadEntry::Json(_) | BadEntry::Kind(_) | BadEntry::Port(_) => Cause::BadValue,
            BadEntry::IncompleteAnnotation | BadEntry::MissingKey => Cause::EmptyAnnotation,
            BadEntry::OtherVersion(_) => Cause::OtherVersion,
            BadEntry::TooLarge { .. } => Cause::TooLarge,
        }
    }
}

impl Refusal for blkin_thrift::Error {
    fn cause(&self) -> Cause {
        use blkin_thrift::Error;
        match self {
            Error::Malformed(_)
            | Error::NotFramed(_)
            | Error::ListBroken { .. }
            | Error::UnexpectedReply(_) => Cause::Syntax,
            Error::TooLarge { .. } => Cause::TooLarge,
            Error::ZeroId(_) => Cause::BadId,
            Error::Base64(_) => Cause::Encoding,
        }
    }
}

impl Refusal for blkin_thrift::scribe::BadCall {
    fn cause(&self) -> Cause {
        self.cause.cause()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_at_its_own_index_with_its_label() {
        for (at, cause) in ALL_CAUSES.into_iter().enumerate() {
            assert_eq!(cause as usize, at);
            assert_eq!(serde_json::to_value(cause).unwrap(), cause.label());
        }
    }
}
