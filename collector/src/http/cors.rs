//! Which web pages may use the API: as Zipkin, GET and POST with a content type, from every origin unless told otherwise.

use axum::http::{HeaderValue, Method, header};
use tower_http::cors::{AllowOrigin, CorsLayer};

pub(super) fn layer(origins: &[String]) -> CorsLayer {
    CorsLayer::new()
        .allow_methods([Method::GET, Method::POST])
        .allow_headers([header::CONTENT_TYPE, header::CONTENT_ENCODING])
        .allow_origin(allowed(origins))
}

fn allowed(origins: &[String]) -> AllowOrigin {
    if origins.iter().any(|origin| origin == "*") {
        return AllowOrigin::any();
    }
    // What is no header value was refused with the configuration.
    AllowOrigin::list(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()))
}
