//! A record reads back as it was written. A damaged record is reported, without its neighbours. Other bytes are never taken for a
//! record.

mod own;

use blkin_record::{
    Draft, EndpointParts, EndpointRef, GRAIN_BYTES, Invalid, MAX_TEXT_BYTES, Payload, Record, Source, Stamp,
    Text, Value, records,
};
use own::InCells;
use proptest::prelude::*;

const COOKIE: u32 = 0x2_1234;

fn encode(draft: &Draft<'_>, position: u64, ordinal: u64, clock: u64) -> Vec<u8> {
    let mut words = vec![0u64; draft.grains() * 8];
    words[0] = draft.write(position, ordinal, COOKIE, clock, |index, value| words[index] = value).0;
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// All items that are read. Both ways of reading must give the same.
fn read(raw: &[u8]) -> Vec<Result<Record<'_>, Invalid>> {
    let (read, mut shown) = (records(raw, COOKIE).collect::<Vec<_>>(), 0);
    records(raw, COOKIE).each(|record| {
        assert_eq!(record, read[shown].as_ref().map_err(|invalid| *invalid));
        shown += 1;
    });
    assert_eq!(shown, read.len());
    read
}

#[derive(Clone, Debug)]
struct Sample {
    ids: (u64, u64, u64),
    name: Option<Vec<u8>>,
    endpoint: Option<(Vec<u8>, u16, Vec<u8>)>,
    key: Option<Vec<u8>>,
    value: Option<Result<i64, Vec<u8>>>,
    level: u8,
}

/// An event all of whose texts have ids.
const PLAIN: Sample = Sample { ids: (1, 2, 3), name: None, endpoint: None, key: None, value: None, level: 4 };

impl Sample {
    fn draft(&self) -> Draft<'_> {
        Draft {
            trace_id: self.ids.0,
            span_id: self.ids.1,
            parent_span_id: self.ids.2,
            name: self.name.as_ref().map_or(Source::known(7), |name| Source::inline(name)),
            endpoint: self.endpoint.as_ref().map_or(Source::known(8), |(ip, port, name)| {
                Source::inline(EndpointParts { ip, port: *port, name })
            }),
            key: self.key.as_ref().map_or(Source::known(9), |key| Source::inline(key)),
            payload: match &self.value {
                None => Payload::Event,
                Some(Ok(integer)) => Payload::Integer(*integer),
                Some(Err(text)) => Payload::Str(text),
            },
            level: self.level,
            truncated: self.level == 3,
        }
    }

    fn agrees(&self, record: &Record<'_>, clock: u64) -> bool {
        let text = |own: &Option<Vec<u8>>, id, read: &Text<'_>| match (own, read) {
            (None, Text::Id(found)) => *found == id,
            (Some(own), Text::Inline(found)) => own[..] == found[..],
            _ => false,
        };
        let endpoint = match (&self.endpoint, &record.endpoint) {
            (None, EndpointRef::Id(found)) => *found == 8,
            (Some((ip, port, name)), EndpointRef::Inline(found)) => {
                let mut own = port.to_le_bytes().to_vec();
                own.push(ip.len() as u8);
                own.extend_from_slice(ip);
                own.extend_from_slice(name);
                own[..] == found[..]
            }
            _ => false,
        };
        let value = match (&self.value, &record.value) {
            (None, Value::None) => record.time == clock,
            (Some(Ok(own)), Value::Integer(found)) => own == found && record.time == 0,
            (Some(Err(own)), Value::Str(found)) => own[..] == found[..] && record.time == 0,
            _ => false,
        };
        let ids = (record.trace_id, record.span_id, record.parent_span_id) == self.ids;
        ids && endpoint
            && value
            && record.level == self.level
            && record.truncated == (self.level == 3)
            && text(&self.name, 7, &record.name)
            && text(&self.key, 9, &record.key)
    }
}

fn sample() -> impl Strategy<Value = Sample> {
    let text = || proptest::collection::vec(any::<u8>(), 0..200);
    let value = prop_oneof![
        Just(None),
        any::<i64>().prop_map(|integer| Some(Ok(integer))),
        proptest::collection::vec(any::<u8>(), 0..MAX_TEXT_BYTES).prop_map(|text| Some(Err(text))),
    ];
    let endpoint = (proptest::collection::vec(any::<u8>(), 0..=64), any::<u16>(), text());
    (
        (1..u64::MAX, any::<u64>(), any::<u64>()),
        proptest::option::of(text()),
        proptest::option::of(endpoint),
        proptest::option::of(text()),
        value,
        0u8..8,
    )
        .prop_map(|(ids, name, endpoint, key, value, level)| Sample {
            ids,
            name,
            endpoint,
            key,
            value,
            level,
        })
}

