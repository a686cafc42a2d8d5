//! A relay as a process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

pub(crate) struct Relay {
    process: Child,
    pub(crate) scribe: String,
    http: String,
    log: Option<JoinHandle<Vec<String>>>,
}

impl Relay {
    /// Starts it with its spool in `folder`. `command` runs the program, by itself or by another one.
    pub(crate) fn start(mut command: Command, folder: &Path, upstream: &str, configuration: &str) -> Relay {
        let file = tempfile::NamedTempFile::new().unwrap();
        let patience = if configuration.contains("io_timeout_ms") { "" } else { "io_timeout_ms = 120000" };
        std::fs::write(file.path(), format!("{patience}\n{configuration}")).unwrap();
        command.arg("--config").arg(file.path()).args(["--upstreams", upstream, "--log", "info"]);
        command.args(["--scribe-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]);
        command.arg("--spool-dir").arg(folder).args(["--stop-timeout-ms", "0"]);
        let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap()).lines().map(Result::unwrap);
        let ready = log.find(|line| line.contains(" ready ")).unwrap();
        // Whoever logs must not wait for a reader.
        let log = Some(std::thread::spawn(move || log.collect()));
        let address = |name: &str| {
            let (_, rest) = ready.split_once(&format!("{name}=")).unwrap();
            rest.split_whitespace().next().unwrap().to_owned()
        };
        Relay { scribe: address("scribe"), http: address("http"), process, log }
    }

    /// What it answers, with its head.
    pub(crate) fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.http).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Ends it; what it has logged.
    pub(crate) fn end(mut self) -> Vec<String> {
        self.process.kill().unwrap();
        self.log.take().unwrap().join().unwrap()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// The program alone.
pub(crate) fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_blkin-relay"))
}
