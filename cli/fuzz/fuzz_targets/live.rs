//! A stream of events of anybody who answers for a daemon. Its first byte says how much of it comes at a time: that makes no
//! difference, and an event has no byte that did not come.
#![no_main]

use std::io::{self, Read};

use blkin_cli::live::{Event, Stream};
use libfuzzer_sys::fuzz_target;

/// Gives out little at a time.
struct Pieces<'a>(&'a [u8], usize);

impl Read for Pieces<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let length = out.len().min(self.1);
        self.0.read(&mut out[..length])
    }
}

/// The events, and whether the stream ended as it should.
fn events(stream: impl Read) -> (Vec<Event>, bool) {
    let (mut stream, mut events) = (Stream::new(stream), Vec::new());
    loop {
        match stream.next_event() {
            Ok(Some(event)) => events.push(event),
            end => return (events, end.is_ok()),
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&piece, stream)) = bytes.split_first() else { return };
    let told = events(stream);
    assert_eq!(events(Pieces(stream, usize::from(piece).max(1))), told);
    let spans =
        told.0.iter().filter_map(|event| if let Event::Span(json) = event { Some(json) } else { None });
    let (mut count, mut held) = (0, 0);
    for json in spans {
        assert!(!json.is_empty() && !json.contains('\n'));
        (count, held) = (count + 1, held + json.len());
    }
    // Each has a field's name before it and an empty line behind it.
    assert!(held + count * "data:\n\n".len() <= stream.len());
});
