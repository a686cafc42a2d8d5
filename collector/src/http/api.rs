//! Zipkin's query API, version 2.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::{Path, Query, State};
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::{App, Json, Problem, kept};
use crate::model::TraceId;
use crate::query::{self, Answer, Cut, DEFAULT_LIMIT, Defaults, IntervalRequest, Parameters, SearchRequest};
use crate::store::writer::now_ms;
use crate::store::{NameKind, Store, StoreError};
use crate::v2json;

type Shared = State<Arc<App>>;
type Pairs = Query<Vec<(String, String)>>;

/// While there are no more names than this, browsers are not told to keep the list: somebody is trying tracing out, and waits
/// for the next name.
const FEW: usize = 3;
/// How long browsers may keep a longer list of names.
const NAMES_KEPT: &str = "max-age=300, must-revalidate";

pub(super) async fn services(State(app): Shared) -> Result<Response, Problem> {
    let services = names(app.clone(), NameKind::Service, String::new()).await?;
    app.many_services.store(services.len() > FEW, Ordering::Relaxed);
    listed(&app, &services)
}

pub(super) async fn span_names(State(app): Shared, Query(pairs): Pairs) -> Result<Response, Problem> {
    let service = Parameters(pairs).present("serviceName")?.to_lowercase();
    listed(&app, &names(app.clone(), NameKind::Span, service).await?)
}

pub(super) async fn remote_services(State(app): Shared, Query(pairs): Pairs) -> Result<Response, Problem> {
    let service = Parameters(pairs).present("serviceName")?.to_lowercase();
    listed(&app, &names(app.clone(), NameKind::RemoteService, service).await?)
}

/// A list of services, or of names that belong to one. As in Zipkin, browsers may keep it if there were many services when they
/// were last asked for.
fn listed(app: &App, names: &[String]) -> Result<Response, Problem> {
    Ok(kept_if(app.many_services.load(Ordering::Relaxed), Json::of(&names)?))
}

fn kept_if(many: bool, json: Json) -> Response {
    if many { kept(json, NAMES_KEPT) } else { json.into_response() }
}

/// As in Zipkin: sorted, each key once, and also where search is off.
pub(super) async fn autocomplete_keys(State(app): Shared) -> Result<Response, Problem> {
    Ok(kept(Json::of(&BTreeSet::from_iter(&app.config().autocomplete_keys))?, NAMES_KEPT))
}

pub(super) async fn autocomplete_values(
    State(app): Shared,
    Query(pairs): Pairs,
) -> Result<Response, Problem> {
    let parameters = Parameters(pairs);
    let key = parameters.required("key")?;
    if !app.config().autocomplete_keys.iter().any(|configured| configured == key) {
        return Ok(Json("[]".to_owned()).into_response());
    }
    let values = names(app, NameKind::TagValue, key.to_owned()).await?;
    Ok(kept_if(values.len() > FEW, Json::of(&values)?))
}

/// The header of an answer that says that there may be more traces: the answer has as many as the configuration allows, and the
/// client asked for more. Zipkin's clients ignore it.
pub(super) const LIMIT: HeaderName = HeaderName::from_static("blkin-limit");

/// The header of an answer that says that something was left out; its value is the configuration key that sets the bound.
pub(super) const PARTIAL: HeaderName = HeaderName::from_static("blkin-partial");

/// An answer whose headers say whether something was left out.
fn with_cut_header(json: Json, cut: Option<Cut>) -> Response {
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
    let found = read_long(app, move |store| {
        let written = |found: Vec<_>| (Json(v2json::write_traces(&found)), found.len());
        Ok(query::search(store, &request, reading)?.map(written))
    });
    let Answer { found: (json, count), cut } = found.await?;
    let asked = parameters.get("limit").and_then(|limit| limit.parse().ok()).unwrap_or(most);
    let mut answer = with_cut_header(json, cut);
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
        text.trim().parse().map_err(|e| Problem::bad(format!("{text:?} is not a trace id: {e}")))?;
    let reading = app.config().reading();
    let nanos = Parameters(pairs).get("nanos") == Some("true");
    let write = if nanos { v2json::write_trace_with_nanos } else { v2json::write_trace };
    let found = read(app, move |store| {
        let written = |spans: Vec<_>| (!spans.is_empty()).then(|| Json(write(&spans)));
        Ok(query::trace(store, id, reading)?.map(written))
    });
    let Answer { found, cut } = found.await?;
    found.map(|json| with_cut_header(json, cut)).ok_or_else(|| {
        let reason = cut.map(|cut| format!(": its first span alone is larger than {} allows", cut.key()));
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
    let found = read_long(app, move |store| {
        Ok(query::traces(store, &ids, reading)?.map(|found| Json(v2json::write_traces(&found))))
    });
    let Answer { found: json, cut } = found.await?;
    Ok(with_cut_header(json, cut))
}

pub(super) async fn dependencies(State(app): Shared, Query(pairs): Pairs) -> Result<Response, Problem> {
    let parameters = Parameters(pairs);
    parameters.required("endTs")?;
    let window_us = parameters.window_us(&defaults(&app))?;
    let reading = app.config().reading();
    let remembered = app.links.clone();
    let found = read_long(app, move |store| query::dependencies(store, &window_us, reading, &remembered));
    let Answer { found, cut } = found.await?;
    Ok(with_cut_header(Json::of(&found)?, cut))
}

pub(super) async fn intervals(State(app): Shared, Query(pairs): Pairs) -> Result<Response, Problem> {
    let request = IntervalRequest::read(&Parameters(pairs), &defaults(&app))?;
    let reading = app.config().reading();
    let remembered = app.times.clone();
    let measured = read_long(app, move |store| query::intervals(store, &request, reading, &remembered));
    let Answer { found, cut } = measured.await?;
    Ok(with_cut_header(Json::of(&found)?, cut))
}

/// How far Zipkin's page looks back by default; the API itself looks back a day.
const PAGE_LOOKBACK_MS: u64 = 900_000;
/// The page asks for its configuration whenever it is opened; it changes only with the collector's own configuration.
const CONFIG_KEPT: &str = "max-age=600";

pub(super) async fn config(State(app): Shared) -> Result<Response, Problem> {
    let config = json!({
        "environment": "",
        "queryLimit": DEFAULT_LIMIT,
        "defaultLookback": PAGE_LOOKBACK_MS,
        "searchEnabled": app.config().search_enabled,
        "logsUrl": null,
        "supportUrl": null,
        "archivePostUrl": null,
        "archiveUrl": null,
        "dependency": {"enabled": true, "lowErrorRate": 0.5, "highErrorRate": 0.75},
    });
    Ok(kept(Json::of(&config)?, CONFIG_KEPT))
}

pub(super) async fn info(State(_): Shared) -> Result<Json, Problem> {
    Json::of(&json!({"blkin": {"version": env!("CARGO_PKG_VERSION")}, "zipkin": {"api": "v2"}}))
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

/// Runs a query of the store on a thread that may block, once there is a place for it. Large results are written as JSON, and
/// freed, there too: the threads of the sockets have other clients to serve.
pub(super) async fn read<T: Send + 'static>(
    app: Arc<App>,
    query: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, Problem> {
    let store = app.store.clone();
    Ok(app.queries.run(app.config().reading().patience, move || query(&*store)).await?)
}

/// The same for a query that reads many traces, a whole window of time, or the whole store: such queries leave a place to others.
pub(super) async fn read_long<T: Send + 'static>(
    app: Arc<App>,
    query: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, Problem> {
    let store = app.store.clone();
    Ok(app.queries.run_long(app.config().reading().patience, move || query(&*store)).await?)
}
