//! Changes rows of a store's index, and gives each the right checksum. Whatever the rows contain, they must be refused or
//! believed in little time and memory; and a rebuilt index must find every trace again.
//!
//! The input first says what is done with the store. Then comes a list of changes: which row, how, how many bytes, and the bytes.
#![no_main]

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use blkin_collector::merge::Piece;
use blkin_collector::model::TraceId;
use blkin_collector::query::{Defaults, Parameters, SearchRequest};
use blkin_collector::store::engine::{Engine, Snapshot, Work};
use blkin_collector::store::memory::Memory;
use blkin_collector::store::{
    Batch, Damage, Retention, Room, Store, StoreError, TO_THE_END, TraceStore, Wanted,
};
use blkin_thrift::{Annotation, Endpoint, Span};
use libfuzzer_sys::fuzz_target;
use xxhash_rust::xxh3::xxh3_64;

/// One segment less than are merged.
const SEGMENTS: u64 = 7;
const TRACES_EACH: u64 = 2;
const TRACES: u64 = SEGMENTS * TRACES_EACH;
/// So large that no head becomes a segment because of its size.
const MANY: u64 = 1 << 20;
const CHECKSUM_BYTES: usize = 8;
/// Bytes of a chunk's key: the column is followed by the number of the chunk.
const CHUNK_KEY_BYTES: usize = 14;

/// Rows that outlive a store, and whether they were found damaged.
#[derive(Clone, Default)]
struct Rows {
    rows: Arc<Memory>,
    is_suspect: Arc<AtomicBool>,
}

impl Engine for Rows {
    fn read(&self) -> Result<Box<dyn Snapshot + '_>, StoreError> {
        self.rows.read()
    }
    fn write(&self, work: Work<'_>) -> Result<(), StoreError> {
        self.rows.write(work)
    }
    fn was_suspect(&self) -> bool {
        self.is_suspect.load(Ordering::Acquire)
    }
    fn distrust(&self) {
        self.is_suspect.store(true, Ordering::Release);
    }
    fn damage(&self) -> &Damage {
        self.rows.damage()
    }
}

type Row = (Vec<u8>, Vec<u8>);

/// The rows that a store has written: its index, and all others.
static WRITTEN: LazyLock<(Vec<Row>, Vec<Row>)> = LazyLock::new(|| {
    let engine = Rows::default();
    let store = open(&engine);
    for segment in 0..SEGMENTS {
        let first = segment * TRACES_EACH;
        // Begins with a trace of the batch before, which goes on with another span.
        store.commit(&[batch(first.max(1)..=first + TRACES_EACH, segment)], segment).expect("a store in memory");
        store.freeze();
        store.upkeep(TO_THE_END).expect("a store in memory");
    }
    let mut rows = Vec::new();
    let mut take = |key: &[u8], value: &[u8]| {
        rows.push((key.to_vec(), value.to_vec()));
        Ok(ControlFlow::Continue(()))
    };
    engine.read().and_then(|all| all.scan(&[], &[], &mut take)).expect("rows in memory");
    rows.into_iter().partition(|(key, _)| matches!(key[0], b'M' | b'X'))
});

/// Starts the store, and once more if the first start finds damage.
fn open(engine: &Rows) -> TraceStore<Rows> {
    let start = || TraceStore::with_small_segments(engine.clone(), MANY);
    match start() {
        Err(StoreError::Corrupted(_)) => start().expect("a rebuilt index"),
        started => started.expect("rows in memory"),
    }
}

/// A span of each trace, by the number of their batch.
fn batch(traces: impl IntoIterator<Item = u64>, number: u64) -> Batch {
    let mut batch = Batch::default();
    for trace in traces {
        let host = Some(Endpoint { service_name: "a".to_owned(), ..Endpoint::default() });
        let annotation = Annotation { timestamp: 5, value: "a".to_owned(), host, ..Annotation::default() };
        batch.push(&Piece::V1(Span {
            trace_id: trace as i64,
            trace_id_high: Some((trace % 4 / 2) as i64),
            id: 1 + number as i64,
            name: "a".to_owned(),
            annotations: vec![annotation],
            timestamp: Some(1000 + (trace % 5) as i64),
            ..Span::default()
        }));
    }
    batch
}

