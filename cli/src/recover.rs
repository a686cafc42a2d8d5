//! Annotations out of saved segments (`blkin snapshot`), and out of copies of a program's memory.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};
use blkin_record::{Endpoint, EndpointRef, Record, Text, Value};
use blkin_ringbuf::saved::{self, Count, MAX_FILE_BYTES, Reading, Saved, SavedRecord, SavedTime};
use serde::Serialize;

use crate::moments;
use crate::terminal::safe;
use crate::units;

/// Syslog's names of levels.
const LEVELS: [&str; 8] = ["emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"];

/// One annotation as it is printed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recovered {
    /// Nanoseconds since 1970, when that is known.
    pub time_ns: Option<i64>,
    /// The time is its own; else it is that of the event before it in its ring.
    pub is_own_time: bool,
    /// Name of the program.
    pub program: String,
    /// Process.
    pub pid: u32,
    /// Ring.
    pub slot: u32,
    /// Number in its ring (mod 2^28).
    pub ordinal: u64,
    /// Trace id, hexadecimal.
    pub trace_id: String,
    /// Span id, hexadecimal.
    pub span_id: String,
    /// Parent span id, hexadecimal; of a root none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<String>,
    /// Name of the span.
    pub name: String,
    /// Name of the service.
    pub service: String,
    /// Its address, when it has one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub address: String,
    /// Severity.
    pub level: &'static str,
    /// The event, or the key.
    pub key: String,
    /// What the key says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<serde_json::Value>,
}

/// What became of a file.
#[derive(Clone, Debug, Default)]
pub struct Recovery {
    /// In the order of time; what has none comes last.
    pub annotations: Vec<Recovered>,
    /// For people: a line for each program and each thing that is wrong with the file.
    pub summary: String,
}

/// Reads a file.
///
/// # Errors
/// When it cannot be read, or nothing in it is a saved segment.
pub fn recover(path: &Path) -> Result<Recovery> {
    let context = || format!("failed to read {}", path.display());
    let mut file = Vec::new();
    let bytes = File::open(path).with_context(context)?.take(MAX_FILE_BYTES).read_to_end(&mut file);
    let bytes = bytes.with_context(context)? as u64;
    let mut recovery = of_bytes(&file)
        .with_context(|| format!("nothing in the {bytes} bytes of {} can be read", path.display()))?;
    if bytes == MAX_FILE_BYTES {
        let _ = writeln!(recovery.summary, "the file is longer than 1 GiB; what follows was not read");
    }
    Ok(recovery)
}

/// Reads what a file holds.
///
/// # Errors
/// When nothing in it is a saved segment.
pub fn of_bytes(file: &[u8]) -> Result<Recovery> {
    let mut reading = saved::read(file);
    match reading.programs.is_empty() {
        true if reading.is_cut => bail!("it begins like a saved segment, and ends too early: it was cut"),
        true => bail!("it is neither a saved segment nor a copy of one"),
        false => {}
    }
    let mut recovery = Recovery::default();
    for program in &mut reading.programs {
        let is_foreign = reading.is_raw && !program.adopt_clock_of_this_boot();
        let texts = Texts { program, known: HashMap::new().into() };
        let mut unreadable = 0;
        let count = program.records(|record| match texts.recovered(record) {
            Some(annotation) => recovery.annotations.push(annotation),
            None => unreadable += 1,
        });
        summarize(program, count, unreadable, is_foreign, &mut recovery.summary);
    }
    damage(&reading, &mut recovery.summary);
    // Stable: what has the same time keeps the order of its ring.
    recovery.annotations.sort_by_key(|annotation| annotation.time_ns.unwrap_or(i64::MAX));
    Ok(recovery)
}

