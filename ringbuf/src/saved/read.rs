//! Reading: whatever can be checked, in whatever file.

use super::raw;
use super::section::{Section, Sections, kind, word, words};
use super::{HEADER_WORDS, Identity, Run, Saved, SavedSlot, VERSION};
use crate::clock::ClockKind;
use crate::layout::{MAX_SLOTS, NAMES_TEXT_WORDS, SLOT_HEADER_WORDS};

use blkin_record::{GRAIN_BYTES, POSITION_MASK};

/// Longer files are read up to here.
pub const MAX_FILE_BYTES: u64 = 1 << 30;
const MAX_TEXT_BYTES: u64 = 4096;

/// What was found in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// The programs whose rings it holds.
    pub programs: Vec<Saved>,
    /// Bytes that no checksum vouches for; they were not used.
    pub damaged_bytes: u64,
    /// Sections that made no sense where they stood, or whose kind is of a later version.
    pub skipped_sections: u64,
    /// Sections that must have been there and are not.
    pub missing_sections: u64,
    /// Programs whose rings are written in another version of the format, or of records; they were not read.
    pub of_other_versions: u64,
    /// Programs whose rings no end section follows, because it is damaged.
    pub unfinished: u64,
    /// The file ends before its content does.
    pub is_cut: bool,
    /// Bytes of the section in the middle of which it ends; they were not used.
    pub cut_bytes: u64,
    /// It is a copy of a program's memory, and nothing in it has a checksum.
    pub is_raw: bool,
}

/// Reads a saved segment, or a copy of the segment of a program. Never fails: a file of any other kind holds no program.
/// Takes about as much memory as the file is long.
pub fn read(file: &[u8]) -> Reading {
    if let Some((saved, is_cut)) = raw::read(file) {
        return Reading { programs: vec![saved], is_cut, is_raw: true, ..Reading::default() };
    }
    let mut reading = Reading::default();
    let mut program: Option<Assembly> = None;
    let mut sections = Sections::of(file);
    for section in &mut sections {
        if section.kind == kind::PROGRAM {
            reading.give_up(program.take());
        }
        match (&mut program, section.kind) {
            (None, kind::PROGRAM) => match Assembly::begun(section.content) {
                Some(begun) => program = Some(begun),
                None => reading.skipped_sections += 1,
            },
            (None, _) => {
                // The section of its program is damaged: this one still shows what it holds.
                let mut unknown = Assembly { sections: 1, ..Assembly::of(Identity::default()) };
                unknown.add(section, &mut reading);
                program = Some(unknown);
            }
            (Some(program), _) => program.add(section, &mut reading),
        }
        if let Some(complete) = program.take_if(|program| program.is_complete) {
            reading.keep(complete);
        }
    }
    reading.damaged_bytes = sections.damaged_bytes;
    reading.cut_bytes = sections.cut_bytes;
    reading.is_cut = sections.cut_bytes > 0 || program.is_some() && !sections.ends_damaged;
    match program {
        Some(cut) if reading.is_cut => reading.keep(cut),
        other => reading.give_up(other),
    }
    reading
}

impl Reading {
    /// Takes a program whose end section is not where it should be.
    fn give_up(&mut self, program: Option<Assembly>) {
        self.unfinished += u64::from(program.is_some());
        program.into_iter().for_each(|program| self.keep(program));
    }

    fn keep(&mut self, program: Assembly) {
        if program.is_of_another_version {
            self.of_other_versions += 1;
        } else {
            self.programs.push(program.saved);
        }
    }
}

/// A program whose sections are being read.
struct Assembly {
    saved: Saved,
    sections: u64,
    is_complete: bool,
    /// Its sections may mean anything, except for the end.
    is_of_another_version: bool,
}

impl Assembly {
    fn of(identity: Identity) -> Self {
        let saved = Saved { identity, ..Saved::default() };
        Self { saved, sections: 1, is_complete: false, is_of_another_version: false }
    }

    /// Begins a program from the content of its first section; `None` when that makes no sense.
    fn begun(content: &[u8]) -> Option<Self> {
        let is_read = word(content, 0)? == VERSION && blkin_record::is_read(word(content, 1)?);
        if is_read {
            return identity(content).map(Self::of);
        }
        Some(Self { is_of_another_version: true, ..Self::of(Identity::default()) })
    }

