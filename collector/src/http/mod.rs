//! The HTTP side: Zipkin's API, the page, metrics, health, the ledger. All routes are also under `/zipkin`, because a proxy may
//! pass on only that path; the exceptions are those that Zipkin has only at the root, such as `/health`.
//!
//! Errors are plain text. A client's mistake gets 400, 413 or 415; if the store cannot take more, the status is 503.

mod api;
mod body;
mod compression;
mod cors;
mod health;
mod intake;
mod ledger;
mod metrics;
mod page;
mod path;
mod queries;
mod rejects;
mod unread_answers;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{from_fn, map_response_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use blkin_daemon::admin::{self, Admin};
use blkin_daemon::serve::Server;
use blkin_daemon::{CancellationToken, Patience, escapes};
use tokio::net::TcpListener;

pub use metrics::{Metrics, registry};
pub use queries::{Queries, Unanswered};
use unread_answers::UnreadAnswers;

use crate::config::Config;
use crate::ingest::Ingest;
use crate::logged_names::LoggedNames;
use crate::query::{RememberedLinks, RememberedTimes};
use crate::recurring::Recurring;
use crate::settings::Settings;
use crate::store::writer::Writer;
use crate::store::{Store, StoreError};

/// The state that all routes share.
pub struct App {
    /// The configuration.
    pub settings: Settings,
    /// The store, for reading.
    pub store: Arc<dyn Store>,
    /// Handle of the store's thread.
    pub writer: Writer,
    /// Reads the spans that arrive.
    pub ingest: Arc<Ingest>,
    /// Memory for bodies being read.
    pub budget: blkin_scribe::Budget,
    /// Places for queries.
    pub queries: Queries,
    /// Links between services that earlier queries found.
    pub links: RememberedLinks,
    /// Times between annotations that earlier queries found.
    pub times: RememberedTimes,
    /// Whether there were many services when a client last asked for them.
    pub many_services: AtomicBool,
}

impl App {
    /// The current configuration.
    fn config(&self) -> Arc<Config> {
        self.settings.now()
    }
}

/// Serves the routes until `stop`, and then finishes the requests that are under way.
pub async fn serve(
    listener: TcpListener,
    routes: Router,
    max_connections: usize,
    settings: Settings,
    patience: Patience,
    stop: CancellationToken,
) {
    let server = Server::new(listener, routes, max_connections, patience)
        .prepared_by(|request| {
            path::simplify(request.uri_mut());
            compression::take_plain_at_last(request.headers_mut());
        })
        .idle_for(move || settings.now().http_idle_time());
    server.serve(stop).await;
}

/// All routes; `live` are those of the live stream.
pub fn router(app: Arc<App>, admin: Admin, live: Router) -> Router {
    let config = app.config();
    let api = api_routes(app.clone(), UnreadAnswers::new(app.settings.clone()));
    let base = config.ui_base();
    let page = config.ui_dir.as_deref().map_or_else(page::missing, |folder| page::routes(folder, base));
    let own = own_routes(app.clone()).merge(admin::router(admin.clone())).merge(live);
    let logged = Arc::<LoggedNames>::default();
    Router::new()
        .merge(api.clone())
        .merge(own.clone())
        .nest("/zipkin", api.merge(own))
        .merge(info_routes(app, admin))
        .merge(page.layer(compression::layer()))
        .fallback(async move |method: Method, uri: Uri| no_route(&method, &uri, &logged))
        .layer(from_fn(escapes::refuse_wrong))
        .layer(cors::layer(&config.cors_origins))
}

fn api_routes(app: Arc<App>, unread: UnreadAnswers) -> Router {
    // The first layer is the outermost.
    let layers = (compression::layer(), map_response_with_state(unread, unread_answers::count));
    let queries = Router::new()
        .route("/api/v2/services", get(api::services))
        .route("/api/v2/remoteServices", get(api::remote_services))
        .route("/api/v2/traces", get(api::traces))
        .route("/api/v2/trace/{id}", get(api::trace))
        .route("/api/v2/traceMany", get(api::trace_many))
        .route("/api/v2/dependencies", get(api::dependencies))
        .route("/api/v2/autocompleteKeys", get(api::autocomplete_keys))
        .route("/api/v2/autocompleteValues", get(api::autocomplete_values))
        .route("/config.json", get(api::config))
        .layer(layers.clone());
    Router::new()
        .route("/api/v1/spans", post(intake::v1))
        .route("/api/v2/spans", get(api::span_names).layer(layers).post(intake::v2))
        .merge(queries)
        .with_state(app)
}

/// The routes that `blkin` uses beside Zipkin's API.
fn own_routes(app: Arc<App>) -> Router {
    Router::new()
        .route("/api/blkin/ledger", get(ledger::ledger))
        .route("/api/blkin/intervals", get(api::intervals))
        .route("/api/blkin/rejects", get(rejects::rejects))
        .with_state(app)
}

fn info_routes(app: Arc<App>, admin: Admin) -> Router {
    let info =
        Router::new().route("/info", get(api::info)).route("/actuator/info", get(api::info)).with_state(app);
    let health = Router::new()
        .route("/health", get(health::health))
        .route("/actuator/health", get(health::health))
        .route("/prometheus", get(admin::metrics))
        .with_state(admin);
    info.merge(health)
}

/// An answer that is not what the client wanted.
#[derive(Debug)]
pub struct Problem(StatusCode, String);

impl Problem {
    fn bad(reason: impl Into<String>) -> Self {
        Problem(StatusCode::BAD_REQUEST, reason.into())
    }

