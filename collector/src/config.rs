//! The collector's configuration. Every key is documented in `collector/config.example.toml`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::http::HeaderValue;
use blkin_daemon::Reloadable;
use blkin_daemon::checks::{
    in_ranges, invalid, listen_address, listen_apart, named_folder, read_listen_address, writable_folder,
};
use blkin_daemon::config::{ConfigError, Layered, file_to_read, layered};
use blkin_daemon::logging::{self, LogFormat, LogOverrides};
use blkin_daemon::start::after_help;
use blkin_thrift::Limits;
use clap::{Args, Parser};
use serde::{Deserialize, Serialize};

use crate::http::Queries;
use crate::query::Reading;
use crate::store::Retention;
use crate::store::writer::WriterOptions;

/// The configuration file that is read if no other is named.
pub const DEFAULT_FILE: &str = "/etc/blkin/collector.toml";

/// The path under which the collector itself serves the page.
pub(crate) const UI_PATH: &str = "/zipkin";

/// The prefix of the environment variables.
const VARIABLES: &str = "BLKIN_COLLECTOR_";

const MIB: usize = 1 << 20;
/// The longest message that any configuration allows.
pub(crate) const MOST_MESSAGE_BYTES: u64 = 1 << 30;
const HOUR_MS: u64 = 3_600_000;

/// BlkKin's collector: takes spans by Scribe and HTTP, stores them, and answers Zipkin's query API.
#[derive(Debug, Clone, Parser)]
#[command(name = "blkin-collector", version, after_help = after_help(VARIABLES))]
pub struct Arguments {
    /// Configuration file, also BLKIN_COLLECTOR_CONFIG [default: /etc/blkin/collector.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Check the configuration, print the result, and exit
    #[arg(long)]
    pub check_config: bool,
    /// Write {"scribe": "ADDRESS", "http": "ADDRESS"} to this file once the collector is ready
    #[arg(long, value_name = "FILE")]
    pub ready_file: Option<PathBuf>,
    /// Settings that the flags override.
    #[command(flatten)]
    pub overrides: Overrides,
}

/// Settings given by flags; the others come from the environment, the file, or the defaults.
#[derive(Debug, Clone, Default, Args, Serialize)]
pub struct Overrides {
    /// Where to listen for Scribe [default: 127.0.0.1:9410]
    #[arg(long, value_name = "ADDRESS", value_parser = listen_address)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scribe_listen: Option<SocketAddr>,
    /// Where to listen for HTTP [default: 127.0.0.1:9411]
    #[arg(long, value_name = "ADDRESS", value_parser = listen_address)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_listen: Option<SocketAddr>,
    /// Folder of the store [default: /var/lib/blkin]
    #[arg(long, value_name = "FOLDER")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<PathBuf>,
    /// Folder of a Zipkin page to serve [default: no page]
    #[arg(long, value_name = "FOLDER")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ui_dir: Option<PathBuf>,
    /// Share of traces to keep, 0 to 1 [default: 1]
    #[arg(long, value_name = "RATE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_rate: Option<f64>,
    /// Keep a trace for this many hours after its last span arrived, 0 for ever [default: 168]
    #[arg(long, value_name = "HOURS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention_hours: Option<u64>,
    /// Keep at most this many MiB of spans, 0 for no limit [default: 10240]
    #[arg(long, value_name = "MIB")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention_mib: Option<u64>,
    /// Most live viewers at a time, 0 for none [default: 16]
    #[arg(long, value_name = "COUNT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_viewers: Option<usize>,
    /// How far a live viewer may lag behind, in KiB of spans [default: 4096]
    #[arg(long, value_name = "KIB")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_queue_kib: Option<usize>,
    /// Logging.
    #[command(flatten)]
    #[serde(flatten)]
    pub log: LogOverrides,
}