fn id(trace: u64) -> TraceId {
    TraceId::new(trace % 4 / 2, trace).expect("a number above zero")
}

/// Makes the changes that an input asks for.
fn changed(mut input: &[u8]) -> Vec<Row> {
    let mut rows = WRITTEN.0.clone();
    while let Some(([row, how, length], rest)) = input.split_first_chunk() {
        let (bytes, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        input = rest;
        let (key, value) = &rows[usize::from(*row) % rows.len()];
        let mut key = key.clone();
        let mut body = value[CHECKSUM_BYTES..].to_vec();
        match how % 4 {
            0 => body = bytes.to_vec(),
            1 => body.extend_from_slice(bytes),
            2 => {
                let at = usize::from(how / 4);
                body.iter_mut().skip(at).zip(bytes).for_each(|(byte, change)| *byte ^= change);
            }
            // Another chunk of a column.
            _ if key.len() == CHUNK_KEY_BYTES => {
                key[CHUNK_KEY_BYTES - 1] = how / 4;
                body = bytes.to_vec();
            }
            _ => {}
        }
        rows.push((key, [&xxh3_64(&body).to_be_bytes(), body.as_slice()].concat()));
    }
    rows
}

fn engine_with(index: &[Row]) -> Rows {
    let engine = Rows::default();
    let mut put = WRITTEN.1.iter().chain(index);
    engine.write(&mut |to| put.try_for_each(|(key, value)| to.put(key, value))).expect("rows in memory");
    engine
}

/// Searches: with as many conditions as possible, with some, and with none.
static SEARCHES: LazyLock<[Wanted; 3]> = LazyLock::new(|| {
    let pairs = [("serviceName", "a"), ("spanName", "a"), ("annotationQuery", "a")];
    let parameters = Parameters(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec());
    let request = SearchRequest::read(&parameters, &Defaults { now_ms: 1_700_000_000_000, max_traces: 100 });
    [Wanted::by(&request.expect("a search")), Wanted::of_service(Some("a")), Wanted::default()]
});

/// Reads everything; the answers may be wrong, because the index is.
fn read(store: &dyn Store) {
    for trace in 1..=TRACES {
        let _refused = store.trace(id(trace), trace % 3 != 0, &mut Room::of(1 << 20));
    }
    let _bytes = store.index_size();
    for wanted in SEARCHES.iter() {
        for window in [0..=u64::MAX, 1001..=1002] {
            let _refused = store.traces_by_time(wanted, window, &mut |_| Ok(ControlFlow::Continue(())));
        }
    }
}

/// Makes the store add to what it found. With the new segment there are as many as are merged.
fn go_on(store: &TraceStore<Rows>) {
    let _refused = store.commit(&[batch(TRACES - 2..=TRACES + 2, SEGMENTS)], 10);
    store.freeze();
    let _refused = store.upkeep(TO_THE_END);
}

/// Makes all traces expire.
fn expire(store: &dyn Store) {
    let _refused = store.expire(&Retention { max_age_ms: 1, max_bytes: 0 }, 1000);
    let _refused = store.upkeep(TO_THE_END);
}

fn find_all(store: &dyn Store) {
    for trace in 1..=TRACES {
        let pieces = store.trace(id(trace), true, &mut Room::of(usize::MAX)).expect("a rebuilt index");
        assert!(!pieces.is_empty(), "trace {trace} is lost");
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((what, input)) = input.split_first() else { return };
    let engine = engine_with(&changed(input));
    match what % 4 {
        0 => read(&open(&engine)),
        1 => go_on(&open(&engine)),
        2 => expire(&open(&engine)),
        _ => {
            engine.distrust();
            find_all(&open(&engine));
        }
    }
});
