//! Zipkin's `/health`: `{"status": "UP"}`, or `DOWN` and 503. Where Zipkin describes its components, this describes the
//! collector's workers: once in Zipkin's form, and once in that of `/healthz`.

use axum::extract::State;
use axum::http::StatusCode;
use blkin_daemon::admin::Admin;
use blkin_daemon::health::{self, Report};
use serde_json::{Map, Value, json};

use super::{Json, Problem};

pub(super) async fn health(State(admin): State<Admin>) -> Result<(StatusCode, Json), Problem> {
    let report = admin.health.report();
    let code = if report.healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    Ok((code, Json::of(&health_json(&report))?))
}

fn health_json(report: &Report) -> Value {
    let status = |is_up| if is_up { "UP" } else { "DOWN" };
    let workers = report.workers.iter();
    let details: Map<String, Value> = workers
        .map(|worker| (worker.name.clone(), json!({"status": status(worker.state == health::State::Alive)})))
        .collect();
    let all = status(report.healthy);
    json!({"status": all, "zipkin": {"status": all, "details": details}, "workers": report.workers})
}

#[cfg(test)]
mod tests {
    use blkin_daemon::Health;

    use super::*;

    #[test]
    fn health_lists_each_worker_in_zipkins_format() {
        let health = Health::new();
        let (_store, http) = (health.worker("store"), health.worker("http"));
        let zipkin = |status, http| json!({"status": status, "details": {"store": {"status": "UP"}, "http": {"status": http}}});
        assert_eq!(health_json(&health.report())["zipkin"], zipkin("UP", "UP"));
        drop(http);
        let down = health_json(&health.report());
        assert_eq!((&down["zipkin"], &down["status"]), (&zipkin("DOWN", "DOWN"), &"DOWN".into()));
        assert_eq!(down["workers"][1]["state"], "dead");
    }
}
