//! The holder: owns the socket, the staging memory and every program's descriptors, and keeps a worker running.
//!
//! It parses nothing that programs wrote, so no program can make it fail. It alone needs capabilities, for the one
//! [`scan`] at start.

mod admission;
pub(crate) mod claim;
pub mod closer;
mod control;
pub mod counters;
mod descriptors;
mod guard;
pub mod held;
mod local;
mod lookout;
mod memfd_closer;
mod numbers;
mod offers;
mod place_lock;
mod predecessor;
mod released_programs;
mod restore;
mod scan;
mod silence;
mod store;
mod waiting;
mod worker_process;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use blkin_daemon::config::ConfigError;
use blkin_daemon::descriptors::{raise_limit, suffice};
use blkin_daemon::exit::Failure;
use blkin_daemon::start::who_has;
use blkin_daemon::{CancellationToken, Notices, logging, ready, signals};
use rustix::process::geteuid;
use serde::Serialize;

use crate::config::Config;
use crate::link::{Message, send, watch};
use crate::staging::Memfd;
use crate::timer::Timer;
use closer::Closer;
use control::Control;
use counters::{Count, Counters};
use guard::Guard;
use held::HeldPrograms;
use memfd_closer::MemfdCloser;
use numbers::Numbers;
use offers::Offers;
use predecessor::Predecessor;
use restore::{staging_of, update_store};
use store::{Kept, Store};
use waiting::Waiting;
use worker_process::{STUCK_AFTER, WorkerProcess, must_see_proc};

/// Pause between tries while a message could not be sent yet.
const SHORT_TICK: Duration = Duration::from_millis(10);
/// Time that the worker may need to end, in addition to `stop_timeout_ms`, to which it keeps itself. Half a second of it is
/// for a log that nobody reads.
const AROUND_SHIPPING: Duration = Duration::from_millis(3700);
/// A worker that ended sooner than this counts as one that could not start.
const SHORT_LIFE: Duration = Duration::from_secs(2);
/// Longest pause before a worker is started again.
const MAX_RESTART_PAUSE: Duration = Duration::from_secs(5);

#[derive(Serialize)]
struct Ready<'a> {
    http: &'a str,
    socket: &'a Path,
    control: &'a Path,
}

/// Runs the daemon until SIGTERM or SIGINT.
///
/// # Errors
/// When the daemon cannot get its sockets, its HTTP address or its staging memory.
pub fn run(config: &Config, ready_file: Option<&Path>) -> Result<(), Failure> {
    let limit = raise_limit();
    suffice(limit)?;
    let kept = Kept::receive();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start the runtime")?;
    // The worker gets this configuration, too, so it knows the same bounds.
    let config = descriptors::within(limit, config);
    runtime.block_on(async { Holder::new(&config, ready_file, kept).await?.run().await })?;
    Ok(())
}

/// The failure of a daemon whose configuration cannot be used. While systemd keeps something for the daemon, the failure counts
/// as a passing one: with the exit code of a bad configuration the unit would not be restarted, and what is kept would be lost.
pub fn while_something_is_kept(error: ConfigError) -> Failure {
    if Kept::receive().is_empty() {
        return error.into();
    }
    anyhow!(
        "{error}; systemd keeps what the previous daemon had not shipped, and restarts this one until its configuration can be used"
    )
    .into()
}

/// Warns when no sink is configured.
fn warn_without_sinks(config: &Config) {
    if config.ships_to().is_empty() {
        tracing::warn!(
            "nothing is shipped, and what programs record is lost (counted as no_sink): set `scribe_upstream`, \
             `json_scribe_upstream` or `json_lines`"
        );
    }
}

/// Warns when the worker, which reads what programs wrote, runs as root.
fn warn_of_a_worker_of_root(config: &Config) {
    if config.worker_uid.is_none() && geteuid().is_root() {
        tracing::warn!(
            "the worker, which reads what programs wrote, runs as root; set `worker_uid` and `worker_gid`"
        );
    }
}

struct Holder<'a> {
    config: &'a Config,
    ready_file: Option<&'a Path>,
    /// Closes what was sent to the sockets and is not an offer.
    closer: Closer,
    memfd_closer: MemfdCloser,
    offers: Offers,
    held: HeldPrograms,
    waiting: Waiting,
    staging: Memfd,
    numbers: Numbers,
    /// None where systemd keeps nothing for the next daemon.
    store: Option<Store>,
    control: Control,
    http: TcpListener,
    guard: Guard,
    counters: Counters,
    over_quota: Notices,
    elsewhere: Notices,
    unclaimed: Notices,
    /// At the last look, offers were left unread for want of file descriptors.
    was_short: bool,
    /// A program of another PID namespace has offered itself, and the log has said so.
    was_foreign: bool,
    stop: CancellationToken,
    restart_pause: Duration,
    was_ready: bool,
    /// The paths of its sockets where the socket's file is missing or replaced.
    lost: Vec<PathBuf>,
    timer: Timer,
}

