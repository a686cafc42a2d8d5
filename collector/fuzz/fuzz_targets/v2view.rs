//! A list of v2 spans of anybody. What a view says of an entry is what the reader reads, and what is read in place of a list
//! is how it begins.
#![no_main]

use blkin_collector::v2json::read_list;
use blkin_collector::v2view::{V2List, V2View, entries};
use blkin_thrift::Limits;
use libfuzzer_sys::fuzz_target;

fn lower(text: &str) -> String {
    text.to_lowercase()
}

fuzz_target!(|body: &str| {
    let limits = Limits::default();
    let read = read_list(body.as_bytes(), &limits);
    let (mut list, mut view) = (V2List::new(body), V2View::default());
    let mut texts = Vec::new();
    while let Some(text) = list.next(&mut view, &limits) {
        texts.push(text);
    }
    let Ok(entries) = entries(body, &limits) else {
        assert!(read.is_err() && !list.is_whole());
        return;
    };
    assert_eq!(entries[..texts.len()], texts);
    assert!(!list.is_whole() || entries.len() == texts.len());
    let spans = read.expect("a list that can be split");
    assert_eq!(spans.len(), entries.len());
    for (entry, span) in entries.into_iter().zip(spans) {
        if !view.read(entry, &limits) {
            continue;
        }
        let span = span.expect("what a view reads is a span");
        assert_eq!((view.trace_id, view.parent), (Some(span.trace_id), span.parent_id.is_some()));
        assert_eq!((view.debug, view.name.map(lower)), (span.debug, span.name.clone()));
        assert_eq!((view.timestamp, view.duration), (span.timestamp, span.duration));
        assert_eq!(view.service.map(lower).as_deref(), span.local_service());
        assert_eq!(view.remote_service.map(lower).as_deref(), span.remote_service());
        assert!(
            view.annotations.iter().copied().eq(span.annotations.iter().map(|a| (a.timestamp, &*a.value)))
        );
        assert!(view.tags.iter().copied().eq(span.tags.iter().map(|(key, value)| (&**key, &**value))));
    }
});
