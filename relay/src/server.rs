//! Starts the relay, and drains it: the listener closes, calls under way become durable and are answered, upstreams get what
//! they accept in time, and their positions are written.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use blkin_daemon::admin::{self, Admin};
use blkin_daemon::config::Layered;
use blkin_daemon::descriptors::{raise_limit, room_for};
use blkin_daemon::drain::{DRAIN_TIME, drain};
use blkin_daemon::start::{Listeners, run_server, say_configuration_is_good};
use blkin_daemon::{
    CancellationToken, Cause, Failure, Health, Patience, Settings, Standing, logging, ready, signals,
};
use blkin_scribe::{Budget, server};
use tokio::net::TcpListener;

use crate::config::{Arguments, Config};
use crate::intake::{Counter, Intake};
use crate::live::Live;
use crate::loop_detector::LoopDetector;
use crate::metrics::{Known, Metrics, registry};
use crate::spool::Spool;
use crate::spool::writer::{Gauge, Writer};
use crate::sweeper::{self, Standings};
use crate::upstream::{Ending, Start, Upstream};

/// Runs the relay until it is asked to stop.
///
/// # Errors
/// When the configuration cannot be used, the relay cannot start, or something it cannot do without fails.
pub fn main(arguments: &Arguments) -> Result<(), Failure> {
    let read = arguments.configuration()?;
    read.check(Config::check_loops)?;
    if arguments.check_config {
        read.check(Config::check_folders)?;
        return say_configuration_is_good();
    }
    logging::init(&read.config.log, read.config.log_format)?;
    run_server(run(read, arguments))
}

async fn run(read: Layered<Config>, arguments: &Arguments) -> anyhow::Result<()> {
    let stop = signals::stop_token().context("failed to listen for signals")?;
    let reloads = signals::reloads().context("failed to listen for signals")?;
    let Listeners { scribe, http, addresses } =
        Listeners::open(read.config.scribe_listen, read.config.http_listen).await?;
    let config = &read.config;
    let max_connections = room_for(config.scribe_max_connections, config.own_descriptors(), raise_limit());
    // Reading a large spool takes long, and a hanging disk never answers. Stopping the relay meanwhile is as harmless as killing
    // it: what is spooled stays.
    let Some(spool) = stop.run_until_cancelled(open_spool(config.clone())).await else {
        tracing::info!("stopped before the spool was read: it is left unchanged for the next start");
        return Ok(());
    };
    let relay = spool
        .and_then(|spool| Relay::open(config.clone(), addresses.scribe, spool, max_connections))
        .map_err(|failed| read.explain(failed, Config::check_folders))?;
    let read_again = arguments.clone();
    relay.settings.reload_on(reloads, move || read_again.configuration().map(|read| read.config), |_| {});
    ready::announce(arguments.ready_file.as_deref(), &addresses)?;
    tracing::info!(scribe = %addresses.scribe, http = %addresses.http, upstreams = ?config.upstreams, "ready");
    relay.serve(scribe, http, stop).await
}

async fn open_spool(config: Config) -> anyhow::Result<Spool> {
    let open = move || Spool::open(&config.spool_dir, config.spool_limits(), &config.upstreams);
    tokio::task::spawn_blocking(open).await?
}

struct Relay {
    settings: Settings<Config>,
    /// Most Scribe connections: the configured number, or fewer if the limit on open files is lower.
    max_connections: usize,
    health: Health,
    spool: Arc<Spool>,
    intake: Arc<Intake>,
    loop_detector: Arc<LoopDetector>,
    live: Live,
    gauge: Gauge,
    budget: Budget,
    ending: Ending,
    threads: Threads,
    upstreams: Vec<Known>,
    spool_standings: Vec<Arc<Standing>>,
}

struct Threads {
    upstreams: Vec<JoinHandle<()>>,
    writer: JoinHandle<()>,
    sweeper: JoinHandle<io::Result<()>>,
    swept: CancellationToken,
}

impl Relay {
    /// `own` is the address on which the relay listens for Scribe.
    fn open(config: Config, own: SocketAddr, spool: Spool, max_connections: usize) -> anyhow::Result<Relay> {
        let health = Health::new();
        let spool = Arc::new(spool);
        let folder = config.spool_dir.display().to_string();
        let [entries, positions, removal] =
            ["spool", "positions", "removal"].map(|name| standing(&health, name, &folder, Cause::OF_FOLDER));
        let heartbeat = health.worker("spool");
        let (writer, writer_thread) =
            Writer::start(spool.clone(), (config.queue_mib as u64) << 20, entries.clone(), heartbeat)?;
        let gauge = writer.gauge();
        let budget = Budget::new(config.max_reading_mib << 20, config.max_message_bytes());
        let counter = Counter::new(&config.span_category, config.thrift_limits());
        let live = Live::start(config.live_options(), health.worker("live"))?;
        let round = standing(&health, "loop", &config.upstreams.join(", "), LoopDetector::CAUSES);
        let loop_detector = Arc::new(LoopDetector::new(round));
        let intake = Intake::new(
            spool.clone(),
            writer,
            counter.clone(),
            live.clone(),
            loop_detector.clone(),
            config.thrift_limits(),
        );
        let swept = CancellationToken::new();
        let standings = Standings { positions: positions.clone(), removal: removal.clone() };
        let sweeper = sweeper::start(spool.clone(), standings, swept.clone(), health.worker("sweeper"))?;
        let mut relay = Relay {
            settings: Settings::new(config),
            max_connections,
            health,
            spool,
            intake: Arc::new(intake),
            loop_detector,
            live,
            gauge,
            budget,
            ending: Ending::default(),
            threads: Threads { upstreams: Vec::new(), writer: writer_thread, sweeper, swept },
            upstreams: Vec::new(),
            spool_standings: vec![entries, positions, removal],
        };
        relay.start_upstreams(&counter, own)?;
        Ok(relay)
    }

