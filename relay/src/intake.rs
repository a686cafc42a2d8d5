//! Handles Scribe calls: answers `OK` once the entries are durable in the spool, and `TRY_LATER` if they are not, so that the
//! client keeps them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use blkin_live::Shown;
use blkin_scribe::server::{Answer, Service};
use blkin_thrift::scribe::{
    ExceptionKind, Method, RawEntry, ResultCode, ServiceStatus, Status, annotation_count, encode_exception,
    encode_log_reply, parse_call, skim_log,
};
use blkin_thrift::{Error, Limits};

use crate::live::{Arrived, Live};
use crate::loop_detector::{LoopDetector, Sightings};
use crate::spool::writer::{Pending, Writer};
use crate::spool::{Draft, Spool};

/// Counts the annotations of entries.
#[derive(Debug, Clone)]
pub struct Counter {
    /// Entries of this category are spans; the relay cannot look for annotations in others.
    category: String,
    limits: Limits,
}

impl Counter {
    /// Counts the annotations in entries of one category.
    pub fn new(category: &str, limits: Limits) -> Self {
        Counter { category: category.to_owned(), limits }
    }

    fn is_span(&self, entry: &RawEntry<'_>) -> bool {
        entry.category == self.category.as_bytes()
    }

    /// The number of annotations in an entry, without decoding it. An entry that should be a span and is not counts as one
    /// annotation, as in the collector. `scratch` is memory that is reused between calls.
    pub fn annotations(&self, entry: &RawEntry<'_>, scratch: &mut Vec<u8>) -> u64 {
        if !self.is_span(entry) {
            return 0;
        }
        annotation_count(entry.message, scratch, &self.limits).map_or(1, |count| count as u64)
    }
}

/// Puts calls into the spool.
pub struct Intake {
    spool: Arc<Spool>,
    writer: Writer,
    counter: Counter,
    live: Live,
    loop_detector: Arc<LoopDetector>,
    limits: Limits,
    alive_since: i64,
}

impl Intake {
    /// Accepts calls within `limits`. The spool's thread runs as long as this lives.
    pub fn new(
        spool: Arc<Spool>,
        writer: Writer,
        counter: Counter,
        live: Live,
        loop_detector: Arc<LoopDetector>,
        limits: Limits,
    ) -> Self {
        let alive_since =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        Intake { spool, writer, counter, live, loop_detector, limits, alive_since }
    }

    fn draft(&self, entries: &[RawEntry<'_>]) -> Draft {
        let mut scratch = Vec::new();
        let mut draft = Draft::default();
        for entry in entries {
            draft.push(entry.bytes, self.counter.annotations(entry, &mut scratch));
        }
        draft
    }

    fn show(&self, frame: &[u8], entries: u64) -> Shown {
        if !self.live.is_watched() {
            return Shown::default();
        }
        let (category, limits) = (self.counter.category.clone(), self.limits);
        self.live.offer(Arrived { frame: frame.to_vec(), entries, category, limits })
    }

    fn status(&self) -> ServiceStatus {
        let figures = self.spool.figures();
        let count = |name: &str, entries: u64| (name.to_owned(), entries as i64);
        ServiceStatus {
            name: "blkin-relay".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            status: Status::Alive,
            details: String::new(),
            alive_since: self.alive_since,
            counters: vec![
                count("received", figures.arrived.received.entries),
                count("accepted", figures.arrived.accepted.entries),
            ],
        }
    }

    /// Handles everything except a `Log` call that can be read.
    fn other_call<P>(&self, frame: &[u8]) -> Result<Answer<P>, Error> {
        let call = match parse_call(frame, &self.limits) {
            Ok(call) => call,
            Err(bad) => {
                self.spool.count_malformed();
                let Some(reply) = bad.reply else { return Err(bad.cause) };
                return Ok(Answer::Unreadable { reply, reason: bad.cause.to_string() });
            }
        };
        Ok(match &call.method {
            Method::Fb303(_) => Answer::Ready(self.status().answer(&call).unwrap_or_default()),
            Method::Unknown(_) => Answer::Ready(call.unknown_method_reply().unwrap_or_default()),
            Method::Log(_) => {
                self.spool.count_malformed();
                let reason = "failed to split the call into its entries".to_owned();
                let reply = encode_exception("Log", call.seq, ExceptionKind::ProtocolError, &reason);
                Answer::Unreadable { reply, reason }
            }
        })
    }
}

/// A call that is on its way into the spool.
pub struct Waiting {
    pending: Pending,
    shown: Shown,
    sightings: Sightings,
}

impl Service for Intake {
    /// None if the client has to send the call again later.
    type Pending = Option<Waiting>;

    fn call(&self, frame: &[u8], _: SocketAddr) -> Result<Answer<Self::Pending>, Error> {
        let Some(log) = skim_log(frame, &self.limits) else {
            return self.other_call(frame);
        };
        let draft = self.draft(&log.entries);
        if draft.is_empty() {
            let reply = if log.wants_reply { encode_log_reply(log.seq, ResultCode::Ok) } else { Vec::new() };
            return Ok(Answer::Ready(reply));
        }
        let entries = draft.count.entries;
        let pending = self.writer.submit(draft).ok().map(|pending| Waiting {
            pending,
            shown: self.show(frame, entries),
            sightings: self
                .loop_detector
                .look(log.entries.iter().filter(|entry| self.counter.is_span(entry))),
        });
        Ok(Answer::Later { seq: log.seq, wants_reply: log.wants_reply, pending })
    }

    async fn settled(&self, pending: Self::Pending) -> ResultCode {
        let Some(Waiting { pending, shown, sightings }) = pending else { return ResultCode::TryLater };
        match self.writer.durable(pending).await {
            Ok(()) => {
                self.loop_detector.commit_sightings(sightings);
                ResultCode::Ok
            }
            Err(_) => {
                self.live.not_kept(shown);
                ResultCode::TryLater
            }
        }
    }
}
