//! What systemd is told by the daemons that it starts and ends.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use blkin_tests::artifacts::binary;
use blkin_tests::process::Process;
use rustix::process::Signal;

/// Longer than it takes to start or to begin an end.
const PATIENCE: Duration = Duration::from_secs(30);
/// What the daemons are given, and more than systemd grants by itself.
const STOP_TIMEOUT_MS: u64 = 120_000;

#[test]
fn systemd_is_told_once_programs_can_come_and_how_long_an_end_of_consumerd_may_take() -> Result<()> {
    tells_systemd("blkin-consumerd", "--socket", &["--scan", "false", "--scribe-upstream", ""])
}

#[test]
fn systemd_is_told_once_senders_can_come_and_how_long_an_end_of_the_relay_may_take() -> Result<()> {
    let flags = ["--scribe-listen", "127.0.0.1:0", "--upstreams", "127.0.0.1:1"];
    tells_systemd("blkin-relay", "--spool-dir", &flags)
}

/// `made`: the flag of what the daemon has made by the time at which it says that it can be used.
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
    // A wait that has a limit does not go on by itself when the process is stopped meanwhile and goes on.
    let length = loop {
        match listening.recv(&mut told) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            received => break received?,
        }
    };
    Ok(String::from_utf8_lossy(&told[..length]).trim_end().to_owned())
}