/// The sockets on which the daemon listens.
struct Listening {
    offers: Offers,
    control: Control,
    http: TcpListener,
}

impl Listening {
    async fn start(config: &Config, closer: &Closer, stop: &CancellationToken) -> anyhow::Result<Self> {
        let shipping = Duration::from_millis(config.stop_timeout_ms);
        let mut predecessor = Predecessor::new(Instant::now() + shipping + predecessor::MARGIN, stop);
        let failed = |what: &str, key: &str| format!("failed to listen on {what}; set `{key}`");
        let socket = config.socket.display().to_string();
        let offers = predecessor
            .socket(&socket, || Offers::listen(&config.socket, closer.clone()))
            .await
            .with_context(|| failed(&socket, "socket"))?;
        let path = config.control_socket();
        let what = path.display().to_string();
        let control = predecessor
            .socket(&what, || Control::listen(&path))
            .await
            .with_context(|| failed(&what, "control_socket"))?;
        let address = config.http_listen.to_string();
        let http =
            predecessor.port(&address, || TcpListener::bind(config.http_listen)).await.map_err(|error| {
                let who = who_has(config.http_listen, &error);
                anyhow!(error).context(failed(&address, "http_listen") + &who)
            })?;
        http.set_nonblocking(true).context("failed to prepare the HTTP listener")?;
        Ok(Self { offers, control, http })
    }
}

/// Why a worker is no longer watched.
enum Ended {
    /// The worker has ended, or is about to, without having been asked to.
    Died,
    /// The daemon is asked to end.
    Asked,
}

/// The outcome of reading the worker's messages.
enum Heard {
    /// It has rebuilt its state; there may have been other messages, too.
    Ready,
    /// Other messages, or none.
    Else,
    /// It has ended, or is about to.
    End,
}

impl<'a> Holder<'a> {
    async fn new(config: &'a Config, ready_file: Option<&'a Path>, kept: Kept) -> anyhow::Result<Self> {
        let stop = signals::stop_token().context("failed to catch signals")?;
        signals::outlive_hangups().context("failed to catch signals")?;
        must_see_proc()?;
        let closer = Closer::default();
        let Listening { offers, control, http } = Listening::start(config, &closer, &stop).await?;
        let guard = Guard::new(&http).context("failed to prepare the HTTP listener")?;
        let mut store = Store::of_unit();
        let (staging, is_kept) = staging_of(config, kept.staging)?;
        if !is_kept {
            update_store(&mut store, |store| store.keep_staging(&staging));
        }
        let mut holder = Self {
            config,
            ready_file,
            closer,
            memfd_closer: MemfdCloser::start(),
            offers,
            held: HeldPrograms::new(config),
            waiting: Waiting::new(config.max_programs, config.max_programs_per_uid),
            counters: Counters::default(),
            staging,
            numbers: Numbers::default(),
            store,
            control,
            http,
            guard,
            over_quota: Notices::default(),
            elsewhere: Notices::default(),
            unclaimed: Notices::default(),
            was_short: false,
            was_foreign: false,
            stop,
            restart_pause: Duration::ZERO,
            was_ready: false,
            lost: Vec::new(),
            timer: Timer::new().context("failed to make a timer")?,
        };
        holder.restore(kept.programs, kept.useless, is_kept);
        Ok(holder)
    }

    async fn run(mut self) -> anyhow::Result<()> {
        warn_of_a_worker_of_root(self.config);
        warn_without_sinks(self.config);
        if self.config.scan {
            self.scan();
        }
        self.readmit_programs().await;
        let mut first = true;
        loop {
            match self.serve_one_worker().await {
                Ok(Some(worker)) => return self.finish(worker).await,
                Ok(None) => {}
                Err(e) if first => return Err(e),
                // The shortage may pass, and an exit now would lose the held descriptors and the staging memory.
                Err(e) => {
                    tracing::error!("failed to restart the worker, trying again: {e:#}");
                    self.pause_before_restart(Duration::ZERO).await;
                }
            }
            first = false;
            if self.stop.is_cancelled() {
                self.keep_last().await;
                return Err(anyhow!("stopped while no worker was running; {}", self.fate_of_the_rest()));
            }
        }
    }

