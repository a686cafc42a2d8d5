//! A list of spans of anybody. It says of each entry what became of it, ends where one breaks the encoding, and what is
//! accepted is written as a list that reads back the same.
#![no_main]

use blkin_thrift::{Error, Limits, Span, span};
use libfuzzer_sys::fuzz_target;

/// Bytes of a list's header: what its elements are, and how many.
const HEADER_BYTES: usize = 5;
const STRUCT: u8 = 12;

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits::default();
    let Ok(entries) = span::decode_list(bytes, &limits) else { return };
    let announced = i32::from_be_bytes(bytes[1..HEADER_BYTES].try_into().expect("four bytes"));
    let whole = entries.iter().take_while(|entry| !matches!(entry, Err(Error::ListBroken { .. }))).count();
    assert!(whole == entries.len() || whole + 1 == entries.len(), "an entry behind the end");
    assert!(whole <= bytes.len());
    assert_eq!(whole == entries.len(), whole == usize::try_from(announced).unwrap_or(0));
    let spans: Vec<Span> = entries.into_iter().flatten().collect();
    let again = span::decode_list(&list_of(&spans), &limits).expect("our own list is readable");
    assert_eq!(again.into_iter().map(|entry| entry.expect("our own span")).collect::<Vec<_>>(), spans);
});

fn list_of(spans: &[Span]) -> Vec<u8> {
    let count = i32::try_from(spans.len()).expect("as many as were read");
    let mut list = [&[STRUCT][..], &count.to_be_bytes()].concat();
    spans.iter().for_each(|span| span::encode_into(span, &mut list));
    list
}
