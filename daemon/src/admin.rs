//! The two routes that every daemon serves: `/metrics` (for Prometheus) and `/healthz` (200 or 503, JSON).

use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

use crate::connection::Patience;
use crate::escapes;
use crate::exposition::Exposition;
use crate::health::Health;
use crate::presence;
use crate::serve::Server;

/// Most connections of clients that ask only for metrics and health.
pub const ADMIN_CONNECTIONS: usize = 64;

/// What the admin routes show.
#[derive(Clone)]
pub struct Admin {
    /// The metrics.
    pub registry: Arc<Registry>,
    /// The workers.
    pub health: Health,
}

/// The routes `/metrics` and `/healthz`.
pub fn router(admin: Admin) -> Router {
    Router::new().route("/metrics", get(metrics)).route("/healthz", get(healthz)).with_state(admin)
}

/// A server for `router`, which may have other routes too. Malformed [`escapes`] are refused.
pub fn server(listener: TcpListener, router: Router, max_connections: usize, patience: Patience) -> Server {
    Server::new(listener, router.layer(from_fn(escapes::refuse_wrong)), max_connections, patience)
}

/// The metrics as an HTTP answer, in the format that the client accepts.
pub async fn metrics(State(admin): State<Admin>, headers: HeaderMap) -> Response {
    let exposition = Exposition::wanted_by(&headers);
    match encoded(&admin) {
        Ok(text) => {
            let content_type = [(header::CONTENT_TYPE, exposition.content_type())];
            (content_type, exposition.write(text)).into_response()
        }
        Err(e) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("failed to encode the metrics: {e}")).into_response()
        }
    }
}

/// All metrics as OpenMetrics: the daemon's own, and those that every daemon has.
fn encoded(admin: &Admin) -> Result<String, fmt::Error> {
    let mut text = String::new();
    encode_registry(&mut text, &admin.registry)?;
    encode_registry(&mut text, &presence::registry(&admin.health))?;
    encode_eof(&mut text)?;
    Ok(text)
}

/// The health as an HTTP answer: 200 when every worker is alive, else 503; the body names the workers.
pub async fn healthz(State(admin): State<Admin>) -> Response {
    let report = admin.health.report();
    let status = if report.healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    match serde_json::to_string(&report) {
        Ok(body) => (status, [(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(e) => (StatusCode::INTERNAL_SERVER_ERROR, e.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::metrics::counter::Counter;
    use std::time::{Duration, SystemTime, UNIX_EPOCH};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio_util::sync::CancellationToken;

    async fn get(address: std::net::SocketAddr, path: &str) -> String {
        get_as(address, path, "*/*").await
    }

    async fn get_as(address: std::net::SocketAddr, path: &str, accept: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[test]
    fn metrics_report_version_start_time_and_dead_workers() {
        let health = Health::new();
        let (_drain, store) = (health.worker("drain"), health.worker("store"));
        let text = || encoded(&Admin { registry: Arc::default(), health: health.clone() }).unwrap();
        assert!(text().contains(concat!(
            "blkin_build_info{version=\"",
            env!("CARGO_PKG_VERSION"),
            "\"} 1\n"
        )));
        assert!(text().contains("blkin_worker_alive{worker=\"store\"} 1\n"));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let since = now - figure(&text(), "process_start_time_seconds");
        assert!((0.0..3600.0).contains(&since), "{since} s");
        drop(store);
        assert!(text().contains("blkin_worker_alive{worker=\"drain\"} 1\n"));
        assert!(text().contains("blkin_worker_alive{worker=\"store\"} 0\n"));
    }

    fn figure(metrics: &str, name: &str) -> f64 {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|figure| figure.parse().ok()).unwrap_or(f64::NAN)
    }

    #[test]
    fn metrics_report_process_memory_cpu_and_descriptors() {
        let text = || encoded(&Admin { registry: Arc::default(), health: Health::new() }).unwrap();
        let before = text();
        let memory = vec![1_u8; 64 << 20];
        let file = tempfile::tempfile().unwrap();
        let after = text();
        let grown = |name: &str| figure(&after, name) - figure(&before, name);
        assert!(grown("process_resident_memory_bytes") > 32e6, "{before}{after}");
        assert!(grown("process_cpu_seconds_total") > 0.0, "{before}{after}");
        let open = figure(&after, "process_open_fds");
        assert!((4.0..figure(&after, "process_max_fds")).contains(&open), "{after}");
        drop((memory, file));
    }

    #[tokio::test]
    async fn metrics_and_health_are_served_and_a_dead_worker_gives_503() {
        let mut registry = Registry::default();
        let counter: Counter = Counter::default();
        registry.register("blkin_test", "a test", counter.clone());
        counter.inc_by(3);
        let health = Health::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let routes = router(Admin { registry: Arc::new(registry), health: health.clone() });
        let patience = Patience::new(Duration::from_secs(60));
        let server = tokio::spawn(server(listener, routes, ADMIN_CONNECTIONS, patience).serve(stop.clone()));

        for wrong in ["/metrics?%", "/%2/metrics"] {
            let refused = get(address, wrong).await;
            assert!(
                refused.starts_with("HTTP/1.1 400") && refused.contains("write %25 for a plain %"),
                "{refused}"
            );
        }
        let text = get(address, "/metrics").await;
        assert!(text.contains("content-type: text/plain; version=0.0.4"), "{text}");
        assert!(text.contains("# TYPE blkin_test_total counter\nblkin_test_total 3\n"), "{text}");
        let open = get_as(address, "/metrics", "application/openmetrics-text; version=1.0.0").await;
        assert!(open.contains("content-type: application/openmetrics-text"), "{open}");
        assert!(open.contains("# TYPE blkin_test counter\nblkin_test_total 3\n"), "{open}");
        assert!(open.ends_with("\n# EOF\n") && open.matches("# EOF").count() == 1, "{open}");
        assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        drop(health.worker("store"));
        let red = get(address, "/healthz").await;
        assert!(red.starts_with("HTTP/1.1 503") && red.contains("\"store\""), "{red}");

        stop.cancel();
        server.await.unwrap();
    }

    #[tokio::test]
    async fn silent_connection_does_not_block_a_health_request() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let routes = router(Admin { registry: Arc::default(), health: Health::new() });
        let patience = Patience::new(Duration::from_secs(3600));
        let server = tokio::spawn(server(listener, routes, 1, patience).serve(stop.clone()));
        let mut half = TcpStream::connect(address).await.unwrap();
        half.write_all(b"GET /healthz HTTP/1.1\r\nHost:").await.unwrap();
        let asked = tokio::time::timeout(Duration::from_secs(60), get(address, "/healthz")).await.unwrap();
        assert!(asked.starts_with("HTTP/1.1 200"));
        assert_eq!(half.read(&mut [0]).await.unwrap_or(0), 0);
        stop.cancel();
        server.await.unwrap();
    }
}