    fn start_upstreams(&mut self, counter: &Counter, own: SocketAddr) -> io::Result<()> {
        let config = self.settings.now();
        for name in &config.upstreams {
            let standing = standing(&self.health, "upstream", name, Upstream::CAUSES);
            let (thread, traffic) = Upstream::start(Start {
                name,
                spool: &self.spool,
                counter,
                options: &config.upstream_options(),
                ending: &self.ending,
                own,
                heartbeat: self.health.worker(format!("upstream {name}")),
                standing: standing.clone(),
            })?;
            self.threads.upstreams.push(thread);
            self.upstreams.push(Known { traffic, standing });
        }
        Ok(())
    }

    /// Serves until `stop`, and drains.
    async fn serve(
        self,
        scribe: TcpListener,
        http: TcpListener,
        stop: CancellationToken,
    ) -> anyhow::Result<()> {
        let options = scribe_options(&self.settings.now(), self.max_connections, self.budget.clone());
        let http_stop = CancellationToken::new();
        let http = self.serve_http(http, http_stop.clone());
        let writer = watch(self.threads.writer, stop.clone());
        // Once the last reference to the intake is dropped, the spool's thread ends.
        let scribe = server::serve(scribe, self.intake, options, stop.clone(), self.health.worker("scribe"));
        drain(scribe, stop, "calls").await;
        let stop_timeout_ms = self.settings.now().stop_timeout_ms;
        ready::ask_for_time_to_end(DRAIN_TIME + Duration::from_millis(stop_timeout_ms));
        let written = tokio::time::timeout(DRAIN_TIME, writer).await;
        self.ending.when_drained.cancel();
        let upstreams = join_all(self.threads.upstreams, &self.ending, stop_timeout_ms).await;
        self.threads.swept.cancel();
        let swept = tokio::task::spawn_blocking(move || self.threads.sweeper.join()).await?;
        // The streams of live viewers do not end by themselves.
        self.live.close();
        http_stop.cancel();
        // A client that reads the metrics at this moment may be cut off.
        let _ended = tokio::time::timeout(Duration::from_secs(1), http).await;
        written
            .context("failed to make the waiting calls durable in time")??
            .context("the spool's thread failed")?;
        upstreams?;
        swept.map_err(|_| anyhow::anyhow!("the sweeper panicked"))?.context("failed to write the positions")
    }

    /// Serves metrics, health and live viewers until `stop`.
    fn serve_http(&self, listener: TcpListener, stop: CancellationToken) -> tokio::task::JoinHandle<()> {
        let config = self.settings.now();
        let patience = Patience::new(config.http_idle_time());
        let registry = registry(Metrics {
            spool: self.spool.clone(),
            gauge: self.gauge.clone(),
            budget: self.budget.clone(),
            upstreams: self.upstreams.clone(),
            spool_standings: self.spool_standings.clone(),
            loop_detector: self.loop_detector.clone(),
            live: self.live.clone(),
            patience: patience.clone(),
        });
        let admin = Admin { registry: Arc::new(registry), health: self.health.clone() };
        let routes = admin::router(admin).merge(blkin_live::router(self.live.clone()));
        let serving = admin::server(listener, routes, config.http_connections(), patience).serve(stop);
        let heartbeat = self.health.worker("http");
        tokio::spawn(async move { heartbeat.beating(serving).await.0.finish() })
    }
}

/// The options of the Scribe server.
fn scribe_options(config: &Config, max_connections: usize, budget: Budget) -> server::Options {
    server::Options {
        max_frame_bytes: config.max_message_bytes(),
        max_connections,
        idle_time: Duration::from_secs(config.scribe_idle_seconds),
        frame_time: Duration::from_secs(config.scribe_frame_seconds),
        budget,
    }
}

/// The state of something that the relay delivers to, which `/healthz` reports.
fn standing(health: &Health, name: &str, to: &str, causes: &'static [Cause]) -> Arc<Standing> {
    let standing = Arc::new(Standing::new(name, to, causes));
    health.register_trouble_source(standing.clone());
    standing
}

/// Waits for the spool's thread, which should end only once nothing can submit calls any more. If it ends earlier, the relay
/// stops, so that a supervisor starts it again and the spool is read again.
async fn watch_thread(thread: JoinHandle<()>, stop: CancellationToken) -> anyhow::Result<()> {
    if tokio::task::spawn_blocking(move || thread.join()).await?.is_ok() {
        return Ok(());
    }
    tracing::error!("failed to go on: the spool's thread panicked");
    stop.cancel();
    Err(anyhow::anyhow!("it panicked"))
}

fn watch(thread: JoinHandle<()>, stop: CancellationToken) -> tokio::task::JoinHandle<anyhow::Result<()>> {
    tokio::spawn(watch_thread(thread, stop))
}

async fn join_all(threads: Vec<JoinHandle<()>>, ending: &Ending, timeout_ms: u64) -> anyhow::Result<()> {
    let mut joined = tokio::task::spawn_blocking(move || {
        // All threads are joined, even after one has panicked.
        let panics = threads.into_iter().map(JoinHandle::join).filter(Result::is_err).count();
        if panics == 0 { Ok(()) } else { Err(anyhow::anyhow!("the threads of {panics} upstreams panicked")) }
    });
    if let Ok(ended) = tokio::time::timeout(Duration::from_millis(timeout_ms), &mut joined).await {
        return ended?;
    }
    tracing::info!("not everything was sent in time; the spool keeps the rest");
    ending.now.cancel();
    joined.await?
}
