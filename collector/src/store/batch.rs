//! Pieces that arrived together and are committed together, in few allocations: the bytes that will be stored, and beside
//! them what the store must know of each piece.

use std::hash::BuildHasher;
use std::mem::size_of;
use std::sync::Arc;

use blkin_thrift::view::SpanView;
use foldhash::fast::RandomState;

use super::facts::{self, Look, Time};
use super::names::NameKind;
use super::pieces::{COMPACT_V1, COMPACT_V2, JSON_V2, STORED, TBINARY_V1, identity};
use super::secret::Secret;
use super::terms::Named;
use super::{compact, frame};
use crate::ledger::Ledger;
use crate::merge::Piece;
use crate::model::TraceId;
use crate::v2view::{V2List, V2View};

/// A piece of a batch. Its bytes, terms and identities end where those of the next piece begin.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) trace: TraceId,
    pub(super) annotations: u32,
    /// The stamp of the whole piece; none if the identities of its annotations show what is a duplicate.
    pub(super) whole: Option<u128>,
    pub(super) time: Time,
    bytes: usize,
    terms: usize,
    identities: usize,
}

/// A name that a piece of a batch has.
#[derive(Debug, Clone, Copy)]
struct Name {
    kind: NameKind,
    of: usize,
    end: usize,
}

/// Pieces that arrived together and are committed together.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// What the intake has counted: received, malformed, sampled out.
    pub ledger: Ledger,
    autocomplete_keys: Arc<[String]>,
    entries: Vec<Entry>,
    /// Each piece, sealed.
    bytes: Vec<u8>,
    terms: Vec<u64>,
    identities: Vec<u128>,
    names: Vec<Name>,
    /// For each name, the text of its owner and its own text.
    texts: String,
    recently_added: RecentlyAdded,
}

/// Memory that a piece takes beside its bytes, roughly.
const ENTRY_BYTES: usize = 256;
/// The size of a message's spans is only estimated, so no more memory than this is reserved for them.
const MOST_RESERVED: usize = 256 << 10;
/// Roughly how many terms a piece has.
const TERMS_OF_PIECE: usize = 4;

impl Batch {
    /// An empty batch. The values of tags with these keys are offered for completion.
    pub fn new(autocomplete_keys: Arc<[String]>) -> Batch {
        Batch { autocomplete_keys, ..Batch::default() }
    }

    /// Makes room for pieces that had so many bytes when they came; their short form takes less than half.
    pub fn reserve(&mut self, pieces: usize, bytes: usize) {
        let heads = pieces * (frame::HEAD_BYTES + 1);
        self.bytes.reserve((bytes / 2 + heads).min(MOST_RESERVED));
        let pieces = pieces.min(MOST_RESERVED / ENTRY_BYTES);
        self.entries.reserve(pieces);
        self.terms.reserve(pieces * TERMS_OF_PIECE);
    }

    /// A batch of one piece, without the memory that helps to add others.
    pub(super) fn of_one(piece: &Piece) -> Batch {
        let mut batch = Batch::default();
        batch.push(piece);
        batch.complete();
        batch
    }

    /// Whether no piece is in it.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether storing it would change nothing: it has no piece, and nothing was counted.
    pub fn is_void(&self) -> bool {
        self.is_empty() && self.ledger == Ledger::default()
    }

    /// The number of pieces.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Frees the memory that helps to add pieces, before the batch waits.
    pub fn complete(&mut self) {
        self.recently_added = RecentlyAdded::default();
    }

    /// How much memory the batch takes, except for what all batches share.
    pub fn memory(&self) -> usize {
        size_of::<Batch>()
            + held(&self.entries)
            + held(&self.bytes)
            + held(&self.terms)
            + held(&self.identities)
            + held(&self.names)
            + self.texts.capacity()
            + held(&self.recently_added.terms.0)
            + held(&self.recently_added.names.0)
    }

    /// Adds a piece. A piece without a trace id is left out; the caller must count it as lost.
    pub fn push(&mut self, piece: &Piece) {
        match piece {
            Piece::V1(span) => self.push_v1(&SpanView::of(span)),
            Piece::V2(span) => self.push_v2(&V2View::of(span)),
        }
    }

