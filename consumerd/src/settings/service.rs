//! Answers requests on the control socket, on a thread of its own.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener as StdListener;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use blkin_daemon::{Heartbeat, Notices, threads};
use rustix::net::sockopt::set_socket_oobinline;
use rustix::net::{RecvFlags, recv};
use rustix::process::getuid;
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use super::Settings;
use super::copies::{self, Copies, Places};
use super::message::{Answer, MAX_REQUEST_BYTES, Snapshot, parse, snapshot};
use super::peer::Reach;
use super::rules::Target;
use super::state::as_kernel_has_it;
use crate::holder::closer::{Closer, look};
use crate::second_runtime::SecondRuntime;

/// Time for a client to send its request, and again to receive the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time for a client to take each part of its rings. They may be many and large, and the client may write them to a disk.
const PATIENCE_FOR_A_PART: Duration = Duration::from_secs(10);
/// Bytes of such a part.
const PART_BYTES: usize = 1 << 20;
/// Most clients at a time. Beyond that one of them is disconnected, so that silent clients do not hold up others.
const MAX_ASKERS: usize = 64;
/// Pause when no connection can be accepted for want of file descriptors.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);

/// Access to the rings of programs, for requests that ask for them.
pub trait Recorders: Clone + Send + Sync + 'static {
    /// Numbers of the programs that match the target and are within reach.
    fn find(&self, target: &Target, reach: Reach) -> Vec<u64>;
    /// What the rings of a program hold; with `since`, only what was recorded from then on.
    fn copy(&self, number: u64, since: Option<SystemTime>) -> Option<RingsCopy>;
    /// Notes that everything a program's rings will ever hold was sent, so that they need not be kept any longer.
    fn note_snapshot_sent(&self, number: u64);
}

/// What the rings of a program held at a moment.
#[derive(Debug)]
pub struct RingsCopy {
    /// The copy as a saved segment (`blkin_ringbuf::saved`).
    pub file: Vec<u8>,
    /// Whether it is all that the rings held, and the program had ended before it was made, so that they will never hold more.
    pub is_final: bool,
}

/// Starts the thread, which serves until the process ends. It beats when it has something to do, and rests in between.
///
/// # Errors
/// When the thread cannot be started, or the socket cannot be used.
pub fn start(
    socket: OwnedFd,
    settings: Settings,
    recorders: impl Recorders,
    heartbeat: Heartbeat,
) -> io::Result<()> {
    let heartbeat = Arc::new(heartbeat);
    let resting = heartbeat.clone();
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.on_thread_park(move || resting.rest()).on_thread_unpark(move || heartbeat.beat());
    let runtime = SecondRuntime::build(&mut builder)?;
    let listener = {
        let _guard = runtime.enter();
        UnixListener::from_std(StdListener::from(socket))?
    };
    let serving = move || runtime.drive(serve(&listener, &settings, &recorders));
    threads::start("blkin-settings", serving)?;
    Ok(())
}

async fn serve(listener: &UnixListener, settings: &Settings, recorders: &impl Recorders) {
    let daemon_uid = getuid().as_raw();
    let mut copies = Copies::default();
    let mut askers = JoinSet::new();
    let mut order: VecDeque<(u32, AbortHandle)> = VecDeque::new();
    let closer = Closer::default();
    let mut failures = Notices::default();
    loop {
        while closer.is_full() {
            tokio::time::sleep(SHORTAGE_PAUSE).await;
        }
        match listener.accept().await {
            Ok((stream, _)) => {
                let asker = Asker::new(stream, closer.clone());
                let Some(uid) = asker.uid() else { continue };
                order.retain(|(_, asker)| !asker.is_finished());
                if order.len() >= MAX_ASKERS
                    && let Some(at) = who_must_go(order.iter().map(|(uid, _)| *uid))
                    && let Some((_, sent_away)) = order.remove(at)
                {
                    sent_away.abort();
                }
                let reach = Reach::of(uid, daemon_uid);
                let conversation =
                    converse(asker, reach, settings.clone(), recorders.clone(), copies.of(reach));
                order.push_back((uid, askers.spawn(conversation)));
            }
            Err(e) => {
                if let Some(held_back) = failures.admit(Instant::now()) {
                    tracing::warn!(held_back, "failed to accept on the control socket: {e}");
                }
                tokio::time::sleep(SHORTAGE_PAUSE).await;
            }
        }
        // The errors of conversations are ignored: a client that disconnects early harms only itself.
        while askers.try_join_next().is_some() {}
    }
}

