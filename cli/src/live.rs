//! `blkin live`: spans as they arrive, read from `/api/blkin/live`.

use std::fmt::{self, Write as _};
use std::io::{self, BufRead, BufReader, ErrorKind, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Once};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use self::reconnect::Reconnect;
use crate::http;
use crate::json;
use crate::moments;
use crate::span::Span;
use crate::terminal::{Colour, MOST_COLUMNS, Style, fit, safe, wrapped};
use crate::units;

mod reconnect;

/// Longest event that is read. By default the daemons accept no span as large (`max_message_mib`).
const MAX_EVENT_BYTES: u64 = 64 << 20;
/// A stream without spans sends a comment every ten seconds. After this much silence the daemon counts as gone.
const SILENCE: Duration = Duration::from_secs(30);
/// Most characters of events and tags on a line.
const NOTES_COLUMNS: usize = 200;

/// The option that names the collector or relay.
const OPTION: Option<&str> = Some("--collector");

/// Which spans to show; each span is judged by itself.
#[derive(Debug, Clone, Default, Args)]
pub struct LiveArguments {
    /// Only spans of this service
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    pub service: Option<String>,
    /// Only spans of this name
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub span: Option<String>,
    /// Only spans with these events or tags, such as 'error and Object=foo'
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    pub query: Option<String>,
    /// Only spans that took at least this long (250us, 10ms, 1.5s)
    #[arg(long, value_name = "DURATION", value_parser = units::parse_duration_us)]
    pub min_duration: Option<u64>,
    /// End after this many spans
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// Fail when the stream ends, instead of reconnecting
    #[arg(long)]
    pub no_reconnect: bool,
}

/// Numbers of spans that the daemon left out of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missed {
    /// Spans that matched but arrived faster than they were read.
    pub spans: u64,
    /// Entries that the daemon had no time to look at.
    pub unseen: u64,
}

/// An event of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A span, as v2 JSON.
    Span(String),
    /// Spans were left out at this point.
    Missed(Missed),
}

/// An open stream.
pub struct Stream<R> {
    reader: BufReader<R>,
}

/// The stream is over although nothing was wrong with what was read: reconnecting may help.
#[derive(Debug)]
pub(crate) struct Lost(String);

impl fmt::Display for Lost {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for Lost {}

/// Begins to watch what arrives at the collector or relay at `url`.
///
/// # Errors
/// When nothing answers there, or the answer is not a stream; the error contains what the daemon said.
pub fn watch(url: &str, wanted: &LiveArguments) -> Result<Stream<impl Read + use<>>> {
    watch_patiently(url, wanted, SILENCE)
}

fn watch_patiently(
    url: &str,
    wanted: &LiveArguments,
    patience: Duration,
) -> Result<Stream<impl Read + use<>>> {
    let agent = http::connecting().timeout_per_read(Some(patience)).build().new_agent();
    let mut request = agent.get(format!("{url}/api/blkin/live"));
    let base = &http::without_login(url);
    let least = wanted.min_duration.map(|least| least.max(1).to_string());
    for (key, value) in [
        ("serviceName", &wanted.service),
        ("spanName", &wanted.span),
        ("annotationQuery", &wanted.query),
        ("minDuration", &least),
    ] {
        if let Some(value) = value {
            request = request.query(key, value);
        }
    }
    let waiting = http::tell_of_waiting(base, patience, Arc::new(Once::new()));
    let mut response = request.call().map_err(|error| {
        let error = http::unanswered(error, base, patience, OPTION);
        Lost(format!("{error:#}"))
    })?;
    drop(waiting);
    let status = response.status();
    if status != 200 {
        let body = response.body_mut().with_config().limit(4096).read_to_string().unwrap_or_default();
        let said = format!("{base} answered {}{}", status.as_u16(), http::words(&body, OPTION));
        // A proxy answers the same while its daemon is being restarted.
        return Err(if status.is_server_error() { Lost(said).into() } else { anyhow!(said) });
    }
    let kind = response.headers().get("content-type").and_then(|kind| kind.to_str().ok());
    if !kind.is_some_and(|kind| kind.starts_with("text/event-stream")) {
        bail!("{base} did not answer with a stream of spans{}", http::mistaken(OPTION));
    }
    Ok(Stream::new(response.into_body().into_reader()))
}

impl<R: Read> Stream<R> {
    /// Reads server-sent events.
    pub fn new(reader: R) -> Self {
        Stream { reader: BufReader::new(reader) }
    }