    /// Adds a v1 span by its view.
    pub fn push_v1(&mut self, view: &SpanView<'_>) {
        let high = view.trace_id_high.unwrap_or(0) as u64;
        let Some(trace) = TraceId::new(high, view.trace_id as u64) else { return };
        let begin = self.begin(COMPACT_V1);
        compact::v1::put(view, &mut self.bytes);
        let annotations = view.annotations.len() + view.binary_annotations.len();
        let identities = self.identities.len();
        let secret = Secret::of_process();
        self.identities.extend(identities_of(view).map(|of| identity_key(secret, trace, of)));
        let all_have_one = annotations > 0 && self.identities.len() - identities == annotations;
        let time = facts::of_v1(view, &mut self.looking(trace));
        self.finish(begin, trace, annotations, !all_have_one, time);
    }

    /// Adds a v2 span by its view.
    pub fn push_v2(&mut self, view: &V2View<'_>) {
        let Some(trace) = view.trace_id else { return };
        let begin = self.begin(COMPACT_V2);
        compact::v2::put(trace, view, &mut self.bytes);
        let time = facts::of_v2(view, &mut self.looking(trace));
        self.finish(begin, trace, view.annotations.len() + view.tags.len(), true, time);
    }

    /// Adds a stored piece, in whatever form it was stored; the result is the same as if the same span came again. False if it
    /// cannot be read.
    pub(super) fn push_stored(&mut self, body: &[u8]) -> bool {
        self.push_stored_view(body).is_some()
            || Piece::decode_body(body).is_ok_and(|piece| {
                self.push(&piece);
                true
            })
    }

    fn push_stored_view(&mut self, body: &[u8]) -> Option<()> {
        match body.split_first()? {
            (&COMPACT_V1, span) => self.push_v1(&compact::v1::read(span)?),
            (&COMPACT_V2, span) => self.push_v2(&compact::v2::read(span)?),
            (&TBINARY_V1, span) => {
                let mut view = SpanView::default();
                view.read(span, &STORED).then(|| self.push_v1(&view))?;
            }
            (&JSON_V2, list) => {
                let list = std::str::from_utf8(list).ok()?;
                let mut view = V2View::default();
                V2List::new(list).next(&mut view, &STORED)?;
                self.push_v2(&view);
            }
            _ => return None,
        }
        Some(())
    }

    /// Frees the bytes, and keeps what is known of the pieces.
    pub(super) fn shed(&mut self) {
        self.bytes.clear();
        if let Some(last) = self.entries.last_mut() {
            last.bytes = 0;
        }
    }

    fn begin(&mut self, form: u8) -> usize {
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(&[0; frame::HEAD_BYTES]);
        self.bytes.push(form);
        begin
    }

    fn finish(&mut self, begin: usize, trace: TraceId, annotations: usize, is_whole: bool, time: Time) {
        let sealed = &mut self.bytes[begin..];
        frame::seal(sealed);
        let body = &sealed[frame::HEAD_BYTES..];
        self.entries.push(Entry {
            trace,
            annotations: annotations as u32,
            whole: is_whole.then(|| Secret::of_process().stamp(body)),
            time,
            bytes: self.bytes.len(),
            terms: self.terms.len(),
            identities: self.identities.len(),
        });
    }

    fn looking(&mut self, trace: TraceId) -> Looking<'_> {
        let Batch { autocomplete_keys, terms, names, texts, recently_added, .. } = self;
        Looking {
            of_trace: recently_added.of_traces.hash_one(trace),
            autocomplete_keys,
            terms,
            names,
            texts,
            recently_added,
        }
    }

    /// The pieces, in order of arrival.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> {
        self.parts().filter_map(|part| Piece::decode(part.sealed).ok())
    }

    /// What is known of each piece.
    pub(super) fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        (0..self.entries.len()).map(|at| self.part(at))
    }

    /// What is known of one piece.
    pub(super) fn part(&self, at: usize) -> Part<'_> {
        let begin =
            |end: fn(&Entry) -> usize| at.checked_sub(1).map_or(0, |before| end(&self.entries[before]));
        let entry = &self.entries[at];
        Part {
            entry,
            sealed: &self.bytes[begin(|entry| entry.bytes)..entry.bytes],
            terms: &self.terms[begin(|entry| entry.terms)..entry.terms],
            identities: &self.identities[begin(|entry| entry.identities)..entry.identities],
        }
    }

    /// The terms of all pieces.
    pub(super) fn terms(&self) -> &[u64] {
        &self.terms
    }

    /// The names in the pieces: for each its kind, its owner (a service or a tag's key), and itself.
    pub(super) fn names(&self) -> impl Iterator<Item = (NameKind, &str, &str)> {
        let mut begin = 0;
        self.names.iter().map(move |name| {
            let of = &self.texts[begin..name.of];
            begin = name.end;
            (name.kind, of, &self.texts[name.of..name.end])
        })
    }
}

