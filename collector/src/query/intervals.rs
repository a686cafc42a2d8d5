//! Measures how long something takes in each service: the time between two named annotations of a span, over all traces of a
//! window of time. For example, `from=Write begins`, `to=Span ended` is the journaling time of each storage daemon.
//!
//! A message has two sides, which nearly always are two spans: `from=ms`, `to=mr` is the time from a producer's sending to each
//! receipt. It counts for the service that received.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::ops::RangeInclusive;

use serde::Serialize;

use super::groups::{Question, Sum};
use super::remembered::{OF_A_BLOCK, Remembered, Weighed};
use super::search::{Answer, Reading};
use super::times::Times;
use super::{BadRequest, Defaults, Parameters};
use crate::convert::Texts;
use crate::model::{Annotation, Kind, Moment, Span, SpanId};
use crate::store::{Store, StoreError, Wanted};

/// What to measure, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IntervalRequest {
    /// The annotation that begins an interval.
    pub from: String,
    /// The annotation that ends it, of the same span or of the other side of the same message.
    pub to: String,
    /// Only this service, in lower case.
    pub service: Option<String>,
    /// Only spans of this name, in lower case.
    pub span_name: Option<String>,
    /// Time of the traces in microseconds.
    pub window_us: RangeInclusive<u64>,
}

impl IntervalRequest {
    /// Reads the parameters `from`, `to`, and those of a search that apply: `serviceName`, `spanName`, `endTs`,
    /// `lookback`.
    ///
    /// # Errors
    /// When an annotation is not named, or a parameter cannot be used.
    pub fn read(parameters: &Parameters, defaults: &Defaults) -> Result<IntervalRequest, BadRequest> {
        let lower = |name: &str| parameters.get(name).map(str::to_lowercase);
        Ok(IntervalRequest {
            from: parameters.required("from")?.to_owned(),
            to: parameters.required("to")?.to_owned(),
            service: lower("serviceName"),
            span_name: lower("spanName").filter(|name| name != "all"),
            window_us: parameters.window_us(defaults)?,
        })
    }
}

/// The measured intervals, by service.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Intervals {
    /// Traces that were looked at.
    pub traces: u64,
    /// Whether all traces of the window were looked at, with all their spans. If not, time ran out and these are the latest
    /// traces, or a trace has more spans than an answer may hold.
    pub complete: bool,
    /// How often `from` came and no `to` followed in the same span, so that there was nothing to measure: `to` never happened, or
    /// its sender did not report it. A span that was sent in v2 without a duration does not say when its call ended.
    pub without_end: u64,
    /// What was measured, by service.
    pub services: Vec<ServiceIntervals>,
}

/// The intervals of one service. Times are in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServiceIntervals {
    /// The service that wrote both annotations; for a message, the service that received it.
    pub service: String,
    /// How many intervals were measured.
    pub count: u64,
    /// The mean of the intervals.
    pub average_us: f64,
    /// Half of the intervals took at most this long; within 0.8 % of the exact value.
    pub p50_us: u64,
    /// 99 of 100 intervals took at most this long; within 0.8 % of the exact value.
    pub p99_us: u64,
    /// The longest interval.
    pub max_us: u64,
}

/// The remembered times of groups of traces.
pub type RememberedTimes = Remembered<Measured>;

/// What was measured in some traces, in little memory, because a group may have only one time.
#[derive(Debug)]
pub struct Measured {
    traces: u64,
    without_end: u64,
    services: Box<[(Box<str>, Times)]>,
}

impl Weighed for Measured {
    fn bytes(&self) -> usize {
        let of_service = |(name, times): &(Box<str>, Times)| {
            size_of::<Box<str>>() + name.len() + times.bytes() + 2 * OF_A_BLOCK
        };
        size_of::<Measured>() + self.services.iter().map(of_service).sum::<usize>()
    }
}