fn in_cells() -> impl Strategy<Value = InCells> {
    let text = |most: usize| proptest::collection::vec(1..=u8::MAX, 0..=most);
    let texts = (text(16), text(16), text(16), text(32));
    ((1..u64::MAX, any::<u64>(), any::<u64>()), texts, any::<u16>(), 0u8..8, any::<u64>()).prop_map(
        |(ids, (name, ip, service, key), port, level, time)| InCells {
            ids: ids.into(),
            name,
            ip,
            port,
            service,
            key,
            level,
            time,
        },
    )
}

proptest! {
    #[test]
    fn records_in_cells_read_back_as_written(own in in_cells(), position in any::<u64>(), ordinal in 0u64..1 << 28) {
        let raw = own.encode(position, ordinal, COOKIE);
        let [Ok(record)] = &read(&raw)[..] else { panic!("one record") };
        let endpoint = EndpointParts { ip: &own.ip, port: own.port, name: &own.service };
        let endpoint = [&endpoint.fixed(), endpoint.ip, endpoint.name].concat();
        prop_assert_eq!([record.trace_id, record.span_id, record.parent_span_id], own.ids);
        prop_assert_eq!((record.ordinal, record.level, record.time), (ordinal, own.level, own.time));
        prop_assert_eq!(&record.name, &Text::Inline(own.name.into()));
        prop_assert_eq!(&record.endpoint, &EndpointRef::Inline(endpoint.into()));
        prop_assert_eq!(&record.key, &Text::Inline(own.key.into()));
    }

    #[test]
    fn a_flipped_bit_in_cells_never_damages_neighbouring_records(own in in_cells(), bit in any::<prop::sample::Index>()) {
        let pieces = [0, 3, 6].map(|position| own.encode(position, position / 3, COOKIE));
        let mut raw = pieces.concat();
        let bit = bit.index(pieces[1].len() * 8);
        raw[pieces[0].len() + bit / 8] ^= 1 << (bit % 8);
        let read = read(&raw);
        let alone = |number: usize| records(&pieces[number], COOKIE).next();
        prop_assert_eq!(read.first().cloned(), alone(0));
        prop_assert_eq!(read.last().cloned(), alone(2));
    }

    #[test]
    fn records_read_back_as_written(samples in proptest::collection::vec(sample(), 1..8), start in any::<u32>()) {
        let mut raw = Vec::new();
        for (ordinal, sample) in samples.iter().enumerate() {
            let position = u64::from(start) + (raw.len() / GRAIN_BYTES) as u64;
            raw.extend(encode(&sample.draft(), position, ordinal as u64, 77));
        }
        let read: Vec<_> = read(&raw).into_iter().collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(read.len(), samples.len());
        for (ordinal, (sample, record)) in samples.iter().zip(&read).enumerate() {
            prop_assert!(sample.agrees(record, 77), "{:?} read as {:?}", sample, record);
            prop_assert_eq!(record.ordinal, ordinal as u64);
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(raw in proptest::collection::vec(any::<u8>(), 0..2048)) {
        let items = read(&raw).len();
        prop_assert!(items <= raw.len() / GRAIN_BYTES);
    }

    #[test]
    fn a_flipped_bit_never_damages_neighbouring_records(first in sample(), middle in sample(), last in sample(),
            bit in any::<prop::sample::Index>()) {
        let pieces: Vec<Vec<u8>> = {
            let mut position = 5;
            [&first, &middle, &last].iter().enumerate().map(|(ordinal, sample)| {
                let raw = encode(&sample.draft(), position, ordinal as u64, 1);
                position += (raw.len() / GRAIN_BYTES) as u64;
                raw
            }).collect()
        };
        let mut raw = pieces.concat();
        let bit = bit.index(pieces[1].len() * 8);
        raw[pieces[0].len() + bit / 8] ^= 1 << (bit % 8);
        let read = read(&raw);
        prop_assert!(first.agrees(read[0].as_ref().unwrap(), 1));
        prop_assert!(last.agrees(read.last().unwrap().as_ref().unwrap(), 1));
    }
}

/// A record of several grains.
fn long() -> Sample {
    Sample { name: Some(vec![b'n'; 150]), ..PLAIN }
}

#[test]
fn a_bad_record_of_any_length_is_reported_once_and_skipped() {
    for bad in [PLAIN, long()] {
        let mut raw = encode(&PLAIN.draft(), 0, 0, 1);
        let mut bad = encode(&bad.draft(), 1, 1, 1);
        bad[16..24].fill(0);
        let grains = bad.len() / GRAIN_BYTES;
        raw.extend(bad);
        raw.extend(encode(&PLAIN.draft(), 1 + grains as u64, 2, 1));
        let read = read(&raw);
        assert_eq!(read.len(), 3, "{grains} grains");
        assert_eq!(read[1], Err(Invalid::TraceId));
        assert!(read[0].is_ok() && read[2].is_ok());
    }
}

/// The grains as they are in a ring if a producer was overtaken while it wrote: no text is made of two records.
#[test]
fn a_record_with_a_grain_of_another_one_is_invalid() {
    let whole = encode(&long().draft(), 0, 0, 1);
    for (grain, _) in whole.chunks(GRAIN_BYTES).enumerate().skip(1) {
        let stamp_of_another = [1, 1 << 36, 1 << 46].map(|bits| refusal_with(&whole, grain * 8, bits));
        assert_eq!(stamp_of_another, [Some(Invalid::Continuation); 3], "{grain}");
    }
}

#[test]
fn stale_grains_of_another_segment_are_rejected() {
    let raw = encode(&PLAIN.draft(), 0, 0, 1);
    assert_eq!(records(&raw, COOKIE + 1).collect::<Vec<_>>(), vec![Err(Invalid::Stamp)]);
}

/// The error once these bits of one of the record's words are changed.
fn refusal_with(whole: &[u8], index: usize, bits: u64) -> Option<Invalid> {
    let mut raw = whole.to_vec();
    for (byte, changed) in raw[index * 8..].iter_mut().zip(bits.to_le_bytes()) {
        *byte ^= changed;
    }
    read(&raw)[0].clone().err()
}

#[test]
fn malformed_records_of_one_grain_are_invalid() {
    let whole = encode(&PLAIN.draft(), 0, 0, 1);
    let with = |index, bits| refusal_with(&whole, index, bits);
    assert_eq!(with(0, 0), None);
    // A tail, the flag of cells, an unknown flag, an unknown kind, an unknown level.
    assert_eq!(with(7, 5 << 32), Some(Invalid::Tail));
    assert_eq!(with(6, 2 << 48), Some(Invalid::Traits));
    assert_eq!(with(6, 4 << 48), Some(Invalid::Traits));
    assert_eq!(with(6, 1 << 32), Some(Invalid::Traits));
    assert_eq!(with(6, 8 << 40), Some(Invalid::Traits));
    // A string without its value; no name, service or key.
    assert_eq!(with(6, 2 << 32), Some(Invalid::Missing));
    assert_eq!(with(5, 7), Some(Invalid::Missing));
    assert_eq!(with(5, 8 << 32), Some(Invalid::Missing));
    assert_eq!(with(6, 9), Some(Invalid::Missing));
}

#[test]
fn a_stamp_with_too_many_grains_does_not_hide_the_next_record() {
    let mut raw = [0, 1].map(|position| encode(&PLAIN.draft(), position, position, 1)).concat();
    raw[..8].copy_from_slice(&Stamp::head(0, 2, COOKIE).0.to_le_bytes());
    let read = read(&raw);
    assert_eq!(read[0], Err(Invalid::Tail));
    assert_eq!(read[1].as_ref().unwrap().position, 1);
}

#[test]
fn malformed_records_in_cells_are_invalid() {
    let own = InCells {
        ids: [1, 2, 3],
        name: b"Main".to_vec(),
        ip: b"10.0.0.1".to_vec(),
        port: 6800,
        service: b"osd.0".to_vec(),
        key: b"Enqueued op".to_vec(),
        level: 4,
        time: 77,
    };
    let whole = own.encode(0, 0, COOKIE);
    let with = |index, bits| refusal_with(&whole, index, bits);
    assert_eq!(with(0, 0), None);
    // An integer, a port of more than 16 bits, a text that was cut, an id.
    assert_eq!(with(6, 3 << 32), Some(Invalid::Traits));
    assert_eq!(with(6, 1 << 16), Some(Invalid::Traits));
    assert_eq!(with(6, 1 << 48), Some(Invalid::Traits));
    assert_eq!(with(5, 1), Some(Invalid::Traits));
    // A wrong length, a grain of another record.
    assert_eq!(with(7, 1 << 32), Some(Invalid::Tail));
    assert_eq!(with(16, 1), Some(Invalid::Continuation));
    // Two grains.
    assert_eq!(with(0, 1 << 36), Some(Invalid::Tail));
}
