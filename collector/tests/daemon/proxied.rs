//! What stands behind a proxy that passes on one path.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use crate::limits::configured;

#[test]
fn all_that_is_asked_for_is_under_zipkin_too() {
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
