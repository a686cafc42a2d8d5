//! The worker: reads what programs wrote, and ships it. It has no privileges, and may be killed at any time.

mod askers;
mod beats;
mod earlier_drains;
mod engine;
mod feed;
pub mod ledger;
mod loss_log;
mod metrics;
mod pace;
mod program;
mod program_log;
mod resolve;
mod shown_figures;
mod snapshot;
mod spare;
mod sweep;
mod totals;
mod unread;
mod waker;

use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use blkin_daemon::admin::{self, ADMIN_CONNECTIONS, Admin};
use blkin_daemon::exit::Failure;
use blkin_daemon::prometheus_client::registry::Registry;
use blkin_daemon::{CancellationToken, Health, Heartbeat, Patience, Standing, logging, signals, threads};
use tokio::io::unix::AsyncFd;

use crate::clock_set::ClockSet;
use crate::config::Config;
use crate::holder::claim::claim;
use crate::link::{MAX_MESSAGE_BYTES, Message, receive, send, watch};
use crate::second_runtime::SecondRuntime;
use crate::settings::{self, Settings};
use crate::sinks::{self, Sign};
use crate::staging::Memfd;
use crate::timer::Timer;
use beats::Beats;
use engine::{Engine, Progress};
pub use engine::{Snapshot, SpanFigures};
use ledger::SinkFigures;
use loss_log::LossLog;
use metrics::EngineCollector;
use pace::Pace;
use snapshot::Rings;
pub use totals::Totals;
use waker::Waker;

/// Connections for /metrics and /healthz that are idle for this long are closed.
const HTTP_IDLE_TIME: Duration = Duration::from_secs(120);
/// Longest wait for the holder's last messages, in case only the worker was asked to end.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Pause between two checks whether the sinks have finished, while the daemon ends.
const ENDING_POLL: Duration = Duration::from_millis(5);

/// Runs the worker on the socket that is its standard input.
///
/// # Errors
/// When the standard input is not a holder's socket, or the staging memory cannot be used.
pub fn run() -> Result<(), Failure> {
    let link = io::stdin().as_fd().try_clone_to_owned().context("failed to use the standard input")?;
    let hello =
        hello(&link).context("failed to hear from a holder; `blkin-consumerd` starts the worker itself")?;
    // Before any other thread is started, which would keep its privileges.
    let dropped = drop_privileges();
    logging::init(&hello.config.log, hello.config.log_format)?;
    if let Err(e) = dropped {
        tracing::warn!("failed to drop capabilities: {e}");
    }
    take_name();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start the runtime")?;
    runtime.block_on(async { Worker::new(link, hello)?.run().await })?;
    Ok(())
}

struct Hello {
    config: Config,
    /// What is held when the daemon ends is kept for the next.
    is_kept: bool,
    staging: OwnedFd,
    http: OwnedFd,
    control: OwnedFd,
    rules: OwnedFd,
}

fn hello(link: &OwnedFd) -> anyhow::Result<Hello> {
    let received = receive(link, MAX_MESSAGE_BYTES)?;
    let Some(Message::Hello(settings)) = Message::decode(&received.bytes) else {
        bail!("the first message is not a hello")
    };
    let [staging, http, control, rules] =
        <[OwnedFd; 4]>::try_from(received.fds).ok().context("the hello came without its four descriptors")?;
    let (config, is_kept) = serde_json::from_slice(&settings)?;
    Ok(Hello { config, is_kept, staging, http, control, rules })
}

/// Locks the staging memory for as long as this worker lives. A worker whose holder was killed may still be writing to it, where
/// systemd was told to kill the main process alone.
fn lock(staging: &OwnedFd) -> anyhow::Result<Option<OwnedFd>> {
    match claim(staging) {
        Ok(Some(lock)) => Ok(Some(lock)),
        Ok(None) => bail!("another worker uses the staging memory"),
        Err(error) => {
            tracing::warn!("failed to find out whether another worker uses the staging memory: {error}");
            Ok(None)
        }
    }
}

/// Names the process: it is started through /proc/self/exe, and would appear as "exe" in lists of processes.
fn take_name() {
    if let Err(e) = rustix::thread::set_name(c"blkin-consumerd") {
        tracing::debug!("failed to name the process: {e}");
    }
}

