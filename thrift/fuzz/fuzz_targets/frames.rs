//! Reads a stream of frames that arrives in pieces, whose size is the first byte. The pieces must not change the frames.
#![no_main]

use blkin_thrift::Limits;
use blkin_thrift::frame::{FrameReader, HEADER_BYTES};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((&cut, mut left)) = bytes.split_first() else { return };
    let limits = Limits::default();
    let mut reader = FrameReader::new(&limits);
    for piece in left.chunks(usize::from(cut).max(1)) {
        reader.extend(piece);
        loop {
            match reader.next_frame() {
                Ok(Some(frame)) => {
                    let (next, rest) = split(left).expect("a frame of the stream");
                    assert_eq!(frame, next);
                    left = rest;
                }
                Ok(None) => break,
                Err(_) => {
                    assert!(announced(left).is_some_and(|length| length > limits.max_frame_bytes));
                    return;
                }
            }
        }
    }
    assert!(split(left).is_none(), "a whole frame was not given out");
    assert_eq!(reader.pending_bytes(), left.len());
});

fn announced(stream: &[u8]) -> Option<usize> {
    stream.first_chunk().map(|header| u32::from_be_bytes(*header) as usize)
}

/// The first frame, if it is complete, and the bytes that follow it.
fn split(stream: &[u8]) -> Option<(&[u8], &[u8])> {
    stream[HEADER_BYTES.min(stream.len())..].split_at_checked(announced(stream)?)
}
