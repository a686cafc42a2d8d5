//! Turns bytes into batches: entries are read one by one, bad ones are counted and left out, the rest are sampled.
//!
//! An entry that cannot be read counts as one piece with one annotation, because its real number of annotations is unknown.

mod guess;
mod rejects;
mod sampler;
mod scribe;
mod skipped;

pub use rejects::{ALL_TRANSPORTS, MOST_RECENT, Reject, Rejects, Source, Transport};
pub use sampler::Sampler;
pub use skipped::Skipped;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use blkin_live::Shown;
use blkin_thrift::scribe::{ServiceStatus, Status, append_decoded};
use blkin_thrift::view::SpanView;
use blkin_thrift::{Limits, Span as V1Span};

use self::guess::{Advised, ReadAs, advice};
use crate::config::Config;
use crate::json::text_of;
use crate::ledger::{Count, Figure};
use crate::live::{Arrived, Live};
use crate::refusal::{BadEntry, Cause, Refusal};
use crate::settings::Settings;
use crate::store::writer::{Pending, Refused, Writer, now_ms};
use crate::store::{Batch, Piece};
use crate::v2view::{self, V2List, V2View};
use crate::{proto3, v1json, v2json};

/// Reads the spans that arrive by Scribe and HTTP.
pub struct Ingest {
    settings: Settings,
    writer: Writer,
    live: Live,
    rejects: Rejects,
    skipped: Skipped,
    alive_since: u64,
    autocomplete_keys: Arc<[String]>,
    refused: [AtomicU64; 3],
}

/// The length of a short span in v2 JSON, to estimate how many a body holds.
const V2_SPAN_BYTES: usize = 256;

/// A body of which nothing could be used.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct BadBody {
    reason: String,
    /// The cause of the first entry's refusal.
    pub cause: Cause,
}

/// A batch that waits for its commit, if it needs one, and that live viewers may have seen already.
pub struct Submitted {
    /// None if there is nothing to commit.
    pending: Option<Pending>,
    shown: Shown,
}

/// A batch, and whether anything of its body could be used.
pub type Sorted = (Batch, Result<(), BadBody>);

impl Ingest {
    /// An intake that reads as the settings say, hands batches to the writer and shows them to live viewers.
    pub fn new(settings: Settings, writer: Writer, live: Live) -> Self {
        let alive_since = now_ms() / 1000;
        let (rejects, skipped, refused) = Default::default();
        let autocomplete_keys = settings.now().autocomplete_keys.clone().into();
        Ingest { settings, writer, live, rejects, skipped, alive_since, autocomplete_keys, refused }
    }

    /// What was rejected, and why.
    pub fn rejects(&self) -> &Rejects {
        &self.rejects
    }

    /// Scribe entries of other categories, which were skipped.
    pub fn skipped(&self) -> &Skipped {
        &self.skipped
    }

    /// The data for answers to fb303 calls.
    pub fn fb303_status(&self) -> ServiceStatus {
        let ledger = self.writer.ledger();
        let counter = |name: &str, count: Count| (name.to_owned(), count.annotations as i64);
        ServiceStatus {
            name: "blkin-collector".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            status: Status::Alive,
            details: String::new(),
            alive_since: self.alive_since as i64,
            counters: vec![
                counter("received", ledger.received()),
                counter("stored", ledger.get(Figure::Stored)),
                counter("duplicate", ledger.get(Figure::Duplicate)),
            ],
        }
    }

    /// How many batches were given back to their senders for this cause. They are not in the ledger: the sender still has them.
    pub fn refused_batches(&self, cause: Refused) -> u64 {
        self.refused[cause as usize].load(Ordering::Relaxed)
    }

    /// Hands a batch to the store's thread, and shows it to live viewers. A batch that would change nothing in the store waits for
    /// nothing: an empty message must not cost a sync of the disk.
    ///
    /// # Errors
    /// When too much waits already, or the collector is stopping.
    pub fn submit(&self, mut batch: Batch) -> Result<Submitted, Refused> {
        if batch.is_void() {
            return Ok(Submitted { pending: None, shown: Shown::default() });
        }
        batch.complete();
        let arrived = self.live.is_watched().then(|| Arrived(batch.clone()));
        let pending = self.writer.submit(batch).inspect_err(|&cause| self.count_refused(cause))?;
        let shown = arrived.map_or_else(Shown::default, |arrived| self.live.offer(arrived));
        Ok(Submitted { pending: Some(pending), shown })
    }

    /// Waits until a batch is committed.
    ///
    /// # Errors
    /// When it is not committed; the sender then has to send it again.
    pub async fn committed(&self, submitted: Submitted) -> Result<(), Refused> {
        let Some(pending) = submitted.pending else { return Ok(()) };
        let committed = pending.committed().await;
        if let Err(cause) = committed {
            self.count_refused(cause);
            self.live.not_kept(submitted.shown);
        }
        committed
    }

