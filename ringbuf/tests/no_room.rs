//! A record of any kind that finds no room is one attempt and one loss, and takes nothing from records that find room.

mod own;

use blkin_record::{CELLS_GRAINS, EndpointParts, GRAIN_BYTES, Payload, Source, names_word};
use blkin_ringbuf::Attachment;
use blkin_ringbuf::process::{
    self, Annotation, Place, Short, Status, declare, declare_endpoint, init, record, record_short,
    record_string,
};

const IDS: [u64; 3] = [1, 2, 0];
const PLACE: EndpointParts<'_> = EndpointParts { ip: b"", port: 1, name: b"service" };
/// 7 words of texts in each continuation grain.
const VALUE: &[u8] = &[b'v'; 50];

fn names() -> (u64, u32) {
    (names_word(declare(b"name"), declare_endpoint(&PLACE)), declare(b"key"))
}

fn event() {
    let (names, key) = names();
    record_short(&IDS, names, key, Short::Event, 4);
}

fn integer() {
    let (names, key) = names();
    record_short(&IDS, names, key, Short::Integer(3), 4);
}

fn string() {
    let (names, key) = names();
    record_string(&IDS, names, key, VALUE, 4);
}

fn with_texts() {
    let [name, key] = [Source::inline(&b"of many grains"[..]), Source::inline(&b"key of its own"[..])];
    let (endpoint, payload) = (Source::inline(PLACE), Payload::Str(&[b'v'; 150]));
    record(&Annotation {
        trace_id: 1,
        span_id: 2,
        parent_span_id: 0,
        name,
        endpoint,
        key,
        payload,
        level: 4,
    });
}

/// Strings whose first 32 bytes may be read.
static BLOCKS: [[u8; 32]; 4] = [
    *b"name\0...........................",
    *b"10.0.0.1\0.......................",
    *b"service\0........................",
    *b"event\0..........................",
];

fn in_cells() {
    let texts = BLOCKS.each_ref().map(|block| block.as_ptr());
    let place = Place { ip: texts[1], port: 1, service: texts[2] };
    // SAFETY: three words; strings with an end, each within 32 bytes.
    unsafe { process::record_in_cells(IDS.as_ptr(), &raw const place, texts) };
}

/// Each kind of record, with the grains that it takes at most.
const KINDS: [(fn(), u64); 5] =
    [(event, 1), (integer, 1), (string, 2), (in_cells, CELLS_GRAINS as u64), (with_texts, 6)];

/// By how much attempted, committed and full grew while `done` ran.
fn growth(program: &Attachment, done: impl FnOnce()) -> [u64; 3] {
    let figures = || program.counters();
    let before = figures();
    done();
    let after = figures();
    [after.attempted - before.attempted, after.committed - before.committed, after.full - before.full]
}

fn drain(program: &mut Attachment) -> u64 {
    let mut records = 0;
    for slot in 0..program.slots() {
        records += program.drain(slot, usize::MAX, &mut Vec::new()).records;
        program.publish(slot);
    }
    records
}

/// Makes records of this kind until one finds no room; returns how many found some.
fn fills(program: &Attachment, kind: fn()) -> u64 {
    let mut committed = 0;
    while growth(program, kind) == [1, 1, 0] {
        committed += 1;
    }
    committed
}

/// For a process with one thread that stays on its CPU, so that there is one ring.
fn check() {
    own::stay_on(|cpus| cpus[0]);
    assert_eq!(init(), Status::Tracing);
    let mut program = own::attach();
    for (kind, grains) in KINDS {
        let long = fills(&program, kind);
        assert!(grains > 1 || long == (program.info().ring_bytes / GRAIN_BYTES) as u64);
        let short = fills(&program, event);
        assert!(short < grains, "{short} grains were free");
        for _ in 0..100 {
            assert_eq!(growth(&program, kind), [1, 0, 1]);
        }
        assert_eq!(drain(&mut program), long + short);
        assert_eq!(growth(&program, kind), [1, 1, 0]);
        assert_eq!(drain(&mut program), 1);
    }
}

#[test]
fn a_record_without_room_leaves_free_grains_to_shorter_ones() {
    own::in_forked_child(check);
}

/// On other machines there is only one way of writing, and an emulator does not start a program again.
#[test]
#[cfg(target_arch = "x86_64")]
fn every_way_of_writing_leaves_free_grains_to_shorter_records() {
    own::run_again_by_each_way("a_record_without_room_leaves_free_grains_to_shorter_ones");
}
