//! The bytes of version 1 are kept under version control, and a decoder that shares no code with ours reads them.
//! `BLKIN_BLESS=1 cargo test -p blkin-record` writes them anew, for a new version of the layout only.

use std::path::{Path, PathBuf};
use std::process::Command;

use blkin_record::{Draft, EndpointParts, Payload, Source, VERSION};

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

fn encoded() -> Vec<u8> {
    let mut raw = Vec::new();
    // The last positions of a lap of the position's 36 bits: the golden bytes show the wrap.
    let mut position = (1u64 << 36) - 3;
    for (ordinal, draft) in drafts().iter().enumerate() {
        let mut words = vec![0u64; draft.grains() * 8];
        let stamp = draft
            .write(position, ordinal as u64, COOKIE, 0x0123_4567_89ab, |index, word| words[index] = word);
        words[0] = stamp.0;
        position += draft.grains() as u64;
        raw.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }
    raw
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("v{VERSION}-{name}"))
}

fn decoded_by_python() -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/decode.py");
    let output =
        Command::new("python3").arg(script).arg(golden("records.bin")).output().expect("python3 runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("JSON is UTF-8")
}

#[test]
fn golden_bytes_are_what_we_write_and_what_an_independent_decoder_reads() {
    if std::env::var_os("BLKIN_BLESS").is_some() {
        std::fs::write(golden("records.bin"), encoded()).unwrap();
        std::fs::write(golden("records.json"), decoded_by_python()).unwrap();
    }
    assert_eq!(std::fs::read(golden("records.bin")).unwrap(), encoded());
    assert_eq!(std::fs::read_to_string(golden("records.json")).unwrap(), decoded_by_python());
}
