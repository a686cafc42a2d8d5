//! Starts the worker and watches it. The worker has a socket pair as its standard input, on which the holder's beats arrive, and
//! writes its own heartbeat into the staging memory.

use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use blkin_daemon::threads;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use rustix::process::{Pid, Signal, test_kill_process};

use super::control::Control;
use super::silence::Silence;
use crate::config::Config;
use crate::link::{MAX_MESSAGE_BYTES, Message, receive, send};
use crate::staging::layout::HEARTBEAT_AT;
use crate::staging::log::monotonic_ms;
use crate::staging::{Memfd, Memory};

/// A worker without a heartbeat for this long is stuck.
pub(super) const STUCK_AFTER: Duration = Duration::from_millis(1100);

/// Pause between two beats of the holder: long, because the processes of an idle daemon should sleep long; but short enough that a
/// late beat still counts as alive by [`blkin_daemon::health::STUCK_AFTER`].
pub(super) const BEAT_EVERY: Duration = Duration::from_millis(800);

/// The daemon's own executable, which the worker runs, too.
const PROGRAM: &str = "/proc/self/exe";

/// Checks that /proc is mounted. Not only starting the worker needs it, and the other places would fail with misleading errors.
///
/// # Errors
/// When /proc is not mounted.
pub(super) fn must_see_proc() -> io::Result<()> {
    std::fs::read_link(PROGRAM).map(drop).map_err(|error| {
        io::Error::new(error.kind(), format!("failed to read {PROGRAM}; mount /proc: {error}"))
    })
}

/// A worker process.
#[derive(Debug)]
pub(super) struct WorkerProcess {
    child: Child,
    link: OwnedFd,
    started: Instant,
    silence: Silence,
    last_beat: Option<Instant>,
    is_killed: bool,
}

impl WorkerProcess {
    /// Starts a worker and sends it the hello, with the configuration, and whether what is held is kept over a restart.
    ///
    /// # Errors
    /// When the worker cannot be started.
    pub(super) fn start(
        settings: (&Config, bool),
        staging: &Memfd,
        http: &TcpListener,
        control: &Control,
    ) -> io::Result<Self> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let (config, _) = settings;
        let settings = serde_json::to_vec(&settings).map_err(io::Error::other)?;
        let [control, rules] = control.fds();
        let fds = [staging.as_fd(), http.as_fd(), control, rules];
        send(&ours, &Message::Hello(settings).encode(), &fds)?;
        let mut command = Command::new(PROGRAM);
        command.arg0("blkin-consumerd").arg("worker").stdin(Stdio::from(theirs));
        if let Some(gid) = config.worker_gid {
            command.gid(gid);
        }
        if let Some(uid) = config.worker_uid {
            command.uid(uid);
        }
        let (started, silence) = (Instant::now(), Silence::new(monotonic_ms()));
        let child = command.spawn().map_err(|error| explained(error, config))?;
        // A worker that this process may not kill would stay for ever once it is stuck. On this error it ends by itself, because
        // our end of its link is closed.
        test_kill_process(Pid::from_child(&child)).map_err(|errno| explained(errno.into(), config))?;
        Ok(Self { child, link: ours, started, silence, last_beat: None, is_killed: false })
    }

    /// Process id.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Our end of the socket pair.
    pub(super) fn link(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }

    /// How long ago it was started.
    pub(super) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Every message that is there; a last `None` when the worker has ended or is about to. A worker from which messages cannot be
    /// received is killed, because another takes its place only once it has ended.
    pub(super) fn messages(&mut self) -> Vec<Option<Message>> {
        let mut out = Vec::new();
        loop {
            match receive(&self.link, MAX_MESSAGE_BYTES) {
                Ok(received) if received.bytes.is_empty() => out.push(None),
                Ok(received) => {
                    out.extend(Message::decode(&received.bytes).map(Some));
                    continue;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                // The worker has ended without reading all that it was sent.
                Err(e) if e.kind() == ErrorKind::ConnectionReset => out.push(None),
                Err(e) => {
                    tracing::error!(pid = self.pid(), "failed to receive from the worker; killing it: {e}");
                    self.kill();
                    out.push(None);
                }
            }
            return out;
        }
    }

    /// Sends the worker a beat, with whether the holder's sockets are in place, unless one was sent a moment ago. Returns the time
    /// until the next beat.
    pub(super) fn beat(&mut self, has_sockets: impl FnOnce() -> bool) -> Duration {
        let now = Instant::now();
        let left =
            self.last_beat.map_or(Duration::ZERO, |last| (last + BEAT_EVERY).saturating_duration_since(now));
        if !left.is_zero() {
            return left;
        }
        // If the worker does not read its messages, its missing heartbeat will show that it is stuck.
        let _ = send(&self.link, &Message::Beat(has_sockets()).encode(), &[]);
        self.last_beat = Some(now);
        BEAT_EVERY
    }

    /// How long the worker has shown no sign of life; see [`Silence`].
    pub(super) fn silence(&mut self, staging: &impl Memory) -> Duration {
        let mut raw = [0; 8];
        let beaten_ms = staging.read(HEARTBEAT_AT, &mut raw).map_or(0, |()| u64::from_le_bytes(raw));
        self.silence.at(monotonic_ms(), beaten_ms)
    }

    /// Asks the worker to ship what it has and to end.
    pub(super) fn ask_to_end(&self) {
        // Fails only when the worker has ended already.
        let _ = shutdown(&self.link, Shutdown::Write);
    }

    /// Kills the worker.
    pub(super) fn kill(&mut self) {
        // Fails only when the worker has ended already.
        let _ = self.child.kill();
        self.is_killed = true;
    }

    /// Whether the worker was [killed](Self::kill). It may still take a while to end: a system call may not be interruptible.
    pub(super) fn is_killed(&self) -> bool {
        self.is_killed
    }

    /// Whether and how the worker has ended.
    ///
    /// # Errors
    /// When the system will not say.
    pub(super) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits until the worker has ended.
    ///
    /// # Errors
    /// When the system will not say.
    pub(super) fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }

    /// Log text: how the worker ended.
    pub(super) fn end_told(&self, status: ExitStatus) -> String {
        end_told(status, self.is_killed)
    }
}

