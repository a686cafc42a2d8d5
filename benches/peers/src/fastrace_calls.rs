//! fastrace: the caller's side. Its reporter discards the spans, which costs less than any real reporter.

use std::time::Duration;

use fastrace::collector::{Config, Reporter, SpanContext, SpanRecord};
use fastrace::local::LocalSpan;
use fastrace::{Event, Span};

use crate::{Case, Pace, timed};

pub const CASES: &[Case] = &[("fastrace-event", event), ("fastrace-span", span)];

/// A thread's queue holds 4,096 spans and events and drops any more. The cost of a drop is not to be measured.
const CALLS: u32 = 4000;

struct Nowhere;

impl Reporter for Nowhere {
    fn report(&mut self, _spans: Vec<SpanRecord>) {}
}

/// Measures a burst below one root. The time excludes beginning the root and handing over its spans.
fn measure(pace: &Pace, call: impl Fn(u32) + Copy) -> f64 {
    fastrace::set_reporter(Nowhere, Config::default().report_interval(Duration::from_millis(1)));
    pace.measure(CALLS, || {
        let root = Span::root("Main", SpanContext::random());
        let _parent = root.set_local_parent();
        timed(CALLS, call)
    })
}

fn event(pace: &Pace) -> f64 {
    measure(pace, |_| LocalSpan::add_event(Event::new("Enqueued op")))
}

fn span(pace: &Pace) -> f64 {
    measure(pace, |_| drop(LocalSpan::enter_with_local_parent("Journal access")))
}