/// Drops all capabilities that the holder may have, because the worker reads what programs wrote.
fn drop_privileges() -> rustix::io::Result<()> {
    use rustix::thread::{CapabilitySet, CapabilitySets, clear_ambient_capability_set, set_capabilities};
    let none = CapabilitySet::empty();
    clear_ambient_capability_set()?;
    rustix::thread::set_no_new_privs(true)?;
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
}

/// The thread that answers HTTP requests.
type Serving = JoinHandle<Option<()>>;

/// Heartbeats for `/healthz`, each with the name of its sink, or `drain`.
type Heartbeats = Vec<(&'static str, Heartbeat)>;

struct Worker {
    config: Config,
    link: AsyncFd<OwnedFd>,
    engine: Arc<Mutex<Engine>>,
    health: Health,
    stop: CancellationToken,
    http: TcpListener,
    pace: Pace,
    /// When the last round began.
    looked: Instant,
    timer: Timer,
    clock_set: ClockSet,
    settings: Settings,
    waker: Waker,
    /// One for each sink, in the sinks' order.
    standings: Vec<Arc<Standing>>,
    /// One for each sink, in the same order.
    loss_logs: Vec<LossLog>,
    /// A program ended the last sleep.
    was_woken: bool,
    /// A program has ended a sleep since something was last drained, and nothing was found then.
    was_woken_in_vain: bool,
    is_linked: bool,
    /// What is held when the daemon ends is kept for the next one.
    is_kept: bool,
    /// See [`lock`].
    _of_staging: Option<OwnedFd>,
    /// The holder's beats; none once its last message has come.
    holder: Option<Beats>,
}

impl Worker {
    fn new(link: OwnedFd, hello: Hello) -> anyhow::Result<Self> {
        // Signals of a terminal reach holder and worker alike.
        let stop = signals::silent_stop_token().context("failed to catch signals")?;
        signals::outlive_hangups().context("failed to catch signals")?;
        let config = hello.config;
        let sinks = sinks::start_all(&config).context("failed to start the sinks")?;
        let standings: Vec<_> = sinks.iter().map(|sink| sink.standing.clone()).collect();
        let health = Health::new();
        standings.iter().for_each(|standing| health.register_trouble_source(standing.clone()));
        let settings = Settings::of_file(Memfd::from_fd(hello.rules)).context("failed to read the rules")?;
        let of_staging = lock(&hello.staging)?;
        let staging = Memfd::from_fd(hello.staging);
        let (mut engine, tail) = Engine::new(config.clone(), staging, sinks, settings.clone())?;
        take_over(&link, &mut engine)?;
        settings.complete();
        let engine = Arc::new(Mutex::new(engine));
        let (rings, heartbeat) = (Rings(engine.clone()), health.worker("control"));
        settings::service::start(hello.control, settings.clone(), rings, heartbeat)
            .context("failed to serve the control socket")?;
        let loss_logs = {
            let mut engine = engine.lock().unwrap_or_else(PoisonError::into_inner);
            engine.rebuild(tail)?;
            engine.sinks().map(LossLog::from).collect()
        };
        rustix::io::ioctl_fionbio(&link, true)?;
        let waker =
            Waker::start(health.worker("wake")).context("failed to start the thread that programs wake")?;
        let [shortest, longest] = [config.poll_busy_ms, config.poll_idle_ms].map(Duration::from_millis);
        Ok(Self {
            pace: Pace::new(shortest, longest),
            looked: Instant::now(),
            timer: Timer::new()?,
            clock_set: ClockSet::watch(),
            settings,
            waker,
            was_woken: false,
            was_woken_in_vain: false,
            config,
            holder: Some(Beats::of_holder(&health)),
            link: watch(link)?,
            engine,
            health,
            standings,
            loss_logs,
            stop,
            http: TcpListener::from(hello.http),
            is_linked: true,
            is_kept: hello.is_kept,
            _of_staging: of_staging,
        })
    }

    fn engine(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(mut self) -> anyhow::Result<()> {
        let serving = self.serve().context("failed to serve HTTP")?;
        let heartbeats = self.heartbeats();
        send(self.link.get_ref(), &Message::Ready.encode(), &[]).context("failed to greet the holder")?;
        while self.is_linked && !self.stop.is_cancelled() {
            let before = std::mem::replace(&mut self.looked, Instant::now());
            let progress = self.engine().round()?;
            self.after_round(&heartbeats)?;
            has_not_ended(&serving)?;
            self.rest(progress, self.looked - before).await?;
        }
        self.finish(&heartbeats).await?;
        heartbeats.into_iter().for_each(|(_, heartbeat)| heartbeat.finish());
        Ok(())
    }

    /// Serves metrics and health until the process ends, on a separate thread: on the thread that drains, a client that asks
    /// without pause would make rings run full.
    fn serve(&self) -> io::Result<Serving> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(EngineCollector {
            engine: self.engine.clone(),
            settings: self.settings.clone(),
            wakes: self.waker.wakes(),
            standings: self.standings.clone(),
        }));
        let router = admin::router(Admin { registry: Arc::new(registry), health: self.health.clone() });
        let runtime = SecondRuntime::build(&mut tokio::runtime::Builder::new_current_thread())?;
        let listener = {
            let _guard = runtime.enter();
            tokio::net::TcpListener::from_std(self.http.try_clone()?)?
        };
        let (patience, never) = (Patience::new(HTTP_IDLE_TIME), CancellationToken::new());
        let serving = admin::server(listener, router, ADMIN_CONNECTIONS, patience).serve(never);
        threads::start("blkin-http", move || runtime.drive(serving))
    }

    fn heartbeats(&self) -> Heartbeats {
        let sinks = self.engine().signs_of_sinks();
        let names = sinks.into_iter().map(|(name, _)| name).chain(["drain"]);
        names.map(|name| (name, self.health.worker(name))).collect()
    }

    /// Does what is due after each round.
    ///
    /// # Errors
    /// When the thread of a sink has ended: this worker could not feed the sink any more, but the next one starts the sink again
    /// and finds what it did not ship.
    fn after_round(&mut self, heartbeats: &Heartbeats) -> anyhow::Result<()> {
        if let Some(sink) = self.beat(heartbeats) {
            bail!("the thread of the sink {sink} has ended");
        }
        self.log_losses(|log, figures| log.admit(figures, Instant::now()));
        self.engine()
            .release(|number| send(self.link.get_ref(), &Message::Release(number).encode(), &[]).is_ok());
        Ok(())
    }

    /// Logs the losses of each sink for which a line is due.
    fn log_losses(&mut self, of: impl Fn(&mut LossLog, SinkFigures) -> Option<(u64, u64)>) {
        let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        for ((figures, log), standing) in engine.sinks().zip(&mut self.loss_logs).zip(&self.standings) {
            if let Some((queue_full, spool_evicted)) = of(log, figures) {
                let (sink, to) = (standing.name(), standing.to());
                tracing::warn!(
                    sink,
                    to,
                    queue_full,
                    spool_evicted,
                    "annotations were lost: more wait to be shipped than there is room for"
                );
            }
        }
    }

    /// Beats for the drain, and for each sink that shows a sign of life. Returns a sink that is dead.
    fn beat(&self, heartbeats: &Heartbeats) -> Option<&'static str> {
        let signs = self.engine().signs_of_sinks();
        let lives = |name: &str| signs.iter().all(|(sink, sign)| *sink != name || *sign == Sign::Life);
        heartbeats.iter().filter(|(name, _)| lives(name)).for_each(|(_, heartbeat)| heartbeat.beat());
        signs.iter().find(|(_, sign)| *sign == Sign::Death).map(|(sink, _)| *sink)
    }

    /// Sleeps between rounds: not at all while there is more, shortly while there is something, ever longer while there is nothing,
    /// but no longer than until a program wakes the worker. `since` is the time between the starts of the last two rounds.
    async fn rest(&mut self, progress: Progress, since: Duration) -> anyhow::Result<()> {
        let was_woken = std::mem::replace(&mut self.was_woken, false);
        let programs = self.engine().programs().len();
        self.pace.after(progress, since, self.waker.is_woken_by_all(programs));
        let mut has_more = progress.has_more;
        if progress.drained || progress.holds_back {
            self.was_woken_in_vain = false;
            if was_woken {
                // No program can end the pause that follows: one that did so all the time would keep the worker awake.
                self.pace.quicken();
            }
            self.nap();
        } else {
            self.was_woken_in_vain |= was_woken;
            has_more |= self.fall_asleep();
        }
        // Even with no pause, the holder's messages are read.
        let pause = if has_more { Duration::ZERO } else { self.pace.pause() };
        self.engine().call_sinks(Instant::now() + pause);
        tokio::select! {
            slept = self.timer.sleep(pause) => return Ok(slept?),
            woken = self.waker.woken() => {
                self.waker.rise();
                self.pace.quicken();
                self.was_woken = true;
                return Ok(woken?);
            }
            set = self.clock_set.happened() => {
                self.engine().clock_was_set();
                return Ok(set?);
            }
            () = self.stop.cancelled() => return Ok(()),
            guard = self.link.readable() => guard?.clear_ready(),
        }
        self.listen()
    }

    /// Asks programs to wake the worker if it is going to pause longer than the shortest time. What is in the rings by now,
    /// after a round, can wait for the pause to end.
    fn nap(&mut self) {
        if self.pace.is_long() {
            let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
            self.waker.sleep(&self.settings, || engine.drained());
        } else {
            self.waker.rise();
        }
    }

    /// Asks programs to wake the worker. Returns whether they were asked just now and something is in the rings already.
    fn fall_asleep(&mut self) -> bool {
        // A program that wakes the worker in vain, again and again, must not cost more than an idle daemon does.
        if self.was_woken_in_vain && !self.pace.is_longest() {
            return false;
        }
        let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        self.waker.sleep(&self.settings, || engine.drained()) && engine.has_pending()
    }

    /// Handles the holder's messages.
    fn listen(&mut self) -> anyhow::Result<()> {
        loop {
            match next_message(self.link.get_ref()) {
                Ok(Some((Message::Attach(program), Some([segment, control])))) => {
                    self.pace.quicken();
                    self.engine()
                        .attach(program, segment, control)
                        .context("failed to attach to a program")?;
                }
                Ok(Some((Message::Beat(has_sockets), _))) => {
                    self.holder.iter_mut().for_each(|beats| beats.hear(has_sockets));
                }
                Ok(Some(_)) => {}
                Ok(None) => {
                    self.is_linked = false;
                    return Ok(());
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e).context("failed to hear from the holder"),
            }
        }
    }

    /// Handles the holder's last messages, until it closes the link.
    async fn listen_to_the_end(&mut self) -> anyhow::Result<()> {
        let due = Instant::now() + LAST_WORDS;
        while self.is_linked && Instant::now() < due {
            tokio::select! {
                guard = self.link.readable() => guard?.clear_ready(),
                () = tokio::time::sleep(ENDING_POLL) => {}
            }
            self.listen()?;
        }
        Ok(())
    }

    /// Drains what is there, ships it, and logs what could not be shipped. Beats all the time, because this may take long.
    async fn finish(&mut self, heartbeats: &Heartbeats) -> anyhow::Result<()> {
        self.waker.rise();
        self.listen_to_the_end().await?;
        self.holder.take().into_iter().for_each(Beats::finish);
        self.log_losses(LossLog::rest);
        let before = self.engine().snapshot().sinks;
        let due = Instant::now() + Duration::from_millis(self.config.stop_timeout_ms);
        let half = Instant::now() + Duration::from_millis(self.config.stop_timeout_ms / 2);
        while self.engine().round()?.drained && Instant::now() < half {
            self.beat(heartbeats);
            tokio::task::yield_now().await;
        }
        self.engine().drain_last()?;
        self.engine().finish();
        while !self.engine().finish_more(due)? && Instant::now() < due {
            self.beat(heartbeats);
            tokio::time::sleep(ENDING_POLL).await;
        }
        let mut engine = self.engine();
        engine.close_books()?;
        let after = engine.snapshot().sinks;
        for ((before, after), standing) in before.into_iter().zip(after).zip(&self.standings) {
            log_final_losses(standing, &before.1, &after.1, fate(self.is_kept));
        }
        let annotations = engine.left_behind();
        if annotations > 0 {
            let fate = fate(self.is_kept);
            tracing::warn!(
                annotations,
                "the daemon ended before it had read the rings of all ended programs{fate}"
            );
        }
        log_recorders(engine.kept_recorders(), self.is_kept);
        Ok(())
    }
}

