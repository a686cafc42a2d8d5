//! Starts a collector for a measurement.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::consumerd::wait_for;
use crate::machine::{self, Usage};

/// The daemon, with its defaults and a store in the temporary folder; killed when dropped.
#[derive(Debug)]
pub struct Collector {
    child: Child,
    /// The address where it receives spans.
    pub scribe: String,
    _folder: TempDir,
}

impl Collector {
    /// Starts the daemon built beside this program.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let ready = folder.path().join("ready");
        let mut command = Command::new(machine::beside("blkin-collector")?);
        command.args(["--scribe-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--log", "warn"]);
        command.arg("--data-dir").arg(folder.path().join("data")).arg("--ready-file").arg(&ready);
        let child = command.stdin(Stdio::null()).spawn().context("failed to start the collector")?;
        let text = wait_for("the collector is ready", || std::fs::read_to_string(&ready).ok())?;
        let said: serde_json::Value = serde_json::from_str(&text)?;
        let scribe = said["scribe"].as_str().context("no address in the ready file")?.to_owned();
        Ok(Self { child, scribe, _folder: folder })
    }

    /// The CPU time and context switches it has used.
    pub fn usage(&self) -> Usage {
        machine::usage(self.child.id())
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
