//! A store whose file was damaged while the collector was not running: it starts without help, and acknowledged spans are there.

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use blkin_collector::ledger::{Count, Figure};
use blkin_collector::merge::Piece;
use blkin_collector::model::TraceId;
use blkin_collector::query::{self, Reading};
use blkin_collector::store::disk::{Disk, FILE_NAME};
use blkin_collector::store::{self, Batch, Store, StoreError, TO_THE_END, TraceStore};
use blkin_thrift::scribe::ResultCode;
use redb::{Database, ReadableTable, TableDefinition};

use crate::running::{Collector, Scribe, span, span_entry};

const TRACES: u64 = 400;
const READING: Reading =
    Reading { strict: true, max_bytes: 1 << 30, patience: std::time::Duration::from_secs(60) };

fn open(folder: &Path) -> TraceStore<Disk> {
    store::open(folder, 1 << 20, &Arc::default()).unwrap()
}

/// A store with a trace of each number up to [`TRACES`], and the bytes of its file.
pub(crate) fn filled(folder: &Path) -> Vec<u8> {
    let store = open(folder);
    for numbers in (1..=TRACES as i64).collect::<Vec<_>>().chunks(40) {
        let mut batch = Batch::default();
        for &number in numbers {
            let mut piece = span(number);
            piece.annotations[0].value = needle(number as u64);
            batch.push(&Piece::V1(piece));
            *batch.ledger.get_mut(Figure::ReceivedScribe) += Count::piece(2);
        }
        store.commit(&[batch], 1_700_000_000_000).unwrap();
        // Some of the index is in segments, some in memory only.
        if numbers.contains(&(TRACES as i64 / 2)) {
            store.freeze();
            store.upkeep(TO_THE_END).unwrap();
        }
    }
    drop(store);
    fs::read(folder.join(FILE_NAME)).unwrap()
}

pub(crate) fn needle(number: u64) -> String {
    format!("needle {number:05}")
}

pub(crate) fn write(folder: &Path, bytes: &[u8]) {
    fs::write(folder.join(FILE_NAME), bytes).unwrap();
}

/// How many traces are there; checks that each is as it was stored.
fn whole_traces(store: &dyn Store) -> u64 {
    let mut whole = 0;
    for number in 1..=TRACES {
        let spans = query::trace(store, TraceId::new(0, number).unwrap(), READING).unwrap().found;
        if let [span] = spans.as_slice() {
            assert_eq!(span.annotations[0].value, needle(number));
            whole += 1;
        }
    }
    whole
}

#[test]
fn only_the_damaged_piece_is_left_out_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = filled(folder.path());
    let wanted = needle(17).into_bytes();
    let found = places(&wanted, &bytes);
    assert!(!found.is_empty());
    found.iter().for_each(|&at| bytes[at] ^= 1);
    write(folder.path(), &bytes);
    let store = open(folder.path());
    assert_eq!((whole_traces(&store), store.damage().pieces(), store.damage().files()), (TRACES - 1, 1, 0));
    assert_eq!(store.count().unwrap().spans, TRACES - 1);
}

#[test]
fn a_file_without_its_header_is_set_aside_and_salvaged() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = filled(folder.path());
    bytes[..4096].fill(0);
    write(folder.path(), &bytes);
    let store = open(folder.path());
    assert_eq!(
        (whole_traces(&store), store.damage().files(), store.damage().salvaged()),
        (TRACES, 1, TRACES)
    );
    let ledger = store.ledger().unwrap();
    assert!(ledger.balances(), "{ledger:?}");
    assert_eq!((ledger.get(Figure::Stored).spans, ledger.get(Figure::Duplicate).spans), (TRACES, 0));
    drop(store);
    let store = open(folder.path());
    assert_eq!((whole_traces(&store), store.damage().files(), store.damage().salvaged()), (TRACES, 0, 0));
}

#[test]
fn a_file_set_aside_by_an_interrupted_start_is_salvaged() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path());
    fs::rename(folder.path().join(FILE_NAME), folder.path().join(format!("{FILE_NAME}.damaged-1"))).unwrap();
    let store = open(folder.path());
    assert_eq!(
        (whole_traces(&store), store.damage().files(), store.damage().salvaged()),
        (TRACES, 1, TRACES)
    );
}

/// The number of each needle in these bytes, and where it ends.
fn needle_ends(bytes: &[u8]) -> Vec<(u64, usize)> {
    let (text, length) = (b"needle ", needle(0).len());
    let of_place = |at: usize| {
        let number = bytes.get(at + text.len()..at + length)?;
        Some((str::from_utf8(number).ok()?.parse().ok()?, at + length))
    };
    places(text, bytes).into_iter().filter_map(of_place).collect()
}

/// Each piece that lies whole in what is left of the file is found, wherever that is.
#[test]
fn a_torn_file_yields_its_whole_pieces_and_a_balanced_ledger() {
    /// A piece is shorter than this.
    const PIECE_BYTES: usize = 256;
    let bytes = filled(tempfile::tempdir().unwrap().path());
    let needles = needle_ends(&bytes);
    let with_needle_before = |end| {
        let before = needles.iter().filter(|(_, needle_end)| *needle_end <= end);
        before.map(|(number, _)| *number).collect::<HashSet<u64>>().len() as u64
    };
    let recovered = [0, 1, 2, 3, 4, 5, 6, 7].map(|eighths| {
        let folder = tempfile::tempdir().unwrap();
        let length = bytes.len() / 8 * eighths;
        write(folder.path(), &bytes[..length]);
        let store = open(folder.path());
        let whole = whole_traces(&store);
        assert_eq!(whole, store.count().unwrap().spans);
        let ledger = store.ledger().unwrap();
        assert!(ledger.balances(), "{eighths} eighths: {ledger:?}");
        // A piece may end up to so many bytes behind its needle.
        let expected = with_needle_before(length.saturating_sub(PIECE_BYTES))..=with_needle_before(length);
        assert!(expected.contains(&whole), "{eighths} eighths: {whole} traces instead of {expected:?}");
        whole
    });
    assert!(recovered.is_sorted(), "more of the file must not yield less: {recovered:?}");
    assert_eq!(recovered[0], 0, "nothing is in an empty file");
    // The file grows ahead of what is written, so its pieces lie in its first part, except those written last or moved.
    assert!(recovered[7] > TRACES / 2, "most pieces lie in the first seven eighths: {recovered:?}");
}

