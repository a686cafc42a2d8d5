//! The holder: owns the socket, the staging memory and every program's descriptors, and keeps a worker running.
//!
//! It parses nothing that programs wrote, so there is nothing in it that they could make stumble. It alone needs
//! capabilities, for the one [`scan`] at start.

mod claim;
mod control;
pub mod counters;
mod descriptors;
mod guard;
pub mod held;
mod local;
mod offers;
mod predecessor;
mod scan;
mod silence;
mod worker_process;

use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use blkin_daemon::descriptors::raise_limit;
use blkin_daemon::exit::Failure;
use blkin_daemon::{CancellationToken, Notices, ready, signals};
use blkin_ringbuf::Unread;
use rustix::process::geteuid;
use serde::Serialize;

use crate::config::Config;
use crate::link::{Message, send, watch};
use crate::staging::{Memfd, Staging};
use crate::timer::Timer;
use claim::{Waiting, claim};
use control::Control;
use counters::{Count, Counters};
use guard::Guard;
use held::{HeldPrograms, Refusal};
use offers::{BACKLOG, Offer, Offers};
use predecessor::listen_when_free;
use worker_process::{STUCK_AFTER, WorkerProcess};

/// Pause while a message could not be handed over yet.
const SHORT_TICK: Duration = Duration::from_millis(10);
/// Connections that are taken at once.
const OFFERS_AT_ONCE: usize = 256;
/// How often offers are looked for while the daemon ends, [`SHORT_TICK`] apart.
const LAST_LOOKS: usize = 20;
/// What the worker may take to end beside `stop_timeout_ms`, to which it keeps itself.
const AROUND_SHIPPING: Duration = Duration::from_millis(3200);
/// A worker that lived shorter than this counts as one that could not start.
const SHORT_LIFE: Duration = Duration::from_secs(2);
/// Longest pause before a worker is started again.
const MAX_RESTART_PAUSE: Duration = Duration::from_secs(5);

/// Why programs are refused, in the log.
const OVER_QUOTA: &str = "quota; raise max_programs*, max_shared_bytes_per_uid or the limit of open files";
const ELSEWHERE: &str = "another daemon reads it";
/// Why programs wait, in the log.
const NO_DESCRIPTORS: &str =
    "no descriptors are left; raise the limit of open files (LimitNOFILE, ulimit -n)";

#[derive(Serialize)]
struct Ready<'a> {
    http: String,
    socket: &'a Path,
    control: &'a Path,
}

/// Runs the daemon until SIGTERM or SIGINT.
///
/// # Errors
/// When the socket, the HTTP address or the staging memory cannot be had.
pub fn run(config: &Config, ready_file: Option<&Path>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start the runtime")?;
    runtime.block_on(async { Holder::new(config, ready_file).await?.run().await })?;
    Ok(())
}

/// Says so when what programs wrote is read by root.
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
    offers: Offers,
    held: HeldPrograms,
    waiting: Waiting,
    staging: Memfd,
    control: Control,
    http: TcpListener,
    guard: Guard,
    counters: Counters,
    over_quota: Notices,
    elsewhere: Notices,
    /// Offers stayed where they were for want of descriptors.
    was_short: bool,
    stop: CancellationToken,
    restart_pause: Duration,
    was_ready: bool,
    timer: Timer,
}

/// What the daemon listens on.
struct Listening {
    offers: Offers,
    control: Control,
    http: TcpListener,
}

impl Listening {
    async fn start(config: &Config, stop: &CancellationToken) -> anyhow::Result<Self> {
        let shipping = Duration::from_millis(config.stop_timeout_ms);
        let due = Instant::now() + shipping + predecessor::MARGIN;
        let failed = |what: &str, key: &str| format!("failed to listen on {what}; set `{key}`");
        let socket = config.socket.display().to_string();
        let offers = listen_when_free(&socket, due, stop, || Offers::listen(&config.socket))
            .await
            .with_context(|| failed(&socket, "socket"))?;
        let path = config.control_socket();
        let what = path.display().to_string();
        let control = listen_when_free(&what, due, stop, || Control::listen(&path))
            .await
            .with_context(|| failed(&what, "control_socket"))?;
        let address = &config.http_listen;
        let http = listen_when_free(address, due, stop, || TcpListener::bind(address))
            .await
            .with_context(|| failed(address, "http_listen"))?;
        http.set_nonblocking(true).context("failed to prepare the HTTP listener")?;
        Ok(Self { offers, control, http })
    }
}

