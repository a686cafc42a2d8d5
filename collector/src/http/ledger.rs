//! `GET /api/blkin/ledger`: the ledger as committed; with `?count=store` also a count made by reading every piece in the store.

use std::sync::Arc;

use axum::extract::{Query, State};
use serde_json::{Value, json};

use super::api::{read, read_long};
use super::{App, Json, Problem};
use crate::ledger::{Count, Figure, Ledger};
use crate::query::Parameters;
use crate::store::Store;

pub(super) async fn ledger(
    State(app): State<Arc<App>>,
    Query(pairs): Query<Vec<(String, String)>>,
) -> Result<Json, Problem> {
    let count = match Parameters(pairs).get("count") {
        None => false,
        Some("store") => true,
        Some(other) => return Err(Problem::bad(format!("count={other:?}: only count=store is known"))),
    };
    let answer = move |store: &dyn Store| {
        let ledger = store.ledger()?;
        let mut answer = json!({
            "annotations": figures(&ledger, |count| count.annotations),
            "spans": figures(&ledger, |count| count.spans),
            "balanced": ledger.balances(),
        });
        if count {
            answer["counted_in_store"] = json!(store.count()?);
        }
        Ok(answer)
    };
    Json::of(&if count { read_long(app, answer).await? } else { read(app, answer).await? })
}

fn figures(ledger: &Ledger, unit: fn(Count) -> u64) -> Value {
    let figure = |figure| unit(ledger.get(figure));
    json!({
        "received": unit(ledger.received()),
        "received_by": {
            "scribe": figure(Figure::ReceivedScribe),
            "http_v1": figure(Figure::ReceivedHttpV1),
            "http_v2": figure(Figure::ReceivedHttpV2),
        },
        "stored": figure(Figure::Stored),
        "duplicate": figure(Figure::Duplicate),
        "lost": {
            "malformed": figure(Figure::Malformed),
            "sampled_out": figure(Figure::SampledOut),
            "expired": figure(Figure::Expired),
        },
        "committed": figure(Figure::Committed),
    })
}
