//! The collector's answers must be Zipkin's: `zipkin/corpus.tsv` holds inputs, and what Zipkin's own library makes of them
//! (`zipkin/make.py`).
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::fmt::Display;
use std::path::PathBuf;

use blkin_collector::convert::v1_to_v2;
use blkin_collector::model::Span;
use blkin_collector::trace::{Linker, merge_for_reading};
use blkin_collector::{v1json, v2json};
use blkin_thrift::{Limits, span};

/// What the collector makes of an input, in the form of the corpus.
fn answer(kind: &str, input: &str) -> String {
    let limits = Limits::default();
    match kind {
        "v1json" => written(convert_all(v1json::read_list(input.as_bytes(), &limits))),
        "v1thrift" => written(convert_all(span::decode_list(&bytes_of_hex(input), &limits))),
        "v2json" => written(all(v2json::read_list(input.as_bytes(), &limits))),
        "merge" => written(all(v2json::read_list(input.as_bytes(), &limits)).map(merge_for_reading)),
        "links" => {
            let mut linker = Linker::default();
            linker.add_trace(all(v2json::read_list(input.as_bytes(), &limits)).unwrap());
            serde_json::to_string(&linker.links()).unwrap()
        }
        other => panic!("the corpus has an input of an unknown kind: {other}"),
    }
}

/// Zipkin fails a whole list for one bad entry.
fn all<T, E: Display, L: Display>(list: Result<Vec<Result<T, E>>, L>) -> Option<Vec<T>> {
    list.ok()?.into_iter().collect::<Result<_, _>>().ok()
}

fn convert_all<E: Display, L: Display>(
    list: Result<Vec<Result<blkin_thrift::Span, E>>, L>,
) -> Option<Vec<Span>> {
    Some(all(list)?.iter().flat_map(v1_to_v2).collect())
}

fn written(spans: Option<Vec<Span>>) -> String {
    spans.map_or("error".to_owned(), |spans| v2json::write_trace(&spans))
}

fn bytes_of_hex(hex: &str) -> Vec<u8> {
    hex.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// The corpus, or another one that is to be tried before it is added.
fn corpus() -> String {
    let own = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/zipkin/corpus.tsv"));
    let path = std::env::var_os("BLKIN_ZIPKIN_CORPUS").map_or(own, PathBuf::from);
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn every_answer_matches_zipkins() {
    let corpus = corpus();
    let mut differences = Vec::new();
    let mut count = 0;
    for line in corpus.lines() {
        let [kind, input, expected] = line.splitn(3, '\t').collect::<Vec<_>>().try_into().unwrap();
        let ours = answer(kind, input);
        count += 1;
        if ours != expected {
            differences.push(format!("{kind}\n  input  {input}\n  zipkin {expected}\n  ours   {ours}"));
        }
    }
    let shown = differences.iter().take(10).cloned().collect::<Vec<_>>().join("\n");
    assert!(differences.is_empty(), "{} of {count} answers differ, among them:\n{shown}", differences.len());
    assert!(count > 350, "the corpus is too small: {count}");
}
