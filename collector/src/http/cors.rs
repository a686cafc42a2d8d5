//! Which web pages may use the API: as Zipkin, GET and POST with a content type, from every origin unless told otherwise. They
//! may read what an answer says of itself.

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
    // In any case, as Zipkin: browsers write schemes and hosts in lower case, whoever configures them may not.
    let origins = origins.to_vec();
    AllowOrigin::predicate(move |asking, _| {
        origins.iter().any(|origin| asking.as_bytes().eq_ignore_ascii_case(origin.as_bytes()))
    })
}
