//! From bytes to batches: entries are read one by one, the bad ones counted and left out, the rest sampled.
//!
//! An entry that cannot be read counts as one piece with one annotation, because nothing better is known of it.

mod reject_log;
mod sampler;
mod scribe;

pub use sampler::Sampler;

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};

use blkin_thrift::scribe::{LogEntry, ServiceStatus, Status, decode_message};
use blkin_thrift::{Limits, Span as V1Span};

use crate::ledger::{Count, Figure};
use crate::store::writer::{Pending, Refused, Writer, now_ms};
use crate::store::{Batch, Piece};
use crate::{v1json, v2json};
use reject_log::RejectLog;

/// Memory that a piece takes beside its bytes on the wire, roughly.
const PIECE_OVERHEAD_BYTES: usize = 512;

/// Reads what arrives, by whatever road.
pub struct Ingest {
    limits: Limits,
    sampler: Sampler,
    scribe_category: String,
    writer: Writer,
    rejects: RejectLog,
    alive_since: u64,
    refused: [AtomicU64; 3],
}

/// A body of which nothing could be used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadBody(String);

impl Ingest {
    /// Reads within limits and hands batches to the writer.
    pub fn new(limits: Limits, sampler: Sampler, scribe_category: String, writer: Writer) -> Self {
        let alive_since = now_ms() / 1000;
        let (rejects, refused) = (RejectLog::default(), Default::default());
        Ingest { limits, sampler, scribe_category, writer, rejects, alive_since, refused }
    }

    /// What fb303's questions are answered from.
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

    /// Batches that were given back to their senders, by cause. They are not part of the ledger: the sender has them.
    pub fn refused_batches(&self, cause: Refused) -> u64 {
        self.refused[cause as usize].load(Ordering::Relaxed)
    }

    /// Hands a batch to the store's thread.
    ///
    /// # Errors
    /// When too much waits already, or the collector is stopping.
    pub fn submit(&self, batch: Batch) -> Result<Pending, Refused> {
        self.writer.submit(batch).inspect_err(|&cause| self.count_refused(cause))
    }

    /// Waits until a batch is committed.
    ///
    /// # Errors
    /// When it is not, and the sender has to send it again.
    pub async fn committed(&self, pending: Pending) -> Result<(), Refused> {
        pending.committed().await.inspect_err(|&cause| self.count_refused(cause))
    }

    fn count_refused(&self, cause: Refused) {
        self.refused[cause as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The entries of a Scribe call; those of other categories are skipped, as Zipkin does.
    pub fn scribe_entries(&self, entries: &[LogEntry]) -> Batch {
        let mut sorting = Sorting::new(self, Figure::ReceivedScribe);
        for entry in entries.iter().filter(|entry| entry.category == self.scribe_category) {
            let span = decode_message(&entry.message, &self.limits);
            sorting.v1(span, entry.message.len());
        }
        sorting.batch
    }

    /// A Scribe call that could not be read.
    pub fn bad_scribe_call(&self, reason: &dyn Display) -> Batch {
        let mut sorting = Sorting::new(self, Figure::ReceivedScribe);
        sorting.malformed(reason);
        sorting.batch
    }

    /// A TBinary list of spans.
    ///
    /// # Errors
    /// When nothing of it can be used; the batch then holds the count of the loss.
    pub fn v1_thrift(&self, body: &[u8]) -> (Batch, Result<(), BadBody>) {
        let mut sorting = Sorting::new(self, Figure::ReceivedHttpV1);
        match blkin_thrift::span::decode_list(body, &self.limits) {
            Ok(spans) => {
                let bytes = body.len() / spans.len().max(1);
                spans.into_iter().for_each(|span| sorting.v1(span, bytes));
            }
            Err(error) => sorting.malformed(&error),
        }
        sorting.finish()
    }

    /// Zipkin's v1 JSON.
    ///
    /// # Errors
    /// As [`Ingest::v1_thrift`].
    pub fn v1_json(&self, body: &[u8]) -> (Batch, Result<(), BadBody>) {
        let mut sorting = Sorting::new(self, Figure::ReceivedHttpV1);
        match v1json::read_list(body) {
            Ok(spans) => {
                let bytes = body.len() / spans.len().max(1);
                spans.into_iter().for_each(|span| sorting.v1(span, bytes));
            }
            Err(error) => sorting.malformed(&error),
        }
        sorting.finish()
    }

    /// Zipkin's v2 JSON.
    ///
    /// # Errors
    /// As [`Ingest::v1_thrift`].
    pub fn v2_json(&self, body: &[u8]) -> (Batch, Result<(), BadBody>) {
        let mut sorting = Sorting::new(self, Figure::ReceivedHttpV2);
        match v2json::read_list(body) {
            Ok(spans) => {
                let bytes = body.len() / spans.len().max(1);
                for span in spans {
                    match span {
                        Ok(span) => sorting.piece(Piece::V2(span), bytes),
                        Err(error) => sorting.malformed(&error),
                    }
                }
            }
            Err(error) => sorting.malformed(&error),
        }
        sorting.finish()
    }
}

/// Sorts entries into what is stored and what is counted as lost.
struct Sorting<'a> {
    ingest: &'a Ingest,
    received: Figure,
    batch: Batch,
    first_reason: Option<String>,
}

impl<'a> Sorting<'a> {
    fn new(ingest: &'a Ingest, received: Figure) -> Self {
        Sorting { ingest, received, batch: Batch::default(), first_reason: None }
    }

    fn v1<E: Display>(&mut self, span: Result<V1Span, E>, bytes: usize) {
        match span {
            Ok(span) => self.piece(Piece::V1(span), bytes),
            Err(error) => self.malformed(&error),
        }
    }

    fn malformed(&mut self, reason: &dyn Display) {
        self.count(self.received, Count::piece(1));
        self.count(Figure::Malformed, Count::piece(1));
        self.first_reason.get_or_insert_with(|| reason.to_string());
        self.ingest.rejects.tell(reason);
    }

    fn piece(&mut self, mut piece: Piece, bytes: usize) {
        self.count(self.received, Count::piece(piece.annotation_count()));
        if !self.ingest.sampler.keeps(&piece) {
            return self.count(Figure::SampledOut, Count::piece(piece.annotation_count()));
        }
        let empty = remove_empty_annotations(&mut piece);
        if empty > 0 {
            self.count(Figure::Malformed, Count::annotations(empty));
            self.ingest.rejects.tell(&"an annotation without a time or a value");
        }
        self.batch.bytes += bytes + PIECE_OVERHEAD_BYTES;
        self.batch.pieces.push(piece);
    }

    fn count(&mut self, figure: Figure, count: Count) {
        *self.batch.ledger.get_mut(figure) += count;
    }

    /// The body is bad if there was something in it, and nothing of that could be read.
    fn finish(self) -> (Batch, Result<(), BadBody>) {
        let received = self.batch.ledger.get(self.received).spans;
        let malformed = self.batch.ledger.get(Figure::Malformed).spans;
        let result = match self.first_reason {
            Some(reason) if malformed == received => Err(BadBody(reason)),
            _ => Ok(()),
        };
        (self.batch, result)
    }
}

/// Zipkin drops a v1 annotation without time or value; so do we, but counted.
fn remove_empty_annotations(piece: &mut Piece) -> usize {
    let Piece::V1(span) = piece else { return 0 };
    let before = span.annotations.len();
    span.annotations.retain(|annotation| annotation.timestamp != 0 && !annotation.value.is_empty());
    before - span.annotations.len()
}