/// Which of too many clients is disconnected: the first one of the user who has most. So a user who asks often loses his own
/// connections, and does not disconnect another user who takes rings for long.
fn who_must_go(askers: impl Iterator<Item = u32> + Clone) -> Option<usize> {
    let mut by_uid: HashMap<u32, usize> = HashMap::new();
    askers.clone().for_each(|uid| *by_uid.entry(uid).or_default() += 1);
    let most = by_uid.values().copied().max()?;
    askers.into_iter().position(|uid| by_uid.get(&uid) == Some(&most))
}

/// A client's connection. It is closed by the [`Closer`], because anything may lie unread in it.
struct Asker {
    stream: Option<UnixStream>,
    closer: Closer,
}

impl Asker {
    fn new(stream: UnixStream, closer: Closer) -> Self {
        // Reading past an out-of-band byte would drop it, and close its descriptors here. On a local socket this does not fail.
        let _ = set_socket_oobinline(&stream, true);
        Self { stream: Some(stream), closer }
    }

    /// The client's user.
    fn uid(&self) -> Option<u32> {
        Some(self.stream.as_ref()?.peer_cred().ok()?.uid())
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        if let Some(Ok(stream)) = self.stream.take().map(UnixStream::into_std) {
            self.closer.hang_up(stream.into());
        }
    }
}

async fn converse(
    mut asker: Asker,
    reach: Reach,
    settings: Settings,
    recorders: impl Recorders,
    places: Places,
) -> io::Result<()> {
    let Some(stream) = &mut asker.stream else { return Ok(()) };
    let request = timeout(PATIENCE, read_request(stream)).await??;
    if let Some(Snapshot { target, last_ms }) = snapshot(&request) {
        // Relative to now: rings are copied one after the other, which may take seconds, and sent at the client's pace.
        let since = last_ms.and_then(|last| SystemTime::now().checked_sub(Duration::from_millis(last)));
        let target = as_kernel_has_it(target);
        let found = recorders.find(&target, reach);
        if found.is_empty() {
            return timeout(PATIENCE, answer_line(stream, &settings.no_match_answer(&target, reach))).await?;
        }
        return copy_rings(stream, &recorders, found, since, places).await;
    }
    let answer = match parse(&request) {
        Ok(request) => {
            tracing::debug!(?reach, ?request, "asked on the control socket");
            settings.ask(request, reach)
        }
        Err(refusal) => refusal,
    };
    timeout(PATIENCE, answer_line(stream, &answer)).await?
}

/// Sends a saved segment of each program, and keeps each in memory no longer than that takes. Other threads make the copies: large
/// ones take seconds, and requests to set something must not wait meanwhile.
async fn copy_rings(
    stream: &mut UnixStream,
    recorders: &impl Recorders,
    programs: Vec<u64>,
    since: Option<SystemTime>,
    places: Places,
) -> io::Result<()> {
    for number in programs {
        let place = copies::take(&places).await?;
        let copying = recorders.clone();
        // The thread holds the place, too: it completes the copy even if the client was disconnected.
        let copied = tokio::task::spawn_blocking(move || (copying.copy(number, since), place)).await;
        let (Some(copy), _place) = copied.map_err(io::Error::other)? else { continue };
        for part in copy.file.chunks(PART_BYTES) {
            timeout(PATIENCE_FOR_A_PART, stream.write_all(part)).await??;
        }
        // Not asked of the program now: it may have ended only after the copy.
        if copy.is_final {
            recorders.note_snapshot_sent(number);
        }
    }
    stream.shutdown().await
}

/// Reads a request: up to the end of the line, the end of the stream, or just beyond the longest request.
async fn read_request(stream: &UnixStream) -> io::Result<Vec<u8>> {
    let mut request = Vec::new();
    let mut part = [0; MAX_REQUEST_BYTES];
    loop {
        let read = stream.async_io(Interest::READABLE, || read_part(stream, &mut part)).await?;
        request.extend_from_slice(&part[..read]);
        if let Some(end) = request.iter().position(|byte| *byte == b'\n') {
            request.truncate(end);
            return Ok(request);
        }
        if read == 0 || request.len() > MAX_REQUEST_BYTES {
            return Ok(request);
        }
    }
}

/// Reads bytes, but fails if descriptors came with them: this process would have to close descriptors that it received.
fn read_part(stream: &UnixStream, part: &mut [u8]) -> io::Result<usize> {
    let seen = look(stream, part, &mut [])?;
    if seen.is_cut {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "descriptors came with a request"));
    }
    Ok(recv(stream, &mut part[..seen.length], RecvFlags::DONTWAIT)?.1)
}

