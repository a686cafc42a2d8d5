//! Arbitrary text as a list of v2 spans. What a view reads of an entry must be what the reader reads, and the entries that are
//! read in place must be the first ones of the list.
#![no_main]

use blkin_collector::v2json::read_list;
use blkin_collector::v2view::{List, V2List, V2View, entries};
use blkin_thrift::Limits;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &str| {
    let limits = Limits::default();
    let read = read_list(body.as_bytes(), &limits);
    let (mut list, mut view) = (V2List::new(body), V2View::default());
    let mut texts = Vec::new();
    while let Some(text) = list.next(&mut view, &limits) {
        texts.push(text);
    }
    let Ok(List { entries, excess }) = entries(body, &limits) else {
        assert!(read.is_err() && !list.is_whole());
        return;
    };
    assert_eq!(entries[..texts.len()], texts);
    assert!(!list.is_whole() || entries.len() == texts.len() && excess.is_none());
    let spans = read.expect("a list that can be split");
    assert_eq!(spans.len(), entries.len() + usize::from(excess.is_some()));
    for (entry, span) in entries.into_iter().zip(spans) {
        if !view.read(entry, &limits) {
            continue;
        }
        let span = span.expect("a span that the view could read");
        assert_eq!(view.to_span(), Some(span));
    }
});
