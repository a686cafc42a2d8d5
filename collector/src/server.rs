//! Starting the collector, and draining it: listeners stop, requests under way are answered, what waits is committed.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use blkin_daemon::admin::Admin;
use blkin_daemon::{CancellationToken, Failure, Health, logging, ready, signals};
use blkin_scribe::{Budget, server};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::config::{Arguments, Config};
use crate::http::{App, Limited, registry, router};
use crate::ingest::{Ingest, Sampler};
use crate::store::disk::Disk;
use crate::store::writer::Writer;
use crate::store::{Store, TraceStore};

/// Requests under way get this long to finish when the collector stops.
const DRAIN_TIME: Duration = Duration::from_secs(20);
/// A Scribe frame that has begun must be whole after this time.
const FRAME_TIME: Duration = Duration::from_secs(60);

/// Runs the collector until it is asked to stop.
///
/// # Errors
/// When the configuration cannot be used, the collector cannot start, or something it cannot do without fails.
pub fn main(arguments: &Arguments) -> Result<(), Failure> {
    let config = arguments.configuration()?;
    if arguments.check_config {
        return say_configuration_is_good();
    }
    logging::init(&config.log, config.log_format)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("failed to start the async runtime")?;
    runtime.block_on(run(config, arguments.ready_file.as_deref()))?;
    // Connections that did not end in time must not hold up the end.
    runtime.shutdown_background();
    Ok(())
}

#[allow(clippy::print_stdout)]
fn say_configuration_is_good() -> Result<(), Failure> {
    println!("the configuration is good");
    Ok(())
}

/// The addresses that are listened on, as written to the ready file.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Addresses {
    /// Where Scribe is served.
    pub scribe: SocketAddr,
    /// Where HTTP is served.
    pub http: SocketAddr,
}

async fn run(config: Config, ready_file: Option<&Path>) -> anyhow::Result<()> {
    let stop = signals::stop_token().context("failed to listen for signals")?;
    let scribe = listen(config.scribe_listen, "Scribe", "--scribe-listen").await?;
    let http = listen(config.http_listen, "HTTP", "--http-listen").await?;
    let addresses = Addresses { scribe: scribe.local_addr()?, http: http.local_addr()? };
    let (collector, store_thread) = Collector::open(config)?;
    tracing::info!(scribe = %addresses.scribe, http = %addresses.http, "ready");
    if let Some(path) = ready_file {
        ready::write(path, &addresses)
            .with_context(|| format!("failed to write the ready file {}", path.display()))?;
    }
    let watch = watch_store(store_thread, stop.clone());
    collector.serve(scribe, http, stop).await;
    drain_store(watch).await
}

async fn listen(address: SocketAddr, what: &str, flag: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("failed to listen for {what} on {address}; choose another with {flag}"))
}

/// Waits for the store's thread. It should end only once all that could hand it batches is gone: should it end before,
/// by a panic, the collector stops, so that whoever supervises it starts it anew.
fn watch_store(thread: JoinHandle<()>, stop: CancellationToken) -> tokio::task::JoinHandle<bool> {
    tokio::task::spawn_blocking(move || {
        let ended_well = thread.join().is_ok();
        if !ended_well {
            tracing::error!("failed to go on: the store's thread panicked");
            stop.cancel();
        }
        ended_well
    })
}

async fn drain_store(watch: tokio::task::JoinHandle<bool>) -> anyhow::Result<()> {
    match tokio::time::timeout(DRAIN_TIME, watch).await {
        Ok(Ok(true)) => Ok(()),
        Ok(_) => anyhow::bail!("failed to end well: the store's thread panicked"),
        Err(_) => anyhow::bail!("failed to commit what waited within {DRAIN_TIME:?}"),
    }
}

struct Collector {
    config: Config,
    health: Health,
    store: Arc<dyn Store>,
    writer: Writer,
    ingest: Arc<Ingest>,
    budget: Budget,
}

impl Collector {
    fn open(config: Config) -> anyhow::Result<(Collector, JoinHandle<()>)> {
        let health = Health::new();
        let disk = Disk::open(&config.data_dir, config.cache_mib << 20)?;
        let store: Arc<dyn Store> = Arc::new(TraceStore::new(disk, config.autocomplete_keys.clone())?);
        let (writer, thread) = Writer::start(store.clone(), config.writer_options(), health.worker("store"))?;
        let ingest = Arc::new(Ingest::new(
            config.thrift_limits(),
            Sampler::new(config.sample_rate),
            config.scribe_category.clone(),
            writer.clone(),
        ));
        let budget = Budget::new(config.max_reading_mib << 20);
        Ok((Collector { config, health, store, writer, ingest, budget }, thread))
    }

    /// Serves until `stop`, and drains.
    async fn serve(self, scribe: TcpListener, http: TcpListener, stop: CancellationToken) {
        let scribe_options = server::Options {
            max_frame_bytes: self.config.max_message_bytes(),
            max_connections: self.config.scribe_max_connections,
            idle_time: Duration::from_secs(self.config.scribe_idle_seconds),
            frame_time: FRAME_TIME,
            budget: self.budget.clone(),
        };
        let heartbeat = self.health.worker("scribe");
        let scribe = server::serve(scribe, self.ingest.clone(), scribe_options, stop.clone(), heartbeat);
        let http = self.serve_http(http, stop.clone());
        let deadline = async {
            stop.cancelled().await;
            tokio::time::sleep(DRAIN_TIME).await;
        };
        tokio::select! {
            _ = async { tokio::join!(scribe, http) } => {}
            () = deadline => tracing::warn!("some requests did not end within {DRAIN_TIME:?}"),
        }
    }

    async fn serve_http(&self, listener: TcpListener, stop: CancellationToken) {
        let heartbeat = self.health.worker("http");
        let registry = Arc::new(registry(self.writer.clone(), self.ingest.clone()));
        let admin = Admin { registry, health: self.health.clone() };
        let app = App {
            config: self.config.clone(),
            store: self.store.clone(),
            writer: self.writer.clone(),
            ingest: self.ingest.clone(),
            budget: self.budget.clone(),
            queries: Arc::new(Semaphore::new(self.config.query_concurrency)),
        };
        let idle_time = Duration::from_secs(self.config.http_idle_seconds);
        let listener = Limited::new(listener, self.config.http_max_connections, idle_time);
        let serving = axum::serve(listener, router(Arc::new(app), admin))
            .with_graceful_shutdown(async move { stop.cancelled().await });
        let (heartbeat, ended) = heartbeat.beating(serving.into_future()).await;
        match ended {
            Ok(()) => heartbeat.finish(),
            Err(error) => tracing::error!("failed to serve HTTP: {error}"),
        }
    }
}
