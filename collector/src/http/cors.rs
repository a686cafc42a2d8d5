//! Which web pages may use the API. As in Zipkin: GET and POST with a content type, from every origin unless `cors_origins` says
//! otherwise. They may also read the headers that say whether an answer is complete, and when to try again.

use axum::http::{Method, header};
use tower_http::cors::{AllowOrigin, CorsLayer};

use super::api::{LIMIT, PARTIAL};

pub(super) fn layer(origins: &[String]) -> CorsLayer {
    CorsLayer::new()
        .allow_methods([Method::GET, Method::POST])
        .allow_headers([header::CONTENT_TYPE, header::CONTENT_ENCODING])
        .expose_headers([LIMIT, PARTIAL, header::RETRY_AFTER])
        .allow_origin(allowed(origins))
}

fn allowed(origins: &[String]) -> AllowOrigin {
    if origins.iter().any(|origin| origin == "*") {
        return AllowOrigin::any();
    }
    // Upper and lower case are equal, as in Zipkin: browsers write schemes and hosts in lower case, the configuration may not.
    let origins = origins.to_vec();
    AllowOrigin::predicate(move |asking, _| {
        origins.iter().any(|origin| asking.as_bytes().eq_ignore_ascii_case(origin.as_bytes()))
    })
}