    /// The next event; none at the end of the stream.
    ///
    /// # Errors
    /// When the stream breaks off, or contains something that no daemon of BlkKin sends.
    pub fn next_event(&mut self) -> Result<Option<Event>> {
        let (mut kind, mut data) = (String::new(), String::new());
        let mut left = MAX_EVENT_BYTES;
        loop {
            ensure!(left > 0, "an event of the stream is too long: no daemon of BlkKin sends that");
            let mut line = String::new();
            let read = (&mut self.reader).take(left).read_line(&mut line).map_err(broken_off)?;
            if read == 0 {
                return Ok(None);
            }
            left -= read as u64;
            let line = line.trim_end_matches(['\r', '\n']);
            match line.split_once(':').map(|(field, value)| (field, value.strip_prefix(' ').unwrap_or(value)))
            {
                Some(("event", value)) => value.clone_into(&mut kind),
                Some(("data", value)) => data.push_str(value),
                None if line.is_empty() && !data.is_empty() => return read_event(&kind, data).map(Some),
                None if line.is_empty() => left = MAX_EVENT_BYTES,
                // Comments keep the connection alive; unknown fields are ignored.
                _ => {}
            }
        }
    }
}

fn broken_off(error: io::Error) -> Lost {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    Lost(match cause {
        Some(ureq::Error::Timeout(_)) => {
            "the stream is silent: the daemon is stuck, or the network connection is lost".to_owned()
        }
        _ => format!("the stream broke off: {error}"),
    })
}

fn read_event(kind: &str, data: String) -> Result<Event> {
    match kind {
        "missed" => Ok(Event::Missed(serde_json::from_str(&data).context("failed to read what was missed")?)),
        _ => Ok(Event::Span(data)),
    }
}

/// Prints what arrives until `left` spans have been printed, or the reader of `out` goes away. With `json` each span, and each
/// `{"missed":{…}}`, is one line.
///
/// # Errors
/// [`Lost`] when the stream ends or breaks off.
fn follow(
    mut stream: Stream<impl Read>,
    left: &mut u64,
    json: bool,
    style: Style,
    out: &mut dyn Write,
) -> Result<()> {
    while *left > 0 {
        let Some(event) = stream.next_event()? else {
            let why = "the stream ended: the daemon is stopping, or considered this viewer dead";
            return Err(Lost(why.to_owned()).into());
        };
        *left -= u64::from(matches!(event, Event::Span(_)));
        let line = if json { json_line(event)? } else { text_line(event, style)? };
        match out.write_all(line.as_bytes()).and_then(|()| out.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            written => written.context("failed to write to the standard output")?,
        }
    }
    Ok(())
}

fn json_line(event: Event) -> Result<String> {
    Ok(match event {
        Event::Span(span) => json::safe(span) + "\n",
        Event::Missed(missed) => json::line(&serde_json::json!({ "missed": missed }))?,
    })
}

fn text_line(event: Event, style: Style) -> Result<String> {
    Ok(match event {
        Event::Span(json) => span_line(&serde_json::from_str(&json).context("failed to read a span")?, style),
        Event::Missed(missed) => {
            let spans = units::counted(missed.spans, "span");
            let text =
                format!("missed {spans}; entries that the daemon had no time to examine: {}", missed.unseen);
            let lines = wrapped(&text, style.columns);
            lines.iter().map(|line| style.paint(Colour::Yellow, line) + "\n").collect()
        }
    })
}

/// Columns of the time of day, and of a span's duration.
const TIME_COLUMNS: usize = 15;
const TOOK_COLUMNS: usize = 11;

/// The widths of a line's cells, which have two spaces between them. On a narrow terminal the least useful ones are left out: notes
/// first, then the id, then the name.
#[derive(Debug, PartialEq, Eq)]
struct Cells {
    service: usize,
    name: usize,
    id: usize,
    notes: usize,
}

impl Cells {
    fn of(columns: usize, id: usize) -> Cells {
        let mut left = columns.saturating_sub(TIME_COLUMNS + 2 + TOOK_COLUMNS);
        // `least` to `most` columns behind two spaces, if there is room for them beside what is reserved.
        let mut take = |least: usize, most: usize, free: usize| {
            let room = left.saturating_sub(free + 2);
            let taken = if room < least { 0 } else { room.min(most) };
            left -= if taken > 0 { taken + 2 } else { 0 };
            taken
        };
        let service = take(6, 14, 0);
        let with_id = take(id, id, 2 + 10);
        let name = take(8, 20, 0);
        Cells { service, name, id: with_id, notes: take(8, NOTES_COLUMNS, 0) }
    }
}

fn span_line(span: &Span, style: Style) -> String {
    let begin = span.extent().map_or_else(String::new, |(begin, _)| time_of_day(begin));
    let took = span.duration.map(units::duration).unwrap_or_default();
    let id = safe(&span.trace_id);
    let mut notes: Vec<String> = span.annotations.iter().map(|annotation| safe(&annotation.value)).collect();
    notes.extend(span.tags.iter().map(|(key, value)| format!("{}={}", safe(key), safe(value))));
    let name = safe(span.name.as_deref().unwrap_or(""));
    let cells = Cells::of(style.columns, id.chars().count());
    let mut line = format!("{begin:TIME_COLUMNS$}");
    line += &cell(&safe(span.service()), cells.service, |text| style.paint(Colour::Cyan, text));
    line += &cell(&name, cells.name, str::to_owned);
    let _ = write!(line, "  {took:>TOOK_COLUMNS$}");
    line += &cell(&id, cells.id, str::to_owned);
    line += &cell(&notes.join(", "), cells.notes, str::to_owned);
    line.truncate(line.trim_end().len());
    line + "\n"
}

/// `text` behind two spaces, padded to its cell; nothing if there is no room for the cell.
fn cell(text: &str, columns: usize, paint: impl Fn(&str) -> String) -> String {
    if columns == 0 { String::new() } else { format!("  {}", paint(&fit(text, columns))) }
}

/// Hours, minutes, seconds and microseconds in UTC. (The year before them may have more than four digits.)
fn time_of_day(us: u64) -> String {
    moments::moment(us).split(' ').nth(1).unwrap_or_default().to_owned()
}

/// Prints spans to standard output, and reconnects after the daemon was away. When the reader of the output goes away the process
/// ends at once, instead of with the next span, which may be a long time coming.
///
/// # Errors
/// When the daemon cannot be reached at first, or its answer not be read, standard output not be written, or no thread be started.
pub fn print(url: &str, wanted: &LiveArguments, json: bool) -> Result<()> {
    std::thread::Builder::new()
        .name("hang-up".to_owned())
        .spawn(|| {
            if is_left(io::stdout()) {
                std::process::exit(0);
            }
        })
        .context("failed to start a thread")?;
    let style = Style::of_stdout_or(MOST_COLUMNS);
    let mut stream = watch(url, wanted)?;
    // The first span may be a long time coming.
    if io::stderr().is_terminal() {
        let base = http::without_login(url);
        let _unsaid = writeln!(io::stderr(), "{base}: spans as they arrive, until Ctrl-C");
    }
    let mut left = wanted.limit.unwrap_or(u64::MAX);
    let mut reconnect = Reconnect::default();
    loop {
        match follow(stream, &mut left, json, style, &mut io::stdout().lock()) {
            Err(error) if error.is::<Lost>() && !wanted.no_reconnect => {
                stream = reconnect.connect(error, || watch(url, wanted))?;
            }
            followed => return followed,
        }
    }
}

/// Waits until nobody reads `out` any more, and returns true; false if that cannot be found out. For a file it waits for ever.
fn is_left(out: impl AsFd) -> bool {
    // Hang-ups and errors are reported even if no event is asked for.
    let mut out = [PollFd::new(&out, PollFlags::empty())];
    loop {
        match poll(&mut out, None) {
            Err(Errno::INTR) => {}
            polled => return polled.is_ok() && out[0].revents().intersects(PollFlags::HUP | PollFlags::ERR),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(text: &str) -> Vec<Event> {
        let mut stream = Stream::new(text.as_bytes());
        std::iter::from_fn(|| stream.next_event().unwrap()).collect()
    }

    #[test]
    fn live_rejects_a_daemon_without_a_stream() {
        for (status, body) in [("404 Not Found", ""), ("200 OK", "[]")] {
            let collector = http::answering(move |_| (status, body));
            let error = watch(collector.base(), &LiveArguments::default()).err().unwrap().to_string();
            assert!(error.contains("(is it another daemon? --collector names"), "{error}");
        }
    }

    #[test]
    fn the_stream_yields_spans_and_losses_and_skips_comments() {
        let text = ":\n\ndata: {\"id\":\"1\"}\n\nevent: missed\r\ndata: {\"spans\":3,\"unseen\":4}\r\n\r\n:\n\ndata:x\n\ndata: cut";
        assert_eq!(
            events(text),
            [
                Event::Span("{\"id\":\"1\"}".to_owned()),
                Event::Missed(Missed { spans: 3, unseen: 4 }),
                Event::Span("x".to_owned()),
            ]
        );
    }

    #[test]
    fn an_endless_event_is_refused_as_too_long() {
        let line = ["data: ", &"x".repeat(1 << 16), "\n"].concat();
        let lines = line.repeat(MAX_EVENT_BYTES as usize / line.len() + 1);
        let mut stream = Stream::new(lines.as_bytes());
        let error = stream.next_event().unwrap_err().to_string();
        assert!(error.contains("is too long"), "{error}");
    }

    #[test]
    fn live_lines_show_time_service_name_duration_and_events() {
        let style = Style { columns: 100, colours: false };
        let json = r#"{"traceId":"4f2a","id":"1","name":"write","timestamp":1516781775726001,"duration":4874,
            "localEndpoint":{"serviceName":"osd.0"},"annotations":[{"timestamp":1,"value":"journal"}],"tags":{"k":"a\u001bb"}}"#;
        let line = text_line(Event::Span(json.to_owned()), style).unwrap();
        assert!(line.starts_with("00:00:00.000001  osd.0           write "), "{line}");
        assert!(line.ends_with("4.874 ms  4f2a  journal, k=a\u{fffd}b\n"), "{line}");
        let missed = Event::Missed(Missed { spans: 2, unseen: 0 });
        assert_eq!(json_line(missed).unwrap(), "{\"missed\":{\"spans\":2,\"unseen\":0}}\n");
    }

    #[test]
    fn the_time_of_day_has_the_same_width_in_any_year() {
        // What should be microseconds were nanoseconds.
        for us in [1_516_781_775_726_001, 1_516_781_775_726_001_000, u64::MAX] {
            let (time, whole) = (time_of_day(us), moments::moment(us));
            assert!(
                time.len() == TIME_COLUMNS && whole.ends_with(&format!(" {time} UTC")),
                "{time}, {whole}"
            );
        }
    }

    #[test]
    fn live_lines_omit_whole_cells_to_fit_the_terminal() {
        let json = r#"{"traceId":"4f2a90c17d3e8b55","id":"1","name":"write of a very long name","timestamp":1,"duration":4874,
            "localEndpoint":{"serviceName":"a-service-of-a-long-name"},"annotations":[{"timestamp":1,"value":"journal entry"}]}"#;
        let missed = Event::Missed(Missed { spans: 12_345_678, unseen: 12_345_678 });
        for columns in 40..=120 {
            let style = Style { columns, colours: false };
            let span = text_line(Event::Span(json.to_owned()), style).unwrap();
            let text = span.clone() + &text_line(missed.clone(), style).unwrap();
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{columns}: {text}");
            assert!(span.starts_with("00:00:00.000001  a-service"), "{columns}: {span}");
            assert!(span.contains("4.874 ms"), "{columns}: {span}");
            assert_eq!(span.contains("4f2a90c17d3e8b55"), columns >= 74, "{columns}: {span}");
        }
        let of = |columns| Cells::of(columns, 16);
        assert_eq!(of(40), Cells { service: 10, name: 0, id: 0, notes: 0 });
        assert_eq!(of(80), Cells { service: 14, name: 16, id: 16, notes: 0 });
        assert_eq!(of(100), Cells { service: 14, name: 20, id: 16, notes: 14 });
    }

    #[test]
    fn a_silent_daemon_ends_live_with_an_error() {
        let daemon = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("http://{}", daemon.local_addr().unwrap());
        // The system takes the connection, and nobody answers.
        let watched = watch_patiently(&base, &LiveArguments::default(), Duration::from_millis(10));
        let error = format!("{:#}", watched.err().unwrap());
        assert!(error.contains(" was reached, but did not answer within 10ms (does it serve"), "{error}");
        let silent = ureq::Error::Timeout(ureq::Timeout::PerRead).into_io();
        let broken = broken_off(silent).to_string();
        assert!(broken.starts_with("the stream is silent"), "{broken}");
    }

    #[test]
    fn the_time_of_day_is_utc() {
        assert_eq!(time_of_day(1_516_781_775_726_001), "08:16:15.726001");
    }
}
