//! Calls of the C interface whose texts change with each call are recorded with the texts they had, by whatever path.

mod own;

use blkin_record::{Endpoint, EndpointRef, Record, Text, Value, records};
use blkin_ringbuf::Attachment;
use blkin_ringbuf::process::{
    self, Call, CallMatch, CallValue, Place, Short, Size, Status, init, recognise_call, recognise_longer,
};

const CALLS: usize = 6000;
const PLACES: usize = 13;
/// From these places all texts are new each time, and none is ever long; from the first, none is longer than its cells.
const BRIEF_PLACES: [usize; 3] = [4, 8, 12];

/// What a call says: name, address, service, key, and a value.
type Texts = [String; 5];

/// Some of the texts stay as they are for long, and then change after all.
fn texts(number: usize) -> Texts {
    let place = number % PLACES;
    let text = |what: &str, each: usize, most: usize| {
        let number = number / each;
        let length = number.wrapping_mul(0x9e37_79b1) >> 7 & 0xff;
        let most = match BRIEF_PLACES.iter().position(|brief| *brief == place) {
            Some(0) if what == "event " => 22,
            Some(0) => 7,
            Some(_) => 12,
            None => most,
        };
        format!("{what}{number}{}", "x".repeat(length % most))
    };
    let every = [[1, 1, 1], [1500, 1500, 1], [1500, 1, 1500], [1, 1500, 1500]][place % 4];
    [
        text("n", every[0], 60),
        text("10.0.0.", 3000, 8),
        text("osd.", every[1], 30),
        text("event ", every[2], 120),
        text("v", 1, 200),
    ]
}

/// A buffer for each text, which the next call from the same place writes over.
fn place() -> [Vec<u8>; 5] {
    std::array::from_fn(|_| vec![b'#'; 5000])
}

fn write(buffers: &mut [Vec<u8>; 5], texts: &Texts) {
    for (buffer, text) in buffers.iter_mut().zip(texts) {
        buffer[..text.len()].copy_from_slice(text.as_bytes());
        buffer[text.len()] = 0;
    }
}

/// An endpoint with these buffers for its texts.
fn endpoint(buffers: &[Vec<u8>; 5]) -> Place {
    Place { ip: buffers[1].as_ptr(), port: 6800, service: buffers[2].as_ptr() }
}

/// Records as `blkin_record` and the macros do. Returns the size that its texts were taken for, if all were new and none long.
fn record(buffers: &[Vec<u8>; 5], place: &Place, number: usize) -> Option<Size> {
    let [name, ip, service, key, value] = buffers.each_ref().map(|buffer| buffer.as_ptr());
    let call = Call { texts: [name, ip, service, key], endpoint: (&raw const *place).cast(), port: 6800 };
    let value = match number % 3 {
        0 => CallValue::Short(Short::Event),
        1 => CallValue::Short(Short::Integer(number as i64)),
        _ => CallValue::String(value),
    };
    let own = [1, number as u64 + 1, 0];
    let ids = own.as_ptr();
    // SAFETY: strings with an end, which stay as they are meanwhile.
    let met = unsafe { recognise_call(call) };
    let is_done = match met {
        CallMatch::New(Size::Cells) if number.is_multiple_of(3) => {
            // SAFETY: three words, and strings that were met as such.
            unsafe { process::record_in_cells(ids, place, call.texts) };
            return Some(Size::Cells);
        }
        CallMatch::New(_) => match value {
            // SAFETY: as above.
            CallValue::Short(what) if unsafe { process::record_brief_call(ids, call, what, 4) } => {
                return Some(Size::Brief);
            }
            // SAFETY: as above.
            _ => unsafe { process::record_travelling_call(ids, call, 0, 0, value, 4) },
        },
        // SAFETY: as above.
        CallMatch::Whole(names, key) => unsafe { process::record_known(ids, names, key, value, 4) }.is_some(),
        // SAFETY: as above.
        CallMatch::Longer(names, text_ids) => match unsafe { recognise_longer(&call, text_ids) } {
            // SAFETY: as above.
            Some(key) => unsafe { process::record_known(ids, names, key, value, 4) }.is_some(),
            // SAFETY: as above.
            None => unsafe { process::record_new_call(ids, call, value, 4) },
        },
        // SAFETY: as above.
        CallMatch::InPart(names, key) => unsafe {
            process::record_travelling_call(ids, call, names, key, value, 4)
        },
        CallMatch::Never => {
            // SAFETY: as above.
            process::may_at_once() && unsafe { process::record_new_call(ids, call, value, 4) }
        }
    };
    if !is_done {
        // SAFETY: as above.
        assert_eq!(unsafe { process::record_call(ids, call, value, 4) }, Some(0));
    }
    None
}

