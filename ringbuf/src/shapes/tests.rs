//! Which calls are found again, and which are not.

use proptest::prelude::*;

use super::*;

/// Empty, and on the heap from the start: a thread's stack is too small for them.
fn shapes() -> Box<Shapes> {
    let zeroed = Box::<Shapes>::new_zeroed();
    // SAFETY: only integers, all of which are 0 while there is no call (invariant 17).
    unsafe { zeroed.assume_init() }
}

/// Texts one after the other, as the table of names has them, and their ids.
fn table(texts: [&[u8]; TEXTS]) -> (Vec<AtomicU64>, [u32; TEXTS]) {
    let mut words = vec![0];
    let ids = texts.map(|text| {
        let id = words.len() as u32;
        words.push(text.len() as u64);
        let mut bytes = text.to_vec();
        bytes.resize(text.len() / 8 * 8 + 8, 0);
        words.extend(bytes.chunks(8).map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap())));
        id
    });
    words.extend([0; 4]);
    (words.into_iter().map(AtomicU64::new).collect(), ids)
}

/// Two pages: a text at the beginning is nowhere near the end of a page.
#[repr(align(4096))]
struct Place([u8; 2 * PAGE]);

const _: () = assert!(align_of::<Place>() == PAGE);

impl Place {
    /// Puts the text and a 0 at its beginning.
    fn say(&mut self, text: &[u8]) {
        self.0[..text.len()].copy_from_slice(text);
        self.0[text.len()] = 0;
    }

    fn as_ptr(&self) -> *const u8 {
        self.0.as_ptr()
    }
}

fn place(text: &[u8]) -> Box<Place> {
    let mut place = Box::new(Place([b'x'; 2 * PAGE]));
    place.say(text);
    place
}

proptest! {
    #[test]
    fn a_call_is_found_only_while_all_its_texts_are_unchanged(
        texts in proptest::array::uniform4("[ab]{0,40}"),
        changed in 0usize..TEXTS,
        other in "[ab]{0,40}",
    ) {
        let bytes = texts.each_ref().map(|text| text.as_bytes());
        let (table, ids) = table(bytes);
        let mut places = bytes.map(place);
        let starts = places.each_ref().map(|place| place.as_ptr());
        let call = Call { texts: starts, endpoint: starts[1], port: 6800 };
        let shapes = shapes();
        // SAFETY: strings with an end.
        let find = |call: Call| unsafe { shapes.find_whole(call, &table) };
        prop_assert_eq!(find(call), None);
        shapes.keep(&call, ids, 77, &table);
        prop_assert_eq!(find(call), Some((77, ids[3])));
        prop_assert_eq!(find(Call { port: 1, ..call }), None);
        let are_short = texts.iter().all(|text| text.len() < BLOCK);
        // SAFETY: as above.
        let met = unsafe { shapes.find(call) };
        prop_assert_eq!(are_short, met == CallMatch::Whole(77, ids[3]));
        prop_assert_eq!(!are_short, matches!(met, CallMatch::Longer(77, _)));
        places[changed].say(other.as_bytes());
        let expected = (other == texts[changed]).then_some((77, ids[3]));
        prop_assert_eq!(find(call), expected);
    }
}

proptest! {
    #[test]
    fn a_span_is_found_by_its_texts_not_by_what_follows_them(
        texts in proptest::array::uniform3("[ab]{0,40}"),
        changed in 0usize..TEXTS - 1,
        other in "[ab]{0,40}",
    ) {
        let [name, ip, service] = texts.each_ref().map(|text| text.as_bytes());
        let (table, ids) = table([name, ip, service, b""]);
        let mut places = [name, ip, service].map(place);
        let of = |places: &[Box<Place>; TEXTS - 1], texts: &[String; TEXTS - 1], port| {
            let [name, ip, service] = std::array::from_fn(|at| &places[at].0[..texts[at].len()]);
            Call::of_span([name, ip, service], port).unwrap()
        };
        let shapes = shapes();
        // SAFETY: the places are there.
        let find = |call: Call| unsafe { shapes.find_span(call) };
        prop_assert_eq!(find(of(&places, &texts, 6800)), None);
        shapes.keep(&of(&places, &texts, 6800), ids, 77, &table);
        places.iter_mut().zip(&texts).for_each(|(place, text)| place.0[text.len()] = b'c');
        let found = find(of(&places, &texts, 6800));
        prop_assert_eq!(found.map(|(names, _)| names), Some(77));
        let are_long = texts.each_ref().map(|text| text.len() >= BLOCK);
        let said = found.map(|(_, ids)| std::array::from_fn(|at| ids.is_long(at)));
        prop_assert_eq!(said, Some(are_long));
        // SAFETY: as above.
        let short = unsafe { shapes.find_short_span(of(&places, &texts, 6800)) };
        prop_assert_eq!(short, (!are_long.contains(&true)).then_some(77));
        prop_assert_eq!(find(of(&places, &texts, 1)), None);
        places[changed].0[..other.len()].copy_from_slice(other.as_bytes());
        let mut changed_texts = texts.clone();
        changed_texts[changed] = other.clone();
        let begins_as_it_did = other.len() == texts[changed].len()
            && other.bytes().take(BLOCK).eq(texts[changed].bytes().take(BLOCK));
        prop_assert_eq!(find(of(&places, &changed_texts, 6800)).is_some(), begins_as_it_did);
    }
}

