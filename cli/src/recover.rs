//! `blkin recover`: annotations from saved segments (`blkin snapshot`), and from copies of a program's memory.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use blkin_record::{Endpoint, EndpointRef, Record, Text, Value};
use blkin_ringbuf::saved::{self, Count, MAX_FILE_BYTES, Reading, Saved, SavedRecord, SavedTime};
use serde::{Serialize, Serializer};

use crate::json;
use crate::moments;
use crate::terminal::safe;
use crate::units;

/// Syslog's names of levels.
const LEVELS: [&str; 8] = ["emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"];

/// One annotation as it is printed. There may be millions, so texts that many of them share are kept once.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recovered {
    /// Nanoseconds since 1970, if known.
    pub time_ns: Option<i64>,
    /// Whether the time is its own; otherwise it is that of the event before it in its ring.
    pub is_own_time: bool,
    /// Name of the program.
    pub program: Rc<str>,
    /// Process id.
    pub pid: u32,
    /// Number of the ring.
    pub slot: u32,
    /// Sequence number in its ring (mod 2^28).
    pub ordinal: u64,
    /// Trace id.
    #[serde(serialize_with = "hexadecimal")]
    pub trace_id: u64,
    /// Span id.
    #[serde(serialize_with = "hexadecimal")]
    pub span_id: u64,
    /// Parent span id; of a root 0.
    #[serde(serialize_with = "hexadecimal", skip_serializing_if = "is_none")]
    pub parent_id: u64,
    /// Name of the span.
    pub name: Rc<str>,
    /// Name of the service.
    pub service: Rc<str>,
    /// Its address, when it has one.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub address: Rc<str>,
    /// Severity.
    pub level: &'static str,
    /// The event, or the key.
    pub key: Rc<str>,
    /// The value of the key; none for an event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<serde_json::Value>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands over references")]
fn hexadecimal<S: Serializer>(id: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{id:016x}"))
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands over references")]
fn is_none(id: &u64) -> bool {
    *id == 0
}

/// What was recovered from a file.
#[derive(Clone, Debug, Default)]
pub struct Recovery {
    /// The annotations by time; those without a time come last.
    pub annotations: Vec<Recovered>,
    /// Text to print: a line for each program and for each defect of the file.
    pub summary: String,
}

/// Reads a file; `-` is standard input.
///
/// # Errors
/// When it cannot be read, or contains no saved segment.
pub fn recover(path: &Path) -> Result<Recovery> {
    let (path, opened) = match path.to_str() {
        Some("-") => (Path::new("/dev/stdin"), io::stdin().as_fd().try_clone_to_owned().map(File::from)),
        _ => (path, File::open(path)),
    };
    let context = || format!("failed to read {}", path.display());
    let mut file = Vec::new();
    let bytes = opened.with_context(context)?.take(MAX_FILE_BYTES).read_to_end(&mut file);
    let bytes = bytes.with_context(context)? as u64;
    let reading = saved::read(&file);
    // What was found is a copy: this frees the memory of the file.
    drop(file);
    let mut recovery = of_reading(reading)
        .with_context(|| format!("nothing in the {bytes} bytes of {} can be read", path.display()))?;
    if bytes == MAX_FILE_BYTES {
        let _ = writeln!(recovery.summary, "the file is longer than 1 GiB; the rest was not read");
    }
    Ok(recovery)
}

/// The annotations in what was read from a file.
fn of_reading(mut reading: Reading) -> Result<Recovery> {
    match reading.programs.is_empty() {
        true if reading.of_other_versions > 0 => {
            bail!("it was written by another version: use the `blkin` of the version that took the snapshot")
        }
        true if reading.is_cut => {
            bail!("it begins like a saved segment, but ends too early: it was truncated")
        }
        true => bail!("it is neither a saved segment nor a copy of one"),
        false => {}
    }
    let mut recovery = Recovery::default();
    for mut program in std::mem::take(&mut reading.programs) {
        let is_foreign = reading.is_raw && !program.adopt_clock_of_this_boot();
        let texts = Texts::of(&program);
        let mut unreadable = 0;
        let count = program.records(|record| match texts.recovered(record) {
            Some(annotation) => recovery.annotations.push(annotation),
            None => unreadable += 1,
        });
        summarize(&program, count, unreadable, is_foreign, &mut recovery.summary);
    }
    damage(&reading, &mut recovery.summary);
    // A stable sort: annotations of the same time keep the order of their ring. Keys are sorted, not annotations: a stable sort
    // needs a buffer for half of its elements.
    recovery.annotations.sort_by_cached_key(|annotation| annotation.time_ns.unwrap_or(i64::MAX));
    Ok(recovery)
}

/// The name of a program, which is not always known.
fn label(program: &Saved) -> &str {
    match program.identity.label.as_str() {
        "" => "program",
        label => label,
    }
}

fn summarize(program: &Saved, count: Count, unreadable: u64, is_foreign: bool, out: &mut String) {
    let of = &program.identity;
    let _ = write!(out, "{}:{}", safe(label(program)), of.pid);
    if !of.host.is_empty() {
        let _ = write!(out, " on {}", safe(&of.host));
    }
    let read = units::counted(count.read - unreadable, "annotation");
    let _ = write!(out, ": {read}, {} corrupt, {} missing", count.invalid + unreadable, count.missing);
    let state = if of.ended { "; it had ended" } else { "" };
    let _ = writeln!(out, "{state}");
    if is_foreign {
        let _ = writeln!(
            out,
            "  its clock is not that of this machine since its last boot: times are unknown, the order is that of each ring"
        );
    }
}

fn damage(reading: &Reading, out: &mut String) {
    let facts = [
        (reading.damaged_bytes, "byte is damaged and was left out", "bytes are damaged and were left out"),
        (reading.missing_sections, "section is missing", "sections are missing"),
        (
            reading.skipped_sections,
            "section makes no sense, or is of a later version",
            "sections make no sense, or are of a later version",
        ),
        (
            reading.of_other_versions,
            "program is of another version and was left out",
            "programs are of other versions and were left out",
        ),
        (reading.unfinished, "program has a damaged end", "programs have damaged ends"),
    ];
    for (number, one, many) in facts.iter().filter(|(number, ..)| *number > 0) {
        let _ = writeln!(out, "{number} {}", if *number == 1 { one } else { many });
    }
    if reading.is_cut {
        let _ = writeln!(out, "the file ends too early: it was truncated{}", left_out(reading.cut_bytes));
    }
}

fn left_out(cut_bytes: u64) -> String {
    match cut_bytes {
        0 => String::new(),
        some => {
            format!(", and what is left of its last section ({}) was left out", units::counted(some, "byte"))
        }
    }
}

/// The texts of one program. A text that records refer to by number is kept once.
struct Texts<'a> {
    program: &'a Saved,
    label: Rc<str>,
    known: RefCell<HashMap<u32, Option<Rc<str>>>>,
    endpoints: RefCell<HashMap<u32, Option<Place>>>,
}

