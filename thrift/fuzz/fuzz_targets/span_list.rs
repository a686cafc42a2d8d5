//! Decodes a list of spans. There is a result for each entry up to the first that breaks the encoding, and the accepted spans,
//! written as a list, must read back the same.
#![no_main]

use blkin_thrift::{Error, Limits, Span, span};
use libfuzzer_sys::fuzz_target;

/// Size of a list's header, in bytes: the type of the elements and their number.
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
    // Empty annotations are not written again.
    let spans: Vec<Span> = entries.into_iter().flatten().map(|span| Span { left_out: 0, ..span }).collect();
    let again = span::decode_list(&list_of(&spans), &limits).expect("our own list is readable");
    assert_eq!(again.into_iter().map(|entry| entry.expect("our own span")).collect::<Vec<_>>(), spans);
});

fn list_of(spans: &[Span]) -> Vec<u8> {
    let count = i32::try_from(spans.len()).expect("as many as were read");
    let mut list = [&[STRUCT][..], &count.to_be_bytes()].concat();
    spans.iter().for_each(|span| span::encode_into(span, &mut list));
    list
}