#[test]
fn each_flipped_bit_costs_at_most_one_piece() {
    const FLIPS: u64 = 24;
    let folder = tempfile::tempdir().unwrap();
    let bytes = filled(folder.path());
    for round in 0..4 {
        let mut damaged = bytes.clone();
        let mut random: u64 = 0x9e37_79b9_7f4a_7c15 + round;
        for _ in 0..FLIPS {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (random >> 20) as usize % damaged.len();
            damaged[at] ^= 1 << (random % 8);
        }
        write(folder.path(), &damaged);
        // As if damage had been found while running: the start checks the whole file.
        fs::write(folder.path().join(format!("{FILE_NAME}.suspect")), b"").unwrap();
        let whole = whole_traces(&open(folder.path()));
        assert!(whole >= TRACES - FLIPS, "round {round}: {whole} of {TRACES}");
    }
}

/// Where each occurrence of these bytes begins.
pub(crate) fn places(of: &[u8], bytes: &[u8]) -> Vec<usize> {
    (0..bytes.len()).filter(|&at| bytes[at..].starts_with(of)).collect()
}

#[test]
fn a_damaged_index_loses_no_trace_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = filled(folder.path());
    // Only the index writes the two halves of an id one after the other.
    let in_index = [17_u64.to_be_bytes(), 0_u64.to_be_bytes()].concat();
    let found = places(&in_index, &bytes);
    assert!(!found.is_empty());
    found.iter().for_each(|&at| bytes[at] ^= 1);
    write(folder.path(), &bytes);
    let store = open(folder.path());
    let id = TraceId::new(0, 17).unwrap();
    let asked = query::trace(&store, id, READING);
    assert!(matches!(asked, Err(StoreError::Corrupted(_))), "{asked:?}");
    // The thread that commits must end, so that there is a next start.
    assert!(matches!(store.commit(&[Batch::default()], 1), Err(StoreError::Corrupted(_))));
    drop(store);
    // That start checks the whole file, sees that a page of it is damaged, and stores its pieces again.
    let store = open(folder.path());
    assert_eq!((whole_traces(&store), store.damage().pieces(), store.damage().files()), (TRACES, 0, 1));
    store.commit(&[Batch::default()], 1).unwrap();
}

#[test]
fn an_unreadable_index_is_rebuilt_at_once() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path());
    let file = Database::open(folder.path().join(FILE_NAME)).unwrap();
    let changed = file.begin_write().unwrap();
    let mut rows = changed.open_table(TableDefinition::<&[u8], &[u8]>::new("rows")).unwrap();
    let mut manifest = rows.get(b"M".as_slice()).unwrap().unwrap().value().to_vec();
    manifest[9] ^= 1;
    rows.insert(b"M".as_slice(), manifest.as_slice()).unwrap();
    drop(rows);
    changed.commit().unwrap();
    drop(file);
    let store = open(folder.path());
    assert_eq!((whole_traces(&store), store.damage().pieces()), (TRACES, 0));
    assert_eq!(store.index_size().segments, 0);
}

#[test]
fn nothing_is_acknowledged_after_the_data_folder_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let mut collector = Collector::start(folder.path());
    let mut scribe = Scribe::connect(collector.scribe);
    assert_eq!(scribe.log(&[span_entry(1)]).unwrap(), ResultCode::Ok);
    fs::remove_dir_all(folder.path().join("data")).unwrap();
    assert!(!matches!(scribe.log(&[span_entry(2)]), Ok(ResultCode::Ok)));
    assert!(!collector.wait().success(), "it must fail, so that its supervisor restarts it");
    let collector = Collector::start(folder.path());
    assert!(!collector.has_trace(1));
    assert_eq!(Scribe::connect(collector.scribe).log(&[span_entry(2)]).unwrap(), ResultCode::Ok);
    assert!(collector.has_trace(2));
}

#[test]
fn acknowledged_spans_survive_kill_9_and_a_damaged_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut collector = Collector::start(folder.path());
    let mut scribe = Scribe::connect(collector.scribe);
    for number in 1..=20 {
        assert_eq!(scribe.log(&[span_entry(number)]).unwrap(), ResultCode::Ok);
    }
    collector.signal("-KILL");
    collector.wait();
    let file = File::options().write(true).open(folder.path().join("data").join(FILE_NAME)).unwrap();
    file.write_all_at(&[0x55; 512], 0).unwrap();
    let collector = Collector::start(folder.path());
    assert!((1..=20).all(|number| collector.has_trace(number)));
    let (_, metrics) = collector.get("/metrics");
    for line in ["blkin_collector_damaged_files_total 1", "blkin_collector_salvaged_spans_total 20"] {
        assert!(metrics.contains(line), "{metrics}");
    }
    assert_eq!(collector.ledger()["spans"]["stored"], 20);
}
