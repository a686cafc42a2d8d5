//! The writer cuts texts that are too long; the reader refuses lengths that do not fit.

use blkin_record::{
    Draft, Endpoint, EndpointParts, GRAIN_BYTES, Invalid, MAX_IP_BYTES, MAX_TEXT_BYTES, Payload, Source,
    Text, cut, records,
};

const COOKIE: u32 = 0x2_1234;

/// The length of each text.
#[derive(Clone, Copy)]
struct Lengths {
    name: usize,
    ip: usize,
    service: usize,
    key: usize,
    value: usize,
}

const BRIEF: Lengths = Lengths { name: 4, ip: 8, service: 5, key: 3, value: 2 };
const LONGEST: Lengths = Lengths {
    name: MAX_TEXT_BYTES,
    ip: MAX_IP_BYTES,
    service: MAX_TEXT_BYTES,
    key: MAX_TEXT_BYTES,
    value: MAX_TEXT_BYTES,
};

fn letters(length: usize) -> &'static [u8] {
    &[b'x'; MAX_TEXT_BYTES + 1][..length]
}

fn with(lengths: Lengths) -> Draft<'static> {
    let Lengths { name, ip, service, key, value } = lengths;
    Draft {
        trace_id: 1,
        span_id: 2,
        parent_span_id: 3,
        name: Source::inline(letters(name)),
        endpoint: Source::inline(EndpointParts { ip: letters(ip), port: 6800, name: letters(service) }),
        key: Source::inline(letters(key)),
        payload: Payload::Str(letters(value)),
        level: 4,
        truncated: false,
    }
}

fn lengths_of(draft: &Draft<'_>) -> [usize; 5] {
    let Payload::Str(value) = draft.payload else { panic!("a string") };
    let Some(EndpointParts { ip, name: service, .. }) = draft.endpoint.inline_text() else { panic!("texts") };
    let length = |text: Source<&[u8]>| text.inline_text().map_or(0, <[u8]>::len);
    [length(draft.name), ip.len(), service.len(), length(draft.key), value.len()]
}