    fn count_refused(&self, cause: Refused) {
        self.refused[cause as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Sorts the entries of a Scribe call, given as category and message. Entries of other categories are skipped.
    fn scribe_entries<'e>(
        &self,
        entries: impl ExactSizeIterator<Item = (&'e [u8], &'e [u8])>,
        frame_bytes: usize,
        source: Source,
    ) -> Batch {
        let mut sorting = Sorting::new(self, source);
        let config = sorting.config.clone();
        let limits = config.limits();
        // Base64 takes four bytes for three.
        let plain_bytes = frame_bytes / 4 * 3;
        sorting.batch.reserve(entries.len(), plain_bytes);
        let mut bytes = Vec::with_capacity(plain_bytes);
        let mut others: Option<(&[u8], u64)> = None;
        let wanted = entries.filter(|(category, _)| {
            let is_wanted = *category == config.scribe_category.as_bytes();
            if !is_wanted {
                others = Some((category, others.map_or(0, |(_, count)| count) + 1));
            }
            is_wanted
        });
        let spans: Vec<_> = wanted.map(|(_, message)| append_decoded(message, &mut bytes)).collect();
        if let Some((category, count)) = others {
            self.skipped.tell(category, count, &config.scribe_category);
        }
        let mut view = SpanView::default();
        for span in spans {
            match span {
                Ok(span) => sorting.encoded(&bytes[span], &mut view, &limits),
                Err(refusal) => sorting.malformed(&refusal),
            }
        }
        sorting.batch
    }

    /// The batch for a message that could not even be split into entries: it counts as one entry.
    pub fn broken(&self, refusal: &dyn Refusal, source: Source) -> Batch {
        self.broken_body(refusal, source).0
    }

    fn broken_body(&self, refusal: &dyn Refusal, source: Source) -> Sorted {
        let mut sorting = Sorting::new(self, source);
        sorting.malformed(refusal);
        sorting.finish()
    }

    /// A TBinary list of spans.
    pub fn v1_thrift(&self, body: &[u8], source: Source) -> Sorted {
        self.list((body, ReadAs::Thrift), source, blkin_thrift::span::decode_list, Sorting::v1_thrift)
    }

    /// Zipkin's v1 JSON.
    pub fn v1_json(&self, body: &[u8], source: Source) -> Sorted {
        self.list((body, ReadAs::Json), source, v1json::read_list, Sorting::v1_json)
    }

    /// Zipkin's v2 JSON.
    pub fn v2_json(&self, body: &[u8], source: Source) -> Sorted {
        let mut sorting = Sorting::new(self, source);
        if body.is_empty() {
            return sorting.finish();
        }
        let (text, limits) = (text_of(body), sorting.config.limits());
        let (mut list, mut view) = (V2List::new(&text), V2View::default());
        sorting.batch.reserve(body.len() / V2_SPAN_BYTES + 1, body.len());
        while list.next(&mut view, &limits).is_some() {
            sorting.v2_view(&view);
        }
        if list.is_whole() {
            return sorting.finish();
        }
        match v2view::entries(&text, &limits) {
            Ok(v2view::List { entries, excess }) => {
                let others = entries.into_iter().skip(list.read());
                others.for_each(|entry| sorting.v2_text(entry, &mut view, &limits));
                excess.iter().for_each(|refusal| sorting.malformed(refusal));
            }
            // A body that is not a list counts as one entry, even if entries at its beginning could be read.
            Err(refusal) => {
                let advice = advice(body, ReadAs::Json);
                return self.broken_body(&Advised { refusal: &refusal, advice }, source);
            }
        }
        sorting.finish()
    }

    /// Zipkin's v2 spans as protocol buffers.
    pub fn v2_proto3(&self, body: &[u8], source: Source) -> Sorted {
        self.list((body, ReadAs::Proto3), source, proto3::read_list, Sorting::v2_proto3)
    }

    /// Sorts the entries of a list; an empty body is an empty list, as in Zipkin.
    fn list<'a, T, E, L: Refusal>(
        &'a self,
        (body, read_as): (&[u8], ReadAs),
        source: Source,
        read: impl FnOnce(&[u8], &Limits) -> Result<Vec<Result<T, E>>, L>,
        sort: impl Fn(&mut Sorting<'a>, Result<T, E>),
    ) -> Sorted {
        let mut sorting = Sorting::new(self, source);
        if body.is_empty() {
            return sorting.finish();
        }
        sorting.advice = advice(body, read_as);
        match read(body, &sorting.config.limits()) {
            Ok(entries) => entries.into_iter().for_each(|entry| sort(&mut sorting, entry)),
            Err(refusal) => sorting.malformed(&refusal),
        }
        sorting.finish()
    }
}

/// Sorts entries into what is stored and what is counted as lost.
struct Sorting<'a> {
    ingest: &'a Ingest,
    config: Arc<Config>,
    sampler: Sampler,
    source: Source,
    batch: Batch,
    first_refusal: Option<BadBody>,
    /// What the sender should change, judging by the body's first bytes.
    advice: Option<&'static str>,
}

