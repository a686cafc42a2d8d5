//! A slot of the file of positions: no input makes decoding panic, and what was decoded survives encoding and decoding again.
#![no_main]

use blkin_relay_fuzz::spool::checkpoint::{decode, encode};
use libfuzzer_sys::fuzz_target;
use xxhash_rust::xxh3::xxh3_64;

/// Adds a correct length and checksum to the input, so that its content is decoded.
fn sealed(input: &[u8]) -> Vec<u8> {
    let mut bytes = b"BLKPOSIT\x01\0\0\0".to_vec();
    bytes.extend_from_slice(&(16 + input.len() as u32).to_le_bytes());
    bytes.extend_from_slice(input);
    let sum = xxh3_64(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

fuzz_target!(|input: &[u8]| {
    let _whatever = decode(input);
    if let Some((generation, checkpoint)) = decode(&sealed(input)) {
        let written = encode(generation, &checkpoint);
        assert_eq!(decode(&written), Some((generation, checkpoint)));
    }
});