fn summarize(program: &Saved, count: Count, unreadable: u64, is_foreign: bool, out: &mut String) {
    let of = &program.identity;
    let label = if of.label.is_empty() { "program" } else { &of.label };
    let _ = write!(out, "{}:{}", safe(label), of.pid);
    if !of.host.is_empty() {
        let _ = write!(out, " on {}", safe(&of.host));
    }
    let read = units::counted(count.read - unreadable, "annotation");
    let _ = write!(out, ": {read}, {} spoilt, {} missing", count.invalid + unreadable, count.missing);
    let state = if of.ended { "; it had ended" } else { "" };
    let _ = writeln!(out, "{state}");
    if is_foreign {
        let _ = writeln!(
            out,
            "  its clock is not this machine's of today: no times, the order is that of each ring"
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
        (reading.unfinished, "program has a damaged end", "programs have damaged ends"),
    ];
    for (number, one, many) in facts.iter().filter(|(number, ..)| *number > 0) {
        let _ = writeln!(out, "{number} {}", if *number == 1 { one } else { many });
    }
    if reading.is_cut {
        let _ = writeln!(out, "the file ends too early: it was cut{}", left_out(reading.cut_bytes));
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

/// Texts of one program.
struct Texts<'a> {
    program: &'a Saved,
    known: std::cell::RefCell<HashMap<u32, Option<String>>>,
}

impl Texts<'_> {
    fn recovered(&self, saved: SavedRecord<'_>) -> Option<Recovered> {
        let SavedRecord { slot, time, record } = saved;
        let endpoint = self.endpoint(&record)?;
        let hex = |id: u64| format!("{id:016x}");
        Some(Recovered {
            time_ns: time.nanoseconds(),
            is_own_time: matches!(time, SavedTime::At(_)),
            program: self.program.identity.label.clone(),
            pid: self.program.identity.pid,
            slot,
            ordinal: record.ordinal,
            trace_id: hex(record.trace_id),
            span_id: hex(record.span_id),
            parent_id: (record.parent_span_id != 0).then(|| hex(record.parent_span_id)),
            name: self.text(&record.name)?,
            address: match (endpoint.ip.as_str(), endpoint.port) {
                ("", _) => String::new(),
                (ip, 0) => ip.to_owned(),
                (ip, port) => format!("{ip}:{port}"),
            },
            service: endpoint.name,
            level: LEVELS[usize::from(record.level) % LEVELS.len()],
            key: self.text(&record.key)?,
            value: match record.value {
                Value::None => None,
                Value::Integer(number) => Some(number.into()),
                Value::Str(bytes) => Some(String::from_utf8_lossy(&bytes).into()),
            },
        })
    }

    fn text(&self, text: &Text<'_>) -> Option<String> {
        match text {
            Text::Inline(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            Text::Id(id) => {
                let mut known = self.known.borrow_mut();
                let look_up = || {
                    let text = self.program.text(*id)?;
                    Some(String::from_utf8_lossy(&text).into_owned())
                };
                known.entry(*id).or_insert_with(look_up).clone()
            }
        }
    }

    fn endpoint(&self, record: &Record<'_>) -> Option<Endpoint> {
        match &record.endpoint {
            EndpointRef::Inline(bytes) => Endpoint::decode(bytes),
            EndpointRef::Id(id) => Endpoint::decode(&self.program.text(*id)?),
        }
    }
}

/// What `blkin recover --help` says of its lines.
pub const NOTE: &str = "\
A line for each annotation: when, program, service, span, ids of trace and span, severity, and what was \
recorded. A key has no time of its own: ~ stands before that of the event before it in its ring.";

/// Lines for people: time of day (`~` before one that is not its own), program, service, span, ids, what happened.
pub fn text(annotations: &[Recovered]) -> String {
    let mut out = String::new();
    for a in annotations {
        let time = match a.time_ns {
            Some(time) => format!(
                "{}{}",
                if a.is_own_time { ' ' } else { '~' },
                moments::moment(time.max(0) as u64 / 1000)
            ),
            None => " unknown time".into(),
        };
        let value = match &a.value {
            None => String::new(),
            Some(serde_json::Value::String(text)) => format!(" = {}", safe(text)),
            Some(number) => format!(" = {number}"),
        };
        let (program, service, name, key) = (safe(&a.program), safe(&a.service), safe(&a.name), safe(&a.key));
        let _ = writeln!(
            out,
            "{time} {program}:{} {service} {name} {}/{} {} {key}{value}",
            a.pid, a.trace_id, a.span_id, a.level
        );
    }
    out
}

/// A JSON object a line.
///
/// # Errors
/// Never in fact.
pub fn json_lines(annotations: &[Recovered]) -> Result<String> {
    let mut out = String::new();
    for annotation in annotations {
        out.push_str(&serde_json::to_string(annotation)?);
        out.push('\n');
    }
    Ok(out)
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
        of_bytes(file).unwrap().summary
    }

    #[test]
    fn a_file_that_was_cut_is_not_called_damaged() {
        let file = saved();
        let end = file.len() - saved::END_BYTES;
        assert!(!summary(&file).contains("cut"));
        assert!(summary(&file[..end]).ends_with("\nthe file ends too early: it was cut\n"));
        let cut = summary(&file[..=end]);
        assert!(
            cut.ends_with("it was cut, and what is left of its last section (1 byte) was left out\n"),
            "{cut}"
        );
        assert!(!cut.contains("damaged"), "{cut}");
        let copy = summary(&b"BLKINSEG".repeat(20));
        assert!(copy.ends_with("\nthe file ends too early: it was cut\n"), "{copy}");
    }

    #[test]
    fn damage_is_counted_and_one_is_not_told_as_many() {
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

    #[test]
    fn a_file_of_nothing_is_told_from_one_of_which_nothing_is_left() {
        let why = |file: &[u8]| of_bytes(file).unwrap_err().to_string();
        assert!(why(b"something else").contains("neither a saved segment nor a copy"));
        assert!(why(&saved()[..10]).contains("ends too early: it was cut"));
    }
}
