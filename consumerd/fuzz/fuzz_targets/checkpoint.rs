//! Any bytes as a checkpoint, and as a row of the table of numbers: neither is believed to hold more than it does, and what is
//! read reads the same after it is written again.
#![no_main]

use blkin_consumerd_fuzz::staging::{Checkpoint, NumberRow};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Some(checkpoint) = Checkpoint::decode(input) {
        let written = checkpoint.encode();
        assert_eq!(written.len(), input.len());
        assert_eq!(Checkpoint::decode(&written), Some(checkpoint));
    }
    if let Some(row) = input.first_chunk()
        && let Some(found) = NumberRow::decode(row)
    {
        assert_eq!(found.encode(), *row);
    }
});