/// A service and its address.
#[derive(Clone)]
struct Place {
    service: Rc<str>,
    address: Rc<str>,
}

impl<'a> Texts<'a> {
    fn of(program: &'a Saved) -> Self {
        let label = label(program).into();
        Texts { program, label, known: RefCell::default(), endpoints: RefCell::default() }
    }

    fn recovered(&self, saved: SavedRecord<'_>) -> Option<Recovered> {
        let SavedRecord { slot, time, record } = saved;
        let Place { service, address } = self.place(&record)?;
        Some(Recovered {
            time_ns: time.nanoseconds(),
            is_own_time: matches!(time, SavedTime::At(_)),
            program: self.label.clone(),
            pid: self.program.identity.pid,
            slot,
            ordinal: record.ordinal,
            trace_id: record.trace_id,
            span_id: record.span_id,
            parent_id: record.parent_span_id,
            name: self.text(&record.name)?,
            address,
            service,
            level: LEVELS[usize::from(record.level) % LEVELS.len()],
            key: self.text(&record.key)?,
            value: match record.value {
                Value::None => None,
                Value::Integer(number) => Some(number.into()),
                Value::Str(bytes) => Some(String::from_utf8_lossy(&bytes).into()),
            },
        })
    }

    fn text(&self, text: &Text<'_>) -> Option<Rc<str>> {
        match text {
            Text::Inline(bytes) => Some(String::from_utf8_lossy(bytes).into()),
            Text::Id(id) => {
                let look_up = || Some(String::from_utf8_lossy(&self.program.text(*id)?).into());
                self.known.borrow_mut().entry(*id).or_insert_with(look_up).clone()
            }
        }
    }

    fn place(&self, record: &Record<'_>) -> Option<Place> {
        match &record.endpoint {
            EndpointRef::Inline(bytes) => Endpoint::decode(bytes).map(Place::from),
            EndpointRef::Id(id) => {
                let look_up = || Endpoint::decode(&self.program.text(*id)?).map(Place::from);
                self.endpoints.borrow_mut().entry(*id).or_insert_with(look_up).clone()
            }
        }
    }
}

impl From<Endpoint> for Place {
    fn from(endpoint: Endpoint) -> Place {
        let address = match (endpoint.ip.as_str(), endpoint.port) {
            ("", _) => String::new(),
            (ip, 0) => ip.to_owned(),
            (ip, port) => format!("{ip}:{port}"),
        };
        Place { service: endpoint.name.into(), address: address.into() }
    }
}

/// What `blkin recover --help` says about its output.
pub const NOTE: &str = "\
Prints a line for each annotation: time, program, service, span, ids of trace and span, severity, and what was \
recorded. A key has no time of its own: it is shown with the time of the event before it in its ring, marked by ~.";

