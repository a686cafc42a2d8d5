//! `GET /api/blkin/live`: takes the conditions of `/api/v2/traces` (`serviceName`, `spanName`, `annotationQuery`,
//! `minDuration`, `maxDuration`, `remoteServiceName`), and checks each span by itself.
//!
//! A span is an unnamed event whose data is the span's v2 JSON. `event: missed` tells how many were left out at that
//! place: `{"spans":…,"unseen":…}`. Status 400: a condition cannot be used. Status 503: too many viewers.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Router;
use axum::extract::{Query, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::sse::{Event as Sent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use blkin_zipkin::query::{Defaults, Parameters, SearchRequest};
use futures_core::Stream;

use crate::hub::{Arrival, Hub, TooMany, View};
use crate::viewer::Event;

/// The path of the live stream.
pub const PATH: &str = "/api/blkin/live";

/// Tells nginx, and proxies that follow its convention, to pass on each event at once instead of filling a buffer first.
const NOT_HELD_BACK: (HeaderName, HeaderValue) =
    (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));

/// The times and limits of a search, which a stream does not use.
const DEFAULTS: Defaults = Defaults { now_ms: 1, max_traces: 1 };

/// The router that serves the live stream of a hub.
pub fn router<A: Arrival>(hub: Hub<A>) -> Router {
    Router::new().route(PATH, get(live::<A>)).with_state(hub)
}

async fn live<A: Arrival>(State(hub): State<Hub<A>>, Query(pairs): Query<Vec<(String, String)>>) -> Response {
    let filter = match SearchRequest::read(&Parameters(pairs), &DEFAULTS) {
        Ok(filter) => filter,
        Err(bad) => return (StatusCode::BAD_REQUEST, bad.to_string()).into_response(),
    };
    match hub.watch(filter) {
        Ok(view) => {
            let alive = KeepAlive::new().interval(hub.keep_alive());
            ([NOT_HELD_BACK], Sse::new(Events(view)).keep_alive(alive)).into_response()
        }
        Err(TooMany) => {
            let reason = "there are too many live viewers already: try again later, or raise live_viewers";
            (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], reason).into_response()
        }
    }
}

struct Events(View);

impl Stream for Events {
    type Item = Result<Sent, Infallible>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_event(context).map(|event| event.map(|event| Ok(sent(&event))))
    }
}

fn sent(event: &Event) -> Sent {
    match event {
        Event::Span(json) => Sent::default().data(json),
        Event::Missed(missed) => {
            let data = serde_json::to_string(missed).unwrap_or_default();
            Sent::default().event("missed").data(data)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use blkin_daemon::Health;
    use blkin_zipkin::model::Span;

    use super::*;
    use crate::Options;

    struct Nothing;

    impl Arrival for Nothing {
        fn entries(&self) -> u64 {
            0
        }

        fn bytes(&self) -> usize {
            0
        }

        fn spans(self, _: &mut dyn FnMut(Span)) {}
    }

    #[tokio::test]
    async fn a_live_stream_disables_proxy_buffering() {
        let options = Options::new(1, 64, Duration::from_secs(60));
        let hub = Hub::<Nothing>::start(options, Health::new().worker("live")).unwrap();
        let answer = live(State(hub), Query(Vec::new())).await;
        let said = |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok());
        assert_eq!(said("x-accel-buffering"), Some("no"));
        assert_eq!(said("content-type"), Some("text/event-stream"));
    }
}
