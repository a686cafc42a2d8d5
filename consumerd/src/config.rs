//! Every setting, its default and its check. `config.example.toml` shows them all.

use std::net::SocketAddr;
use std::path::{Path, PathBuf, absolute};

use clap::builder::{OsStringValueParser, TypedValueParser};

use blkin_daemon::checks::{in_ranges, invalid, listen_address, read_listen_address, writable_folder};
use blkin_daemon::config::ConfigError;
use blkin_daemon::logging::{self, LogFormat, LogOverrides};
use blkin_daemon::upstream::{HOST_AND_PORT, is_host_and_port};
use blkin_ringbuf::layout::MAX_SLOTS;
use serde::{Deserialize, Serialize};

use crate::staging::Geometry;
use crate::staging::checkpoint::{PROGRAM_BYTES, RING_BYTES};
use crate::staging::layout::{MAX_RING_BUDGET_BYTES, NUMBER_ROW_BYTES};

/// The configuration file that is read, if it exists, when none is named.
pub const DEFAULT_FILE: &str = "/etc/blkin/consumerd.toml";

/// Most bytes in the path of a socket: Linux has 108, including the terminating zero.
const MAX_SOCKET_PATH_BYTES: usize = 107;

/// Largest user or group id. The next one, -1, means "no id": the system calls leave the id unchanged, or refuse it.
const MAX_ID: u64 = u32::MAX as u64 - 1;

/// Most bytes by which a frame with its header exceeds `ring_budget_bytes`.
const FRAME_MARGIN_BYTES: u64 = 64 << 10;

/// The settings in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Socket on which programs offer themselves.
    pub socket: PathBuf,
    /// Socket for the requests of `blkin set` and `blkin snapshot`; "": `control.sock` in the folder of `socket`. The rules
    /// that `blkin set` makes are kept beside it, in a file whose name ends with `.rules`.
    pub control_socket: PathBuf,
    /// Address of `/metrics` and `/healthz`.
    #[serde(deserialize_with = "read_listen_address")]
    pub http_listen: SocketAddr,
    /// Scribe server that gets whole Zipkin spans; "" switches the sink off.
    pub scribe_upstream: String,
    /// Category of the messages to `scribe_upstream`.
    pub scribe_category: String,
    /// Scribe server that gets one JSON object for each annotation; "" switches the sink off.
    pub json_scribe_upstream: String,
    /// Category of the messages to `json_scribe_upstream`.
    pub json_scribe_category: String,
    /// File or named pipe that gets one JSON line for each annotation; "" switches the sink off.
    pub json_lines: PathBuf,
    /// Annotations that close a span which is neither a client's nor a server's.
    pub close_events: Vec<String>,
    /// A span that gets no new annotation for this long is sent as it is.
    pub quiet_ms: u64,
    /// Most open spans: beyond it the oldest are sent as they are.
    pub max_open_spans: usize,
    /// Most bytes in open spans: beyond it the oldest are sent as they are. So is a single span that holds an eighth of
    /// this, or of `queue_bytes`.
    pub max_open_bytes: usize,
    /// Memory for what is drained but not acknowledged; taken only as it is used.
    pub staging_bytes: u64,
    /// Most bytes that each sink may hold before it loses annotations.
    pub queue_bytes: usize,
    /// A batch leaves with at most this many bytes.
    pub batch_bytes: usize,
    /// A batch leaves with at most this many entries.
    pub batch_entries: usize,
    /// A batch that is not full waits this long for more, if the rings are looked at again meanwhile.
    pub linger_ms: u64,
    /// Most calls to a Scribe upstream that may wait for their answers.
    pub window_calls: usize,
    /// Most bytes in the calls that wait for their answers.
    pub window_bytes: usize,
    /// The connection to an upstream that is silent for this long is dropped and made anew.
    pub io_timeout_ms: u64,
    /// First pause before an upstream is called again; doubles, with jitter.
    pub backoff_min_ms: u64,
    /// Longest pause before an upstream is called again.
    pub backoff_max_ms: u64,
    /// Shortest pause between two looks at the rings while something is in them; up to eight times as long while they fill
    /// slowly.
    pub poll_busy_ms: u64,
    /// Longest pause between two looks at the rings; reached step by step while they are empty.
    pub poll_idle_ms: u64,
    /// Most bytes drained from one ring in one round. `staging_bytes` must be at least ten times as much, plus 8 MiB.
    pub ring_budget_bytes: usize,
    /// Most flight recorders of ended programs that are kept until somebody takes them. Beyond any of the three limits,
    /// the one that ended first is given up.
    pub recorder_keep: usize,
    /// Most memory of the flight recorders that are kept.
    pub recorder_keep_bytes: u64,
    /// Longest time for which a flight recorder is kept.
    pub recorder_keep_ms: u64,
    /// Most programs that are held.
    pub max_programs: usize,
    /// Most programs of one user.
    pub max_programs_per_uid: usize,
    /// Most bytes of shared memory that the programs of one user may offer.
    pub max_shared_bytes_per_uid: u64,
    /// Search once, at start, for live programs that no daemon has.
    pub scan: bool,
    /// Time for shipping what was drained, after SIGTERM.
    pub stop_timeout_ms: u64,
    /// A worker that shows no sign of life for this long is killed and started anew.
    pub stuck_kill_ms: u64,
    /// User id of the worker when the daemon runs as root; without it the worker keeps root's, without capabilities.
    pub worker_uid: Option<u32>,
    /// Group id of the worker.
    pub worker_gid: Option<u32>,
    /// Log level or filter.
    pub log: String,
    /// `text` or `json`.
    pub log_format: LogFormat,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            socket: "/run/blkin/consumerd.sock".into(),
            control_socket: PathBuf::new(),
            http_listen: SocketAddr::from(([127, 0, 0, 1], 9412)),
            scribe_upstream: "127.0.0.1:9410".into(),
            scribe_category: "zipkin".into(),
            json_scribe_upstream: String::new(),
            json_scribe_category: "blkin_json".into(),
            json_lines: PathBuf::new(),
            close_events: vec!["end".into(), "Span ended".into()],
            quiet_ms: 10_000,
            max_open_spans: 1_000_000,
            max_open_bytes: 64 << 20,
            staging_bytes: 256 << 20,
            queue_bytes: 64 << 20,
            batch_bytes: 1 << 20,
            batch_entries: 2000,
            linger_ms: 5,
            window_calls: 32,
            window_bytes: 8 << 20,
            io_timeout_ms: 10_000,
            backoff_min_ms: 50,
            backoff_max_ms: 5000,
            poll_busy_ms: 1,
            poll_idle_ms: 200,
            ring_budget_bytes: 256 << 10,
            recorder_keep: 16,
            recorder_keep_bytes: 256 << 20,
            recorder_keep_ms: 3_600_000,
            max_programs: 1024,
            max_programs_per_uid: 256,
            max_shared_bytes_per_uid: 4 << 30,
            scan: true,
            stop_timeout_ms: 5000,
            stuck_kill_ms: 30_000,
            worker_uid: None,
            worker_gid: None,
            log: "info".into(),
            log_format: LogFormat::Text,
        }
    }
}