/// Writes one line of text: time (after `~` if it is not its own), program, service, span, ids, severity, what was recorded.
///
/// # Errors
/// When `out` cannot be written.
pub fn write_text(a: &Recovered, out: &mut impl Write) -> io::Result<()> {
    let time = match a.time_ns {
        Some(time) => {
            format!("{}{}", if a.is_own_time { ' ' } else { '~' }, moments::moment(time.div_euclid(1000)))
        }
        None => " unknown time".into(),
    };
    let value = match &a.value {
        None => String::new(),
        Some(serde_json::Value::String(text)) => format!(" = {}", safe(text)),
        Some(number) => format!(" = {number}"),
    };
    let (program, service, name, key) = (safe(&a.program), safe(&a.service), safe(&a.name), safe(&a.key));
    writeln!(
        out,
        "{time} {program}:{} {service} {name} {:016x}/{:016x} {} {key}{value}",
        a.pid, a.trace_id, a.span_id, a.level
    )
}

/// Writes a line that is a JSON object.
///
/// # Errors
/// When `out` cannot be written.
pub fn write_json(annotation: &Recovered, out: &mut impl Write) -> io::Result<()> {
    out.write_all(json::line(annotation)?.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved() -> Vec<u8> {
        let mut file = Vec::new();
        saved::write(&Saved::default(), &mut file);
        file
    }

    fn summary(file: &[u8]) -> String {
        of_reading(saved::read(file)).unwrap().summary
    }

    #[test]
    fn a_truncated_file_is_not_called_damaged() {
        let file = saved();
        let end = file.len() - saved::END_BYTES;
        assert!(!summary(&file).contains("cut"));
        assert!(summary(&file[..end]).ends_with("\nthe file ends too early: it was truncated\n"));
        let cut = summary(&file[..=end]);
        assert!(
            cut.ends_with("it was truncated, and what is left of its last section (1 byte) was left out\n"),
            "{cut}"
        );
        assert!(!cut.contains("damaged"), "{cut}");
        let copy = summary(&b"BLKINSEG".repeat(20));
        assert!(copy.ends_with("\nthe file ends too early: it was truncated\n"), "{copy}");
    }

    #[test]
    fn damage_is_counted_in_the_singular_and_the_plural() {
        let mut file = saved();
        let last = file.len() - 1;
        file[last] ^= 1;
        let damaged = summary(&file);
        assert!(
            damaged.ends_with("32 bytes are damaged and were left out\n1 program has a damaged end\n"),
            "{damaged}"
        );
        assert!(summary(&file.repeat(2)).contains("\n2 programs have damaged ends\n"));
        let longer = [&saved()[..], b"x"].concat();
        assert!(summary(&longer).ends_with("1 byte is damaged and was left out\n"));
    }

    fn golden_file() -> Vec<u8> {
        let golden = include_str!("../../ringbuf/tests/golden/saved-v1.hex").replace('\n', "");
        let byte = |at: usize| u8::from_str_radix(&golden[at..at + 2], 16).unwrap();
        (0..golden.len()).step_by(2).map(byte).collect()
    }

    fn golden() -> Vec<Recovered> {
        of_reading(saved::read(&golden_file())).unwrap().annotations
    }

    #[test]
    fn rings_of_another_version_are_reported() {
        let reading = Reading { of_other_versions: 1, ..Reading::default() };
        let alone = of_reading(reading).unwrap_err().to_string();
        assert!(alone.contains("it was written by another version"), "{alone}");
        let beside = of_reading(Reading { of_other_versions: 1, ..saved::read(&saved()) }).unwrap().summary;
        assert!(beside.ends_with("\n1 program is of another version and was left out\n"), "{beside}");
    }

    #[test]
    fn times_before_1970_are_printed() {
        let early = Recovered { time_ns: Some(-1), is_own_time: true, ..golden().remove(0) };
        let mut line = Vec::new();
        write_text(&early, &mut line).unwrap();
        let line = String::from_utf8(line).unwrap();
        assert!(line.starts_with(" 1969-12-31 23:59:59.999999 UTC "), "{line}");
    }

    #[test]
    fn a_program_without_a_name_is_called_program() {
        let mut reading = saved::read(&golden_file());
        reading.programs[0].identity.label.clear();
        let recovery = of_reading(reading).unwrap();
        assert!(recovery.summary.starts_with("program:4711 "), "{}", recovery.summary);
        assert!(recovery.annotations.iter().all(|annotation| &*annotation.program == "program"));
    }

    #[test]
    fn equal_texts_of_annotations_are_stored_once() {
        let annotations = golden();
        // The second has another key, and of both later ones the endpoint travelled in the record.
        let [first, _, third] = &annotations[..] else { panic!("{annotations:?}") };
        let texts = |of: &Recovered| [&of.program, &of.name, &of.key].map(Rc::as_ptr);
        assert_eq!(texts(first), texts(third), "{annotations:?}");
    }

    #[test]
    fn a_foreign_file_is_distinguished_from_a_truncated_one() {
        let why = |file: &[u8]| of_reading(saved::read(file)).unwrap_err().to_string();
        assert!(why(b"something else").contains("neither a saved segment nor a copy"));
        assert!(why(&saved()[..10]).contains("ends too early: it was truncated"));
    }
}
