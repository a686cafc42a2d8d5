//! Spans and what is said of them.

use std::borrow::Cow;

use crate::context::Context;
use crate::endpoint::Endpoint;
use crate::name::{Key, Name};
use crate::raw::{self, Ids, Payload, Source, Texts};
use blkin_ringbuf::process::{self, Short};

/// Severity, as syslog has it: the more severe, the smaller. All are recorded unless `blkin set --level` says otherwise.
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
    /// What annotations have unless said otherwise.
    #[default]
    Warning = 4,
    /// Normal but significant.
    Notice = 5,
    /// Informational.
    Info = 6,
    /// For whoever debugs.
    Debug = 7,
}

/// The value of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A string; longer ones than 4 KiB are cut at a character boundary.
    Str(&'a str),
    /// An integer. What may not fit, a `u64` or `usize`, is cast by whoever records it: `buffer.len() as i64`.
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

/// As the text `true` or `false`.
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

/// One step of a request. A small value that borrows its name and endpoint; recording takes `&self`, from any thread.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    name: &'a str,
    endpoint: Endpoint<'a>,
    context: Context,
    level: Level,
    /// What name and endpoint are in the table of names, as records have it, looked up once; 0 if one is not there.
    names: u64,
}

impl<'a> Span<'a> {
    /// The first span of a new request, or, for all but one of every N requests when a sampling rate is set, a span
    /// that records nothing.
    pub fn root(name: &'a str, endpoint: &Endpoint<'a>) -> Span<'a> {
        Span::with(name, endpoint, raw::new_root(), Level::default())
    }

    /// The same span as `context` names, seen from here: the server's side of a client's span, for example.
    pub fn join(name: &'a str, endpoint: &Endpoint<'a>, context: Context) -> Span<'a> {
        Span::with(name, endpoint, context.ids, Level::default())
    }

    /// A new span below the one that `context` names.
    pub fn child_of(name: &'a str, endpoint: &Endpoint<'a>, context: Context) -> Span<'a> {
        Span::with(name, endpoint, raw::new_child(&context.ids), Level::default())
    }

    /// A new span below this one, annotating with the same severity.
    pub fn child<'b>(&self, name: &'b str, endpoint: &Endpoint<'b>) -> Span<'b> {
        Span::with(name, endpoint, raw::new_child(&self.context.ids), self.level)
    }

    /// Written once, when all of it is known: to copy what was written a moment ago costs more than to make it.
    #[inline(always)]
    fn with(name: &'a str, endpoint: &Endpoint<'a>, ids: Ids, level: Level) -> Span<'a> {
        let names = if ids.trace_id() == 0 { 0 } else { names_of(name, endpoint) };
        Span { name, endpoint: *endpoint, context: Context { ids }, level, names }
    }

    /// The same span, annotating with another severity.
    #[must_use]
    pub fn at_level(self, level: Level) -> Span<'a> {
        Span { level, ..self }
    }

    /// The same span, annotating as another endpoint.
    #[must_use]
    pub fn seen_by(self, endpoint: &Endpoint<'a>) -> Span<'a> {
        if !self.is_sampled() {
            return Span { endpoint: *endpoint, ..self };
        }
        Span { endpoint: *endpoint, names: names_of(self.name, endpoint), ..self }
    }

    /// What to send along with the request.
    pub fn context(&self) -> Context {
        self.context
    }

    /// Whether anything is recorded. Worth asking before costly values are made.
    #[inline]
    pub fn is_sampled(&self) -> bool {
        self.context.is_sampled()
    }

    /// Whether annotations of this span are recorded now: it is sampled, and its level is not switched off.
    #[inline(always)]
    fn is_on(&self) -> bool {
        self.context.is_sampled() && process::is_on(self.level as u8)
    }

    /// Something happened now.
    #[inline(always)]
    pub fn event(&self, event: impl Key) {
        if self.is_on() {
            self.record(event, Short::Event);
        }
    }

    /// A key and its value. It has no time of its own: the events around it bound it. Of two with one key in a span the collector
    /// shows the later.
    #[inline(always)]
    pub fn tag<'v>(&self, key: impl Key, value: impl Into<Value<'v>>) {
        if self.is_on() {
            match value.into() {
                Value::Str(text) => self.record_string(key, text),
                Value::Integer(integer) => self.record(key, Short::Integer(integer)),
            }
        }
    }

    /// The client has sent its request ("cs").
    pub fn client_send(&self) {
        static NAME: Name = Name::new("cs");
        self.event(&NAME);
    }

    /// The client has received the answer ("cr"): its side of the span is over.
    pub fn client_receive(&self) {
        static NAME: Name = Name::new("cr");
        self.event(&NAME);
    }

    /// The server has received the request ("sr").
    pub fn server_receive(&self) {
        static NAME: Name = Name::new("sr");
        self.event(&NAME);
    }

    /// The server has sent the answer ("ss"): its side of the span is over.
    pub fn server_send(&self) {
        static NAME: Name = Name::new("ss");
        self.event(&NAME);
    }

    /// A span that is neither a client's nor a server's is over ("end").
    pub fn end(self) {
        static NAME: Name = Name::new("end");
        self.event(&NAME);
    }

    /// What has all its ids goes into the ring from here; for that nothing is put together in memory, which would cost as
    /// much as the rest.
    #[inline(always)]
    fn record(&self, key: impl Key, what: Short) {
        let id = key.id();
        if id != 0 && self.names != 0 {
            process::record_short(&self.context.ids.words, self.names, id, what, self.level as u8);
        } else {
            self.record_texts(key.source(id), what.into());
        }
    }

    /// As [`Span::record`].
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

/// What a span's name and endpoint are in the table of names, as records have it; 0 if one of them is not there.
#[inline(always)]
fn names_of(name: &str, endpoint: &Endpoint<'_>) -> u64 {
    match process::recognise_texts(name.as_bytes(), endpoint.bytes()) {
        Some(names) => names,
        None => meet(name, endpoint),
    }
}

/// As [`names_of`], of what was never met together, or is long. By itself, so that its caller keeps nothing for it.
#[inline(never)]
fn meet(name: &str, endpoint: &Endpoint<'_>) -> u64 {
    process::meet_texts(name.as_bytes(), &endpoint.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_text_and_no_number_has_a_value_too() {
        assert_eq!([Value::from(true), false.into()], [Value::Str("true"), Value::Str("false")]);
        assert_eq!(Value::from(&Cow::Borrowed("rbd")), Value::Str("rbd"));
    }
}
