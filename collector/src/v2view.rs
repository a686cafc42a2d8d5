//! A v2 JSON span read in place: numbers, and slices of the text it came in.
//!
//! Whoever takes in very many spans needs no copies of their texts. A [`V2View`] reads what reporters write, in one
//! pass, into memory that it keeps. It knows nothing of tolerance: at whatever is unusual, such as a member that comes
//! twice or that nobody knows, a number as text or an escaped string, it says no, and [`v2json`](crate::v2json), which
//! is the definition, reads the span.

use std::net::{Ipv4Addr, Ipv6Addr};

use blkin_thrift::Limits;

pub use crate::json::{List, entries};
use crate::model::{Annotation, BadId, Endpoint, Kind, Marks, Span, SpanId, TraceId, lower_name};

/// A [`Span`] whose texts stay where they are, as written: not in lower case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct V2View<'a> {
    /// The id of the trace; there is one when a span was read.
    pub trace_id: Option<TraceId>,
    /// The span that caused this one.
    pub parent: Option<SpanId>,
    /// The span itself; there is one when a span was read.
    pub id: Option<SpanId>,
    /// Which side of what kind of call.
    pub kind: Option<Kind>,
    /// What the span does.
    pub name: Option<&'a str>,
    /// Start in microseconds since 1970, above zero.
    pub timestamp: Option<i64>,
    /// Microseconds, above zero.
    pub duration: Option<i64>,
    /// Who recorded this span.
    pub local: Place<'a>,
    /// Who is on the other side.
    pub remote: Place<'a>,
    /// What happened, sorted by time and value, each pair once.
    pub annotations: Vec<(i64, &'a str)>,
    /// What is known, sorted by key, each key once.
    pub tags: Vec<(&'a str, &'a str)>,
    /// Whether samplers had to let this span pass.
    pub debug: bool,
    /// Whether it says that the other side recorded a span of the same id.
    pub shared: bool,
}

/// An [`Endpoint`] whose name stays where it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Place<'a> {
    /// The name of the service, not empty.
    pub service: Option<&'a str>,
    /// Its IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// Its IPv6 address.
    pub ipv6: Option<Ipv6Addr>,
    /// Its port, above zero.
    pub port: Option<u16>,
}