/// Settings that flags can override. A flag wins over the environment, and both win over the file.
#[derive(Clone, Debug, Default, clap::Args, Serialize)]
pub struct Overrides {
    /// Socket on which programs offer themselves [default: /run/blkin/consumerd.sock]
    #[arg(long, value_name = "PATH")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// Socket for `blkin set` and `blkin snapshot`; empty: control.sock in the folder of --socket
    #[arg(long, value_name = "PATH", value_parser = path_or_nothing())]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_socket: Option<PathBuf>,
    /// Address of /metrics and /healthz [default: 127.0.0.1:9412]
    #[arg(long, value_name = "ADDRESS", value_parser = listen_address)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_listen: Option<SocketAddr>,
    /// Scribe server that gets whole Zipkin spans; empty switches the sink off [default: 127.0.0.1:9410]
    #[arg(long, value_name = "HOST:PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scribe_upstream: Option<String>,
    /// Scribe server that gets one JSON object for each annotation [default: none]
    #[arg(long, value_name = "HOST:PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json_scribe_upstream: Option<String>,
    /// File or named pipe that gets one JSON line for each annotation [default: none]
    #[arg(long, value_name = "PATH", value_parser = path_or_nothing())]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json_lines: Option<PathBuf>,
    /// A span that gets no new annotation for this long is sent as it is [default: 10000]
    #[arg(long, value_name = "MS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quiet_ms: Option<u64>,
    /// Most bytes that each sink may hold before it loses annotations [default: 67108864]
    #[arg(long, value_name = "BYTES")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_bytes: Option<usize>,
    /// Memory for what is drained but not acknowledged [default: 268435456]
    #[arg(long, value_name = "BYTES")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staging_bytes: Option<u64>,
    /// Search at start for live programs that no daemon has [default: true]
    #[arg(long, value_name = "BOOL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scan: Option<bool>,
    /// Time for shipping what was drained, after SIGTERM [default: 5000]
    #[arg(long, value_name = "MS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_timeout_ms: Option<u64>,
    /// A worker that shows no sign of life for this long is killed and started anew [default: 30000]
    #[arg(long, value_name = "MS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stuck_kill_ms: Option<u64>,
    /// User id of the worker when the daemon runs as root [default: none: root]
    #[arg(long, value_name = "UID")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_uid: Option<u32>,
    /// Group id of the worker when the daemon runs as root [default: none: root]
    #[arg(long, value_name = "GID")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_gid: Option<u32>,
    #[command(flatten)]
    #[serde(flatten)]
    /// Logging.
    pub log: LogOverrides,
}