/// A measurement under way, to which traces are added one after the other.
#[derive(Debug, Default)]
struct Measuring {
    traces: u64,
    without_end: u64,
    services: BTreeMap<Box<str>, Times>,
}

impl Measuring {
    fn times(&mut self, service: &str) -> &mut Times {
        self.services.entry(service.into()).or_default()
    }
}

impl Sum for Measuring {
    type Kept = Measured;

    fn add(&mut self, kept: &Measured) {
        self.traces += kept.traces;
        self.without_end += kept.without_end;
        kept.services.iter().for_each(|(service, times)| self.times(service).add_all(times));
    }

    fn keep(self) -> Measured {
        let services = self.services.into_iter().map(|(service, times)| (service, times.fitted()));
        Measured { traces: self.traces, without_end: self.without_end, services: services.collect() }
    }
}

impl ServiceIntervals {
    fn of(service: String, times: &Times) -> ServiceIntervals {
        ServiceIntervals {
            service,
            count: times.count(),
            average_us: times.average_us(),
            p50_us: times.percentile_us(50),
            p99_us: times.percentile_us(99),
            max_us: times.max_us(),
        }
    }
}

/// Measures the intervals that a request asks for.
///
/// # Errors
/// When the store fails.
pub fn intervals(
    store: &dyn Store,
    request: &IntervalRequest,
    reading: Reading,
    remembered: &RememberedTimes,
) -> Result<Answer<Intervals>, StoreError> {
    let question = Question {
        store,
        reading,
        wanted: request.wanted(),
        window_us: &request.window_us,
        texts: Texts::Only(&[request.from.as_str(), request.to.as_str()]),
        remembered,
        hash_question: &|state| request.hash_question(reading, state),
        add: &|sum: &mut Measuring, spans| request.measure(&spans, sum),
    };
    let Answer { found: sum, cut } = question.answer()?;
    let services =
        sum.services.into_iter().map(|(service, times)| ServiceIntervals::of(service.into(), &times));
    let found = Intervals {
        traces: sum.traces,
        complete: cut.is_none(),
        without_end: sum.without_end,
        services: services.collect(),
    };
    Ok(Answer { found, cut })
}

/// What was measured from one span to one span.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Between {
    times_us: Vec<u64>,
    /// How many begins have no end.
    without_end: u64,
}

impl IntervalRequest {
    /// The traces of the service, in whose spans its annotations are looked for.
    fn wanted(&self) -> Wanted {
        Wanted::of_service(self.service.as_deref())
    }

    /// Hashes everything, apart from the window, on which the measurement of a trace depends.
    fn hash_question(&self, reading: Reading, state: &mut impl Hasher) {
        (&self.from, &self.to, &self.service, &self.span_name, reading.strict).hash(state);
    }

    /// Measures in a trace, and adds the result.
    fn measure(&self, spans: &[Span], sum: &mut Measuring) {
        sum.traces += 1;
        for (service, between) in self.times_of(spans) {
            sum.without_end += between.without_end;
            if !between.times_us.is_empty() {
                let times = sum.times(service);
                between.times_us.into_iter().for_each(|time_us| times.add(time_us));
            }
        }
    }