impl<'a> Place<'a> {
    /// Of an endpoint; of none, nothing is known.
    pub fn of(endpoint: Option<&'a Endpoint>) -> Place<'a> {
        endpoint.map_or_else(Place::default, |endpoint| Place {
            service: endpoint.service_name.as_deref(),
            ipv4: endpoint.ipv4,
            ipv6: endpoint.ipv6,
            port: endpoint.port,
        })
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        *self == Place::default()
    }

    fn to_endpoint(self) -> Option<Endpoint> {
        let Place { service, ipv4, ipv6, port } = self;
        let endpoint = Endpoint { service_name: service.and_then(lower_name), ipv4, ipv6, port };
        Some(endpoint).filter(|endpoint| !endpoint.is_empty())
    }
}

impl<'a> V2View<'a> {
    /// A span as a view of it.
    pub fn of(span: &'a Span) -> V2View<'a> {
        V2View {
            trace_id: Some(span.trace_id),
            parent: span.parent_id,
            id: Some(span.id),
            kind: span.kind,
            name: span.name.as_deref(),
            timestamp: span.timestamp,
            duration: span.duration,
            local: Place::of(span.local_endpoint.as_ref()),
            remote: Place::of(span.remote_endpoint.as_ref()),
            annotations: span.annotations.iter().map(|a| (a.timestamp, a.value.as_str())).collect(),
            tags: span.tags.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect(),
            debug: span.debug,
            shared: span.shared,
        }
    }

    /// The span with texts of its own, as [`v2json`](crate::v2json) reads it; none if none was read.
    pub fn to_span(&self) -> Option<Span> {
        let owned = |&(key, value): &(&str, &str)| (key.to_owned(), value.to_owned());
        let span = Span {
            trace_id: self.trace_id?,
            parent_id: self.parent,
            id: self.id?,
            kind: self.kind,
            name: self.name.and_then(lower_name),
            timestamp: self.timestamp,
            duration: self.duration,
            local_endpoint: self.local.to_endpoint(),
            remote_endpoint: self.remote.to_endpoint(),
            annotations: self
                .annotations
                .iter()
                .map(|&(timestamp, value)| Annotation::new(timestamp, value))
                .collect(),
            tags: self.tags.iter().map(owned).collect(),
            debug: self.debug,
            shared: self.shared,
            marks: Marks::default(),
        };
        Some(span.normalized())
    }

    /// Reads one entry of a list in place of what was there (the vectors keep their memory). True:
    /// [`v2json`](crate::v2json) reads a span that says the same. False: let that read the entry; the view then holds
    /// nothing of use.
    pub fn read(&mut self, json: &'a str, limits: &Limits) -> bool {
        let mut text = Text::new(json);
        self.read_next(&mut text, limits) && text.end().is_some()
    }

    /// As [`V2View::read`], of the entry that comes next in a text.
    fn read_next(&mut self, text: &mut Text<'a>, limits: &Limits) -> bool {
        let (mut annotations, mut tags) =
            (std::mem::take(&mut self.annotations), std::mem::take(&mut self.tags));
        annotations.clear();
        tags.clear();
        *self = V2View { annotations, tags, ..V2View::default() };
        let begin = text.at;
        self.fill(text, limits.max_annotations).is_some() && text.at - begin <= limits.max_span_bytes
    }

    fn fill(&mut self, text: &mut Text<'a>, max: usize) -> Option<()> {
        let mut members = Members::default();
        text.object(|text| {
            if text.named("traceId") {
                once(&mut members.trace_id, text.id())
            } else if text.named("id") {
                once(&mut members.id, text.id())
            } else if text.named("parentId") {
                once(&mut members.parent_id, text.id())
            } else if text.named("kind") {
                once(&mut members.kind, text.string().and_then(Kind::from_name))
            } else if text.named("name") {
                once(&mut members.name, text.string())
            } else if text.named("timestamp") {
                once(&mut members.timestamp, text.number())
            } else if text.named("duration") {
                once(&mut members.duration, text.number())
            } else if text.named("localEndpoint") {
                once(&mut members.local, local_place(text))
            } else if text.named("remoteEndpoint") {
                once(&mut members.remote, place(text))
            } else if text.named("annotations") {
                once(&mut members.annotations, annotations(text, &mut self.annotations, max))
            } else if text.named("tags") {
                once(&mut members.tags, tags(text, &mut self.tags, max))
            } else if text.named("debug") {
                once(&mut members.debug, text.flag())
            } else if text.named("shared") {
                once(&mut members.shared, text.flag())
            } else {
                None
            }
        })?;
        let id = members.id?.parse::<SpanId>().ok()?;
        self.trace_id = Some(members.trace_id?.parse().ok()?);
        self.id = Some(id);
        self.parent = members.parent_id.map_or(Ok(None), |parent| parent_of(parent, id)).ok()?;
        self.kind = members.kind;
        self.debug = members.debug.unwrap_or(false);
        self.shared = members.shared.unwrap_or(false);
        self.name = members.name.filter(|name| !name.is_empty());
        self.timestamp = members.timestamp.filter(|timestamp| *timestamp > 0);
        self.duration = members.duration.filter(|duration| *duration > 0);
        self.local = members.local.unwrap_or_default();
        self.remote = members.remote.unwrap_or_default();
        self.sort().then_some(())
    }

    /// Sorts annotations and tags; false if any comes twice.
    fn sort(&mut self) -> bool {
        self.annotations.sort_unstable();
        self.tags.sort_unstable_by_key(|(key, _)| *key);
        self.annotations.is_sorted_by(|one, next| one < next)
            && self.tags.is_sorted_by(|(one, _), (next, _)| one < next)
    }
}

/// A list of spans, read in place from its beginning on, for as long as it is what reporters write.
pub struct V2List<'a> {
    text: Text<'a>,
    read: usize,
    state: State,
}

#[derive(PartialEq, Eq)]
enum State {
    /// Nothing was read.
    Fresh,
    /// There may be further entries.
    GoesOn,
    /// All entries were read, and nothing comes after them.
    Ended,
    /// What comes is something else, perhaps no list.
    Unusual,
}

impl<'a> V2List<'a> {
    /// The list of a body.
    pub fn new(json: &'a str) -> V2List<'a> {
        V2List { text: Text::new(json), read: 0, state: State::Fresh }
    }

    /// Reads the next entry into `view`, as [`V2View::read`] does, and returns its text; none at the end, and where the list
    /// goes on otherwise.
    pub fn next(&mut self, view: &mut V2View<'a>, limits: &Limits) -> Option<&'a str> {
        if !self.goes_on() {
            return None;
        }
        // Past the blanks.
        self.text.peek();
        let begin = self.text.at;
        if self.read == limits.max_entries || !view.read_next(&mut self.text, limits) {
            self.state = State::Unusual;
            return None;
        }
        self.read += 1;
        Some(&self.text.json[begin..self.text.at])
    }

    fn goes_on(&mut self) -> bool {
        let text = &mut self.text;
        let (next, ends) = match self.state {
            State::Fresh => {
                let is_list = text.pass(b'[');
                let is_empty = is_list && text.pass(b']');
                (is_list && !is_empty, is_empty)
            }
            State::GoesOn => {
                let next = text.pass(b',');
                (next, !next && text.pass(b']'))
            }
            State::Ended | State::Unusual => return false,
        };
        self.state = match next {
            true => State::GoesOn,
            false if ends && text.end().is_some() => State::Ended,
            false => State::Unusual,
        };
        next
    }

    /// How many entries were read.
    pub fn read(&self) -> usize {
        self.read
    }

    /// Whether those were all, of a body that is a list.
    pub fn is_whole(&self) -> bool {
        self.state == State::Ended
    }
}

/// A parent of zeros is no parent, and nor is the span itself.
fn parent_of(text: &str, id: SpanId) -> Result<Option<SpanId>, BadId> {
    match text.parse::<SpanId>() {
        Ok(parent) => Ok(Some(parent).filter(|parent| *parent != id)),
        Err(BadId::Zero) => Ok(None),
        Err(cause) => Err(cause),
    }
}

#[derive(Default)]
struct Members<'a> {
    trace_id: Option<&'a str>,
    id: Option<&'a str>,
    parent_id: Option<&'a str>,
    kind: Option<Kind>,
    name: Option<&'a str>,
    timestamp: Option<i64>,
    duration: Option<i64>,
    local: Option<Place<'a>>,
    remote: Option<Place<'a>>,
    annotations: Option<()>,
    tags: Option<()>,
    debug: Option<bool>,
    shared: Option<bool>,
}

/// Takes the value of a member, if there is one and the member was not there before.
#[inline]
fn once<T>(place: &mut Option<T>, value: Option<T>) -> Option<()> {
    place.replace(value?).is_none().then_some(())
}

/// The endpoint of who recorded a span: of one process nearly always, and written as before.
fn local_place<'a>(text: &mut Text<'a>) -> Option<Place<'a>> {
    let (written, place_before) = text.place_before;
    let rest = &text.json.as_bytes()[text.at..];
    if !written.is_empty() && rest.starts_with(written) {
        text.at += written.len();
        return Some(place_before);
    }
    let place = place(text)?;
    let length = text.json.len() - text.at;
    text.place_before = (&rest[..rest.len() - length], place);
    Some(place)
}

