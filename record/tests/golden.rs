//! Sample records of each version are kept under version control; a decoder that shares no code with the crate reads them.
//! `BLKIN_BLESS=1 cargo test -p blkin-record` rewrites them: only for a new version of the layout.

use std::path::{Path, PathBuf};
use std::process::Command;

mod own;

use blkin_record::{
    Draft, EndpointParts, EndpointRef, GRAIN_BYTES, Payload, Source, Text, VERSION, is_read, records,
};
use own::InCells;

const COOKIE: u32 = 0x1_5a5a;

fn drafts() -> Vec<Draft<'static>> {
    let event = Draft {
        trace_id: 0x1122_3344_5566_7788,
        span_id: 2,
        parent_span_id: 0,
        name: Source::known(1),
        endpoint: Source::known(9),
        key: Source::known(0xffff_fff1),
        payload: Payload::Event,
        level: 4,
        truncated: false,
    };
    let endpoint = EndpointParts { ip: b"2001:db8::1", port: 65535, name: "ημερολόγιο".as_bytes() };
    vec![
        event,
        Draft { payload: Payload::Integer(-5), parent_span_id: u64::MAX, level: 7, ..event },
        Draft { payload: Payload::Str(b"v"), truncated: true, ..event },
        Draft {
            name: Source::inline(b"Journal access"),
            endpoint: Source::inline(endpoint),
            key: Source::inline(b"Object"),
            payload: Payload::Str("a text that needs more than a single grain of its own, 対象".as_bytes()),
            ..event
        },
        event,
    ]
}

/// The records that version 2 adds to version 1.
fn in_cells() -> InCells {
    InCells {
        ids: [0x1122_3344_5566_7788, 3, 2],
        name: b"Journal access".to_vec(),
        ip: b"255.255.255.255".to_vec(),
        port: 65535,
        service: b"sixteen bytes it".to_vec(),
        key: "Span ended: 対象, 0123456789".as_bytes().to_vec(),
        level: 4,
        time: 0x0123_4567_89ab,
    }
}

fn encoded(version: u32) -> Vec<u8> {
    let mut raw = Vec::new();
    // The last positions before the 36 bits of a position wrap: the golden bytes show the wrap.
    let mut position = (1u64 << 36) - 3;
    for (ordinal, draft) in drafts().iter().enumerate() {
        let mut words = vec![0u64; draft.grains() * 8];
        let stamp = draft
            .write(position, ordinal as u64, COOKIE, 0x0123_4567_89ab, |index, word| words[index] = word);
        words[0] = stamp.0;
        position += draft.grains() as u64;
        raw.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }
    if version > 1 {
        raw.extend(in_cells().encode(position, drafts().len() as u64, COOKIE));
    }
    raw
}

fn golden(version: u32, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("v{version}-{name}"))
}

fn decoded_by_python(version: u32) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/decode.py");
    let output = Command::new("python3")
        .arg(script)
        .arg(golden(version, "records.bin"))
        .output()
        .expect("python3 runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("JSON is UTF-8")
}

#[test]
fn golden_records_match_our_writer_and_an_independent_decoder() {
    if std::env::var_os("BLKIN_BLESS").is_some() {
        std::fs::write(golden(VERSION, "records.bin"), encoded(VERSION)).unwrap();
        std::fs::write(golden(VERSION, "records.json"), decoded_by_python(VERSION)).unwrap();
    }
    for version in (0..=VERSION).filter(|version| is_read(u64::from(*version))) {
        assert_eq!(std::fs::read(golden(version, "records.bin")).unwrap(), encoded(version));
        assert_eq!(
            std::fs::read_to_string(golden(version, "records.json")).unwrap(),
            decoded_by_python(version)
        );
    }
    assert!(is_read(1) && !is_read(0) && !is_read(u64::from(VERSION) + 1));
}

#[test]
fn an_event_in_cells_reads_back_with_its_texts() {
    let raw = std::fs::read(golden(2, "records.bin")).unwrap();
    let all: Vec<_> = records(&raw, COOKIE).collect::<Result<_, _>>().unwrap();
    let own = in_cells();
    let last = all.last().unwrap();
    assert_eq!(all.len(), drafts().len() + 1);
    assert_eq!([last.trace_id, last.span_id, last.parent_span_id], own.ids);
    assert_eq!((last.level, last.time, last.truncated), (4, own.time, false));
    assert_eq!(last.name, Text::Inline(own.name.into()));
    assert_eq!(last.key, Text::Inline(own.key.into()));
    let endpoint = EndpointParts { ip: &own.ip, port: own.port, name: &own.service };
    let endpoint = [&endpoint.fixed(), endpoint.ip, endpoint.name].concat();
    assert_eq!(last.endpoint, EndpointRef::Inline(endpoint.into()));
    assert!(
        raw.ends_with(&[0xee; 3 * 8]) && raw.len().is_multiple_of(GRAIN_BYTES),
        "the last grain ends with padding"
    );
}
