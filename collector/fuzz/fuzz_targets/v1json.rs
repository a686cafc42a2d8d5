//! Arbitrary text as a list of v1 spans. Accepted spans must be joined without a fault, with the same result if they come twice;
//! a refused span must not affect its neighbour.
#![no_main]

use blkin_collector::merge::{Piece, assemble};
use blkin_collector::refusal::{BadEntry, BadList};
use blkin_collector::v1json::read_list;
use blkin_thrift::{Limits, Span};
use libfuzzer_sys::fuzz_target;

const NEIGHBOUR: &[u8] = br#"{"traceId":"a","id":"b","name":"well-formed"}"#;

fn read(bytes: &[u8]) -> Result<Vec<Result<Span, BadEntry>>, BadList> {
    read_list(bytes, &Limits::default())
}

fuzz_target!(|bytes: &[u8]| {
    if let Ok(entries) = read(bytes) {
        let pieces: Vec<Piece> = entries.into_iter().flatten().map(Piece::V1).collect();
        let twice = [&pieces[..], &pieces].concat();
        assert_eq!(assemble(twice), assemble(pieces));
    }
    let alone = read(&[b"[", bytes, b"]"].concat());
    // Text that itself ends the list leaves the neighbour outside.
    if alone
        .is_ok_and(|entries| entries.last().is_some_and(|last| !matches!(last, Err(BadEntry::AfterList(_)))))
    {
        let entries = read(&[b"[", bytes, b",", NEIGHBOUR, b"]"].concat()).expect("a list with a neighbour");
        let last = entries.into_iter().last().expect("the neighbour").expect("a good neighbour");
        assert_eq!(last.name, "well-formed");
    }
});