/// The keys that are read only at the start, because what they set up lasts as long as the process.
const FIXED_KEYS: [&str; 20] = [
    "scribe_listen",
    "http_listen",
    "data_dir",
    "ui_dir",
    "ui_base_path",
    "cors_origins",
    "log_format",
    "scribe_max_connections",
    "scribe_idle_seconds",
    "http_max_connections",
    "max_message_mib",
    "message_seconds",
    "max_reading_mib",
    "queue_batches",
    "queue_mib",
    "cache_mib",
    "autocomplete_keys",
    "query_concurrency",
    "live_viewers",
    "live_queue_kib",
];

/// The whole configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where to listen for Scribe.
    #[serde(deserialize_with = "read_listen_address")]
    pub scribe_listen: SocketAddr,
    /// Where to listen for HTTP.
    #[serde(deserialize_with = "read_listen_address")]
    pub http_listen: SocketAddr,
    /// Folder of the store.
    pub data_dir: PathBuf,
    /// Folder of a Zipkin page.
    pub ui_dir: Option<PathBuf>,
    /// Where browsers find the page.
    pub ui_base_path: String,
    /// Web origins whose scripts may read and post; `*` allows all.
    pub cors_origins: Vec<String>,
    /// Log filter.
    pub log: String,
    /// Log format.
    pub log_format: LogFormat,
    /// Share of traces to keep.
    pub sample_rate: f64,
    /// The Scribe category that holds spans.
    pub scribe_category: String,
    /// Most Scribe connections at a time.
    pub scribe_max_connections: usize,
    /// Seconds after which a silent Scribe connection is closed.
    pub scribe_idle_seconds: u64,
    /// Longest Scribe frame, and longest HTTP body (also once decompressed), in MiB.
    pub max_message_mib: usize,
    /// Longest span in KiB.
    pub max_span_kib: usize,
    /// Most entries of one message.
    pub max_entries: usize,
    /// Most annotations of one span; also most binary annotations, and most tags.
    pub max_annotations: usize,
    /// Deepest nesting of unknown thrift structures that are skipped.
    pub max_depth: usize,
    /// Seconds within which a message that has begun must be whole, and the client must have taken an answer.
    pub message_seconds: u64,
    /// Memory that all messages being read may hold together, in MiB.
    pub max_reading_mib: usize,
    /// Most HTTP connections at a time.
    pub http_max_connections: usize,
    /// Seconds after which a silent HTTP connection is closed.
    pub http_idle_seconds: u64,
    /// Batches that may wait for the store.
    pub queue_batches: usize,
    /// MiB of batches that may wait for the store.
    pub queue_mib: usize,
    /// Memory for the store's pages in MiB; the store takes about as much of the system's page cache.
    pub cache_mib: usize,
    /// Hours that a trace is kept.
    pub retention_hours: u64,
    /// MiB of spans that are kept.
    pub retention_mib: u64,
    /// Whether trace ids are compared in all their 128 bits.
    pub strict_trace_id: bool,
    /// Tags that are offered for completion.
    pub autocomplete_keys: Vec<String>,
    /// Most traces of one answer.
    pub query_max_traces: usize,
    /// Most MiB of spans, as stored, of one answer.
    pub query_max_mib: usize,
    /// Queries that run at the same time.
    pub query_concurrency: usize,
    /// Most live viewers at a time.
    pub live_viewers: usize,
    /// How far a live viewer may lag behind, in KiB of spans.
    pub live_queue_kib: usize,
    /// Seconds after which a search answers with what it has found.
    pub query_seconds: u64,
    /// Whether traces can be searched; if not, they are read by their ids alone.
    pub search_enabled: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            scribe_listen: SocketAddr::from(([127, 0, 0, 1], 9410)),
            http_listen: SocketAddr::from(([127, 0, 0, 1], 9411)),
            data_dir: PathBuf::from("/var/lib/blkin"),
            ui_dir: None,
            ui_base_path: UI_PATH.to_owned(),
            cors_origins: vec!["*".to_owned()],
            log: "info".to_owned(),
            log_format: LogFormat::Text,
            sample_rate: 1.0,
            scribe_category: "zipkin".to_owned(),
            scribe_max_connections: 1024,
            scribe_idle_seconds: 600,
            max_message_mib: 16,
            max_span_kib: 4096,
            max_entries: 65_536,
            max_annotations: 65_536,
            max_depth: 16,
            message_seconds: 60,
            max_reading_mib: 128,
            http_max_connections: 1024,
            http_idle_seconds: 120,
            queue_batches: 65_536,
            queue_mib: 64,
            cache_mib: 128,
            retention_hours: 168,
            retention_mib: 10_240,
            strict_trace_id: true,
            autocomplete_keys: Vec::new(),
            query_max_traces: 1000,
            query_max_mib: 64,
            query_concurrency: 4,
            live_viewers: 16,
            live_queue_kib: 4096,
            query_seconds: 10,
            search_enabled: true,
        }
    }
}

