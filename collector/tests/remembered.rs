//! Remembered times between annotations take about the memory that they may, even if each group has only one time.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::time::Duration;

use blkin_collector::merge::Piece;
use blkin_collector::model::{Annotation, Endpoint, Span, SpanId, TraceId};
use blkin_collector::query::{IntervalRequest, Reading, RememberedTimes, intervals};
use blkin_collector::store::memory::Memory;
use blkin_collector::store::{Batch, Store, TraceStore};

const MOST_BYTES: usize = 16 << 20;

/// The number of annotations; each pair of them is a question.
const MARKS: usize = 600;

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let told = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.strip_suffix("kB")).unwrap();
    told.trim().parse::<usize>().unwrap() << 10
}

fn store() -> TraceStore<Memory> {
    let store = TraceStore::new(Memory::default()).unwrap();
    let mut batch = Batch::default();
    batch.push(&Piece::V2(Span {
        timestamp: Some(1),
        local_endpoint: Some(Endpoint::service("osd.0")),
        annotations: (0..MARKS).map(|mark| Annotation::new(1 + mark as i64, mark.to_string())).collect(),
        ..Span::new(TraceId::new(0, 1).unwrap(), SpanId::new(1).unwrap())
    }));
    store.commit(&[batch], 1).unwrap();
    store
}

#[test]
fn many_small_remembered_answers_stay_within_the_memory_limit() {
    let (store, remembered) = (store(), RememberedTimes::default());
    let reading = Reading { strict: true, max_bytes: 1 << 20, patience: Duration::from_secs(600) };
    let before = resident_bytes();
    for to in 1..MARKS {
        for from in 0..to {
            let request = IntervalRequest {
                from: from.to_string(),
                to: to.to_string(),
                service: None,
                span_name: None,
                window_us: 1..=1,
            };
            let measured = intervals(&store, &request, reading, &remembered).unwrap().found;
            assert_eq!(measured.services[0].max_us, (to - from) as u64);
        }
    }
    let taken = resident_bytes() - before;
    assert!(taken < 2 * MOST_BYTES, "{taken}");
}