fn encode(draft: &Draft<'_>) -> Vec<u8> {
    let mut words = vec![0u64; draft.grains() * 8];
    words[0] = draft.write(0, 0, COOKIE, 1, |index, value| words[index] = value).0;
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn refusal(raw: &[u8]) -> Option<Invalid> {
    records(raw, COOKIE).next().and_then(Result::err)
}

#[test]
fn each_text_over_its_limit_is_cut_and_marked_as_truncated() {
    let longer = MAX_TEXT_BYTES + 1;
    let cases = [
        (Lengths { name: longer, ..BRIEF }, [MAX_TEXT_BYTES, 8, 5, 3, 2]),
        (Lengths { ip: MAX_IP_BYTES + 1, ..BRIEF }, [4, MAX_IP_BYTES, 5, 3, 2]),
        (Lengths { service: longer, ..BRIEF }, [4, 8, MAX_TEXT_BYTES, 3, 2]),
        (Lengths { key: longer, ..BRIEF }, [4, 8, 5, MAX_TEXT_BYTES, 2]),
        (Lengths { value: longer, ..BRIEF }, [4, 8, 5, 3, MAX_TEXT_BYTES]),
    ];
    for (long, expected) in cases {
        let shorter = with(long).cut();
        assert_eq!(lengths_of(&shorter), expected);
        assert!(shorter.truncated, "{expected:?}");
        assert_eq!(shorter.endpoint.inline_text().unwrap().port, 6800);
    }
}

#[test]
fn texts_within_the_limits_are_not_cut() {
    for lengths in [BRIEF, LONGEST] {
        let draft = with(lengths);
        let same = draft.cut();
        assert_eq!(lengths_of(&same), lengths_of(&draft));
        assert!(!same.truncated);
    }
    assert!(!Draft { payload: Payload::Event, ..with(BRIEF) }.cut().truncated, "an event has no text to cut");
}

#[test]
fn a_long_text_sent_by_id_does_not_mark_the_record_truncated() {
    let longer = MAX_TEXT_BYTES + 1;
    let long = with(Lengths { name: longer, service: longer, key: longer, ..BRIEF });
    let known = Draft {
        name: long.name.or_id(|_| 7),
        endpoint: long.endpoint.or_id(|_| 8),
        key: long.key.or_id(|_| 9),
        ..long
    };
    assert!(!known.cut().truncated);
    assert!(Draft { name: long.name, ..known }.cut().truncated);
    assert!(Draft { endpoint: long.endpoint, ..known }.cut().truncated);
    assert!(Draft { key: long.key, ..known }.cut().truncated);
    assert!(
        Draft { truncated: true, ..with(BRIEF) }.cut().truncated,
        "a record that was truncated before stays so"
    );
}

#[test]
fn a_text_is_looked_up_if_it_has_no_id() {
    assert_eq!(Source::inline("read").or_id(|text| text.len() as u32).id(), 4);
    assert_eq!(Source::<&str>::known(7).or_id(|_| unreachable!("the text has an id")).id(), 7);
}

#[test]
fn texts_are_cut_at_a_character_boundary() {
    let text = "é".repeat(10);
    assert_eq!(cut(text.as_bytes(), 20), (text.as_bytes(), false));
    assert_eq!(cut(text.as_bytes(), 7), ("ééé".as_bytes(), true));
    let longest = "𝄞".repeat(3);
    assert_eq!(cut(longest.as_bytes(), 11), ("𝄞𝄞".as_bytes(), true));
    assert_eq!(cut(longest.as_bytes(), 9), ("𝄞𝄞".as_bytes(), true));
}

#[test]
fn bytes_without_character_boundaries_are_cut_at_the_limit() {
    assert_eq!(cut(&[0x80; 10], 7).0.len(), 7);
    // A byte that begins a character, but too far back to begin the one at the cut.
    let too_far = [b"abc\xf0".as_slice(), &[0x80; 8]].concat();
    assert_eq!(cut(&too_far, 7).0.len(), 7);
    assert_eq!(cut(&too_far, 6).0, b"abc");
}

#[test]
fn an_endpoint_reads_back() {
    let parts = EndpointParts { ip: b"10.0.0.1", port: 40_000, name: b"osd.0" };
    let encoded = [&parts.fixed(), parts.ip, parts.name].concat();
    assert_eq!(encoded.len(), parts.encoded_bytes());
    let read = Endpoint::decode(&encoded).unwrap();
    assert_eq!(read, Endpoint { ip: "10.0.0.1".into(), port: 40_000, name: "osd.0".into() });
    assert_eq!(Endpoint::decode(&[0, 0, 0]), Some(Endpoint::default()));
}

#[test]
fn an_endpoint_whose_lengths_do_not_fit_is_rejected() {
    let with_ip = |length: usize| {
        let parts = EndpointParts { ip: letters(length), port: 1, name: b"" };
        [&parts.fixed(), parts.ip].concat()
    };
    assert_eq!(Endpoint::decode(&with_ip(MAX_IP_BYTES)).unwrap().ip.len(), MAX_IP_BYTES);
    assert_eq!(Endpoint::decode(&with_ip(MAX_IP_BYTES + 1)), None);
    assert_eq!(Endpoint::decode(&with_ip(8)[..10]), None, "the address is longer than the bytes that follow");
    assert_eq!(Endpoint::decode(&[0, 0]), None);
}

#[test]
fn texts_of_a_record_are_accepted_up_to_the_limit() {
    assert_eq!(refusal(&encode(&with(LONGEST))), None);
    let longer = MAX_TEXT_BYTES + 1;
    let too_long = [
        Lengths { name: longer, ..BRIEF },
        Lengths { ip: MAX_IP_BYTES, service: longer, ..BRIEF },
        Lengths { key: longer, ..BRIEF },
        Lengths { value: longer, ..BRIEF },
    ];
    for lengths in too_long {
        assert_eq!(refusal(&encode(&with(lengths))), Some(Invalid::Tail));
    }
}

/// The entries of this tail: a name of 4 bytes and a key of 3 bytes, each preceded by its tag, a zero and its length.
const OF_NAME: usize = GRAIN_BYTES + 8;
const OF_KEY: usize = OF_NAME + 4 + 4;

fn name_and_key() -> Vec<u8> {
    let draft = with(BRIEF);
    encode(&Draft { endpoint: draft.endpoint.or_id(|_| 8), payload: Payload::Event, ..draft })
}

#[test]
fn malformed_tail_entries_are_rejected() {
    let with = |at: usize, byte: u8| {
        let mut raw = name_and_key();
        raw[at] = byte;
        refusal(&raw)
    };
    let tag_of_name = name_and_key()[OF_NAME];
    assert_eq!(with(OF_KEY, tag_of_name), Some(Invalid::Tail), "a second name");
    assert_eq!(with(OF_NAME, 127), Some(Invalid::Tail), "an unknown tag");
    assert_eq!(with(OF_NAME + 1, 1), Some(Invalid::Tail), "no zero after the tag");
    assert_eq!(with(OF_KEY + 2, 3), None);
    for (length, what) in [
        (2, "a byte after the last entry"),
        (4, "one byte more than there is"),
        (200, "far more bytes than there are"),
    ] {
        assert_eq!(with(OF_KEY + 2, length), Some(Invalid::Tail), "{what}");
    }
    assert_eq!(with(OF_KEY + 3, 0xff), Some(Invalid::Tail), "the largest length");
}

#[test]
fn tail_entries_of_a_later_version_are_skipped() {
    let mut raw = name_and_key();
    raw[OF_NAME] = 128;
    assert_eq!(refusal(&raw), Some(Invalid::Missing), "the name was in it");
    raw[5 * 8] = 7;
    let record = records(&raw, COOKIE).next().unwrap().unwrap();
    assert_eq!((record.name, record.key), (Text::Id(7), Text::Inline(letters(3).into())));
}