/// Whether it is a path of characters that need no escape (RFC 3986, 2.3). `//` is refused: it would begin a host name.
fn is_plain_path(path: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    path.starts_with('/') && !path.contains("//") && path.bytes().all(is_plain)
}

impl Arguments {
    /// Reads the configuration from file, environment and flags, and checks it.
    ///
    /// # Errors
    /// When the file cannot be read, or a key or value cannot be used.
    pub fn configuration(&self) -> Result<Layered<Config>, ConfigError> {
        let file = file_to_read(self.config.as_deref(), VARIABLES, Path::new(DEFAULT_FILE))?;
        let read = layered(file.as_deref(), VARIABLES, &self.overrides)?;
        read.check(Config::check)?;
        Ok(read)
    }
}

impl Config {
    fn check(&self) -> Result<(), ConfigError> {
        logging::check(&self.log)?;
        named_folder("data_dir", &self.data_dir)?;
        if !(0.0..=1.0).contains(&self.sample_rate) {
            return Err(invalid("sample_rate", format!("{} is not a number from 0 to 1", self.sample_rate)));
        }
        if let Some(folder) = &self.ui_dir {
            named_folder("ui_dir", folder)?;
            if !folder.join("index.html").is_file() {
                return Err(invalid("ui_dir", format!("{} contains no index.html", folder.display())));
            }
        }
        if !is_plain_path(&self.ui_base_path) {
            return Err(invalid(
                "ui_base_path",
                format!("{:?} is not a path such as \"/tracing/zipkin\"", self.ui_base_path),
            ));
        }
        if let Some(bad) = self.cors_origins.iter().find(|origin| HeaderValue::from_str(origin).is_err()) {
            return Err(invalid(
                "cors_origins",
                format!("{bad:?} is not an origin such as \"https://host:port\""),
            ));
        }
        listen_apart(("scribe_listen", self.scribe_listen), ("http_listen", self.http_listen))?;
        in_ranges(self.ranges())
    }

