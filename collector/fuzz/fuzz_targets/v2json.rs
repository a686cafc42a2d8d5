//! Arbitrary text as a list of v2 spans. Accepted spans must be the same after writing and reading, and be shown without a fault;
//! a refused span must not affect its neighbour.
#![no_main]

use blkin_collector::model::Span;
use blkin_collector::refusal::{BadEntry, BadList};
use blkin_collector::trace::Linker;
use blkin_collector::v2json::{read_list, write_trace};
use blkin_thrift::Limits;
use libfuzzer_sys::fuzz_target;

const NEIGHBOUR: &[u8] = br#"{"traceId":"a","id":"b","name":"well-formed"}"#;

fn read(bytes: &[u8]) -> Result<Vec<Result<Span, BadEntry>>, BadList> {
    read_list(bytes, &Limits::default())
}

fuzz_target!(|bytes: &[u8]| {
    if let Ok(entries) = read(bytes) {
        let spans: Vec<Span> = entries.into_iter().flatten().collect();
        let again = read(write_trace(&spans).as_bytes()).expect("our own list is readable");
        assert_eq!(again.into_iter().map(|entry| entry.expect("our own span")).collect::<Vec<_>>(), spans);
        let mut linker = Linker::default();
        linker.add_trace(spans);
        linker.links();
    }
    let alone = read(&[b"[", bytes, b"]"].concat());
    // Text that itself ends the list leaves the neighbour outside.
    if alone
        .is_ok_and(|entries| entries.last().is_some_and(|last| !matches!(last, Err(BadEntry::AfterList(_)))))
    {
        let entries = read(&[b"[", bytes, b",", NEIGHBOUR, b"]"].concat()).expect("a list with a neighbour");
        let last = entries.into_iter().last().expect("the neighbour").expect("a good neighbour");
        assert_eq!(last.name.as_deref(), Some("well-formed"));
    }
});
