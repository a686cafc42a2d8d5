//! `GET /api/blkin/rejects`: the most recent rejected entries with their reasons, and how many there were by cause.

use std::sync::Arc;

use axum::extract::State;
use serde_json::{Map, Value, json};

use super::{App, Json, Problem};
use crate::ingest::{ALL_TRANSPORTS, Rejects};
use crate::refusal::ALL_CAUSES;

pub(super) async fn rejects(State(app): State<Arc<App>>) -> Result<Json, Problem> {
    let rejects = app.ingest.rejects();
    Json::of(&json!({"counts": counts(rejects), "recent": rejects.recent()}))
}

/// The counts that are not zero, by transport and cause.
fn counts(rejects: &Rejects) -> Value {
    let by_cause = |transport| -> Map<String, Value> {
        let counts = ALL_CAUSES.map(|cause| (cause, rejects.count(transport, cause)));
        let some = counts.into_iter().filter(|&(_, count)| count > 0);
        some.map(|(cause, count)| (cause.label().to_owned(), count.into())).collect()
    };
    let transports =
        ALL_TRANSPORTS.map(|transport| (transport.label().to_owned(), by_cause(transport).into()));
    Value::Object(transports.into_iter().collect())
}
