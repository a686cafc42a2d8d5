//! Spans and their annotations.

use std::borrow::Cow;

use crate::context::Context;
use crate::endpoint::Endpoint;
use crate::name::{Key, Name};
use crate::raw::{self, Ids, Payload, Source, Texts};
use blkin_ringbuf::process::{self, Short};

/// Severity, with the levels of syslog: the more severe, the smaller the number. All levels are recorded unless
/// `blkin set --level` switches some off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// The system is unusable.
    Emergency = 0,
    /// Act at once.
    Alert = 1,
    /// Critical conditions.
    Critical = 2,
    /// Errors.
    Error = 3,
    /// Warnings: the default level of annotations.
    #[default]
    Warning = 4,
    /// Normal but significant.
    Notice = 5,
    /// Informational.
    Info = 6,
    /// Debugging messages.
    Debug = 7,
}

/// The value of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A string; strings longer than 4 KiB are cut at a character boundary.
    Str(&'a str),
    /// An integer. There is no conversion from `u64` and `usize`, which may not fit; cast them: `buffer.len() as i64`.
    Integer(i64),
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Value<'a> {
        Value::Str(text)
    }
}

impl<'a> From<&'a String> for Value<'a> {
    fn from(text: &'a String) -> Value<'a> {
        Value::Str(text)
    }
}

impl<'a> From<&'a Cow<'_, str>> for Value<'a> {
    fn from(text: &'a Cow<'_, str>) -> Value<'a> {
        Value::Str(text)
    }
}

/// Recorded as the text `true` or `false`.
impl From<bool> for Value<'_> {
    fn from(is: bool) -> Self {
        Value::Str(if is { "true" } else { "false" })
    }
}

macro_rules! integers {
    ($($integer:ty)*) => {$(
        impl From<$integer> for Value<'_> {
            fn from(integer: $integer) -> Self {
                Value::Integer(integer.into())
            }
        }
    )*};
}
integers!(i64 i32 i16 i8 u32 u16 u8);

/// One step of a request. A small value that borrows its name and endpoint; any thread may record on it, by `&self`.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    name: &'a str,
    endpoint: Endpoint<'a>,
    context: Context,
    level: Level,
    /// The ids of the name and endpoint in the table of names, in the form that records have; 0 if either has none.
    names: u64,
}