    fn not_found(reason: impl Into<String>) -> Self {
        Problem(StatusCode::NOT_FOUND, reason.into())
    }

    fn unavailable(reason: impl Into<String>) -> Self {
        Problem(StatusCode::SERVICE_UNAVAILABLE, reason.into())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.0, self.1).into_response();
        if self.0 == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

impl From<crate::query::BadRequest> for Problem {
    fn from(error: crate::query::BadRequest) -> Self {
        Problem::bad(error.0)
    }
}

impl From<Unanswered> for Problem {
    fn from(error: Unanswered) -> Self {
        match error {
            Unanswered::Busy(_) | Unanswered::Stopping => Problem::unavailable(error.to_string()),
            Unanswered::Panicked => Problem(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
            Unanswered::Failed(error) => error.into(),
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        tell_of_failure(&error);
        Problem(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
    }
}

/// Logs that a query failed, with a limit on the rate: one page of a store that cannot be read makes many queries fail at once.
fn tell_of_failure(error: &StoreError) {
    static TOLD: Recurring = Recurring::new();
    if let Some(held_back) = TOLD.admit() {
        tracing::error!(held_back, "failed to answer a query: {error}");
    }
}

/// JSON text as an answer.
struct Json(String);

impl Json {
    fn of(value: &impl serde::Serialize) -> Result<Json, Problem> {
        let failed = |e: serde_json::Error| Problem(StatusCode::INTERNAL_SERVER_ERROR, e.to_string());
        serde_json::to_string(value).map(Json).map_err(failed)
    }
}

impl IntoResponse for Json {
    fn into_response(self) -> Response {
        ([(header::CONTENT_TYPE, "application/json")], Body::from(self.0)).into_response()
    }
}

/// Says in an answer how long a browser may keep it, if its status allows that.
fn kept(answer: impl IntoResponse, how_long: &'static str) -> Response {
    let mut answer = answer.into_response();
    if answer.status().is_success() || answer.status() == StatusCode::NOT_MODIFIED {
        answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static(how_long));
    }
    answer
}

/// Answers a request for an unknown path. A client that posts spans to a wrong path may never look at the answers, so the log
/// names each such path once.
fn no_route(method: &Method, uri: &Uri, logged: &LoggedNames) -> Problem {
    if method == Method::POST
        && let Some(path) = logged.once(uri.path().as_bytes())
    {
        tracing::warn!(
            ?path,
            "refusing a POST to an unknown path: spans go to /api/v2/spans or /api/v1/spans"
        );
    }
    Problem::not_found("no such route: see /info or the documentation")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;

    /// Counts lines of a log.
    struct Lines(Arc<AtomicUsize>);

    impl Subscriber for Lines {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn failing_queries_log_about_one_line_a_second() {
        let lines = Arc::<AtomicUsize>::default();
        let begun = Instant::now();
        tracing::subscriber::with_default(Lines(lines.clone()), || {
            for _ in 0..1000 {
                let Problem(status, _) = StoreError::Full.into();
                assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
            }
        });
        let (lines, seconds) = (lines.load(Ordering::Relaxed), begun.elapsed().as_secs() as usize);
        assert!((1..=2 + seconds).contains(&lines), "{lines} in {seconds} s");
    }
}
