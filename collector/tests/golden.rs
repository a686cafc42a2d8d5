//! The rows of a store are kept under version control, and a decoder that shares no code with the collector reads them.
//! `BLKIN_BLESS=1 cargo test -p blkin-collector --test golden` writes them again; do that only for a new format version.
#![allow(clippy::unwrap_used, reason = "a check that cannot go on has failed")]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

use blkin_collector::ledger::{Count, Figure};
use blkin_collector::model::TraceId;
use blkin_collector::query::{Defaults, Parameters, SearchRequest};
use blkin_collector::store::disk::{Disk, FILE_NAME};
use blkin_collector::store::engine::Engine;
use blkin_collector::store::keys::FORMAT_VERSION;
use blkin_collector::store::memory::Memory;
use blkin_collector::store::{Batch, NameKind, Piece, Room, Store, TO_THE_END, TraceStore, Visited, Wanted};
use blkin_collector::v2json;
use blkin_thrift::{Annotation, AnnotationType, BinaryAnnotation, Endpoint, Span};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

const NOW_MS: u64 = 1_700_000_000_000;
const NOW_US: i64 = 1_700_000_000_000_000;
const DEFAULTS: Defaults = Defaults { now_ms: NOW_MS, max_traces: 10 };
const LOW: i64 = 0x1122_3344_5566_7788;

type Rows = Vec<(Vec<u8>, Vec<u8>)>;

fn osd() -> Option<Endpoint> {
    Some(Endpoint { ipv4: 0x0a00_0001, port: 6800, service_name: "osd.0".to_owned(), ipv6: None })
}

fn event(position: i64) -> Annotation {
    Annotation {
        timestamp: NOW_US + position,
        value: format!("event {position}"),
        host: osd(),
        position: Some(position),
        nanos: Some(789),
        ..Annotation::default()
    }
}

/// A piece as consumerd ships it: each annotation has an identity.
fn identified(positions: &[i64]) -> Piece {
    let key_value = BinaryAnnotation {
        key: "environment".to_owned(),
        value: b"test".to_vec(),
        kind: AnnotationType::String,
        host: osd(),
        position: Some(0x1_2345),
        source: Some(6),
    };
    Piece::V1(Span {
        trace_id: LOW,
        name: "Journal access".to_owned(),
        id: 2,
        parent_id: Some(1),
        annotations: positions.iter().copied().map(event).collect(),
        binary_annotations: vec![key_value],
        source: Some(5),
        ..Span::default()
    })
}

/// A piece from another tracer, without a parent, in a trace that shares its low 64 bits with another.
fn foreign() -> Piece {
    let plain =
        Annotation { timestamp: NOW_US - 7, value: "sr".to_owned(), host: osd(), ..Annotation::default() };
    Piece::V1(Span {
        trace_id: LOW,
        trace_id_high: Some(10),
        name: "read".to_owned(),
        id: 1,
        annotations: vec![plain],
        debug: true,
        timestamp: Some(NOW_US - 7),
        duration: Some(30),
        ..Span::default()
    })
}

/// The root of the first trace, which comes late and moves it in time.
fn root() -> Piece {
    let json = r#"[{"traceId":"1122334455667788","id":"1","kind":"CLIENT","name":"write","timestamp":1699999999999000,
        "duration":2000,"localEndpoint":{"serviceName":"ημερολόγιο","ipv6":"2001:db8::1","port":65535},
        "remoteEndpoint":{"serviceName":"osd.0"},"annotations":[{"timestamp":1699999999999500,"value":"sent"}],
        "tags":{"environment":"production","object":"rbd_data.1"}}]"#;
    Piece::V2(
        v2json::read_list(json.as_bytes(), &blkin_thrift::Limits::default()).unwrap().remove(0).unwrap(),
    )
}

fn batch(figure: Figure, pieces: Vec<Piece>) -> Batch {
    let mut batch = Batch::new(["environment".to_owned()].into());
    for piece in &pieces {
        *batch.ledger.get_mut(figure) += Count::piece(piece.annotation_count());
        batch.push(piece);
    }
    batch
}

fn fill<E: Engine>(store: &TraceStore<E>) {
    let first = batch(Figure::ReceivedScribe, vec![identified(&[1, 2]), foreign()]);
    store.commit(&[first], NOW_MS).unwrap();
    // From here on the index has a segment.
    store.freeze();
    store.upkeep(TO_THE_END).unwrap();
    // Two minutes later: one annotation is new, two are not; a whole piece is not; the root is.
    let again = batch(Figure::ReceivedHttpV1, vec![identified(&[2, 3 << 40]), foreign()]);
    let late = batch(Figure::ReceivedHttpV2, vec![root()]);
    store.commit(&[again, late], NOW_MS + 120_000).unwrap();
    // And another segment, in which one of the traces goes on.
    store.freeze();
    store.upkeep(TO_THE_END).unwrap();
    assert!(store.ledger().unwrap().balances());
}

/// The table's names and types are part of the format.
const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("rows");

/// All rows of the file after `work` with its store, read without the collector's own engine.
fn rows_on_disk(folder: &Path, work: impl FnOnce(&TraceStore<Disk>)) -> Rows {
    work(&TraceStore::new(Disk::open(folder, 1 << 20).unwrap()).unwrap());
    let database = Database::open(folder.join(FILE_NAME)).unwrap();
    let table = database.begin_read().unwrap().open_table(TABLE).unwrap();
    let rows = table.iter().unwrap().map(|row| row.unwrap());
    rows.map(|(key, value)| (key.value().to_vec(), value.value().to_vec())).collect()
}

