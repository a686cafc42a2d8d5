//! The relay's configuration. Every key is documented in `relay/config.example.toml`.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use blkin_daemon::Reloadable;
use blkin_daemon::admin::ADMIN_CONNECTIONS;
use blkin_daemon::checks::{
    in_ranges, invalid, listen_address, listen_apart, named_folder, read_listen_address, writable_folder,
};
use blkin_daemon::config::{ConfigError, Layered, file_to_read, layered};
use blkin_daemon::logging::{self, LogFormat, LogOverrides};
use blkin_daemon::own::find_leading_back;
use blkin_daemon::start::after_help;
use blkin_daemon::upstream::{HOST_AND_PORT, is_host_and_port};
use blkin_live::Options;
use blkin_scribe::Window;
use blkin_thrift::Limits;
use clap::{Args, Parser};
use serde::{Deserialize, Serialize};

use crate::spool::checkpoint::{MAX_NAME_BYTES, MAX_UPSTREAMS};
use crate::spool::{self, WhenFull};
use crate::upstream;

/// The configuration file that is read if none is named.
pub const DEFAULT_FILE: &str = "/etc/blkin/relay.toml";

/// The prefix of all environment variables.
const VARIABLES: &str = "BLKIN_RELAY_";

const MIB: usize = 1 << 20;

/// BlkKin's relay: accepts Scribe entries from nodes and other relays, spools them on disk, and passes them on.
#[derive(Debug, Clone, Parser)]
#[command(name = "blkin-relay", version, after_help = after_help(VARIABLES))]
pub struct Arguments {
    /// Configuration file, also BLKIN_RELAY_CONFIG [default: /etc/blkin/relay.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Check the configuration, print the result, and exit
    #[arg(long)]
    pub check_config: bool,
    /// Write {"scribe": "ADDRESS", "http": "ADDRESS"} to this file once the relay is ready
    #[arg(long, value_name = "FILE")]
    pub ready_file: Option<PathBuf>,
    /// The values of the flags.
    #[command(flatten)]
    pub overrides: Overrides,
}