/// An endpoint, whose addresses are taken as [`v2json`](crate::v2json) takes them: each as what it looks like.
fn place<'a>(text: &mut Text<'a>) -> Option<Place<'a>> {
    let (mut service, mut ipv4, mut ipv6, mut port) = (None, None, None, None);
    let mut addresses = Endpoint::default();
    let mut address = |place: &mut Option<()>, text: Option<&str>| {
        text.inspect(|ip| addresses.set_ip_text(ip));
        once(place, text.map(|_| ()))
    };
    text.object(|text| {
        if text.named("serviceName") {
            once(&mut service, text.string())
        } else if text.named("ipv4") {
            address(&mut ipv4, text.string())
        } else if text.named("ipv6") {
            address(&mut ipv6, text.string())
        } else if text.named("port") {
            once(&mut port, text.number().filter(|port| *port <= u16::MAX.into()))
        } else {
            None
        }
    })?;
    Some(Place {
        service: service.filter(|name| !name.is_empty()),
        ipv4: addresses.ipv4,
        ipv6: addresses.ipv6,
        port: port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0),
    })
}

fn annotations<'a>(text: &mut Text<'a>, read: &mut Vec<(i64, &'a str)>, max: usize) -> Option<()> {
    text.list(|text| {
        let (mut timestamp, mut value) = (None, None);
        text.object(|text| {
            if text.named("timestamp") {
                once(&mut timestamp, text.number())
            } else if text.named("value") {
                once(&mut value, text.string())
            } else {
                None
            }
        })?;
        push(read, (timestamp?, value?), max)
    })
}