    fn takes(&self, span: &Span) -> bool {
        let is = |wanted: &Option<String>, name: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| name == Some(wanted))
        };
        is(&self.service, span.local_service()) && is(&self.span_name, span.name.as_deref())
    }

    /// What was measured in the spans of a trace, each with its service.
    fn times_of<'s>(&self, spans: &'s [Span]) -> Vec<(&'s str, Between)> {
        let of_messages = (self.from.as_str(), self.to.as_str()) == ("ms", "mr");
        let alone = spans.iter().filter(|span| !(of_messages && is_of_message(span)) && self.takes(span));
        let mut found: Vec<_> =
            alone.filter_map(|span| Some((span.local_service()?, self.times_within(span)))).collect();
        if of_messages {
            self.add_times_of_messages(spans, &mut found);
        }
        found
    }

    /// The time from each `ms` to every `mr` of the same message, which is on the span's other side or on its children. A message
    /// that nobody received has no end.
    fn add_times_of_messages<'s>(&self, spans: &'s [Span], found: &mut Vec<(&'s str, Between)>) {
        let of_kind = |kind| spans.iter().filter(move |span| span.kind == Some(kind));
        // One message may have been sent to very many receivers.
        let sent: HashMap<SpanId, Vec<Moment>> =
            of_kind(Kind::Producer).map(|span| (span.id, moments(span, &self.from))).collect();
        let mut received = HashSet::new();
        for receiver in of_kind(Kind::Consumer) {
            let of_id = |id: SpanId| sent.get_key_value(&id);
            let sender = of_id(receiver.id).or_else(|| of_id(receiver.parent_id?));
            let Some((id, begins)) = sender else { continue };
            received.insert(*id);
            if let Some(service) = receiver.local_service().filter(|_| self.takes(receiver)) {
                found.push((service, self.times_between(begins, receiver)));
            }
        }
        for sender in of_kind(Kind::Producer).filter(|sender| !received.contains(&sender.id)) {
            let unreceived = Between { without_end: 1, ..Between::default() };
            found.extend(
                sender.local_service().filter(|_| self.takes(sender)).map(|service| (service, unreceived)),
            );
        }
    }

    /// The time from each `from` to the next `to` after it. If both are the same annotation, the last one only ends an interval.
    fn times_within(&self, span: &Span) -> Between {
        self.times_between(&moments(span, &self.from), span)
    }

    /// The same from the begins in one span to the ends in another.
    fn times_between(&self, begins: &[Moment], to: &Span) -> Between {
        let mut ends = moments(to, &self.to).into_iter();
        let begins =
            if self.from == self.to { begins.split_last().map_or(begins, |(_, rest)| rest) } else { begins };
        // Senders may write absurd times, whose difference may not fit into an i64; but it is never below zero.
        let time = |&begin: &Moment| Some(ends.find(|&end| self.follows(begin, end))?.us.abs_diff(begin.us));
        // If a begin has no end, no later begin has one.
        let times_us: Vec<u64> = begins.iter().map_while(time).collect();
        let without_end = (begins.len() - times_us.len()) as u64;
        Between { times_us, without_end }
    }

    /// Whether `end` can end an interval that starts at `begin`. Two different annotations of the same microsecond are an
    /// interval of zero, unless their nanoseconds show the other order; one annotation is not an interval with itself.
    fn follows(&self, begin: Moment, end: Moment) -> bool {
        let same_moment = begin.us == end.us && (end.nanos == 0 || end.nanos >= begin.nanos);
        end.us > begin.us || (self.from != self.to && same_moment)
    }
}

/// Whether a span is a side of a message.
fn is_of_message(span: &Span) -> bool {
    matches!(span.kind, Some(Kind::Producer | Kind::Consumer))
}

/// The moments of an annotation in a span, in order. The marks of the begin and the end of a call or a message have become the
/// span's own time; a span that came without marks has only that time. A receipt has a `wr` if it took time; otherwise it is a
/// single moment.
fn moments(span: &Span, value: &str) -> Vec<Moment> {
    let told = |us: i64| Moment { us, nanos: 0 };
    let begin = || span.marks.begin.or(span.timestamp.map(told));
    let end = || span.marks.end.or_else(|| Some(told(span.timestamp?.saturating_add(span.duration?))));
    let took_time = span.marks.end.is_some() || (span.marks.begin.is_none() && span.duration.is_some());
    let own = match (value, span.kind) {
        ("cs", Some(Kind::Client)) | ("sr", Some(Kind::Server)) => begin(),
        ("cr", Some(Kind::Client)) | ("ss", Some(Kind::Server)) => end(),
        ("ms", Some(Kind::Producer)) => begin(),
        ("ws", Some(Kind::Producer)) => end(),
        ("wr", Some(Kind::Consumer)) => took_time.then(begin).flatten(),
        ("mr", Some(Kind::Consumer)) => {
            if took_time {
                end()
            } else {
                begin()
            }
        }
        _ => None,
    };
    let written = span.annotations.iter().filter(|annotation| annotation.value == value);
    let mut moments: Vec<Moment> = own.into_iter().chain(written.map(Annotation::moment)).collect();
    moments.sort_unstable();
    moments
}

