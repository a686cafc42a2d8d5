//! `blkin trace` as a process.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::Command;

/// Accepts a connection, reads a request, answers it, and closes the connection.
fn answer(listener: &TcpListener, status: &str, body: &str) {
    let (client, _) = listener.accept().unwrap();
    let mut lines = BufReader::new(&client).lines();
    while lines.next().is_some_and(|line| !line.unwrap().is_empty()) {}
    let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    (&client).write_all(format!("{head}{body}").as_bytes()).unwrap();
}

#[test]
fn trace_waits_for_a_trace_recorded_just_before() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let collector = listener.local_addr().unwrap().to_string();
    let server = std::thread::spawn(move || {
        answer(&listener, "404 Not Found", "0000000000000001 not found");
        answer(&listener, "200 OK", r#"[{"traceId":"0000000000000001","id":"0000000000000001"}]"#);
    });
    let mut blkin = Command::new(env!("CARGO_BIN_EXE_blkin"));
    let printed = blkin.args(["trace", "1", "--json", "--collector", &collector]).output().unwrap();
    let said = String::from_utf8_lossy(&printed.stderr);
    assert!(printed.status.success(), "{said}");
    assert!(String::from_utf8_lossy(&printed.stdout).contains("\"0000000000000001\""));
    server.join().unwrap();
}