async fn answer_line(stream: &mut UnixStream, answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    stream.write_all(&line).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream as StdStream;
    use std::path::PathBuf;
    use std::sync::Mutex;

    use blkin_daemon::Health;

    /// Programs with the numbers 0, 1, 2 …, some of which have ended, and which of them were given up.
    #[derive(Clone, Default)]
    struct Programs {
        ended: &'static [bool],
        /// Bytes of padding before the contents of the rings.
        padding: usize,
        /// Held by a test so that no copy can be made.
        copying: Arc<Mutex<()>>,
        /// The `since` of each copy.
        since: Arc<Mutex<Vec<Option<SystemTime>>>>,
        sent: Arc<Mutex<Vec<u64>>>,
    }

    impl Recorders for Programs {
        fn find(&self, _: &Target, _: Reach) -> Vec<u64> {
            (0..self.ended.len() as u64).collect()
        }
        fn copy(&self, number: u64, since: Option<SystemTime>) -> Option<RingsCopy> {
            self.since.lock().unwrap().push(since);
            let _copying = self.copying.lock().unwrap();
            let is_final = self.ended[usize::try_from(number).unwrap()];
            let file = format!("{}rings of {number};", " ".repeat(self.padding));
            Some(RingsCopy { file: file.into_bytes(), is_final })
        }
        fn note_snapshot_sent(&self, number: u64) {
            self.sent.lock().unwrap().push(number);
        }
    }

    fn started() -> (tempfile::TempDir, PathBuf) {
        started_with(Programs::default())
    }

    fn started_with(programs: Programs) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = StdListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let heartbeat = Health::new().worker("control");
        start(listener.into(), Settings::default(), programs, heartbeat).unwrap();
        (folder, path)
    }

    fn answer(mut stream: StdStream) -> String {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn a_line_or_the_end_of_input_gets_a_one_line_answer() {
        let (_folder, path) = started();
        for (request, ends) in [(&b"{\"show\":{}}\n"[..], false), (b"{\"show\":{}}", true)] {
            let mut stream = StdStream::connect(&path).unwrap();
            stream.write_all(request).unwrap();
            if ends {
                stream.shutdown(Shutdown::Write).unwrap();
            }
            assert_eq!(answer(stream), "{\"done\":{\"rules\":[],\"programs\":[]}}\n");
        }
        let mut stream = StdStream::connect(&path).unwrap();
        stream.write_all(&[b'x'; MAX_REQUEST_BYTES + 1]).unwrap();
        assert!(answer(stream).contains("bad_request"));
    }

    #[test]
    fn a_snapshot_of_no_program_names_the_requested_target() {
        let (_folder, path) = started();
        let why = |target: &str| {
            let mut stream = StdStream::connect(&path).unwrap();
            stream.write_all(format!("{{\"snapshot\":{{\"target\":{target}}}}}\n").as_bytes()).unwrap();
            let answer: serde_json::Value = serde_json::from_str(&answer(stream)).unwrap();
            answer["refused"]["why"].as_str().unwrap().to_owned()
        };
        let nobody = "no program that you may read is attached";
        assert_eq!(why("\"all\""), nobody);
        let nobody_else = "there are none that you may set or read";
        assert_eq!(why("{\"pid\":7}"), format!("{nobody} under process id 7; {nobody_else}"));
        // The kernel keeps this much of a name.
        let named = format!("{nobody} under the name \"name-of-a-progr\"; {nobody_else}");
        assert_eq!(why("{\"label\":\"name-of-a-program\"}"), named);
    }

    #[test]
    fn a_snapshot_releases_only_recorders_that_have_ended() {
        let programs = Programs { ended: &[true, false, true], ..Programs::default() };
        let (_folder, path) = started_with(programs.clone());
        let mut stream = StdStream::connect(&path).unwrap();
        stream.write_all(b"{\"snapshot\":{\"target\":\"all\"}}\n").unwrap();
        assert_eq!(answer(stream), "rings of 0;rings of 1;rings of 2;");
        assert_eq!(*programs.sent.lock().unwrap(), [0, 2]);
    }

    #[test]
    fn last_ms_counts_back_from_the_request_for_all_programs() {
        let programs = Programs { ended: &[false, false], ..Programs::default() };
        let (_folder, path) = started_with(programs.clone());
        let copying = programs.copying.lock().unwrap();
        let mut stream = StdStream::connect(&path).unwrap();
        let asked = SystemTime::now();
        stream.write_all(b"{\"snapshot\":{\"target\":\"all\",\"last_ms\":5000}}\n").unwrap();
        while programs.since.lock().unwrap().is_empty() {
            std::thread::yield_now();
        }
        let copied = SystemTime::now();
        drop(copying);
        assert_eq!(answer(stream), "rings of 0;rings of 1;");
        let since = programs.since.lock().unwrap().clone();
        let [Some(first), Some(second)] = since[..] else { panic!("{since:?}") };
        assert_eq!(first, second);
        let from = first + Duration::from_secs(5);
        assert!((asked..=copied).contains(&from), "{asked:?} {from:?} {copied:?}");
    }

    #[test]
    fn requests_are_answered_while_rings_are_copied() {
        let programs = Programs { ended: &[false], ..Programs::default() };
        let (_folder, path) = started_with(programs.clone());
        let copying = programs.copying.lock().unwrap();
        let mut snapshot = StdStream::connect(&path).unwrap();
        snapshot.write_all(b"{\"snapshot\":{\"target\":\"all\"}}\n").unwrap();
        let mut stream = StdStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"{\"show\":{}}\n").unwrap();
        assert!(answer(stream).contains("done"));
        drop(copying);
        assert_eq!(answer(snapshot), "rings of 0;");
    }

    #[test]
    fn a_slow_reader_still_gets_whole_rings() {
        // More than the kernel buffers for the client.
        let programs = Programs { ended: &[false, false], padding: 1 << 20, ..Programs::default() };
        let (_folder, path) = started_with(programs);
        let mut stream = StdStream::connect(&path).unwrap();
        stream.write_all(b"{\"snapshot\":{\"target\":\"all\"}}\n").unwrap();
        std::thread::sleep(PATIENCE + Duration::from_millis(500));
        let rings = answer(stream);
        assert!(rings.ends_with("rings of 1;"), "cut after {} bytes", rings.len());
    }

    /// Connects as another user, which only root can do.
    fn connect_as(uid: u32, path: &std::path::Path, times: usize) -> Option<Vec<StdStream>> {
        use std::os::unix::fs::PermissionsExt;
        if !rustix::process::geteuid().is_root() {
            let _ = writeln!(io::stderr(), "not shown: this needs root");
            return None;
        }
        for open in [path, path.parent().unwrap()] {
            std::fs::set_permissions(open, std::fs::Permissions::from_mode(0o777)).unwrap();
        }
        let path = path.to_owned();
        let connecting = std::thread::spawn(move || {
            let uid = rustix::process::Uid::from_raw(uid);
            // Changes the user of this thread alone.
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            (0..times).map(|_| StdStream::connect(&path).unwrap()).collect()
        });
        Some(connecting.join().unwrap())
    }

    const ALL: &[u8] = b"{\"snapshot\":{\"target\":\"all\"}}\n";

    #[test]
    fn many_slow_snapshots_of_a_user_do_not_delay_others() {
        // More than the kernel buffers for the clients.
        let (_folder, path) =
            started_with(Programs { ended: &[false], padding: 1 << 20, ..Programs::default() });
        let Some(mut slow) = connect_as(65534, &path, 2 * copies::AT_ONCE) else { return };
        for asker in &mut slow {
            asker.write_all(ALL).unwrap();
            // One client takes a place, and the others wait for it.
            asker.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            let _ = asker.read(&mut [0]);
        }
        for uid in [0, 65533] {
            let mut other = connect_as(uid, &path, 1).unwrap().pop().unwrap();
            other.write_all(ALL).unwrap();
            other.set_read_timeout(Some(PATIENCE)).unwrap();
            assert!(answer(other).ends_with("rings of 0;"), "{uid}");
        }
    }

    #[test]
    fn many_requests_of_a_user_do_not_cut_snapshots_of_others() {
        let (_folder, path) =
            started_with(Programs { ended: &[false], padding: 4 << 20, ..Programs::default() });
        let Some(own) = connect_as(0, &path, 1) else { return };
        let mut own = own.into_iter().next().unwrap();
        own.write_all(ALL).unwrap();
        own.read_exact(&mut [0]).unwrap();
        let _others = connect_as(65534, &path, 3 * MAX_ASKERS);
        assert!(answer(own).ends_with("rings of 0;"));
    }

    #[test]
    fn the_oldest_connection_of_the_busiest_user_is_dropped() {
        let gone = |askers: &[u32]| who_must_go(askers.iter().copied());
        assert_eq!(gone(&[]), None);
        assert_eq!(gone(&[0, 1000, 1000]), Some(1));
        assert_eq!(gone(&[1001, 0, 1000, 1001, 1000, 1000]), Some(2));
        assert_eq!(gone(&[1000, 0]), Some(0));
    }

    #[test]
    fn silent_connections_do_not_block_others() {
        let (_folder, path) = started();
        let silent: Vec<_> = (0..3 * MAX_ASKERS).map(|_| StdStream::connect(&path).unwrap()).collect();
        let mut stream = StdStream::connect(&path).unwrap();
        stream.write_all(b"{\"show\":{}}\n").unwrap();
        assert!(answer(stream).contains("done"));
        drop(silent);
    }
}