/// Fails when the thread that answers HTTP has ended: `/healthz` could not report that, and the next worker starts another one.
fn has_not_ended(serving: &Serving) -> anyhow::Result<()> {
    if serving.is_finished() {
        bail!("the thread that answers HTTP has ended");
    }
    Ok(())
}

/// Log text: what becomes of what is left when the daemon ends.
fn fate(is_kept: bool) -> &'static str {
    if is_kept { ": kept for a restart, given up if the unit is stopped for good" } else { "" }
}

/// Logs the flight recorders that end with the daemon, the first few by name.
fn log_recorders((kept, annotations): (Vec<&str>, u64), is_kept: bool) {
    const NAMED: usize = 10;
    let fate =
        if is_kept { fate(is_kept) } else { " were given up: nobody took them before the daemon ended" };
    if !kept.is_empty() {
        let (recorders, programs) = (kept.len(), kept[..kept.len().min(NAMED)].join(" "));
        tracing::warn!(
            recorders,
            annotations,
            programs,
            "the flight recorders of programs that have ended{fate}"
        );
    }
}

/// Logs what can no longer be read in `/metrics`: what a sink still had in flight, and what it lost while the daemon ended.
fn log_final_losses(standing: &Standing, before: &SinkFigures, after: &SinkFigures, fate: &str) {
    let (sink, to) = (standing.name(), standing.to());
    if after.in_flight > 0 {
        let trouble = standing.trouble().map(|trouble| trouble.reason);
        let annotations = after.in_flight;
        tracing::warn!(
            sink,
            to,
            annotations,
            trouble,
            "the daemon ended before everything was shipped{fate}"
        );
    }
    let queue_full = after.queue_full - before.queue_full;
    let spool_evicted = after.spool_evicted - before.spool_evicted;
    let rejected = after.rejected - before.rejected;
    if queue_full + spool_evicted + rejected > 0 {
        tracing::warn!(sink, to, queue_full, spool_evicted, rejected, "annotations were lost while ending");
    }
}