    /// Starts a worker and serves it. Returns the worker if the daemon is to end, `None` if the worker died.
    async fn serve_one_worker(&mut self) -> anyhow::Result<Option<WorkerProcess>> {
        let settings = (self.config, self.store.is_some());
        let mut worker = WorkerProcess::start(settings, &self.staging, &self.http, &self.control)
            .context("failed to start the worker")?;
        tracing::debug!(pid = worker.pid(), "worker started");
        self.held.reset_announced();
        match self.watch(&mut worker).await {
            Ok(Ended::Asked) => return Ok(Some(worker)),
            Ok(Ended::Died) => {}
            Err(e) => {
                // Two workers must never read the same rings.
                worker.kill();
                worker.wait().context("failed to wait for the worker")?;
                return Err(e);
            }
        }
        let status = worker.wait().context("failed to wait for the worker")?;
        self.counters.add(Count::Restarts);
        self.publish_counters();
        let ended = worker.end_told(status);
        tracing::warn!("the worker ended ({ended}); starting another, which continues where it stopped");
        self.pause_before_restart(worker.age()).await;
        Ok(None)
    }

    /// Restarts the first time at once; while workers cannot even start, the pauses grow. HTTP clients get a 503 meanwhile.
    async fn pause_before_restart(&mut self, age: Duration) {
        self.restart_pause = if age > SHORT_LIFE {
            Duration::ZERO
        } else {
            (self.restart_pause * 2).clamp(Duration::from_millis(20), MAX_RESTART_PAUSE)
        };
        let due = tokio::time::sleep(self.restart_pause);
        tokio::pin!(due);
        loop {
            tokio::select! {
                () = &mut due => return,
                () = self.stop.cancelled() => return,
                () = self.guard.answer_one() => {}
            }
        }
    }

    fn publish_counters(&mut self) {
        self.counters.set(Count::Held, self.held.len() as u64);
        self.counters.set(Count::NextNumber, self.held.next_number());
        self.counters.publish(&mut self.staging);
    }

    /// Serves one worker until it has ended or the daemon is to end.
    async fn watch(&mut self, worker: &mut WorkerProcess) -> anyhow::Result<Ended> {
        let link = watch(worker.link().try_clone_to_owned()?)?;
        let socket = watch(self.offers.socket().try_clone()?)?;
        let stop = self.stop.clone();
        let mut is_ready = false;
        let mut is_complete = false;
        loop {
            is_complete = self.announce_programs(worker, is_complete);
            update_store(&mut self.store, |store| store.tell(&self.held, Instant::now()));
            let next_beat = worker.beat(|| self.has_its_sockets());
            let pause = if is_complete && !self.has_more() { next_beat } else { SHORT_TICK };
            let silence = worker.silence(&self.staging);
            self.kill_if_stuck(worker, silence);
            let guarded = !is_ready || silence > STUCK_AFTER;
            tokio::select! {
                () = stop.cancelled() => return Ok(Ended::Asked),
                guard = link.readable() => {
                    guard?.clear_ready();
                    if !self.hear(worker, &mut is_ready)? {
                        return Ok(Ended::Died);
                    }
                    self.take_waiting();
                }
                guard = socket.readable() => {
                    guard?.clear_ready();
                    // Places that the worker releases are for the programs that wait already.
                    if !self.hear(worker, &mut is_ready)? {
                        return Ok(Ended::Died);
                    }
                    self.take_offers();
                }
                () = self.guard.answer_one(), if guarded => {}
                slept = self.timer.sleep(pause) => {
                    slept?;
                    if self.offers.has_waiting() || !self.waiting.is_empty() {
                        self.take_offers();
                    }
                }
            }
            self.tell_held_back(|notices| notices.rest(Instant::now()));
            self.count_lost_lines();
        }
    }

    /// Shows in `/metrics` how many log lines were lost: a log that nobody reads cannot say so itself.
    fn count_lost_lines(&mut self) {
        let lost = logging::lost_lines();
        if lost != self.counters.get(Count::LogLinesLost) {
            self.counters.set(Count::LogLinesLost, lost);
            self.publish_counters();
        }
    }

    /// Whether programs wait to be admitted, or to be named to the worker.
    fn is_anyone_waiting(&mut self) -> bool {
        self.offers.has_waiting() || !self.waiting.is_empty() || self.held.unannounced().next().is_some()
    }

