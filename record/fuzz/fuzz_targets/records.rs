//! Reads the grains of a ring as another process might leave them. A fuzzer cannot guess stamps, so the first two bytes of
//! each grain choose its stamp.
#![no_main]

use blkin_record::{
    Draft, Endpoint, EndpointRef, GRAIN_BYTES, Payload, Record, Source, Stamp, Text, Value, records,
};
use libfuzzer_sys::fuzz_target;

const COOKIE: u32 = 0x1_5a5a;

fuzz_target!(|bytes: &[u8]| {
    let mut raw = stamped(bytes);
    check(&raw);
    let position = (raw.len() / GRAIN_BYTES) as u64;
    raw.extend_from_slice(&neighbour(position));
    let last = records(&raw, COOKIE).last().expect("there is a record").expect("it is well-formed");
    assert_eq!((last.position, last.value), (position, Value::Str(b"well-formed".as_slice().into())));
});

fn stamped(bytes: &[u8]) -> Vec<u8> {
    let mut raw = bytes.to_vec();
    for (position, grain) in raw.chunks_exact_mut(GRAIN_BYTES).enumerate() {
        let (position, length) = (position as u64, usize::from(grain[1]));
        let stamp = match grain[0] % 4 {
            0 => Stamp::head(position, length, COOKIE),
            1 => Stamp::continuation(position, length, COOKIE),
            2 => Stamp::head(position, 1, COOKIE),
            _ => continue,
        };
        grain[..8].copy_from_slice(&stamp.0.to_le_bytes());
    }
    raw.truncate(bytes.len() / GRAIN_BYTES * GRAIN_BYTES);
    raw
}

fn check(raw: &[u8]) {
    let items: Vec<_> = records(raw, COOKIE).collect();
    assert!(items.len() <= raw.len() / GRAIN_BYTES);
    assert!(records(raw, COOKIE).eq(items.iter().cloned()));
    for record in items.iter().flatten() {
        if let EndpointRef::Inline(bytes) = &record.endpoint {
            let _ = Endpoint::decode(bytes);
        }
        assert!(text_bytes(record) <= raw.len());
    }
}

fn text_bytes(record: &Record<'_>) -> usize {
    let text = |text: &Text<'_>| if let Text::Inline(bytes) = text { bytes.len() } else { 0 };
    let value = if let Value::Str(bytes) = &record.value { bytes.len() } else { 0 };
    text(&record.name) + text(&record.key) + value
}

/// A well-formed record of two grains, for the end of the input.
fn neighbour(position: u64) -> Vec<u8> {
    let draft = Draft {
        trace_id: 1,
        span_id: 2,
        parent_span_id: 0,
        name: Source::known(1),
        endpoint: Source::known(2),
        key: Source::known(3),
        payload: Payload::Str(b"well-formed"),
        level: 4,
        truncated: false,
    };
    let mut words = vec![0; draft.grains() * GRAIN_BYTES / 8];
    words[0] = draft.write(position, 0, COOKIE, 0, |index, word| words[index] = word).0;
    words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect()
}
