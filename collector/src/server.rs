//! Starts the collector, and drains it: the listeners stop, requests under way are answered, waiting batches are committed.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;

use anyhow::Context;
use blkin_daemon::admin::Admin;
use blkin_daemon::config::Layered;
use blkin_daemon::descriptors::{raise_limit, room_for};
use blkin_daemon::drain::{DRAIN_TIME, drain};
use blkin_daemon::start::{Listeners, run_server, say_configuration_is_good};
use blkin_daemon::{CancellationToken, Failure, Health, Patience, Standing, logging, ready, signals};
use blkin_scribe::{Budget, server};
use tokio::net::TcpListener;

use crate::config::{Arguments, Config};
use crate::http::{self, App, Metrics, registry, router};
use crate::ingest::Ingest;
use crate::live::Live;
use crate::query::{RememberedLinks, RememberedTimes};
use crate::settings::Settings;
use crate::store::indexer::Indexer;
use crate::store::writer::Writer;
use crate::store::{self, Store, StoreError};

/// File descriptors for the store: files that it keeps open, or opens to read or to write them anew.
const STORE_FILES: u64 = 64;

/// Runs the collector until it is asked to stop.
///
/// # Errors
/// When the configuration cannot be used, the collector cannot start, or a part fails that it cannot run without.
pub fn main(arguments: &Arguments) -> Result<(), Failure> {
    let read = arguments.configuration()?;
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
    let (collector, store_thread) =
        Collector::open(read.config.clone()).map_err(|failed| read.explain(failed, Config::check_folders))?;
    let (read_again, retention) = (arguments.clone(), collector.writer.retention());
    let changed = move |config: &Config| retention.set(config.retention());
    collector.settings.reload_on(
        reloads,
        move || read_again.configuration().map(|read| read.config),
        changed,
    );
    ready::announce(arguments.ready_file.as_deref(), &addresses)?;
    tracing::info!(scribe = %addresses.scribe, http = %addresses.http, "ready");
    let watch = watch_store(store_thread, stop.clone());
    collector.serve(scribe, http, stop).await;
    drain_store(watch).await
}

/// Why the collector ends when its store's thread panicked. The library's panics on a damaged file do not get that far.
const PANICKED: &str = "the store's thread panicked, which is a defect in the collector and no damage to the store: please \
                        report it with the lines that the log has of this panic";

/// Waits for the store's thread, which should end only once nothing is left that could hand it batches. If it ends earlier, as
/// when only a restart can help, the collector stops, so that its supervisor starts it again.
fn watch_store(thread: StoreThread, stop: CancellationToken) -> Watch {
    tokio::task::spawn_blocking(move || {
        let ended = match thread.join() {
            Ok(ended) => ended.map_err(anyhow::Error::from),
            Err(_panic) => Err(anyhow::anyhow!(PANICKED)),
        };
        ended.inspect_err(|error| {
            tracing::error!("stopping, because the store's thread ended: {error}");
            stop.cancel();
        })
    })
}

/// The thread that commits.
type StoreThread = JoinHandle<Result<(), StoreError>>;
/// The task that waits for the end of that thread.
type Watch = tokio::task::JoinHandle<anyhow::Result<()>>;

async fn drain_store(watch: Watch) -> anyhow::Result<()> {
    match tokio::time::timeout(DRAIN_TIME, watch).await {
        Ok(ended) => ended?,
        Err(_) => anyhow::bail!("failed to commit the waiting batches within {DRAIN_TIME:?}"),
    }
}

/// Most connections at a time.
struct Connections {
    scribe: usize,
    http: usize,
}

impl Connections {
    /// The configured numbers, or a proportional share for each of what the limit on open files allows.
    fn within(limit: Option<u64>, config: &Config) -> Connections {
        let (scribe, http) = (config.scribe_max_connections, config.http_max_connections);
        let room = room_for(scribe + http, STORE_FILES, limit);
        let share = |asked: usize| (asked * room / (scribe + http)).max(1);
        Connections { scribe: share(scribe), http: share(http) }
    }
}

struct Collector {
    settings: Settings,
    connections: Connections,
    health: Health,
    store: Arc<dyn Store>,
    writer: Writer,
    ingest: Arc<Ingest>,
    live: Live,
    budget: Budget,
    /// The state of the disk, as each of its writers sees it.
    disk: Vec<Arc<Standing>>,
    /// Kept until everything is served: dropping it ends its thread.
    _indexer: Indexer,
}

