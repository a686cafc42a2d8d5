//! The real binary, a Scribe client and an HTTP client.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use blkin_collector::model::TraceId;
use blkin_thrift::scribe::{LogEntry, Outcome, ResultCode, decode_reply, encode_log_call, span_message};
use blkin_thrift::{Annotation, Endpoint, Limits, Span};
use serde_json::Value;

/// The longest time that the tests wait for anything, however slow the machine is.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A running collector; dropping it kills it.
pub(crate) struct Collector {
    pub(crate) child: Child,
    pub(crate) scribe: SocketAddr,
    pub(crate) http: SocketAddr,
}

pub(crate) fn command(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_blkin-collector"));
    command
        .env_clear()
        .args(["--scribe-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--data-dir"])
        .arg(folder.join("data"))
        .arg("--ready-file")
        .arg(ready_file(folder))
        .stderr(Stdio::piped());
    command
}

pub(crate) fn ready_file(folder: &Path) -> PathBuf {
    folder.join("ready.json")
}

impl Collector {
    pub(crate) fn start(folder: &Path) -> Collector {
        Collector::spawn(folder, &mut command(folder))
    }

    pub(crate) fn spawn(folder: &Path, command: &mut Command) -> Collector {
        Collector::spawn_logging_to(folder, command, Stdio::inherit())
    }

    pub(crate) fn spawn_logging_to(folder: &Path, command: &mut Command, log: Stdio) -> Collector {
        let ready = ready_file(folder);
        let _was_absent = std::fs::remove_file(&ready);
        let mut child = command.stderr(log).spawn().unwrap();
        let text = wait_for(|| {
            assert!(child.try_wait().unwrap().is_none(), "the collector ended before it was ready");
            std::fs::read_to_string(&ready).ok()
        });
        let addresses: Value = serde_json::from_str(&text).unwrap();
        let address = |name: &str| addresses[name].as_str().unwrap().parse().unwrap();
        Collector { child, scribe: address("scribe"), http: address("http") }
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait_for(|| self.child.try_wait().unwrap())
    }

    /// Status and body of a GET.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        let (status, _, body) = self.get_typed(path);
        (status, body)
    }

    /// The body of a GET; none if the collector closed the connection before it got a request.
    pub(crate) fn get_unless_let_go(&self, path: &str) -> Option<String> {
        let mut answer = agent().get(format!("http://{}{path}", self.http)).call().ok()?;
        answer.body_mut().read_to_string().ok()
    }

    /// A header of the answer to a GET.
    pub(crate) fn header(&self, path: &str, name: &str) -> Option<String> {
        let answer = agent().get(format!("http://{}{path}", self.http)).call().unwrap();
        answer.headers().get(name).map(|value| value.to_str().unwrap().to_owned())
    }

    /// The status of the answer to a GET, and where it redirects.
    pub(crate) fn sent_to(&self, path: &str) -> (u16, Option<String>) {
        let request = agent().get(format!("http://{}{path}", self.http));
        let answer = request.config().max_redirects(0).build().call().unwrap();
        let place = answer.headers().get("location").map(|value| value.to_str().unwrap().to_owned());
        (answer.status().as_u16(), place)
    }

    /// The answer to a client that accepts these codings: the coding of the answer, and its bytes.
    pub(crate) fn coded(&self, path: &str, accepted: &str) -> (Option<String>, Vec<u8>) {
        let request = agent().get(format!("http://{}{path}", self.http)).header("accept-encoding", accepted);
        let mut answer = request.call().unwrap();
        assert_eq!(answer.status(), 200, "{path} {accepted}");
        let coding = answer.headers().get("content-encoding").map(|value| value.to_str().unwrap().to_owned());
        (coding, answer.body_mut().read_to_vec().unwrap())
    }

    /// Status, content type and body of a GET.
    pub(crate) fn get_typed(&self, path: &str) -> (u16, String, String) {
        let mut answer = agent().get(format!("http://{}{path}", self.http)).call().unwrap();
        let kind = answer.headers().get("content-type").map(|v| v.to_str().unwrap().to_owned());
        (answer.status().as_u16(), kind.unwrap_or_default(), answer.body_mut().read_to_string().unwrap())
    }

    pub(crate) fn json(&self, path: &str) -> Value {
        let (status, body) = self.get(path);
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    /// Status and body of a POST.
    pub(crate) fn post(&self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> (u16, String) {
        let mut request = agent().post(format!("http://{}{path}", self.http));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut answer = request.send(body).unwrap();
        (answer.status().as_u16(), answer.body_mut().read_to_string().unwrap())
    }

    pub(crate) fn has_trace(&self, id: u64) -> bool {
        let id = TraceId::new(0, id).unwrap();
        self.get(&format!("/api/v2/trace/{id}")).0 == 200
    }

    /// The ledger, after checking that it balances and that the store holds what it says.
    pub(crate) fn ledger(&self) -> Value {
        let ledger = self.json("/api/blkin/ledger?count=store");
        assert_eq!(ledger["balanced"], true, "{ledger}");
        for unit in ["annotations", "spans"] {
            assert_eq!(ledger[unit]["stored"], ledger["counted_in_store"][unit], "{ledger}");
        }
        ledger
    }

    /// A counter of `/metrics`, without `blkin_collector_` and `_total`.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let (head, metrics) = (format!("blkin_collector_{name}_total "), self.get("/metrics").1);
        metrics.lines().find_map(|line| line.strip_prefix(&head)).unwrap().parse().unwrap()
    }

    /// The most memory it has held so far, in KiB.
    pub(crate) fn peak_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE)).build().into()
}