impl Config {
    /// Checks every value.
    ///
    /// # Errors
    /// Names the first key with a value that is not allowed, and what is.
    pub fn check(&self) -> Result<(), ConfigError> {
        logging::check(&self.log)?;
        check_upstream("scribe_upstream", &self.scribe_upstream)?;
        check_upstream("json_scribe_upstream", &self.json_scribe_upstream)?;
        check_socket("socket", &self.socket)?;
        check_socket("control_socket", &self.control_socket())?;
        self.check_sockets_differ()?;
        self.check_worker_ids()?;
        if !self.geometry().is_valid() || self.staging_bytes < 16 << 20 {
            let reason = format!("{} is not a multiple of 4096 from 16 MiB to 1 TiB", self.staging_bytes);
            return Err(invalid("staging_bytes", reason));
        }
        in_ranges(self.bounds())?;
        // A round is drained only if there is room for all of it, and nearly half of the memory may be in use by then.
        let needed = 2 * self.round_bytes();
        if self.staging_bytes < needed {
            return Err(invalid("ring_budget_bytes", format!("needs staging_bytes of {needed} or more")));
        }
        if self.poll_busy_ms > self.poll_idle_ms {
            return Err(invalid("poll_busy_ms", "must not exceed poll_idle_ms"));
        }
        if self.backoff_min_ms > self.backoff_max_ms {
            return Err(invalid("backoff_min_ms", "must not exceed backoff_max_ms"));
        }
        Ok(())
    }

    /// The servers and files that the daemon ships to; empty if there is no sink.
    pub fn ships_to(&self) -> Vec<String> {
        let Self { scribe_upstream, json_scribe_upstream, json_lines, .. } = self;
        let all = [scribe_upstream.clone(), json_scribe_upstream.clone(), json_lines.display().to_string()];
        all.into_iter().filter(|to| !to.is_empty()).collect()
    }

    /// Checks that the calling user can create the sockets and the file of `json_lines`.
    ///
    /// # Errors
    /// Names the first key whose folder cannot be written, and why.
    pub fn check_folders(&self) -> Result<(), ConfigError> {
        check_lines(&self.json_lines)?;
        let sockets = [("socket", &self.socket), ("control_socket", &self.control_socket())];
        sockets.into_iter().try_for_each(|(key, path)| writable_folder(key, folder_of(path)))
    }

    /// With one path for both sockets, the daemon would wait for itself to end.
    fn check_sockets_differ(&self) -> Result<(), ConfigError> {
        let control = self.control_socket();
        let rules = rules_beside(&control);
        // However the path is written: "x" and "./x" are the same.
        let are_one =
            |a: &Path, b: &Path| a == b || matches!((absolute(a), absolute(b)), (Ok(a), Ok(b)) if a == b);
        if are_one(&self.socket, &control) {
            let reason = format!("{} is the path of `socket`; set another", control.display());
            return Err(invalid("control_socket", reason));
        }
        if are_one(&rules, &self.socket) || are_one(&rules, &control) {
            let reason = format!(
                "its rules file would be {}, which is the path of a socket; set another",
                rules.display()
            );
            return Err(invalid("control_socket", reason));
        }
        Ok(())
    }

