//! `blkin live` as others see it: the process.

#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

const LIMIT: Duration = Duration::from_secs(60);
/// The terminal shall not become that of this process.
const NOCTTY: i32 = OpenptFlags::NOCTTY.bits().cast_signed();

/// Takes a request for the stream, and answers with one span and nothing more.
fn serve_one_span(listener: &TcpListener) -> TcpStream {
    answer(listener, "200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {\"id\":\"1\"}\n\n")
}

fn answer(listener: &TcpListener, with: &str) -> TcpStream {
    let (mut viewer, _) = listener.accept().unwrap();
    let mut request = BufReader::new(viewer.try_clone().unwrap());
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        assert_ne!(request.read_line(&mut line).unwrap(), 0, "the request breaks off");
    }
    viewer.write_all(format!("HTTP/1.1 {with}").as_bytes()).unwrap();
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

fn live(collector: &str) -> Command {
    let mut blkin = Command::new(env!("CARGO_BIN_EXE_blkin"));
    blkin.args(["live", "--json", "--collector", collector]).stdout(Stdio::piped()).stderr(Stdio::piped());
    blkin
}

/// What is read from a terminal, and what stands for it in a process.
fn terminal() -> (File, File) {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap().into_string().unwrap();
    let inner = File::options().read(true).write(true).custom_flags(NOCTTY).open(name).unwrap();
    (terminal.into(), inner)
}

#[test]
fn live_announces_that_the_daemon_has_not_answered_yet() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let collector = format!("http://{}", listener.local_addr().unwrap());
    let (terminal, stderr) = terminal();
    let mut child = live(&collector).args(["--limit", "1"]).stderr(stderr).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(&terminal).read_line(&mut said).unwrap();
    assert_eq!(said.trim_end(), format!("{collector}: no answer yet, waiting for up to 30s"));
    serve_one_span(&listener);
    assert!(ended(&mut child).success());
}

#[test]
fn live_announces_that_it_is_watching() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let collector = format!("http://{}", listener.local_addr().unwrap());
    let (mut terminal, stderr) = terminal();
    let mut child = live(&collector).arg("--no-reconnect").stderr(stderr).spawn().unwrap();
    drop(serve_one_span(&listener));
    assert!(!ended(&mut child).success(), "the stream broke off");

    // All that was said, and then the error of a terminal that nobody has open.
    let mut said = Vec::new();
    let _hung_up = terminal.read_to_end(&mut said);
    let said = String::from_utf8(said).unwrap();
    assert!(said.starts_with(&format!("{collector}: spans as they arrive, until Ctrl-C")), "{said}");
}

#[test]
fn live_ends_once_its_output_is_closed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let collector = format!("http://{}", listener.local_addr().unwrap());
    let mut child = live(&collector).spawn().unwrap();
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

#[test]
fn live_reconnects_once_the_daemon_is_back() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let collector = format!("http://{}", listener.local_addr().unwrap());
    let mut child = live(&collector).args(["--limit", "2"]).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    drop(serve_one_span(&listener));
    assert!(said.next().unwrap().ends_with("; reconnecting"));
    // It is there, and speaks no HTTP yet; then a proxy tells that it is not.
    drop(listener.accept().unwrap());
    let why = said.next().unwrap();
    assert!(
        why.starts_with(&format!("blkin: failed to reach {collector}")) && why.ends_with("; still trying"),
        "{why}"
    );
    drop(answer(&listener, "503 Service Unavailable\r\nConnection: close\r\n\r\n"));
    let why = said.next().unwrap();
    assert!(why.contains(" answered 503"), "{why}");
    let _open = serve_one_span(&listener);
    assert_eq!(said.next().unwrap(), "blkin: reconnected; spans that arrived meanwhile are not shown");
    assert!(ended(&mut child).success());
    let mut spans = String::new();
    child.stdout.take().unwrap().read_to_string(&mut spans).unwrap();
    assert_eq!((spans.lines().count(), said.next()), (2, None));
}

#[test]
fn live_fails_if_another_daemon_takes_the_place() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let collector = format!("http://{}", listener.local_addr().unwrap());
    let mut child = live(&collector).spawn().unwrap();
    drop(serve_one_span(&listener));
    drop(answer(&listener, "404 Not Found\r\nConnection: close\r\n\r\n"));
    assert_eq!(ended(&mut child).code(), Some(1));
}
