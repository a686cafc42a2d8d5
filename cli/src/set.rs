//! `blkin set`: changes what programs record while they run, by asking this machine's consumerd.
//!
//! One line of JSON each way over a local socket. The daemon decides by the user who asks which programs may be set.

use std::fmt::Write as _;
use std::io::Read;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{ArgGroup, Args, ValueEnum};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::target::{ControlSocket, Target};
use crate::terminal::{Colour, Style, fit, safe, width, wrapped};
use crate::units;

/// What `blkin set --help` ends with.
pub const EXAMPLES: &str = "\
Examples:
  blkin set --show                               what is set, and what is in force for each program
  blkin set --all --off                          no program records anything
  blkin set --label ceph-osd --on                except programs of this name, also those started later
  blkin set --pid 4711 --rate 100                this process traces one in 100 requests that begin there
  blkin set --label ceph-osd --level info        record this severity and more severe ones
  blkin set --label ceph-osd --levels err,debug  record these levels and no others
  blkin set --reset --pid 4711                   forget what was set for this process
  blkin set --reset                              forget everything: programs follow their environment again

A change is in force when the command returns. On/off, rate and levels are set independently, and for each of \
them the narrowest setting wins: that for a process over that for a name, that for a name over that for all. A \
setting for a process ends with it; other settings also apply to programs that start later, until they are \
reset or the machine reboots. Root and the daemon's user can set all programs, other users their own. Calls \
without a level are warnings. NAME is the one in /proc/PID/comm, of which the kernel keeps 15 bytes: programs \
whose names share their first 15 bytes cannot be told apart.";

/// Longest answer: a program takes some hundred bytes.
const MAX_ANSWER_BYTES: u64 = 64 << 20;
/// The daemon answers in less than a millisecond.
const PATIENCE: Duration = Duration::from_secs(5);

/// Arguments of `blkin set`.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("change").args(["on", "off", "rate", "level", "levels"]).multiple(true).requires("target"))]
#[command(group = ArgGroup::new("action").args(["on", "off", "rate", "level", "levels", "reset", "show"]).multiple(true).required(true))]
pub struct SetArguments {
    #[command(flatten)]
    target: Target,
    /// Record annotations
    #[arg(long, conflicts_with = "off")]
    on: bool,
    /// Record nothing
    #[arg(long)]
    off: bool,
    /// Trace one in N of the requests that begin there
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=i64::MAX as u64))]
    rate: Option<u64>,
    /// Record this level and more severe ones
    #[arg(long, value_name = "LEVEL", conflicts_with = "levels")]
    level: Option<Level>,
    /// Record exactly these levels (names as for --level)
    #[arg(long, value_name = "LEVEL,...", value_delimiter = ',', hide_possible_values = true)]
    levels: Vec<Level>,
    /// Forget what was set for the target, or everything
    #[arg(long, conflicts_with_all = ["change", "show"])]
    reset: bool,
    /// Show what is set, and what is in force for each program
    #[arg(long, conflicts_with_all = ["change", "target"])]
    show: bool,
    #[command(flatten)]
    socket: ControlSocket,
}

/// Syslog's levels, the most severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Level {
    /// The system is unusable
    #[value(alias = "emergency")]
    Emerg,
    /// Act at once
    Alert,
    /// Critical
    #[value(alias = "critical")]
    Crit,
    /// Error
    #[value(alias = "error")]
    Err,
    /// The level of annotations that name none
    #[value(alias = "warn")]
    Warning,
    /// Normal but significant
    Notice,
    /// Informational
    Info,
    /// For debugging
    Debug,
}

impl Level {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Done(Done),
    Refused { why: String },
}

#[derive(Debug, Deserialize)]
struct Done {
    rules: Vec<Rule>,
    programs: Vec<Program>,
}

impl Done {
    /// Whether `user` can set only his own programs: what he sets for a name or for all then applies to his programs only.
    fn is_limited_to(&self, user: u32) -> bool {
        let of_many = |rule: &&Rule| !matches!(rule.target, RuleTarget::Pid(_));
        self.rules.iter().filter(of_many).any(|rule| rule.uid == Some(user))
    }
}