/// Attaches to every program that the holder has already.
fn take_over(link: &OwnedFd, engine: &mut Engine) -> anyhow::Result<()> {
    while let Some(message) = next_message(link).context("failed to hear from the holder")? {
        match message {
            (Message::Attach(program), Some([segment, control])) => {
                engine.attach(program, segment, control).context("failed to attach to a program")?;
            }
            // The holder may send a beat in between.
            (Message::Beat(_), _) => {}
            (Message::Complete, _) => break,
            _ => bail!("the holder sent an unexpected message"),
        }
    }
    Ok(())
}

type Heard = (Message, Option<[OwnedFd; 2]>);

/// The next message and its descriptors; `None` when the holder has ended or asks to end.
fn next_message(link: impl AsFd) -> io::Result<Option<Heard>> {
    let received = receive(link, MAX_MESSAGE_BYTES)?;
    if received.bytes.is_empty() {
        return Ok(None);
    }
    let message = Message::decode(&received.bytes).ok_or(ErrorKind::InvalidData)?;
    let fds = received.fds.try_into().ok();
    // The kernel drops descriptors for which there is no room, while the holder takes the program for named. With this error the
    // worker ends, and the next one is told of the program again.
    if matches!(message, Message::Attach(_)) && fds.is_none() {
        return Err(io::Error::other(
            "no file descriptors were left for a program; raise the limit of open files (LimitNOFILE, ulimit -n)",
        ));
    }
    Ok(Some((message, fds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_ends_when_its_serving_thread_has_ended() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let serving: Serving = std::thread::spawn(move || {
            let _ = ended.recv();
            panic!("simulated defect")
        });
        assert!(has_not_ended(&serving).is_ok());
        drop(end);
        while !serving.is_finished() {
            std::thread::yield_now();
        }
        assert!(has_not_ended(&serving).is_err());
    }
}