/// An annotation or tag without content, which is left out of an otherwise good span.
#[derive(Debug, thiserror::Error)]
#[error("failed to keep an annotation without time or value, or a tag without key or value")]
struct Empty;

impl Refusal for Empty {
    fn cause(&self) -> Cause {
        Cause::EmptyAnnotation
    }
}

impl<'a> Sorting<'a> {
    fn new(ingest: &'a Ingest, source: Source) -> Self {
        let config = ingest.settings.now();
        let sampler = Sampler::new(config.sample_rate);
        let batch = Batch::new(ingest.autocomplete_keys.clone());
        Sorting { ingest, config, sampler, source, batch, first_refusal: None, advice: None }
    }

    /// A span in TBinary.
    fn encoded<'b>(&mut self, span: &'b [u8], view: &mut SpanView<'b>, limits: &Limits) {
        if !view.read(span, limits) {
            return self.v1_thrift(blkin_thrift::span::decode(span, limits));
        }
        let annotations = view.annotations.len() + view.binary_annotations.len();
        if self.takes(view.debug, view.trace_id, Count::piece(annotations)) {
            self.batch.push_v1(view);
        }
    }

    /// A thrift span. Zipkin silently drops annotations and tags without content; here they are dropped too, but counted.
    fn v1_thrift(&mut self, span: Result<V1Span, blkin_thrift::Error>) {
        match span {
            Ok(span) => {
                let empty = span.left_out;
                self.piece(&Piece::V1(span), empty);
            }
            Err(refusal) => self.malformed(&refusal),
        }
    }

    fn v1_json(&mut self, span: Result<V1Span, BadEntry>) {
        match span {
            Ok(span) => self.piece(&Piece::V1(span), 0),
            Err(refusal) => self.malformed(&refusal),
        }
    }

    /// A span in v2 JSON.
    fn v2_text<'t>(&mut self, entry: &'t str, view: &mut V2View<'t>, limits: &Limits) {
        if !view.read(entry, limits) {
            return match v2json::read_one(entry, limits) {
                Ok(span) => self.piece(&Piece::V2(span), 0),
                Err(refusal) => self.malformed(&refusal),
            };
        }
        self.v2_view(view);
    }

    /// A span in v2 JSON that was read in place.
    fn v2_view(&mut self, view: &V2View<'_>) {
        let low = view.trace_id.map_or(0, |id| id.low() as i64);
        if self.takes(view.debug, low, Count::piece(view.annotations.len() + view.tags.len())) {
            self.batch.push_v2(view);
        }
    }

    fn v2_proto3(&mut self, entry: Result<proto3::Entry, BadEntry>) {
        match entry {
            Ok(proto3::Entry { span, empty }) => self.piece(&Piece::V2(span), empty),
            Err(refusal) => self.malformed(&refusal),
        }
    }

    fn malformed(&mut self, refusal: &dyn Refusal) {
        self.count(self.received(), Count::piece(1));
        self.count(Figure::Malformed, Count::piece(1));
        let refusal = Advised { refusal, advice: self.advice };
        let (reason, cause) = (refusal.to_string(), refusal.cause());
        self.first_refusal.get_or_insert(BadBody { reason, cause });
        self.ingest.rejects.tell(self.source, &refusal, 1);
    }

    /// A span, and how many annotations and tags without content were left out of it.
    fn piece(&mut self, piece: &Piece, empty: usize) {
        let (debug, low) = match piece {
            Piece::V1(span) => (span.debug, span.trace_id),
            Piece::V2(span) => (span.debug, span.trace_id.low() as i64),
        };
        if !self.takes(debug, low, Count::piece(piece.annotation_count() + empty)) {
            return;
        }
        if empty > 0 {
            self.count(Figure::Malformed, Count::annotations(empty));
            self.ingest.rejects.tell(self.source, &Empty, empty as u64);
        }
        self.batch.push(piece);
    }

    /// Counts a span that was read; returns whether sampling keeps it.
    fn takes(&mut self, debug: bool, low: i64, whole: Count) -> bool {
        self.count(self.received(), whole);
        let keeps = self.sampler.keeps(debug, low);
        if !keeps {
            self.count(Figure::SampledOut, whole);
        }
        keeps
    }

    fn received(&self) -> Figure {
        match self.source.transport {
            Transport::Scribe => Figure::ReceivedScribe,
            Transport::HttpV1 => Figure::ReceivedHttpV1,
            Transport::HttpV2 => Figure::ReceivedHttpV2,
        }
    }

    fn count(&mut self, figure: Figure, count: Count) {
        *self.batch.ledger.get_mut(figure) += count;
    }

    /// The body is bad if it held entries and none of them could be read.
    fn finish(self) -> Sorted {
        let received = self.batch.ledger.get(self.received()).spans;
        let malformed = self.batch.ledger.get(Figure::Malformed).spans;
        let result = match self.first_refusal {
            Some(refusal) if malformed == received => Err(refusal),
            _ => Ok(()),
        };
        (self.batch, result)
    }
}