    fn add(&mut self, section: Section<'_>, reading: &mut Reading) {
        self.sections += 1;
        let content = section.content;
        let taken = match section.kind {
            kind::END => self.end(content, reading),
            _ if self.is_of_another_version => Some(()),
            kind::CLOCK => self.clock(content),
            kind::HEADER => keep(&mut self.saved.header, content, HEADER_WORDS),
            kind::NAMES => keep(&mut self.saved.names, content, NAMES_TEXT_WORDS),
            kind::SLOT => self.slot(content),
            kind::GRAINS => self.grains(content),
            _ => None,
        };
        reading.skipped_sections += u64::from(taken.is_none());
    }

    fn clock(&mut self, content: &[u8]) -> Option<()> {
        let words = words(content);
        let (kind, anchors) = words.split_first()?;
        self.saved.clock = ClockKind::from_word(*kind);
        let anchors = anchors.as_chunks::<2>().0.iter();
        self.saved.anchors = anchors.map(|[raw, realtime]| (*raw, realtime.cast_signed())).collect();
        Some(())
    }

    fn slot(&mut self, content: &[u8]) -> Option<()> {
        let words = words(content);
        let (number, rest) = words.split_first()?;
        let (header, range) = rest.split_at_checked(SLOT_HEADER_WORDS)?;
        let [from, to] = *range.first_chunk()?;
        let slot = self.slot_of(*number)?;
        slot.header = header.to_vec();
        slot.range = Some((from, to));
        Some(())
    }

    fn grains(&mut self, content: &[u8]) -> Option<()> {
        let (number, position) = (word(content, 0)?, word(content, 1)? & POSITION_MASK);
        let raw = content.get(16..).filter(|raw| raw.len().is_multiple_of(GRAIN_BYTES))?;
        let slot = self.slot_of(number)?;
        match slot.runs.last_mut() {
            Some(run) if run.end() == position => run.raw.extend_from_slice(raw),
            _ => slot.runs.push(Run { position, raw: raw.to_vec() }),
        }
        Some(())
    }

    fn end(&mut self, content: &[u8], reading: &mut Reading) -> Option<()> {
        let missing = word(content, 0)?.saturating_sub(self.sections);
        // Any number can stand there, in each program's last section.
        reading.missing_sections = reading.missing_sections.saturating_add(missing);
        self.is_complete = true;
        Some(())
    }

    fn slot_of(&mut self, number: u64) -> Option<&mut SavedSlot> {
        let number = u32::try_from(number).ok().filter(|number| (*number as usize) < MAX_SLOTS)?;
        let slots = &mut self.saved.slots;
        let index = slots.iter().position(|slot| slot.number == number).unwrap_or_else(|| {
            slots.push(SavedSlot { number, ..SavedSlot::default() });
            slots.len() - 1
        });
        slots.get_mut(index)
    }
}

impl Run {
    /// Position just past its last grain.
    pub(super) fn end(&self) -> u64 {
        (self.position + (self.raw.len() / GRAIN_BYTES) as u64) & POSITION_MASK
    }
}

fn keep(into: &mut Vec<u64>, content: &[u8], most: usize) -> Option<()> {
    let words = words(content);
    (words.len() <= most).then(|| *into = words)
}

fn identity(content: &[u8]) -> Option<Identity> {
    let mut texts = content.get(7 * 8..)?;
    let mut text = || {
        let length = word(texts, 0).filter(|length| *length <= MAX_TEXT_BYTES)? as usize;
        let text = texts.get(8..8 + length)?;
        texts = &texts[8 + length..];
        Some(String::from_utf8_lossy(text).into_owned())
    };
    Some(Identity {
        pid: word(content, 2)? as u32,
        uid: word(content, 3)? as u32,
        ended: word(content, 4)? != 0,
        taken_ns: word(content, 5)?,
        since_ns: word(content, 6)?,
        label: text()?,
        host: text()?,
        boot: text()?,
    })
}