fn tags<'a>(text: &mut Text<'a>, read: &mut Vec<(&'a str, &'a str)>, max: usize) -> Option<()> {
    text.object(|text| {
        let key = text.unquoted()?;
        text.expect(b':')?;
        push(read, (key, text.string()?), max)
    })
}

fn push<T>(list: &mut Vec<T>, item: T, max: usize) -> Option<()> {
    (list.len() < max).then(|| list.push(item))
}

/// A place in JSON. Each method passes what it names, if that comes next in its plainest form. The small ones are put where
/// they are used: with the place in registers, a span is read in a fifth less of the time.
struct Text<'a> {
    json: &'a str,
    at: usize,
    /// Whether no string of it can end otherwise than by its quote.
    is_plain: bool,
    /// The endpoint that was read last of who recorded a span, and how it was written.
    place_before: (&'a [u8], Place<'a>),
}

impl<'a> Text<'a> {
    /// At the beginning. All of it is looked at once, many bytes at a time: then nearly no string needs to be looked at for
    /// anything but its end.
    fn new(json: &'a str) -> Self {
        Text { json, at: 0, is_plain: is_plain(json.as_bytes()), place_before: (&[], Place::default()) }
    }

    /// Passes blanks, which few reporters write, and says what comes then.
    #[cold]
    fn peek(&mut self) -> Option<u8> {
        loop {
            let next = *self.json.as_bytes().get(self.at)?;
            if !matches!(next, b' ' | b'\n' | b'\r' | b'\t') {
                return Some(next);
            }
            self.at += 1;
        }
    }

    #[inline(always)]
    fn pass(&mut self, byte: u8) -> bool {
        match self.json.as_bytes().get(self.at) {
            Some(&next) if next == byte => {
                self.at += 1;
                true
            }
            Some(&next) if next > b' ' => false,
            _ => self.pass_behind_blanks(byte),
        }
    }

    #[cold]
    fn pass_behind_blanks(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    #[inline(always)]
    fn expect(&mut self, byte: u8) -> Option<()> {
        self.pass(byte).then_some(())
    }

    fn end(&mut self) -> Option<()> {
        self.peek().is_none().then_some(())
    }

    /// An object, of which `member` passes each name, behind its first quote, and value.
    #[inline]
    fn object(&mut self, mut member: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.expect(b'{')?;
        if self.pass(b'}') {
            return Some(());
        }
        loop {
            self.expect(b'"')?;
            member(self)?;
            if !self.pass(b',') {
                return self.expect(b'}');
            }
        }
    }

    /// A list, of which `element` passes each element.
    #[inline]
    fn list(&mut self, mut element: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.expect(b'[')?;
        if self.pass(b']') {
            return Some(());
        }
        loop {
            element(self)?;
            if !self.pass(b',') {
                return self.expect(b']');
            }
        }
    }

    /// Passes the name of a member, behind its first quote, if it is this one. Members come in one order from span to span, so
    /// that a processor guesses them: where the value begins it knows then before it has looked for the name's end.
    #[inline(always)]
    fn named(&mut self, name: &'static str) -> bool {
        let rest = &self.json.as_bytes()[self.at..];
        let is_next = rest.starts_with(name.as_bytes()) && rest.get(name.len()) == Some(&b'"');
        if is_next {
            self.at += name.len() + 1;
        }
        is_next && self.pass(b':')
    }

    /// A string that is an id, in sixteen digits nearly always: then its end is where it was guessed to be.
    #[inline(always)]
    fn id(&mut self) -> Option<&'a str> {
        const USUAL: usize = 16;
        self.expect(b'"')?;
        let rest = &self.json.as_bytes()[self.at..];
        match rest.split_at_checked(USUAL) {
            Some((digits, [b'"', ..])) if unquoted_length(digits) == USUAL => {
                let id = self.json.get(self.at..self.at + USUAL);
                self.at += USUAL + 1;
                id
            }
            _ => self.unquoted(),
        }
    }