    /// Every numeric key with its value, its minimum and its maximum.
    fn ranges(&self) -> [(&'static str, u64, u64, u64); 20] {
        let of = |number: usize| number as u64;
        let message = of(self.max_message_mib);
        [
            ("scribe_max_connections", of(self.scribe_max_connections), 1, 65_536),
            ("http_max_connections", of(self.http_max_connections), 1, 65_536),
            ("max_message_mib", message, 1, MOST_MESSAGE_BYTES / MIB as u64),
            ("max_span_kib", of(self.max_span_kib), 1, MIB as u64),
            ("max_entries", of(self.max_entries), 1, 1 << 24),
            ("max_annotations", of(self.max_annotations), 1, 1 << 24),
            ("max_depth", of(self.max_depth), 1, 64),
            ("max_reading_mib", of(self.max_reading_mib), 2 * message, 65_536),
            ("queue_batches", of(self.queue_batches), 1, 65_536),
            ("queue_mib", of(self.queue_mib), 1, 65_536),
            ("cache_mib", of(self.cache_mib), 1, 1 << 20),
            ("query_max_traces", of(self.query_max_traces), 1, 1 << 20),
            ("query_max_mib", of(self.query_max_mib), 1, 65_536),
            ("query_concurrency", of(self.query_concurrency), 1, 1024),
            ("live_viewers", of(self.live_viewers), 0, 1024),
            ("live_queue_kib", of(self.live_queue_kib), 64, 1 << 20),
            ("scribe_idle_seconds", self.scribe_idle_seconds, 1, 86_400),
            ("http_idle_seconds", self.http_idle_seconds, 1, 86_400),
            ("message_seconds", self.message_seconds, 1, 86_400),
            ("query_seconds", self.query_seconds, 1, 86_400),
        ]
    }

    /// Checks what the values alone do not show: whether this process may write to the store's folder.
    ///
    /// # Errors
    /// When it may not; the error names the folder.
    pub fn check_folders(&self) -> Result<(), ConfigError> {
        writable_folder("data_dir", &self.data_dir)
    }

    /// Where browsers find the page, without a slash at the end.
    pub fn ui_base(&self) -> &str {
        self.ui_base_path.trim_end_matches('/')
    }

    /// Longest message in bytes.
    pub fn max_message_bytes(&self) -> usize {
        self.max_message_mib * MIB
    }

    /// Limits of what is read.
    pub fn limits(&self) -> Limits {
        Limits {
            max_frame_bytes: self.max_message_bytes(),
            max_entries: self.max_entries,
            max_span_bytes: self.max_span_kib * 1024,
            max_annotations: self.max_annotations,
            max_depth: self.max_depth,
        }
    }

    /// Time within which a message that has begun must be whole.
    pub fn message_time(&self) -> Duration {
        Duration::from_secs(self.message_seconds)
    }

    /// Time after which a silent Scribe connection is closed.
    pub fn scribe_idle_time(&self) -> Duration {
        Duration::from_secs(self.scribe_idle_seconds)
    }

    /// Time after which a silent HTTP connection is closed.
    pub fn http_idle_time(&self) -> Duration {
        Duration::from_secs(self.http_idle_seconds)
    }

    /// How long, and how much, the store keeps.
    pub fn retention(&self) -> Retention {
        Retention {
            max_age_ms: self.retention_hours.saturating_mul(HOUR_MS),
            max_bytes: self.retention_mib.saturating_mul(MIB as u64),
        }
    }

    /// Limits of live viewing.
    pub fn live_options(&self) -> blkin_live::Options {
        blkin_live::Options::new(self.live_viewers, self.live_queue_kib, self.http_idle_time())
    }

    /// How traces are read.
    pub fn reading(&self) -> Reading {
        Reading {
            strict: self.strict_trace_id,
            max_bytes: self.query_max_mib * MIB,
            patience: Duration::from_secs(self.query_seconds),
        }
    }

    /// The places for running queries.
    pub fn queries(&self) -> Queries {
        Queries::at_most(self.query_concurrency)
    }

    /// Most bytes of large answers that their clients have not read yet; an answer is about as long as its spans.
    pub fn most_unread_bytes(&self) -> u64 {
        2 * self.query_concurrency as u64 * (self.query_max_mib * MIB) as u64
    }

    /// How the store's thread works.
    pub fn writer_options(&self) -> WriterOptions {
        WriterOptions {
            queue_batches: self.queue_batches,
            queue_bytes: self.queue_mib * MIB,
            retention: self.retention(),
            retention_every: Duration::from_secs(10),
        }
    }
}

impl Reloadable for Config {
    fn needs_restart(key: &str) -> bool {
        FIXED_KEYS.contains(&key)
    }

