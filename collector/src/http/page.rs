//! The page: a folder of static files under `/zipkin/`. A path that is no file is one of the page's own routes
//! (`/zipkin/traces/{id}`), so it gets `index.html`; but a missing script or an unknown API route is missing.

use std::path::Path;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tower_http::services::{ServeDir, ServeFile};

use super::{Problem, redirect_to_page};

pub(super) fn routes(folder: &Path) -> Router {
    let index = ServeFile::new(folder.join("index.html"));
    let own_routes = Router::new().fallback_service(index).layer(from_fn(only_own_routes));
    // A redirect to a folder would lack the prefix; no folder of the page has an index of its own.
    let files = ServeDir::new(folder).redirect_to_trailing_slash(false);
    Router::new()
        .route("/", get(|| async { redirect_to_page() }))
        .route("/zipkin", get(|| async { redirect_to_page() }))
        .nest_service("/zipkin/", files.fallback(own_routes))
}

/// What is said in its place if there is no folder.
pub(super) fn missing() -> Router {
    let told = || async {
        Problem::not_found(
            "no page here: ui_dir is not set. docs/deploy.md (\"Zipkin's page\") says how to get Zipkin's; the API needs none",
        )
    };
    Router::new().route("/", get(told)).route("/zipkin", get(told)).route("/zipkin/", get(told))
}

async fn only_own_routes(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let last = path.rsplit('/').next().unwrap_or("");
    if last.contains('.') || path.starts_with("/api/") {
        return Problem::not_found("no such file").into_response();
    }
    next.run(request).await
}