    /// A string in which nothing is escaped.
    #[inline(always)]
    fn string(&mut self) -> Option<&'a str> {
        self.expect(b'"')?;
        self.unquoted()
    }

    /// The same, behind its first quote.
    #[inline(always)]
    fn unquoted(&mut self) -> Option<&'a str> {
        let start = self.at;
        let rest = &self.json.as_bytes()[start..];
        self.at += if self.is_plain { unquoted_length(rest) } else { plain_length(rest) };
        let string = &self.json[start..self.at];
        // What ends it may also be an escape, or a control character, which is not allowed.
        (self.json.as_bytes().get(self.at) == Some(&b'"')).then(|| {
            self.at += 1;
            string
        })
    }

    /// A whole number of at most 18 digits, which any i64 can hold.
    #[inline(always)]
    fn number(&mut self) -> Option<i64> {
        let negative = self.pass(b'-');
        let start = self.at;
        let mut number = 0;
        // Times have sixteen digits.
        while self.at - start < 16
            && let Some(eight) = self.json.as_bytes()[self.at..].first_chunk().and_then(eight_digits)
        {
            number = number * 100_000_000 + eight;
            self.at += 8;
        }
        while let Some(digit @ b'0'..=b'9') = self.json.as_bytes().get(self.at) {
            if self.at - start == 18 {
                return None;
            }
            number = number * 10 + i64::from(digit - b'0');
            self.at += 1;
        }
        match (self.json.as_bytes().get(start)?, self.at - start) {
            // No digit; zeros before others, or a negative zero, are no plain numbers.
            (_, 0) => None,
            (b'0', length) if length > 1 || negative => None,
            _ if negative => Some(-number),
            _ => Some(number),
        }
    }

    fn flag(&mut self) -> Option<bool> {
        let flag = self.peek()? == b't';
        let word = if flag { "true" } else { "false" };
        self.json.as_bytes()[self.at..].starts_with(word.as_bytes()).then(|| {
            self.at += word.len();
            flag
        })
    }
}