/// The bytes that a list holds, also those for items to come.
fn held<T>(list: &Vec<T>) -> usize {
    list.capacity() * size_of::<T>()
}

/// One piece of a batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part<'b> {
    pub(super) entry: &'b Entry,
    pub(super) sealed: &'b [u8],
    /// Its terms; nearly always without those that earlier pieces of the same trace in the batch have.
    pub(super) terms: &'b [u64],
    pub(super) identities: &'b [u128],
}

fn identities_of(view: &SpanView<'_>) -> impl Iterator<Item = (u64, u64)> {
    let events = view.annotations.iter().map(|a| (a.source, a.position));
    let all = events.chain(view.binary_annotations.iter().map(|b| (b.source, b.position)));
    all.filter_map(|(source, position)| identity(view.source, source, position))
}

/// The stamp of an identity within its trace.
fn identity_key(secret: &Secret, trace: TraceId, (source, position): (u64, u64)) -> u128 {
    let mut whence = [0; 24];
    for (place, number) in whence.chunks_exact_mut(8).zip([trace.low(), trace.high(), source]) {
        place.copy_from_slice(&number.to_ne_bytes());
    }
    u128::from(secret.half_stamp(&whence)) << 64 | u128::from(position)
}

/// Adds the terms and names of a piece to the batch, except those that were added just before.
struct Looking<'b> {
    of_trace: u64,
    autocomplete_keys: &'b [String],
    terms: &'b mut Vec<u64>,
    names: &'b mut Vec<Name>,
    texts: &'b mut String,
    recently_added: &'b mut RecentlyAdded,
}

impl Looking<'_> {
    fn name(&mut self, kind: NameKind, of: Named<'_>, name: Named<'_>) {
        if self.recently_added.names.is_new(name_number(kind, of.term, name.term)) {
            self.texts.push_str(of.text);
            let of = self.texts.len();
            self.texts.push_str(name.text);
            self.names.push(Name { kind, of, end: self.texts.len() });
        }
    }
}

impl Look for Looking<'_> {
    fn term(&mut self, term: u64) {
        if self.recently_added.terms.is_new(term ^ self.of_trace) {
            self.terms.push(term);
        }
    }

    fn service(&mut self, service: Named<'_>) {
        self.name(NameKind::Service, Named { text: "", term: 0 }, service);
    }

    fn span_name(&mut self, service: Named<'_>, name: Named<'_>) {
        self.name(NameKind::Span, service, name);
    }

    fn remote_service(&mut self, service: Named<'_>, remote: Named<'_>) {
        self.name(NameKind::RemoteService, service, remote);
    }

    fn tag(&mut self, key: Named<'_>, value: Named<'_>) {
        self.term(key.term);
        self.term(value.term);
        if self.autocomplete_keys.iter().any(|offered| offered == key.text) {
            self.name(NameKind::TagValue, key, value);
        }
    }
}

/// Terms and names that were added recently.
#[derive(Debug, Clone, Default)]
struct RecentlyAdded {
    terms: Recent,
    names: Recent,
    /// Makes the terms of each trace different, so that terms of one trace cannot hide those of another: a block that is read
    /// again has pieces of all senders.
    of_traces: RandomState,
}

