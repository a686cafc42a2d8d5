//! A log that nobody reads delays no daemon, neither while it serves nor at its end. A reader that comes back gets every line
//! that there was room for.

use std::fs;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use blkin_cli::http::Client;
use blkin_tests::artifacts::binary;
use blkin_tests::daemons::LIMIT;
use blkin_tests::process::Process;
use blkin_tests::wait;
use rustix::io::ioctl_fionbio;
use rustix::pipe::fcntl_setpipe_size;
use rustix::process::Signal;

/// The smallest capacity of a pipe.
const PIPE_BYTES: usize = 4096;

const DAEMONS: [(&str, &str, &[&str]); 3] = [
    ("blkin-consumerd", "--socket", &["--scan", "false", "--scribe-upstream", ""]),
    ("blkin-relay", "--spool-dir", &["--scribe-listen", "127.0.0.1:0", "--upstreams", "127.0.0.1:1"]),
    ("blkin-collector", "--data-dir", &["--scribe-listen", "127.0.0.1:0"]),
];

/// A pipe that is full.
fn full_pipe() -> Result<(PipeReader, PipeWriter)> {
    let (reader, mut writer) = std::io::pipe()?;
    fcntl_setpipe_size(&writer, PIPE_BYTES)?;
    ioctl_fionbio(&writer, true)?;
    while writer.write(&[b'\n'; PIPE_BYTES]).is_ok() {}
    ioctl_fionbio(&writer, false)?;
    Ok((reader, writer))
}

/// Starts a daemon whose output goes into that pipe, and checks that it serves.
fn serving(folder: &Path, (daemon, made, flags): (&str, &str, &[&str]), log: PipeWriter) -> Result<Process> {
    let (ready, place) = (folder.join("ready"), folder.join("place"));
    let mut command = Command::new(binary(daemon)?);
    command.args(["--config", "/dev/null", "--http-listen", "127.0.0.1:0"]).args(flags);
    command.arg("--ready-file").arg(&ready).arg(made).arg(&place);
    command.stdout(log.try_clone()?).stderr(log);
    let process = Process::spawn(daemon, &mut command)?;
    let ready = || serde_json::from_slice::<serde_json::Value>(&fs::read(&ready).ok()?).ok();
    let ready = wait::until(LIMIT, &format!("{daemon} to be ready"), ready)?;
    let http = Client::new(ready["http"].as_str().context("the ready file names no address")?);
    let metrics = http.get_ok("/metrics", &[])?;
    ensure!(metrics.contains("\nblkin_log_lines_lost_total 0\n"), "{metrics}");
    Ok(process)
}

#[test]
fn daemons_serve_and_end_while_their_log_is_not_read() -> Result<()> {
    for daemon in DAEMONS {
        let folder = tempfile::tempdir()?;
        let (_unread, log) = full_pipe()?;
        let mut process = serving(folder.path(), daemon, log)?;
        process.signal(Signal::TERM)?;
        ensure!(process.wait(LIMIT)?.success(), "{}", daemon.0);
    }
    Ok(())
}

#[test]
fn a_log_that_is_read_again_has_the_queued_and_last_lines() -> Result<()> {
    for daemon in DAEMONS {
        let folder = tempfile::tempdir()?;
        let (mut reader, log) = full_pipe()?;
        let mut process = serving(folder.path(), daemon, log)?;
        let reading = std::thread::spawn(move || {
            let mut said = String::new();
            reader.read_to_string(&mut said).map(|_| said)
        });
        process.signal(Signal::TERM)?;
        ensure!(process.wait(LIMIT)?.success(), "{}", daemon.0);
        let said = reading.join().expect("the reader panicked")?;
        let all = [" ready ", " stopping: "].iter().all(|words| said.contains(words));
        ensure!(all, "{}: {said}", daemon.0);
    }
    Ok(())
}
