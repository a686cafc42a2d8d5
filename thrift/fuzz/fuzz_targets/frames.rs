//! A stream of frames, cut where its first byte says.
#![no_main]

use blkin_thrift::Limits;
use blkin_thrift::frame::FrameReader;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((&cut, stream)) = bytes.split_first() else { return };
    let mut reader = FrameReader::new(&Limits::default());
    let mut out = 0;
    for piece in stream.chunks(usize::from(cut).max(1)) {
        reader.extend(piece);
        loop {
            match reader.next_frame() {
                Ok(Some(frame)) => out += frame.len() + 4,
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
    assert_eq!(out + reader.pending_bytes(), stream.len());
});
