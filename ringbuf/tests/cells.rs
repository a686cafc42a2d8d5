//! Events in cells: each text is recorded as it was, with nothing of what lies past it; texts that are too long go another way.

mod guarded;
mod own;

use blkin_record::{
    ADDRESS_CELL, CELL_BYTES, CELLS_GRAINS, Endpoint, EndpointRef, GRAIN_BYTES, KEY_CELLS, NAME_CELL, Record,
    SERVICE_CELL, Text, records,
};
use blkin_ringbuf::Attachment;
use blkin_ringbuf::process::{self, Place, Status, init};
use guarded::GuardedPage;

/// What a call says: name, address, service and key.
type Texts = [String; 4];

/// A string that ends `after` bytes before the page's end.
fn string(page: &GuardedPage, text: &str, after: usize) -> *const u8 {
    page.put(&[text.as_bytes(), &[0]].concat(), after)
}

struct Program {
    attachment: Attachment,
    pages: [GuardedPage; 4],
}

impl Program {
    fn new() -> Program {
        assert_eq!(init(), Status::Tracing);
        Program { attachment: own::attach(), pages: std::array::from_fn(|_| GuardedPage::new()) }
    }

    /// Records an event and returns what is in the rings then.
    fn record(&mut self, texts: &Texts, key_after: usize) -> Vec<u8> {
        let after = [CELL_BYTES, CELL_BYTES, CELL_BYTES, key_after];
        let at: [_; 4] =
            std::array::from_fn(|number| string(&self.pages[number], &texts[number], after[number]));
        let place = Place { ip: at[1], port: 6800, service: at[2] };
        // SAFETY: three words; strings with an end, whose first blocks each lie in one page.
        unsafe { process::record_in_cells([7, 8, 9].as_ptr(), &raw const place, at) };
        let mut raw = Vec::new();
        for slot in 0..self.attachment.slots() {
            self.attachment.drain(slot, usize::MAX, &mut raw);
            self.attachment.publish(slot);
        }
        raw
    }

    fn check(&self, record: &Record<'_>, texts: &Texts) {
        let text = |text: &Text<'_>| match text {
            Text::Id(id) => self.attachment.text(*id).expect("a text has this id"),
            Text::Inline(text) => text.to_vec(),
        };
        let endpoint = match &record.endpoint {
            EndpointRef::Id(id) => self.attachment.text(*id).expect("an endpoint has this id"),
            EndpointRef::Inline(bytes) => bytes.to_vec(),
        };
        let [name, ip, service, key] = texts.clone();
        assert_eq!((text(&record.name), text(&record.key)), (name.into_bytes(), key.into_bytes()));
        assert_eq!(Endpoint::decode(&endpoint), Some(Endpoint { ip, port: 6800, name: service }));
        assert_eq!((record.trace_id, record.span_id, record.parent_span_id, record.level), (7, 8, 9, 4));
        assert_ne!(record.time, 0);
    }
}

fn text(letter: &str, length: usize) -> String {
    letter.repeat(length)
}

/// Whether the rest of a text's cells is zero.
fn is_zero_behind(raw: &[u8], at: usize, cells: usize, text: &str) -> bool {
    raw[at + text.len()..at + cells * CELL_BYTES].iter().all(|byte| *byte == 0)
}

#[test]
fn texts_of_any_length_are_recorded_without_what_follows_them() {
    let mut program = Program::new();
    let (mut in_cells, mut fitting) = (0, 0);
    for length in 0..40 {
        for others in 0..20 {
            let texts = [
                text("n", others),
                text("1", (others + 7) % 20),
                text("s", (others + 3) % 20),
                text("k", length),
            ];
            let raw = program.record(&texts, 2 * CELL_BYTES);
            let found: Vec<_> = records(&raw, program.attachment.info().cookie).collect();
            let [Ok(record)] = &found[..] else { panic!("{found:?} of {texts:?}") };
            program.check(record, &texts);
            let fits = texts[..3].iter().all(|text| text.len() < CELL_BYTES) && length < 2 * CELL_BYTES;
            fitting += usize::from(fits);
            if raw[6 * 8 + 6] & 2 == 0 {
                continue;
            }
            in_cells += 1;
            assert!(fits && raw.len() == CELLS_GRAINS * GRAIN_BYTES);
            let [name, ip, service, key] = &texts;
            assert!(is_zero_behind(&raw, NAME_CELL, 1, name) && is_zero_behind(&raw, ADDRESS_CELL, 1, ip));
            assert!(
                is_zero_behind(&raw, SERVICE_CELL, 1, service) && is_zero_behind(&raw, KEY_CELLS, 2, key)
            );
        }
    }
    // The first event makes the ring, some find a ring that ends, and one in a thousand is looked up.
    let by_sequence = own::is_by_sequence(&program.attachment);
    assert!(!by_sequence || in_cells > fitting * 9 / 10, "{in_cells} of {fitting}");
    let counters = program.attachment.counters();
    assert_eq!((counters.attempted, counters.committed), (800, 800));

    // A text whose second cell would lie across the end of its page.
    for after in 0..CELL_BYTES {
        let texts = [text("n", 3), text("1", 3), text("s", 3), text("k", 20)];
        let raw = program.record(&texts, after);
        let found: Vec<_> = records(&raw, program.attachment.info().cookie).collect();
        let [Ok(record)] = &found[..] else { panic!("{found:?}, {after} before the end") };
        program.check(record, &texts);
    }
}

/// On other machines there is only one way of writing, and an emulator does not start a program again.
#[test]
#[cfg(target_arch = "x86_64")]
fn every_way_of_writing_records_texts_of_any_length() {
    own::run_again_by_each_way("texts_of_any_length_are_recorded_without_what_follows_them");
}
