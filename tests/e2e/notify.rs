//! The daemons' notifications to systemd at start and at the end.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use blkin_tests::artifacts::binary;
use blkin_tests::process::Process;
use rustix::process::Signal;

/// Longer than a daemon takes to start, or to begin to stop.
const PATIENCE: Duration = Duration::from_secs(30);
/// The daemons' stop timeout, longer than systemd allows by default.
const STOP_TIMEOUT_MS: u64 = 120_000;

#[test]
fn consumerd_notifies_systemd_of_readiness_and_stop_time() -> Result<()> {
    tells_systemd("blkin-consumerd", "--socket", &["--scan", "false", "--scribe-upstream", ""])
}

#[test]
fn relay_notifies_systemd_of_readiness_and_stop_time() -> Result<()> {
    let flags = ["--scribe-listen", "127.0.0.1:0", "--upstreams", "127.0.0.1:1"];
    tells_systemd("blkin-relay", "--spool-dir", &flags)
}

/// `made` is the flag of a path that the daemon must have created before it reports that it is ready.
fn tells_systemd(daemon: &str, made: &str, flags: &[&str]) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (systemd, place) = (folder.path().join("systemd"), folder.path().join("place"));
    let listening = UnixDatagram::bind(&systemd)?;
    listening.set_read_timeout(Some(PATIENCE))?;
    let mut command = Command::new(binary(daemon)?);
    command.args(["--config", "/dev/null"]).env("NOTIFY_SOCKET", &systemd).arg(made).arg(&place);
    command.args(["--http-listen", "127.0.0.1:0"]).args(flags);
    command.args(["--stop-timeout-ms", &STOP_TIMEOUT_MS.to_string()]);
    let mut process = Process::spawn(daemon, &mut command)?;
    let ready = told(&listening)?;
    ensure!(ready == "READY=1" && place.exists(), "{ready}");
    process.signal(Signal::TERM)?;
    let time = told(&listening)?;
    let longest = time.strip_prefix("EXTEND_TIMEOUT_USEC=").and_then(|time| time.parse::<u64>().ok());
    ensure!(longest.is_some_and(|longest| longest >= STOP_TIMEOUT_MS * 1000), "{time}");
    ensure!(process.wait(PATIENCE)?.success());
    Ok(())
}

fn told(listening: &UnixDatagram) -> Result<String> {
    let mut told = [0; 64];
    // The kernel does not restart a wait with a timeout when the process is stopped and continued.
    let length = loop {
        match listening.recv(&mut told) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            received => break received?,
        }
    };
    Ok(String::from_utf8_lossy(&told[..length]).trim_end().to_owned())
}
