//! The real Zipkin server.

use std::fs::File;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use blkin_cli::http::Client;
use tempfile::TempDir;

use crate::artifacts::fetched;
use crate::ports::unused_port;
use crate::process::Process;
use crate::wait;

/// Long, because a JVM starts slowly on two busy cores.
const LIMIT: Duration = Duration::from_secs(180);

/// A Zipkin server with memory storage and Scribe.
#[derive(Debug)]
pub struct Zipkin {
    /// Its query API.
    pub http: Client,
    /// Its Scribe address.
    pub scribe: String,
    _process: Process,
    folder: TempDir,
}

impl Zipkin {
    /// Starts it and waits until Scribe and storage are up.
    ///
    /// # Errors
    /// When it cannot be fetched or does not become healthy.
    pub fn start() -> Result<Zipkin> {
        let jar = fetched("zipkin-server")?;
        let (query, scribe) = (unused_port()?, unused_port()?);
        let folder = TempDir::new()?;
        let log = folder.path().join("zipkin.log");
        let output = File::create(&log)?;
        let mut java = Command::new("java");
        java.args(["-Xmx256m", "-jar"]).arg(jar).current_dir(folder.path());
        java.env("STORAGE_TYPE", "mem").env("QUERY_PORT", query.to_string());
        java.env("COLLECTOR_SCRIBE_ENABLED", "true").env("COLLECTOR_PORT", scribe.to_string());
        java.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let process = Process::spawn("zipkin-server", &mut java)?;
        let http = Client::new(&format!("127.0.0.1:{query}"));
        let healthy = || http.get("/health", &[]).ok().filter(|answer| answer.status == 200);
        wait::until(LIMIT, "Zipkin to be healthy", healthy)
            .with_context(|| std::fs::read_to_string(&log).unwrap_or_default())?;
        Ok(Zipkin { http, scribe: format!("127.0.0.1:{scribe}"), _process: process, folder })
    }

    /// What it logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("zipkin.log")).unwrap_or_default()
    }
}
