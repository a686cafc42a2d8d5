//! A program that records from many places: most of its calls are known as a whole, and each says what it says.

mod own;

use blkin_record::{Record, Text, records};
use blkin_ringbuf::Attachment;
use blkin_ringbuf::process::{
    self, Call, CallMatch, CallValue, Place, Short, Size, Status, init, recognise_call, recognise_longer,
};

/// More than there are hints, and more than half of the first places for calls.
const PLACES: usize = 600;
/// After this many rounds it is settled which calls have to make way for others.
const ROUNDS: usize = 40;
const EVENT: CallValue = CallValue::Short(Short::Event);

/// A buffer for one text, which crosses no page.
#[repr(align(64))]
#[derive(Clone, Copy)]
struct Buffer([u8; 64]);

impl Buffer {
    fn say(&mut self, text: &str) {
        self.0 = [0; 64];
        self.0[..text.len()].copy_from_slice(text.as_bytes());
    }

    fn text(&self) -> &[u8] {
        self.0.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

/// Name, address and service, and key of a call.
type Texts = [Buffer; 4];

/// Of every four places one has short texts, one a long key, one another key each time, and one all texts new each time.
fn say(texts: &mut Texts, number: usize, round: usize) {
    let of_all = if number % 4 == 3 { round } else { 0 };
    let of_key = if number % 4 == 2 { round } else { of_all };
    let key = if number % 4 == 1 {
        format!("an event whose name is long {number}")
    } else {
        format!("{of_key} of {number}")
    };
    let all = [format!("name {of_all}"), "10.0.0.1".to_owned(), format!("service {of_all}"), key];
    texts.iter_mut().zip(all).for_each(|(buffer, text)| buffer.say(&text));
}

/// Records as `blkin_record` does. Returns whether the call was known as a whole in its first place.
fn record(texts: &Texts, number: usize) -> bool {
    let texts = texts.each_ref().map(|text| text.0.as_ptr());
    let place = Place { ip: texts[1], port: 6800, service: texts[2] };
    let call = Call { texts, endpoint: texts[2], port: 6800 };
    let own = [1, number as u64 + 1, 0];
    let ids = own.as_ptr();
    // SAFETY: strings with an end, which stay as they are meanwhile.
    let met = unsafe { recognise_call(call) };
    let is_done = match met {
        // SAFETY: three words.
        CallMatch::Whole(names, key) => unsafe { process::record_known(ids, names, key, EVENT, 4) }.is_some(),
        CallMatch::Longer(names, text_ids) => {
            // SAFETY: as above, and strings that were met as such.
            unsafe { recognise_longer(&call, text_ids) }.is_some_and(|key| {
                // SAFETY: as above.
                unsafe { process::record_known(ids, names, key, EVENT, 4) }.is_some()
            })
        }
        CallMatch::New(Size::Cells) => {
            // SAFETY: as above.
            unsafe { process::record_in_cells(ids, &raw const place, texts) };
            true
        }
        // SAFETY: as above.
        CallMatch::New(_) => unsafe { process::record_brief_call(ids, call, Short::Event, 4) },
        // SAFETY: as above.
        CallMatch::InPart(names, key) => unsafe {
            process::record_travelling_call(ids, call, names, key, EVENT, 4)
        },
        CallMatch::Never => {
            // SAFETY: as above.
            process::may_at_once() && unsafe { process::record_new_call(ids, call, EVENT, 4) }
        }
    };
    if !is_done {
        // SAFETY: as above.
        assert_eq!(unsafe { process::record_call(ids, call, EVENT, 4) }, Some(0));
    }
    met != CallMatch::Never
}

fn check(program: &Attachment, record: &Record<'_>, places: &[Texts]) {
    let [name, .., key] = &places[record.span_id as usize - 1];
    for (found, said) in [(&record.name, name), (&record.key, key)] {
        match found {
            Text::Id(id) => assert_eq!(program.text(*id).expect("a text has this id"), said.text()),
            Text::Inline(text) => assert_eq!(*text, said.text()),
        }
    }
}

/// One call from each place. Returns how many were known in their first places.
fn round(program: &mut Attachment, places: &[Texts]) -> usize {
    let known = places.iter().enumerate().filter(|(number, texts)| record(texts, *number)).count();
    let mut raw = Vec::new();
    for slot in 0..program.slots() {
        program.drain(slot, usize::MAX, &mut raw);
        program.publish(slot);
    }
    let mut read = 0;
    for item in records(&raw, program.info().cookie) {
        check(program, &item.expect("a valid record"), places);
        read += 1;
    }
    assert_eq!(read, places.len());
    known
}

#[test]
fn most_calls_from_many_places_are_known_and_read_as_written() {
    assert_eq!(init(), Status::Tracing);
    let mut program = own::attach();
    let mut places = vec![[Buffer([0; 64]); 4]; PLACES];
    let mut known = 0;
    for number in 0..ROUNDS {
        places.iter_mut().enumerate().for_each(|(place, texts)| say(texts, place, number));
        known = round(&mut program, &places);
    }
    let may_know = cfg!(target_arch = "x86_64") && process::may_at_once();
    assert!(!may_know || known > PLACES / 2, "{known} of {PLACES}");
}

/// On other machines there is only one way of writing, and an emulator does not start a program again.
#[test]
#[cfg(target_arch = "x86_64")]
fn every_way_of_writing_knows_most_calls_from_many_places() {
    own::run_again_by_each_way("most_calls_from_many_places_are_known_and_read_as_written");
}