/// Why a worker is no longer watched.
enum Ended {
    Died,
    Asked,
}

/// What the worker said.
enum Heard {
    /// That it has rebuilt its state, and maybe more.
    Ready,
    /// Nothing of that.
    Else,
    /// Its last.
    End,
}

impl<'a> Holder<'a> {
    async fn new(config: &'a Config, ready_file: Option<&'a Path>) -> anyhow::Result<Self> {
        let stop = signals::stop_token().context("failed to catch signals")?;
        signals::outlive_hangups().context("failed to catch signals")?;
        let Listening { offers, control, http } = Listening::start(config, &stop).await?;
        let guard = Guard::new(&http).context("failed to prepare the HTTP listener")?;
        let mut staging =
            Memfd::create(config.geometry().total_bytes()).context("failed to make staging memory")?;
        Staging::format(&mut staging, config.geometry()).context("failed to prepare staging memory")?;
        let max_programs = descriptors::room_for(config.max_programs, raise_limit());
        Ok(Self {
            config,
            ready_file,
            offers,
            held: HeldPrograms::new(config, max_programs),
            waiting: Waiting::default(),
            staging,
            control,
            http,
            guard,
            counters: Counters::default(),
            over_quota: Notices::default(),
            elsewhere: Notices::default(),
            was_short: false,
            stop,
            restart_pause: Duration::ZERO,
            was_ready: false,
            timer: Timer::new().context("failed to make a timer")?,
        })
    }

    async fn run(mut self) -> anyhow::Result<()> {
        warn_of_a_worker_of_root(self.config);
        if self.config.scan {
            self.scan();
        }
        let mut first = true;
        loop {
            match self.serve_one_worker().await {
                Ok(Some(worker)) => return self.finish(worker).await,
                Ok(None) => {}
                Err(e) if first => return Err(e),
                // Held descriptors and staging memory are worth more than an answer now: the shortage may pass.
                Err(e) => {
                    tracing::error!("failed to restart the worker, trying again: {e:#}");
                    self.pause_before_restart(Duration::ZERO).await;
                }
            }
            first = false;
            if self.stop.is_cancelled() {
                return Err(anyhow!("stopped while no worker was running; what was drained is lost"));
            }
        }
    }

    /// Starts a worker and serves it; gives it back if the daemon is to end, nothing if it died.
    async fn serve_one_worker(&mut self) -> anyhow::Result<Option<WorkerProcess>> {
        let mut worker = WorkerProcess::start(self.config, &self.staging, &self.http, &self.control)
            .context("failed to start the worker")?;
        tracing::debug!(pid = worker.pid(), "worker started");
        self.held.forget_told();
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
        tracing::warn!("the worker ended ({status}); starting another, which goes on where it stopped");
        self.pause_before_restart(worker.age()).await;
        Ok(None)
    }

    /// The first time at once; a worker that cannot even start is tried ever more rarely. Askers get a 503 meanwhile.
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

    fn scan(&mut self) {
        for offer in scan::live_programs() {
            tracing::info!(pid = offer.program.pid, comm = offer.program.comm, "found a live program");
            self.counters.add(Count::Scan);
            self.admit(offer, Instant::now());
        }
    }

    /// Takes a program in, if nobody else reads it; if somebody does, tries again for a while.
    fn admit(&mut self, offer: Offer, since: Instant) {
        let (pid, uid) = (offer.program.pid, offer.program.uid);
        let admitted = match self.claim(offer) {
            Ok(offer) => self.held.admit(offer.program, offer.segment, offer.control).map(|_| ()),
            Err((Refusal::Elsewhere, offer)) => match self.waiting.push(offer, since) {
                Ok(()) => return,
                Err(_) => Err(Refusal::Elsewhere),
            },
            Err((refusal, _)) => Err(refusal),
        };
        self.tell_refused(pid, uid, admitted.err());
        self.count(admitted);
    }

    /// Names a program that is not read, but not each of many: `held_back` came since the last line.
    fn tell_refused(&mut self, pid: u32, uid: u32, refusal: Option<Refusal>) {
        let now = Instant::now();
        match refusal {
            Some(Refusal::Quota) => {
                if let Some(held_back) = self.over_quota.admit(now) {
                    tracing::warn!(pid, uid, held_back, "refused a program: {OVER_QUOTA}");
                }
            }
            Some(Refusal::Elsewhere) => {
                if let Some(held_back) = self.elsewhere.admit(now) {
                    tracing::warn!(pid, uid, held_back, "refused a program: {ELSEWHERE}");
                }
            }
            Some(Refusal::Malformed | Refusal::AlreadyHeld) | None => {}
        }
    }

