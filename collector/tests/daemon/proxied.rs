//! A collector behind a proxy that passes on only one path.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use crate::limits::configured;

#[test]
fn every_endpoint_is_served_under_zipkin_too() {
    let folder = tempfile::tempdir().unwrap();
    let collector = configured(folder.path(), "");
    for path in ["/api/v2/services", "/api/blkin/ledger", "/api/blkin/rejects", "/metrics", "/healthz"] {
        let (at_root, below) = (collector.get_typed(path), collector.get_typed(&format!("/zipkin{path}")));
        assert_eq!((below.0, &below.1), (200, &at_root.1), "{path}: {}", below.2);
    }
    let (status, said) = collector.get("/zipkin/api/blkin/intervals");
    assert_eq!((status, said), collector.get("/api/blkin/intervals"));
    let mut viewer = TcpStream::connect(collector.http).unwrap();
    viewer.write_all(b"GET /zipkin/api/blkin/live HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let head: Vec<String> =
        BufReader::new(viewer).lines().map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
    assert!(head.contains(&"content-type: text/event-stream".to_owned()), "{head:?}");
}

/// The parts of Zipkin's page that name its own path.
const PAGE: &str = r#"<base href="/zipkin/"><link rel="icon" href="/zipkin/favicon.ico">
<script src="/zipkin/static/js/index.js"></script>"#;

#[test]
fn ui_base_path_rewrites_the_pages_links_and_redirects() {
    for (configured_path, base, led_to) in [
        ("/tracing/zipkin", "/tracing/zipkin", "/tracing/zipkin"),
        ("/zipkin/", "/zipkin", "/zipkin"),
        ("/", "", "/zipkin"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("index.html"), PAGE).unwrap();
        let keys = format!("ui_dir = {:?}\nui_base_path = \"{configured_path}\"\n", folder.path());
        let collector = configured(folder.path(), &keys);
        let moved = PAGE.replace("\"/zipkin/", &format!("\"{base}/"));
        for path in ["/zipkin/", "/zipkin/index.html", "/zipkin/traces/1", "/zipkin/dependency"] {
            let html = "text/html; charset=utf-8".to_owned();
            assert_eq!(collector.get_typed(path), (200, html, moved.clone()), "{path}");
            assert_eq!(collector.header(path, "cache-control").as_deref(), Some("max-age=60"));
        }
        for (path, place) in [("/", "/"), ("/zipkin?limit=1", "/?limit=1"), ("/favicon.ico", "/favicon.ico")]
        {
            assert_eq!(collector.sent_to(path), (302, Some(format!("{led_to}{place}"))), "{path}");
        }
    }
}