/// Adds advice after a SIGKILL that the holder did not send: where memory is short the kernel kills the worker without a word, and
/// kills each further worker as long as memory stays short.
fn end_told(status: ExitStatus, by_us: bool) -> String {
    if by_us || status.signal() != Some(Signal::KILL.as_raw()) {
        return status.to_string();
    }
    format!(
        "{status}; unless somebody killed it, memory was short: raise the limit (MemoryMax, or the container's), or lower \
         `staging_bytes`, `queue_bytes` and `max_open_bytes`"
    )
}

/// Adds advice to an error from starting the worker: the limit of processes is reached, or the daemon may not give the worker
/// another user, which takes root with the capabilities for it.
fn explained(refused: io::Error, config: &Config) -> io::Error {
    if refused.kind() == ErrorKind::WouldBlock {
        return threads::too_many(&refused);
    }
    if refused.kind() != ErrorKind::PermissionDenied || config.worker_uid.is_none() {
        return refused;
    }
    let advice = "remove `worker_uid` and `worker_gid`, or start the daemon as root, with CAP_SETUID and CAP_SETGID to give the \
                  worker its user, and CAP_KILL to end it once it is stuck";
    io::Error::new(refused.kind(), format!("{refused}; {advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unexpected_kill_is_explained_by_short_memory() {
        let killed = ExitStatus::from_raw(Signal::KILL.as_raw());
        assert!(end_told(killed, false).contains("memory was short: raise the limit (MemoryMax"));
        assert_eq!(end_told(killed, true), killed.to_string());
        let failed = ExitStatus::from_raw(1 << 8);
        assert_eq!(end_told(failed, false), failed.to_string());
    }

    /// The holder then waits for the worker's end.
    #[test]
    fn a_worker_with_a_broken_link_is_killed() {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let (started, silence) = (Instant::now(), Silence::new(monotonic_ms()));
        let no_socket = std::fs::File::open("/dev/null").unwrap().into();
        let mut worker =
            WorkerProcess { child, link: no_socket, started, silence, last_beat: None, is_killed: false };
        let (heard, was_killed) = (worker.messages(), worker.is_killed());
        worker.kill();
        worker.wait().unwrap();
        assert!(was_killed && heard == [None], "{heard:?}");
    }

    #[test]
    fn a_failed_worker_start_is_explained_by_its_cause() {
        let refused = || io::Error::from(rustix::io::Errno::PERM);
        let root = Config::default();
        assert_eq!(explained(refused(), &root).to_string(), refused().to_string());
        let other = Config { worker_uid: Some(7), worker_gid: Some(7), ..Config::default() };
        let said = explained(refused(), &other).to_string();
        assert!(said.contains("remove `worker_uid` and `worker_gid`"), "{said}");
        let too_many = explained(rustix::io::Errno::AGAIN.into(), &other).to_string();
        assert!(too_many.contains("ulimit -u") && !too_many.contains("worker_uid"), "{too_many}");
        let missing = explained(ErrorKind::NotFound.into(), &other);
        assert!(!missing.to_string().contains("worker_uid"), "{missing}");
    }
}