#[test]
fn only_texts_with_an_id_must_be_unchanged_to_find_a_call() {
    let (table, ids) = table([b"name", b"ip", b"service", b"key"]);
    let mut places = [&b"name"[..], b"ip", b"service", b"key"].map(place);
    let starts = places.each_ref().map(|place| place.as_ptr());
    let call = Call { texts: starts, endpoint: starts[1], port: 6800 };
    let shapes = shapes();
    shapes.keep(&call, [ids[0], ids[1], ids[2], 0], 77, &table);
    // SAFETY: strings with an end.
    let find = || unsafe { shapes.find(call) };
    assert_eq!(find(), CallMatch::InPart(77, 0));
    places[3].0[..20].copy_from_slice(b"another key, and a l");
    assert_eq!(find(), CallMatch::InPart(77, 0));
    // SAFETY: as above.
    assert_eq!(unsafe { shapes.find_whole(call, &table) }, None);
    // Better knowledge of a call replaces what was known of it.
    shapes.keep(&call, ids, 78, &table);
    assert_eq!(find(), CallMatch::Never);
    places[3].say(b"key");
    assert_eq!(find(), CallMatch::Whole(78, ids[3]));
    places[0].0[0] = b'N';
    assert_eq!(find(), CallMatch::Never);
}

#[test]
fn a_call_of_new_texts_is_known_by_address_until_one_is_long() {
    let (table, _) = table([b"text"; TEXTS]);
    let text = place(b"text");
    let at = |distance: usize| text.as_ptr().wrapping_add(distance);
    let call = Call { texts: [at(0), at(1), at(2), at(3)], endpoint: at(4), port: 6800 };
    let shapes = shapes();
    shapes.keep(&call, [0; TEXTS], 0, &table);
    // SAFETY: strings with an end, or NULL.
    let find = |call: Call| unsafe { shapes.find(call) };
    let elsewhere = |number: usize, text: *const u8| {
        let mut texts = call.texts;
        texts[number] = text;
        find(Call { texts, ..call })
    };
    assert_eq!(find(call), CallMatch::New(Size::Cells));
    for number in 0..TEXTS {
        assert_eq!(elsewhere(number, at(5)), CallMatch::Never);
        assert_eq!(elsewhere(number, std::ptr::null()), CallMatch::Never);
    }
    shapes.set_longer(&call, Size::Cells);
    assert_eq!(find(call), CallMatch::New(Size::Brief));
    shapes.set_longer(&call, Size::Brief);
    assert_eq!(find(call), CallMatch::InPart(0, 0));
    // SAFETY: strings with an end.
    assert_eq!(unsafe { shapes.find_whole(call, &table) }, None);
}

#[test]
fn a_call_with_a_text_at_the_end_of_a_page_is_not_kept() {
    let (table, ids) = table([b"a"; TEXTS]);
    let text = place(b"");
    let at_end = text.as_ptr().map_addr(|address| address.next_multiple_of(PAGE) + PAGE - 2);
    let call = Call {
        texts: [text.as_ptr(), text.as_ptr(), text.as_ptr(), at_end],
        endpoint: text.as_ptr(),
        port: 0,
    };
    let shapes = shapes();
    shapes.keep(&call, ids, 77, &table);
    // SAFETY: nothing was kept, so nothing is read.
    assert_eq!(unsafe { shapes.find_whole(call, &table) }, None);
}