    /// A worker with another user but still root's group, or the other way round, would have more rights than anybody
    /// expects.
    fn check_worker_ids(&self) -> Result<(), ConfigError> {
        let (missing, given) = match (self.worker_uid, self.worker_gid) {
            (Some(_), None) => ("worker_gid", "worker_uid"),
            (None, Some(_)) => ("worker_uid", "worker_gid"),
            (uid, gid) => {
                let ids = [("worker_uid", uid), ("worker_gid", gid)];
                let given = ids.into_iter().filter_map(|(key, id)| Some((key, u64::from(id?))));
                return in_ranges(given.map(|(key, id)| (key, id, 0, MAX_ID)));
            }
        };
        Err(invalid(missing, format!("is missing, but {given} is set: set both or neither")))
    }

    fn bounds(&self) -> [(&'static str, u64, u64, u64); 20] {
        let of = |n: usize| n as u64;
        [
            ("quiet_ms", self.quiet_ms, 1, 86_400_000),
            ("max_open_spans", of(self.max_open_spans), 1, 1 << 32),
            ("max_open_bytes", of(self.max_open_bytes), 4096, 1 << 40),
            ("queue_bytes", of(self.queue_bytes), 4096, 1 << 40),
            ("batch_bytes", of(self.batch_bytes), 4096, 16 << 20),
            ("batch_entries", of(self.batch_entries), 1, 100_000),
            ("linger_ms", self.linger_ms, 0, 10_000),
            ("window_calls", of(self.window_calls), 1, 1024),
            ("window_bytes", of(self.window_bytes), 4096, 1 << 30),
            ("io_timeout_ms", self.io_timeout_ms, 10, 3_600_000),
            ("backoff_min_ms", self.backoff_min_ms, 1, 3_600_000),
            ("backoff_max_ms", self.backoff_max_ms, 1, 3_600_000),
            ("poll_busy_ms", self.poll_busy_ms, 1, 1000),
            ("poll_idle_ms", self.poll_idle_ms, 1, 400),
            ("ring_budget_bytes", of(self.ring_budget_bytes), 64 << 10, of(MAX_RING_BUDGET_BYTES)),
            ("recorder_keep", of(self.recorder_keep), 0, 100_000),
            ("recorder_keep_ms", self.recorder_keep_ms, 0, 30 * 86_400_000),
            ("max_programs", of(self.max_programs), 1, 100_000),
            ("stop_timeout_ms", self.stop_timeout_ms, 0, 3_600_000),
            // A healthy worker shows a sign of life far more often, but may be delayed for a moment.
            ("stuck_kill_ms", self.stuck_kill_ms, 2000, 3_600_000),
        ]
    }

    /// The control socket's path, also when it is not configured.
    pub fn control_socket(&self) -> PathBuf {
        if self.control_socket.as_os_str().is_empty() {
            return self.socket.with_file_name("control.sock");
        }
        self.control_socket.clone()
    }

    /// Most bytes of staging memory that a round takes for one program: what four rings may give, in frames of up to
    /// 64 rings, plus what stays unused at the end of the memory when a frame has to wrap to its start.
    pub fn round_bytes(&self) -> u64 {
        5 * self.ring_budget_bytes as u64 + 64 * FRAME_MARGIN_BYTES
    }

    /// How the staging memory is divided.
    pub fn geometry(&self) -> Geometry {
        let per_program = (PROGRAM_BYTES + MAX_SLOTS * RING_BYTES) as u64;
        let programs = (self.max_programs as u64).min(100_000);
        let checkpoint_bytes = (64 << 10) + programs * per_program;
        let numbers_bytes = programs * NUMBER_ROW_BYTES as u64;
        Geometry {
            log_bytes: self.staging_bytes,
            checkpoint_bytes: checkpoint_bytes.next_multiple_of(4096),
            numbers_bytes: numbers_bytes.next_multiple_of(4096),
        }
    }
}

/// The file that keeps the rules made on this control socket.
pub fn rules_beside(control_socket: &Path) -> PathBuf {
    control_socket.with_extension("rules")
}

/// A path, or "": clap's own parser for paths refuses an empty one.
fn path_or_nothing() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

fn check_upstream(key: &'static str, upstream: &str) -> Result<(), ConfigError> {
    if upstream.is_empty() || is_host_and_port(upstream) {
        return Ok(());
    }
    let wanted = format!("write {HOST_AND_PORT}, or leave it empty to switch the sink off");
    Err(invalid(key, format!("{upstream:?} is not HOST:PORT; {wanted}")))
}

/// Checks that the file of `json_lines` exists or can be created. Whether an existing file can be written only the worker
/// can tell, which may have another user.
fn check_lines(path: &Path) -> Result<(), ConfigError> {
    let folder = folder_of(path);
    if path.is_dir() {
        return Err(invalid("json_lines", format!("{} is a folder; name a file in it", path.display())));
    }
    if path.as_os_str().is_empty() || path.exists() {
        return Ok(());
    }
    // Unlike the folders of the sockets, this one is never created: a file system to be mounted there may only be late.
    if !folder.exists() {
        let reason =
            format!("{} does not exist, and the daemon does not create it: create it", folder.display());
        return Err(invalid("json_lines", reason));
    }
    writable_folder("json_lines", folder)
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Checks that a socket can be bound to this path.
fn check_socket(key: &'static str, path: &Path) -> Result<(), ConfigError> {
    let shown = path.display();
    if path.file_name().is_none() {
        return Err(invalid(
            key,
            format!("{shown:?} is not the path of a file; write one such as /run/blkin/{key}"),
        ));
    }
    let bytes = path.as_os_str().len();
    if bytes > MAX_SOCKET_PATH_BYTES {
        let reason =
            format!("{shown} is {bytes} bytes long; a socket path may have at most {MAX_SOCKET_PATH_BYTES}");
        return Err(invalid(key, reason));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sinks;
    use crate::staging::layout::CHECKPOINT_HEADER_BYTES;
    use crate::staging::{Checkpoint, ProgramState, SinkState, SlotState};

    #[test]
    fn the_defaults_pass_their_own_check() {
        Config::default().check().unwrap();
    }

    #[test]
    fn the_example_shows_every_key_with_its_default() {
        let example = include_str!("../config.example.toml");
        let config: Config = toml::from_str(example).unwrap();
        assert_eq!(config, Config::default());
        let shown: toml::Table = example.parse().unwrap();
        let all = toml::Table::try_from(Config::default()).unwrap();
        let missing: Vec<_> = all.keys().filter(|key| !shown.contains_key(*key)).collect();
        assert!(missing.is_empty(), "{missing:?}");
        for key in ["worker_uid", "worker_gid"] {
            assert!(example.contains(&format!("# {key} =")), "{key}");
        }
    }

    #[test]
    fn help_shows_the_defaults() {
        let all = toml::Table::try_from(Config::default()).unwrap();
        let command = <Overrides as clap::Args>::augment_args(clap::Command::new("consumerd"));
        let mut told = 0;
        for argument in command.get_arguments() {
            let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
            let default = help.split_once("[default: ").and_then(|(_, rest)| rest.strip_suffix(']'));
            let value = all.get(argument.get_id().as_str());
            if let (Some(default), Some(value)) = (default, value) {
                let value = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
                assert_eq!(default.replace("none", ""), value, "{}", argument.get_id());
                told += 1;
            }
        }
        assert!(told >= 10, "{told}");
    }

    #[test]
    fn the_control_socket_defaults_to_the_folder_of_the_socket() {
        let mut config = Config::default();
        assert_eq!(config.control_socket(), PathBuf::from("/run/blkin/control.sock"));
        config.control_socket = "/elsewhere/c".into();
        assert_eq!(config.control_socket(), PathBuf::from("/elsewhere/c"));
    }

    #[test]
    fn an_invalid_value_is_refused_and_its_key_named() {
        let refused = |change: &dyn Fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert!(refused(&|c| c.scribe_upstream = "nowhere".into()).contains("scribe_upstream"));
        let bare = refused(&|c| c.scribe_upstream = "::1:9410".into());
        assert!(bare.contains("scribe_upstream") && bare.contains("[fd00::5]:9410"), "{bare}");
        let url = refused(&|c| c.json_scribe_upstream = "http://10.0.0.5:9410".into());
        assert!(url.contains("json_scribe_upstream") && url.contains("write HOST:PORT"), "{url}");
        assert!(
            refused(&|c| c.staging_bytes = 5).contains("staging_bytes: 5 is not a multiple of 4096 from ")
        );
        assert!(refused(&|c| c.poll_idle_ms = 0).contains("poll_idle_ms"));
        assert!(refused(&|c| c.stuck_kill_ms = 1999).contains("stuck_kill_ms"));
        assert!(refused(&|c| c.stuck_kill_ms = 3_600_001).contains("stuck_kill_ms"));
        assert!(refused(&|c| c.stop_timeout_ms = 3_600_001).contains("stop_timeout_ms"));
        let round = |c: &mut Config| (c.ring_budget_bytes, c.staging_bytes) = (4 << 20, 32 << 20);
        assert!(refused(&round).contains("ring_budget_bytes: needs staging_bytes of 50331648 or more"));
        assert!(refused(&|c| c.backoff_min_ms = 6000).contains("backoff_min_ms"));
        let alone = refused(&|c| c.worker_uid = Some(7));
        assert!(alone.contains("worker_gid: is missing, but worker_uid is set"), "{alone}");
        assert!(
            refused(&|c| c.worker_gid = Some(7)).contains("worker_uid: is missing, but worker_gid is set")
        );
        for (uid, gid, key) in [(u32::MAX, 7, "worker_uid"), (7, u32::MAX, "worker_gid")] {
            let none = refused(&|c| (c.worker_uid, c.worker_gid) = (Some(uid), Some(gid)));
            assert!(none.contains(&format!("{key}: 4294967295 is not between 0 and 4294967294")), "{none}");
        }
    }

    /// Otherwise a worker that could not write its checkpoint would end, and so would each worker after it.
    #[test]
    fn a_checkpoint_of_max_programs_fits_its_space() {
        for max_programs in [1, 1000, 100_000] {
            let config = Config { max_programs, ..Config::default() };
            config.check().unwrap();
            let program =
                ProgramState { slots: vec![SlotState::default(); MAX_SLOTS], ..ProgramState::default() };
            let sink = |name: &&str| SinkState { name: (*name).to_owned(), ..SinkState::default() };
            let checkpoint = Checkpoint {
                sinks: sinks::NAMES.iter().map(sink).collect(),
                programs: vec![program; max_programs],
                ..Checkpoint::default()
            };
            let bytes = checkpoint.encode().len() + CHECKPOINT_HEADER_BYTES;
            assert!(bytes as u64 <= config.geometry().checkpoint_bytes, "{max_programs}: {bytes}");
        }
    }

    #[test]
    fn ships_to_lists_every_enabled_sink() {
        let mut config = Config::default();
        assert_eq!(config.ships_to(), ["127.0.0.1:9410"]);
        (config.scribe_upstream, config.json_lines) = (String::new(), "/srv/lines".into());
        assert_eq!(config.ships_to(), ["/srv/lines"]);
        config.json_lines = PathBuf::new();
        assert!(config.ships_to().is_empty());
    }

    #[test]
    fn an_unusable_socket_path_is_refused_and_its_key_named() {
        let check = |socket: String, control_socket: String| {
            let paths =
                Config { socket: socket.into(), control_socket: control_socket.into(), ..Config::default() };
            paths.check().map_err(|e| e.to_string())
        };
        let of_bytes = |bytes: usize| format!("/{}", "s".repeat(bytes - 1));
        check(of_bytes(107), of_bytes(106)).unwrap();
        let long = check(of_bytes(108), String::new()).unwrap_err();
        assert!(long.contains(": socket: ") && long.contains("is 108 bytes long"), "{long}");
        assert!(check(of_bytes(9), of_bytes(108)).unwrap_err().contains("control_socket"));
        // The control socket's default path may be longer than that of `socket`.
        let beside = check(format!("{}/s", of_bytes(100)), String::new()).unwrap_err();
        assert!(beside.contains("control_socket"), "{beside}");
        for nothing in ["", "/", "/run/.."] {
            assert!(check(nothing.into(), String::new()).unwrap_err().contains(": socket: "), "{nothing:?}");
        }
    }

    #[test]
    fn a_path_shared_by_sockets_or_the_rules_file_is_refused() {
        let check = |socket: &str, control_socket: &str| {
            let paths =
                Config { socket: socket.into(), control_socket: control_socket.into(), ..Config::default() };
            paths.check().map_err(|e| e.to_string())
        };
        check("/run/b/x", "/run/b/y").unwrap();
        for (socket, control) in
            [("/x", "/x"), ("x", "./x"), ("/run//x", "/run/./x"), ("/run/control.sock", "")]
        {
            let shared = check(socket, control).unwrap_err();
            assert!(
                shared.contains("control_socket: ") && shared.contains(" is the path of `socket`"),
                "{shared}"
            );
        }
        for (socket, control) in [("/run/control.rules", ""), ("/run/s", "/run/c.rules")] {
            let shared = check(socket, control).unwrap_err();
            assert!(shared.contains("control_socket: its rules file would be /run/c"), "{shared}");
        }
    }
}
