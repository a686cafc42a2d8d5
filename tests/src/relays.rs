//! Relays on free ports, and their metrics, ledgers and upstreams.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use blkin_cli::ledger::Ledger;
use blkin_cli::metrics::Metrics;

use crate::artifacts::binary;
use crate::daemons::{Daemon, LIMIT, own_address};
use crate::wait;

/// A relay that can be killed and started again over the same spool, at the same addresses.
#[derive(Debug)]
pub struct Relay {
    /// Its process.
    pub daemon: Daemon,
    /// Its Scribe address.
    pub scribe: String,
    http: String,
    name: String,
    folder: PathBuf,
    flags: Vec<String>,
}

impl Relay {
    /// Starts one with its spool below `folder`.
    ///
    /// # Errors
    /// When it does not become ready.
    pub fn start(folder: &Path, name: &str, upstreams: &[&str], flags: &[&str]) -> Result<Relay> {
        let spool = Relay::spool(folder, name);
        let mut all = vec!["--upstreams".to_owned(), upstreams.join(","), "--spool-dir".to_owned()];
        all.push(spool.to_str().context("the path is not UTF-8")?.to_owned());
        all.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let daemon = launch(name, folder, &all, &own_address(), &own_address())?;
        let scribe = daemon.address("scribe")?;
        let http = daemon.address("http")?;
        Ok(Relay { daemon, scribe, http, name: name.to_owned(), folder: folder.to_owned(), flags: all })
    }

    /// The spool folder of the relay of that name.
    pub fn spool(folder: &Path, name: &str) -> PathBuf {
        folder.join(format!("{name}-spool"))
    }

    /// Starts it again after it has ended.
    ///
    /// # Errors
    /// When it does not become ready.
    pub fn start_again(&mut self) -> Result<()> {
        self.daemon = launch(&self.name, &self.folder, &self.flags, &self.scribe, &self.http)?;
        Ok(())
    }

    /// Its upstreams.
    pub fn upstreams(&self) -> Vec<&str> {
        self.flags[1].split(',').collect()
    }

    /// Gives it other upstreams from the next start on.
    pub fn rename_upstreams(&mut self, upstreams: &[&str]) {
        self.flags[1] = upstreams.join(",");
    }

    /// Its metrics, read now.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn metrics(&self) -> Result<Metrics> {
        self.daemon.metrics()
    }

    /// One metric, summed over the series with these labels.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn figure(&self, name: &str, labels: &[(&str, &str)]) -> Result<i64> {
        Ok(self.metrics()?.sum(&format!("blkin_relay_{name}"), labels))
    }

    /// Its ledger, read now.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn ledger(&self) -> Result<Ledger> {
        Ok(Ledger::of_relay(&self.http, &self.metrics()?))
    }

    /// Waits until it has accepted `accepted` entries and holds none for any of these upstreams.
    ///
    /// # Errors
    /// When that does not happen in time.
    pub fn drained(&self, accepted: i64, upstreams: &[&str]) -> Result<()> {
        let in_flight = |metrics: &Metrics, upstream: &&str| {
            metrics.sum("blkin_relay_entries_upstream_in_flight", &[("upstream", upstream)])
        };
        let drained = || {
            let metrics = self.metrics().ok()?;
            let all = metrics.sum("blkin_relay_entries_accepted_total", &[]) >= accepted;
            (all && upstreams.iter().all(|upstream| in_flight(&metrics, upstream) == 0)).then_some(())
        };
        wait::until(LIMIT, "a relay to be drained", drained)
            .with_context(|| format!("{:#?}\n{}", self.ledger(), self.daemon.log()))
    }
}

fn launch(name: &str, folder: &Path, flags: &[String], scribe: &str, http: &str) -> Result<Daemon> {
    let mut command = Command::new(binary("blkin-relay")?);
    command.args(["--scribe-listen", scribe, "--http-listen", http]).args(flags);
    Daemon::start(name, command, folder)
}
