//! The file of rules, which outlives workers and the daemon, until the machine reboots.
//!
//! It holds two copies of 128 KiB each, of which the older one is overwritten: sequence u64, length u64, checksum u64 over
//! both and the content, then the rules as JSON. If a writer is killed, the checksum of its copy is wrong, and the other
//! copy counts.

use std::io;

use super::rules::Rules;
use crate::staging::layout::checksum;
use crate::staging::{Memfd, Memory};

/// Size of the file.
pub const FILE_BYTES: u64 = 2 * COPY_BYTES;

const COPY_BYTES: u64 = 128 << 10;
const HEADER_BYTES: usize = 24;

/// The file, and the sequence number of its newest copy.
#[derive(Debug)]
pub struct RulesFile<M: Memory = Memfd> {
    memory: M,
    sequence: u64,
}

impl<M: Memory> RulesFile<M> {
    /// Opens the file, and returns the rules in it; an empty file has none.
    ///
    /// # Errors
    /// Any error of the system.
    pub fn open(memory: M) -> io::Result<(Self, Rules)> {
        let mut newest: Option<(u64, Rules)> = None;
        for copy in 0..2 {
            let found = read(&memory, copy)?;
            newest = match (newest, found) {
                (Some(one), Some(other)) => Some(if is_after(other.0, one.0) { other } else { one }),
                (one, other) => one.or(other),
            };
        }
        let (sequence, rules) = newest.unwrap_or_default();
        Ok((Self { memory, sequence }, rules))
    }

    /// Writes all rules, as a whole or not at all.
    ///
    /// # Errors
    /// Any error of the system; or when the rules are too long, which [`MAX_RULES`](super::rules::MAX_RULES) prevents.
    pub fn write(&mut self, rules: &Rules) -> io::Result<()> {
        let json = serde_json::to_vec(rules)?;
        if (HEADER_BYTES + json.len()) as u64 > COPY_BYTES {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the rules are too long"));
        }
        let sequence = self.sequence.wrapping_add(1);
        let mut bytes = [sequence, json.len() as u64].map(u64::to_le_bytes).concat();
        bytes.extend(checksum(&[&bytes, &json]).to_le_bytes());
        bytes.extend(json);
        self.memory.write(sequence % 2 * COPY_BYTES, &bytes)?;
        self.sequence = sequence;
        Ok(())
    }
}

/// Whether `one` is the later sequence number of the two copies; after the largest number comes 0.
fn is_after(one: u64, other: u64) -> bool {
    one.wrapping_sub(other).cast_signed() > 0
}

fn read(memory: &impl Memory, copy: u64) -> io::Result<Option<(u64, Rules)>> {
    let mut bytes = vec![0; COPY_BYTES as usize];
    memory.read(copy * COPY_BYTES, &mut bytes)?;
    let (header, content) = bytes.split_at(HEADER_BYTES);
    let word = |index: usize| -> u64 {
        let mut raw = [0; 8];
        raw.copy_from_slice(&header[8 * index..][..8]);
        u64::from_le_bytes(raw)
    };
    let json = usize::try_from(word(1)).ok().and_then(|length| content.get(..length));
    let whole = json.filter(|json| checksum(&[&header[..16], json]) == word(2));
    Ok(whole.and_then(|json| serde_json::from_slice(json).ok()).map(|rules| (word(0), rules)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::levels::Levels;
    use crate::settings::peer::Reach;
    use crate::settings::rules::{Change, MAX_RULES, Rule, Target};

    fn file() -> Memfd {
        Memfd::create(FILE_BYTES).unwrap()
    }

    fn rules(number: usize) -> Rules {
        let mut rules = Rules::default();
        for number in 0..number {
            let says = Change { on: Some(false), rate: Some(u64::MAX >> 1), levels: Some(Levels::ALL) };
            // Fifteen bytes, most of them characters with the longest form in JSON.
            let label = Target::Label(format!("{}{number:03}", "\u{1}".repeat(12)));
            rules.change(Rule::about_many(label, Reach::All, says), Reach::All).unwrap();
        }
        rules
    }

    #[test]
    fn max_rules_fit_in_the_file_and_read_back() {
        let memory = file();
        let (mut file, none) = RulesFile::open(memory.duplicate().unwrap()).unwrap();
        assert_eq!(none, Rules::default());
        for number in [1, MAX_RULES, 0, 3] {
            file.write(&rules(number)).unwrap();
            assert_eq!(RulesFile::open(memory.duplicate().unwrap()).unwrap().1, rules(number));
        }
    }

    #[test]
    fn rules_are_kept_when_the_sequence_number_wraps() {
        let memory = file();
        let mut file = RulesFile { memory: memory.duplicate().unwrap(), sequence: u64::MAX - 2 };
        for number in 1..6 {
            file.write(&rules(number)).unwrap();
            assert_eq!(RulesFile::open(memory.duplicate().unwrap()).unwrap().1, rules(number), "{number}");
        }
    }

    #[test]
    fn a_write_cut_anywhere_leaves_the_previous_rules() {
        /// Drops all bytes of a write beyond a length.
        #[derive(Debug)]
        struct Cut(Memfd, usize);
        impl Memory for Cut {
            fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
                self.0.write(offset, &bytes[..self.1.min(bytes.len())])
            }
            fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
                self.0.read(offset, bytes)
            }
            fn forget(&mut self, offset: u64, length: u64) -> io::Result<()> {
                self.0.forget(offset, length)
            }
        }
        let memory = file();
        let (mut whole, _) = RulesFile::open(memory.duplicate().unwrap()).unwrap();
        whole.write(&rules(1)).unwrap();
        whole.write(&rules(2)).unwrap();
        let whole_bytes = HEADER_BYTES + serde_json::to_vec(&rules(3)).unwrap().len();
        for cut in 0..whole_bytes {
            let (mut file, before) = RulesFile::open(Cut(memory.duplicate().unwrap(), cut)).unwrap();
            assert_eq!(before, rules(2), "{cut}");
            file.write(&rules(3)).unwrap();
        }
        assert_eq!(RulesFile::open(memory).unwrap().1, rules(2));
    }
}
