//! `blkin`: shows traces, and whether tracing works.

use std::ffi::OsString;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use blkin_cli::http::{Client, parse_url};
use blkin_cli::ledger::{Ledger, Reading};
use blkin_cli::snapshot::SnapshotArguments;
use blkin_cli::stats::StatsArguments;
use blkin_cli::target::offers;
use blkin_cli::terminal::{MOST_COLUMNS, Style, safe};
use blkin_cli::traces::Trace;
use blkin_cli::waterfall::{self, View};
use blkin_cli::{
    doctor, environment, json, live, moments, recover, rejects, set, snapshot, stats, traces, units,
};
use clap::builder::NonEmptyStringValueParser;
use clap::{Arg, Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

const AFTER_HELP: &str = "\
Examples:
  blkin doctor                             does tracing work here, and was anything lost?
  blkin traces --service osd.0             the newest requests that passed through osd.0
  blkin traces --slowest --lookback 10m    the slowest requests of the last ten minutes
  blkin traces --slowest --lookback 10m --end 2026-11-20T03:10Z    the slowest in the ten minutes before that time
  blkin trace 4f2a90c17d3e8b55             one request, drawn as a waterfall
  blkin stats 'Write begins' 'Span ended'  how long journal and store take, by daemon
  blkin set --label ceph-osd --rate 100    from now on trace one in a hundred of its requests

Exit codes:
  0  success; also if a list is empty, or if `recover` could read only part of a damaged or truncated file
  1  failure; (trace) no such trace, (set --pid, snapshot) no such program, (recover) nothing in the
     file can be read, (ledger) it does not balance or a daemon could not be read, (doctor) tracing
     does not work, (live) nothing answered, or the stream ended with --no-reconnect
  2  wrong usage";

/// Show BlkKin's traces, and whether tracing works on this machine.
#[derive(Parser)]
#[command(name = "blkin", version, after_help = AFTER_HELP, disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Print JSON for programs instead of text for people
    #[arg(long, global = true)]
    json: bool,
}

/// The option of the commands that query a collector. The other commands do not list it, and do not fail if the environment
/// variable has a bad value.
#[derive(Args)]
struct Collector {
    /// The collector (or any Zipkin server) to read from
    #[arg(
        id = "collector",
        long = "collector",
        value_name = "URL",
        env = "BLKIN_COLLECTOR_URL",
        hide_env_values = true,
        default_value = "http://127.0.0.1:9411",
        value_parser = parse_url
    )]
    url: String,
}

impl Collector {
    fn client(&self) -> Client {
        Client::new(&self.url).named_by("--collector")
    }
}

/// The same option for commands whose queries a Zipkin server does not answer.
fn describe_blkin_collector(collector: Arg) -> Arg {
    collector.help("The collector to read from")
}

