//! Decodes an endpoint of a table of names. If its texts are UTF-8, it must encode to the same bytes.
#![no_main]

use blkin_record::{Endpoint, EndpointParts};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some(Endpoint { ip, port, name }) = Endpoint::decode(bytes) else { return };
    let parts = EndpointParts { ip: ip.as_bytes(), port, name: name.as_bytes() };
    let replaced = |text: &str| text.contains(char::REPLACEMENT_CHARACTER);
    if !replaced(&ip) && !replaced(&name) {
        assert_eq!([&parts.fixed()[..], parts.ip, parts.name].concat(), bytes);
    }
});
