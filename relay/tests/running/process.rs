//! A relay as a process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use tempfile::NamedTempFile;

use crate::upstream::LIMIT;

pub(crate) struct Relay {
    process: Child,
    pub(crate) scribe: String,
    http: String,
    /// Its log up to when it was ready.
    pub(crate) start: Vec<String>,
    /// Its log since then.
    log: Receiver<String>,
    _configuration: NamedTempFile,
}

impl Relay {
    /// Starts a relay with its spool in `folder`. `command` runs the program, directly or through another one.
    pub(crate) fn start(command: Command, folder: &Path, upstream: &str, configuration: &str) -> Relay {
        let mut relay = Relay::starting(command, folder, upstream, configuration);
        relay.start = lines_up_to(&relay.log, " ready ");
        let ready = relay.start.last().unwrap();
        let address = |name: &str| {
            let (_, rest) = ready.split_once(&format!("{name}=")).unwrap();
            rest.split_whitespace().next().unwrap().to_owned()
        };
        (relay.scribe, relay.http) = (address("scribe"), address("http"));
        relay
    }

    /// As `start`, but does not wait until the relay is ready and its addresses are known.
    pub(crate) fn starting(
        mut command: Command,
        folder: &Path,
        upstream: &str,
        configuration: &str,
    ) -> Relay {
        let file = NamedTempFile::new().unwrap();
        let patience = if configuration.contains("io_timeout_ms") { "" } else { "io_timeout_ms = 120000" };
        std::fs::write(file.path(), format!("{patience}\n{configuration}")).unwrap();
        command.arg("--config").arg(file.path()).args(["--upstreams", upstream, "--log", "info"]);
        command.args(["--scribe-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]);
        command.arg("--spool-dir").arg(folder).args(["--stop-timeout-ms", "0"]);
        let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
        let (lines, log) = channel();
        let stderr = BufReader::new(process.stderr.take().unwrap());
        // The relay must not wait for a reader of its log.
        std::thread::spawn(move || stderr.lines().map(Result::unwrap).try_for_each(|line| lines.send(line)));
        let (scribe, http) = (String::new(), String::new());
        Relay { process, scribe, http, start: Vec::new(), log, _configuration: file }
    }

    /// The relay's answer, with its head.
    pub(crate) fn get(&self, path: &str) -> String {
        let mut answer = String::new();
        self.ask(path).read_to_string(&mut answer).unwrap();
        answer
    }

    /// Sends a request on a connection that ends with the answer.
    pub(crate) fn ask(&self, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.http).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        stream
    }

    /// Limits the relay's open files from now on.
    pub(crate) fn limit_files(&self, most: usize) {
        let (pid, limit) = (self.process.id().to_string(), format!("--nofile={most}:"));
        assert!(Command::new("prlimit").args(["--pid", &pid, &limit]).status().unwrap().success());
    }

    /// The first line of the log with these words. Waits for it, unless it came before the relay was ready.
    pub(crate) fn tells(&self, words: &str) -> String {
        let before = self.start.iter().find(|line| line.contains(words));
        before.cloned().unwrap_or_else(|| lines_up_to(&self.log, words).pop().unwrap())
    }

    /// Stops the relay. Returns its log since it was ready, without the lines that [`tells`](Self::tells) has already read.
    pub(crate) fn end(self) -> Vec<String> {
        self.end_with_status().1
    }

    /// As [`end`](Self::end), with the exit status.
    pub(crate) fn end_with_status(mut self) -> (ExitStatus, Vec<String>) {
        // SIGTERM lets it write its last log lines; SIGKILL might not.
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        let next = || match self.log.recv_timeout(LIMIT) {
            Err(RecvTimeoutError::Timeout) => panic!("the relay does not end"),
            line => line.ok(),
        };
        let log = std::iter::from_fn(next).collect();
        (self.process.wait().unwrap(), log)
    }
}

fn lines_up_to(log: &Receiver<String>, words: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    while !lines.last().is_some_and(|line| line.contains(words)) {
        lines.push(log.recv_timeout(LIMIT).unwrap());
    }
    lines
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// The relay's program, run directly.
pub(crate) fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_blkin-relay"))
}