#[derive(Subcommand)]
enum Command {
    /// List recent traces
    Traces {
        #[command(flatten)]
        wanted: TracesArguments,
        #[command(flatten)]
        collector: Collector,
    },
    /// Draw one trace as a waterfall: every span with its service, duration and annotations
    Trace {
        /// Trace id, hexadecimal, as `blkin traces` lists it
        #[arg(value_parser = traces::parse_id)]
        id: String,
        /// Leave out events and keys
        #[arg(long)]
        short: bool,
        #[command(flatten)]
        collector: Collector,
    },
    /// Average, median and longest time between two annotations of a span, by service, such as each daemon's journaling time
    #[command(after_help = stats::NOTE, mut_arg("collector", describe_blkin_collector))]
    Stats {
        #[command(flatten)]
        wanted: StatsArguments,
        #[command(flatten)]
        collector: Collector,
    },
    /// Print spans as they arrive at a collector or relay (named by --collector); reconnects after a restart
    #[command(mut_arg("collector", |argument| argument.help("The collector or relay to read from")))]
    Live {
        #[command(flatten)]
        wanted: live::LiveArguments,
        #[command(flatten)]
        collector: Collector,
    },
    /// List what the collector rejected recently, and why
    #[command(mut_arg("collector", describe_blkin_collector))]
    Rejects {
        /// How many to list; the collector keeps the last 256
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..))]
        limit: u16,
        #[command(flatten)]
        collector: Collector,
    },
    /// Copy the present contents of programs' rings into a file; works for a flight recorder whose program has crashed
    #[command(after_help = snapshot::NOTE)]
    Snapshot(SnapshotArguments),
    /// Print the annotations in a file of `blkin snapshot`, or in a copy of a program's memory
    #[command(after_help = recover::NOTE)]
    Recover {
        /// The file; - for standard input
        file: PathBuf,
    },
    /// Print the ledger: where each annotation went, and whether every equation holds
    Ledger {
        /// Address of consumerd's metrics
        #[arg(
            long,
            value_name = "URL",
            env = "BLKIN_CONSUMERD_URL",
            hide_env_values = true,
            default_value = "http://127.0.0.1:9412",
            value_parser = parse_url
        )]
        consumerd: String,
        #[command(flatten)]
        relays: Relays,
        #[command(flatten)]
        collector: Collector,
        /// Wait at most this long (500ms, 10s) until no annotation is in transit any more
        #[arg(long, value_name = "DURATION", default_value = "0", value_parser = units::parse_duration_us)]
        settle: u64,
    },
    /// Change what running programs record: on or off, one in N requests, which levels
    #[command(after_help = set::EXAMPLES)]
    Set(set::SetArguments),
    /// Say whether tracing works on this machine and, if not, why and what to do; print the ledger
    Doctor {
        /// Address of consumerd's metrics and health
        #[arg(
            long,
            value_name = "URL",
            env = "BLKIN_CONSUMERD_URL",
            hide_env_values = true,
            default_value = "http://127.0.0.1:9412",
            value_parser = parse_url
        )]
        consumerd: String,
        /// consumerd's socket; if not given, the one in BLKIN_SOCKET
        #[arg(long, value_name = "PATH", default_value_os_t = offers(std::env::var_os("BLKIN_SOCKET")))]
        socket: PathBuf,
        #[command(flatten)]
        relays: Relays,
        #[command(flatten)]
        collector: Collector,
    },
    // clap's own `help` does not accept --help, as every other command does.
    /// Print the full help of a command, or the list of commands
    Help {
        /// The command
        command: Option<String>,
    },
    /// Print a script that makes a shell complete commands and options
    #[command(after_help = "\
scripts/install installs those for bash, zsh and fish. To load one into the current shell:
  source <(blkin completion bash)
  blkin completion fish | source")]
    Completion {
        /// The shell to print it for
        shell: Shell,
    },
}

/// Only the user knows which relays lie on the way: consumerd knows only the Scribe port of its upstream.
#[derive(Args)]
struct Relays {
    /// Address of the metrics of a relay between consumerd and the collector; may be repeated
    #[arg(
        long,
        value_name = "URL",
        env = "BLKIN_RELAY_URL",
        hide_env_values = true,
        value_delimiter = ',',
        value_parser = parse_url
    )]
    relay: Vec<String>,
}

impl Relays {
    fn clients(&self) -> impl Iterator<Item = Client> {
        self.relay.iter().map(|url| Client::new(url))
    }
}