/// A number for a name within its batch, made of the terms of its owner and of itself.
fn name_number(kind: NameKind, of: u64, name: u64) -> u64 {
    (of.rotate_left(32) ^ name).wrapping_add(kind as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Numbers that came recently, one for each value of their low bits. It may forget a number, but never takes a new one for known.
#[derive(Debug, Clone, Default)]
struct Recent(Vec<u64>);

const RECENT: usize = 512;

impl Recent {
    fn is_new(&mut self, number: u64) -> bool {
        if self.0.is_empty() {
            self.0.resize(RECENT, 0);
        }
        let place = &mut self.0[number as usize % RECENT];
        let is_new = *place != number;
        *place = number;
        is_new
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use blkin_thrift::Span as V1Span;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use xxhash_rust::xxh3::xxh3_64;

    use super::*;
    use crate::v2json;

    /// Two ids that were confused when they were distinguished by a multiplication with a public factor.
    #[test]
    fn each_trace_keeps_terms_equal_to_the_previous_traces() {
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
        let low = TraceId::new(0, 5).unwrap();
        let high = TraceId::new(5_u64.wrapping_mul(FACTOR).rotate_right(17), 0).unwrap();
        let mut batch = Batch::default();
        for id in [low, high] {
            let (trace_id, trace_id_high) = (id.low() as i64, Some(id.high() as i64));
            batch.push(&Piece::V1(V1Span {
                trace_id,
                trace_id_high,
                name: "read".to_owned(),
                ..V1Span::default()
            }));
        }
        assert_eq!(batch.part(0).terms, batch.part(1).terms);
        assert_eq!(batch.part(1).terms, [super::super::terms::span_name("read")]);
    }

    /// A piece with a service, a name, and so many annotations with an identity.
    fn piece_of(annotations: i64) -> Piece {
        let host = blkin_thrift::Endpoint { service_name: "osd.0".to_owned(), ..Default::default() };
        let annotation = |position| blkin_thrift::Annotation {
            source: Some(7),
            position: Some(position),
            host: Some(host.clone()),
            ..Default::default()
        };
        let annotations = (0..annotations).map(annotation).collect();
        Piece::V1(V1Span { trace_id: 1, name: "read".to_owned(), annotations, ..V1Span::default() })
    }

    #[test]
    fn memory_of_a_batch_covers_all_that_it_holds() {
        const ANNOTATIONS: usize = 10_000;
        let mut batch = Batch::default();
        batch.push(&piece_of(ANNOTATIONS as i64));
        assert_eq!(batch.identities.len(), ANNOTATIONS);
        assert!(!batch.terms.is_empty() && !batch.names.is_empty() && !batch.texts.is_empty());
        let lists = size_of_val(&*batch.identities) + size_of_val(&*batch.terms) + size_of_val(&*batch.names);
        let items = lists + batch.bytes.len() + batch.texts.len() + size_of_val(&*batch.entries);
        let memory = batch.memory();
        assert!(memory >= items + 2 * RECENT * size_of::<u64>(), "{memory} for items of {items}");
    }

    #[test]
    fn equal_names_of_several_services_are_all_kept_and_only_offered_tags() {
        let mut batch = Batch::new(["key".to_owned()].into());
        for service in ["a", "b"] {
            let json = format!(
                r#"[{{"traceId":"1","id":"2","name":"get","localEndpoint":{{"serviceName":"{service}"}},
                "tags":{{"key":"x","keys":"y"}}}}]"#
            );
            let span = v2json::read_list(json.as_bytes(), &STORED).unwrap().remove(0).unwrap();
            batch.push(&Piece::V2(span));
        }
        let names: Vec<_> = batch.names().collect();
        let expected = [
            (NameKind::Service, "", "a"),
            (NameKind::Span, "a", "get"),
            (NameKind::TagValue, "key", "x"),
            (NameKind::Service, "", "b"),
            (NameKind::Span, "b", "get"),
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn a_complete_batch_keeps_nothing_that_only_helps_to_add() {
        let mut batch = Batch::default();
        batch.push(&piece_of(1));
        let (before, pieces) = (batch.memory(), batch.pieces().collect::<Vec<_>>());
        batch.complete();
        assert_eq!(before - batch.memory(), 2 * RECENT * size_of::<u64>());
        assert_eq!(batch.pieces().collect::<Vec<_>>(), pieces);
    }

    /// Low and high half of a trace's id, source, position.
    type Whence = [u64; 4];

    fn key_of(secret: &Secret, [low, high, source, position]: Whence) -> u128 {
        identity_key(secret, TraceId::new(high, low).unwrap(), (source, position))
    }

    /// Numbers that are often equal or similar.
    fn alike() -> impl Strategy<Value = u64> {
        prop_oneof![4 => 1..4_u64, 2 => (0..64_u32).prop_map(|bit| 1 << bit), 1 => 1..=u64::MAX]
    }

    proptest! {
        #[test]
        fn identity_keys_differ_by_trace_source_and_position(
            whences in vec([alike(), alike(), alike(), alike()], 2..200),
        ) {
            let mut of_key: HashMap<u128, Whence> = HashMap::new();
            for whence in whences {
                let key = key_of(Secret::of_process(), whence);
                prop_assert_eq!(*of_key.entry(key).or_insert(whence), whence);
                prop_assert_eq!(key, key_of(Secret::of_process(), whence));
            }
        }
    }

    /// For 24 bytes, xxh3 multiplies the first two words and the last two, each mixed with a word of its secret. Anybody who
    /// knows these words can make both products zero, whatever the middle word is.
    #[test]
    fn identities_differ_where_the_default_secret_collides() {
        const USUAL: [u64; 2] = [0xbe4b_a423_396c_feb8, 0x1f67_b3b7_a4a4_4072];
        let [one, other] = [7, 8].map(|high| [USUAL[0], high, USUAL[1], 0]);
        let whence = |[low, high, source, _]: Whence| [low, high, source].map(u64::to_le_bytes).concat();
        assert_eq!(xxh3_64(&whence(one)), xxh3_64(&whence(other)));
        assert_ne!(key_of(Secret::of_process(), one), key_of(Secret::of_process(), other));
    }

    /// What a batch knows of its only piece.
    fn known_of(batch: &Batch) -> (Option<u128>, Vec<u64>, Vec<u128>, Time, Vec<u8>) {
        let part = batch.part(0);
        (
            part.entry.whole,
            part.terms.to_vec(),
            part.identities.to_vec(),
            part.entry.time,
            part.sealed.to_vec(),
        )
    }

    #[test]
    fn a_piece_stored_in_an_earlier_form_equals_a_new_copy() {
        let host = Some(blkin_thrift::Endpoint { service_name: "OSD.0".to_owned(), ..Default::default() });
        let event =
            blkin_thrift::Annotation { timestamp: 5, value: "sr".to_owned(), host, ..Default::default() };
        let v1 = V1Span { trace_id: 1, id: 2, annotations: vec![event], ..V1Span::default() };
        let tbinary = [&[TBINARY_V1], blkin_thrift::span::encode(&v1).as_slice()].concat();
        let mut now = Batch::default();
        now.push(&Piece::V1(v1));
        let mut stored = Batch::default();
        assert!(stored.push_stored(&tbinary) && known_of(&stored) == known_of(&now));
        // A plain name, and one with an escaped character, which no view reads.
        for name in ["Read", "a\\nb"] {
            let json = format!(
                r#"[{{"traceId":"1","id":"2","name":"{name}","localEndpoint":{{"serviceName":"s"}}}}]"#
            );
            let list = v2json::read_list(json.as_bytes(), &STORED).unwrap().remove(0);
            let (mut now, mut view) = (Batch::default(), V2View::default());
            match V2List::new(&json).next(&mut view, &STORED) {
                Some(_) => now.push_v2(&view),
                None => now.push(&Piece::V2(list.unwrap())),
            }
            let mut stored = Batch::default();
            assert!(stored.push_stored(&[&[JSON_V2], json.as_bytes()].concat()));
            assert!(known_of(&stored) == known_of(&now), "{name}");
        }
    }

    #[test]
    fn a_piece_that_is_read_back_and_stored_again_is_the_same() {
        let json =
            r#"[{"traceId":"1","id":"2","name":"Read","kind":"SERVER","timestamp":9,"tags":{"a":"b"}}]"#;
        let mut view = V2View::default();
        V2List::new(json).next(&mut view, &STORED).unwrap();
        let mut now = Batch::default();
        now.push_v2(&view);
        let mut again = Batch::default();
        assert!(
            again.push_stored(frame::open(now.part(0).sealed).unwrap()) && known_of(&again) == known_of(&now)
        );
        assert!(
            !again.push_stored(&[9, 1]) && !again.push_stored(&[]) && !again.push_stored(&[COMPACT_V1, 0])
        );
    }
}
