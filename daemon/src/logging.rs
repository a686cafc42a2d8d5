//! Structured logs on stderr, written without making any thread wait. If the journal reads stderr, each line has a priority.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::{self, PanicHookInfo};
use std::sync::OnceLock;
use std::thread;

use serde::{Deserialize, Serialize};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

use crate::config::ConfigError;
use crate::journal::{self, Prioritised};
use crate::stderr::{self, Lines};

pub use crate::stderr::lost_lines;

/// How a log line looks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// The flags of logging; flatten it into a daemon's overrides (clap and serde). The daemon's
/// configuration then has the keys `log: String` (default `"info"`) and `log_format: LogFormat`.
#[derive(Debug, Clone, Default, clap::Args, Serialize)]
pub struct LogOverrides {
    /// What to log: a level (error, warn, info, debug, trace) or a tracing filter; also BLKIN_LOG
    #[arg(long, value_name = "FILTER")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    /// How to write logs; also BLKIN_LOG_FORMAT
    #[arg(long, value_name = "FORMAT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_format: Option<LogFormat>,
}

/// Checks a log filter without starting anything.
///
/// # Errors
/// When it is not a filter.
pub fn check(filter: &str) -> Result<(), ConfigError> {
    parse(filter).map(drop)
}

/// Targets that are logged only if the filter names them. The h2 crate warns of every odd frame, so one HTTP/2 peer could fill
/// the log.
const UNASKED: &str = "h2=off";

/// The filter, once logging has started.
static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();
/// The format, once logging has started.
static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// Starts logging for the whole process, and the thread that writes the log; a second call changes nothing. A process calls it
/// after it has dropped the privileges that its threads must not have.
///
/// # Errors
/// When `filter` is not a filter.
pub fn init(filter: &str, format: LogFormat) -> Result<(), ConfigError> {
    let (filter, handle) = reload::Layer::new(parse(filter)?);
    let lines = fmt::layer().with_writer(|| Lines);
    let registry = tracing_subscriber::registry().with(filter);
    let started = match (format, journal::reads_stderr()) {
        (LogFormat::Text, false) => registry.with(lines.with_ansi(false)).try_init(),
        (LogFormat::Text, true) => {
            registry.with(lines.with_ansi(false).map_event_format(Prioritised)).try_init()
        }
        (LogFormat::Json, false) => registry.with(lines.json()).try_init(),
        (LogFormat::Json, true) => registry.with(lines.json().map_event_format(Prioritised)).try_init(),
    };
    // The only error is that logging already runs.
    if started.is_ok() {
        let _first = (FILTER.set(handle), FORMAT.set(format));
        stderr::start();
        panic::set_hook(Box::new(tell_panic));
    }
    Ok(())
}

/// Reports a panic as Rust would, but through the writing thread: otherwise the panicking thread would wait for the reader of
/// the log.
fn tell_panic(panic: &PanicHookInfo<'_>) {
    let thread = thread::current();
    let mut told = format!("thread '{}' {panic}", thread.name().unwrap_or("without a name"));
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        told += &format!("\n{backtrace}");
    }
    tell_error(&told);
    // The process may end now.
    stderr::flush();
}

/// Logs an error regardless of the filter, in the format of the log if logging has started.
pub(crate) fn tell_error(error: &str) {
    match FORMAT.get() {
        Some(LogFormat::Json) => stderr::write_error(&object(error)),
        Some(LogFormat::Text) | None => stderr::write_error(error),
    }
}

/// An error as a line of a JSON log.
fn object(error: &str) -> String {
    let mut now = String::new();
    // An unreadable clock is no reason to stay silent.
    let _without_time = SystemTime.format_time(&mut Writer::new(&mut now));
    let fields = serde_json::json!({ "message": error });
    let line = serde_json::json!({
        "timestamp": now, "level": "ERROR", "fields": fields, "target": "blkin_daemon",
    });
    line.to_string()
}

/// Changes the filter, if logging has started.
///
/// # Errors
/// When `filter` is not a filter; the old one stays then.
pub fn change(filter: &str) -> Result<(), ConfigError> {
    let filter = parse(filter)?;
    // The only error is that logging has ended, together with the process.
    let _ended = FILTER.get().map(|running| running.reload(filter));
    Ok(())
}