    /// Counts in the log what was refused since the last line, though nothing more is.
    fn tell_held_back(&mut self, of: impl Fn(&mut Notices) -> Option<u64>) {
        if let Some(programs) = of(&mut self.over_quota) {
            tracing::warn!(programs, "refused more programs: {OVER_QUOTA}");
        }
        if let Some(programs) = of(&mut self.elsewhere) {
            tracing::warn!(programs, "refused more programs: {ELSEWHERE}");
        }
    }

    /// Gives an offer of which the control page is this daemon's alone.
    fn claim(&self, mut offer: Offer) -> Result<Offer, (Refusal, Offer)> {
        if let Err(refusal) = self.held.check(&offer.program, &offer.segment, &offer.control) {
            if refusal == Refusal::Quota {
                // Whatever keeps the program from being told is of its own making.
                let _ = Unread::NoRoom.tell(&offer.control);
            }
            return Err((refusal, offer));
        }
        match claim(&offer.control) {
            Ok(Some(control)) => offer.control = control,
            Ok(None) => return Err((Refusal::Elsewhere, offer)),
            Err(e) => tracing::warn!(
                pid = offer.program.pid,
                "failed to find out whether another daemon reads a program: {e}"
            ),
        }
        Ok(offer)
    }

    fn count(&mut self, admitted: Result<(), Refusal>) {
        self.counters.add(match admitted {
            Ok(()) => Count::Taken,
            Err(Refusal::AlreadyHeld) => Count::AlreadyHeld,
            Err(Refusal::Quota) => Count::Quota,
            Err(Refusal::Malformed) => Count::Malformed,
            Err(Refusal::Elsewhere) => Count::Elsewhere,
        });
        self.publish_counters();
    }

    fn publish_counters(&mut self) {
        self.counters.set(Count::Held, self.held.len() as u64);
        self.counters.publish(&mut self.staging);
    }

    /// Serves one worker until it is gone or the daemon is to end.
    async fn watch(&mut self, worker: &mut WorkerProcess) -> anyhow::Result<Ended> {
        let link = watch(worker.link().try_clone_to_owned()?)?;
        let socket = watch(self.offers.socket().try_clone()?)?;
        let stop = self.stop.clone();
        let mut is_ready = false;
        let mut is_complete = false;
        loop {
            is_complete = self.tell(worker, is_complete);
            let hurry = !is_complete
                || self.offers.has_waiting()
                || !self.waiting.is_empty()
                || self.held.untold().next().is_some();
            let next_beat = worker.beat();
            let silence = worker.silence(&self.staging);
            self.kill_if_stuck(worker, silence);
            let guarded = !is_ready || silence > STUCK_AFTER;
            tokio::select! {
                () = stop.cancelled() => return Ok(Ended::Asked),
                guard = link.readable() => {
                    guard?.clear_ready();
                    match self.listen(worker) {
                        Heard::Ready => is_ready = true,
                        Heard::Else => {}
                        Heard::End => return Ok(Ended::Died),
                    }
                    if is_ready {
                        self.tell_ready()?;
                    }
                }
                guard = socket.readable() => {
                    guard?.clear_ready();
                    self.take_offers();
                }
                () = self.guard.answer_one(), if guarded => {}
                slept = self.timer.sleep(if hurry { SHORT_TICK } else { next_beat }) => {
                    slept?;
                    if self.offers.has_waiting() || !self.waiting.is_empty() {
                        self.take_offers();
                    }
                }
            }
            self.tell_held_back(|notices| notices.rest(Instant::now()));
        }
    }

    /// Does what the worker asks, in its order.
    fn listen(&mut self, worker: &mut WorkerProcess) -> Heard {
        let messages = worker.messages();
        self.take_offers_of_the_ended(&messages);
        let mut heard = Heard::Else;
        for message in messages {
            match message {
                Some(Message::Ready) => heard = Heard::Ready,
                Some(Message::Release(number)) => self.release(number),
                Some(_) => {}
                None => return Heard::End,
            }
        }
        heard
    }

    fn take_offers(&mut self) {
        for (offer, since) in self.waiting.take() {
            self.admit(offer, since);
        }
        for offer in self.offers.take(OFFERS_AT_ONCE) {
            match offer {
                Ok(offer) => self.admit(offer, Instant::now()),
                Err(refusal) => self.count(Err(refusal)),
            }
        }
        self.tell_short_of_descriptors();
    }