/// Waits until something is there.
pub(crate) fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The lines of a log with these words, once there are so many: lines are written a moment after the event.
pub(crate) fn told(log: &Path, words: &str, times: usize) -> Vec<String> {
    wait_for(|| {
        let said = std::fs::read_to_string(log).unwrap();
        let lines: Vec<_> = said.lines().filter(|line| line.contains(words)).map(str::to_owned).collect();
        (lines.len() >= times).then_some(lines)
    })
}

/// A span of two annotations.
pub(crate) fn span(trace_id: i64) -> Span {
    let host = Some(Endpoint { service_name: "osd.0".to_owned(), ..Endpoint::default() });
    let annotation = |timestamp, value: &str| Annotation {
        timestamp,
        value: value.to_owned(),
        host: host.clone(),
        ..Annotation::default()
    };
    let annotations = vec![annotation(1_700_000_000_000_000, "sr"), annotation(1_700_000_000_000_100, "ss")];
    Span { trace_id, id: 1, name: "write".to_owned(), annotations, ..Span::default() }
}

pub(crate) fn entry(message: impl Into<Vec<u8>>) -> LogEntry {
    LogEntry { category: "zipkin".to_owned(), message: message.into() }
}

pub(crate) fn span_entry(trace_id: i64) -> LogEntry {
    entry(span_message(&span(trace_id)))
}

/// A Scribe connection.
pub(crate) struct Scribe(pub(crate) TcpStream);

impl Scribe {
    pub(crate) fn connect(address: SocketAddr) -> Scribe {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Scribe(stream)
    }

    /// The client's address, as the collector names it.
    pub(crate) fn address(&self) -> String {
        self.0.local_addr().unwrap().to_string()
    }

    pub(crate) fn send(&mut self, seq: i32, entries: &[LogEntry]) -> std::io::Result<()> {
        self.0.write_all(&encode_log_call(seq, entries))
    }

    pub(crate) fn send_frame(&mut self, frame: &[u8]) {
        self.0.write_all(&(frame.len() as u32).to_be_bytes()).unwrap();
        self.0.write_all(frame).unwrap();
    }

    /// The next reply; an error once the connection is gone.
    pub(crate) fn reply(&mut self) -> std::io::Result<(i32, Outcome)> {
        let mut header = [0; 4];
        self.0.read_exact(&mut header)?;
        let mut frame = vec![0; u32::from_be_bytes(header) as usize];
        self.0.read_exact(&mut frame)?;
        let reply = decode_reply(&frame, &Limits::default()).map_err(std::io::Error::other)?;
        Ok((reply.seq, reply.outcome))
    }

    pub(crate) fn log(&mut self, entries: &[LogEntry]) -> std::io::Result<ResultCode> {
        self.send(1, entries)?;
        match self.reply()?.1 {
            Outcome::Result(code) => Ok(code),
            Outcome::Exception(exception) => Err(std::io::Error::other(exception)),
        }
    }
}
