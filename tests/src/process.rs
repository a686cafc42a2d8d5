//! A child process that never outlives its test.

use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use crate::wait;

/// Time limit for a process to end after SIGTERM, long enough for a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// A dropped process that has not ended within this time after SIGTERM is killed.
const GRACE: Duration = Duration::from_secs(10);

/// A running child; when it is dropped, it gets SIGTERM, and SIGKILL if it does not end.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
}

impl Process {
    /// Starts the command.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn spawn(name: &str, command: &mut Command) -> Result<Process> {
        let child = command.spawn().with_context(|| format!("failed to start {name}"))?;
        Ok(Process { child, name: name.to_owned() })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The child, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        signal_pid(self.pid(), signal).with_context(|| format!("failed to signal {}", self.name))
    }

    /// How it has ended; None if it still runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When it does not end in time.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let name = self.name.clone();
        wait::until(limit, &format!("the end of {name}"), || self.ended())
    }

    /// Sends SIGTERM and waits for the end.
    ///
    /// # Errors
    /// When it does not end in time.
    pub fn terminate(&mut self) -> Result<ExitStatus> {
        self.terminate_within(LIMIT)
    }

    fn terminate_within(&mut self, limit: Duration) -> Result<ExitStatus> {
        if self.ended().is_none() {
            self.signal(Signal::TERM)?;
        }
        self.wait(limit)
    }

    /// Sends SIGKILL and waits for the end.
    ///
    /// # Errors
    /// When the kernel reports one.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.terminate_within(GRACE).is_err() {
            let _ = self.kill();
        }
    }
}

/// Sends a signal to any process.
///
/// # Errors
/// When there is no such process.
pub fn signal_pid(pid: u32, signal: Signal) -> Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("no process id")?;
    Ok(kill_process(pid, signal)?)
}

/// How often the threads of a process went to sleep: their voluntary context switches, without preemptions.
///
/// # Errors
/// When there is no such process.
pub fn sleeps(pid: u32) -> Result<u64> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))?;
    tasks.map(|task| sleeps_of(&task?.path())).sum()
}

/// How often the first thread of a process went to sleep.
///
/// # Errors
/// When there is no such process.
pub fn main_sleeps(pid: u32) -> Result<u64> {
    sleeps_of(Path::new(&format!("/proc/{pid}/task/{pid}")))
}

fn sleeps_of(task: &Path) -> Result<u64> {
    let status = std::fs::read_to_string(task.join("status"))?;
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    Ok(count.context("no count of switches")?.trim().parse()?)
}

/// Direct children of a process.
pub fn children(pid: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}