#[test]
fn a_call_keeps_its_place_against_most_rivals() {
    let (table, ids) = table([b"text"; TEXTS]);
    let text = place(b"text");
    let shapes = shapes();
    let of_port = |name: *const u8| Call {
        texts: [name, text.as_ptr(), text.as_ptr(), text.as_ptr()],
        endpoint: text.as_ptr(),
        port: 0,
    };
    let first = of_port(text.as_ptr());
    shapes.keep(&first, ids, 77, &table);
    let rivals = (1..1 << 16).map(|distance| of_port(text.as_ptr().wrapping_add(distance * PAGE)));
    let rivals = rivals.filter(|rival| std::ptr::eq(shapes.entry(rival), shapes.entry(&first)));
    for rival in rivals.take(TAKEN_ONCE_IN as usize - 1) {
        shapes.keep(&rival, ids, 78, &table);
    }
    // SAFETY: strings with an end.
    assert_eq!(unsafe { shapes.find_whole(first, &table) }, Some((77, ids[3])));
}

/// Calls that differ only in the address of their name; every text is "text".
fn calls(texts: &[[u8; BLOCK]]) -> Vec<Call> {
    let text = texts[0].as_ptr();
    let call =
        |name: &[u8; BLOCK]| Call { texts: [name.as_ptr(), text, text, text], endpoint: text, port: 0 };
    texts.iter().map(call).collect()
}

const TEXT: [u8; BLOCK] = *b"text\0...........";

#[test]
fn two_calls_that_want_the_same_place_are_both_found() {
    let (table, ids) = table([b"text"; TEXTS]);
    let texts = vec![TEXT; 1 << 16];
    let calls = calls(&texts);
    let shapes = shapes();
    let is_rival = |call: &&Call| {
        let [first, other] = shapes.places(call);
        std::ptr::eq(first, shapes.entry(&calls[0])) && !std::ptr::eq(other, shapes.other_entry(&calls[0]))
    };
    let rival = *calls.iter().skip(1).find(is_rival).unwrap();
    shapes.keep(&calls[0], ids, 77, &table);
    shapes.keep(&rival, ids, 78, &table);
    // SAFETY: strings with an end.
    let find = |call: Call| unsafe { shapes.find(call) };
    // SAFETY: as above.
    let find_elsewhere = |call: Call| unsafe { shapes.find_elsewhere(call) };
    assert_eq!((find(calls[0]), find_elsewhere(calls[0])), (CallMatch::Whole(77, ids[3]), CallMatch::Never));
    assert_eq!((find(rival), find_elsewhere(rival)), (CallMatch::Never, CallMatch::Whole(78, ids[3])));
    // SAFETY: as above.
    assert_eq!(unsafe { shapes.find_whole(rival, &table) }, Some((78, ids[3])));
    // SAFETY: as above.
    assert_eq!(unsafe { shapes.find_span(rival) }.map(|(names, _)| names), Some(78));
    // Better knowledge of the call replaces what was known there.
    shapes.keep(&rival, [0; TEXTS], 0, &table);
    assert_eq!((find(rival), find_elsewhere(rival)), (CallMatch::Never, CallMatch::New(Size::Cells)));
    shapes.set_longer(&rival, Size::Cells);
    assert_eq!(find_elsewhere(rival), CallMatch::New(Size::Brief));
    assert_eq!(find(calls[0]), CallMatch::Whole(77, ids[3]), "the other call is still found");
}

#[test]
fn with_one_call_per_first_place_nearly_all_are_found() {
    let (table, ids) = table([b"text"; TEXTS]);
    let texts = vec![TEXT; FIRST];
    let calls = calls(&texts);
    let shapes = shapes();
    // SAFETY: strings with an end.
    let is_found = |call: &&Call| unsafe { shapes.find_whole(**call, &table) }.is_some();
    for _ in 0..4 * TAKEN_ONCE_IN {
        calls.iter().filter(|call| !is_found(call)).for_each(|call| shapes.keep(call, ids, 77, &table));
    }
    let found = calls.iter().filter(is_found).count();
    assert!(found >= calls.len() * 98 / 100, "{found} of {}", calls.len());
}
