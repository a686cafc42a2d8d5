//! OpenTelemetry's SDK: the caller's side, with the batch processor and an exporter that discards the spans.

use std::time::Duration;

use opentelemetry::Context;
use opentelemetry::trace::{Span, TraceContextExt, Tracer, TracerProvider};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SdkTracer, SdkTracerProvider, SpanData, SpanExporter,
};

use crate::{Case, Pace, timed};

pub const CASES: &[Case] = &[("otel-event", event), ("otel-span", span)];

const CALLS: u32 = 2000;

#[derive(Debug)]
struct Nowhere;

impl SpanExporter for Nowhere {
    async fn export(&self, _batch: Vec<SpanData>) -> OTelSdkResult {
        Ok(())
    }
}

/// A provider with enough room that nothing is dropped: the cost of a drop is not to be measured.
fn provider() -> SdkTracerProvider {
    let config = BatchConfigBuilder::default()
        .with_max_queue_size(8 * CALLS as usize)
        .with_scheduled_delay(Duration::from_millis(1))
        .build();
    SdkTracerProvider::builder()
        .with_span_processor(BatchSpanProcessor::builder(Nowhere).with_batch_config(config).build())
        .with_max_events_per_span(CALLS)
        .build()
}

fn with_tracer(measure: impl FnOnce(&SdkTracer) -> f64) -> f64 {
    let provider = provider();
    measure(&provider.tracer("bench"))
}

fn event(pace: &Pace) -> f64 {
    with_tracer(|tracer| {
        pace.measure(CALLS, || {
            let mut span = tracer.start("Main");
            timed(CALLS, |_| span.add_event("Enqueued op", Vec::new()))
        })
    })
}

fn span(pace: &Pace) -> f64 {
    with_tracer(|tracer| {
        pace.measure(CALLS, || {
            let parent = Context::new().with_span(tracer.start("Main"));
            timed(CALLS, |_| drop(tracer.start_with_context("Journal access", &parent)))
        })
    })
}