    /// Whether there is work left that no event will announce.
    fn has_more(&mut self) -> bool {
        self.store.as_ref().is_some_and(Store::is_behind) || self.is_anyone_waiting()
    }

    /// Handles the worker's messages, and announces once that the daemon is ready. Returns whether the worker lives.
    fn hear(&mut self, worker: &mut WorkerProcess, is_ready: &mut bool) -> anyhow::Result<bool> {
        match self.listen(worker) {
            Heard::Ready => *is_ready = true,
            Heard::Else => {}
            Heard::End => return Ok(false),
        }
        if *is_ready {
            self.tell_ready()?;
        }
        Ok(true)
    }

    /// Does what the worker's messages ask, in their order.
    fn listen(&mut self, worker: &mut WorkerProcess) -> Heard {
        let mut heard = Heard::Else;
        let mut has_released = false;
        for message in worker.messages() {
            match message {
                Some(Message::Ready) => heard = Heard::Ready,
                Some(Message::Release(number)) => {
                    self.release(number);
                    has_released = true;
                }
                Some(_) => {}
                None => return Heard::End,
            }
        }
        if has_released {
            self.held.forget_released(self.offers.handled_connections(), self.offers.is_anyone_there());
        }
        heard
    }

    /// Names programs to the worker, and tells it once that all have been named. Returns whether it has been told that.
    fn announce_programs(&mut self, worker: &WorkerProcess, is_complete: bool) -> bool {
        use std::os::fd::AsFd;
        for held in self.held.unannounced() {
            let message = Message::Attach(held.program.clone()).encode();
            if send(worker.link(), &message, &[held.segment.as_fd(), held.control.as_fd()]).is_err() {
                return is_complete;
            }
            held.is_announced = true;
        }
        is_complete || send(worker.link(), &Message::Complete.encode(), &[]).is_ok()
    }

    fn release(&mut self, number: u64) {
        if let Some(held) = self.held.release(number, self.offers.handled_connections()) {
            self.memfd_closer.close([held.segment, held.control]);
            self.waiting.place_came_free();
        }
        self.note_released(number);
        self.publish_counters();
    }

    fn tell_ready(&mut self) -> anyhow::Result<()> {
        if std::mem::replace(&mut self.was_ready, true) {
            return Ok(());
        }
        let http = self.http.local_addr()?.to_string();
        let (socket, to) = (&self.config.socket, self.config.ships_to());
        let control = &self.config.control_socket();
        ready::announce(self.ready_file, &Ready { http: &http, socket, control })?;
        tracing::info!(http, socket = %socket.display(), ?to, "ready");
        Ok(())
    }

    fn kill_if_stuck(&mut self, worker: &mut WorkerProcess, silence: Duration) {
        if silence > Duration::from_millis(self.config.stuck_kill_ms) && !worker.is_killed() {
            tracing::error!(
                pid = worker.pid(),
                "the worker has shown no sign of life for {silence:?}; killing it"
            );
            self.counters.add(Count::StuckKills);
            self.publish_counters();
            worker.kill();
        }
    }

    /// Ends the daemon: lets the worker ship what it has, for a bounded time.
    async fn finish(mut self, mut worker: WorkerProcess) -> anyhow::Result<()> {
        let shipping = Duration::from_millis(self.config.stop_timeout_ms) + AROUND_SHIPPING;
        ready::ask_for_time_to_end(shipping);
        // Programs that have connected already are still admitted.
        self.take_offers();
        // Programs that connect from now on are refused, and so know that nobody reads them.
        self.offers.refuse_more();
        self.take_last_offers(&worker).await;
        self.keep_last().await;
        let rest = self.fate_of_the_rest();
        self.offers.end();
        worker.ask_to_end();
        let ended = ended(&mut worker, Instant::now() + shipping, rest).await;
        // Kept until now: by this socket a daemon started meanwhile knows that it has to wait, also for the HTTP address.
        self.control.end(&self.closer);
        ended
    }
}

/// Waits for the end of a worker that was asked to end, and kills the worker if it takes too long.
async fn ended(worker: &mut WorkerProcess, due: Instant, rest: &str) -> anyhow::Result<()> {
    loop {
        if let Some(status) = worker.ended().context("failed to wait for the worker")? {
            return if status.success() { Ok(()) } else { Err(anyhow!("the worker ended badly: {status}")) };
        }
        if Instant::now() > due {
            worker.kill();
            worker.wait().context("failed to wait for the worker")?;
            return Err(anyhow!("the worker did not end in time and was killed; {rest}"));
        }
        tokio::time::sleep(SHORT_TICK).await;
    }
}