/// Checks that the record says what its call said; returns the number of the call.
fn check(program: &Attachment, record: &Record<'_>) -> usize {
    let number = record.span_id as usize - 1;
    let [name, ip, service, key, value] = texts(number);
    let text = |text: &Text<'_>| match text {
        Text::Id(id) => program.text(*id).expect("a text has this id"),
        Text::Inline(text) => text.to_vec(),
    };
    let endpoint = match &record.endpoint {
        EndpointRef::Id(id) => program.text(*id).expect("an endpoint has this id"),
        EndpointRef::Inline(bytes) => bytes.to_vec(),
    };
    assert_eq!(text(&record.name), name.as_bytes(), "name of {number}");
    assert_eq!(text(&record.key), key.as_bytes(), "key of {number}");
    assert_eq!(Endpoint::decode(&endpoint), Some(Endpoint { ip, port: 6800, name: service }));
    match (number % 3, &record.value) {
        (0, Value::None) => {}
        (1, Value::Integer(found)) => assert_eq!(*found, number as i64),
        (2, Value::Str(found)) => assert_eq!(found[..], *value.as_bytes()),
        (_, other) => panic!("{number} says {other:?}"),
    }
    number
}

#[test]
fn texts_that_change_are_recorded_as_they_were() {
    assert_eq!(init(), Status::Tracing);
    let mut program = own::attach();
    let mut places: Vec<_> = (0..PLACES).map(|_| place()).collect();
    let endpoints: Vec<_> = places.iter().map(endpoint).collect();
    let (mut seen, mut in_cells, mut brief) = (Vec::new(), 0, 0);
    for number in 0..CALLS {
        let buffers = &mut places[number % PLACES];
        write(buffers, &texts(number));
        match record(buffers, &endpoints[number % PLACES], number) {
            Some(Size::Cells) => in_cells += 1,
            Some(Size::Brief) => brief += 1,
            None => {}
        }
        if number % 100 == 99 {
            let mut raw = Vec::new();
            for slot in 0..program.slots() {
                program.drain(slot, usize::MAX, &mut raw);
                program.publish(slot);
            }
            for item in records(&raw, program.info().cookie) {
                seen.push(check(&program, &item.expect("a valid record")));
            }
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..CALLS).collect::<Vec<_>>());
    let counters = program.counters();
    assert_eq!((counters.attempted, counters.committed), (CALLS as u64, CALLS as u64));
    assert!(counters.not_interned > CALLS as u64 / 2, "{counters:?}");
    // Of the calls from these places two in three have no string, and some come before the places are known; a place with a
    // buffer at the end of a page is never known.
    let most = CALLS * BRIEF_PLACES.len() / PLACES * 2 / 3;
    assert!(!process::may_at_once() || brief > most / 8, "{brief} of {most}");
    let events = CALLS / PLACES / 3;
    assert!(!own::is_by_sequence(&program) || in_cells > events / 8, "{in_cells} of {events}");
}

/// On other machines there is only one way of writing, and an emulator does not start a program again.
#[test]
#[cfg(target_arch = "x86_64")]
fn every_way_of_writing_records_changing_texts_as_they_were() {
    own::run_again_by_each_way("texts_that_change_are_recorded_as_they_were");
}
