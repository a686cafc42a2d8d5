//! Zipkin's query API, version 2.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use blkin_daemon::admin::Admin;
use serde_json::json;

use super::{App, Json, Problem};
use crate::model::TraceId;
use crate::query::{self, Answer, Cut, DEFAULT_LIMIT, Defaults, IntervalRequest, Parameters, SearchRequest};
use crate::store::writer::now_ms;
use crate::store::{NameKind, Store, StoreError};
use crate::v2json;

type Shared = State<Arc<App>>;
type Pairs = Query<Vec<(String, String)>>;

pub(super) async fn services(State(app): Shared) -> Result<Json, Problem> {
    Json::of(&names(app, NameKind::Service, String::new()).await?)
}

pub(super) async fn span_names(State(app): Shared, Query(pairs): Pairs) -> Result<Json, Problem> {
    let service = Parameters(pairs).present("serviceName")?.to_lowercase();
    Json::of(&names(app, NameKind::Span, service).await?)
}

pub(super) async fn remote_services(State(app): Shared, Query(pairs): Pairs) -> Result<Json, Problem> {
    let service = Parameters(pairs).present("serviceName")?.to_lowercase();
    Json::of(&names(app, NameKind::RemoteService, service).await?)
}

/// As Zipkin: in order, each once, and also where search is off.
pub(super) async fn autocomplete_keys(State(app): Shared) -> Result<Json, Problem> {
    Json::of(&BTreeSet::from_iter(&app.config().autocomplete_keys))
}

pub(super) async fn autocomplete_values(State(app): Shared, Query(pairs): Pairs) -> Result<Json, Problem> {
    let parameters = Parameters(pairs);
    let key = parameters.required("key")?;
    if !app.config().autocomplete_keys.iter().any(|configured| configured == key) {
        return Ok(Json("[]".to_owned()));
    }
    Json::of(&names(app, NameKind::TagValue, key.to_owned()).await?)
}

/// Says of an answer that there may be more traces: it has as many as the configuration lets one have, and the client asked
/// for more. Zipkin's clients pass over it.
const LIMIT: HeaderName = HeaderName::from_static("blkin-limit");

/// Says of an answer that something was left out: the key of the configuration that bounds it.
const PARTIAL: HeaderName = HeaderName::from_static("blkin-partial");

/// An answer that tells whether it is all.
fn told(json: Json, cut: Option<Cut>) -> Response {
    let mut answer = json.into_response();
    if let Some(cut) = cut {
        answer.headers_mut().insert(PARTIAL, HeaderValue::from_static(cut.key()));
    }
    answer
}

pub(super) async fn traces(State(app): Shared, Query(pairs): Pairs) -> Result<Response, Problem> {
    let parameters = Parameters(pairs);
    let request = SearchRequest::read(&parameters, &defaults(&app))?;
    if !app.config().search_enabled {
        return Ok(Json("[]".to_owned()).into_response());
    }
    let (reading, most) = (app.config().reading(), request.limit);
    let found = read(app, move |store| {
        let written = |found: Vec<_>| (Json(v2json::write_traces(&found)), found.len());
        Ok(query::search(store, &request, reading)?.map(written))
    });
    let Answer { found: (json, count), cut } = found.await?;
    let asked = parameters.get("limit").and_then(|limit| limit.parse().ok()).unwrap_or(most);
    let mut answer = told(json, cut);
    if asked > most && count == most {
        answer.headers_mut().insert(LIMIT, HeaderValue::from(most));
    }
    Ok(answer)
}

pub(super) async fn trace(
    State(app): Shared,
    Path(text): Path<String>,
    Query(pairs): Pairs,
) -> Result<Response, Problem> {
    let id: TraceId =
        text.trim().parse().map_err(|e| Problem::bad(format!("{text:?} is no trace id: {e}")))?;
    let reading = app.config().reading();
    let nanos = Parameters(pairs).get("nanos") == Some("true");
    let write = if nanos { v2json::write_trace_with_nanos } else { v2json::write_trace };
    let found = read(app, move |store| {
        let written = |spans: Vec<_>| (!spans.is_empty()).then(|| Json(write(&spans)));
        Ok(query::trace(store, id, reading)?.map(written))
    });
    let Answer { found, cut } = found.await?;
    found.map(|json| told(json, cut)).ok_or_else(|| {
        let reason = cut.map(|cut| format!(": its first span alone is more than {} allows", cut.key()));
        Problem::not_found(format!("{id} not found{}", reason.unwrap_or_default()))
    })
}

