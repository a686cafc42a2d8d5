//! Lines for systemd's journal begin with their priority, which the journal removes: `journalctl -p warning` shows what matters.
//! Elsewhere lines have no priority.

use std::fmt;
use std::io;
use std::os::fd::AsFd;

use rustix::fs::fstat;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// The priority of an error (`sd-daemon(3)`).
pub(crate) const ERROR: &str = "<3>";

/// Whether the journal reads this process's stderr. The variable alone does not tell: systemd set it for the first process of
/// the unit, and stderr may lead elsewhere by now.
pub(crate) fn reads_stderr() -> bool {
    std::env::var("JOURNAL_STREAM").is_ok_and(|stream| is_stream(&stream, io::stderr()))
}

/// Whether `stream`, a `DEVICE:INODE`, is this file.
fn is_stream(stream: &str, file: impl AsFd) -> bool {
    fstat(file).is_ok_and(|found| stream == format!("{}:{}", found.st_dev, found.st_ino))
}

/// Writes the lines of another format, each with its priority in front.
pub(crate) struct Prioritised<F>(pub(crate) F);

impl<S, N, F> FormatEvent<S, N> for Prioritised<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        writer.write_str(priority(*event.metadata().level()))?;
        self.0.format_event(context, writer, event)
    }
}

fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => ERROR,
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        Level::DEBUG | Level::TRACE => "<7>",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn journal_stream_is_recognised_by_device_and_inode() {
        let (journal, other) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let metadata = journal.metadata().unwrap();
        let stream = format!("{}:{}", metadata.dev(), metadata.ino());
        assert!(is_stream(&stream, &journal));
        assert!(!is_stream(&stream, &other) && !is_stream("", &journal));
    }
}
