//! The page: a folder of static files under `/zipkin/`. Paths that are no file are the page's own routes
//! (`/zipkin/traces/{id}`), so they get its `index.html`.

use std::path::Path;

use axum::Router;
use axum::routing::get;
use tower_http::services::{ServeDir, ServeFile};

use super::redirect_to_page;

pub(super) fn routes(folder: &Path) -> Router {
    let files = ServeDir::new(folder).fallback(ServeFile::new(folder.join("index.html")));
    Router::new()
        .route("/", get(|| async { redirect_to_page() }))
        .route("/zipkin", get(|| async { redirect_to_page() }))
        .nest_service("/zipkin/", files)
}