fn hex(bytes: &[u8]) -> String {
    if bytes.is_empty() { "-".to_owned() } else { bytes.iter().map(|b| format!("{b:02x}")).collect() }
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.trim_matches('-').as_bytes();
    digits.chunks(2).map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap()).collect()
}

fn written() -> String {
    let folder = tempfile::tempdir().unwrap();
    rows_on_disk(folder.path(), fill)
        .iter()
        .map(|(key, value)| format!("{} {}\n", hex(key), hex(value)))
        .collect()
}

fn golden(end: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    folder.join(format!("store-v{FORMAT_VERSION}.{end}"))
}

/// The golden text; written again first, before any test reads it, if `BLKIN_BLESS` asks for that.
fn golden_text() -> String {
    static BLESSED: Once = Once::new();
    BLESSED.call_once(|| {
        if std::env::var_os("BLKIN_BLESS").is_some() {
            std::fs::write(golden("txt"), written()).unwrap();
            std::fs::write(golden("json"), decoded_by_python()).unwrap();
        }
    });
    std::fs::read_to_string(golden("txt")).unwrap()
}

fn rows_in(text: &str) -> Rows {
    let pairs = text.lines().map(|line| line.split_once(' ').unwrap());
    pairs.map(|(key, value)| (unhex(key), unhex(value))).collect()
}

fn decoded_by_python() -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/decode_store.py");
    let output = Command::new("python3").arg(script).arg(golden("txt")).output().expect("python3 runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("JSON is UTF-8")
}

#[test]
fn golden_rows_match_the_writer_and_an_independent_decoder() {
    assert_eq!(golden_text(), written());
    assert_eq!(std::fs::read_to_string(golden("json")).unwrap(), decoded_by_python());
}

#[test]
fn golden_rows_of_all_formats_read_back_what_was_stored() {
    for text in [golden_text(), earlier(5), earlier(4), earlier(3)] {
        reads_back_what_went_in(rows_in(&text));
    }
}

/// The same content in rows of an earlier format.
fn earlier(format: u8) -> String {
    std::fs::read_to_string(golden("txt").with_file_name(format!("store-v{format}.txt"))).unwrap()
}

fn reads_back_what_went_in(rows: Rows) {
    let engine = Memory::default();
    let put_all = &mut |to: &mut dyn blkin_collector::store::engine::Transaction| {
        rows.iter().try_for_each(|(key, value)| to.put(key, value))
    };
    engine.write(put_all).unwrap();
    let store = TraceStore::new(engine).unwrap();
    let read = |high| {
        let id = TraceId::new(high, LOW as u64).unwrap();
        store.trace(id, true, &mut Room::of(usize::MAX)).unwrap()
    };
    assert_eq!(read(10), [foreign()]);
    let pieces = read(0);
    assert_eq!((&pieces[0], &pieces[2]), (&identified(&[1, 2]), &root()));
    assert_eq!(pieces[1].annotation_count(), 1);
    assert_eq!(store.names(NameKind::Service, "").unwrap(), ["osd.0", "ημερολόγιο"]);
    assert_eq!(store.ledger().unwrap().get(Figure::Stored), store.count().unwrap());
    let mut found = Vec::new();
    let mut note = |trace: &Visited<'_>| {
        found.push(trace.id.high());
        Ok(ControlFlow::Continue(()))
    };
    store.traces_by_time(&Wanted::of_service(Some("osd.0")), 0..=u64::MAX, &mut note).unwrap();
    assert_eq!(found, [10, 0]);
    let mut none = |_: &Visited<'_>| panic!("no span is that long");
    let request =
        SearchRequest::read(&Parameters(vec![("minDuration".into(), "9000000000000".into())]), &DEFAULTS);
    store.traces_by_time(&Wanted::by(&request.unwrap()), 0..=u64::MAX, &mut none).unwrap();
}

#[test]
fn a_store_of_an_earlier_format_is_upgraded() {
    for (format, same_but_for_its_version) in [(3, 4), (4, 4), (5, 5)] {
        let mut brought = rows_in(&earlier(same_but_for_its_version));
        let version = brought.iter_mut().find(|(key, _)| key == b"V").unwrap();
        version.1 = vec![FORMAT_VERSION];
        let folder = tempfile::tempdir().unwrap();
        let database = Database::create(folder.path().join(FILE_NAME)).unwrap();
        let transaction = database.begin_write().unwrap();
        {
            let mut table = transaction.open_table(TABLE).unwrap();
            for (key, value) in rows_in(&earlier(format)) {
                table.insert(&*key, &*value).unwrap();
            }
        }
        transaction.commit().unwrap();
        drop(database);
        assert_eq!(rows_on_disk(folder.path(), |_| ()), brought, "format {format}");
    }
}

#[test]
fn pieces_of_an_earlier_format_are_recognised_as_duplicates() {
    let engine = Memory::default();
    let rows = rows_in(&earlier(4));
    engine.write(&mut |to| rows.iter().try_for_each(|(key, value)| to.put(key, value))).unwrap();
    let store = TraceStore::new(engine).unwrap();
    let before = store.count().unwrap();
    let again = batch(Figure::ReceivedScribe, vec![identified(&[1, 2, 3 << 40]), foreign(), root()]);
    store.commit(&[again], NOW_MS + 180_000).unwrap();
    assert_eq!(store.count().unwrap(), before);
}

#[test]
fn a_store_of_an_unknown_format_is_refused_with_advice() {
    let engine = Memory::default();
    engine.write(&mut |rows| rows.put(b"V", &[FORMAT_VERSION - 4])).unwrap();
    let refused = TraceStore::new(engine).err().unwrap().to_string();
    assert!(
        refused.contains("format 2, this collector knows 6") && refused.contains("--data-dir"),
        "{refused}"
    );
}