/// The values of the flags; all others come from the environment or the file, or are the defaults.
#[derive(Debug, Clone, Default, Args, Serialize)]
pub struct Overrides {
    /// Where to listen for Scribe [default: 127.0.0.1:1463]
    #[arg(long, value_name = "ADDRESS", value_parser = listen_address)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scribe_listen: Option<SocketAddr>,
    /// Address of /metrics, /healthz and the live stream [default: 127.0.0.1:9413]
    #[arg(long, value_name = "ADDRESS", value_parser = listen_address)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_listen: Option<SocketAddr>,
    /// Scribe servers that each get everything, separated by commas [default: 127.0.0.1:9410]
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstreams: Option<Vec<String>>,
    /// Folder of the spool [default: /var/lib/blkin/relay]
    #[arg(long, value_name = "FOLDER")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spool_dir: Option<PathBuf>,
    /// Most bytes of the spool's segments on disk [default: 1073741824]
    #[arg(long, value_name = "BYTES")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spool_bytes: Option<u64>,
    /// What to do when the spool is full [default: drop_oldest]
    #[arg(long, value_name = "WHAT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when_full: Option<WhenFull>,
    /// Longest Scribe frame in MiB [default: 16]
    #[arg(long, value_name = "MIB")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_message_mib: Option<usize>,
    /// Close a Scribe connection that is silent for this many seconds [default: 600]
    #[arg(long, value_name = "SECONDS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scribe_idle_seconds: Option<u64>,
    /// Close a Scribe connection whose frame is not complete, or whose answer is not read, after this many seconds [default: 60]
    #[arg(long, value_name = "SECONDS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scribe_frame_seconds: Option<u64>,
    /// Most live viewers at a time; 0: none [default: 16]
    #[arg(long, value_name = "COUNT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_viewers: Option<usize>,
    /// KiB of spans that a live viewer may lag behind [default: 4096]
    #[arg(long, value_name = "KIB")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_queue_kib: Option<usize>,
    /// After SIGTERM, time to send what is spooled; the rest stays for the next start [default: 5000]
    #[arg(long, value_name = "MS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_timeout_ms: Option<u64>,
    /// How to log.
    #[command(flatten)]
    #[serde(flatten)]
    pub log: LogOverrides,
}

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
    /// Scribe servers that each get everything.
    pub upstreams: Vec<String>,
    /// Folder of the spool.
    pub spool_dir: PathBuf,
    /// Most bytes of the spool.
    pub spool_bytes: u64,
    /// What to do when the spool is full.
    pub when_full: WhenFull,
    /// Log filter.
    pub log: String,
    /// Log format.
    pub log_format: LogFormat,
    /// The category whose entries are spans, for counting annotations.
    pub span_category: String,
    /// Most Scribe connections at a time.
    pub scribe_max_connections: usize,
    /// Seconds after which a silent connection is closed.
    pub scribe_idle_seconds: u64,
    /// Seconds within which a frame that has begun must be complete, and an answer must be read.
    pub scribe_frame_seconds: u64,
    /// Seconds after which an HTTP client that neither sends nor reads anything is disconnected.
    pub http_idle_seconds: u64,
    /// Longest Scribe frame in MiB.
    pub max_message_mib: usize,
    /// MiB of memory that messages being read at the same time may hold together.
    pub max_reading_mib: usize,
    /// MiB of calls that may wait for the disk.
    pub queue_mib: usize,
    /// Most bytes of a call to an upstream.
    pub batch_bytes: usize,
    /// Most entries of a call to an upstream.
    pub batch_entries: u64,
    /// Most calls to an upstream that wait for their answers.
    pub window_calls: usize,
    /// Most bytes of calls to an upstream that wait for their answers.
    pub window_bytes: usize,
    /// An upstream that makes no progress for this long is called again.
    pub io_timeout_ms: u64,
    /// Shortest pause before an upstream is called again.
    pub backoff_min_ms: u64,
    /// Longest pause before an upstream is called again.
    pub backoff_max_ms: u64,
    /// Most live viewers at a time.
    pub live_viewers: usize,
    /// KiB of spans that a live viewer may lag behind.
    pub live_queue_kib: usize,
    /// After SIGTERM, time to send what is spooled.
    pub stop_timeout_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            scribe_listen: SocketAddr::from(([127, 0, 0, 1], 1463)),
            http_listen: SocketAddr::from(([127, 0, 0, 1], 9413)),
            upstreams: vec!["127.0.0.1:9410".to_owned()],
            spool_dir: PathBuf::from("/var/lib/blkin/relay"),
            spool_bytes: 1 << 30,
            when_full: WhenFull::DropOldest,
            log: "info".to_owned(),
            log_format: LogFormat::Text,
            span_category: "zipkin".to_owned(),
            scribe_max_connections: 1024,
            scribe_idle_seconds: 600,
            scribe_frame_seconds: 60,
            http_idle_seconds: 120,
            max_message_mib: 16,
            max_reading_mib: 128,
            queue_mib: 64,
            batch_bytes: 1 << 20,
            batch_entries: 10_000,
            window_calls: 32,
            window_bytes: 8 << 20,
            io_timeout_ms: 10_000,
            backoff_min_ms: 50,
            backoff_max_ms: 5000,
            live_viewers: 16,
            live_queue_kib: 4096,
            stop_timeout_ms: 5000,
        }
    }
}

/// The keys that SIGHUP changes while the relay runs. All others would move or resize something that is open, and a restart
/// loses nothing: the spool keeps what arrived.
const CHANGING_KEYS: [&str; 2] = ["log", "stop_timeout_ms"];

impl Reloadable for Config {
    fn needs_restart(key: &str) -> bool {
        !CHANGING_KEYS.contains(&key)
    }

