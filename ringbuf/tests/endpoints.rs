//! Endpoints as they are recorded.

mod own;

use blkin_record::{Endpoint, EndpointParts, EndpointRef, MAX_IP_BYTES, Payload, Record, Source, records};
use blkin_ringbuf::process::{self, Status, init};

#[test]
fn an_overlong_address_is_cut_and_damages_no_record() {
    assert_eq!(init(), Status::Tracing);
    let mut program = own::attach();
    let key = process::declare(b"key");
    for length in [MAX_IP_BYTES, MAX_IP_BYTES + 1, 100, 250, 300] {
        let host = "h".repeat(length);
        let endpoint = EndpointParts { ip: host.as_bytes(), port: 6800, name: b"service" };
        // Twice: when it is met, and when it is known.
        for id in [process::recognise_endpoint(&endpoint), process::recognise_endpoint(&endpoint)] {
            assert_eq!(id != 0, length <= MAX_IP_BYTES, "{length}");
        }
        assert_eq!(process::declare_endpoint(&endpoint) != 0, length <= MAX_IP_BYTES, "{length}");
        process::record(&process::Annotation {
            trace_id: 7,
            span_id: 8,
            parent_span_id: 9,
            name: Source::inline(b"name"),
            endpoint: Source::inline(endpoint),
            key: Source::known(key),
            payload: Payload::Event,
            level: 4,
        });
        let mut raw = Vec::new();
        for slot in 0..program.slots() {
            program.drain(slot, usize::MAX, &mut raw);
            program.publish(slot);
        }
        let found: Vec<_> = records(&raw, program.info().cookie).collect();
        let [Ok(Record { endpoint, .. })] = &found[..] else { panic!("{found:?}") };
        let bytes = match endpoint {
            EndpointRef::Id(id) => program.text(*id).expect("an endpoint has this id"),
            EndpointRef::Inline(bytes) => bytes.to_vec(),
        };
        let ip = Endpoint::decode(&bytes).map(|endpoint| endpoint.ip.len());
        assert_eq!(ip, Some(length.min(MAX_IP_BYTES)), "{length}");
    }
}