pub(super) async fn trace_many(State(app): Shared, Query(pairs): Pairs) -> Result<Response, Problem> {
    let parameters = Parameters(pairs);
    let reading = app.config().reading();
    let ids = query::read_trace_ids(parameters.required("traceIds")?)?;
    let most = app.config().query_max_traces;
    if ids.len() > most {
        return Err(Problem::bad(format!("more than {most} trace ids: ask in several requests")));
    }
    let found = read(app, move |store| {
        Ok(query::traces(store, &ids, reading)?.map(|found| Json(v2json::write_traces(&found))))
    });
    let Answer { found: json, cut } = found.await?;
    Ok(told(json, cut))
}

pub(super) async fn dependencies(State(app): Shared, Query(pairs): Pairs) -> Result<Response, Problem> {
    let parameters = Parameters(pairs);
    parameters.required("endTs")?;
    let window_us = parameters.window_us(&defaults(&app))?;
    let reading = app.config().reading();
    let Answer { found, cut } =
        read_long(app, move |store| query::dependencies(store, &window_us, reading)).await?;
    Ok(told(Json::of(&found)?, cut))
}

pub(super) async fn intervals(State(app): Shared, Query(pairs): Pairs) -> Result<Json, Problem> {
    let request = IntervalRequest::read(&Parameters(pairs), &defaults(&app))?;
    let reading = app.config().reading();
    Json::of(&read_long(app, move |store| query::intervals(store, &request, reading)).await?)
}

/// The time that Zipkin's page looks back unless it is told otherwise; the API itself looks back a day.
const PAGE_LOOKBACK_MS: u64 = 900_000;

pub(super) async fn config(State(app): Shared) -> Result<Json, Problem> {
    Json::of(&json!({
        "environment": "",
        "queryLimit": DEFAULT_LIMIT,
        "defaultLookback": PAGE_LOOKBACK_MS,
        "searchEnabled": app.config().search_enabled,
        "logsUrl": null,
        "supportUrl": null,
        "archivePostUrl": null,
        "archiveUrl": null,
        "dependency": {"enabled": true, "lowErrorRate": 0.5, "highErrorRate": 0.75},
    }))
}

pub(super) async fn info(State(_): Shared) -> Result<Json, Problem> {
    Json::of(&json!({"blkin": {"version": env!("CARGO_PKG_VERSION")}, "zipkin": {"api": "v2"}}))
}

/// Zipkin's `/health`: `{"status": "UP"}`, or `DOWN` and 503.
pub(super) async fn health(State(admin): State<Admin>) -> Result<impl IntoResponse, Problem> {
    let report = admin.health.report();
    let status = if report.healthy { "UP" } else { "DOWN" };
    let answer =
        Json::of(&json!({"status": status, "zipkin": {"status": status}, "workers": report.workers}))?;
    let code =
        if report.healthy { axum::http::StatusCode::OK } else { axum::http::StatusCode::SERVICE_UNAVAILABLE };
    Ok((code, answer))
}

fn defaults(app: &App) -> Defaults {
    Defaults { now_ms: now_ms(), max_traces: app.config().query_max_traces }
}

async fn names(app: Arc<App>, kind: NameKind, of: String) -> Result<Vec<String>, Problem> {
    if !app.config().search_enabled {
        return Ok(Vec::new());
    }
    read(app, move |store| store.names(kind, &of)).await
}

/// Runs a query of the store where it may block, once there is a place for it. What may be large is written there too, and
/// let go of: the threads of the sockets have others to serve.
pub(super) async fn read<T: Send + 'static>(
    app: Arc<App>,
    query: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, Problem> {
    let store = app.store.clone();
    Ok(app.queries.run(move || query(&*store)).await?)
}

/// The same for one that reads all there is, or all of a window of time: such leave a place to others.
pub(super) async fn read_long<T: Send + 'static>(
    app: Arc<App>,
    query: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, Problem> {
    let store = app.store.clone();
    Ok(app.queries.run_long(move || query(&*store)).await?)
}