    fn log_filter(&self) -> &str {
        &self.log
    }
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
        self.check_upstreams()?;
        named_folder("spool_dir", &self.spool_dir)?;
        listen_apart(("scribe_listen", self.scribe_listen), ("http_listen", self.http_listen))?;
        in_ranges([
            ("scribe_max_connections", self.scribe_max_connections as u64, 1, 65_536),
            ("scribe_idle_seconds", self.scribe_idle_seconds, 1, 86_400),
            ("scribe_frame_seconds", self.scribe_frame_seconds, 1, 86_400),
            ("http_idle_seconds", self.http_idle_seconds, 1, 86_400),
            ("max_message_mib", self.max_message_mib as u64, 1, 1024),
            ("max_reading_mib", self.max_reading_mib as u64, 2 * self.max_message_mib as u64, 65_536),
            ("queue_mib", self.queue_mib as u64, self.max_message_mib as u64, 65_536),
            ("spool_bytes", self.spool_bytes, 4 * self.max_message_bytes() as u64, 1 << 50),
            ("batch_bytes", self.batch_bytes as u64, 4096, 1 << 30),
            ("batch_entries", self.batch_entries, 1, 65_536),
            ("window_calls", self.window_calls as u64, 1, 1024),
            ("window_bytes", self.window_bytes as u64, 4096, 1 << 30),
            ("io_timeout_ms", self.io_timeout_ms, 100, 3_600_000),
            ("backoff_min_ms", self.backoff_min_ms, 1, self.backoff_max_ms),
            ("backoff_max_ms", self.backoff_max_ms, 1, 3_600_000),
            ("live_viewers", self.live_viewers as u64, 0, 1024),
            ("live_queue_kib", self.live_queue_kib as u64, 64, 1 << 20),
            ("stop_timeout_ms", self.stop_timeout_ms, 0, 3_600_000),
        ])
    }

    fn check_upstreams(&self) -> Result<(), ConfigError> {
        let refused = |reason: String| Err(invalid("upstreams", reason));
        match self.upstreams.len() {
            0 => return refused("none is named; name at least one, such as \"10.0.0.5:9410\"".to_owned()),
            1..=MAX_UPSTREAMS => {}
            many => return refused(format!("{many} are named; at most {MAX_UPSTREAMS} are allowed")),
        }
        for upstream in &self.upstreams {
            if !is_host_and_port(upstream) || upstream.len() > MAX_NAME_BYTES {
                return refused(format!("{upstream:?} is not HOST:PORT; write {HOST_AND_PORT}"));
            }
        }
        if self.upstreams.iter().collect::<HashSet<_>>().len() < self.upstreams.len() {
            return refused("one of them is named twice".to_owned());
        }
        Ok(())
    }

    /// Checks what does not follow from the values alone: whether this process may write to the spool's folder.
    ///
    /// # Errors
    /// Names the folder.
    pub fn check_folders(&self) -> Result<(), ConfigError> {
        writable_folder("spool_dir", &self.spool_dir)
    }

    /// Checks that no upstream leads, as seen from this machine, back to the relay itself: it would receive all that it sends.
    ///
    /// # Errors
    /// Names the upstream that does.
    pub fn check_loops(&self) -> Result<(), ConfigError> {
        match find_leading_back(self.scribe_listen, &self.upstreams) {
            None => Ok(()),
            Some(upstream) => Err(invalid(
                "upstreams",
                format!(
                    "{upstream:?} is this relay itself, which listens on {} (scribe_listen): it would receive what it \
                     sends, for ever; name the next relay or the collector",
                    self.scribe_listen
                ),
            )),
        }
    }

    /// Longest message in bytes.
    pub fn max_message_bytes(&self) -> usize {
        self.max_message_mib * MIB
    }

    /// Limits for reading Thrift. An entry may be as long as a frame: the servers that decode it have their own limits.
    pub fn thrift_limits(&self) -> Limits {
        let max_frame_bytes = self.max_message_bytes();
        Limits { max_frame_bytes, max_span_bytes: max_frame_bytes, ..Limits::default() }
    }

    /// How large the spool may grow.
    pub fn spool_limits(&self) -> spool::Limits {
        spool::Limits::new(self.spool_bytes, self.when_full)
    }

    /// Most HTTP connections at a time: live viewers, and clients that ask for metrics and health.
    pub fn http_connections(&self) -> usize {
        self.live_viewers + ADMIN_CONNECTIONS
    }

    /// Descriptors that the relay needs beside its Scribe connections: for the spool, the upstreams (a connection each, and the
    /// eventfd that wakes the thread) and HTTP.
    pub fn own_descriptors(&self) -> u64 {
        self.spool_limits().files() + 4 * self.upstreams.len() as u64 + self.http_connections() as u64
    }

    /// How long to wait for a silent HTTP client.
    pub fn http_idle_time(&self) -> Duration {
        Duration::from_secs(self.http_idle_seconds)
    }

    /// The limits on live viewers.
    pub fn live_options(&self) -> Options {
        Options::new(self.live_viewers, self.live_queue_kib, self.http_idle_time())
    }

    /// How to send to upstreams.
    pub fn upstream_options(&self) -> upstream::Options {
        upstream::Options {
            batch_bytes: self.batch_bytes,
            batch_entries: self.batch_entries,
            window: Window { calls: self.window_calls, bytes: self.window_bytes },
            io_timeout: Duration::from_millis(self.io_timeout_ms),
            backoff_min: Duration::from_millis(self.backoff_min_ms),
            backoff_max: Duration::from_millis(self.backoff_max_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config.example.toml");

    fn configuration(arguments: &[&str]) -> Result<Config, ConfigError> {
        let all = std::iter::once("blkin-relay").chain(arguments.iter().copied());
        Arguments::parse_from(all).configuration().map(|read| read.config)
    }

    #[test]
    fn the_example_file_holds_every_key_and_its_default() {
        assert_eq!(configuration(&["--config", EXAMPLE]).unwrap(), Config::default());
        let table: toml::Table = std::fs::read_to_string(EXAMPLE).unwrap().parse().unwrap();
        let fields = format!("{:?}", Config::default()).matches(": ").count();
        assert_eq!(table.len(), fields, "{table:?}");
    }

    #[test]
    fn flags_win_over_the_file() {
        let flags = ["--config", EXAMPLE, "--upstreams", "a:1,b:2", "--when-full", "refuse"];
        let config = configuration(&flags).unwrap();
        assert_eq!(config.upstreams, ["a:1", "b:2"]);
        assert_eq!(config.when_full, WhenFull::Refuse);
    }

    #[test]
    fn relay_rejects_itself_as_upstream() {
        let with = |listen: &str, upstreams: &str| {
            let flags = ["--scribe-listen", listen, "--upstreams", upstreams];
            configuration(&[&["--config", EXAMPLE][..], &flags].concat()).unwrap().check_loops()
        };
        for (listen, upstreams) in [
            ("127.0.0.1:1463", "10.0.0.5:9410,127.0.0.1:1463"),
            ("0.0.0.0:1463", "127.0.0.1:1463"),
            ("0.0.0.0:1463", "localhost:1463"),
            ("[::]:1463", "127.0.0.1:1463"),
        ] {
            let error = with(listen, upstreams).unwrap_err().to_string();
            assert!(error.contains(":1463\" is this relay itself"), "{error}");
        }
        with("0.0.0.0:1463", "192.0.2.1:1463,127.0.0.1:9410").unwrap();
        with("127.0.0.2:1463", "127.0.0.1:1463").unwrap();
    }

    #[test]
    fn each_key_reaches_the_option_it_sets() {
        let config = Config {
            max_message_mib: 2,
            spool_bytes: 3 << 30,
            when_full: WhenFull::Refuse,
            batch_bytes: 4,
            batch_entries: 5,
            window_calls: 6,
            window_bytes: 7,
            io_timeout_ms: 8,
            backoff_min_ms: 9,
            backoff_max_ms: 10,
            live_viewers: 11,
            live_queue_kib: 12,
            http_idle_seconds: 13,
            ..Config::default()
        };
        let upstream = config.upstream_options();
        assert_eq!((upstream.batch_bytes, upstream.batch_entries), (4, 5));
        assert_eq!((upstream.window.calls, upstream.window.bytes), (6, 7));
        let times = [upstream.io_timeout, upstream.backoff_min, upstream.backoff_max];
        assert_eq!(times, [8, 9, 10].map(Duration::from_millis));
        let live = config.live_options();
        assert_eq!((live.max_viewers, live.viewer_bytes), (11, 12 << 10));
        assert_eq!(config.http_idle_time(), Duration::from_secs(13));
        assert_eq!(config.thrift_limits().max_frame_bytes, 2 << 20);
        let spool = config.spool_limits();
        assert_eq!((spool.bytes, spool.when_full), (3 << 30, WhenFull::Refuse));
    }

    #[test]
    fn invalid_values_are_errors_that_name_the_key() {
        for (flags, key) in [
            (&["--upstreams", "nowhere"][..], "upstreams"),
            (&["--upstreams", ":9410"], "upstreams"),
            (&["--upstreams", "a:1,http://10.0.0.5:9410"], "HOST:PORT"),
            (&["--upstreams", "fd00::5:9410"], "[fd00::5]:9410"),
            (&["--upstreams", "a:1,a:1"], "upstreams"),
            (&["--spool-bytes", "1000"], "spool_bytes"),
            (&["--scribe-idle-seconds", "0"], "scribe_idle_seconds"),
            (&["--max-message-mib", "100"], "max_reading_mib"),
            (&["--http-listen", "0.0.0.0:1463"], "http_listen"),
        ] {
            let error = configuration(&[&["--config", EXAMPLE], flags].concat()).unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
        }
    }
}