    /// Says when programs begin to wait for descriptors, and when they do no more.
    fn tell_short_of_descriptors(&mut self) {
        let is_short = self.offers.is_short();
        match (std::mem::replace(&mut self.was_short, is_short), is_short) {
            (false, true) => tracing::warn!("programs wait to be taken in: {NO_DESCRIPTORS}"),
            (true, false) => tracing::info!("there are descriptors for all programs again"),
            _ => {}
        }
    }

    /// A program offers itself once more as it ends. That must meet a program that is still held: else it would count as a
    /// new one, all of which another daemon has read and nobody knows what became of.
    fn take_offers_of_the_ended(&mut self, messages: &[Option<Message>]) {
        if !messages.iter().any(|message| matches!(message, Some(Message::Release(_)))) {
            return;
        }
        for _ in 0..=BACKLOG / OFFERS_AT_ONCE {
            self.take_offers();
            if !self.offers.has_backlog() {
                return;
            }
        }
    }

    /// Names programs to the worker, and once that all have been named. Says whether that has been said.
    fn tell(&mut self, worker: &WorkerProcess, is_complete: bool) -> bool {
        use std::os::fd::AsFd;
        for held in self.held.untold() {
            let message = Message::Attach(held.program.clone()).encode();
            if send(worker.link(), &message, &[held.segment.as_fd(), held.control.as_fd()]).is_err() {
                return is_complete;
            }
            held.is_told = true;
        }
        is_complete || send(worker.link(), &Message::Complete.encode(), &[]).is_ok()
    }

    fn release(&mut self, number: u64) {
        self.held.release(number);
        self.publish_counters();
    }

    fn tell_ready(&mut self) -> anyhow::Result<()> {
        if std::mem::replace(&mut self.was_ready, true) {
            return Ok(());
        }
        let http = self.http.local_addr()?.to_string();
        tracing::info!(http, socket = %self.config.socket.display(), "ready");
        let control = &self.config.control_socket();
        ready::tell(self.ready_file, &Ready { http, socket: &self.config.socket, control })
    }

    fn kill_if_stuck(&mut self, worker: &mut WorkerProcess, silence: Duration) {
        if silence > Duration::from_millis(self.config.stuck_kill_ms) {
            tracing::error!(
                pid = worker.pid(),
                "the worker has shown no sign of life for {silence:?}; killing it"
            );
            self.counters.add(Count::StuckKills);
            self.publish_counters();
            worker.kill();
        }
    }

    /// Takes the offers that came before the daemon was asked to end, and names their programs to the worker: they may
    /// have ended since, and count on it. Those that another daemon still reads are waited for as long, and then named.
    async fn take_last_offers(&mut self, worker: &WorkerProcess) {
        for _ in 0..LAST_LOOKS {
            self.take_offers();
            self.tell(worker, true);
            let is_awaited = self.offers.has_waiting() || !self.waiting.is_empty();
            if !is_awaited && self.held.untold().next().is_none() {
                break;
            }
            tokio::time::sleep(SHORT_TICK).await;
        }
        for (offer, _) in self.waiting.take() {
            self.tell_refused(offer.program.pid, offer.program.uid, Some(Refusal::Elsewhere));
            self.count(Err(Refusal::Elsewhere));
        }
        self.tell_held_back(Notices::last);
    }

    /// Lets the worker ship what it has, for a bounded time.
    async fn finish(mut self, mut worker: WorkerProcess) -> anyhow::Result<()> {
        // Who is there already need not learn of it.
        self.take_offers();
        // Who offers itself from now on is refused, and knows that nobody reads it.
        self.offers.refuse_more();
        self.take_last_offers(&worker).await;
        drop(self.offers);
        worker.ask_to_end();
        let due = Instant::now() + Duration::from_millis(self.config.stop_timeout_ms) + AROUND_SHIPPING;
        loop {
            if let Some(status) = worker.ended().context("failed to wait for the worker")? {
                return if status.success() {
                    Ok(())
                } else {
                    Err(anyhow!("the worker ended badly: {status}"))
                };
            }
            if Instant::now() > due {
                worker.kill();
                worker.wait().context("failed to wait for the worker")?;
                return Err(anyhow!(
                    "the worker did not end in time and was killed; what it had drained is lost"
                ));
            }
            tokio::time::sleep(SHORT_TICK).await;
        }
    }
}