#[derive(Args)]
struct TracesArguments {
    /// Only traces with a span of this service
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    service: Option<String>,
    /// Only traces with a span of this name
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    span: Option<String>,
    /// Only traces with these events or keys, such as 'error and Object=foo'
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    query: Option<String>,
    /// Only traces with a span that took at least this long (250us, 10ms, 1.5s)
    #[arg(long, value_name = "DURATION", value_parser = units::parse_duration_us)]
    min_duration: Option<u64>,
    /// Only traces that began at or before this time: 2h (ago), 2026-11-20 (00:00 UTC), 2026-11-20T19:52:00+01:00, or
    /// milliseconds since 1970 [default: now]
    #[arg(long, value_name = "WHEN", value_parser = moments::parse)]
    end: Option<u64>,
    /// How far back from --end to look (10m, 2h, 1d)
    #[arg(long, value_name = "DURATION", default_value = "1d", value_parser = units::parse_duration_us)]
    lookback: u64,
    /// How many traces to list
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    limit: u16,
    /// List the traces with the longest spans (of --service, if given), longest first, instead of the newest; at most 500
    #[arg(long)]
    slowest: bool,
}

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    let ran = match environment::parse::<Arguments>(&words) {
        Ok(arguments) => run(&arguments),
        Err(said) => say(&said).map(|()| ExitCode::SUCCESS),
    };
    match ran {
        Ok(code) => code,
        Err(error) => {
            // The message may quote text that other programs wrote.
            tell(&format!("blkin: {}\n", safe(&format!("{error:#}"))));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    let json = arguments.json;
    match &arguments.command {
        Command::Traces { wanted, collector } => list(&collector.client(), wanted, json)?,
        Command::Trace { id, short, collector } => draw(&collector.client(), id, *short, json)?,
        Command::Live { wanted, collector } => live::print(collector.client().url(), wanted, json)?,
        Command::Rejects { limit, collector } => list_rejects(&collector.client(), *limit, json)?,
        Command::Stats { wanted, collector } => measure(&collector.client(), wanted, json)?,
        Command::Snapshot(wanted) => take_snapshot(wanted, json)?,
        Command::Recover { file } => print_saved(file, json)?,
        Command::Ledger { consumerd, relays, collector, settle } => {
            let relays: Vec<Client> = relays.clients().map(|relay| relay.named_by("--relay")).collect();
            let consumerd = Client::new(consumerd).named_by("--consumerd");
            let patience = Duration::from_micros(*settle);
            return check(&Ledger::settled(&consumerd, &relays, &collector.client(), patience), json);
        }
        Command::Help { command } => help(command.as_deref())?,
        Command::Completion { shell } => complete(*shell)?,
        Command::Set(wanted) => put(&set::run(wanted, json, Style::of_stdout_or(MOST_COLUMNS))?)?,
        Command::Doctor { consumerd, socket, relays, collector } => {
            // The doctor gives its own advice on daemons that it does not reach.
            let [consumerd, collector] = [consumerd, &collector.url].map(|url| Client::new(url));
            let relays = relays.clients().collect();
            return examine(doctor::Places { socket: socket.clone(), consumerd, relays, collector }, json);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints what clap returned instead of a command: help text, whose printing may fail, or a usage error, which ends the process.
fn say(said: &clap::Error) -> Result<()> {
    if said.use_stderr() {
        said.exit();
    }
    written(said.print().and_then(|()| std::io::stdout().flush()))
}

/// Prints what `blkin COMMAND --help` prints.
fn help(command: Option<&str>) -> Result<()> {
    let words = ["blkin"].into_iter().chain(command).chain(["--help"]);
    Arguments::try_parse_from(words).map_or_else(|said| say(&said), |_| Ok(()))
}

fn complete(shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "blkin", &mut script);
    put(&String::from_utf8(script)?)
}

fn list_rejects(collector: &Client, limit: u16, json: bool) -> Result<()> {
    let rejects = rejects::fetch(collector, usize::from(limit))?;
    match json {
        true => put(&json::pretty(&rejects)?),
        false if rejects.is_empty() => {
            nothing("nothing was rejected since the collector was started", collector)
        }
        false => put(&rejects::table(&rejects, moments::now_us(), Style::of_stdout_or(MOST_COLUMNS))),
    }
}

fn measure(collector: &Client, wanted: &StatsArguments, json: bool) -> Result<()> {
    let found = stats::fetch(collector, wanted)?;
    match json {
        true => put(&json::pretty(&found)?),
        false if found.services.is_empty() => measured_nothing(&found, wanted, collector),
        false => put(&stats::table(&found, Style::of_stdout())),
    }
}

fn measured_nothing(found: &stats::Stats, wanted: &StatsArguments, collector: &Client) -> Result<()> {
    match wanted.service.as_deref().and_then(|service| traces::unknown(collector, service)) {
        Some(unknown) => tell(&format!("{unknown}\n")),
        None => nothing(&stats::nothing(found, wanted), collector)?,
    }
    Ok(())
}

fn take_snapshot(wanted: &SnapshotArguments, json: bool) -> Result<()> {
    ensure!(
        !json || !wanted.goes_to_stdout(),
        "--json and -o - both write to standard output: save to a file, or leave --json out"
    );
    let written = snapshot::run(wanted)?;
    if json {
        return put(&json::pretty(&written)?);
    }
    tell(&written.text());
    Ok(())
}

fn print_saved(file: &Path, json: bool) -> Result<()> {
    let recovery = recover::recover(file)?;
    tell(&recovery.summary);
    // Written one by one: the whole text may be gigabytes.
    let mut out = BufWriter::new(std::io::stdout().lock());
    let write = if json { recover::write_json } else { recover::write_text };
    let mut annotations = recovery.annotations.iter();
    written(annotations.try_for_each(|annotation| write(annotation, &mut out)).and_then(|()| out.flush()))
}

fn check(reading: &Reading, json: bool) -> Result<ExitCode> {
    let ledger = &reading.ledger;
    put(&if json { json::pretty(ledger)? } else { ledger.table(Style::of_stdout_or(MOST_COLUMNS)) })?;
    reading.unread.iter().chain(&reading.silent).for_each(|missing| tell(&format!("blkin: {missing}\n")));
    Ok(code(reading.balances()))
}

fn examine(places: doctor::Places, json: bool) -> Result<ExitCode> {
    let report = doctor::examine(places);
    put(&if json { json::pretty(&report)? } else { doctor::text(&report, Style::of_stdout()) })?;
    Ok(code(report.healthy))
}

fn code(is_well: bool) -> ExitCode {
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Says on standard error that there is nothing to print, so that scripts do not take the sentence for a result.
fn nothing(what: &str, collector: &Client) -> Result<()> {
    tell(&format!("{what} ({})\n", collector.base()));
    Ok(())
}

fn list(collector: &Client, wanted: &TracesArguments, json: bool) -> Result<()> {
    let search = traces::Search {
        service: wanted.service.clone(),
        span: wanted.span.clone(),
        query: wanted.query.clone(),
        min_duration_us: wanted.min_duration,
        end_us: wanted.end,
        lookback_us: wanted.lookback,
        limit: usize::from(wanted.limit),
        slowest: wanted.slowest,
    };
    if search.slowest && search.limit > traces::MOST_SLOWEST {
        let most = format!("--slowest lists at most {} traces", traces::MOST_SLOWEST);
        wrong("traces", most).exit();
    }
    let traces::Found { traces, partial } = traces::search(collector, &search)?;
    match json {
        true => put(&json::pretty(&traces)?)?,
        false if !traces.is_empty() => {
            put(&traces::table(&traces, moments::now_us(), search.slowest, Style::of_stdout()))?;
        }
        false if partial.is_none() => tell(&(traces::nothing(collector, &search) + "\n")),
        false => {}
    }
    if let Some(key) = partial {
        tell(&(traces::left_out(collector.base(), &key) + "\n"));
    }
    Ok(())
}

/// A usage error in clap's form, for what clap itself cannot detect.
fn wrong(command: &str, what: impl std::fmt::Display) -> clap::Error {
    let mut blkin = Arguments::command();
    blkin.build();
    let kind = clap::error::ErrorKind::ValueValidation;
    match blkin.find_subcommand_mut(command) {
        Some(command) => command.error(kind, what),
        None => blkin.error(kind, what),
    }
}

fn draw(collector: &Client, id: &str, short: bool, json: bool) -> Result<()> {
    let Trace { spans, partial } = traces::fetch(collector, id)?;
    let view = View { style: Style::of_stdout(), annotations: !short };
    put(&if json { json::pretty(&spans)? } else { waterfall::draw(&spans, view) })?;
    if let Some(key) = partial {
        let base = collector.base();
        tell(&format!("spans are missing here: the trace is larger than {key} of {base} allows\n"));
    }
    Ok(())
}

/// Writes to standard error. If nobody reads it any more, the exit code still tells the outcome.
fn tell(text: &str) {
    let _unsaid = std::io::stderr().write_all(text.as_bytes());
}

/// Writes to standard output.
fn put(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    written(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// The outcome of writing to standard output; a reader that went away (`| head`) is not an error.
fn written(result: std::io::Result<()>) -> Result<()> {
    match result {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("failed to write to the standard output"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::error::ErrorKind;

    fn refused(words: &[&str]) -> clap::Error {
        Arguments::try_parse_from(["blkin"].iter().chain(words)).err().unwrap()
    }

    #[test]
    fn an_invalid_trace_id_is_a_usage_error() {
        for id in ["", "zz", "0", "0000000000000000"] {
            let error = refused(&["trace", id]);
            assert_eq!((error.kind(), error.exit_code()), (ErrorKind::ValueValidation, 2));
        }
    }

    #[test]
    fn usage_errors_found_after_parsing_show_the_usage() {
        let said = wrong("traces", "--slowest lists at most 500 traces").to_string();
        assert!(said.contains("at most 500") && said.contains("Usage: blkin traces [OPTIONS]"), "{said}");
    }

    #[test]
    fn help_offers_zipkin_servers_only_to_commands_that_work_there() {
        for (command, of_any) in [
            ("traces", true),
            ("trace", true),
            ("stats", false),
            ("live", false),
            ("rejects", false),
            ("ledger", true),
        ] {
            let help = refused(&[command, "--help"]).to_string();
            assert_eq!(help.contains("or any Zipkin server"), of_any, "{help}");
            assert!(help.contains("BLKIN_COLLECTOR_URL"), "{help}");
        }
    }

    #[test]
    fn help_does_not_show_urls_from_the_environment() {
        let blkin = Arguments::command();
        let environment =
            |argument: &&Arg| argument.get_env().is_some_and(|name| name.to_string_lossy().ends_with("_URL"));
        let arguments: Vec<&Arg> =
            blkin.get_subcommands().flat_map(|command| command.get_arguments().filter(environment)).collect();
        assert!(arguments.len() > 2 && arguments.iter().all(|argument| argument.is_hide_env_values_set()));
    }

    #[test]
    fn commands_without_a_collector_reject_its_option() {
        for words in [&["set", "--show"][..], &["snapshot", "--all"], &["recover", "file"]] {
            let named = [words, &["--collector", "http://10.0.0.5:9411"]].concat();
            assert_eq!(refused(&named).kind(), ErrorKind::UnknownArgument, "{words:?}");
        }
    }

    #[test]
    fn unanswerable_arguments_are_usage_errors() {
        for words in [
            &["traces", "--collector", "https://10.0.0.5:9411"][..],
            &["ledger", "--relay", "https://10.0.0.5:9413"],
            &["doctor", "--consumerd", "https://10.0.0.5:9412"],
            &["traces", "--lookback", "1"],
            &["stats", "a", "b", "--lookback", "1"],
            &["traces", "--end", "2026-11-20 19:52"],
            &["stats", "a", "b", "--end", "yesterday"],
            &["stats", "", "b"],
            &["traces", "--collector", "/etc/passwd"],
            &["live", "--limit", "0"],
            &["set", "--off", "--label", ""],
            &["snapshot", "--label", ""],
            &["traces", "--service", ""],
            &["stats", "a", "b", "--service", ""],
            &["live", "--span", ""],
            &["snapshot", "--pid", "0"],
            &["rejects", "--limit", "0"],
        ] {
            assert_eq!(refused(words).exit_code(), 2, "{words:?}");
        }
    }
}