fn parse(filter: &str) -> Result<EnvFilter, ConfigError> {
    let refused = |what: String| ConfigError::Invalid {
        key: "log",
        reason: format!(
            "{what}; use a level (error, warn, info, debug, trace; off for none) or a filter such as \
             \"info,blkin_collector=debug\""
        ),
    };
    if !says_anything(filter) {
        return Err(refused(format!("{filter:?} names neither a level nor a part of BlkKin")));
    }
    EnvFilter::try_new(format!("{UNASKED},{filter}")).map_err(|e| refused(e.to_string()))
}

/// Whether a filter makes sense. A word that is not a level is the name of a target: alone it lets only that target's lines
/// through, so a slip such as `verbose` would silence the daemon.
fn says_anything(filter: &str) -> bool {
    let is_level = |part: &str| !part.is_empty() && part.parse::<LevelFilter>().is_ok();
    filter.split(',').map(str::trim).any(|part| is_level(part) || part.starts_with("blkin"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Set in the process in which a test runs itself as a daemon that panics.
    const PANICS: &str = "BLKIN_TEST_PANICS";

    /// The stderr of this test, run in a process of its own as a daemon that logs in `format` and panics.
    fn said_by(test: &str, format: LogFormat) -> String {
        if std::env::var_os(PANICS).is_some() {
            init("error", format).unwrap();
            tracing::error!("before");
            panic!("as a defect would");
        }
        let mut itself = Command::new(std::env::current_exe().unwrap());
        let ended = itself.arg(test).env(PANICS, "1").output().unwrap();
        String::from_utf8(ended.stderr).unwrap()
    }

    #[test]
    fn panic_is_written_after_earlier_log_lines() {
        let said = said_by("panic_is_written_after_earlier_log_lines", LogFormat::Text);
        let (before, panic) = said.split_once("before\n").expect(&said);
        assert!(before.contains("ERROR") && panic.contains("panicked at daemon/src/logging.rs:"), "{said}");
        assert!(panic.contains("as a defect would"), "{said}");
    }

    #[test]
    fn json_log_writes_a_panic_as_a_json_object() {
        let said = said_by("json_log_writes_a_panic_as_a_json_object", LogFormat::Json);
        let lines = said.lines().map(|line| serde_json::from_str(line).expect(line));
        let lines: Vec<serde_json::Value> = lines.collect();
        let [before, panic] = &lines[..] else { panic!("{said}") };
        let members = |line: &serde_json::Value| Vec::from_iter(line.as_object().unwrap().keys().cloned());
        assert_eq!((members(before), &before["level"]), (members(panic), &panic["level"]));
        assert!(panic["fields"]["message"].as_str().unwrap().contains("as a defect would"), "{said}");
        assert_eq!(before["timestamp"].as_str().unwrap().len(), panic["timestamp"].as_str().unwrap().len());
    }

    #[test]
    fn h2_frames_are_logged_only_if_the_filter_names_h2() {
        for (filter, expected) in [("info", false), ("trace", false), ("info,h2=debug", true)] {
            let registry = Registry::default().with(parse(filter).unwrap());
            let is_logged = tracing::subscriber::with_default(registry, || {
                assert!(tracing::enabled!(target: "blkin_daemon::serve", tracing::Level::WARN));
                tracing::enabled!(target: "h2::proto::ping_pong", tracing::Level::WARN)
            });
            assert_eq!(is_logged, expected, "{filter}");
        }
    }

    #[test]
    fn malformed_log_filter_is_rejected() {
        assert!(check("info,blkin_collector=debug").is_ok());
        assert!(check("a=b=c").is_err());
    }

    #[test]
    fn unknown_log_level_error_lists_the_levels() {
        for meant in ["trace", "WARN", "off", "blkin_relay", "blkin_relay=debug", "hyper=info, error"] {
            assert!(check(meant).is_ok(), "{meant}");
        }
        for slip in ["verbose", "verbose,hyper=info", "info=debug", ""] {
            let error = check(slip).unwrap_err().to_string();
            assert!(error.contains("error, warn, info, debug, trace"), "{error}");
        }
    }
}