impl<'a> Span<'a> {
    /// The first span of a new request. With a sampling rate of N, all but one in N of these spans record nothing.
    pub fn root(name: &'a str, endpoint: &Endpoint<'a>) -> Span<'a> {
        Span::with(name, endpoint, raw::new_root(), Level::default())
    }

    /// The span with the ids in `context`, seen from this process: for example the server's side of a client's span.
    pub fn join(name: &'a str, endpoint: &Endpoint<'a>, context: Context) -> Span<'a> {
        Span::with(name, endpoint, context.ids, Level::default())
    }

    /// A new span whose parent is the span with the ids in `context`.
    pub fn child_of(name: &'a str, endpoint: &Endpoint<'a>, context: Context) -> Span<'a> {
        Span::with(name, endpoint, raw::new_child(&context.ids), Level::default())
    }

    /// A new span whose parent is this one, with the same level.
    pub fn child<'b>(&self, name: &'b str, endpoint: &Endpoint<'b>) -> Span<'b> {
        Span::with(name, endpoint, raw::new_child(&self.context.ids), self.level)
    }

    /// Writes the span once, when all its fields are known: to copy fields that were just written costs more.
    #[inline(always)]
    fn with(name: &'a str, endpoint: &Endpoint<'a>, ids: Ids, level: Level) -> Span<'a> {
        let names = if ids.trace_id() == 0 { 0 } else { names_of(name, endpoint) };
        Span { name, endpoint: *endpoint, context: Context { ids }, level, names }
    }

    /// The same span, whose annotations have this level.
    #[must_use]
    pub fn at_level(self, level: Level) -> Span<'a> {
        Span { level, ..self }
    }

    /// The same span, annotated by this endpoint.
    #[must_use]
    pub fn seen_by(self, endpoint: &Endpoint<'a>) -> Span<'a> {
        if !self.is_sampled() {
            return Span { endpoint: *endpoint, ..self };
        }
        Span { endpoint: *endpoint, names: names_of(self.name, endpoint), ..self }
    }

    /// The ids to send along with the request.
    pub fn context(&self) -> Context {
        self.context
    }

    /// Whether this span is sampled. Check this before computing an expensive value.
    #[inline]
    pub fn is_sampled(&self) -> bool {
        self.context.is_sampled()
    }

    /// Whether annotations of this span are recorded now: it is sampled, and its level is not switched off.
    #[inline(always)]
    fn is_on(&self) -> bool {
        self.context.is_sampled() && process::is_on(self.level as u8)
    }

    /// Records that something happens now.
    #[inline(always)]
    pub fn event(&self, event: impl Key) {
        if self.is_on() {
            self.record(event, Short::Event);
        }
    }

    /// Records a key and its value, without a time. If a span has two values with the same key, the collector shows the later
    /// one.
    #[inline(always)]
    pub fn tag<'v>(&self, key: impl Key, value: impl Into<Value<'v>>) {
        if self.is_on() {
            match value.into() {
                Value::Str(text) => self.record_string(key, text),
                Value::Integer(integer) => self.record(key, Short::Integer(integer)),
            }
        }
    }

    /// Records that the client has sent its request ("cs").
    pub fn client_send(&self) {
        static NAME: Name = Name::new("cs");
        self.event(&NAME);
    }

    /// Records that the client has received the answer ("cr"), which closes its side of the span.
    pub fn client_receive(&self) {
        static NAME: Name = Name::new("cr");
        self.event(&NAME);
    }

    /// Records that the server has received the request ("sr").
    pub fn server_receive(&self) {
        static NAME: Name = Name::new("sr");
        self.event(&NAME);
    }

    /// Records that the server has sent the answer ("ss"), which closes its side of the span.
    pub fn server_send(&self) {
        static NAME: Name = Name::new("ss");
        self.event(&NAME);
    }

    /// Records "end", which closes a span that is neither a client's nor a server's.
    pub fn end(self) {
        static NAME: Name = Name::new("end");
        self.event(&NAME);
    }

    /// Records directly if all texts have ids. This path builds no structure in memory, which would cost as much as the
    /// rest.
    #[inline(always)]
    fn record(&self, key: impl Key, what: Short) {
        let id = key.id();
        if id != 0 && self.names != 0 {
            process::record_short(&self.context.ids.words, self.names, id, what, self.level as u8);
        } else {
            self.record_texts(key.source(id), what.into());
        }
    }

    /// As [`Span::record`], for a value that is a string.
    #[inline(always)]
    fn record_string(&self, key: impl Key, value: &str) {
        let (id, value) = (key.id(), value.as_bytes());
        if id != 0 && self.names != 0 {
            process::record_string(&self.context.ids.words, self.names, id, value, self.level as u8);
        } else {
            self.record_texts(key.source(id), Payload::Str(value));
        }
    }

    #[inline(never)]
    fn record_texts(&self, key: Source<&[u8]>, payload: Payload<'_>) {
        let (name, endpoint) = if self.names == 0 {
            (Source::inline(self.name.as_bytes()), Source::inline(self.endpoint.bytes()))
        } else {
            (Source::known(self.names as u32), Source::known((self.names >> 32) as u32))
        };
        raw::record(&self.context.ids, &Texts { name, endpoint, key }, payload, self.level as u8);
    }
}

/// The ids of a span's name and endpoint in the table of names, in the form that records have; 0 if either has none.
#[inline(always)]
fn names_of(name: &str, endpoint: &Endpoint<'_>) -> u64 {
    match process::recognise_texts(name.as_bytes(), endpoint.bytes()) {
        Some(names) => names,
        None => intern_span_texts(name, endpoint),
    }
}

/// As [`names_of`], for texts that are long, or were not looked up together before. A function of its own, so that its caller
/// saves no registers for it.
#[inline(never)]
fn intern_span_texts(name: &str, endpoint: &Endpoint<'_>) -> u64 {
    process::intern_span_texts(name.as_bytes(), &endpoint.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn booleans_and_cows_convert_to_text_values() {
        assert_eq!([Value::from(true), false.into()], [Value::Str("true"), Value::Str("false")]);
        assert_eq!(Value::from(&Cow::Borrowed("rbd")), Value::Str("rbd"));
    }
}