    fn log_filter(&self) -> &str {
        &self.log
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkin_daemon::Settings;

    const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config.example.toml");

    fn configuration(arguments: &[&str]) -> Result<Config, ConfigError> {
        let all = std::iter::once("blkin-collector").chain(arguments.iter().copied());
        Arguments::parse_from(all).configuration().map(|read| read.config)
    }

    #[test]
    fn default_queue_holds_every_pipelined_scribe_call() {
        let config = Config::default();
        let sent_ahead = config.scribe_max_connections * blkin_scribe::server::MAX_PIPELINED;
        assert!(config.queue_batches >= sent_ahead, "{sent_ahead}");
    }

    #[test]
    fn the_example_file_holds_every_key_and_its_default() {
        assert_eq!(configuration(&["--config", EXAMPLE]).unwrap(), Config::default());
        let text = std::fs::read_to_string(EXAMPLE).unwrap();
        let mut keys: Vec<&str> = text
            .lines()
            .filter_map(|line| {
                line.strip_prefix("# ui_dir").map(|_| "ui_dir").or(line.split_once(" = ").map(|(key, _)| key))
            })
            .filter(|key| !key.starts_with('#'))
            .collect();
        keys.sort_unstable();
        let mut fields: Vec<String> = Config::default().debug_fields().into_iter().collect();
        fields.sort_unstable();
        assert_eq!(keys, fields);
    }

    #[test]
    fn a_reload_applies_changeable_keys_and_keeps_fixed_ones() {
        let wanted = Config { sample_rate: 0.5, max_entries: 7, queue_mib: 1, ..Config::default() };
        let settings = Settings::new(Config::default());
        assert!(settings.reload(Ok(wanted)));
        assert_eq!(*settings.now(), Config { sample_rate: 0.5, max_entries: 7, ..Config::default() });
    }

    #[test]
    fn every_fixed_key_is_a_config_field() {
        let fields = Config::default().debug_fields();
        for key in FIXED_KEYS {
            assert!(fields.iter().any(|field| field == key), "{key}");
        }
    }

    #[test]
    fn flags_win_over_the_file() {
        let config = configuration(&["--config", EXAMPLE, "--scribe-listen", "127.0.0.1:0"]).unwrap();
        assert_eq!(config.scribe_listen.port(), 0);
    }

    #[test]
    fn keys_reach_the_options_of_their_components() {
        let config = Config {
            http_idle_seconds: 2,
            retention_hours: 3,
            retention_mib: 4,
            live_viewers: 5,
            live_queue_kib: 6,
            strict_trace_id: false,
            query_max_mib: 7,
            query_seconds: 8,
            queue_batches: 9,
            queue_mib: 10,
            query_concurrency: 11,
            ..Config::default()
        };
        assert_eq!(config.http_idle_time(), Duration::from_secs(2));
        let retention = config.retention();
        assert_eq!((retention.max_age_ms, retention.max_bytes), (3 * HOUR_MS, 4 << 20));
        let live = config.live_options();
        assert_eq!((live.max_viewers, live.viewer_bytes), (5, 6 << 10));
        let reading = config.reading();
        assert_eq!(
            (reading.strict, reading.max_bytes, reading.patience),
            (false, 7 << 20, Duration::from_secs(8))
        );
        let writer = config.writer_options();
        assert_eq!((writer.queue_batches, writer.queue_bytes), (9, 10 << 20));
        assert_eq!(config.queries().free(), 11);
    }

    #[test]
    fn invalid_values_are_refused_naming_the_key() {
        for (flag, value, key) in [
            ("--sample-rate", "1.5", "sample_rate"),
            ("--ui-dir", "/nonexistent", "ui_dir"),
            ("--log", "a=b=c", "log"),
            ("--http-listen", "0.0.0.0:9410", "http_listen"),
        ] {
            let error = configuration(&["--config", EXAMPLE, flag, value]).unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
        }
        for path in ["", "zipkin", "//zipkin", "/a//b", "/a b", "/\"", "/<", "/é"] {
            let config = Config { ui_base_path: path.to_owned(), ..Config::default() };
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains("ui_base_path"), "{error}");
        }
        let config = Config { ui_dir: Some(PathBuf::new()), ..Config::default() };
        let error = config.check().unwrap_err().to_string();
        assert!(error.ends_with("ui_dir: a folder is needed"), "{error}");
    }

    impl Config {
        /// The names of all fields, as the derived `Debug` prints them.
        fn debug_fields(&self) -> Vec<String> {
            let text = format!("{self:#?}");
            let fields = text.lines().filter_map(|line| line.strip_prefix("    ")?.split_once(": "));
            fields.filter(|(name, _)| !name.starts_with(' ')).map(|(name, _)| name.to_owned()).collect()
        }
    }
}
