//! A trace of anybody who answers for a collector, drawn as wide as its first byte says: every span once, no line longer than
//! the terminal is wide, and nothing that drives it.
#![no_main]

use blkin_cli::span::Span;
use blkin_cli::terminal::{Style, safe, width};
use blkin_cli::waterfall::{View, draw};
use blkin_cli::{tree, views};
use libfuzzer_sys::fuzz_target;

/// Narrower terminals wrap lines.
const LEAST_COLUMNS: usize = 40;

fuzz_target!(|bytes: &[u8]| {
    let Some((&columns, json)) = bytes.split_first() else { return };
    let Ok(spans) = serde_json::from_slice::<Vec<Span>>(json) else { return };
    check_tree(&spans);
    let style = Style { columns: LEAST_COLUMNS + usize::from(columns), colours: false };
    let drawn = draw(&spans, View { style, annotations: true });
    assert!(drawn.lines().all(|line| safe(line) == line), "{drawn:?}");
    let bare = draw(&spans, View { style, annotations: false });
    let shown = views::joined(&spans).len();
    assert!(bare.lines().count() > shown, "each has a line, below the heading");
    let widest = bare.lines().rev().take(shown).map(width).max();
    assert!(widest.is_none_or(|widest| widest <= style.columns), "{bare}");
});

fn check_tree(spans: &[Span]) {
    let rows = tree::rows(spans);
    let mut drawn: Vec<usize> = rows.iter().map(|row| row.span).collect();
    drawn.sort_unstable();
    assert!(drawn.into_iter().eq(0..spans.len()));
    assert!(rows.first().is_none_or(|row| row.depth() == 0));
    assert!(rows.windows(2).all(|pair| pair[1].depth() <= pair[0].depth() + 1));
}