impl Collector {
    fn open(config: Config) -> anyhow::Result<(Collector, StoreThread)> {
        let connections = Connections::within(raise_limit(), &config);
        let health = Health::new();
        let keys = config.autocomplete_keys.clone().into();
        let store: Arc<dyn Store> = Arc::new(store::open(&config.data_dir, config.cache_mib << 20, &keys)?);
        let indexer = Indexer::start(store.clone(), health.worker("index"))?;
        let (writer, thread) = Writer::start(store.clone(), config.writer_options(), health.worker("store"))?;
        let disk: Vec<_> = writer.standings().into_iter().chain([indexer.standing()]).collect();
        disk.iter()
            .chain([&writer.clock()])
            .for_each(|standing| health.register_trouble_source(standing.clone()));
        // A body may be as large as a message, and so may its decompressed form, which is held beside it.
        let budget = Budget::new(config.max_reading_mib << 20, 2 * config.max_message_bytes());
        let live = Live::start(config.live_options(), health.worker("live"))?;
        let settings = Settings::new(config);
        let ingest = Arc::new(Ingest::new(settings.clone(), writer.clone(), live.clone()));
        let collector = Collector {
            settings,
            connections,
            health,
            store,
            writer,
            ingest,
            live,
            budget,
            disk,
            _indexer: indexer,
        };
        Ok((collector, thread))
    }

    /// Serves until `stop`, and drains.
    async fn serve(self, scribe: TcpListener, http: TcpListener, stop: CancellationToken) {
        let config = self.settings.now();
        let scribe_options = server::Options {
            max_frame_bytes: config.max_message_bytes(),
            max_connections: self.connections.scribe,
            idle_time: config.scribe_idle_time(),
            frame_time: config.message_time(),
            budget: self.budget.clone(),
        };
        let heartbeat = self.health.worker("scribe");
        let scribe = server::serve(scribe, self.ingest.clone(), scribe_options, stop.clone(), heartbeat);
        let http = self.serve_http(http, stop.clone());
        let (live, ending) = (self.live.clone(), stop.clone());
        // A live stream does not end by itself.
        tokio::spawn(async move {
            ending.cancelled().await;
            live.close();
        });
        drain(async { tokio::join!(scribe, http) }, stop, "requests").await;
    }

    async fn serve_http(&self, listener: TcpListener, stop: CancellationToken) {
        let heartbeat = self.health.worker("http");
        let patience = Patience::new(self.settings.now().http_idle_time());
        let live = self.live.clone();
        let registry = registry(Metrics {
            writer: self.writer.clone(),
            ingest: self.ingest.clone(),
            budget: self.budget.clone(),
            live,
            patience: patience.clone(),
            disk: self.disk.clone(),
        });
        let admin = Admin { registry: Arc::new(registry), health: self.health.clone() };
        let app = App {
            links: RememberedLinks::default(),
            times: RememberedTimes::default(),
            settings: self.settings.clone(),
            store: self.store.clone(),
            writer: self.writer.clone(),
            ingest: self.ingest.clone(),
            budget: self.budget.clone(),
            queries: self.settings.now().queries(),
            many_services: AtomicBool::default(),
        };
        let routes = router(Arc::new(app), admin, blkin_live::router(self.live.clone()));
        let max_connections = self.connections.http;
        let serving = http::serve(listener, routes, max_connections, self.settings.clone(), patience, stop);
        heartbeat.beating(serving).await.0.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_share_the_file_limit_in_proportion() {
        let config = Config { scribe_max_connections: 3000, http_max_connections: 1000, ..Config::default() };
        let of = |limit| {
            let Connections { scribe, http } = Connections::within(limit, &config);
            (scribe, http)
        };
        assert_eq!(of(None), (3000, 1000));
        let (scribe, http) = of(Some(1024));
        assert!(scribe > 2 * http && scribe + http < 1024 - STORE_FILES as usize, "{scribe} {http}");
        assert_eq!(of(Some(16)), (1, 1));
    }

    #[tokio::test]
    async fn a_store_that_ends_early_stops_the_collector_with_its_error() {
        for (work, said) in [
            ((|| Err(StoreError::Closed)) as fn() -> _, StoreError::Closed.to_string()),
            (|| panic!("as a defect would"), PANICKED.to_owned()),
        ] {
            let stop = CancellationToken::new();
            let watch = watch_store(std::thread::spawn(work), stop.clone());
            stop.cancelled().await;
            assert_eq!(drain_store(watch).await.unwrap_err().to_string(), said);
        }
    }
}