#[derive(Debug, Deserialize)]
struct Rule {
    target: RuleTarget,
    uid: Option<u32>,
    on: Option<bool>,
    rate: Option<u64>,
    levels: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RuleTarget {
    All,
    Label(String),
    Pid(u32),
}

#[derive(Debug, Deserialize)]
struct Program {
    pid: u32,
    comm: String,
    uid: u32,
    on: bool,
    rate: u64,
    levels: Vec<String>,
}

/// Sends the request, and returns the text to print about what the daemon did.
///
/// # Errors
/// When the daemon cannot be reached, or refuses; the error contains its reason.
pub fn run(arguments: &SetArguments, json: bool, style: Style) -> Result<String> {
    answer_text(arguments, &ask(&arguments.socket, &request(arguments))?, json, style)
}

/// The text to print for the daemon's answer.
///
/// # Errors
/// When the answer is a refusal, or cannot be understood.
pub fn answer_text(arguments: &SetArguments, text: &str, json: bool, style: Style) -> Result<String> {
    let unreadable = || format!("failed to understand what {} answered", arguments.socket.path.display());
    let answer: Answer = serde_json::from_str(text).with_context(unreadable)?;
    let done = match answer {
        Answer::Done(done) => done,
        Answer::Refused { why } => bail!("{}", safe(&why)),
    };
    if json {
        let answer: Value = serde_json::from_str(text)?;
        return Ok(crate::json::pretty(&answer["done"])?);
    }
    Ok(shown(arguments, &done, style))
}

/// The daemon's request for the arguments.
fn request(arguments: &SetArguments) -> Value {
    let target = arguments.target.request();
    if arguments.show {
        return json!({ "show": {} });
    }
    if arguments.reset {
        return if arguments.target.is_given() {
            json!({ "reset": { "target": target } })
        } else {
            json!({ "reset": {} })
        };
    }
    let mut set = json!({ "target": target });
    if arguments.on || arguments.off {
        set["on"] = json!(arguments.on);
    }
    if let Some(rate) = arguments.rate {
        set["rate"] = json!(rate);
    }
    let levels: Vec<String> = match arguments.level {
        Some(least) => {
            Level::value_variants().iter().filter(|level| **level <= least).map(|l| l.name()).collect()
        }
        None => arguments.levels.iter().map(|level| level.name()).collect(),
    };
    if !levels.is_empty() {
        set["levels"] = json!(levels);
    }
    json!({ "set": set })
}

fn ask(socket: &ControlSocket, request: &Value) -> Result<String> {
    let stream = socket.ask(request, PATIENCE, None)?;
    let mut answer = String::new();
    stream
        .take(MAX_ANSWER_BYTES)
        .read_to_string(&mut answer)
        .context("consumerd does not answer; `blkin doctor` may say why")?;
    Ok(answer)
}

fn shown(arguments: &SetArguments, done: &Done, style: Style) -> String {
    let mut out = String::new();
    if arguments.show {
        let _ = writeln!(out, "{}", style.paint(Colour::Bold, "Set"));
        let rows: Vec<[String; 5]> = done.rules.iter().map(rule_row).collect();
        out.push_str(&table(["FOR", "USER", "RECORDS", "RATE", "LEVELS"], &rows, "nothing", style));
        let _ = writeln!(out, "\n{}", style.paint(Colour::Bold, "In force"));
    } else {
        let verb = if arguments.reset { "Reset" } else { "Set" };
        let programs = units::counted(done.programs.len() as u64, "program");
        let whose = if done.is_limited_to(rustix::process::geteuid().as_raw()) { " of yours" } else { "" };
        let to_come = if arguments.target.pid.is_some() { "" } else { " and for those to come" };
        let _ = writeln!(out, "{verb} for {programs}{whose}{to_come}; in force now.");
        if let Some(name) = arguments.target.cut_name() {
            let _ = writeln!(
                out,
                "The kernel keeps 15 bytes of a name: this applies to all programs that it names {name}."
            );
        }
    }
    let rows: Vec<[String; 6]> = done.programs.iter().map(program_row).collect();
    if !rows.is_empty() || arguments.show {
        out.push_str(&table(
            ["PID", "PROGRAM", "USER", "RECORDS", "RATE", "LEVELS"],
            &rows,
            "no program is attached",
            style,
        ));
    }
    out
}

fn rule_row(rule: &Rule) -> [String; 5] {
    let target = match &rule.target {
        RuleTarget::All => "all".into(),
        RuleTarget::Label(label) => format!("label {}", safe(label)),
        RuleTarget::Pid(pid) => format!("pid {pid}"),
    };
    let unsaid = || "-".to_owned();
    [
        target,
        rule.uid.map_or_else(unsaid, |uid| uid.to_string()),
        rule.on.map_or_else(unsaid, on_or_off),
        rule.rate.map_or_else(unsaid, rate),
        rule.levels.as_deref().map_or_else(unsaid, levels),
    ]
}

fn program_row(program: &Program) -> [String; 6] {
    [
        program.pid.to_string(),
        safe(&program.comm),
        program.uid.to_string(),
        on_or_off(program.on),
        rate(program.rate),
        levels(&program.levels),
    ]
}

fn on_or_off(on: bool) -> String {
    if on { "on" } else { "off" }.into()
}

fn rate(rate: u64) -> String {
    match rate {
        0 => "its own".into(),
        1 => "every".into(),
        rate => format!("1 of {rate}"),
    }
}

/// "all", "info and more severe", or the names of the levels.
fn levels(named: &[String]) -> String {
    let known = Level::value_variants();
    let least = named.len().checked_sub(1).and_then(|last| known.get(last));
    let is_prefix = known.iter().zip(named).all(|(known, named)| known.name() == *named);
    match least {
        Some(Level::Debug) if is_prefix => "all".into(),
        Some(Level::Emerg) if is_prefix => "emerg".into(),
        Some(least) if is_prefix => format!("{} and more severe", least.name()),
        _ => safe(&named.join(" ")),
    }
}

/// A table whose columns are as wide as their widest entry, except the last, which takes the rest of the line and wraps if it must.
fn table<const N: usize>(head: [&str; N], rows: &[[String; N]], when_empty: &str, style: Style) -> String {
    if rows.is_empty() {
        return format!("  {when_empty}\n");
    }
    let widest = |column: usize| rows.iter().map(|row| width(&row[column])).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N - 1).map(|column| widest(column).max(head[column].len())).collect();
    let before: usize = 2 + widths.iter().map(|columns| columns + 2).sum::<usize>();
    let mut out = String::new();
    let mut line = |cells: [&str; N]| {
        let padded = cells.iter().zip(&widths).map(|(cell, columns)| fit(cell, *columns) + "  ");
        let last = wrapped(cells[N - 1], style.columns.saturating_sub(before));
        let last = last.join(&format!("\n{:before$}", ""));
        let _ = writeln!(out, "  {}{last}", padded.collect::<String>());
    };
    line(head);
    rows.iter().for_each(|row| line(row.each_ref().map(String::as_str)));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        set: SetArguments,
    }

    fn parsed(line: &str) -> Result<SetArguments, String> {
        let words = ["set"].into_iter().chain(line.split_whitespace());
        Command::try_parse_from(words).map(|command| command.set).map_err(|error| error.to_string())
    }

    fn asked(line: &str) -> Value {
        request(&parsed(line).unwrap())
    }

    #[test]
    fn options_of_set_become_the_right_requests() {
        assert_eq!(asked("--show"), json!({ "show": {} }));
        assert_eq!(asked("--all --off"), json!({ "set": { "target": "all", "on": false } }));
        let rate = json!({ "set": { "target": { "pid": 4711 }, "rate": 100 } });
        assert_eq!(asked("--pid 4711 --rate 100"), rate);
        let info = json!(["emerg", "alert", "crit", "err", "warning", "notice", "info"]);
        let target = json!({ "label": "ceph-osd" });
        assert_eq!(
            asked("--label ceph-osd --level info"),
            json!({ "set": { "target": target, "levels": info } })
        );
        let some = json!({ "set": { "target": target, "on": true, "levels": ["err", "warning"] } });
        assert_eq!(asked("--label ceph-osd --levels error,warn --on"), some);
        assert_eq!(asked("--reset --pid 1"), json!({ "reset": { "target": { "pid": 1 } } }));
        assert_eq!(asked("--reset"), json!({ "reset": {} }));
    }

    #[test]
    fn contradictory_options_of_set_are_refused() {
        for line in [
            "",
            "--all",
            "--off",
            "--rate 5",
            "--all --pid 3 --on",
            "--all --on --off",
            "--all --rate 0",
            "--all --level loud",
            "--all --level err --levels err",
            "--reset --all --off",
            "--show --all",
            "--show --reset",
        ] {
            assert!(parsed(line).is_err(), "{line}");
        }
        assert!(parsed("--all --level loud").unwrap_err().contains("emerg"));
        assert!(parsed("--on --label a\u{1b}b").unwrap_err().contains("write ? for each control character"));
    }

    /// Answers one request with a line, and gives the request.
    fn daemon(answer: &'static str) -> (PathBuf, std::thread::JoinHandle<String>) {
        let name = format!("blkin-set-{}-{:?}", std::process::id(), std::thread::current().id());
        let path = std::env::temp_dir().join(name);
        let listener = UnixListener::bind(&path).unwrap();
        let bound = path.clone();
        let serving = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            std::fs::remove_file(bound).unwrap();
            let mut request = String::new();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut request).unwrap();
            writeln!(stream, "{answer}").unwrap();
            request
        });
        (path, serving)
    }

    const STYLE: Style = Style { columns: 100, colours: false };

    fn run_with(line: &str, json: bool, answer: &'static str) -> Result<String> {
        let (path, serving) = daemon(answer);
        let text = run(&parsed(&format!("{line} --socket {}", path.display())).unwrap(), json, STYLE);
        serving.join().unwrap();
        text
    }

    const DONE: &str = r#"{"done":{"rules":[{"target":{"label":"osd"},"uid":7,"rate":100}],"programs":
        [{"pid":12,"comm":"osd","uid":7,"on":false,"rate":100,"levels":["emerg","alert"]}]}}"#;

    #[test]
    fn answers_to_set_are_shown_as_a_table_or_json() {
        let done: &'static str = DONE.replace('\n', " ").leak();
        let text = run_with("--label osd --rate 100", false, done).unwrap();
        assert!(text.starts_with("Set for 1 program and for those to come; in force now.\n"), "{text}");
        assert!(text.ends_with("  12   osd      7     off      1 of 100  alert and more severe\n"), "{text}");
        let text = run_with("--show", false, done).unwrap();
        assert!(text.contains("  label osd  7     -        1 of 100  -\n"), "{text}");
        let text = run_with("--show", true, done).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["programs"][0]["pid"], 12);
    }

    #[test]
    fn wide_characters_keep_the_columns_of_set_aligned() {
        let rows = [["存储".into(), "1".into()], ["osd".into(), "2".into()]];
        assert_eq!(table(["a", "b"], &rows, "none", STYLE), "  a     b\n  存储  1\n  osd   2\n");
    }

    #[test]
    fn long_lists_of_levels_wrap_in_their_column() {
        let rows = [["osd".into(), "emerg crit warning info".into()], ["mon".into(), "all".into()]];
        let text = table(["PROGRAM", "LEVELS"], &rows, "none", Style { columns: 28, ..STYLE });
        let expected = "  PROGRAM  LEVELS\n  osd      emerg crit\n           warning info\n  mon      all\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_label_that_the_kernel_truncates_is_announced() {
        let said = |line: &str| {
            shown(&parsed(line).unwrap(), &Done { rules: Vec::new(), programs: Vec::new() }, STYLE)
        };
        let cut = "The kernel keeps 15 bytes of a name: this applies to all programs that it names a-very-long-nam.\n";
        for line in ["--label a-very-long-name --off", "--label a-very-long-name-indeed --reset"] {
            assert!(said(line).ends_with(cut), "{line}");
        }
        assert!(!said("--label a-very-long-nam --off").contains("kernel"));
        assert!(said("--label ääääääää --off").contains("kernel"), "bytes are counted");
    }

    #[test]
    fn a_user_who_sets_all_is_told_that_only_own_programs_are_set() {
        let done = |target: &str, uid: u32| -> Done {
            let rules =
                json!([{ "target": target, "on": false }, { "target": target, "uid": uid, "on": false }]);
            serde_json::from_value(json!({ "rules": rules, "programs": [] })).unwrap()
        };
        assert!(done("all", 7).is_limited_to(7) && !done("all", 8).is_limited_to(7));
        let me = rustix::process::geteuid().as_raw();
        let text = shown(&parsed("--all --off").unwrap(), &done("all", me), STYLE);
        assert_eq!(text, "Set for 0 programs of yours and for those to come; in force now.\n");
        assert!(
            shown(&parsed("--all --off").unwrap(), &done("all", me + 1), STYLE)
                .starts_with("Set for 0 programs and")
        );
    }

    #[test]
    fn a_refusal_is_shown_in_the_daemons_words() {
        let refused = r#"{"refused":{"cause":"unknown_pid","why":"no program of process 3 is attached"}}"#;
        let error = run_with("--pid 3 --off", false, refused).unwrap_err();
        assert_eq!(error.to_string(), "no program of process 3 is attached");
        assert!(run_with("--show", false, "what?").unwrap_err().to_string().contains("understand"));
    }

    #[test]
    fn a_missing_daemon_is_reported_with_advice() {
        let error = run(&parsed("--show --socket /nonexistent/c").unwrap(), false, STYLE).unwrap_err();
        assert!(format!("{error:#}").contains("blkin doctor"), "{error:#}");
    }

    #[test]
    fn sets_of_levels_are_abbreviated() {
        let names = |count| Level::value_variants()[..count].iter().map(|l| l.name()).collect::<Vec<_>>();
        assert_eq!([8, 7, 1].map(|count| levels(&names(count))), ["all", "info and more severe", "emerg"]);
        assert_eq!(levels(&["err".into(), "debug".into()]), "err debug");
    }
}
