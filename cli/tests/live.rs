//! `blkin live` as others see it: the process.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// Takes a request for the stream, and answers with one span and nothing more.
fn serve_one_span(listener: &TcpListener) -> TcpStream {
    let (mut viewer, _) = listener.accept().unwrap();
    let mut request = BufReader::new(viewer.try_clone().unwrap());
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        assert_ne!(request.read_line(&mut line).unwrap(), 0, "the request breaks off");
    }
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
    viewer.write_all(format!("{head}data: {{\"id\":\"1\"}}\n\n").as_bytes()).unwrap();
    viewer
}

fn ended(child: &mut Child) -> ExitStatus {
    let due = Instant::now() + LIMIT;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > due {
            child.kill().unwrap();
            panic!("it still runs {LIMIT:?} later");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn it_ends_with_the_reader_of_what_it_prints_though_no_further_span_comes() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let collector = format!("http://{}", listener.local_addr().unwrap());
    let mut blkin = Command::new(env!("CARGO_BIN_EXE_blkin"));
    blkin.args(["live", "--json", "--collector", &collector]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = blkin.spawn().unwrap();
    let _open = serve_one_span(&listener);
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert_eq!(line, "{\"id\":\"1\"}\n");

    drop(reader);
    let status = ended(&mut child);
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(status.success() && said.is_empty(), "{status}: {said}");
}