#[cfg(test)]
mod tests {
    use std::slice;
    use std::time::Duration;

    use blkin_thrift::{Annotation as V1Annotation, Endpoint, Span as V1Span};

    use super::*;
    use crate::merge::{Piece, assemble};
    use crate::model::{SpanId, TraceId};
    use crate::store::memory::Memory;
    use crate::store::{Batch, TraceStore};

    fn request(from: &str, to: &str) -> IntervalRequest {
        IntervalRequest { from: from.into(), to: to.into(), service: None, span_name: None, window_us: 1..=2 }
    }

    fn span(annotations: &[(i64, &str)]) -> Span {
        let annotations =
            annotations.iter().map(|(timestamp, value)| Annotation::new(*timestamp, *value)).collect();
        Span { annotations, ..Span::new(TraceId::new(0, 1).unwrap(), "1".parse::<SpanId>().unwrap()) }
    }

    #[test]
    fn names_are_lower_cased_and_span_name_all_matches_any() {
        let read = |service: &str, span_name: &str| {
            let pairs = [("from", "A"), ("to", "B"), ("serviceName", service), ("spanName", span_name)];
            let parameters =
                Parameters(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec());
            let read = IntervalRequest::read(&parameters, &Defaults { now_ms: 1, max_traces: 1 }).unwrap();
            (read.from, read.to, read.service.unwrap(), read.span_name)
        };
        let with = |span_name: Option<&str>| {
            ("A".to_owned(), "B".to_owned(), "osd".to_owned(), span_name.map(str::to_owned))
        };
        assert_eq!(read("OSD", "Write"), with(Some("write")));
        assert_eq!([read("osd", "all"), read("osd", "ALL")], [with(None), with(None)]);
    }

    #[test]
    fn each_begin_is_paired_with_the_next_end_if_any() {
        let written =
            span(&[(1, "end"), (10, "begin"), (15, "end"), (20, "begin"), (20, "end"), (30, "begin")]);
        assert_eq!(request("begin", "end").told_within(&written), [Some(5), Some(0), None]);
        assert_eq!(request("begin", "begin").told_within(&written), [Some(10), Some(10)]);
        assert_eq!(request("begin", "other").told_within(&written), [None; 3]);
        assert!(request("other", "end").told_within(&written).is_empty());
    }

    #[test]
    fn nanoseconds_order_begin_and_end_within_a_microsecond() {
        let mut written = span(&[(10, "end"), (10, "begin"), (15, "end")]);
        assert_eq!(request("begin", "end").told_within(&written), [Some(0)]);
        written.annotations[0].nanos = 200;
        written.annotations[1].nanos = 700;
        assert_eq!(request("begin", "end").told_within(&written), [Some(5)]);
        for (nanos, which) in [(700, "at the same nanosecond"), (0, "of which no nanoseconds are known")] {
            written.annotations[0].nanos = nanos;
            assert_eq!(request("begin", "end").told_within(&written), [Some(0)], "{which}");
        }
    }

    #[test]
    fn marks_of_a_call_come_from_its_spans_own_time() {
        let served = Span {
            kind: Some(Kind::Server),
            timestamp: Some(100),
            duration: Some(50),
            ..span(&[(120, "journal written")])
        };
        assert_eq!(request("sr", "journal written").told_within(&served), [Some(20)]);
        assert_eq!(request("journal written", "ss").told_within(&served), [Some(30)]);
        assert!(request("cs", "ss").told_within(&served).is_empty());
    }

