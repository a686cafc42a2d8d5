//! BlkKin's Rust API.

use std::hint::black_box;
use std::time::Duration;

use blkin::{Endpoint, Span};

use crate::{Case, Pace, timed};

pub const CASES: &[Case] = &[
    ("rust-event", event),
    ("rust-integer", integer),
    ("rust-string", string),
    ("rust-text", text),
    ("rust-span", span),
    ("rust-child", child),
    ("rust-root", root),
];

const CALLS: u32 = 5000;
/// consumerd accepts the program's offer within this time.
const ATTACH: Duration = Duration::from_millis(100);
const ENDPOINT: Endpoint<'static> = Endpoint::new("osd.0").at("10.0.0.1", 6800);
/// As many requests as a busy daemon has open at a time.
const REQUESTS: usize = 64;

fn requests() -> [Span<'static>; REQUESTS] {
    std::array::from_fn(|_| Span::root("Main", &ENDPOINT))
}

fn measure(pace: &Pace, call: impl Fn(&Span<'static>, u32)) -> f64 {
    measure_calls(pace, CALLS, call)
}

fn measure_calls(pace: &Pace, calls: u32, call: impl Fn(&Span<'static>, u32)) -> f64 {
    blkin::init();
    std::thread::sleep(ATTACH);
    pace.measure(calls, || {
        let spans = requests();
        timed(calls, |n| call(black_box(&spans[n as usize % REQUESTS]), n))
    })
}

fn event(pace: &Pace) -> f64 {
    measure(pace, |span, _| blkin::event!(span, "Enqueued op"))
}

fn integer(pace: &Pace) -> f64 {
    measure(pace, |span, n| blkin::tag!(span, "bytes", n))
}

fn string(pace: &Pace) -> f64 {
    measure(pace, |span, _| blkin::tag!(span, "Object", "rbd_data.1"))
}

/// An event whose name is recognised by its content.
fn text(pace: &Pace) -> f64 {
    measure(pace, |span, _| span.event(black_box("Enqueued op")))
}

/// A span as in Dapper: a child with its two ends. A burst has half as many calls, because each makes two records.
fn span(pace: &Pace) -> f64 {
    measure_calls(pace, CALLS / 2, |span, _| {
        let child = span.child("Journal access", &ENDPOINT);
        blkin::event!(child, "begin");
        child.end();
    })
}

fn child(pace: &Pace) -> f64 {
    measure(pace, |span, _| {
        black_box(span.child("Journal access", &ENDPOINT));
    })
}

fn root(pace: &Pace) -> f64 {
    measure(pace, |_, _| {
        black_box(Span::root("Main", &ENDPOINT));
    })
}