/// Eight digits as one word: neighbours become numbers of two, then of four, then of eight digits.
#[inline]
fn eight_digits(bytes: &[u8; 8]) -> Option<i64> {
    const EACH: u64 = u64::from_ne_bytes([1; 8]);
    let worth = u64::from_le_bytes(*bytes) ^ (EACH * u64::from(b'0'));
    // At most nine: no byte that is touches another.
    if (worth | ((worth & (EACH * 0x7f)) + EACH * (0x7f - 9))) & (EACH << 7) != 0 {
        return None;
    }
    let twos = (worth.wrapping_mul(10) + (worth >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (twos.wrapping_mul(100) + (twos >> 16)) & 0x0000_ffff_0000_ffff;
    Some((fours.wrapping_mul(10_000) + (fours >> 32)) as i64 & 0xffff_ffff)
}

/// Whether there is neither a backslash nor a control character.
fn is_plain(bytes: &[u8]) -> bool {
    // Without an early end within a part, the compiler looks at many bytes at once.
    let is_plain =
        |part: &[u8]| part.iter().fold(true, |plain, &byte| plain & (byte >= b' ') & (byte != b'\\'));
    bytes.chunks(1024).all(is_plain)
}

/// How many bytes come before the first quote, eight looked at as one.
#[inline]
fn unquoted_length(bytes: &[u8]) -> usize {
    const EACH: u64 = u64::from_ne_bytes([1; 8]);
    let (chunks, rest) = bytes.as_chunks::<8>();
    for (at, chunk) in chunks.iter().enumerate() {
        let quote = u64::from_le_bytes(*chunk) ^ (EACH * u64::from(b'"'));
        // Only a byte of zero borrows from its highest bit without having had it; what is further up is of no interest.
        let ends = quote.wrapping_sub(EACH) & !quote & (EACH << 7);
        if ends != 0 {
            return at * 8 + ends.trailing_zeros() as usize / 8;
        }
    }
    chunks.len() * 8 + rest.iter().position(|&byte| byte == b'"').unwrap_or(rest.len())
}

/// How many bytes come before the first that is a quote, a backslash or a control character. Eight are looked at as one:
/// of bytes below 128, one that is less than another borrows from its highest bit; what is borrowed further up is of no
/// interest, because the first such byte counts.
#[inline]
fn plain_length(bytes: &[u8]) -> usize {
    const EACH: u64 = u64::from_ne_bytes([1; 8]);
    let below = |word: u64, bound: u64| word.wrapping_sub(EACH * bound);
    let (chunks, rest) = bytes.as_chunks::<8>();
    for (at, chunk) in chunks.iter().enumerate() {
        let word = u64::from_le_bytes(*chunk);
        let (quote, backslash) = (word ^ (EACH * u64::from(b'"')), word ^ (EACH * u64::from(b'\\')));
        let ends = (below(word, b' '.into()) | below(quote, 1) | below(backslash, 1)) & !word & (EACH << 7);
        if ends != 0 {
            return at * 8 + ends.trailing_zeros() as usize / 8;
        }
    }
    let is_end = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..b' ');
    chunks.len() * 8 + rest.iter().position(is_end).unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_digits_are_a_number_whatever_byte_is_among_them() {
        for at in 0..8 {
            for byte in 0..=255_u8 {
                let mut digits = *b"98765432";
                digits[at] = byte;
                let all = digits.iter().all(u8::is_ascii_digit);
                let number = all.then(|| str::from_utf8(&digits).unwrap().parse().unwrap());
                assert_eq!(eight_digits(&digits), number, "{byte} at {at}");
            }
        }
        assert_eq!(eight_digits(b"99999999"), Some(99_999_999));
    }

    #[test]
    fn one_byte_that_strings_cannot_hold_is_seen_wherever_it_is() {
        for at in [0, 1, 1023, 1024, 2999] {
            for byte in 0..=255_u8 {
                let mut bytes = vec![b'a'; 3000];
                bytes[at] = byte;
                assert_eq!(is_plain(&bytes), byte >= b' ' && byte != b'\\', "{byte} at {at}");
            }
        }
    }

    /// What stands in one string must not be overlooked because the others are plain.
    #[test]
    fn a_list_with_an_escape_or_a_control_character_is_read_up_to_it() {
        for (odd, read) in [("\\n", 1), ("\\\"", 1), ("\n", 1), ("\u{1}", 1), ("\u{7f}", 2), ("日", 2)] {
            let json = format!(r#"[{{"traceId":"1","id":"2"}},{{"traceId":"1","id":"3","name":"a{odd}b"}}]"#);
            let (mut list, mut view) = (V2List::new(&json), V2View::default());
            while list.next(&mut view, &Limits::default()).is_some() {}
            assert_eq!((list.read(), list.is_whole()), (read, read == 2), "{odd:?}");
        }
    }

    /// An endpoint is whole at its last brace, so that one that begins as another does is never taken for it.
    #[test]
    fn each_span_has_its_own_endpoint_however_alike_they_are_written() {
        let places = [
            r#"{"serviceName":"a","ipv4":"10.0.0.1"}"#,
            r#"{"serviceName":"a","ipv4":"10.0.0.1"}"#,
            r#"{"serviceName":"a","ipv4":"10.0.0.1","port":7}"#,
            r#" {"serviceName":"a","ipv4":"10.0.0.1"}"#,
            r#"{"serviceName":"a"}"#,
            "{}",
            "{}",
            r#"{"serviceName":"a"}"#,
        ];
        let spans: Vec<_> = places
            .iter()
            .map(|place| format!(r#"{{"traceId":"1","id":"2","localEndpoint":{place},"name":"n"}}"#))
            .collect();
        let json = format!("[{}]", spans.join(","));
        let (mut list, mut view, mut read) = (V2List::new(&json), V2View::default(), Vec::new());
        while list.next(&mut view, &Limits::default()).is_some() {
            read.push((view.local, view.name));
        }
        assert!(list.is_whole());
        let alone: Vec<_> = spans
            .iter()
            .map(|span| {
                let mut view = V2View::default();
                assert!(view.read(span, &Limits::default()));
                (view.local, view.name)
            })
            .collect();
        assert_eq!(read, alone);
        let ports: Vec<_> = read.iter().map(|(place, _)| place.port).collect();
        assert_eq!(ports, [None, None, Some(7), None, None, None, None, None]);
        assert!(read.iter().all(|(_, name)| *name == Some("n")));
    }

    #[test]
    fn a_string_ends_at_the_first_byte_that_may_not_stand_in_it_wherever_that_is() {
        for length in 0..40 {
            for end in 0..=255_u8 {
                for filler in [b'a', b'!', b'#', b'[', b']', b' ', 0x7f, 0x80, 0xff] {
                    let bytes = [&vec![filler; length][..], &[end, b'"'], &[filler; 9]].concat();
                    let ends = matches!(end, b'"' | b'\\' | 0..=0x1f);
                    assert_eq!(plain_length(&bytes), length + usize::from(!ends), "{length} {end} {filler}");
                    let unquoted = length + usize::from(end != b'"');
                    assert_eq!(unquoted_length(&bytes), unquoted, "{length} {end} {filler}");
                }
            }
        }
    }
}
