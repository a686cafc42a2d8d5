//! Writes spans as v2 JSON, in the form of Zipkin's answers.

use std::io;

use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_json::ser::Formatter;

use crate::model::Span;

/// Writes one span as a JSON object.
pub fn write_span(span: &Span) -> String {
    json(span)
}

/// Writes the spans of one trace as a list.
pub fn write_trace(spans: &[Span]) -> String {
    json(spans)
}

/// Writes the spans of one trace as a list. Adds `nanos` to each annotation whose nanoseconds are known: a member that Zipkin's
/// JSON does not have.
pub fn write_trace_with_nanos(spans: &[Span]) -> String {
    json(&WithNanos(spans))
}

/// Spans that are written with nanoseconds. Each goes through a JSON tree of its own: one tree for all would take many times the
/// memory of their text.
struct WithNanos<'s>(&'s [Span]);

impl Serialize for WithNanos<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(with_nanos))
    }
}

fn with_nanos(span: &Span) -> Value {
    let mut object = serde_json::to_value(span).expect("a span has string keys");
    let written = object.get_mut("annotations").and_then(Value::as_array_mut).into_iter().flatten();
    for (written, annotation) in written.zip(&span.annotations).filter(|(_, from)| from.nanos != 0) {
        written["nanos"] = annotation.nanos.into();
    }
    object
}

/// Writes several traces as a list of lists.
pub fn write_traces(traces: &[Vec<Span>]) -> String {
    json(traces)
}

fn json<T: Serialize + ?Sized>(value: &T) -> String {
    let mut bytes = Vec::with_capacity(256);
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, LineSafe);
    value.serialize(&mut serializer).expect("a span has string keys and fits into memory");
    String::from_utf8(bytes).expect("the serializer writes UTF-8")
}

/// Escapes U+2028 and U+2029 as Zipkin does: JSON allows them in strings, but older JavaScript takes them for line ends.
struct LineSafe;

impl Formatter for LineSafe {
    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, writer: &mut W, text: &str) -> io::Result<()> {
        let mut written = 0;
        for (at, separator) in text.match_indices(['\u{2028}', '\u{2029}']) {
            writer.write_all(&text.as_bytes()[written..at])?;
            writer.write_all(if separator == "\u{2028}" { b"\\u2028" } else { b"\\u2029" })?;
            written = at + separator.len();
        }
        writer.write_all(&text.as_bytes()[written..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Annotation, SpanId, TraceId};

    #[test]
    fn nanoseconds_are_written_if_requested_and_known() {
        let known = Annotation { nanos: 42, ..Annotation::new(7, "x") };
        let annotations = vec![Annotation::new(7, "w"), known];
        let span = Span { annotations, ..Span::new(TraceId::new(0, 1).unwrap(), SpanId::new(2).unwrap()) };
        let mut asked: Value =
            serde_json::from_str(&write_trace_with_nanos(std::slice::from_ref(&span))).unwrap();
        assert_eq!(asked[0]["annotations"][1]["nanos"].take(), 42);
        asked[0]["annotations"][1].as_object_mut().unwrap().remove("nanos");
        let plain: Value = serde_json::from_str(&write_trace(&[span])).unwrap();
        assert_eq!(asked, plain);
    }
}