    fn told(found: &Between) -> Vec<Option<u64>> {
        let ended = found.times_us.iter().copied().map(Some);
        ended.chain((0..found.without_end).map(|_| None)).collect()
    }

    impl IntervalRequest {
        fn told_within(&self, span: &Span) -> Vec<Option<u64>> {
            told(&self.times_within(span))
        }

        fn told_of<'s>(&self, spans: &'s [Span]) -> Vec<(&'s str, Option<u64>)> {
            let of_service =
                |(service, found)| told(&found).into_iter().map(move |time_us| (service, time_us));
            self.times_of(spans).into_iter().flat_map(of_service).collect()
        }
    }

    /// A v1 piece of span 1, as this service would send it.
    fn piece(service: &str, marks: &[(i64, i16, &str)]) -> V1Span {
        let host = Some(Endpoint { service_name: service.to_owned(), ..Endpoint::default() });
        let annotations = marks.iter().map(|&(timestamp, nanos, value)| V1Annotation {
            timestamp,
            value: value.to_owned(),
            host: host.clone(),
            nanos: Some(nanos),
            ..V1Annotation::default()
        });
        V1Span { trace_id: 1, id: 1, annotations: annotations.collect(), ..V1Span::default() }
    }

    fn times_of(request: &IntervalRequest, pieces: &[V1Span]) -> Vec<Option<u64>> {
        let spans = assemble(pieces.iter().cloned().map(Piece::V1).collect());
        request.told_of(&spans).into_iter().map(|(_, time_us)| time_us).collect()
    }

    /// A side of a message in v2, with its duration if there is one.
    fn side(id: u64, parent: Option<u64>, kind: Kind, timestamp: i64, duration: Option<i64>) -> Span {
        let parent_id = parent.map(|parent| SpanId::new(parent).unwrap());
        let service = if kind == Kind::Producer { "gateway" } else { "osd" };
        let local_endpoint = Some(crate::model::Endpoint::service(service));
        let span = Span::new(TraceId::new(0, 1).unwrap(), SpanId::new(id).unwrap());
        Span { parent_id, kind: Some(kind), timestamp: Some(timestamp), duration, local_endpoint, ..span }
    }

    #[test]
    fn a_message_is_timed_from_its_sending_to_each_receipt() {
        let travel = request("ms", "mr");
        let sent = side(1, None, Kind::Producer, 100, None);
        let received = [
            side(1, None, Kind::Consumer, 130, None),
            side(2, Some(1), Kind::Consumer, 150, Some(20)),
            side(3, Some(9), Kind::Consumer, 160, None),
        ];
        let spans = [&[sent.clone()][..], &received].concat();
        assert_eq!(travel.told_of(&spans), [("osd", Some(30)), ("osd", Some(70))]);
        assert_eq!(travel.told_of(slice::from_ref(&sent)), [("gateway", None)], "nobody received it");
        let by_a_clock_behind = side(1, None, Kind::Consumer, 90, None);
        assert_eq!(travel.told_of(&[sent.clone(), by_a_clock_behind]), [("osd", None)]);
        let only = |service: &str| IntervalRequest { service: Some(service.to_owned()), ..travel.clone() };
        assert_eq!(only("osd").told_of(&spans).len(), 2);
        assert!(only("gateway").told_of(&spans).is_empty() && only("osd").told_of(&[sent]).is_empty());
    }

    #[test]
    fn a_receipt_pairs_with_the_message_of_its_own_span_first() {
        let chain = [
            side(1, None, Kind::Producer, 100, None),
            side(2, Some(1), Kind::Producer, 200, None),
            side(2, Some(1), Kind::Consumer, 230, None),
        ];
        assert_eq!(request("ms", "mr").told_of(&chain), [("osd", Some(30)), ("gateway", None)]);
    }

    #[test]
    fn a_local_span_may_hold_both_marks_of_a_message() {
        let local_endpoint = Some(crate::model::Endpoint::service("osd"));
        let local = Span { local_endpoint, ..span(&[(10, "ms"), (15, "mr")]) };
        assert_eq!(request("ms", "mr").told_of(&[local]), [("osd", Some(5))]);
    }

    #[test]
    fn many_sends_and_receipts_of_a_message_take_linear_memory() {
        const OFTEN: u64 = 1000;
        let sent = Span {
            annotations: (1..OFTEN as i64).map(|us| Annotation::new(us, "ms")).collect(),
            ..side(1, None, Kind::Producer, OFTEN as i64, None)
        };
        let received = (2..2 + OFTEN).map(|id| side(id, Some(1), Kind::Consumer, 500, None));
        let spans: Vec<Span> = std::iter::once(sent).chain(received).collect();
        let found = request("ms", "mr").times_of(&spans);
        assert_eq!(found.len() as u64, OFTEN);
        let each = Between { times_us: vec![499], without_end: OFTEN - 1 };
        assert!(found.iter().all(|(_, found)| *found == each));
    }

    #[test]
    fn message_marks_agree_for_pieces_whole_spans_and_v2() {
        let sender = piece("gateway", &[(100, 0, "ms"), (110, 0, "ws")]);
        let receiver = piece("osd", &[(140, 0, "wr"), (145, 0, "mr"), (147, 0, "handled")]);
        let both = [sender, receiver];
        let whole = {
            let [mut whole, receiver] = both.clone();
            whole.annotations.extend(receiver.annotations);
            whole
        };
        let v2 = [side(1, None, Kind::Producer, 100, Some(10)), side(1, None, Kind::Consumer, 140, Some(5))];
        for (from, to, time_us) in [("ms", "mr", 45), ("ms", "ws", 10), ("wr", "mr", 5)] {
            let wanted = request(from, to);
            assert_eq!(times_of(&wanted, &both), [Some(time_us)], "{from} {to} of two pieces");
            assert_eq!(times_of(&wanted, slice::from_ref(&whole)), [Some(time_us)], "{from} {to} of one");
            let told: Vec<_> = wanted.told_of(&v2).into_iter().map(|(_, time_us)| time_us).collect();
            assert_eq!(told, [Some(time_us)], "{from} {to} of v2");
        }
        assert_eq!(times_of(&request("mr", "handled"), &both), [Some(2)]);
        // The span's own time, as its sender reports it, is not when the message was received.
        let moment = V1Span { timestamp: Some(130), duration: Some(20), ..piece("osd", &[(145, 0, "mr")]) };
        assert_eq!(times_of(&request("ms", "mr"), &[both[0].clone(), moment.clone()]), [Some(45)]);
        let handled = piece("osd", &[(145, 0, "mr"), (147, 0, "handled")]);
        let handled = V1Span { annotations: handled.annotations, ..moment };
        assert_eq!(times_of(&request("mr", "handled"), slice::from_ref(&handled)), [Some(2)]);
        assert_eq!(
            times_of(&request("wr", "handled"), &[handled]),
            [],
            "a span of one moment has no begin of its own"
        );
    }

    #[test]
    fn a_call_within_a_microsecond_counts_with_time_zero() {
        let server = piece("osd", &[(10, 100, "sr"), (10, 900, "ss")]);
        let client = piece("rbd", &[(10, 0, "cs"), (10, 950, "cr")]);
        let (served, called) = (request("sr", "ss"), request("cs", "cr"));
        let halves = ["sr", "ss"].map(|mark| piece("osd", &[(10, 0, mark)]));
        assert_eq!(times_of(&served, slice::from_ref(&server)), [Some(0)], "whole");
        assert_eq!(times_of(&served, &halves), [Some(0)], "in halves");
        assert_eq!(times_of(&called, slice::from_ref(&client)), [Some(0)], "the client");
        let both = [client, server];
        assert_eq!([times_of(&served, &both), times_of(&called, &both)], [[Some(0)]; 2], "both sides");
    }

    /// Zipkin has no duration of 0: senders report such a call with 1.
    #[test]
    fn a_call_is_timed_by_its_marks_not_its_duration() {
        let client = piece("rbd", &[(10, 100, "cs"), (10, 900, "cr")]);
        let client = V1Span { timestamp: Some(10), duration: Some(1), ..client };
        assert_eq!(times_of(&request("cs", "cr"), &[client]), [Some(0)]);
    }

    #[test]
    fn a_call_lacking_a_mark_has_no_measured_time() {
        let unfinished = V1Span { timestamp: Some(10), ..piece("osd", &[(10, 0, "sr"), (20, 0, "work")]) };
        let served = request("sr", "ss");
        for begun in [unfinished, piece("osd", &[(10, 0, "sr")])] {
            assert_eq!(times_of(&served, slice::from_ref(&begun)), [None], "{begun:?}");
        }
        assert!(times_of(&served, &[piece("osd", &[(10, 0, "ss")])]).is_empty());
        let begins = [piece("rbd", &[(10, 0, "cs")]), piece("osd", &[(10, 0, "sr")])];
        assert_eq!([times_of(&served, &begins), times_of(&request("cs", "cr"), &begins)], [[None]; 2]);
    }

    #[test]
    fn an_end_earlier_by_nanoseconds_is_not_paired_with_a_call() {
        let served = piece("osd", &[(10, 200, "queued"), (10, 700, "sr"), (15, 0, "queued"), (20, 0, "ss")]);
        assert_eq!(times_of(&request("sr", "queued"), &[served]), [Some(5)]);
    }

    #[test]
    fn extreme_times_are_measured_without_overflow() {
        let written = span(&[(i64::MIN, "begin"), (i64::MAX, "end")]);
        assert_eq!(request("begin", "end").told_within(&written), [Some(u64::MAX)]);
        let (timestamp, duration) = (Some(i64::MAX), Some(i64::MAX));
        let served = Span { kind: Some(Kind::Server), timestamp, duration, ..span(&[(0, "begin")]) };
        assert_eq!(request("begin", "ss").told_within(&served), [Some(i64::MAX as u64)]);
    }

    #[test]
    fn remembered_times_answer_only_their_own_question_and_window() {
        let store = TraceStore::new(Memory::default()).unwrap();
        let mut batch = Batch::default();
        for (trace, at) in [(1, 100), (2, 200)] {
            let marks = [(at, 0, "begin"), (at + trace, 0, "middle"), (at + 10 * trace, 0, "end")];
            let span = V1Span { trace_id: trace, timestamp: Some(at), ..piece("osd", &marks) };
            batch.push(&Piece::V1(span));
        }
        store.commit(&[batch], 1).unwrap();
        let remembered = RememberedTimes::default();
        let measured = |from: &str, to: &str, window_us: RangeInclusive<u64>, strict: bool| {
            let request = IntervalRequest { window_us, ..request(from, to) };
            let reading = Reading { strict, max_bytes: 1 << 20, patience: Duration::from_secs(600) };
            let found = intervals(&store, &request, reading, &remembered).unwrap();
            assert_eq!(found, intervals(&store, &request, reading, &RememberedTimes::default()).unwrap());
            assert!(found.cut.is_none() && found.found.complete);
            (found.found.traces, found.found.services[0].average_us)
        };
        let mut groups = Vec::new();
        for strict in [true, false, true, false] {
            assert_eq!(measured("begin", "middle", 1..=300, strict), (2, 1.5));
            assert_eq!(measured("begin", "end", 1..=300, strict), (2, 15.0));
            assert_eq!(measured("begin", "end", 1..=100, strict), (1, 10.0));
            assert_eq!(measured("begin", "end", 200..=200, strict), (1, 20.0));
            groups.push(remembered.number_of_groups());
        }
        assert!(groups[0] > 0 && groups[1] > groups[0], "{groups:?}");
        assert_eq!(groups[2..], [groups[1]; 2], "asked again");
    }
}
